//! Copying a thread.

use towpath_domain::{TenantId, ThreadId};

use super::{Thread, get};
use crate::error::Result;
use crate::tx::Tx;

macro_rules! copy_text {
    ($expires:expr) => {
        concat!(
            // What is in flight is not copied, so the copy is never busy.
            "INSERT INTO thread (id, tenant_id, status, metadata, config, current_values, interrupts, error, ttl_strategy,
                                 ttl_minutes, expires_at, created_at, updated_at, state_updated_at)
             SELECT $3, tenant_id, CASE WHEN status = 'busy' THEN coalesce(rest_status, CASE WHEN interrupts = '{}' THEN 'idle'
                    ELSE 'interrupted' END) ELSE status END, metadata, config, current_values, interrupts, error,
                    ttl_strategy, ttl_minutes, ",
            $expires,
            ", $4, $4, $4
             FROM thread WHERE tenant_id = $1 AND id = $2"
        )
    };
}

/// Copies metadata, config, state and all checkpoints of `from` to `to`, without runs. It gets the same time to live.
///
/// The copy takes several statements, so the lane and the row of `from` must be locked.
pub async fn copy(tx: &mut Tx<'_>, tenant: TenantId, from: ThreadId, to: ThreadId) -> Result<Thread> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: copy_text!(expires!(sqlite: "$4", "ttl_minutes")),
        postgres: copy_text!(expires!(postgres: "$4", "ttl_minutes")));
    let made = on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(from)
        .bind(to)
        .bind(now)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if made == 0 {
        return Err(crate::Error::NotFound);
    }
    crate::checkpoints::copy(tx, from, to).await?;
    get(tx, tenant, to).await
}
