//! Volumes: files that outlive boxes.

use std::collections::BTreeMap;

use towpath_domain::sandbox::VolumeStatus;
use towpath_domain::{TenantId, Timestamp, VolumeId};
use uuid::Uuid;

use super::{from_json, to_json};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Volume {
    pub id: VolumeId,
    pub tenant_id: TenantId,
    pub name: String,
    pub status: VolumeStatus,
    /// Why it failed.
    pub status_message: Option<String>,
    pub size_bytes: i64,
    /// Sort of storage.
    pub storage_class: String,
    /// For people.
    pub description: Option<String>,
    /// JSON; see [`Volume::labels`].
    pub labels: String,
    /// The volume it was copied from.
    pub source_volume_id: Option<VolumeId>,
    /// The node that has its files, once there are any.
    pub host_id: Option<Uuid>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Volume {
    pub fn labels(&self) -> Result<BTreeMap<String, String>> {
        from_json(&self.labels, "sandbox_volume", "labels", &self.id)
    }
}

/// A volume to record.
#[derive(Clone, Copy, Debug)]
pub struct NewVolume<'a> {
    pub id: VolumeId,
    pub name: &'a str,
    pub size_bytes: i64,
    /// Sort of storage.
    pub storage_class: &'a str,
    /// For people.
    pub description: Option<&'a str>,
    pub labels: &'a BTreeMap<String, String>,
    /// The volume whose files are copied into it first.
    pub source: Option<VolumeId>,
    /// The node that has the files of `source`.
    pub node: Option<Uuid>,
}

/// Records a volume.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewVolume<'_>) -> Result<Volume> {
    let now = tx.now();
    let labels = to_json(new.labels, "sandbox_volume", "labels", &new.id)?;
    let status = if new.source.is_some() {
        VolumeStatus::Provisioning
    } else {
        VolumeStatus::Ready
    };
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO sandbox_volume (id, tenant_id, name, status, size_bytes, storage_class, description, labels,
                                     source_volume_id, created_at, updated_at, host_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $11) RETURNING ",
        columns!(sandbox_volume)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.name)
    .bind(status)
    .bind(new.size_bytes)
    .bind(new.storage_class)
    .bind(new.description)
    .bind(labels)
    .bind(new.source)
    .bind(now)
    .bind(new.node)
    .fetch_one(conn)
    .await)?)
}

/// Locks the volume of this name or id until the transaction ends. One that is being removed is not found.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, reference: &str) -> Result<Volume> {
    if reference.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let id = reference.parse::<Uuid>().ok();
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: concat!("SELECT ", columns!(sandbox_volume), " FROM sandbox_volume
                         WHERE tenant_id = $1 AND (name = $2 OR id = $3) AND status <> 'deleting'"),
        postgres: concat!("SELECT ", columns!(sandbox_volume), " FROM sandbox_volume
                           WHERE tenant_id = $1 AND (name = $2 OR id = $3) AND status <> 'deleting' FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(reference)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// As [`lock`], for reading.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &str) -> Result<Volume> {
    if reference.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let id = reference.parse::<Uuid>().ok();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_volume),
        " FROM sandbox_volume WHERE tenant_id = $1 AND (name = $2 OR id = $3) AND status <> 'deleting'"
    ))
    .bind(tenant)
    .bind(reference)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// One volume, also one that is being removed.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: VolumeId) -> Result<Volume> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_volume),
        " FROM sandbox_volume WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Volumes by name.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name_contains: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Volume>> {
    if name_contains.is_some_and(|part| part.contains('\0')) {
        return Ok(Vec::new()); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(tx, "SELECT ");
    query
        .push(columns!(sandbox_volume))
        .push(" FROM sandbox_volume WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0)).push(" AND status <> 'deleting'");
    if let Some(part) = name_contains {
        query.push(" AND ").has_part("name", part);
    }
    query.push(" ORDER BY name").page(limit, offset);
    query.fetch_all(tx).await
}

/// How many volumes a workspace has, and their sizes together.
pub async fn usage(tx: &mut Tx<'_>, tenant: TenantId) -> Result<(i64, i64)> {
    let text = sql!(tx,
        sqlite: "SELECT count(*), coalesce(sum(size_bytes), 0) FROM sandbox_volume
                 WHERE tenant_id = $1 AND status <> 'deleting'",
        // A sum of bigint is numeric there.
        postgres: "SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM sandbox_volume
                   WHERE tenant_id = $1 AND status <> 'deleting'");
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(tenant).fetch_one(conn).await)?)
}

