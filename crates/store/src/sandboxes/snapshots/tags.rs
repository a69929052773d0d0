//! Tags of snapshots.

use towpath_domain::{SnapshotId, TenantId};

use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// A tag of a name.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Tag {
    pub tag: String,
    /// What it stands for.
    pub snapshot_id: SnapshotId,
}

/// Moves a tag to a snapshot of this name, unless a newer snapshot has it: their order is that of their ids.
pub(super) async fn set_tag(tx: &mut Tx<'_>, tenant: TenantId, name: &str, tag: &str, id: SnapshotId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO sandbox_snapshot_tag (tenant_id, name, tag, snapshot_id) VALUES ($1, $2, $3, $4)
         ON CONFLICT (tenant_id, name, tag) DO UPDATE SET snapshot_id = excluded.snapshot_id
         WHERE sandbox_snapshot_tag.snapshot_id < excluded.snapshot_id"
    )
    .bind(tenant)
    .bind(name)
    .bind(tag)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The tags of a name.
pub async fn tags(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Vec<Tag>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT tag, snapshot_id FROM sandbox_snapshot_tag WHERE tenant_id = $1 AND name = $2 ORDER BY tag LIMIT 1000"
    )
    .bind(tenant)
    .bind(name)
    .fetch_all(conn)
    .await)?)
}

/// The tags of these snapshots.
pub async fn tags_of(tx: &mut Tx<'_>, snapshots: &[SnapshotId]) -> Result<Vec<Tag>> {
    if snapshots.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Query::new(tx, "SELECT tag, snapshot_id FROM sandbox_snapshot_tag WHERE ");
    query.any_of("snapshot_id", snapshots.iter().map(|id| Arg::Uuid(id.0)));
    query.push(" ORDER BY snapshot_id, tag");
    query.fetch_all(tx).await
}
