//! Keys through the database, in the format of the server's responses.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use towpath_domain::{KeyId, OrganizationId, Scope, TenantId};
use towpath_store::access::{self, ApiKey, KeyLimits, NewKey};
use towpath_store::{Store, Tx};
use towpath_workflows::reseal_secrets;

use super::request::KeyRequest;
use crate::exit::Usage;

pub(super) async fn create(store: &Store, new: &KeyRequest<'_>) -> anyhow::Result<Value> {
    let made = store
        .write(async |tx| {
            let (organization, tenant) = owner(tx, new.workspace).await?;
            let is_limited = !new.scopes.is_empty();
            // The creator of the first key is the operator.
            let operator =
                new.operator || (!is_limited && new.workspace.is_none() && !access::has_operator(tx).await?);
            let added = operator.then_some(Scope::Operator);
            let limits = KeyLimits {
                scopes: is_limited.then(|| new.scopes.iter().copied().chain(added).collect()),
                expires_at: new
                    .expires_in_days
                    .map(|days| tx.now().plus(Duration::from_secs(u64::from(days) * 24 * 3600))),
            };
            let key = NewKey {
                organization,
                workspace: new.workspace,
                name: new.name,
                operator,
            };
            let (key, secret) = access::create_limited_key(tx, key, limits).await?;
            Ok((key, secret, tenant))
        })
        .await;
    let (key, secret, tenant) = match made {
        Err(towpath_store::Error::NotFound) => return Err(Usage("there is no such workspace".to_owned()).into()),
        made => made.context("making a key")?,
    };
    let mut made = entry(&key);
    made["key"] = secret.reveal().into();
    made["workspaces"] = json!([tenant]);
    Ok(made)
}

pub(super) async fn rotate(store: &Store, id: KeyId, overlap_hours: u32) -> anyhow::Result<Value> {
    let overlap = Duration::from_secs(u64::from(overlap_hours) * 3600);
    let rotated = store
        .write(async |tx| {
            let (key, secret) = access::rotate_key(tx, id, overlap).await?;
            let opened = access::principal(tx, id).await?;
            Ok((key, secret, opened.map_or_else(Vec::new, |opened| opened.workspaces)))
        })
        .await;
    let (key, secret, workspaces) = match rotated {
        Err(towpath_store::Error::NotFound) => return Err(anyhow!("there is no key {id}")),
        rotated => rotated.context("rotating the key")?,
    };
    let mut made = entry(&key);
    made["key"] = secret.reveal().into();
    made["workspaces"] = json!(workspaces);
    Ok(made)
}

/// Records the job; workers of the installation perform it.
pub(super) async fn reseal(store: &Store) -> anyhow::Result<Value> {
    let started = store.write(async |tx| reseal_secrets::start(tx).await).await;
    Ok(json!({ "job_id": started.context("starting the job")? }))
}

/// The organization of a new key and a workspace that it opens: the requested one, else the first one, else new ones.
async fn owner(tx: &mut Tx<'_>, wanted: Option<TenantId>) -> towpath_store::Result<(OrganizationId, TenantId)> {
    if let Some(tenant) = wanted {
        let workspace = access::workspace(tx, tenant)
            .await?
            .ok_or(towpath_store::Error::NotFound)?;
        return Ok((workspace.organization_id, tenant));
    }
    if let Some(first) = access::list_workspaces(tx, None).await?.into_iter().next() {
        return Ok((first.organization_id, first.id));
    }
    let organization = access::create_organization(tx, "default").await?;
    let workspace = access::create_workspace(tx, organization, "default").await?;
    Ok((organization, workspace.id))
}

pub(super) async fn list(store: &Store) -> anyhow::Result<Vec<Value>> {
    let keys = store
        .read(async |tx| access::list_keys(tx, None, None, i64::MAX).await)
        .await
        .context("listing keys")?;
    Ok(keys.iter().map(entry).collect())
}

/// Also revokes the last operator key: this command can create a new one.
pub(super) async fn revoke(store: &Store, id: KeyId) -> anyhow::Result<Value> {
    let revoked = store
        .write(async |tx| match access::key(tx, id).await? {
            Some(key) => access::revoke_key(tx, key.organization_id, id).await.map(Some),
            None => Ok(None),
        })
        .await
        .context("revoking the key")?;
    let key = revoked.ok_or_else(|| anyhow!("there is no key {id}"))?;
    Ok(entry(&key))
}

fn entry(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "organization_id": key.organization_id,
        "tenant_id": key.workspace_id,
        "operator": key.operator,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
        "scopes": key.allowed(),
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
    })
}
