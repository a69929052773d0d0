//! Access: organisations, their workspaces, and their API keys.
//!
//! A key's secret has 256 random bits and is shown once. Only its SHA-256 is stored, so a stolen database grants no
//! access; a plain hash is enough because the secret cannot be guessed. (The first key may come from the operator's
//! environment; it must have at least [`SHORTEST_SECRET`] characters.)

mod change;
mod secret;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use towpath_domain::{KeyId, OrganizationId, Rejection, Scopes, Secret, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

pub use change::{create_key, create_limited_key, record_uses, revoke_key, revoke_secret, rotate_key};
pub use secret::{KEY_PREFIX, is_damaged, new_key_secret, new_secret};

use change::insert_key;

/// The shortest text that is accepted as an operator's own key, in characters.
pub const SHORTEST_SECRET: usize = 32;

/// 9999-12-31, about the last moment that every database takes.
const LAST_MICROS: i64 = 253_402_214_400_000_000;

/// The SHA-256 of a key's secret: what is stored, looked up and cached instead of the secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a secret as a caller presents it.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

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
    /// The workspaces it grants access to, ordered by id: one if the key is bound to it, else all of the organisation.
    pub workspaces: Vec<TenantId>,
    pub scopes: Scopes,
    /// Whether it is bound to one workspace.
    pub is_bound: bool,
    /// Whether it was made with scopes. One without may do what keys could do before there were any.
    pub is_limited: bool,
    /// Since when the secret that was shown opens nothing.
    pub expires_at: Option<Timestamp>,
}

/// A workspace: the tenant that owns everything else.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Workspace {
    pub id: TenantId,
    pub organization_id: OrganizationId,
    pub name: String,
    pub created_at: Timestamp,
}

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ApiKey {
    pub id: KeyId,
    pub organization_id: OrganizationId,
    /// The one workspace it opens; `None` opens all of the organisation.
    pub workspace_id: Option<TenantId>,
    pub name: String,
    /// The first characters of the secret, to tell keys apart.
    pub prefix: String,
    /// Whether it opens the operators' routes.
    pub operator: bool,
    pub created_at: Timestamp,
    /// Since when it opens nothing.
    pub revoked_at: Option<Timestamp>,
    /// What it may do, as it is stored; `None` for keys made without scopes.
    pub scopes: Option<String>,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// When it was used last, about a minute late.
    pub last_used_at: Option<Timestamp>,
}

impl ApiKey {
    #[must_use]
    pub fn allowed(&self) -> Scopes {
        allowed(self.scopes.as_deref(), self.operator)
    }
}

/// What limits a key beside its workspace.
#[derive(Clone, Debug, Default)]
pub struct KeyLimits {
    /// `None` means every scope; those of operators only if [`NewKey::operator`] is set.
    pub scopes: Option<Scopes>,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct NewKey<'a> {
    /// Its owner.
    pub organization: OrganizationId,
    /// The one workspace it shall open; `None` for all of the organisation.
    pub workspace: Option<TenantId>,
    pub name: &'a str,
    /// Whether it shall open the operators' routes.
    pub operator: bool,
}

#[derive(sqlx::FromRow)]
struct KeyRow {
    id: KeyId,
    organization_id: OrganizationId,
    workspace_id: Option<TenantId>,
    hash: Vec<u8>,
    operator: bool,
    revoked_at: Option<Timestamp>,
    scopes: Option<String>,
    expires_at: Option<Timestamp>,
}

