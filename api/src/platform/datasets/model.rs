//! What the routes of datasets share: bodies, and checks of what is in them.

use axum::extract::{FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::Rejection;

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::{Object, Pairs, parse_json, parse_value, unsaid_json};

/// Bytes of one metadata object.
const MOST_METADATA: usize = 1024 * 1024;

/// A JSON object that may be as large as a body of trace ingest. The official clients do not always say that it is JSON.
#[derive(Clone, Copy, Debug)]
pub struct Sent<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let body = unsaid_json(request, app.settings.ingest_body_bytes).await?;
        parse_json(&body).map(Self)
    }
}

/// The same of a list of objects.
#[derive(Clone, Debug)]
pub struct SentList<T>(pub Vec<T>);

impl<T: DeserializeOwned> FromRequest<App> for SentList<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let body = unsaid_json(request, app.settings.ingest_body_bytes).await?;
        let items: Vec<Object<T>> = parse_value(&body)?;
        Ok(Self(items.into_iter().map(|Object(item)| item).collect()))
    }
}

/// The same of a list of ids or texts.
#[derive(Clone, Debug)]
pub struct SentValues<T>(pub Vec<T>);

impl<T: DeserializeOwned> FromRequest<App> for SentValues<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let body = unsaid_json(request, app.settings.ingest_body_bytes).await?;
        parse_value(&body).map(Self)
    }
}

/// One text, or several.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = SplitNames)]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl Names {
    pub(in crate::platform) fn list(self) -> Vec<String> {
        match self {
            Self::One(name) => vec![name],
            Self::Several(names) => names,
        }
    }
}

/// A text that both databases can keep.
pub(in crate::platform) fn text(field: &str, text: Option<String>) -> Result<Option<String>, Rejection> {
    if text.as_deref().is_some_and(|text| text.contains('\0')) {
        return Err(Rejection::invalid(field, "expected a text without NUL"));
    }
    Ok(text)
}

/// JSON that has to be an object, as it was sent.
pub(in crate::platform) fn object(
    field: &str,
    sent: Option<Box<RawValue>>,
) -> Result<Option<Box<RawValue>>, Rejection> {
    match sent {
        None => Ok(None),
        Some(sent) if sent.get().starts_with('{') => Ok(Some(sent)),
        Some(sent) if sent.get() == "null" => Ok(None),
        Some(_) => Err(Rejection::invalid(field, "expected an object")),
    }
}

/// Metadata within its bounds.
pub(in crate::platform) fn metadata(sent: Option<Map<String, Value>>) -> Result<Option<Map<String, Value>>, Rejection> {
    let large = |metadata: &Map<String, Value>| {
        serde_json::to_vec(metadata).map_or(usize::MAX, |text| text.len()) > MOST_METADATA
    };
    if sent.as_ref().is_some_and(large) {
        let text = format!("expected at most {MOST_METADATA} bytes");
        return Err(Rejection::invalid("metadata", text));
    }
    // PostgreSQL's `jsonb` has no NUL, and filters read metadata as such.
    if sent.as_ref().is_some_and(|metadata| metadata.iter().any(has_nul)) {
        return Err(Rejection::invalid("metadata", "expected texts without NUL"));
    }
    Ok(sent)
}

fn has_nul((key, value): (&String, &Value)) -> bool {
    fn within(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(within),
            Value::Object(object) => object.iter().any(has_nul),
            _ => false,
        }
    }
    key.contains('\0') || within(value)
}

/// The parameter `metadata`: a JSON object in a text.
pub(in crate::platform) fn metadata_filter(sent: &Pairs) -> Result<Option<Value>, ApiError> {
    let Some(text) = sent.all("metadata").last() else {
        return Ok(None);
    };
    let object = serde_json::from_str(text).ok().filter(Value::is_object);
    let object = object.ok_or_else(|| Rejection::invalid("metadata", "expected a JSON object"))?;
    Ok(Some(object))
}

/// Refuses parameters that are known, and would choose what this build cannot choose.
pub(in crate::platform) fn refuse(sent: &Pairs, fields: &[&str]) -> Result<(), ApiError> {
    match fields
        .iter()
        .find(|field| sent.all(field).any(|value| !value.is_empty()))
    {
        None => Ok(()),
        Some(field) => Err(Rejection::unsupported(*field, format!("a list with {field}")).into()),
    }
}
