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
use towpath_domain::{Rejection, Why};
use towpath_store as store;
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

/// What a failed request answers. Texts go out as they are: they say what the caller can do and nothing of our
/// insides.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{status}: {text}")]
pub struct ApiError {
    status: StatusCode,
    /// A word for programs; the tracing clients read it.
    code: &'static str,
    /// A word that the clients of sandboxes know an error by; empty where its status says enough.
    name: &'static str,
    text: String,
    issues: Vec<Issue>,
    retry_after: Option<Duration>,
}

/// One thing that is wrong with the shape of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Issue {
    /// Where: `body`, `path`, `query` or `header`, then names and indices down to the value.
    #[schema(example = json!(["body", "config", "prefix"]))]
    pub loc: Vec<Place>,
    /// What is wrong, for people.
    pub msg: String,
    /// What is wrong, for programs.
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// A step on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Place {
    /// A key.
    Name(String),
    /// A position in an array.
    Index(usize),
}

impl From<&str> for Place {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

/// Says where in the body a dotted field is.
pub(crate) fn body_loc(field: &str) -> Vec<Place> {
    let parts = field.split('.').filter(|part| !part.is_empty());
    std::iter::once(Place::from("body"))
        .chain(parts.map(|part| part.parse().map_or_else(|_| Place::from(part), Place::Index)))
        .collect()
}

impl ApiError {
    /// An error with `{detail: text}`.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            code: code(status),
            name: "",
            text: text.into(),
            issues: Vec::new(),
            retry_after: None,
        }
    }

    /// An error that the clients of sandboxes know by this name.
    pub fn named(status: StatusCode, name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            ..Self::new(status, text)
        }
    }

    /// The same, to be tried again after so long.
    #[must_use]
    pub fn after(self, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..self
        }
    }

    /// 400: rules across fields, or a request that cannot be read.
    pub fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// 401: no key, or one that opens nothing.
    pub fn unauthorized(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    /// 403: the key is good, but not for this.
    pub fn forbidden(text: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }

    /// 403 for a key of several workspaces that names none. The tracing clients know the code.
    #[must_use]
    pub fn workspace_required() -> Self {
        let text = "this key opens several workspaces and requires workspace specification: \
                    send the workspace's id in the X-Tenant-Id header";
        Self {
            code: "org_scoped_key_requires_workspace",
            ..Self::forbidden(text)
        }
    }

    /// 404: there is no such `noun`, or it is another workspace's.
    #[must_use]
    pub fn not_found(noun: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{noun} not found"))
    }

    /// 408: the body did not come in time.
    #[must_use]
    pub fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body came too slowly")
    }

    /// 409: it exists already, or is in the way.
    pub fn conflict(text: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    /// 413: more bytes than this route takes.
    #[must_use]
    pub fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {limit_bytes} bytes"),
        )
    }

    /// 415: the body is of a kind this route does not read.
    pub fn unsupported_media_type(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
    }

    /// 422 with the list of what is wrong.
    #[must_use]
    pub fn invalid(issues: Vec<Issue>) -> Self {
        Self {
            issues,
            ..Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the request is not of the expected shape",
            )
        }
    }

    /// 422 about one value.
    pub fn invalid_at(loc: Vec<Place>, kind: &'static str, msg: impl Into<String>) -> Self {
        Self::invalid(vec![Issue {
            loc,
            msg: msg.into(),
            kind,
        }])
    }

    /// 503: try again after `retry_after`, which clients are told in whole seconds.
    pub fn unavailable(text: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }

    /// 507: there is no room to keep it; somebody may have made some after `retry_after`.
    pub fn insufficient_storage(text: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::INSUFFICIENT_STORAGE, text)
        }
    }

    /// 429: too much at once; try again after `retry_after`, which clients are told in whole seconds.
    pub fn too_many(text: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, text)
        }
    }

    /// 500. Logs the cause here, once; the caller learns nothing of it.
    pub fn internal(cause: &dyn std::error::Error) -> Self {
        tracing::error!(error = %chain(cause), "request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }

    /// The status code.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// When the caller may come back, where that is known.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What the caller is told, for surfaces with a shape of their own.
    #[must_use]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// All of it in one line, for surfaces that have room for a text only.
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

    fn sandbox(&self) -> serde_json::Value {
        if !self.issues.is_empty() {
            return self.detail();
        }
        let name = if self.name.is_empty() {
            name(self.status)
        } else {
            self.name
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

/// Gives an error the shape the tracing clients read.
pub(crate) fn tracing_shape(response: Response) -> Response {
    reshaped(response, |error| error.answer(error.error_and_details()))
}

/// Gives an error the shape that the clients of sandboxes read.
pub(crate) fn sandbox_shape(response: Response) -> Response {
    reshaped(response, |error| error.answer(error.sandbox()))
}

/// Gives an error the shape of problem details (RFC 9457).
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
        let Rejection { why, field, message } = rejection;
        // Whoever reads the text alone must see which field it is about.
        let text = |field: &str, message: String| {
            if field.is_empty() || message.contains(field) {
                message
            } else {
                format!("{field}: {message}")
            }
        };
        match why {
            Why::Invalid => Self::invalid_at(body_loc(&field), "value_error", message),
            Why::Rule | Why::Unsupported => Self::bad_request(text(&field, message)),
            Why::NotFound => Self::new(StatusCode::NOT_FOUND, message),
            Why::Conflict => Self::conflict(text(&field, message)),
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
                Self::conflict(format!("{field} is taken already"))
            }
            store::Error::Stale => Self::conflict("it was changed meanwhile; read it again"),
            error if error.is_transient() => {
                tracing::warn!(error = %chain(&error), "request refused, the database does not answer");
                Self::unavailable("the database is not available right now", Duration::from_secs(2))
            }
            error => Self::internal(&error),
        }
    }
}

/// The value of `Retry-After`: whole seconds, rounded up, because who comes back when told must not be early.
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
fn dotted(loc: &[Place]) -> String {
    let parts = loc.iter().map(|place| match place {
        Place::Name(name) => name.clone(),
        Place::Index(index) => index.to_string(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// What the clients of sandboxes call an error of this status.
fn name(status: StatusCode) -> &'static str {
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

/// For the API description: every operation behind a key names these beside its own.
impl IntoResponses for ApiError {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let answers = [
            ("400", "A rule across fields, or a header sent twice", "Error"),
            ("401", "No key, or one that opens nothing", "Error"),
            ("403", "Not this key's workspace, or none was named", "Error"),
            (
                "422",
                "A value is missing, of the wrong type, or out of its range",
                "InvalidRequest",
            ),
            (
                "503",
                "Overloaded, or a dependency is away; `Retry-After` says when to come back",
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
    /// What is wrong, for programs.
    #[schema(example = "NotFound")]
    error: String,
    /// What is wrong and what to do.
    message: String,
}

/// An error's body.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct Error {
    /// What is wrong and what to do.
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
        assert_eq!(taken.detail(), json!({"detail": "name is taken already"}));
    }

    #[test]
    fn retry_after_is_never_early() {
        let response = ApiError::unavailable("full", Duration::from_millis(1100)).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }
}
