//! The store of items, for graphs.

use serde_json::{Value, json};
use tokio::sync::Mutex;
use towpath_domain::TenantId;
use towpath_domain::agent::namespace::Namespace;
use towpath_durable::Ctx;
use towpath_runtime::{HostError, ItemCall};
use towpath_store::items::{self, Item};
use towpath_store::{self as store, Store, Tx};

use super::host::host_error;
use super::saver::store_error;

/// A call with validated namespaces.
enum Call {
    Get(Namespace, String, Option<bool>),
    Put(Namespace, String, String, Option<f64>),
    Delete(Namespace, String),
    Search(Namespace, serde_json::Map<String, Value>, u32, u32, Option<bool>),
    Namespaces(Namespace, Namespace, Option<u32>, u32, u32),
}

impl Call {
    /// Whether the items it reads restart their time to live.
    fn refreshes(&self, usual: bool) -> bool {
        match self {
            Self::Get(_, _, refresh) | Self::Search(_, _, _, _, refresh) => refresh.unwrap_or(usual),
            Self::Put(..) | Self::Delete(..) | Self::Namespaces(..) => false,
        }
    }
}

enum CallResult {
    Nothing,
    Item(Option<Item>),
    Items(Vec<Item>),
    Namespaces(Vec<Vec<String>>),
}

impl CallResult {
    fn items(&self) -> &[Item] {
        match self {
            Self::Item(Some(item)) => std::slice::from_ref(item),
            Self::Items(items) => items,
            Self::Nothing | Self::Item(None) | Self::Namespaces(_) => &[],
        }
    }
}

/// Performs calls in one transaction. Read items restart their time to live if the call requests it, or if it does not
/// specify it and `refresh` is true.
pub async fn call(
    store: &Store,
    tenant: TenantId,
    ctx: &Mutex<&mut Ctx>,
    calls: Vec<ItemCall>,
    refresh: bool,
) -> Result<Vec<Value>, HostError> {
    let calls: Vec<Call> = calls.into_iter().map(admit).collect::<Result<_, _>>()?;
    let writes = |call: &Call| matches!(call, Call::Put(..) | Call::Delete(..));
    let found = if calls.iter().any(writes) {
        let mut ctx = ctx.lock().await;
        ctx.commit(async |tx| {
            let found = all(tx, tenant, &calls).await?;
            items::refresh(tx, tenant, &refreshed_items(&calls, &found, refresh)).await?;
            Ok(found)
        })
        .await
        .map_err(host_error)?
    } else {
        let read = store.read(async |tx| all(tx, tenant, &calls).await).await;
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

/// Read items that restart their time to live.
fn refreshed_items<'f>(calls: &[Call], found: &'f [CallResult], refresh: bool) -> Vec<&'f Item> {
    let wanted = calls.iter().zip(found).filter(|(call, _)| call.refreshes(refresh));
    wanted
        .flat_map(|(_, found)| found.items())
        .filter(|item| item.expires_at.is_some())
        .collect()
}

async fn all(tx: &mut Tx<'_>, tenant: TenantId, calls: &[Call]) -> store::Result<Vec<CallResult>> {
    let mut found = Vec::with_capacity(calls.len());
    for call in calls {
        found.push(one(tx, tenant, call).await?);
    }
    Ok(found)
}

async fn one(tx: &mut Tx<'_>, tenant: TenantId, call: &Call) -> store::Result<CallResult> {
    Ok(match call {
        Call::Get(namespace, key, _) => CallResult::Item(items::get(tx, tenant, namespace, key).await?),
        Call::Put(namespace, key, value, ttl_minutes) => {
            items::put(tx, tenant, namespace, key, value, *ttl_minutes).await?;
            CallResult::Nothing
        }
        Call::Delete(namespace, key) => {
            items::delete(tx, tenant, namespace, key).await?;
            CallResult::Nothing
        }
        Call::Search(prefix, filter, limit, offset, _) => {
            CallResult::Items(items::search(tx, tenant, prefix, filter, i64::from(*limit), i64::from(*offset)).await?)
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
        } => Call::Put(full(namespace)?, key, Value::Object(value).to_string(), ttl_minutes),
        ItemCall::Delete { namespace, key } => Call::Delete(full(namespace)?, key),
        ItemCall::Search {
            prefix,
            filter,
            limit,
            offset,
            refresh,
        } => Call::Search(part("namespace_prefix", prefix)?, filter, limit, offset, refresh),
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
        CallResult::Namespaces(found) => Ok(json!(found)),
    }
}

fn item_json(item: &Item) -> Result<Value, HostError> {
    let value: Value = serde_json::from_str(&item.value).map_err(|error| invalid(&error))?;
    Ok(json!({
        "namespace": item.labels(),
        "key": item.key,
        "value": value,
        "created_at": super::rfc3339(item.created_at),
        "updated_at": super::rfc3339(item.updated_at),
    }))
}
