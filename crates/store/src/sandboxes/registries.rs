//! Registries that images of boxes come from, with sealed credentials.

use serde::{Deserialize, Serialize};
use towpath_domain::{BoxRegistryId, Secret, TenantId, Timestamp};
use uuid::Uuid;

use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Error, Result, Tx};

/// Registries of one workspace.
const MAX_REGISTRIES: i64 = 1000;

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Registry {
    pub id: BoxRegistryId,
    pub tenant_id: TenantId,
    pub name: String,
    /// Its address.
    pub url: String,
    /// How it is opened.
    pub auth_type: String,
    /// Sealed; open it with [`Registry::credentials`].
    pub credentials: Vec<u8>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Credentials of a registry. Sealed before they are stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    /// User.
    #[serde(default)]
    pub username: Option<String>,
    #[serde(default)]
    pub password: Option<Secret>,
    #[serde(default)]
    pub aws_role_arn: Option<String>,
}

impl Registry {
    pub fn credentials(&self, sealer: &Sealer) -> Result<Credentials, OpenError> {
        let text = sealer.open(seal_context(self.tenant_id, self.id), &self.credentials)?;
        serde_json::from_slice(&text).map_err(|_| OpenError::Malformed)
    }
}

const fn seal_context(tenant: TenantId, id: BoxRegistryId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "sandbox_registry",
        column: "credentials",
        row: id.0,
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RegistryFields<'a> {
    pub name: &'a str,
    /// Its address.
    pub url: &'a str,
    /// How it is opened.
    pub auth_type: &'a str,
    pub credentials: &'a Credentials,
}

fn seal(sealer: &Sealer, tenant: TenantId, id: BoxRegistryId, credentials: &Credentials) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(credentials).map_err(|_| Error::corrupt("sandbox_registry", "credentials", id))?;
    Ok(sealer.seal(seal_context(tenant, id), &text))
}

/// Records a registry.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, sealer: &Sealer, new: RegistryFields<'_>) -> Result<Registry> {
    let (id, now) = (BoxRegistryId::new(), tx.now());
    let credentials = seal(sealer, tenant, id, new.credentials)?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO sandbox_registry (id, tenant_id, name, url, auth_type, credentials, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $7) RETURNING ",
        columns!(sandbox_registry)
    ))
    .bind(id)
    .bind(tenant)
    .bind(new.name)
    .bind(new.url)
    .bind(new.auth_type)
    .bind(credentials)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// The registry of this name or id.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &str) -> Result<Registry> {
    if reference.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let id = reference.parse::<Uuid>().ok();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_registry),
        " FROM sandbox_registry WHERE tenant_id = $1 AND (name = $2 OR id = $3)"
    ))
    .bind(tenant)
    .bind(reference)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// How many registries a workspace has.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM sandbox_registry WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// Registries by name.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Registry>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_registry),
        " FROM sandbox_registry WHERE tenant_id = $1 ORDER BY name LIMIT $2"
    ))
    .bind(tenant)
    .bind(MAX_REGISTRIES)
    .fetch_all(conn)
    .await)?)
}

/// Changes a registry.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    id: BoxRegistryId,
    change: RegistryFields<'_>,
) -> Result<Registry> {
    let now = tx.now();
    let credentials = seal(sealer, tenant, id, change.credentials)?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_registry SET name = $3, url = $4, auth_type = $5, credentials = $6, updated_at = $7
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(sandbox_registry)
    ))
    .bind(tenant)
    .bind(id)
    .bind(change.name)
    .bind(change.url)
    .bind(change.auth_type)
    .bind(credentials)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a registry.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: BoxRegistryId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_registry WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
