//! What a destination answered, in the words of the API.

use std::error::Error;
use std::fmt;

use crate::guard::AddressRefusal;

/// Sorts of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The credentials are wrong or may not do this.
    AccessDenied,
    /// There is no such bucket, or it is elsewhere.
    BucketInvalid,
    /// There is no such access key.
    KeyIdUnknown,
    /// What is there does not speak S3, or may not be called.
    InvalidEndpoint,
    /// The folder of a `file` destination cannot be used.
    Prefix,
    /// May pass: overload, time-out, broken connection.
    Transient,
    /// Anything else.
    Other,
}

/// A failure of a destination. Its message begins with the API's text for it, followed by the destination's error code
/// and the key, but nothing else of the foreign answer.
#[derive(Clone, Debug, thiserror::Error)]
pub struct DestinationFailure {
    reason: Reason,
    detail: String,
}

impl DestinationFailure {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }

    /// What sort it is.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self.reason, Reason::Transient | Reason::Other)
    }

    /// The same failure without a retry: an endpoint that does not answer is invalid.
    pub(crate) fn final_answer(mut self) -> Self {
        if self.is_transient() {
            self.reason = Reason::InvalidEndpoint;
        }
        self
    }
}

impl fmt::Display for DestinationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.reason {
            Reason::AccessDenied => "Access denied",
            Reason::BucketInvalid => "Bucket is not valid",
            Reason::KeyIdUnknown => "Key ID you provided does not exist",
            Reason::InvalidEndpoint => "Invalid endpoint",
            Reason::Prefix => "Prefix cannot be used",
            Reason::Transient => "Destination is not available",
            Reason::Other => "Destination answered with an error",
        };
        write!(f, "{words}: {}", self.detail)
    }
}

/// Sorts what an object store said about `key`.
#[must_use]
pub fn classify(error: &object_store::Error, key: &str) -> DestinationFailure {
    if let Some(failure) = within(error) {
        return failure;
    }
    if let Some(refused) = crate::guard::refusal(error) {
        let reason = match refused {
            // A name server may be back in a minute.
            AddressRefusal::Unresolved { .. } => Reason::Transient,
            _ => Reason::InvalidEndpoint,
        };
        return DestinationFailure::new(reason, format!("{refused} (key {key})"));
    }
    let text = error_chain(error);
    let code = tagged(&text, "Code");
    let status = status(&text);
    let reason = code
        .and_then(by_code)
        .unwrap_or_else(|| by_status(error, status, code.is_some(), &text));
    let said = match (code, status) {
        (Some(code), Some(status)) => format!("{code} ({status})"),
        (Some(code), None) => code.to_owned(),
        (None, Some(status)) => format!("status {status} without an S3 error code"),
        (None, None) => strip_retry_time(&text).to_owned(),
    };
    DestinationFailure::new(reason, format!("{said} for key {key}"))
}

/// What a folder said, which is sorted already.
fn within(error: &(dyn Error + 'static)) -> Option<DestinationFailure> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(failure) = error.downcast_ref::<DestinationFailure>() {
            return Some(failure.clone());
        }
        next = error.source();
    }
    None
}

fn by_code(code: &str) -> Option<Reason> {
    Some(match code {
        "AccessDenied"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "AllAccessDisabled"
        | "AccountProblem"
        | "InvalidSecurity"
        | "NotSignedUp"
        | "Forbidden"
        | "UnauthorizedAccess"
        | "InvalidObjectState"
        | "KMS.DisabledException" => Reason::AccessDenied,
        "NoSuchBucket"
        | "InvalidBucketName"
        | "PermanentRedirect"
        | "TemporaryRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException"
        | "InvalidBucketState" => Reason::BucketInvalid,
        "InvalidAccessKeyId" => Reason::KeyIdUnknown,
        "MethodNotAllowed" | "NotImplemented" => Reason::InvalidEndpoint,
        "SlowDown"
        | "InternalError"
        | "ServiceUnavailable"
        | "RequestTimeout"
        | "OperationAborted"
        | "RequestTimeTooSkewed"
        | "ThrottlingException"
        | "TooManyRequests" => Reason::Transient,
        _ => return None,
    })
}

/// Where no code that is known was given.
fn by_status(error: &object_store::Error, status: Option<u16>, coded: bool, text: &str) -> Reason {
    match status {
        Some(401 | 403) => Reason::AccessDenied,
        Some(429 | 500 | 502..=504 | 507 | 529) => Reason::Transient,
        Some(301 | 302 | 307 | 308) => Reason::BucketInvalid,
        // An answer that is not of S3.
        Some(400 | 404 | 405 | 411 | 415 | 501) if !coded => Reason::InvalidEndpoint,
        Some(500..=599) => Reason::Transient,
        Some(_) => Reason::Other,
        None if text.contains("redirect without LOCATION") => Reason::BucketInvalid,
        None if matches!(error, object_store::Error::InvalidPath { .. }) => Reason::Prefix,
        // It answered well, but not as S3 does.
        None if text.contains("ETag") || text.contains("deserialize") || text.contains("decoding") => {
            Reason::InvalidEndpoint
        }
        None => Reason::Transient,
    }
}

