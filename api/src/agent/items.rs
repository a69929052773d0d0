//! The long-term store: JSON objects under a namespace and a key.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::agent::namespace::Namespace;
use towpath_domain::agent::text_path;
use towpath_runtime::EmbedError;
use towpath_store::items;
use towpath_workflows::item_index::{self, SearchError};

use super::answer::{Json, Page, Time, raw};
use super::app::AgentApp;
use super::errors::AgentError;
use super::extract::{Body, Flag, Query};
use crate::extract::whole;
use crate::routes::{Routes, routes};

/// Maximum length of a key.
const LONGEST_KEY: usize = 1000;
/// Maximum number of items in one search.
const MAX_RESULTS: i64 = 10_000;
/// Says that some items are not embedded yet.
const INDEX_HEADER: HeaderName = HeaderName::from_static("x-towpath-index");
const EMBEDDER_RETRY: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(put, get, delete))
        .routes(routes!(search))
        .routes(routes!(namespaces))
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Item {
    namespace: Vec<String>,
    key: String,
    #[schema(value_type = Object)]
    value: Box<RawValue>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

impl TryFrom<items::Item> for Item {
    type Error = AgentError;

    fn try_from(row: items::Item) -> Result<Self, AgentError> {
        Ok(Self {
            namespace: row.labels(),
            value: raw(&row.value)?,
            key: row.key,
            created_at: Time(row.created_at),
            updated_at: Time(row.updated_at),
        })
    }
}

/// An item in a search result.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct FoundItem {
    #[serde(flatten)]
    item: Item,
    /// Similarity to the query, from -1 to 1; null without a query.
    score: Option<f64>,
}

/// Search result.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct FoundItems {
    items: Vec<FoundItem>,
}

/// Part of a namespace.
#[derive(utoipa::ToSchema)]
#[schema(min_length = 1, max_length = 1000, pattern = r"^[^.\x00]+$")]
#[expect(dead_code, reason = "only part of the API description")]
pub(crate) struct Label(String);

/// An item to write.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct NewItem {
    #[schema(value_type = Vec<Label>, min_items = 1, max_items = 100)]
    namespace: Vec<String>,
    #[schema(min_length = 1, max_length = 1000)]
    key: String,
    value: Map<String, Value>,
    /// TTL in minutes; by default the server's, null for no expiry.
    #[serde(default, deserialize_with = "deserialize_nullable")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0)]
    ttl: Option<Option<f64>>,
    /// Paths to the texts that are embedded, or false for none; by default those of `store.index.fields`.
    index: Option<IndexChoice>,
}

/// What of an item is embedded.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum IndexChoice {
    /// False: nothing. True: the default.
    Switch(bool),
    /// Paths such as `$`, `text` or `notes[*].text`.
    Paths(Vec<String>),
}

impl IndexChoice {
    /// Paths, none for nothing, or the default.
    fn paths(self) -> Result<Option<Vec<String>>, AgentError> {
        match self {
            Self::Switch(true) => Ok(None),
            Self::Switch(false) => Ok(Some(Vec::new())),
            Self::Paths(paths) => match text_path::check(&paths) {
                Ok(()) => Ok(Some(paths)),
                Err(why) => Err(AgentError::invalid(format!("index: {why}"))),
            },
        }
    }
}

/// Distinguishes null from absent.
fn deserialize_nullable<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::<f64>::deserialize(from).map(Some)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetItem {
    #[param(required = true, min_length = 1)]
    key: Option<String>,
    /// Its labels, joined by dots.
    #[param(required = true, pattern = r"^[^.\x00]{1,1000}(\.[^.\x00]{1,1000}){0,99}$")]
    namespace: Option<String>,
    /// Whether reading renews the TTL.
    #[param(value_type = Option<String>)]
    refresh_ttl: Option<Flag>,
}

impl GetItem {
    /// Namespace and key.
    pub(super) fn location(&self) -> Result<(Namespace, &str), AgentError> {
        let Some(key) = self.key.as_deref().filter(|key| !key.is_empty()) else {
            return Err(AgentError::bad_request("Key is required"));
        };
        let namespace = self.namespace.as_deref().unwrap_or_default();
        Ok((Namespace::from_dotted("namespace", namespace)?, key))
    }

