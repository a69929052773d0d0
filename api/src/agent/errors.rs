//! Errors of the agent API: a status and a text, `{"detail": text}`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::json;
use towpath_domain::{Rejection, RejectionKind};
use towpath_store as store;
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

use crate::errors::{ApiError, chain, retry_after};

/// An error response. The text is sent as is: it tells callers what to do and no internals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {detail}")]
pub struct AgentError {
    status: StatusCode,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
}

impl AgentError {
    /// An error with any status.
    pub fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            detail: detail.into(),
            retry_after: None,
        }
    }

    /// 400: the fields contradict each other.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404 with the text that clients of runs, assistants and crons expect.
    #[must_use]
    pub const fn not_found() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            detail: Cow::Borrowed("Not Found"),
            retry_after: None,
        }
    }

    /// 404 with a specific text.
    pub fn missing(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 404 for a thread in a path.
    pub fn no_thread(id: impl Display) -> Self {
        Self::missing(format!("Thread with ID {id} not found"))
    }

    /// 404 for a thread or assistant in a run's body.
    #[must_use]
    pub const fn no_thread_or_assistant() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            detail: Cow::Borrowed("Thread or assistant not found."),
            retry_after: None,
        }
    }

    /// 409: it already exists or conflicts.
    pub fn conflict(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 422: a value is missing, of the wrong type or out of range.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 503: retry after `retry_after`, sent in whole seconds.
    pub fn unavailable(detail: impl Into<Cow<'static, str>>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    /// Converts an error of the platform API.
    pub(crate) fn of(error: &ApiError) -> Self {
        Self {
            retry_after: error.retry_after(),
            ..Self::new(error.status(), error.text().to_owned())
        }
    }

    /// 500. Logs the cause; the caller gets no details.
    pub fn internal(cause: &dyn std::error::Error) -> Self {
        tracing::error!(error = %chain(cause), "request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
    }

    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Replaces a 404 of the store by a more specific one.
    #[must_use]
    pub fn or_missing(self, missing: Self) -> Self {
        if self.status == StatusCode::NOT_FOUND {
            missing
        } else {
            self
        }
    }
}

impl IntoResponse for AgentError {
    fn into_response(self) -> Response {
        // Clients expect plain text for a 500 and JSON for all other errors.
        let mut response = if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            (self.status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], self.detail).into_response()
        } else {
            (self.status, axum::Json(json!({ "detail": self.detail }))).into_response()
        };
        if let Some(span) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, retry_after(span));
        }
        response
    }
}

impl From<Rejection> for AgentError {
    fn from(rejection: Rejection) -> Self {
        let Rejection {
            kind: why,
            field,
            message,
        } = rejection;
        // The text must name the field, since it is all that clients show.
        let text = if field.is_empty() || message.contains(&field) {
            message
        } else {
            format!("{field}: {message}")
        };
        match why {
            RejectionKind::Invalid => Self::invalid(text),
            RejectionKind::Rule | RejectionKind::Unsupported => Self::bad_request(text),
            RejectionKind::NotFound => Self::missing(text),
            RejectionKind::Conflict => Self::conflict(text),
        }
    }
}

impl From<store::Error> for AgentError {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::NotFound => Self::not_found(),
            store::Error::Rejected(rejection) => rejection.into(),
            store::Error::Conflict { column } => {
                let field = column.rsplit('.').next().unwrap_or(&column);
                Self::conflict(format!("{field} already exists"))
            }
            store::Error::Stale => Self::conflict("It was changed by another request. Read it again."),
            error if error.is_transient() => {
                tracing::warn!(error = %chain(&error), "request rejected: the database is unavailable");
                Self::unavailable("Service Unavailable", Duration::from_secs(2))
            }
            error => Self::internal(&error),
        }
    }
}

/// Responses that every operation has in the API description.
impl IntoResponses for AgentError {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let answers = [
            ("400", "The fields contradict each other"),
            ("401", "The key is missing or invalid"),
            ("403", "The key or the custom auth does not allow the request"),
            ("408", "The body arrived too slowly"),
            ("413", "The body is too large"),
            ("422", "A value is missing, of the wrong type, or out of its range"),
            (
                "503",
                "Overloaded, or the database is unavailable; retry after `Retry-After`",
            ),
        ];
        answers
            .into_iter()
            .map(|(status, description)| {
                let content = ContentBuilder::new()
                    .schema(Some(Ref::from_schema_name("Detail")))
                    .build();
                let response = ResponseBuilder::new()
                    .description(description)
                    .content("application/json", content);
                (status.to_owned(), response.build().into())
            })
            .collect()
    }
}

/// An error's body.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct Detail {
    /// What is wrong and how to fix it.
    detail: String,
}

/// Schemas that responses refer to by name.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Detail)))]
pub(super) struct ErrorSchemas;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_names_its_field_once() {
        let error = AgentError::from(Rejection::invalid("config.tags", "expected a list"));
        assert_eq!(error.detail(), "config.tags: expected a list");
        assert_eq!(error.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let error = AgentError::from(Rejection::rule("schedule", "schedule has six fields"));
        assert_eq!(error.detail(), "schedule has six fields");
    }

    #[test]
    fn insides_stay_inside() {
        let error = AgentError::from(store::Error::corrupt("run", "kwargs", "42"));
        assert_eq!(error.detail(), "Internal Server Error");
    }
}
