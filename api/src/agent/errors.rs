//! The one error of the agent surface: a status and a text, `{"detail": text}`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::json;
use towpath_domain::{Rejection, Why};
use towpath_store as store;
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

use crate::errors::{ApiError, chain, retry_after};

/// What a failed request answers. The text goes out as it is: it says what the caller can do and nothing of our
/// insides.
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

    /// 400: a rule across fields.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404 with the bare words that clients of runs, assistants and crons know.
    #[must_use]
    pub const fn not_found() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            detail: Cow::Borrowed("Not Found"),
            retry_after: None,
        }
    }

    /// 404 with a text of its own.
    pub fn missing(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 404 about a thread in a path.
    pub fn no_thread(id: impl Display) -> Self {
        Self::missing(format!("Thread with ID {id} not found"))
    }

    /// 404 about what a run's body names.
    #[must_use]
    pub const fn no_thread_or_assistant() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            detail: Cow::Borrowed("Thread or assistant not found."),
            retry_after: None,
        }
    }

    /// 409: it exists already, or is in the way.
    pub fn conflict(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 422: a value is missing, of the wrong type, or out of its range.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 503: try again after `retry_after`, which clients are told in whole seconds.
    pub fn unavailable(detail: impl Into<Cow<'static, str>>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    /// A refusal in the words of the other surface.
    pub(crate) fn of(error: &ApiError) -> Self {
        Self {
            retry_after: error.retry_after(),
            ..Self::new(error.status(), error.text().to_owned())
        }
    }

    /// 500. Logs the cause here, once; the caller learns nothing of it.
    pub fn internal(cause: &dyn std::error::Error) -> Self {
        tracing::error!(error = %chain(cause), "request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
    }

    /// The status code.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The text.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Other words for a 404 of a store call: which row is missing the caller of the store knows best.
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
        // A defect of ours is plain text, as these clients know it; everything else is the one JSON shape.
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
        let Rejection { why, field, message } = rejection;
        // Whoever reads the text alone must see which field it is about.
        let text = if field.is_empty() || message.contains(&field) {
            message
        } else {
            format!("{field}: {message}")
        };
        match why {
            Why::Invalid => Self::invalid(text),
            Why::Rule | Why::Unsupported => Self::bad_request(text),
            Why::NotFound => Self::missing(text),
            Why::Conflict => Self::conflict(text),
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
            store::Error::Stale => Self::conflict("It was changed meanwhile. Read it again."),
            error if error.is_transient() => {
                tracing::warn!(error = %chain(&error), "request refused, the database does not answer");
                Self::unavailable("Service Unavailable", Duration::from_secs(2))
            }
            error => Self::internal(&error),
        }
    }
}

/// For the API description: every operation names these beside its own.
impl IntoResponses for AgentError {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let answers = [
            ("400", "A rule across fields"),
            (
                "401",
                "No key, or one that opens nothing, where the server asks for one",
            ),
            ("403", "Not for this key, or the auth of the graphs' author refuses it"),
            ("408", "The body came too slowly"),
            ("413", "The body is too large"),
            ("422", "A value is missing, of the wrong type, or out of its range"),
            (
                "503",
                "Overloaded, or the database is away; `Retry-After` says when to come back",
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
    /// What is wrong and what to do.
    detail: String,
}

/// Schemas that answers refer to by name.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Detail)))]
pub(super) struct Described;

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