    /// The query string for another item.
    pub(super) fn query_for(&self, namespace: Vec<String>, key: &str) -> Result<String, AgentError> {
        let namespace = Namespace::new("namespace", namespace)?;
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("namespace", &namespace.dotted());
        query.append_pair("key", key);
        if let Some(Flag(refresh)) = self.refresh_ttl {
            query.append_pair("refresh_ttl", if refresh { "true" } else { "false" });
        }
        Ok(query.finish())
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct DeleteItem {
    #[schema(value_type = Vec<Label>, min_items = 1, max_items = 100)]
    namespace: Vec<String>,
    #[schema(min_length = 1, max_length = 1000)]
    key: String,
}

/// Filters and page of the search.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct ItemSearch {
    #[schema(value_type = Vec<Label>, max_items = 100)]
    namespace_prefix: Vec<String>,
    /// Equality by key, or operators: `$eq $ne $gt $gte $lt $lte`.
    filter: Option<Map<String, Value>>,
    /// Default 10.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
    /// Ranks the items by their similarity to this text. Needs `store.index` in the graph file.
    query: Option<String>,
    refresh_ttl: Option<bool>,
}

/// Filters and page of namespaces.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct NamespaceSearch {
    #[schema(value_type = Option<Vec<Label>>, max_items = 100)]
    prefix: Option<Vec<String>>,
    #[schema(value_type = Option<Vec<Label>>, max_items = 100)]
    suffix: Option<Vec<String>>,
    /// Namespaces are cut to this number of labels.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1)]
    max_depth: Option<i64>,
    /// Default 100.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
}

/// Matching namespaces.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Namespaces {
    namespaces: Vec<Vec<String>>,
}

/// Write an item, replacing an existing one.
#[utoipa::path(put, path = "/store/items", tag = "store", request_body = NewItem,
    responses((status = 204, description = "Written"), AgentError))]
pub(crate) async fn put(State(app): State<AgentApp>, Body(new): Body<NewItem>) -> Result<StatusCode, AgentError> {
    let namespace = Namespace::new("namespace", new.namespace)?;
    check_key(&new.key)?;
    let minutes = new.ttl.unwrap_or(app.settings.item_ttl_minutes);
    if minutes.is_some_and(|minutes| !minutes.is_finite() || minutes <= 0.0) {
        return Err(AgentError::invalid("ttl: expected a positive number of minutes"));
    }
    let index = match new.index {
        Some(choice) => choice.paths()?,
        None => None,
    };
    let (key, paths) = (new.key.as_str(), index.as_deref());
    let value = Value::Object(new.value).to_string();
    app.store
        .write(async |tx| {
            items::put(tx, app.tenant, &namespace, key, &value, minutes, paths).await?;
            app.items.written(tx, app.tenant, &namespace, key, paths).await
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get an item, or null if it does not exist.
#[utoipa::path(get, path = "/store/items", tag = "store", params(GetItem),
    responses((status = 200, description = "The item, or null", body = Option<Item>), AgentError))]
pub(crate) async fn get(
    State(app): State<AgentApp>,
    Query(which): Query<GetItem>,
) -> Result<Json<Option<Item>>, AgentError> {
    let (namespace, key) = which.location()?;
    let item = app
        .store
        .read(async |tx| items::get(tx, app.tenant, &namespace, key).await)
        .await?;
    let Some(item) = item else { return Ok(Json(None)) };
    let found = std::slice::from_ref(&item);
    refresh(&app, which.refresh_ttl.map(|Flag(refresh)| refresh), found).await?;
    Ok(Json(Some(item.try_into()?)))
}

/// Delete an item, if it exists.
#[utoipa::path(delete, path = "/store/items", tag = "store", request_body = DeleteItem,
    responses((status = 204, description = "Deleted"), AgentError))]
pub(crate) async fn delete(
    State(app): State<AgentApp>,
    Body(gone): Body<DeleteItem>,
) -> Result<StatusCode, AgentError> {
    let namespace = Namespace::new("namespace", gone.namespace)?;
    check_key(&gone.key)?;
    app.store
        .write(async |tx| items::delete(tx, app.tenant, &namespace, &gone.key).await)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Search items below a namespace: with a query the most similar first, otherwise the last written first.
///
/// While items still have to be embedded, the response to a query has the header `x-towpath-index: incomplete`.
#[utoipa::path(post, path = "/store/items/search", tag = "store", request_body = ItemSearch,
    responses((status = 200, description = "Items", body = FoundItems), AgentError))]