/// What can be told of an answer that never came.
fn strip_retry_time(text: &str) -> &'static str {
    // The client's message states its retry timeout, even for an immediate refusal.
    let lower = text.to_ascii_lowercase().replace("retry_timeout", "");
    for (sign, told) in [
        ("certificate", "its certificate is not trusted"),
        (
            "redirect without location",
            "it redirects elsewhere; the region is probably wrong",
        ),
        ("refused", "the connection was refused"),
        ("reset", "the connection was lost"),
        ("connection closed", "the connection was lost"),
        ("broken pipe", "the connection was lost"),
        ("timed out", "it did not answer in time"),
        ("timeout", "it did not answer in time"),
        ("connect", "no connection could be opened"),
    ] {
        if lower.contains(sign) {
            return told;
        }
    }
    "the call failed"
}

fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

/// The content of an XML element, if it is a plain word: foreign text is not passed on.
fn tagged<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once('<')?;
    let plain = !content.is_empty()
        && content.len() <= 64
        && content
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    plain.then_some(content)
}

fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: &str, body: &str) -> DestinationFailure {
        let text = format!("Server returned non-2xx status code: {status}: {body}");
        let error = object_store::Error::Generic {
            store: "S3",
            source: text.into(),
        };
        classify(&error, "p/tmp/x.txt")
    }

    fn code(code: &str) -> String {
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>hush</Message></Error>")
    }

    #[test]
    fn answers_begin_with_the_words_of_the_api_and_name_code_and_key() {
        let cases = [
            (
                "403 Forbidden",
                code("SignatureDoesNotMatch"),
                Reason::AccessDenied,
                "Access denied: SignatureDoesNotMatch (403) for key p/tmp/x.txt",
            ),
            (
                "403 Forbidden",
                code("InvalidAccessKeyId"),
                Reason::KeyIdUnknown,
                "Key ID you provided does not exist: InvalidAccessKeyId (403) for key p/tmp/x.txt",
            ),
            (
                "404 Not Found",
                code("NoSuchBucket"),
                Reason::BucketInvalid,
                "Bucket is not valid: NoSuchBucket (404) for key p/tmp/x.txt",
            ),
            (
                "404 Not Found",
                "<html>nginx</html>".to_owned(),
                Reason::InvalidEndpoint,
                "Invalid endpoint: status 404 without an S3 error code for key p/tmp/x.txt",
            ),
            (
                "400 Bad Request",
                code("ExpiredToken"),
                Reason::AccessDenied,
                "Access denied: ExpiredToken (400) for key p/tmp/x.txt",
            ),
            (
                "503 Service Unavailable",
                code("SlowDown"),
                Reason::Transient,
                "Destination is not available: SlowDown (503) for key p/tmp/x.txt",
            ),
            (
                "429 Too Many Requests",
                String::new(),
                Reason::Transient,
                "Destination is not available: status 429 without an S3 error code for key p/tmp/x.txt",
            ),
        ];
        for (status, body, reason, text) in cases {
            let failure = answer(status, &body);
            assert_eq!((failure.reason(), failure.to_string().as_str()), (reason, text));
        }
    }

    #[test]
    fn nothing_of_a_foreign_answer_is_passed_on() {
        let failure = answer("403 Forbidden", "<Code>secret: 42</Code> inner page");
        assert_eq!(
            failure.to_string(),
            "Access denied: status 403 without an S3 error code for key p/tmp/x.txt"
        );
    }

    #[test]
    fn how_long_it_was_tried_is_not_why_it_failed() {
        let text = |end: &str| {
            let text = format!(
                "Error performing PUT http://h/k in 1s, after 3 retries, max_retries: 3, retry_timeout: 60s  - {end}"
            );
            let source = text.into();
            classify(&object_store::Error::Generic { store: "S3", source }, "k").to_string()
        };
        for (end, told) in [
            (
                "HTTP error: tcp connect error: Connection refused",
                "the connection was refused",
            ),
            ("HTTP error: connection reset by peer", "the connection was lost"),
            (
                "HTTP error: connection closed before message completed",
                "the connection was lost",
            ),
            ("HTTP error: operation timed out", "it did not answer in time"),
            ("HTTP error: no route", "the call failed"),
        ] {
            assert_eq!(text(end), format!("Destination is not available: {told} for key k"));
        }
    }

    #[test]
    fn while_a_destination_is_made_silence_is_an_answer() {
        let error = object_store::Error::Generic {
            store: "S3",
            source: "tcp connect error: Connection refused".into(),
        };
        let failure = classify(&error, "k");
        assert!(failure.is_transient());
        assert_eq!(
            failure.final_answer().to_string(),
            "Invalid endpoint: the connection was refused for key k"
        );
    }
}
