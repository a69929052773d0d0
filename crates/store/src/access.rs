//! Who may call: organisations, their workspaces, their API keys.
//!
//! A key's secret is 256 bits of randomness, handed out once. Only its SHA-256 is stored, so a stolen database opens
//! nothing; a plain hash is enough because the secret cannot be guessed. (The first key may come from the operator's
//! environment; it must have [`SHORTEST_SECRET`] characters.)

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use towpath_domain::{KeyId, OrganizationId, Rejection, Secret, TenantId, Timestamp};

use crate::{Error, Result, Tx};

/// The shortest text that is accepted as an operator's own key, in characters.
pub const SHORTEST_SECRET: usize = 32;

/// 9999-12-31, about the last moment that every database takes.
const LAST_MICROS: i64 = 253_402_214_400_000_000;

/// The SHA-256 of a key's secret: what is stored, looked up and cached in place of the secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a secret as a caller presents it.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// The hash itself.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

/// What a valid key opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The key itself, for logs and for revoking.
    pub key: KeyId,
    /// The organisation the key belongs to.
    pub organization: OrganizationId,
    /// The workspaces it opens, in the order of their ids: one where the key is bound to it, else all of the
    /// organisation.
    pub workspaces: Vec<TenantId>,
    /// Whether it opens the operators' routes, which show the jobs of every workspace of every organisation.
    pub operator: bool,
}

/// A workspace: the tenant that owns everything else.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Workspace {
    /// The tenant's id.
    pub id: TenantId,
    /// Its owner.
    pub organization_id: OrganizationId,
    /// What people call it.
    pub name: String,
    /// When it was made.
    pub created_at: Timestamp,
}

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ApiKey {
    /// The key's id.
    pub id: KeyId,
    /// Its owner.
    pub organization_id: OrganizationId,
    /// The one workspace it opens; `None` opens all of the organisation.
    pub workspace_id: Option<TenantId>,
    /// What people call it.
    pub name: String,
    /// The first characters of the secret, to tell keys apart.
    pub prefix: String,
    /// Whether it opens the operators' routes.
    pub operator: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it opens nothing.
    pub revoked_at: Option<Timestamp>,
}

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey<'a> {
    /// Its owner.
    pub organization: OrganizationId,
    /// The one workspace it shall open; `None` for all of the organisation.
    pub workspace: Option<TenantId>,
    /// What people call it.
    pub name: &'a str,
    /// Whether it shall open the operators' routes.
    pub operator: bool,
}

#[derive(sqlx::FromRow)]
struct Found {
    id: KeyId,
    organization_id: OrganizationId,
    workspace_id: Option<TenantId>,
    hash: Vec<u8>,
    operator: bool,
    revoked_at: Option<Timestamp>,
}

/// Makes sure that `secret` opens the workspace `tenant`: what the first start does with the operator's pair. Any
/// number of processes may call it at every start. The key belongs to an organisation, made with the workspace where
/// neither exists, and opens all of its workspaces.
///
/// # Errors
/// `Rejected` when the secret is shorter than [`SHORTEST_SECRET`], was revoked, or belongs to another organisation
/// than the workspace.
pub async fn ensure_first(tx: &mut Tx<'_>, secret: &Secret, tenant: TenantId) -> Result<Principal> {
    let secret = secret.reveal();
    if secret.chars().count() < SHORTEST_SECRET {
        let text = format!("the API key must have at least {SHORTEST_SECRET} characters");
        return Err(Rejection::invalid("TOWPATH_API_KEY", text).into());
    }
    let hash = KeyHash::of(secret.as_bytes());
    let now = tx.now();
    let owner = match (find(tx, &hash).await?, workspace(tx, tenant).await?) {
        (Some(key), _) => key.organization_id,
        (None, Some(workspace)) => workspace.organization_id,
        // The first organisation takes its id from the first workspace: processes that start together on an empty
        // database all come to the same rows, without a lock.
        (None, None) => OrganizationId(tenant.0),
    };
    on!(tx, |conn| sqlx::query(
        "INSERT INTO organization (id, name, created_at) VALUES ($1, 'default', $2) ON CONFLICT (id) DO NOTHING"
    )
    .bind(owner)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "INSERT INTO workspace (id, organization_id, name, created_at) VALUES ($1, $2, 'default', $3)
         ON CONFLICT (id) DO NOTHING"
    )
    .bind(tenant)
    .bind(owner)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    insert_key(
        tx,
        NewKey {
            organization: owner,
            workspace: None,
            name: "first",
            operator: true,
        },
        secret,
        &hash,
    )
    .await?;

    // Read back rather than assumed: whoever else was first may have decided otherwise.
    let principal = authenticate(tx, &hash)
        .await?
        .ok_or_else(|| Rejection::rule("TOWPATH_API_KEY", "this API key was revoked; give another one"))?;
    if !principal.workspaces.contains(&tenant) {
        let text = "this workspace belongs to another organization than the API key";
        return Err(Rejection::rule("TOWPATH_TENANT_ID", text).into());
    }
    Ok(principal)
}

