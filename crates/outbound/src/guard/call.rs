//! One HTTP call to an address a user gave.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use super::client::{Target, refusal};
use super::{AddressRefusal, Guard};

/// A call to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// `GET`, `POST`, …
    pub method: Method,
    /// Where, `http` or `https`.
    pub url: String,
    /// Beside those the client sets itself.
    pub headers: HeaderMap,
    /// The body; empty for none.
    pub body: Bytes,
    /// How long the whole call may take, its answer's body included.
    pub limit: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The address may not be called.
    #[error(transparent)]
    Refused(#[from] AddressRefusal),
    /// It took longer than the call's limit.
    #[error("no answer within the time limit")]
    TimedOut,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(String),
    /// The answer is longer than the reader takes.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

/// An answer whose body is still to be read.
#[derive(Debug)]
pub struct Reply(reqwest::Response);

impl Guard {
    /// Calls an address if it is allowed. Any status is an answer. Redirects are not followed. Drop the future or the
    /// reply to end the call.
    pub async fn call(&self, call: Call) -> Result<Reply, CallError> {
        let target = Target::parse(&call.url)?;
        if let Some(ip) = target.literal {
            // The client connects to an IP address in the URL without asking its resolver.
            self.check(&target.host, SocketAddr::new(ip, target.port), target.scheme)?;
        }
        let client = self
            .client_without_timeout(target.scheme, target.port)
            .map_err(|error| failed(&error))?;
        let request = client
            .request(call.method, &call.url)
            .headers(call.headers)
            .timeout(call.limit);
        let request = if call.body.is_empty() {
            request
        } else {
            request.body(call.body)
        };
        request.send().await.map(Reply).map_err(|error| failed(&error))
    }
}

impl Reply {
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.0.headers()
    }

    /// The next piece of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        self.0.chunk().await.map_err(|error| failed(&error))
    }

    /// The whole body, at most `limit` bytes of it.
    pub async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, CallError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > limit {
                return Err(CallError::TooLong(limit));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

fn failed(error: &reqwest::Error) -> CallError {
    if let Some(refused) = refusal(error) {
        return CallError::Refused(refused);
    }
    if error.is_timeout() {
        return CallError::TimedOut;
    }
    // The URL may contain a secret in its query; the source has the cause.
    let mut source: &dyn std::error::Error = error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    CallError::Failed(source.to_string())
}
