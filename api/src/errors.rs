//! The one error of the surface: status codes, texts and body shapes.
//!
//! Three shapes leave this build. Platform routes answer `{"detail": text}`, and for a request whose shape is wrong the
//! list `{"detail": [{loc, msg, type}]}`. The second version of the queries answers problem details
//! ([`problem_shape`]). The routes of the tracing clients answer `{"error": code, "details": text}`.
//! Handlers do not care: an error leaves them in the first shape and carries itself along, and the outermost layer,
//! which knows the path, writes it anew ([`tracing_shape`]).

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::json;
use towpath_domain::{Rejection, RejectionKind};
use towpath_store as store;
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

/// An error response. Texts are sent as they are: they tell callers what to do and no internals.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{status}: {text}")]
pub struct ApiError {
    status: StatusCode,
    /// Code for programs; the tracing clients read it.
    code: &'static str,
    /// Name of the error for sandbox clients; empty if the status is enough.
    error_name: &'static str,
    text: String,
    issues: Vec<Issue>,
    retry_after: Option<Duration>,
}

/// One invalid value of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Issue {
    /// Location: `body`, `path`, `query` or `header`, then names and indices.
    #[schema(example = json!(["body", "config", "prefix"]))]
    pub loc: Vec<LocSegment>,
    /// Message for people.
    pub msg: String,
    /// Code for programs.
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// A segment of a location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum LocSegment {
    /// A key.
    Name(String),
    /// A position in an array.
    Index(usize),
}

impl From<&str> for LocSegment {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

/// Location of a dotted field in the body.
pub(crate) fn body_loc(field: &str) -> Vec<LocSegment> {
    let parts = field.split('.').filter(|part| !part.is_empty());
    std::iter::once(LocSegment::from("body"))
        .chain(parts.map(|part| part.parse().map_or_else(|_| LocSegment::from(part), LocSegment::Index)))
        .collect()
}

impl ApiError {
    /// An error with `{detail: text}`.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            code: code(status),
            error_name: "",
            text: text.into(),
            issues: Vec::new(),
            retry_after: None,
        }
    }

    /// An error with a name for sandbox clients.
    pub fn with_name(status: StatusCode, name: &'static str, text: impl Into<String>) -> Self {
        Self {
            error_name: name,
            ..Self::new(status, text)
        }
    }

    /// Sets `Retry-After`.
    #[must_use]
    pub fn with_retry_after(self, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..self
        }
    }

    /// 400: the fields contradict each other, or the request cannot be parsed.
    pub fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// 401: the key is missing or invalid.
    pub fn unauthorized(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    /// 403: the key is valid but does not allow the request.
    pub fn forbidden(text: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }

    /// 403 for a key of several workspaces without a workspace header. The tracing clients know the code.
    #[must_use]
    pub fn workspace_required() -> Self {
        let text = "this key opens several workspaces and requires workspace specification: \
                    send the workspace's id in the X-Tenant-Id header";
        Self {
            code: "org_scoped_key_requires_workspace",
            ..Self::forbidden(text)
        }
    }

    /// 404: there is no such `noun`, or it belongs to another workspace.
    #[must_use]
    pub fn not_found(noun: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{noun} not found"))
    }

    /// 408: the body did not arrive in time.
    #[must_use]
    pub fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body arrived too slowly")
    }

    /// 409: it already exists or conflicts.
    pub fn conflict(text: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    /// 413: the body exceeds the limit of the route.
    #[must_use]
    pub fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {limit_bytes} bytes"),
        )
    }

    /// 415: the route does not support the content type.
    pub fn unsupported_media_type(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
    }

    /// 422 with a list of invalid values.
    #[must_use]
    pub fn invalid(issues: Vec<Issue>) -> Self {
        Self {
            issues,
            ..Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the request does not have the expected shape",
            )
        }
    }

    /// 422 for one value.
    pub fn invalid_at(loc: Vec<LocSegment>, kind: &'static str, msg: impl Into<String>) -> Self {
        Self::invalid(vec![Issue {
            loc,
            msg: msg.into(),
            kind,
        }])
    }

    /// 503: retry after `retry_after`, sent in whole seconds.
    pub fn unavailable(text: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }

    /// 507: the storage is full; retry after `retry_after`.
    pub fn insufficient_storage(text: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::INSUFFICIENT_STORAGE, text)
        }
    }

    /// 429: too many requests; retry after `retry_after`, sent in whole seconds.
    pub fn too_many(text: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, text)
        }
    }

    /// 500. Logs the cause; the caller gets no details.
    pub fn internal(cause: &dyn std::error::Error) -> Self {
        tracing::error!(error = %chain(cause), "request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }

    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// `Retry-After`, if set.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The response body, for APIs with their own format.
    #[must_use]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The whole error in one line, for APIs with plain text errors.
    pub(crate) fn plain(&self) -> String {
        if self.issues.is_empty() {
            return self.text.clone();
        }
        let issues = self.issues.iter();
        let issues = issues.map(|issue| format!("{}: {}", dotted(&issue.loc), issue.msg));
        issues.collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn detail(&self) -> serde_json::Value {
        if self.issues.is_empty() {
            json!({ "detail": self.text })
        } else {
            json!({ "detail": self.issues })
        }
    }

    fn error_and_details(&self) -> serde_json::Value {
        let details = self.plain();
        json!({ "error": self.code, "details": details })
    }

    fn sandbox_body(&self) -> serde_json::Value {
        if !self.issues.is_empty() {
            return self.detail();
        }
        let name = if self.error_name.is_empty() {
            error_name(self.status)
        } else {
            self.error_name
        };
        json!({ "detail": { "error": name, "message": self.text } })
    }

    fn problem(&self) -> serde_json::Value {
        json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "detail": self.plain(),
        })
    }

    fn answer(&self, body: serde_json::Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if let Some(span) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, retry_after(span));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.answer(self.detail());
        response.extensions_mut().insert(self);
        response
    }
}

