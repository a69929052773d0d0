//! Errors of a call: protocol errors, or HTTP errors about the request itself.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use towpath_domain::Rejection;
use towpath_domain::agent::a2a::{A2aError, ErrorCode};
use towpath_store as store;

use crate::agent::auth;
use crate::agent::errors::AgentError;

/// Why a call fails.
pub(super) enum Failure {
    /// An error of the protocol, answered with 200.
    Rpc(A2aError),
    /// An HTTP status, for example forbidden or unavailable.
    Http(Box<Response>),
}

impl Failure {
    /// Replaces a missing row by the error that the caller chooses.
    pub(super) fn or_not_found(error: AgentError, missing: impl FnOnce() -> A2aError) -> Self {
        match error.status() {
            StatusCode::NOT_FOUND => Self::Rpc(missing()),
            _ => error.into(),
        }
    }

    /// The author's auth rejected an operation on a thread; a thread that the caller may not see counts as missing.
    pub(super) fn from_auth_refusal(refusal: auth::Refusal, missing: impl FnOnce() -> A2aError) -> Self {
        match refusal.status() {
            StatusCode::NOT_FOUND => Self::Rpc(missing()),
            _ => Self::Http(refusal),
        }
    }
}

impl From<A2aError> for Failure {
    fn from(refusal: A2aError) -> Self {
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
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND => {
                ErrorCode::InvalidParams
            }
            StatusCode::CONFLICT => ErrorCode::UnsupportedOperation,
            StatusCode::INTERNAL_SERVER_ERROR => ErrorCode::Internal,
            _ => return Self::Http(Box::new(error.into_response())),
        };
        Self::Rpc(A2aError::new(code, error.detail()))
    }
}
