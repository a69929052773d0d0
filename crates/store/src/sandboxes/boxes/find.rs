//! Reading boxes.

use towpath_domain::sandbox::BoxStatus;
use towpath_domain::{BoxId, PoolId, TenantId, Timestamp};
use uuid::Uuid;

use super::{BoxVolume, SandboxBox};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// One box, also one that is being removed.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> Result<SandboxBox> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_box),
        " FROM sandbox_box WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// One box, held until the transaction ends.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> Result<SandboxBox> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: concat!("SELECT ", columns!(sandbox_box), " FROM sandbox_box WHERE tenant_id = $1 AND id = $2"),
        postgres: concat!("SELECT ", columns!(sandbox_box), " FROM sandbox_box WHERE tenant_id = $1 AND id = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// The sandbox of this name or id, except ones that are being removed or wait in a pool.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &str) -> Result<SandboxBox> {
    if reference.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let id = reference.parse::<Uuid>().ok();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_box),
        " FROM sandbox_box
         WHERE tenant_id = $1 AND (name = $2 OR id = $3) AND status <> 'deleting' AND pool_id IS NULL"
    ))
    .bind(tenant)
    .bind(reference)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The box created by the same request and key since `since`.
pub async fn find_duplicate(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &str,
    request: &[u8],
    created_by: &str,
    since: Timestamp,
) -> Result<Option<SandboxBox>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_box),
        " FROM sandbox_box WHERE tenant_id = $1 AND name = $2 AND request = $3 AND created_by = $4 AND created_at >= $5
             AND status <> 'deleting' AND pool_id IS NULL"
    ))
    .bind(tenant)
    .bind(name)
    .bind(request)
    .bind(created_by)
    .bind(since)
    .fetch_optional(conn)
    .await)?)
}

/// Which boxes are asked for.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// With this in the name, in any case.
    pub name_contains: Option<String>,
    pub status: Option<BoxStatus>,
    /// Of this template or snapshot.
    pub template_name: Option<String>,
    /// Made by this key.
    pub created_by: Option<String>,
    /// Oldest first.
    pub ascending: bool,
}

/// Boxes, newest first unless the filter says otherwise.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    filter: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<SandboxBox>> {
    let texts = [&filter.name_contains, &filter.template_name, &filter.created_by];
    if texts.into_iter().flatten().any(|text| text.contains('\0')) {
        return Ok(Vec::new()); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(tx, "SELECT ");
    query
        .push(columns!(sandbox_box))
        .push(" FROM sandbox_box WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND status <> 'deleting' AND pool_id IS NULL");
    if let Some(part) = &filter.name_contains {
        query.push(" AND ").has_part("name", part);
    }
    if let Some(status) = filter.status {
        query.push(" AND status = ").bind(Arg::Text(status.as_str().to_owned()));
    }
    if let Some(name) = &filter.template_name {
        query.push(" AND template_name = ").bind(Arg::Text(name.clone()));
    }
    if let Some(key) = &filter.created_by {
        query.push(" AND created_by = ").bind(Arg::Text(key.clone()));
    }
    let order = if filter.ascending {
        " ORDER BY created_at, id"
    } else {
        " ORDER BY created_at DESC, id DESC"
    };
    query.push(order).page(limit, offset);
    query.fetch_all(tx).await
}

/// The number of sandboxes of a workspace, without those being removed, and with the target sizes of its pools, which
/// replace claimed ones.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    let text = sql!(tx,
        sqlite: "SELECT (SELECT count(*) FROM sandbox_box WHERE tenant_id = $1 AND status <> 'deleting' AND pool_id IS NULL)
                      + (SELECT coalesce(sum(replicas), 0) FROM sandbox_pool WHERE tenant_id = $1)",
        // A sum of bigint is numeric there.
        postgres: "SELECT (SELECT count(*) FROM sandbox_box WHERE tenant_id = $1 AND status <> 'deleting' AND pool_id IS NULL)
                        + (SELECT coalesce(sum(replicas), 0)::bigint FROM sandbox_pool WHERE tenant_id = $1)");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .fetch_one(conn)
        .await)?)
}

