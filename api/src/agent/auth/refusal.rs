//! Answers to requests that the graphs' author refuses.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use towpath_runtime::hosted::AuthDenied;

use crate::agent::errors::AgentError;

/// Boxed, since a response is large.
pub(in crate::agent) type Refusal = Box<Response>;

pub(super) fn refuse(error: AgentError) -> Refusal {
    Box::new(error.into_response())
}

pub(super) fn denied(error: AuthDenied) -> Refusal {
    match error {
        AuthDenied::Refused {
            status,
            message,
            headers,
        } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
            let mut response = AgentError::new(status, message).into_response();
            for (name, value) in headers {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                    response.headers_mut().insert(name, value);
                }
            }
            Box::new(response)
        }
        AuthDenied::Failed(why) => {
            tracing::error!(error = why, "the graphs' auth failed");
            refuse(AgentError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Internal Server Error",
            ))
        }
    }
}