/// Converts an error to the format of the tracing clients.
pub(crate) fn tracing_shape(response: Response) -> Response {
    reshaped(response, |error| error.answer(error.error_and_details()))
}

/// Converts an error to the format of sandbox clients.
pub(crate) fn to_sandbox_error(response: Response) -> Response {
    reshaped(response, |error| error.answer(error.sandbox_body()))
}

/// Converts an error to problem details (RFC 9457).
pub(crate) fn problem_shape(response: Response) -> Response {
    reshaped(response, |error| {
        let mut anew = error.answer(error.problem());
        let kind = HeaderValue::from_static("application/problem+json");
        anew.headers_mut().insert(CONTENT_TYPE, kind);
        anew
    })
}

fn reshaped(mut response: Response, shape: impl FnOnce(&ApiError) -> Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else {
        return response;
    };
    let mut anew = shape(&error);
    // Headers that were added on the way out (Allow, WWW-Authenticate) stay.
    for (name, value) in response.headers() {
        if !anew.headers().contains_key(name) {
            anew.headers_mut().append(name, value.clone());
        }
    }
    anew
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let Rejection {
            kind: why,
            field,
            message,
        } = rejection;
        // Whoever reads the text alone must see which field it is about.
        let text = |field: &str, message: String| {
            if field.is_empty() || message.contains(field) {
                message
            } else {
                format!("{field}: {message}")
            }
        };
        match why {
            RejectionKind::Invalid => Self::invalid_at(body_loc(&field), "value_error", message),
            RejectionKind::Rule | RejectionKind::Unsupported => Self::bad_request(text(&field, message)),
            RejectionKind::NotFound => Self::new(StatusCode::NOT_FOUND, message),
            RejectionKind::Conflict => Self::conflict(text(&field, message)),
        }
    }
}

impl From<store::Error> for ApiError {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::NotFound => Self::new(StatusCode::NOT_FOUND, "not found"),
            store::Error::Rejected(rejection) => rejection.into(),
            store::Error::Conflict { column } => {
                let field = column.rsplit('.').next().unwrap_or(&column);
                Self::conflict(format!("{field} is already in use"))
            }
            store::Error::Stale => Self::conflict("it was changed by another request; read it again"),
            error if error.is_transient() => {
                tracing::warn!(error = %chain(&error), "request rejected: the database is unavailable");
                Self::unavailable("the database is unavailable right now", Duration::from_secs(2))
            }
            error => Self::internal(&error),
        }
    }
}