/// The volumes of these boxes.
pub async fn volumes_of(tx: &mut Tx<'_>, boxes: &[BoxId]) -> Result<Vec<BoxVolume>> {
    if boxes.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        "SELECT m.box_id, m.volume_id, v.name AS volume_name, m.mount_path, m.read_only
         FROM sandbox_box_volume m JOIN sandbox_volume v ON v.id = m.volume_id WHERE ",
    );
    query.any_of("m.box_id", boxes.iter().map(|id| Arg::Uuid(id.0)));
    query.push(" ORDER BY m.box_id, m.mount_path");
    query.fetch_all(tx).await
}

/// Boxes that wait in a pool, the oldest first.
pub async fn pool_members(tx: &mut Tx<'_>, tenant: TenantId, pool: PoolId) -> Result<Vec<SandboxBox>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_box),
        " FROM sandbox_box WHERE tenant_id = $1 AND pool_id = $2 AND status <> 'deleting' ORDER BY created_at, id"
    ))
    .bind(tenant)
    .bind(pool)
    .fetch_all(conn)
    .await)?)
}

/// Boxes of all workspaces one of whose times may be over: those of a node, of no node, and of lost nodes.
pub async fn due(tx: &mut Tx<'_>, node: Uuid, limit: i64) -> Result<Vec<SandboxBox>> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(sandbox_box), " FROM sandbox_box WHERE due_at <= $1
                         AND (host_id = $3 OR host_id IS NULL
                              OR host_id NOT IN (SELECT id FROM sandbox_node WHERE lost_at IS NULL))
                         ORDER BY due_at LIMIT $2"),
        // The database's clock: several processes write these times.
        postgres: concat!("SELECT ", columns!(sandbox_box), " FROM sandbox_box WHERE due_at <= towpath_now($1)
                           AND (host_id = $3 OR host_id IS NULL
                                OR host_id NOT IN (SELECT id FROM sandbox_node WHERE lost_at IS NULL))
                           ORDER BY due_at LIMIT $2"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(known)
        .bind(limit)
        .bind(node)
        .fetch_all(conn)
        .await)?)
}

/// A box as the machine is compared with it.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct BoxLocation {
    pub id: BoxId,
    pub tenant_id: TenantId,
    pub status: BoxStatus,
    /// Number of its newest life.
    pub generation: i64,
    /// The node it was placed on.
    pub host_id: Option<Uuid>,
}

/// Boxes of all workspaces after an id: those of a node, and those without one.
pub async fn list_after(tx: &mut Tx<'_>, node: Uuid, id: BoxId, limit: i64) -> Result<Vec<BoxLocation>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, status, generation, host_id FROM sandbox_box
         WHERE id > $1 AND (host_id = $3 OR host_id IS NULL) ORDER BY id LIMIT $2"
    )
    .bind(id)
    .bind(limit)
    .bind(node)
    .fetch_all(conn)
    .await)?)
}

/// What boxes of all workspaces were started on, after an id: those of a node, and those without one.
pub async fn roots_after(tx: &mut Tx<'_>, node: Uuid, id: BoxId, limit: i64) -> Result<Vec<(BoxId, String)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, root FROM sandbox_box
         WHERE id > $1 AND root IS NOT NULL AND (host_id = $3 OR host_id IS NULL) ORDER BY id LIMIT $2"
    )
    .bind(id)
    .bind(limit)
    .bind(node)
    .fetch_all(conn)
    .await)?)
}

/// A box of any workspace and node.
pub async fn find_location(tx: &mut Tx<'_>, id: BoxId) -> Result<Option<BoxLocation>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, status, generation, host_id FROM sandbox_box WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}
