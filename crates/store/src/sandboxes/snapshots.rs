//! Snapshots: the files of a box, kept, under a name with tags.

mod tags;

use std::collections::BTreeMap;

use towpath_domain::sandbox::{RunConfig, SnapshotReference, SnapshotStatus};
use towpath_domain::{BoxId, SnapshotId, TenantId, Timestamp};

use super::{read, written};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

pub use tags::{Tag, tag, tags, tags_of};

/// A snapshot as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Snapshot {
    /// Id.
    pub id: SnapshotId,
    /// Owner.
    pub tenant_id: TenantId,
    /// Name; several may have one.
    pub name: String,
    /// Where it stands.
    pub status: SnapshotStatus,
    /// Why it failed.
    pub status_message: Option<String>,
    /// The image it is made of.
    pub docker_image: Option<String>,
    /// What boxes of it may hold.
    pub fs_capacity_bytes: i64,
    /// What it holds.
    pub fs_used_bytes: Option<i64>,
    /// The box it was captured from.
    pub source_box_id: Option<BoxId>,
    /// The snapshot below it.
    pub parent_id: Option<SnapshotId>,
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
    /// The key that made it.
    pub created_by: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Snapshot {
    /// How commands of its boxes run.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn run_config(&self) -> Result<Option<RunConfig>> {
        let text = self.run_config.as_deref();
        text.map(|text| read(text, "sandbox_snapshot", "run_config", &self.id))
            .transpose()
    }

    /// Its labels.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn labels(&self) -> Result<BTreeMap<String, String>> {
        read(&self.labels, "sandbox_snapshot", "labels", &self.id)
    }

    /// What was kept of the box beside its files.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn included(&self) -> Result<Vec<String>> {
        read(&self.included, "sandbox_snapshot", "included", &self.id)
    }
}

/// A snapshot to record.
#[derive(Clone, Copy, Debug)]
pub struct NewSnapshot<'a> {
    /// Id.
    pub id: SnapshotId,
    /// Name.
    pub name: &'a str,
    /// The image it is made of.
    pub docker_image: Option<&'a str>,
    /// What boxes of it may hold.
    pub fs_capacity_bytes: i64,
    /// The box it is captured from.
    pub source: Option<BoxId>,
    /// The snapshot below it.
    pub parent: Option<SnapshotId>,
    /// How commands of its boxes run.
    pub run_config: Option<&'a RunConfig>,
    /// Labels.
    pub labels: &'a BTreeMap<String, String>,
    /// For people.
    pub description: Option<&'a str>,
    /// What is kept of the box beside its files.
    pub included: &'a [String],
    /// Digest of the request.
    pub request: &'a [u8],
    /// The key that makes it.
    pub created_by: &'a str,
}

/// Records a snapshot that is to be built.
///
/// # Errors
/// Those of the database.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewSnapshot<'_>) -> Result<Snapshot> {
    let now = tx.now();
    let run_config = new.run_config;
    let run_config = run_config.map(|config| written(config, "sandbox_snapshot", "run_config", &new.id));
    let run_config = run_config.transpose()?;
    let labels = written(new.labels, "sandbox_snapshot", "labels", &new.id)?;
    let included = written(&new.included, "sandbox_snapshot", "included", &new.id)?;
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
        "INSERT INTO sandbox_snapshot (id, tenant_id, name, status, docker_image, fs_capacity_bytes, source_box_id, parent_id,
                                       run_config, labels, description, included, request, created_by, created_at, updated_at)
         VALUES ($1, $2, $3, 'building', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14) RETURNING ",
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
    .fetch_one(conn)
    .await
    })?)
}

/// One snapshot, also one that is being removed.
///
/// # Errors
/// [`Error::NotFound`] also for another tenant's.
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

/// The snapshot that a request names: by its id; by a tag; without one the tag `latest`, else the newest that is ready.
///
/// # Errors
/// [`Error::NotFound`] also for another tenant's.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &SnapshotReference) -> Result<Snapshot> {
    let found = match reference {
        SnapshotReference::Id(id) => get(tx, tenant, SnapshotId(*id)).await?,
        SnapshotReference::Name(name, Some(tag)) => tagged(tx, tenant, name, tag).await?.ok_or(Error::NotFound)?,
        SnapshotReference::Name(name, None) => match tagged(tx, tenant, name, "latest").await? {
            Some(found) => found,
            None => newest(tx, tenant, name).await?.ok_or(Error::NotFound)?,
        },
    };
    if found.status == SnapshotStatus::Deleting {
        return Err(Error::NotFound);
    }
    Ok(found)
}

async fn tagged(tx: &mut Tx<'_>, tenant: TenantId, name: &str, tag: &str) -> Result<Option<Snapshot>> {
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

async fn newest(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Snapshot>> {
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

/// A snapshot, held until the transaction ends: nobody begins to use it or removes it meanwhile.
///
/// # Errors
/// [`Error::NotFound`] also for another tenant's.
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

/// The snapshot that the same request of the same key made since `since`.
///
/// # Errors
/// Those of the database.
pub async fn sent_again(
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
///
/// # Errors
/// Those of the database.
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

/// How many snapshots a workspace has.
///
/// # Errors
/// Those of the database.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM sandbox_snapshot WHERE tenant_id = $1 AND status <> 'deleting'"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// A snapshot is there. False where it was removed meanwhile.
///
/// # Errors
/// Those of the database.
pub async fn ready(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: SnapshotId,
    root: &str,
    used_bytes: Option<i64>,
) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_snapshot SET status = 'ready', root = $3, fs_used_bytes = $4, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND status = 'building'"
    )
    .bind(tenant)
    .bind(id)
    .bind(root)
    .bind(used_bytes)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// A snapshot could not be made.
///
/// # Errors
/// Those of the database.
pub async fn fail(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId, message: &str) -> Result<()> {
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

/// Names of what uses a snapshot: snapshots above it, then boxes. A box that is being removed counts until it is gone.
///
/// # Errors
/// Those of the database.
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
///
/// # Errors
/// Those of the database.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<()> {
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

/// Forgets a snapshot that is removed.
///
/// # Errors
/// Those of the database.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId, id: SnapshotId) -> Result<()> {
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
