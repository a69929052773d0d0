//! Keys of deployments. Each revision has its own, stored sealed, because its agent server is restarted with it.

use towpath_domain::{DeploymentId, KeyId, OrganizationId, RevisionId, Scopes, Secret, TenantId};

use crate::access::{self, KeyLimits, NewKey};
use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Error, Result, Tx};

/// A revision's key as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct RevisionKey {
    pub id: RevisionId,
    pub tenant_id: TenantId,
    pub deployment_id: DeploymentId,
    pub key_id: KeyId,
    /// Sealed; open it with [`RevisionKey::secret`].
    pub secret: Vec<u8>,
}

impl RevisionKey {
    /// Its secret, opened.
    pub fn secret(&self, sealer: &Sealer) -> Result<Secret, OpenError> {
        let text = sealer.open(seal_context(self.tenant_id, self.id), &self.secret)?;
        let text = std::str::from_utf8(&text).map_err(|_| OpenError::Malformed)?;
        Ok(Secret::new(text))
    }
}

const fn seal_context(tenant: TenantId, revision: RevisionId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "revision_key",
        column: "secret",
        row: revision.0,
    }
}

/// The key that a revision is to have.
#[derive(Clone, Debug)]
pub struct NewRevisionKey<'a> {
    pub revision: RevisionId,
    pub deployment: DeploymentId,
    /// The owner of its workspace.
    pub organization: OrganizationId,
    pub name: &'a str,
    /// What it may do in the workspace.
    pub scopes: Scopes,
}

/// Ensures that a revision has a key. One that it has stays as it is.
pub async fn ensure(tx: &mut Tx<'_>, tenant: TenantId, sealer: &Sealer, new: &NewRevisionKey<'_>) -> Result<()> {
    if get(tx, tenant, new.revision).await?.is_some() {
        return Ok(());
    }
    let made = NewKey {
        organization: new.organization,
        workspace: Some(tenant),
        name: new.name,
        operator: false,
    };
    let limits = KeyLimits {
        scopes: Some(new.scopes.clone()),
        expires_at: None,
    };
    let (key, secret) = access::create_limited_key(tx, made, limits).await?;
    let sealed = sealer.seal(seal_context(tenant, new.revision), secret.reveal().as_bytes());
    on!(tx, |conn| sqlx::query(
        "INSERT INTO revision_key (id, tenant_id, deployment_id, key_id, secret) VALUES ($1, $2, $3, $4, $5)"
    )
    .bind(new.revision)
    .bind(tenant)
    .bind(new.deployment)
    .bind(key.id)
    .bind(sealed)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The key of a revision; `None` where it has none, or none any more.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, revision: RevisionId) -> Result<Option<RevisionKey>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, deployment_id, key_id, secret FROM revision_key WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(revision)
    .fetch_optional(conn)
    .await)?)
}

/// Revokes the key of a revision, where it has one.
pub async fn revoke(tx: &mut Tx<'_>, tenant: TenantId, revision: RevisionId) -> Result<()> {
    if let Some(key) = get(tx, tenant, revision).await? {
        take(tx, &key).await?;
    }
    Ok(())
}

/// Revokes the keys of a deployment's revisions, but the one of `kept`.
pub async fn revoke_all(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    kept: Option<RevisionId>,
) -> Result<()> {
    // In key order, like the recording of key uses, to avoid deadlocks.
    let keys: Vec<RevisionKey> = on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, deployment_id, key_id, secret FROM revision_key
         WHERE tenant_id = $1 AND deployment_id = $2 ORDER BY key_id"
    )
    .bind(tenant)
    .bind(deployment)
    .fetch_all(conn)
    .await)?;
    for key in keys.iter().filter(|key| Some(key.id) != kept) {
        take(tx, key).await?;
    }
    Ok(())
}

async fn take(tx: &mut Tx<'_>, key: &RevisionKey) -> Result<()> {
    match access::key(tx, key.key_id).await? {
        Some(found) => access::revoke_key(tx, found.organization_id, found.id)
            .await
            .map(drop)?,
        None => return Err(Error::corrupt("revision_key", "key_id", key.id)),
    }
    on!(tx, |conn| sqlx::query("DELETE FROM revision_key WHERE id = $1")
        .bind(key.id)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}
