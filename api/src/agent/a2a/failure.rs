//! Why a call fails: as the protocol says it, or, for what is about the request and not about the call, as HTTP does.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use towpath_domain::Rejection;
use towpath_domain::agent::a2a::{Code, Refusal};
use towpath_store as store;

use crate::agent::auth;
use crate::agent::errors::AgentError;

/// Why a call fails.
pub(super) enum Failure {
    /// An error of the protocol, answered with 200.
    Rpc(Refusal),
    /// A status: the caller may not, or the server cannot now.
    Http(Box<Response>),
}

impl Failure {
    /// Other words for a row that is not there: which one the caller knows best.
    pub(super) fn of(error: AgentError, missing: impl FnOnce() -> Refusal) -> Self {
        match error.status() {
            StatusCode::NOT_FOUND => Self::Rpc(missing()),
            _ => error.into(),
        }
    }

    /// The author's auth refused an operation on a thread; one that the caller does not see is not there.
    pub(super) fn denied(refusal: auth::Refusal, missing: impl FnOnce() -> Refusal) -> Self {
        match refusal.status() {
            StatusCode::NOT_FOUND => Self::Rpc(missing()),
            _ => Self::Http(refusal),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Rpc(refusal)
    }
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        AgentError::from(rejection).into()
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        AgentError::from(error).into()
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        let code = match error.status() {
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND => Code::InvalidParams,
            StatusCode::CONFLICT => Code::UnsupportedOperation,
            StatusCode::INTERNAL_SERVER_ERROR => Code::Internal,
            _ => return Self::Http(Box::new(error.into_response())),
        };
        Self::Rpc(Refusal::new(code, error.detail()))
    }
}
