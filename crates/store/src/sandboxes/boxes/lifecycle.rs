//! Start, stop and removal of sandboxes. Each statement names a generation, so that late reports of a machine change
//! nothing.

use towpath_domain::{BoxId, TenantId, Timestamp};
use uuid::Uuid;

use super::SandboxBox;
use crate::{Error, Result, Tx};

/// Begins the generation after `ended` of a stopped sandbox, on this node. `None` if it runs, is being removed, or has
/// another generation.
pub async fn begin_start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: BoxId,
    ended: i64,
    node: Option<Uuid>,
) -> Result<Option<SandboxBox>> {
    let now = tx.now();
    let row: Option<SandboxBox> = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_box SET status = 'provisioning', status_message = NULL, generation = generation + 1,
                stopped_at = NULL, active_at = $3, updated_at = $3, host_id = $5
         WHERE tenant_id = $1 AND id = $2 AND generation = $4 AND status IN ('stopped', 'failed') RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(now)
    .bind(ended)
    .bind(node)
    .fetch_optional(conn)
    .await)?;
    refresh_due(tx, row).await
}

#[derive(Clone, Copy, Debug)]
pub struct StartResult<'a> {
    /// JSON: what it was started on.
    pub root: &'a str,
    /// The node that started it.
    pub host_id: Uuid,
    /// How it is isolated.
    pub isolation: &'a str,
}

/// A life has begun. False where the box has moved on.
pub async fn mark_ready(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: BoxId,
    generation: i64,
    started: StartResult<'_>,
) -> Result<bool> {
    let now = tx.now();
    let row: Option<SandboxBox> = on!(tx, |conn| {
        sqlx::query_as(concat!(
        "UPDATE sandbox_box SET status = 'ready', status_message = NULL, root = $4, host_id = $5, isolation = $6, active_at = $7,
                stopped_at = NULL, updated_at = $7
         WHERE tenant_id = $1 AND id = $2 AND generation = $3 AND status = 'provisioning' RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(generation)
    .bind(started.root)
    .bind(started.host_id)
    .bind(started.isolation)
    .bind(now)
    .fetch_optional(conn)
    .await
    })?;
    Ok(refresh_due(tx, row).await?.is_some())
}

/// A life could not begin. False where the box has moved on.
pub async fn mark_failed(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, generation: i64, message: &str) -> Result<bool> {
    let now = tx.now();
    let row: Option<SandboxBox> = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_box SET status = 'failed', status_message = $4, stopped_at = $5, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND generation = $3 AND status = 'provisioning' RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(generation)
    .bind(message)
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    Ok(refresh_due(tx, row).await?.is_some())
}

/// A life has ended. False where the box has moved on.
pub async fn mark_stopped(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: BoxId,
    generation: i64,
    message: Option<&str>,
) -> Result<bool> {
    let now = tx.now();
    let row: Option<SandboxBox> = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_box SET status = 'stopped', status_message = $4, stopped_at = $5, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND generation = $3 AND status IN ('provisioning', 'ready') RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(generation)
    .bind(message)
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    Ok(refresh_due(tx, row).await?.is_some())
}

/// Marks a sandbox for removal: its name is free from then on, and its tokens and secrets are gone. `None` if it was
/// marked before.
pub async fn mark_deleting(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> Result<Option<SandboxBox>> {
    let now = tx.now();
    let row: Option<SandboxBox> = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_box SET status = 'deleting', pool_id = NULL, due_at = NULL, updated_at = $3
         WHERE tenant_id = $1 AND id = $2 AND status <> 'deleting' RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    if row.is_some() {
        for text in [
            "DELETE FROM sandbox_token WHERE box_id = $1",
            "DELETE FROM sandbox_network WHERE id = $1",
        ] {
            on!(tx, |conn| sqlx::query(text).bind(id).execute(conn).await.map(drop))?;
        }
    }
    Ok(row)
}

/// Deletes a removed sandbox with its attachments.
///
/// # Errors
/// [`Error::Stale`] if it is not marked for removal.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_box WHERE tenant_id = $1 AND id = $2 AND status = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(Error::Stale) }
}

/// Boxes were used until then.
pub async fn touch(tx: &mut Tx<'_>, used: &[(BoxId, Timestamp)]) -> Result<()> {
    for (id, at) in used {
        on!(tx, |conn| sqlx::query(
            "UPDATE sandbox_box SET active_at = $2 WHERE id = $1 AND active_at < $2"
        )
        .bind(id)
        .bind(at)
        .execute(conn)
        .await
        .map(drop))?;
    }
    Ok(())
}

/// Works out again when one of the times of a box may be over, and gives it.
pub async fn update_due(tx: &mut Tx<'_>, row: &SandboxBox) -> Result<Option<Timestamp>> {
    let due = row.lifetime().next_due(&row.activity()).map(|(at, _)| at);
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_box SET due_at = $3 WHERE id = $1 AND generation = $2 AND status <> 'deleting'"
    )
    .bind(row.id)
    .bind(row.generation)
    .bind(due)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(due)
}

/// Looks again at the times of a box at `at`: what they asked for is recorded as a job.
pub async fn postpone(tx: &mut Tx<'_>, id: BoxId, generation: i64, at: Timestamp) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_box SET due_at = $3 WHERE id = $1 AND generation = $2 AND status <> 'deleting'"
    )
    .bind(id)
    .bind(generation)
    .bind(at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

async fn refresh_due(tx: &mut Tx<'_>, mut row: Option<SandboxBox>) -> Result<Option<SandboxBox>> {
    if let Some(row) = &mut row {
        row.due_at = update_due(tx, row).await?;
    }
    Ok(row)
}
