//! Snapshots: the files of a box, kept, under a name with tags.

mod tags;

use std::collections::BTreeMap;

use towpath_domain::sandbox::{RunConfig, SnapshotReference, SnapshotStatus};
use towpath_domain::{BoxId, SnapshotId, TenantId, Timestamp};
use uuid::Uuid;

use super::{from_json, to_json};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

use tags::set_tag;
pub use tags::{Tag, tags, tags_of};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Snapshot {
    pub id: SnapshotId,
    pub tenant_id: TenantId,
    /// Name; several may have one.
    pub name: String,
    pub status: SnapshotStatus,
    /// Why it failed.
    pub status_message: Option<String>,
    /// The image it is based on.
    pub docker_image: Option<String>,
    /// The file system size of its boxes.
    pub fs_capacity_bytes: i64,
    /// The size of its files.
    pub fs_used_bytes: Option<i64>,
    /// The box it was captured from.
    pub source_box_id: Option<BoxId>,
    /// The snapshot below it.
    pub parent_id: Option<SnapshotId>,
    /// The node that has its layers; `None` if it has none.
    pub host_id: Option<Uuid>,
    /// JSON: what boxes of it are started on.
    pub root: Option<String>,
    /// JSON; see [`Snapshot::run_config`].
    pub run_config: Option<String>,
    /// JSON; see [`Snapshot::labels`].
    pub labels: String,
    /// For people.
    pub description: Option<String>,
    /// JSON: what was kept of the box beside its files.
    pub included: String,
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Snapshot {
    /// How commands of its boxes run.
    pub fn run_config(&self) -> Result<Option<RunConfig>> {
        let text = self.run_config.as_deref();
        text.map(|text| from_json(text, "sandbox_snapshot", "run_config", &self.id))
            .transpose()
    }

    pub fn labels(&self) -> Result<BTreeMap<String, String>> {
        from_json(&self.labels, "sandbox_snapshot", "labels", &self.id)
    }

    /// What was kept of the box beside its files.
    pub fn included(&self) -> Result<Vec<String>> {
        from_json(&self.included, "sandbox_snapshot", "included", &self.id)
    }
}

/// A snapshot to record.
#[derive(Clone, Copy, Debug)]
pub struct NewSnapshot<'a> {
    pub id: SnapshotId,
    pub name: &'a str,
    /// The image it is based on.
    pub docker_image: Option<&'a str>,
    /// The file system size of its boxes.
    pub fs_capacity_bytes: i64,
    /// The box it is captured from.
    pub source: Option<BoxId>,
    /// The snapshot below it.
    pub parent: Option<SnapshotId>,
    /// The node of the box it is captured from.
    pub node: Option<Uuid>,
    /// How commands of its boxes run.
    pub run_config: Option<&'a RunConfig>,
    pub labels: &'a BTreeMap<String, String>,
    /// For people.
    pub description: Option<&'a str>,
    /// What is stored of the box beside its files.
    pub included: &'a [String],
    /// Digest of the request.
    pub request: &'a [u8],
    pub created_by: &'a str,
}

/// Records a snapshot that is to be built.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewSnapshot<'_>) -> Result<Snapshot> {
    let now = tx.now();
    let run_config = new.run_config;
    let run_config = run_config.map(|config| to_json(config, "sandbox_snapshot", "run_config", &new.id));
    let run_config = run_config.transpose()?;
    let labels = to_json(new.labels, "sandbox_snapshot", "labels", &new.id)?;
    let included = to_json(&new.included, "sandbox_snapshot", "included", &new.id)?;
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
        "INSERT INTO sandbox_snapshot (id, tenant_id, name, status, docker_image, fs_capacity_bytes, source_box_id, parent_id,
                                       run_config, labels, description, included, request, created_by, created_at, updated_at,
                                       host_id)
         VALUES ($1, $2, $3, 'building', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14, $15) RETURNING ",
        columns!(sandbox_snapshot)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.name)
    .bind(new.docker_image)
    .bind(new.fs_capacity_bytes)
    .bind(new.source)
    .bind(new.parent)
    .bind(run_config)
    .bind(labels)
    .bind(new.description)
    .bind(included)
    .bind(new.request)
    .bind(new.created_by)
    .bind(now)
    .bind(new.node)
    .fetch_one(conn)
    .await
    })?)
}

/// One snapshot, also one that is being removed.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<Snapshot> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_snapshot),
        " FROM sandbox_snapshot WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The snapshot that a request names: by id or tag; without a tag the tag `latest`, else the newest ready one.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &SnapshotReference) -> Result<Snapshot> {
    let found = match reference {
        SnapshotReference::Id(id) => get(tx, tenant, SnapshotId(*id)).await?,
        SnapshotReference::Name(name, Some(tag)) => find_by_tag(tx, tenant, name, tag).await?.ok_or(Error::NotFound)?,
        SnapshotReference::Name(name, None) => match find_by_tag(tx, tenant, name, "latest").await? {
            Some(found) => found,
            None => find_newest(tx, tenant, name).await?.ok_or(Error::NotFound)?,
        },
    };
    if found.status == SnapshotStatus::Deleting {
        return Err(Error::NotFound);
    }
    Ok(found)
}

