//! Reading requests, with refusals that say where.
//!
//! Use these in place of axum's own: a body of another kind is 415, a broken or oversized one 400 or 413, a value of
//! the wrong shape 422 with its place. Refusals never repeat a value the caller sent: it may be a secret in the wrong
//! field.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path as Trail, Segment};

use crate::errors::{ApiError, Place};

/// The most bytes a JSON body of an ordinary route may have. (Trace ingest has its own limit.)
pub const JSON_BODY_BYTES: usize = 1024 * 1024;

/// A JSON body that takes longer holds a place others could use.
const BODY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A JSON body; as an answer, one too. Nesting deeper than 128 is refused.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        if !is_json(&request) {
            return Err(ApiError::unsupported_media_type(
                "send the body as Content-Type: application/json",
            ));
        }
        let body = read_body(request.into_body(), JSON_BODY_BYTES).await?;
        parse_json(&body).map(Self)
    }
}

/// A parameter of the path.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let problem = match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => return Ok(Self(value)),
            Err(problem) => problem,
        };
        let PathRejection::FailedToDeserializePathParams(problem) = problem else {
            return Err(ApiError::internal(&problem));
        };
        // axum does not always say which one; the one that is no UUID is at fault.
        let all = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::internal(&error))?;
        let wrong = all
            .iter()
            .find(|(_, value)| value.parse::<uuid::Uuid>().is_err())
            .or_else(|| all.iter().next());
        let name = wrong.map(|(name, _)| name.to_owned()).unwrap_or_default();
        tracing::debug!(error = %problem, "a path parameter cannot be read");
        let loc = vec![Place::from("path"), Place::Name(name)];
        Err(ApiError::invalid_at(loc, "uuid_parsing", "expected a UUID"))
    }
}

/// The query string.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(QueryRejection::FailedToDeserializeQueryString(problem)) => {
                // Its source is `field: what is wrong`, from the path-aware reader inside axum.
                let text = std::error::Error::source(&problem)
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let (field, text) = text.split_once(": ").unwrap_or(("", &text));
                let mut loc = vec![Place::from("query")];
                let (kind, msg, missing) = explain(text);
                loc.extend((!field.is_empty()).then(|| Place::from(field)));
                loc.extend(missing.map(Place::Name));
                Err(ApiError::invalid_at(loc, kind, msg))
            }
            Err(problem) => Err(ApiError::internal(&problem)),
        }
    }
}

/// Whether the body says it is JSON (`application/json` or `…+json`).
pub(crate) fn is_json<B>(request: &http::Request<B>) -> bool {
    let Some(kind) = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Reads a whole body of at most `limit_bytes`.
pub(crate) async fn read_body(body: axum::body::Body, limit_bytes: usize) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_PATIENCE, Limited::new(body, limit_bytes).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(problem)) if problem.is::<LengthLimitError>() => Err(ApiError::too_large(limit_bytes)),
        Ok(Err(_)) => Err(ApiError::bad_request("the body broke off before its end")),
        Err(_) => Err(ApiError::too_slow()),
    }
}

/// Reads JSON into `T`. serde_json itself refuses to go deeper than 128.
pub(crate) fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json)
        .map_err(|problem| json_problem(Some(problem.path()), problem.inner()))?;
    json.end().map_err(|problem| json_problem(None, &problem))?;
    Ok(value)
}

fn json_problem(trail: Option<&Trail>, problem: &serde_json::Error) -> ApiError {
    let text = problem.to_string();
    let mut loc = vec![Place::from("body")];
    if !problem.is_data() {
        let too_deep = text.starts_with("recursion limit");
        let msg = if too_deep {
            "nested too deeply".to_owned()
        } else {
            format!(
                "the body is not valid JSON (line {}, column {})",
                problem.line(),
                problem.column()
            )
        };
        return ApiError::invalid_at(loc, if too_deep { "recursion_limit" } else { "json_invalid" }, msg);
    }
    loc.extend(trail.into_iter().flat_map(Trail::iter).filter_map(|step| match step {
        Segment::Seq { index } => Some(Place::Index(*index)),
        Segment::Map { key } => Some(Place::Name(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    }));
    let (kind, msg, missing) = explain(&text);
    loc.extend(missing.map(Place::Name));
    ApiError::invalid_at(loc, kind, msg)
}

/// Turns serde's sentence into a type, a message without the caller's value, and the field's name where the sentence
/// has it and the trail has not.
pub(crate) fn explain(text: &str) -> (&'static str, String, Option<String>) {
    // serde_json adds where in the text it was; the place in the document says it better.
    let text = text.rfind(" at line ").map_or(text, |end| &text[..end]);
    let named = |text: &str| text.split('`').nth(1).map(str::to_owned);
    let expected = text.rsplit_once("expected ").map(|(_, expected)| expected);
    if text.starts_with("missing field") {
        return ("missing", "field required".to_owned(), named(text));
    }
    if text.starts_with("unknown field") {
        return ("extra_forbidden", "no such field".to_owned(), None);
    }
    if text.starts_with("duplicate field") {
        return ("duplicate", "the field was sent twice".to_owned(), named(text));
    }
    match expected {
        Some(expected) if text.starts_with("unknown variant") => ("enum", format!("expected {expected}"), None),
        Some(expected) if text.starts_with("invalid type") => ("type_error", format!("expected {expected}"), None),
        Some(expected) if text.starts_with("invalid ") => ("value_error", format!("expected {expected}"), None),
        _ if text.starts_with("UUID parsing failed") => ("uuid_parsing", "expected a UUID".to_owned(), None),
        _ => ("value_error", text.to_owned(), None),
    }
}
