//! The store of items, for graphs.

use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use towpath_domain::TenantId;
use towpath_domain::agent::namespace::Namespace;
use towpath_domain::agent::text_path;
use towpath_durable::Ctx;
use towpath_runtime::{HostError, ItemCall};
use towpath_store::items::{self, Item};
use towpath_store::{self as store, Store, Tx};

use super::host_error::host_error;
use super::saver::store_error;
use crate::item_index::{ItemIndex, ItemSearch, RankedItems, SearchError};
use crate::text_time::rfc3339;

/// What calls need, besides the job.
pub struct ItemServices<'a> {
    pub store: &'a Store,
    pub tenant: TenantId,
    pub index: &'a ItemIndex,
    /// Whether read items restart their time to live, unless the call specifies it.
    pub refresh: bool,
}

/// A call with validated namespaces.
enum Call {
    Get(Namespace, String, Option<bool>),
    Put(NewItem),
    Delete(Namespace, String),
    Search(Search),
    Namespaces(Namespace, Namespace, Option<u32>, u32, u32),
}

struct NewItem {
    namespace: Namespace,
    key: String,
    value: String,
    ttl_minutes: Option<f64>,
    index: Option<Vec<String>>,
}

struct Search {
    prefix: Namespace,
    filter: Map<String, Value>,
    query: Option<String>,
    limit: u32,
    offset: u32,
    refresh: Option<bool>,
}

impl Call {
    /// Whether the items it reads restart their time to live.
    fn refreshes(&self, usual: bool) -> bool {
        match self {
            Self::Get(_, _, refresh) | Self::Search(Search { refresh, .. }) => refresh.unwrap_or(usual),
            Self::Put(..) | Self::Delete(..) | Self::Namespaces(..) => false,
        }
    }
}

enum CallResult {
    Nothing,
    Item(Option<Item>),
    Items(Vec<Item>),
    /// The most alike first.
    Ranked(RankedItems),
    Namespaces(Vec<Vec<String>>),
}

impl CallResult {
    fn items(&self) -> &[Item] {
        match self {
            Self::Item(Some(item)) => std::slice::from_ref(item),
            Self::Items(items) | Self::Ranked(RankedItems { items, .. }) => items,
            Self::Nothing | Self::Item(None) | Self::Namespaces(_) => &[],
        }
    }
}

/// Performs calls in one transaction; what is ranked by a query is read before it.
pub async fn call(
    services: &ItemServices<'_>,
    ctx: &Mutex<&mut Ctx>,
    calls: Vec<ItemCall>,
) -> Result<Vec<Value>, HostError> {
    let &ItemServices {
        store,
        tenant,
        index,
        refresh,
    } = services;
    let calls: Vec<Call> = calls.into_iter().map(admit).collect::<Result<_, _>>()?;
    let mut ranked = Vec::with_capacity(calls.len());
    for call in &calls {
        ranked.push(rank(services, call).await?);
    }
    let writes = |call: &Call| matches!(call, Call::Put(..) | Call::Delete(..));
    let found = if calls.iter().any(writes) {
        let mut ctx = ctx.lock().await;
        ctx.commit(async |tx| {
            let found = all(tx, tenant, index, &calls, ranked).await?;
            items::refresh(tx, tenant, &refreshed_items(&calls, &found, refresh)).await?;
            Ok(found)
        })
        .await
        .map_err(host_error)?
    } else {
        let read = store
            .read(async |tx| all(tx, tenant, index, &calls, ranked).await)
            .await;
        let found = read.map_err(store_error)?;
        let items = refreshed_items(&calls, &found, refresh);
        if !items.is_empty() {
            let mut ctx = ctx.lock().await;
            ctx.commit(async |tx| items::refresh(tx, tenant, &items).await)
                .await
                .map_err(host_error)?;
        }
        found
    };
    found.iter().map(result_json).collect()
}

/// The result of a search with a query.
async fn rank(services: &ItemServices<'_>, call: &Call) -> Result<Option<RankedItems>, HostError> {
    let Call::Search(search) = call else { return Ok(None) };
    let Some(query) = &search.query else { return Ok(None) };
    let search = ItemSearch {
        prefix: &search.prefix,
        filter: &search.filter,
        query,
        limit: search.limit as usize,
        offset: search.offset as usize,
    };
    let ranked = services.index.search(services.tenant, search).await;
    ranked.map(Some).map_err(|error| match error {
        SearchError::Store(error) => store_error(error),
        SearchError::NoIndex => invalid(&error),
        SearchError::Embed(_) => HostError::Invalid {
            class: "RuntimeError".to_owned(),
            message: error.to_string(),
        },
    })
}

/// Read items that restart their time to live.
fn refreshed_items<'f>(calls: &[Call], found: &'f [CallResult], refresh: bool) -> Vec<&'f Item> {
    let wanted = calls.iter().zip(found).filter(|(call, _)| call.refreshes(refresh));
    wanted
        .flat_map(|(_, found)| found.items())
        .filter(|item| item.expires_at.is_some())
        .collect()
}

