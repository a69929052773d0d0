//! What boxes may call, with sealed secrets, and their traffic.

use towpath_domain::sandbox::{ProxyConfig, ProxySecrets};
use towpath_domain::{BoxId, TenantId};

use super::{from_json, to_json};
use crate::query::{Arg, Query};
use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct BoxNetwork {
    pub id: BoxId,
    pub tenant_id: TenantId,
    /// JSON; see [`BoxNetwork::config`].
    pub config: String,
    /// Sealed; open it with [`BoxNetwork::secrets`].
    pub secrets: Option<Vec<u8>>,
    /// Each change raises it.
    pub version: i64,
    pub sent_bytes: i64,
    pub received_bytes: i64,
}

impl BoxNetwork {
    pub fn config(&self) -> Result<ProxyConfig> {
        from_json(&self.config, "sandbox_network", "config", &self.id)
    }

    pub fn secrets(&self, sealer: &Sealer) -> Result<ProxySecrets, OpenError> {
        let Some(sealed) = &self.secrets else {
            return Ok(ProxySecrets::default());
        };
        let text = sealer.open(seal_context(self.tenant_id, self.id), sealed)?;
        serde_json::from_slice(&text).map_err(|_| OpenError::Malformed)
    }
}

const fn seal_context(tenant: TenantId, id: BoxId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "sandbox_network",
        column: "secrets",
        row: id.0,
    }
}

/// The network of a box, if it was ever configured or used.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> Result<Option<BoxNetwork>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_network),
        " FROM sandbox_network WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

/// The networks of these boxes.
pub async fn of_boxes(tx: &mut Tx<'_>, boxes: &[BoxId]) -> Result<Vec<BoxNetwork>> {
    if boxes.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(sandbox_network), " FROM sandbox_network WHERE "),
    );
    query.any_of("id", boxes.iter().map(|id| Arg::Uuid(id.0)));
    query.fetch_all(tx).await
}

/// Sets what a box may call. The caller has locked or just inserted the box.
pub async fn save(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    id: BoxId,
    config: &ProxyConfig,
    secrets: &ProxySecrets,
) -> Result<BoxNetwork> {
    let config = to_json(config, "sandbox_network", "config", &id)?;
    let sealed = if secrets.is_empty() {
        None
    } else {
        let text = serde_json::to_vec(secrets).map_err(|_| Error::corrupt("sandbox_network", "secrets", id))?;
        Some(sealer.seal(seal_context(tenant, id), &text))
    };
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO sandbox_network (id, tenant_id, config, secrets, version, sent_bytes, received_bytes)
         VALUES ($1, $2, $3, $4, 1, 0, 0)
         ON CONFLICT (id) DO UPDATE SET config = excluded.config, secrets = excluded.secrets,
                version = sandbox_network.version + 1
         RETURNING ",
        columns!(sandbox_network)
    ))
    .bind(id)
    .bind(tenant)
    .bind(&config)
    .bind(sealed.as_deref())
    .fetch_one(conn)
    .await)?)
}

/// Bytes that a box sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxTraffic {
    pub id: BoxId,
    pub sent_bytes: i64,
    pub received_bytes: i64,
}

/// Adds to the traffic of boxes. Boxes that are gone are skipped.
pub async fn add_traffic(tx: &mut Tx<'_>, traffic: &[BoxTraffic]) -> Result<()> {
    for one in traffic {
        on!(tx, |conn| {
            sqlx::query(
            "INSERT INTO sandbox_network (id, tenant_id, config, version, sent_bytes, received_bytes)
             SELECT id, tenant_id, '{}', 0, CAST($2 AS bigint), CAST($3 AS bigint) FROM sandbox_box WHERE id = $1 AND status <> 'deleting'
             ON CONFLICT (id) DO UPDATE SET sent_bytes = sandbox_network.sent_bytes + excluded.sent_bytes,
                    received_bytes = sandbox_network.received_bytes + excluded.received_bytes"
        )
        .bind(one.id)
        .bind(one.sent_bytes)
        .bind(one.received_bytes)
        .execute(conn)
        .await
        .map(drop)
        })?;
    }
    Ok(())
}

/// Bytes that the boxes of a workspace sent and received.
pub async fn usage(tx: &mut Tx<'_>, tenant: TenantId) -> Result<(i64, i64)> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT CAST(coalesce(sum(sent_bytes), 0) AS bigint), CAST(coalesce(sum(received_bytes), 0) AS bigint)
         FROM sandbox_network WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}