impl KeyRow {
    fn opens_at(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

/// A secret that a rotation replaced.
#[derive(sqlx::FromRow)]
struct ReplacedSecret {
    key_id: KeyId,
    hash: Vec<u8>,
    valid_until: Timestamp,
}

/// Ensures that `secret` grants access to the workspace `tenant`, for the operator's key at the first start. Any number
/// of processes may call it at every start. The key belongs to an organisation, created with the workspace if neither
/// exists, and grants access to all of its workspaces.
///
/// # Errors
/// `Rejected` if the secret is shorter than [`SHORTEST_SECRET`], was revoked, or belongs to another organisation than
/// the workspace.
pub async fn ensure_first(tx: &mut Tx<'_>, secret: &Secret, tenant: TenantId) -> Result<Principal> {
    let secret = secret.reveal();
    if secret.chars().count() < SHORTEST_SECRET {
        let text = format!("must have at least {SHORTEST_SECRET} characters");
        return Err(Rejection::invalid("TOWPATH_API_KEY", text).into());
    }
    let hash = KeyHash::of(secret.as_bytes());
    let now = tx.now();
    let known = find(tx, &hash).await?;
    // A secret that was replaced is no new key.
    let is_known = known.is_some();
    let owner = match (known, workspace(tx, tenant).await?) {
        (Some(key), _) => key.organization_id,
        (None, Some(workspace)) => workspace.organization_id,
        // The first organisation takes its id from the first workspace: processes that start together on an empty
        // database create the same rows without a lock.
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
    if !is_known {
        let new = NewKey {
            organization: owner,
            workspace: None,
            name: "first",
            operator: true,
        };
        insert_key(tx, new, KeyLimits::default(), secret, &hash).await?;
    }

    // Read back rather than assumed: another process may have decided otherwise.
    let principal = authenticate(tx, &hash).await?.ok_or_else(|| {
        let text = "the key was revoked or replaced, or has expired; use another key";
        Rejection::rule("TOWPATH_API_KEY", text)
    })?;
    if !principal.workspaces.contains(&tenant) {
        let text = "the workspace and the API key belong to different organizations";
        return Err(Rejection::rule("TOWPATH_TENANT_ID", text).into());
    }
    Ok(principal)
}

/// Ensures that a workspace exists; a new one gets its own organisation. Any number of processes may call it at every
/// start.
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

/// Creates an organisation.
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

/// Creates a workspace of an organisation.
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

pub async fn workspace(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<Workspace>> {
    let row = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, name, created_at FROM workspace WHERE id = $1"
    )
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(row)
}

/// Keys, newest first, including revoked ones: optionally of one organisation, and only after `after` in that order; at
/// most `limit`.
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
            "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at FROM api_key
             WHERE organization_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4"
        )
        .bind(organization)
        .bind(moment)
        .bind(id)
        .bind(limit)
        .fetch_all(conn)
        .await)?,
        None => on!(tx, |conn| sqlx::query_as(
            "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at FROM api_key
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

/// As [`list_keys`], of keys that are bound to one of these workspaces.
pub async fn list_keys_of_workspaces(
    tx: &mut Tx<'_>,
    workspaces: &[TenantId],
    after: Option<(Timestamp, KeyId)>,
    limit: i64,
) -> Result<Vec<ApiKey>> {
    let (moment, id) = after.unwrap_or((Timestamp::from_micros(LAST_MICROS), KeyId(uuid::Uuid::max())));
    let mut query = Query::new(
        tx,
        "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at FROM api_key WHERE workspace_id",
    );
    query
        .among(workspaces.iter().map(|tenant| tenant.0))
        .push(" AND (created_at, id) < (")
        .bind(Arg::Time(moment))
        .push(", ")
        .bind(Arg::Uuid(id.0))
        .push(") ORDER BY created_at DESC, id DESC")
        .limit(limit);
    query.fetch_all(tx).await
}

/// One key, revoked or not.
pub async fn key(tx: &mut Tx<'_>, id: KeyId) -> Result<Option<ApiKey>> {
    let row = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, workspace_id, name, prefix, operator, created_at, revoked_at,
                scopes, expires_at, last_used_at FROM api_key
         WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(row)
}

/// Whether any key that opens something exists.
pub async fn has_keys(tx: &mut Tx<'_>) -> Result<bool> {
    let now = tx.now();
    let found: Option<(KeyId,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT id FROM api_key WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1) LIMIT 1"
    )
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// Whether an operator's key exists that is neither revoked nor expired.
pub async fn has_operator(tx: &mut Tx<'_>) -> Result<bool> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM api_key
                        WHERE operator AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1))"
    )
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Resolves the hash of a key; `None` for an unknown or revoked one, which must be indistinguishable.
pub async fn authenticate(tx: &mut Tx<'_>, hash: &KeyHash) -> Result<Option<Principal>> {
    let now = tx.now();
    match find(tx, hash).await?.filter(|key| key.opens_at(now)) {
        Some(found) => opened(tx, found).await.map(Some),
        None => Ok(None),
    }
}

/// Resolves the id of a key; `None` for an unknown or revoked one. For callers that have verified its secret before.
pub async fn principal(tx: &mut Tx<'_>, key: KeyId) -> Result<Option<Principal>> {
    let now = tx.now();
    match key_by_id(tx, key).await?.filter(|key| key.opens_at(now)) {
        Some(found) => opened(tx, found).await.map(Some),
        None => Ok(None),
    }
}

async fn opened(tx: &mut Tx<'_>, found: KeyRow) -> Result<Principal> {
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
        scopes: allowed(found.scopes.as_deref(), found.operator),
        is_bound: found.workspace_id.is_some(),
        is_limited: found.scopes.is_some(),
        expires_at: found.expires_at,
    })
}

fn allowed(scopes: Option<&str>, operator: bool) -> Scopes {
    match (scopes, operator) {
        (Some(text), _) => Scopes::parse(text),
        (None, true) => Scopes::all(),
        (None, false) => Scopes::of_workspaces(),
    }
}

async fn key_by_id(tx: &mut Tx<'_>, id: KeyId) -> Result<Option<KeyRow>> {
    let found = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, workspace_id, hash, operator, revoked_at, scopes, expires_at FROM api_key
         WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(found)
}

/// The index compares hashes, not secrets: its timing does not help a caller, who would need a secret with a chosen
/// SHA-256. The final comparison is constant-time all the same.
async fn find(tx: &mut Tx<'_>, hash: &KeyHash) -> Result<Option<KeyRow>> {
    let found: Option<KeyRow> = on!(tx, |conn| sqlx::query_as(
        "SELECT id, organization_id, workspace_id, hash, operator, revoked_at, scopes, expires_at FROM api_key
         WHERE hash = $1"
    )
    .bind(&hash.0[..])
    .fetch_optional(conn)
    .await)?;
    match found.filter(|key| bool::from(key.hash.as_slice().ct_eq(&hash.0))) {
        Some(found) => Ok(Some(found)),
        None => find_replaced(tx, hash).await,
    }
}

/// The key to which this secret belonged before a rotation. It expires with the overlap or with the key, whichever is
/// first.
async fn find_replaced(tx: &mut Tx<'_>, hash: &KeyHash) -> Result<Option<KeyRow>> {
    let former: Option<ReplacedSecret> = on!(tx, |conn| sqlx::query_as(
        "SELECT key_id, hash, valid_until FROM api_key_former_secret WHERE hash = $1"
    )
    .bind(&hash.0[..])
    .fetch_optional(conn)
    .await)?;
    let Some(former) = former.filter(|former| bool::from(former.hash.as_slice().ct_eq(&hash.0))) else {
        return Ok(None);
    };
    let found = key_by_id(tx, former.key_id).await?;
    Ok(found.map(|mut found| {
        let ends_at = found
            .expires_at
            .map_or(former.valid_until, |at| at.min(former.valid_until));
        found.expires_at = Some(ends_at);
        found
    }))
}