/// The value of `Retry-After`: whole seconds, rounded up so that clients do not retry too early.
pub(crate) fn retry_after(span: Duration) -> HeaderValue {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// The error and its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// `body.config.prefix`.
fn dotted(loc: &[LocSegment]) -> String {
    let parts = loc.iter().map(|place| match place {
        LocSegment::Name(name) => name.clone(),
        LocSegment::Index(index) => index.to_string(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Name of a status for sandbox clients.
fn error_name(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "ValidationError",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "PermissionDenied",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::REQUEST_TIMEOUT => "Timeout",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::PAYLOAD_TOO_LARGE => "PayloadTooLarge",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::NOT_IMPLEMENTED => "Unsupported",
        StatusCode::BAD_GATEWAY => "ConnectionError",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        _ => "InternalError",
    }
}

fn code(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "bad request",
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND => "not found",
        StatusCode::METHOD_NOT_ALLOWED => "method not allowed",
        StatusCode::REQUEST_TIMEOUT => "request timeout",
        StatusCode::CONFLICT => "conflict",
        StatusCode::PAYLOAD_TOO_LARGE => "payload too large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported media type",
        StatusCode::UNPROCESSABLE_ENTITY => "invalid request",
        StatusCode::TOO_MANY_REQUESTS => "too many requests",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        StatusCode::INSUFFICIENT_STORAGE => "insufficient storage",
        _ => "internal error",
    }
}

/// Responses that every operation with a key has in the API description.
impl IntoResponses for ApiError {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let answers = [
            (
                "400",
                "The fields contradict each other, or a header was sent twice",
                "Error",
            ),
            ("401", "The key is missing or invalid", "Error"),
            (
                "403",
                "The key has no access to the workspace, or no workspace was named",
                "Error",
            ),
            (
                "422",
                "A value is missing, of the wrong type, or out of its range",
                "InvalidRequest",
            ),
            (
                "503",
                "Overloaded, or a dependency is unavailable; retry after `Retry-After`",
                "Error",
            ),
        ];
        answers
            .into_iter()
            .map(|(status, description, schema)| {
                let content = ContentBuilder::new()
                    .schema(Some(Ref::from_schema_name(schema)))
                    .build();
                let response = ResponseBuilder::new()
                    .description(description)
                    .content("application/json", content);
                (status.to_owned(), response.build().into())
            })
            .collect()
    }
}

/// The body of an error of sandboxes.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct SandboxError {
    detail: NamedError,
}

/// An error with a name.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct NamedError {
    /// Code for programs.
    #[schema(example = "NotFound")]
    error: String,
    /// What is wrong and how to fix it.
    message: String,
}

/// An error's body.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct Error {
    /// What is wrong and how to fix it.
    detail: String,
}

/// The body of a 422.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct InvalidRequest {
    detail: Vec<Issue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_names_its_field() {
        let invalid = ApiError::from(Rejection::invalid("config.prefix", "must not be empty"));
        assert_eq!(
            invalid.detail(),
            json!({"detail": [{"loc": ["body", "config", "prefix"], "msg": "must not be empty", "type": "value_error"}]})
        );
        assert_eq!(
            invalid.error_and_details(),
            json!({"error": "invalid request", "details": "body.config.prefix: must not be empty"})
        );
        let rule = ApiError::from(Rejection::rule("end_time", "must be later than start_time"));
        assert_eq!(
            rule.detail(),
            json!({"detail": "end_time: must be later than start_time"})
        );
        assert_eq!(rule.status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn insides_stay_inside() {
        let error = ApiError::from(store::Error::corrupt("job", "input", "42"));
        assert_eq!(error.detail(), json!({"detail": "internal error"}));
        let taken = ApiError::from(store::Error::Conflict {
            column: "deployment.name".into(),
        });
        assert_eq!(taken.detail(), json!({"detail": "name is already in use"}));
    }

    #[test]
    fn retry_after_is_never_early() {
        let response = ApiError::unavailable("full", Duration::from_millis(1100)).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }
}
