//! Integrations: access to git repositories, with a token and the secret of their webhooks.

use towpath_domain::{IntegrationId, Secret, TenantId, Timestamp};

use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Integration {
    pub id: IntegrationId,
    pub tenant_id: TenantId,
    pub name: String,
    /// The address of the host's API.
    pub api_url: String,
    /// Sealed; open it with [`Integration::token`].
    pub token: Option<Vec<u8>>,
    /// Sealed; open it with [`Integration::webhook_secret`].
    pub webhook_secret: Vec<u8>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Integration {
    /// The token, opened; `None` where only public repositories are read.
    pub fn token(&self, sealer: &Sealer) -> Result<Option<Secret>, OpenError> {
        let Some(sealed) = &self.token else { return Ok(None) };
        open(sealer, self.tenant_id, self.id, "token", sealed).map(Some)
    }

    /// What its webhooks are signed with, opened.
    pub fn webhook_secret(&self, sealer: &Sealer) -> Result<Secret, OpenError> {
        open(sealer, self.tenant_id, self.id, "webhook_secret", &self.webhook_secret)
    }
}

fn open(
    sealer: &Sealer,
    tenant: TenantId,
    id: IntegrationId,
    column: &'static str,
    sealed: &[u8],
) -> Result<Secret, OpenError> {
    let text = sealer.open(seal_context(tenant, id, column), sealed)?;
    let text = std::str::from_utf8(&text).map_err(|_| OpenError::Malformed)?;
    Ok(Secret::new(text))
}

const fn seal_context(tenant: TenantId, id: IntegrationId, column: &'static str) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "integration",
        column,
        row: id.0,
    }
}

/// The fields of an new integration.
#[derive(Clone, Debug)]
pub struct NewIntegration<'a> {
    /// Id; the secrets are sealed for it.
    pub id: IntegrationId,
    pub name: &'a str,
    /// The address of the host's API.
    pub api_url: &'a str,
    /// Reads repositories.
    pub token: Option<&'a Secret>,
    /// Signs webhooks.
    pub webhook_secret: &'a Secret,
}

/// Records an integration with a host that speaks as GitHub does.
pub async fn insert(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    new: &NewIntegration<'_>,
) -> Result<Integration> {
    let now = tx.now();
    let seal = |column, secret: &Secret| sealer.seal(seal_context(tenant, new.id, column), secret.reveal().as_bytes());
    let token = new.token.map(|token| seal("token", token));
    let webhook_secret = seal("webhook_secret", new.webhook_secret);
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO integration (id, tenant_id, kind, name, api_url, token, webhook_secret, created_at, updated_at)
         VALUES ($1, $2, 'github', $3, $4, $5, $6, $7, $7) RETURNING ",
        columns!(integration)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.name)
    .bind(new.api_url)
    .bind(token)
    .bind(webhook_secret)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: IntegrationId) -> Result<Integration> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(integration),
        " FROM integration WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The integration of a webhook call: only its id identifies it, and the signature is checked next.
pub async fn called(tx: &mut Tx<'_>, id: IntegrationId) -> Result<Integration> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(integration),
        " FROM integration WHERE id = $1"
    ))
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Integrations, newest first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Integration>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(integration),
        " FROM integration WHERE tenant_id = $1 ORDER BY created_at DESC, id DESC LIMIT 1000"
    ))
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// Deletes an integration. Deployments that name it continue without a token.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: IntegrationId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM integration WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(crate::Error::NotFound) }
}
