//! Listeners: processes that run a compute backend. The built-in one has no row.

use towpath_domain::{ListenerId, TenantId, Timestamp};

use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Listener {
    pub id: ListenerId,
    pub tenant_id: TenantId,
    /// The kind of its compute backend.
    pub compute_type: String,
    /// Which one of that type; unique in the workspace.
    pub compute_id: String,
    /// JSON: `k8s_namespaces`.
    pub compute_config: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Listener {
    /// The namespaces it serves.
    pub fn namespaces(&self) -> Result<Vec<String>> {
        serde_json::from_str(&self.compute_config).map_err(|_| Error::corrupt("listener", "compute_config", self.id))
    }
}

fn written(id: ListenerId, namespaces: &[String]) -> Result<String> {
    serde_json::to_string(namespaces).map_err(|_| Error::corrupt("listener", "compute_config", id))
}

/// Records a listener of compute type `k8s`.
///
/// # Errors
/// [`Error::Conflict`] naming `listener.compute_id` if the workspace already has one for it.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, compute_id: &str, namespaces: &[String]) -> Result<Listener> {
    let (id, now) = (ListenerId::new(), tx.now());
    let config = written(id, namespaces)?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO listener (id, tenant_id, compute_type, compute_id, compute_config, created_at, updated_at)
         VALUES ($1, $2, 'k8s', $3, $4, $5, $5) RETURNING ",
        columns!(listener)
    ))
    .bind(id)
    .bind(tenant)
    .bind(compute_id)
    .bind(config)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ListenerId) -> Result<Listener> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(listener),
        " FROM listener WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Listeners, oldest first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, limit: i64, offset: i64) -> Result<Vec<Listener>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(listener),
        " FROM listener WHERE tenant_id = $1 ORDER BY created_at, id LIMIT $2 + 0 OFFSET $3"
    ))
    .bind(tenant)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// Gives a listener other namespaces.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: ListenerId, namespaces: &[String]) -> Result<Listener> {
    let now = tx.now();
    let config = written(id, namespaces)?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE listener SET compute_config = $3, updated_at = $4 WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(listener)
    ))
    .bind(tenant)
    .bind(id)
    .bind(config)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a listener.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: ListenerId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM listener WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(Error::NotFound) }
}
