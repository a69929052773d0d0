//! Boxes of all workspaces, for operators.

use towpath_domain::BoxId;
use towpath_domain::sandbox::BoxStatus;
use uuid::Uuid;

use super::SandboxBox;
use crate::{Result, Tx};

/// Sandboxes older than `before` (ids are ordered by time), newest first, including those in pools.
pub async fn list_all(tx: &mut Tx<'_>, before: Option<BoxId>, limit: i64) -> Result<Vec<SandboxBox>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_box),
        " FROM sandbox_box WHERE status <> 'deleting' AND ($1 IS NULL OR id < $1) ORDER BY id DESC LIMIT $2"
    ))
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// One box of any workspace. One that is being removed is not found.
pub async fn get_in_any_workspace(tx: &mut Tx<'_>, id: BoxId) -> Result<SandboxBox> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_box),
        " FROM sandbox_box WHERE id = $1 AND status <> 'deleting'"
    ))
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// How many boxes of a node there are of each status, if there is one.
pub async fn count_by_status(tx: &mut Tx<'_>, node: Uuid) -> Result<Vec<(BoxStatus, i64)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT status, count(*) FROM sandbox_box WHERE host_id = $1 GROUP BY status"
    )
    .bind(node)
    .fetch_all(conn)
    .await)?)
}