async fn find_by_tag(tx: &mut Tx<'_>, tenant: TenantId, name: &str, tag: &str) -> Result<Option<Snapshot>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_snapshot),
        " FROM sandbox_snapshot WHERE id =
             (SELECT snapshot_id FROM sandbox_snapshot_tag WHERE tenant_id = $1 AND name = $2 AND tag = $3)"
    ))
    .bind(tenant)
    .bind(name)
    .bind(tag)
    .fetch_optional(conn)
    .await)?)
}

async fn find_newest(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Snapshot>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_snapshot),
        " FROM sandbox_snapshot WHERE tenant_id = $1 AND name = $2 AND status <> 'deleting'
         ORDER BY CASE status WHEN 'ready' THEN 0 WHEN 'building' THEN 1 ELSE 2 END, created_at DESC, id DESC LIMIT 1"
    ))
    .bind(tenant)
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

/// A snapshot, held until the transaction ends: no one begins to use it or removes it meanwhile.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<Snapshot> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: concat!("SELECT ", columns!(sandbox_snapshot), " FROM sandbox_snapshot WHERE tenant_id = $1 AND id = $2"),
        postgres: concat!("SELECT ", columns!(sandbox_snapshot),
                          " FROM sandbox_snapshot WHERE tenant_id = $1 AND id = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// The snapshot created by the same request and key since `since`.
pub async fn find_duplicate(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    request: &[u8],
    created_by: &str,
    since: Timestamp,
) -> Result<Option<Snapshot>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_snapshot),
        " FROM sandbox_snapshot WHERE tenant_id = $1 AND request = $2 AND created_by = $3 AND created_at >= $4
             AND status = 'building' ORDER BY id DESC LIMIT 1"
    ))
    .bind(tenant)
    .bind(request)
    .bind(created_by)
    .bind(since)
    .fetch_optional(conn)
    .await)?)
}

/// Snapshots, newest first.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name_contains: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Snapshot>> {
    if name_contains.is_some_and(|part| part.contains('\0')) {
        return Ok(Vec::new()); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(tx, "SELECT ");
    query
        .push(columns!(sandbox_snapshot))
        .push(" FROM sandbox_snapshot WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0)).push(" AND status <> 'deleting'");
    if let Some(part) = name_contains {
        query.push(" AND ").has_part("name", part);
    }
    query.push(" ORDER BY created_at DESC, id DESC").page(limit, offset);
    query.fetch_all(tx).await
}

/// Snapshots of a box, newest first.
pub async fn of_box(tx: &mut Tx<'_>, tenant: TenantId, source: BoxId, limit: i64) -> Result<Vec<Snapshot>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_snapshot),
        " FROM sandbox_snapshot WHERE tenant_id = $1 AND source_box_id = $2 AND status <> 'deleting'
         ORDER BY created_at DESC, id DESC LIMIT $3"
    ))
    .bind(tenant)
    .bind(source)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// What snapshots of all workspaces consist of, after an id: those of a node, and those without one.
pub async fn roots_after(tx: &mut Tx<'_>, node: Uuid, id: SnapshotId, limit: i64) -> Result<Vec<(SnapshotId, String)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, root FROM sandbox_snapshot
         WHERE id > $1 AND root IS NOT NULL AND (host_id = $3 OR host_id IS NULL) ORDER BY id LIMIT $2"
    )
    .bind(id)
    .bind(limit)
    .bind(node)
    .fetch_all(conn)
    .await)?)
}

/// How many snapshots a workspace has.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM sandbox_snapshot WHERE tenant_id = $1 AND status <> 'deleting'"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// A snapshot is there, and its tag moves to it. False where it was removed meanwhile.
pub async fn mark_ready(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: SnapshotId,
    root: &str,
    used_bytes: Option<i64>,
    tag: Option<&str>,
) -> Result<bool> {
    let now = tx.now();
    let name: Option<String> = on!(tx, |conn| sqlx::query_scalar(
        "UPDATE sandbox_snapshot SET status = 'ready', root = $3, fs_used_bytes = $4, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND status = 'building' RETURNING name"
    )
    .bind(tenant)
    .bind(id)
    .bind(root)
    .bind(used_bytes)
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    if let (Some(name), Some(tag)) = (&name, tag) {
        set_tag(tx, tenant, name, tag, id).await?;
    }
    Ok(name.is_some())
}

/// A snapshot could not be made.
pub async fn mark_failed(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId, message: &str) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_snapshot SET status = 'failed', status_message = $3, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status = 'building'"
    )
    .bind(tenant)
    .bind(id)
    .bind(message)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Names of the users of a snapshot: snapshots above it, then sandboxes. A sandbox that is being removed still counts.
pub async fn users(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<Vec<(String, String)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT 'snapshot' AS kind, name FROM sandbox_snapshot WHERE tenant_id = $1 AND parent_id = $2
         UNION ALL SELECT 'box' AS kind, name FROM sandbox_box WHERE tenant_id = $1 AND snapshot_id = $2
         ORDER BY 1 DESC, 2 LIMIT 20"
    )
    .bind(tenant)
    .bind(id)
    .fetch_all(conn)
    .await)?)
}

/// A snapshot is to be removed, and its tags with it.
pub async fn mark_deleting(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_snapshot_tag WHERE snapshot_id = $1"
    )
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_snapshot SET status = 'deleting', updated_at = $3 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes a snapshot that is removed.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_snapshot WHERE tenant_id = $1 AND id = $2 AND status = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