pub(crate) async fn search(
    State(app): State<AgentApp>,
    Body(search): Body<ItemSearch>,
) -> Result<Response, AgentError> {
    let prefix = Namespace::part("namespace_prefix", search.namespace_prefix)?;
    let Page { limit, offset } = Page::within(search.limit, search.offset, 10, MAX_RESULTS)?;
    let filter = search.filter.unwrap_or_default();
    let mut headers = HeaderMap::new();
    let query = search.query.as_deref().filter(|query| !query.is_empty());
    let (found, scores): (Vec<items::Item>, Vec<Option<f64>>) = if let Some(query) = query {
        let size = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
        let search = item_index::ItemSearch {
            prefix: &prefix,
            filter: &filter,
            query,
            limit: size(limit),
            offset: size(offset),
        };
        let ranked = app.items.search(app.tenant, search).await?;
        if ranked.is_incomplete {
            headers.insert(INDEX_HEADER, HeaderValue::from_static("incomplete"));
        }
        (ranked.items, ranked.scores.into_iter().map(Some).collect())
    } else {
        let read = app
            .store
            .read(async |tx| items::search(tx, app.tenant, &prefix, &filter, limit, offset).await);
        let found = read.await?;
        let scores = vec![None; found.len()];
        (found, scores)
    };
    refresh(&app, search.refresh_ttl, &found).await?;
    let items = found.into_iter().zip(scores).map(|(row, score)| {
        Ok(FoundItem {
            item: row.try_into()?,
            score,
        })
    });
    let items = items.collect::<Result<_, AgentError>>()?;
    Ok((headers, Json(FoundItems { items })).into_response())
}

impl From<SearchError> for AgentError {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::NoIndex => Self::invalid(error.to_string()),
            SearchError::Embed(EmbedError::Unavailable(_)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a search could not embed its query"
                );
                Self::unavailable("query: the embedder of the store is unavailable", EMBEDDER_RETRY)
            }
            SearchError::Embed(EmbedError::Refused(_)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a search could not embed its query"
                );
                Self::bad_request("query: the embedder of the store refused this text; the server's log has the reason")
            }
            SearchError::Store(error) => error.into(),
        }
    }
}

/// List namespaces with items.
#[utoipa::path(post, path = "/store/namespaces", tag = "store", request_body = NamespaceSearch,
    responses((status = 200, description = "Namespaces, sorted", body = Namespaces), AgentError))]
pub(crate) async fn namespaces(
    State(app): State<AgentApp>,
    Body(search): Body<NamespaceSearch>,
) -> Result<Json<Namespaces>, AgentError> {
    let prefix = Namespace::part("prefix", search.prefix.unwrap_or_default())?;
    let suffix = Namespace::part("suffix", search.suffix.unwrap_or_default())?;
    let Page { limit, offset } = Page::within(search.limit, search.offset, 100, MAX_RESULTS)?;
    let depth = match search.max_depth {
        None => None,
        Some(depth) => Some(
            usize::try_from(depth)
                .ok()
                .filter(|depth| *depth > 0)
                .ok_or_else(|| AgentError::invalid("max_depth: expected 1 or more"))?,
        ),
    };
    let size = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
    let namespaces = app
        .store
        .read(async |tx| items::namespaces(tx, app.tenant, &prefix, &suffix, depth, size(limit), size(offset)).await)
        .await?;
    Ok(Json(Namespaces { namespaces }))
}

/// Renews the TTL of items, if requested.
async fn refresh(app: &AgentApp, wanted: Option<bool>, found: &[items::Item]) -> Result<(), AgentError> {
    let mortal: Vec<&items::Item> = found.iter().filter(|item| item.expires_at.is_some()).collect();
    if mortal.is_empty() || !wanted.unwrap_or(app.settings.refresh_on_read) {
        return Ok(());
    }
    Ok(app
        .store
        .write(async |tx| items::refresh(tx, app.tenant, &mortal).await)
        .await?)
}

fn check_key(key: &str) -> Result<(), AgentError> {
    if key.is_empty() || key.chars().count() > LONGEST_KEY || key.contains('\0') {
        return Err(AgentError::invalid(format!(
            "key: expected 1 to {LONGEST_KEY} characters without NUL"
        )));
    }
    Ok(())
}
