//! What errors of an engine mean.

use bollard::errors::Error as EngineError;

use crate::error::Error;

/// For `map_err`: what an engine's error means.
pub(super) fn engine_failed(what: &'static str) -> impl FnOnce(EngineError) -> Error {
    move |error| match error {
        EngineError::DockerResponseServerError { status_code, message } => {
            // Status 500 and above may be temporary, unless a registry or the image itself refuses.
            let is_final = is_refusal(&message) || message.contains("OCI runtime create failed");
            let text = format!("{what}: {message}");
            if is_transient(&message) || (status_code >= 500 && !is_final) {
                Error::Transient(text)
            } else {
                Error::Refused(text)
            }
        }
        EngineError::DockerStreamError { error } if is_transient(&error) => {
            Error::Transient(format!("{what}: {error}"))
        }
        EngineError::DockerStreamError { error } => Error::Refused(format!("{what}: {error}")),
        other => Error::Transient(format!("{what}: the Docker engine does not answer: {other}")),
    }
}

/// Whether an error of the engine about a registry or its network may be temporary.
pub(super) fn is_transient(said: &str) -> bool {
    const WORDS: [&str; 15] = [
        "timeout",
        "timed out",
        "deadline exceeded",
        "connection reset",
        "connection refused",
        "network is unreachable",
        "temporary failure",
        "server misbehaving",
        "unexpected eof",
        "toomanyrequests",
        "too many requests",
        "internal server error",
        "bad gateway",
        "service unavailable",
        "gateway time",
    ];
    let said = said.to_ascii_lowercase();
    // What a program of the build says is its own.
    !said.contains("returned a non-zero code") && WORDS.iter().any(|word| said.contains(word))
}

/// Whether a registry refuses anonymous pulls: the engine adds text to the registry's message.
pub(super) fn is_refusal(said: &str) -> bool {
    const WORDS: [&str; 5] = [
        "unauthorized",
        "denied",
        "forbidden",
        "no basic auth",
        "authentication required",
    ];
    let said = said.to_ascii_lowercase();
    WORDS.iter().any(|word| said.contains(word))
}

pub(super) fn is_gone(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 404, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_that_passes_is_told_from_a_no() {
        let answered = |status_code: u16, message: &str| {
            let message = message.to_owned();
            engine_failed("pulling")(EngineError::DockerResponseServerError { status_code, message }).is_transient()
        };
        assert!(answered(500, "the driver is busy"));
        assert!(answered(
            404,
            "received unexpected HTTP status: 503 Service Unavailable"
        ));
        assert!(answered(500, "toomanyrequests: You have reached your pull rate limit"));
        assert!(!answered(500, "unauthorized: send a token"));
        assert!(!answered(404, "manifest unknown"));
        assert!(!answered(400, "No command specified"));
        let streamed = |error: &str| {
            let error = error.to_owned();
            engine_failed("building")(EngineError::DockerStreamError { error }).is_transient()
        };
        assert!(streamed("net/http: TLS handshake timeout"));
        assert!(!streamed(
            "The command 'pip install timeout' returned a non-zero code: 1"
        ));
    }
}