/// Makes sure that a workspace is there, in an organisation of its own where it is not. Any number of processes may
/// call it at every start.
///
/// # Errors
/// Only the database's.
pub async fn ensure_workspace(tx: &mut Tx<'_>, tenant: TenantId) -> Result<()> {
    if workspace(tx, tenant).await?.is_some() {
        return Ok(());
    }
    let now = tx.now();
    // As in `ensure_first`: ids made from the workspace's, so that all come to the same rows.
    on!(tx, |conn| sqlx::query(
        "INSERT INTO organization (id, name, created_at) VALUES ($1, 'default', $2) ON CONFLICT (id) DO NOTHING"
    )
    .bind(OrganizationId(tenant.0))
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "INSERT INTO workspace (id, organization_id, name, created_at) VALUES ($1, $2, 'default', $3)
         ON CONFLICT (id) DO NOTHING"
    )
    .bind(tenant)
    .bind(OrganizationId(tenant.0))
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Makes an organisation.
///
/// # Errors
/// Only the database's.
pub async fn create_organization(tx: &mut Tx<'_>, name: &str) -> Result<OrganizationId> {
    let id = OrganizationId::new();
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO organization (id, name, created_at) VALUES ($1, $2, $3)"
    )
    .bind(id)
    .bind(name)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(id)
}

/// Makes a workspace of an organisation.
///
/// # Errors
/// `NotFound` when there is no such organisation.
pub async fn create_workspace(tx: &mut Tx<'_>, organization: OrganizationId, name: &str) -> Result<Workspace> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query_as(
        "INSERT INTO workspace (id, organization_id, name, created_at)
         SELECT $1, id, $3, $4 FROM organization WHERE id = $2
         RETURNING id, organization_id, name, created_at"
    )
    .bind(TenantId::new())
    .bind(organization)
    .bind(name)
    .bind(now)
    .fetch_optional(conn)
    .await)?
    .ok_or(Error::NotFound)
}

/// All workspaces, oldest first; those of one organisation where it is given.
///
/// # Errors
/// Only the database's.
pub async fn list_workspaces(tx: &mut Tx<'_>, organization: Option<OrganizationId>) -> Result<Vec<Workspace>> {
    let rows = match organization {
        Some(organization) => on!(tx, |conn| sqlx::query_as(
            "SELECT id, organization_id, name, created_at FROM workspace
             WHERE organization_id = $1 ORDER BY created_at, id"
        )
        .bind(organization)
        .fetch_all(conn)
        .await)?,
        None => on!(tx, |conn| sqlx::query_as(
            "SELECT id, organization_id, name, created_at FROM workspace ORDER BY created_at, id"
        )
        .fetch_all(conn)
        .await)?,
    };
    Ok(rows)
}

/// One workspace.
///
/// # Errors
/// Only the database's.
pub async fn workspace(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<Workspace>> {
    let row = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, name, created_at FROM workspace WHERE id = $1"
    )
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(row)
}