/// The new values of a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeUpdate<'a> {
    pub name: &'a str,
    pub size_bytes: i64,
    /// For people.
    pub description: Option<&'a str>,
    pub labels: &'a BTreeMap<String, String>,
}

/// Changes a volume that the caller has locked.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: VolumeId, change: VolumeUpdate<'_>) -> Result<Volume> {
    let now = tx.now();
    let labels = to_json(change.labels, "sandbox_volume", "labels", &id)?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_volume SET name = $3, size_bytes = $4, description = $5, labels = $6, updated_at = $7
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(sandbox_volume)
    ))
    .bind(tenant)
    .bind(id)
    .bind(change.name)
    .bind(change.size_bytes)
    .bind(change.description)
    .bind(labels)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Whether the files of a volume are being copied into another one.
pub async fn is_being_copied(tx: &mut Tx<'_>, tenant: TenantId, id: VolumeId) -> Result<bool> {
    let found: Option<VolumeId> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT id FROM sandbox_volume
         WHERE tenant_id = $1 AND source_volume_id = $2 AND status = 'provisioning' LIMIT 1"
    )
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// A volume is elsewhere.
pub async fn set_status(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: VolumeId,
    status: VolumeStatus,
    message: Option<&str>,
) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_volume SET status = $3, status_message = $4, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND status <> 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .bind(status)
    .bind(message)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The node that has the files of a volume from now on, unless another one has them.
pub async fn set_node(tx: &mut Tx<'_>, tenant: TenantId, id: VolumeId, node: Uuid) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_volume SET host_id = $3 WHERE tenant_id = $1 AND id = $2 AND host_id IS NULL"
    )
    .bind(tenant)
    .bind(id)
    .bind(node)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes a volume that is removed.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, id: VolumeId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_volume WHERE tenant_id = $1 AND id = $2 AND status = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Who has a volume: a template that names it, or a box that it is in.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct VolumeUser {
    pub volume_id: VolumeId,
    /// `template` or `box`.
    pub kind: String,
    /// The holder.
    pub id: Uuid,
    pub name: String,
    /// Where the volume is there.
    pub mount_path: String,
    /// Whether it may not write.
    pub read_only: bool,
}

/// The users of these volumes: templates first. A box that is being removed still counts.
pub async fn users(tx: &mut Tx<'_>, volumes: &[VolumeId]) -> Result<Vec<VolumeUser>> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let none = sql!(tx, sqlite: "0", postgres: "FALSE");
    let mut query = Query::new(
        tx,
        "SELECT m.volume_id, 'template' AS kind, t.id, t.name, m.mount_path, ",
    );
    query.push(none);
    query.push(" AS read_only FROM sandbox_template_volume m JOIN sandbox_template t ON t.id = m.template_id WHERE ");
    query.any_of("m.volume_id", volumes.iter().map(|id| Arg::Uuid(id.0)));
    query.push(
        " UNION ALL SELECT m.volume_id, 'box' AS kind, b.id, b.name, m.mount_path, m.read_only
          FROM sandbox_box_volume m JOIN sandbox_box b ON b.id = m.box_id WHERE ",
    );
    query.any_of("m.volume_id", volumes.iter().map(|id| Arg::Uuid(id.0)));
    query.push(" ORDER BY 2 DESC, 4, 3");
    query.fetch_all(tx).await
}
