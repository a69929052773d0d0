//! Making, rotating and revoking keys.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_domain::{KeyId, OrganizationId, Rejection, Scope, Secret, Timestamp};

use super::secret::{new_key_secret, prefix};
use super::{ApiKey, KeyHash, KeyLimits, NewKey, find, key_by_id, workspace};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Creates a key and returns its secret, which cannot be retrieved again.
pub async fn create_key(tx: &mut Tx<'_>, new: NewKey<'_>) -> Result<(ApiKey, Secret)> {
    create_limited_key(tx, new, KeyLimits::default()).await
}

/// As [`create_key`], with scopes and an end.
pub async fn create_limited_key(tx: &mut Tx<'_>, new: NewKey<'_>, limits: KeyLimits) -> Result<(ApiKey, Secret)> {
    if let Some(tenant) = new.workspace {
        let found = workspace(tx, tenant).await?.ok_or(Error::NotFound)?;
        if found.organization_id != new.organization {
            return Err(Error::NotFound);
        }
    }
    let secret = new_key_secret();
    let hash = KeyHash::of(secret.as_bytes());
    let key = insert_key(tx, new, limits, &secret, &hash).await?;
    let key = key.ok_or(Error::NotFound)?;
    Ok((key, Secret::new(secret)))
}

/// Gives a key a new secret, which is returned and cannot be retrieved again. The old one stays valid for `overlap`.
///
/// # Errors
/// `NotFound` if there is no such key, `Rejected` if it is revoked or expired, `Stale` if another rotation came in
/// between.
pub async fn rotate_key(tx: &mut Tx<'_>, id: KeyId, overlap: Duration) -> Result<(ApiKey, Secret)> {
    let now = tx.now();
    let found = key_by_id(tx, id).await?.ok_or(Error::NotFound)?;
    if !found.opens_at(now) {
        let text = "the key was revoked or has expired; create a new one";
        return Err(Rejection::rule("key_id", text).into());
    }
    let is_of_revision: bool = on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM revision_key WHERE key_id = $1)"
    )
    .bind(id)
    .fetch_one(conn)
    .await)?;
    if is_of_revision {
        // Its agent server continues with the secret it was started with.
        let text = "this is the key of a deployment's revision; redeploy to replace it";
        return Err(Rejection::rule("key_id", text).into());
    }
    let until = now.plus(overlap);
    let secret = new_key_secret();
    let hash = KeyHash::of(secret.as_bytes());
    let key: Option<ApiKey> = on!(tx, |conn| sqlx::query_as(
        "UPDATE api_key SET hash = $3, prefix = $4 WHERE id = $1 AND hash = $2 AND revoked_at IS NULL
         RETURNING id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at"
    )
    .bind(id)
    .bind(&found.hash[..])
    .bind(&hash.0[..])
    .bind(prefix(&secret))
    .fetch_optional(conn)
    .await)?;
    let key = key.ok_or(Error::Stale)?;
    // Secrets of earlier rotations have no longer than this one.
    on!(tx, |conn| sqlx::query(
        "UPDATE api_key_former_secret SET valid_until = $2 WHERE key_id = $1 AND valid_until > $2"
    )
    .bind(id)
    .bind(until)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "INSERT INTO api_key_former_secret (hash, key_id, valid_until) VALUES ($1, $2, $3)"
    )
    .bind(&found.hash[..])
    .bind(id)
    .bind(until)
    .execute(conn)
    .await
    .map(drop))?;
    Ok((key, Secret::new(secret)))
}

/// Keys of one statement that records their use.
const USES: usize = 1000;

/// Records when keys were used last. Locks the keys in the order of their ids.
pub async fn record_uses(tx: &mut Tx<'_>, uses: &BTreeMap<KeyId, Timestamp>) -> Result<()> {
    let uses: Vec<(&KeyId, &Timestamp)> = uses.iter().collect();
    for uses in uses.chunks(USES) {
        let mut query = Query::new(tx, "WITH used (id, used_at) AS (VALUES ");
        for (index, (key, used_at)) in uses.iter().enumerate() {
            query.push(if index == 0 { "(" } else { ", (" });
            query
                .bind(Arg::Uuid(key.0))
                .push(", ")
                .bind(Arg::Time(**used_at))
                .push(")");
        }
        query.push(sql!(tx,
            // SQLite has one writer.
            sqlite: ") UPDATE api_key SET last_used_at = used.used_at FROM used WHERE api_key.id = used.id
                       AND (last_used_at IS NULL OR last_used_at < used.used_at)",
            // Processes that record the same keys must not deadlock.
            postgres: "), locked AS (SELECT k.id, u.used_at FROM api_key k JOIN used u ON u.id = k.id
                                     ORDER BY k.id FOR NO KEY UPDATE OF k)
                       UPDATE api_key SET last_used_at = locked.used_at FROM locked WHERE api_key.id = locked.id
                       AND (last_used_at IS NULL OR last_used_at < locked.used_at)"));
        query.execute(tx).await?;
    }
    Ok(())
}

/// Takes the power of the key with this secret away, if there is one.
pub async fn revoke_secret(tx: &mut Tx<'_>, secret: &Secret) -> Result<()> {
    let hash = KeyHash::of(secret.reveal().as_bytes());
    if let Some(key) = find(tx, &hash).await? {
        revoke_key(tx, key.organization_id, key.id).await?;
    }
    Ok(())
}

/// Takes a key's power away. Revoking it again keeps the first time.
pub async fn revoke_key(tx: &mut Tx<'_>, organization: OrganizationId, key: KeyId) -> Result<ApiKey> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query_as(
        "UPDATE api_key SET revoked_at = COALESCE(revoked_at, $3) WHERE id = $1 AND organization_id = $2
         RETURNING id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at"
    )
    .bind(key)
    .bind(organization)
    .bind(now)
    .fetch_optional(conn)
    .await)?
    .ok_or(Error::NotFound)
}

/// `None` when there is no such organisation or the secret is a key already.
pub(super) async fn insert_key(
    tx: &mut Tx<'_>,
    new: NewKey<'_>,
    limits: KeyLimits,
    secret: &str,
    hash: &KeyHash,
) -> Result<Option<ApiKey>> {
    let now = tx.now();
    // The column is what processes of the version before go by.
    let operator = match &limits.scopes {
        Some(scopes) => scopes.allow(Scope::Operator),
        None => new.operator,
    };
    let scopes = limits.scopes.map(|scopes| scopes.to_string());
    let row = on!(tx, |conn| sqlx::query_as(
        "INSERT INTO api_key
             (id, organization_id, workspace_id, name, prefix, hash, created_at, operator, scopes, expires_at)
         SELECT $1, id, $3, $4, $5, $6, $7, $8, $9, $10 FROM organization WHERE id = $2
         ON CONFLICT (hash) DO NOTHING
         RETURNING id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at"
    )
    .bind(KeyId::new())
    .bind(new.organization)
    .bind(new.workspace)
    .bind(new.name)
    .bind(prefix(secret))
    .bind(&hash.0[..])
    .bind(now)
    .bind(operator)
    .bind(scopes)
    .bind(limits.expires_at)
    .fetch_optional(conn)
    .await)?;
    Ok(row)
}