/// Makes a key and returns its secret, which cannot be had again.
///
/// # Errors
/// `NotFound` when the workspace is not the organisation's, or there is no such organisation.
pub async fn create_key(tx: &mut Tx<'_>, new: NewKey<'_>) -> Result<(ApiKey, Secret)> {
    if let Some(tenant) = new.workspace {
        let found = workspace(tx, tenant).await?.ok_or(Error::NotFound)?;
        if found.organization_id != new.organization {
            return Err(Error::NotFound);
        }
    }
    let secret = new_secret();
    let hash = KeyHash::of(secret.as_bytes());
    let key = insert_key(tx, new, &secret, &hash).await?.ok_or(Error::NotFound)?;
    Ok((key, Secret::new(secret)))
}

/// Makes sure that `secret`, one of [`new_secret`], is a key as `new` says. Any number of calls make one.
///
/// # Errors
/// Only the database's.
pub async fn ensure_key(tx: &mut Tx<'_>, new: NewKey<'_>, secret: &Secret) -> Result<()> {
    let secret = secret.reveal();
    insert_key(tx, new, secret, &KeyHash::of(secret.as_bytes()))
        .await
        .map(drop)
}

/// Takes the power of the key with this secret away, where there is one.
///
/// # Errors
/// Only the database's.
pub async fn revoke_secret(tx: &mut Tx<'_>, secret: &Secret) -> Result<()> {
    let hash = KeyHash::of(secret.reveal().as_bytes());
    if let Some(key) = find(tx, &hash).await? {
        revoke_key(tx, key.organization_id, key.id).await?;
    }
    Ok(())
}

/// Keys, newest first, revoked ones too: of one organisation where it is given, and only what follows `after` in that
/// order; at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn list_keys(
    tx: &mut Tx<'_>,
    organization: Option<OrganizationId>,
    after: Option<(Timestamp, KeyId)>,
    limit: i64,
) -> Result<Vec<ApiKey>> {
    // Ids of a later time than any: the list begins before them.
    let (moment, id) = after.unwrap_or((Timestamp::from_micros(LAST_MICROS), KeyId(uuid::Uuid::max())));
    let rows = match organization {
        Some(organization) => on!(tx, |conn| sqlx::query_as(
            "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at FROM api_key
             WHERE organization_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4"
        )
        .bind(organization)
        .bind(moment)
        .bind(id)
        .bind(limit)
        .fetch_all(conn)
        .await)?,
        None => on!(tx, |conn| sqlx::query_as(
            "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at FROM api_key
             WHERE (created_at, id) < ($1, $2) ORDER BY created_at DESC, id DESC LIMIT $3"
        )
        .bind(moment)
        .bind(id)
        .bind(limit)
        .fetch_all(conn)
        .await)?,
    };
    Ok(rows)
}

/// One key, revoked or not.
///
/// # Errors
/// Only the database's.
pub async fn key(tx: &mut Tx<'_>, id: KeyId) -> Result<Option<ApiKey>> {
    let row = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at FROM api_key
         WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(row)
}

/// Whether any key that opens something exists.
///
/// # Errors
/// Only the database's.
pub async fn has_keys(tx: &mut Tx<'_>) -> Result<bool> {
    let found: Option<(KeyId,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT id FROM api_key WHERE revoked_at IS NULL LIMIT 1"
    )
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// Whether an operator's key exists that is not revoked.
///
/// # Errors
/// Only the database's.
pub async fn has_operator(tx: &mut Tx<'_>) -> Result<bool> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM api_key WHERE operator AND revoked_at IS NULL)"
    )
    .fetch_one(conn)
    .await)?)
}

/// Takes a key's power away. Revoking it again keeps the first time.
///
/// # Errors
/// `NotFound` when the organisation has no such key.
pub async fn revoke_key(tx: &mut Tx<'_>, organization: OrganizationId, key: KeyId) -> Result<ApiKey> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query_as(
        "UPDATE api_key SET revoked_at = COALESCE(revoked_at, $3) WHERE id = $1 AND organization_id = $2
         RETURNING id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at"
    )
    .bind(key)
    .bind(organization)
    .bind(now)
    .fetch_optional(conn)
    .await)?
    .ok_or(Error::NotFound)
}

