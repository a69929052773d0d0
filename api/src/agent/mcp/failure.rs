//! Why a request is not answered with a result: as the protocol says it, or, for what is about the HTTP request and not about
//! the message in it, as HTTP does.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use towpath_store as store;

use super::rpc::{ErrorCode, RpcError};
use crate::agent::auth;
use crate::agent::errors::AgentError;

/// Why a request fails.
pub(super) enum Failure {
    /// An error of the protocol.
    Rpc(RpcError),
    /// A status: the caller may not, or the server cannot at the moment.
    Http(Box<Response>),
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

/// The author's auth refused it. By a status of 404 alone a client would take its session for gone.
impl From<auth::Refusal> for Failure {
    fn from(refusal: auth::Refusal) -> Self {
        match refusal.status() {
            StatusCode::NOT_FOUND => Self::Rpc(RpcError::new(ErrorCode::InvalidParams, "Not Found")),
            _ => Self::Http(refusal),
        }
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
            StatusCode::BAD_REQUEST
            | StatusCode::NOT_FOUND
            | StatusCode::CONFLICT
            | StatusCode::UNPROCESSABLE_ENTITY => ErrorCode::InvalidParams,
            StatusCode::INTERNAL_SERVER_ERROR => ErrorCode::Internal,
            _ => return Self::Http(Box::new(error.into_response())),
        };
        Self::Rpc(RpcError::new(code, error.detail()))
    }
}