/// `ranked` has the results that are there already.
async fn all(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    index: &ItemIndex,
    calls: &[Call],
    ranked: Vec<Option<RankedItems>>,
) -> store::Result<Vec<CallResult>> {
    let mut found = Vec::with_capacity(calls.len());
    for (call, ranked) in calls.iter().zip(ranked) {
        found.push(match ranked {
            Some(ranked) => CallResult::Ranked(ranked),
            None => one(tx, tenant, index, call).await?,
        });
    }
    Ok(found)
}

async fn one(tx: &mut Tx<'_>, tenant: TenantId, index: &ItemIndex, call: &Call) -> store::Result<CallResult> {
    Ok(match call {
        Call::Get(namespace, key, _) => CallResult::Item(items::get(tx, tenant, namespace, key).await?),
        Call::Put(new) => {
            let NewItem { namespace, key, .. } = new;
            let paths = new.index.as_deref();
            items::put(tx, tenant, namespace, key, &new.value, new.ttl_minutes, paths).await?;
            index.written(tx, tenant, namespace, key, paths).await?;
            CallResult::Nothing
        }
        Call::Delete(namespace, key) => {
            items::delete(tx, tenant, namespace, key).await?;
            CallResult::Nothing
        }
        Call::Search(search) => {
            let (limit, offset) = (i64::from(search.limit), i64::from(search.offset));
            CallResult::Items(items::search(tx, tenant, &search.prefix, &search.filter, limit, offset).await?)
        }
        Call::Namespaces(prefix, suffix, depth, limit, offset) => {
            let depth = depth.map(|depth| depth as usize);
            let (limit, offset) = (*limit as usize, *offset as usize);
            CallResult::Namespaces(items::namespaces(tx, tenant, prefix, suffix, depth, limit, offset).await?)
        }
    })
}

fn admit(call: ItemCall) -> Result<Call, HostError> {
    Ok(match call {
        ItemCall::Get {
            namespace,
            key,
            refresh,
        } => Call::Get(full(namespace)?, key, refresh),
        ItemCall::Put {
            namespace,
            key,
            value,
            ttl_minutes,
            index,
        } => {
            text_path::check(index.as_deref().unwrap_or_default()).map_err(|why| HostError::Invalid {
                class: "ValueError".to_owned(),
                message: format!("index: {why}"),
            })?;
            Call::Put(NewItem {
                namespace: full(namespace)?,
                key,
                value: Value::Object(value).to_string(),
                ttl_minutes,
                index,
            })
        }
        ItemCall::Delete { namespace, key } => Call::Delete(full(namespace)?, key),
        ItemCall::Search {
            prefix,
            filter,
            query,
            limit,
            offset,
            refresh,
        } => Call::Search(Search {
            prefix: part("namespace_prefix", prefix)?,
            filter,
            query,
            limit,
            offset,
            refresh,
        }),
        ItemCall::Namespaces {
            prefix,
            suffix,
            max_depth,
            limit,
            offset,
        } => Call::Namespaces(
            part("prefix", prefix.unwrap_or_default())?,
            part("suffix", suffix.unwrap_or_default())?,
            max_depth,
            limit,
            offset,
        ),
    })
}

fn full(labels: Vec<String>) -> Result<Namespace, HostError> {
    Namespace::new("namespace", labels).map_err(|error| invalid(&error))
}

fn part(field: &'static str, labels: Vec<String>) -> Result<Namespace, HostError> {
    Namespace::part(field, labels).map_err(|error| invalid(&error))
}

fn invalid(error: &dyn std::error::Error) -> HostError {
    HostError::Invalid {
        class: "ValueError".to_owned(),
        message: error.to_string(),
    }
}

fn result_json(found: &CallResult) -> Result<Value, HostError> {
    match found {
        CallResult::Nothing | CallResult::Item(None) => Ok(Value::Null),
        CallResult::Item(Some(item)) => item_json(item),
        CallResult::Items(items) => items.iter().map(item_json).collect(),
        CallResult::Ranked(RankedItems { items, scores, .. }) => {
            let scored = items
                .iter()
                .zip(scores)
                .map(|(item, score)| -> Result<Value, HostError> {
                    let mut item = item_json(item)?;
                    item["score"] = json!(score);
                    Ok(item)
                });
            scored.collect()
        }
        CallResult::Namespaces(found) => Ok(json!(found)),
    }
}

fn item_json(item: &Item) -> Result<Value, HostError> {
    let value: Value = serde_json::from_str(&item.value).map_err(|error| invalid(&error))?;
    Ok(json!({
        "namespace": item.labels(),
        "key": item.key,
        "value": value,
        "created_at": rfc3339(item.created_at),
        "updated_at": rfc3339(item.updated_at),
    }))
}