/// What the key with this hash opens; `None` for an unknown or a revoked one, which must look the same.
///
/// # Errors
/// Only the database's.
pub async fn authenticate(tx: &mut Tx<'_>, hash: &KeyHash) -> Result<Option<Principal>> {
    match find(tx, hash).await?.filter(|key| key.revoked_at.is_none()) {
        Some(found) => opened(tx, found).await.map(Some),
        None => Ok(None),
    }
}

/// What the key with this id opens; `None` for an unknown or a revoked one. For those who have seen its secret before.
///
/// # Errors
/// Only the database's.
pub async fn principal(tx: &mut Tx<'_>, key: KeyId) -> Result<Option<Principal>> {
    let found: Option<Found> = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, workspace_id, hash, operator, revoked_at FROM api_key WHERE id = $1"
    )
    .bind(key)
    .fetch_optional(conn)
    .await)?;
    match found.filter(|key| key.revoked_at.is_none()) {
        Some(found) => opened(tx, found).await.map(Some),
        None => Ok(None),
    }
}

async fn opened(tx: &mut Tx<'_>, found: Found) -> Result<Principal> {
    let workspaces = match found.workspace_id {
        Some(tenant) => vec![tenant],
        None => {
            let rows: Vec<(TenantId,)> = on!(tx, |conn| sqlx::query_as(
                "SELECT id FROM workspace WHERE organization_id = $1 ORDER BY id"
            )
            .bind(found.organization_id)
            .fetch_all(conn)
            .await)?;
            rows.into_iter().map(|(id,)| id).collect()
        }
    };
    Ok(Principal {
        key: found.id,
        organization: found.organization_id,
        workspaces,
        operator: found.operator,
    })
}

/// The index walks over hashes, not secrets: what its timing tells is of no use to somebody who would need a secret
/// with a chosen SHA-256. The comparison that decides is constant-time all the same.
async fn find(tx: &mut Tx<'_>, hash: &KeyHash) -> Result<Option<Found>> {
    let found: Option<Found> = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, workspace_id, hash, operator, revoked_at FROM api_key WHERE hash = $1"
    )
    .bind(&hash.0[..])
    .fetch_optional(conn)
    .await)?;
    Ok(found.filter(|key| bool::from(key.hash.as_slice().ct_eq(&hash.0))))
}

/// `None` when there is no such organisation or the secret is a key already.
async fn insert_key(tx: &mut Tx<'_>, new: NewKey<'_>, secret: &str, hash: &KeyHash) -> Result<Option<ApiKey>> {
    let now = tx.now();
    let row = on!(tx, |conn| sqlx::query_as(
        "INSERT INTO api_key (id, organization_id, workspace_id, name, prefix, hash, created_at, operator)
         SELECT $1, id, $3, $4, $5, $6, $7, $8 FROM organization WHERE id = $2
         ON CONFLICT (hash) DO NOTHING
         RETURNING id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at"
    )
    .bind(KeyId::new())
    .bind(new.organization)
    .bind(new.workspace)
    .bind(new.name)
    .bind(prefix(secret))
    .bind(&hash.0[..])
    .bind(now)
    .bind(new.operator)
    .fetch_optional(conn)
    .await)?;
    Ok(row)
}

/// A random secret, as [`create_key`] hands them out.
#[must_use]
#[expect(clippy::missing_panics_doc, reason = "the expectation cannot fail")]
pub fn new_secret() -> String {
    let mut bytes = [0; 32];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .expect("the system's random source is there on every supported system");
    format!("tp_{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// Enough to tell keys apart, far too little to guess the rest. An operator's own text may be less random than ours,
/// so less of it is shown.
fn prefix(secret: &str) -> String {
    let shown = if secret.starts_with("tp_") { 9 } else { 4 };
    secret.chars().take(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_differ() {
        let (one, two) = (new_secret(), new_secret());
        assert_ne!(one, two);
        assert!(one.starts_with("tp_") && one.len() == 46, "{one}");
        assert_eq!(prefix(&one).len(), 9);
        assert_eq!(prefix("an operator's own key of some length"), "an o");
    }
}
