//! The store of items, for graphs.

use serde_json::{Value, json};
use tokio::sync::Mutex;
use towpath_domain::TenantId;
use towpath_domain::agent::namespace::Namespace;
use towpath_durable::Ctx;
use towpath_runtime::{HostError, ItemCall};
use towpath_store::Store;
use towpath_store::items::{self, Item};

use super::host::host_error;
use super::saver::away;

/// Answers one call.
///
/// # Errors
/// A namespace that is none, or the database.
pub async fn call(store: &Store, tenant: TenantId, ctx: &Mutex<&mut Ctx>, call: ItemCall) -> Result<Value, HostError> {
    match call {
        ItemCall::Get { namespace, key } => {
            let namespace = full(namespace)?;
            let found = store
                .read(async |tx| items::get(tx, tenant, &namespace, &key).await)
                .await
                .map_err(away)?;
            found.as_ref().map_or(Ok(Value::Null), shown)
        }
        ItemCall::Put {
            namespace,
            key,
            value,
            ttl_minutes,
        } => {
            let namespace = full(namespace)?;
            let value = Value::Object(value).to_string();
            let mut ctx = ctx.lock().await;
            ctx.commit(async |tx| items::put(tx, tenant, &namespace, &key, &value, ttl_minutes).await)
                .await
                .map_err(host_error)?;
            Ok(Value::Null)
        }
        ItemCall::Delete { namespace, key } => {
            let namespace = full(namespace)?;
            let mut ctx = ctx.lock().await;
            ctx.commit(async |tx| items::delete(tx, tenant, &namespace, &key).await)
                .await
                .map_err(host_error)?;
            Ok(Value::Null)
        }
        ItemCall::Search {
            prefix,
            filter,
            limit,
            offset,
        } => {
            let prefix = Namespace::part("namespace_prefix", prefix).map_err(|error| invalid(&error))?;
            let found = store
                .read(async |tx| items::search(tx, tenant, &prefix, &filter, i64::from(limit), i64::from(offset)).await)
                .await
                .map_err(away)?;
            found.iter().map(shown).collect()
        }
    }
}

fn full(labels: Vec<String>) -> Result<Namespace, HostError> {
    Namespace::new("namespace", labels).map_err(|error| invalid(&error))
}

fn invalid(error: &dyn std::error::Error) -> HostError {
    HostError::Invalid {
        class: "ValueError".to_owned(),
        message: error.to_string(),
    }
}

fn shown(item: &Item) -> Result<Value, HostError> {
    let value: Value = serde_json::from_str(&item.value).map_err(|error| invalid(&error))?;
    Ok(json!({
        "namespace": item.labels(),
        "key": item.key,
        "value": value,
        "created_at": super::rfc3339(item.created_at),
        "updated_at": super::rfc3339(item.updated_at),
    }))
}
