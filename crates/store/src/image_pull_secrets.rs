//! Image-pull secrets: registry credentials that deployments name in their resource specification.

use towpath_domain::registry::{self, RegistryLogin};
use towpath_domain::{ImagePullSecretId, TenantId, Timestamp};

use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Error, Result, Tx};

/// Most of one workspace.
const MOST: i64 = 1000;

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ImagePullSecret {
    pub id: ImagePullSecretId,
    pub tenant_id: TenantId,
    /// What deployments name it by.
    pub name: String,
    /// JSON: the registries it has logins for.
    pub registries: String,
    /// Sealed; open it with [`ImagePullSecret::logins`].
    pub logins: Vec<u8>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl ImagePullSecret {
    /// The registries it has logins for.
    pub fn registries(&self) -> Result<Vec<String>> {
        serde_json::from_str(&self.registries).map_err(|_| Error::corrupt("image_pull_secret", "registries", self.id))
    }

    /// The logins, opened.
    pub fn logins(&self, sealer: &Sealer) -> Result<Vec<RegistryLogin>, OpenError> {
        let text = sealer.open(seal_context(self.tenant_id, self.id), &self.logins)?;
        let text = std::str::from_utf8(&text).map_err(|_| OpenError::Malformed)?;
        registry::parse_docker_config(text).map_err(|_| OpenError::Malformed)
    }
}

const fn seal_context(tenant: TenantId, id: ImagePullSecretId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "image_pull_secret",
        column: "logins",
        row: id.0,
    }
}

/// Creates or replaces the credentials under a name. Returns the row and whether it is new.
pub async fn put(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    name: &str,
    logins: &[RegistryLogin],
) -> Result<(ImagePullSecret, bool)> {
    let now = tx.now();
    let names: Vec<&str> = logins.iter().map(|login| login.registry.as_str()).collect();
    let registries = serde_json::to_string(&names).unwrap_or_default();
    let before: Option<(ImagePullSecretId,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT id FROM image_pull_secret WHERE tenant_id = $1 AND name = $2"
    )
    .bind(tenant)
    .bind(name)
    .fetch_optional(conn)
    .await)?;
    let id = before.map_or_else(ImagePullSecretId::new, |(id,)| id);
    let sealed = sealer.seal(seal_context(tenant, id), registry::docker_config(logins).as_bytes());
    let row = on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO image_pull_secret (id, tenant_id, name, registries, logins, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $6)
         ON CONFLICT (id) DO UPDATE SET registries = $4, logins = $5, updated_at = $6 RETURNING ",
        columns!(image_pull_secret)
    ))
    .bind(id)
    .bind(tenant)
    .bind(name)
    .bind(registries)
    .bind(sealed)
    .bind(now)
    .fetch_one(conn)
    .await)?;
    Ok((row, before.is_none()))
}

/// Those of a workspace, by name.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<ImagePullSecret>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(image_pull_secret),
        " FROM image_pull_secret WHERE tenant_id = $1 ORDER BY name LIMIT $2"
    ))
    .bind(tenant)
    .bind(MOST)
    .fetch_all(conn)
    .await)?)
}

/// Deletes one. Deployments that name it pull without it from then on.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM image_pull_secret WHERE tenant_id = $1 AND name = $2"
    )
    .bind(tenant)
    .bind(name)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(Error::NotFound) }
}
