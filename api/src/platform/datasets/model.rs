//! Bodies and checks that the routes of datasets share.

use axum::extract::{FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::{Rejection, json};

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::{Object, Pairs, parse_json, parse_value, unsaid_json};

/// Maximum size of one metadata object.
const MAX_METADATA_BYTES: usize = 1024 * 1024;

/// A JSON object of at most the size of an ingest body. Official clients do not always set the content type.
#[derive(Clone, Copy, Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let body = unsaid_json(request, app.settings.ingest_body_bytes).await?;
        parse_json(&body).map(Self)
    }
}

/// A list of JSON objects.
#[derive(Clone, Debug)]
pub struct JsonList<T>(pub Vec<T>);

impl<T: DeserializeOwned> FromRequest<App> for JsonList<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let body = unsaid_json(request, app.settings.ingest_body_bytes).await?;
        let items: Vec<Object<T>> = parse_value(&body)?;
        Ok(Self(items.into_iter().map(|Object(item)| item).collect()))
    }
}

/// A list of ids or texts.
#[derive(Clone, Debug)]
pub struct JsonValues<T>(pub Vec<T>);

impl<T: DeserializeOwned> FromRequest<App> for JsonValues<T> {
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
pub enum OneOrMany {
    One(String),
    Several(Vec<String>),
}

impl OneOrMany {
    pub(in crate::platform) fn into_list(self) -> Vec<String> {
        match self {
            Self::One(name) => vec![name],
            Self::Several(names) => names,
        }
    }
}

/// A text without NUL, which PostgreSQL cannot store.
pub(in crate::platform) fn check_text_field(field: &str, text: Option<String>) -> Result<Option<String>, Rejection> {
    if text.as_deref().is_some_and(|text| text.contains('\0')) {
        return Err(Rejection::invalid(field, "expected text without NUL characters"));
    }
    Ok(text)
}

/// Refuses raw JSON that later readers could not parse: it has not been parsed yet.
pub(in crate::platform) fn check_depth(field: &str, sent: &RawValue) -> Result<(), Rejection> {
    if json::check(sent.get().as_bytes()).is_err() {
        return Err(Rejection::invalid(field, "nested too deeply"));
    }
    Ok(())
}

/// JSON that must be an object, kept as sent.
pub(in crate::platform) fn check_object_field(
    field: &str,
    sent: Option<Box<RawValue>>,
) -> Result<Option<Box<RawValue>>, Rejection> {
    let Some(sent) = sent else { return Ok(None) };
    check_depth(field, &sent)?;
    if sent.get() == "null" {
        return Ok(None);
    }
    if !sent.get().starts_with('{') {
        return Err(Rejection::invalid(field, "expected an object"));
    }
    Ok(Some(sent))
}

/// Checks the size and content of metadata.
pub(in crate::platform) fn check_metadata(
    sent: Option<Map<String, Value>>,
) -> Result<Option<Map<String, Value>>, Rejection> {
    let large = |metadata: &Map<String, Value>| {
        serde_json::to_vec(metadata).map_or(usize::MAX, |text| text.len()) > MAX_METADATA_BYTES
    };
    if sent.as_ref().is_some_and(large) {
        let text = format!("expected at most {MAX_METADATA_BYTES} bytes");
        return Err(Rejection::invalid("metadata", text));
    }
    // `jsonb` of PostgreSQL cannot store NUL, and filters read metadata as `jsonb`.
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

/// Parses the parameter `metadata`: a JSON object as text.
pub(in crate::platform) fn metadata_filter(sent: &Pairs) -> Result<Option<Value>, ApiError> {
    let Some(text) = sent.all("metadata").last() else {
        return Ok(None);
    };
    let object = serde_json::from_str::<Map<String, Value>>(text).ok();
    let object = object.ok_or_else(|| Rejection::invalid("metadata", "expected a JSON object"))?;
    Ok(check_metadata(Some(object))?.map(Value::from))
}

/// Rejects known parameters that this build does not support.
pub(in crate::platform) fn refuse_parameters(sent: &Pairs, fields: &[&str]) -> Result<(), ApiError> {
    match fields
        .iter()
        .find(|field| sent.all(field).any(|value| !value.is_empty()))
    {
        None => Ok(()),
        Some(field) => Err(Rejection::unsupported(*field, format!("a list with {field}")).into()),
    }
}
