//! Pools: boxes of a template that are started ahead.

use towpath_domain::{PoolId, TemplateId, TenantId, Timestamp};
use uuid::Uuid;

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Pool {
    pub id: PoolId,
    pub tenant_id: TenantId,
    pub name: String,
    /// The template of its boxes.
    pub template_id: TemplateId,
    /// How many wait.
    pub replicas: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Records a pool.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn insert(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &str,
    template: TemplateId,
    replicas: i64,
) -> Result<Pool> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO sandbox_pool (id, tenant_id, name, template_id, replicas, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING ",
        columns!(sandbox_pool)
    ))
    .bind(PoolId::new())
    .bind(tenant)
    .bind(name)
    .bind(template)
    .bind(replicas)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// The pool of this name or id.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &str) -> Result<Pool> {
    if reference.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let id = reference.parse::<Uuid>().ok();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_pool),
        " FROM sandbox_pool WHERE tenant_id = $1 AND (name = $2 OR id = $3)"
    ))
    .bind(tenant)
    .bind(reference)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Holds a pool until the transaction ends: no box is put into it meanwhile.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: PoolId) -> Result<Pool> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: concat!("SELECT ", columns!(sandbox_pool), " FROM sandbox_pool WHERE tenant_id = $1 AND id = $2"),
        postgres: concat!("SELECT ", columns!(sandbox_pool), " FROM sandbox_pool WHERE tenant_id = $1 AND id = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// How many pools a workspace has.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM sandbox_pool WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// Pools by name.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, limit: i64, offset: i64) -> Result<Vec<Pool>> {
    let mut query = Query::new(tx, "SELECT ");
    query
        .push(columns!(sandbox_pool))
        .push(" FROM sandbox_pool WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" ORDER BY name").page(limit, offset);
    query.fetch_all(tx).await
}

/// Pools of all workspaces with fewer or more boxes that wait than they are to have.
pub async fn with_wrong_size(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Pool>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_pool),
        " FROM sandbox_pool p
         WHERE replicas <> (SELECT count(*) FROM sandbox_box b WHERE b.pool_id = p.id AND b.status IN ('provisioning', 'ready'))
         ORDER BY updated_at LIMIT $1 + 0"
    ))
    .bind(limit)
    .fetch_all(conn)
    .await
    })?)
}

/// Changes a pool.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: PoolId, name: &str, replicas: i64) -> Result<Pool> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_pool SET name = $3, replicas = $4, updated_at = $5 WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(sandbox_pool)
    ))
    .bind(tenant)
    .bind(id)
    .bind(name)
    .bind(replicas)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a pool without boxes; the caller removes those before.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: PoolId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_pool WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
