//! Runs that nothing will end.

use towpath_domain::TenantId;

use super::OpenRun;
use crate::error::Result;
use crate::tx::Tx;

/// Unfinished runs whose job is over or deleted; oldest first. A run and its job are recorded and ended together, so
/// there are none unless something went wrong.
pub async fn orphaned(tx: &mut Tx<'_>, tenant: TenantId, limit: i64) -> Result<Vec<OpenRun>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT run.id, run.thread_id, run.job_id FROM run LEFT JOIN job ON job.id = run.job_id
         WHERE run.tenant_id = $1 AND run.status = 'pending' AND (job.id IS NULL OR job.finished_at IS NOT NULL)
         ORDER BY run.created_at, run.id LIMIT $2"
    )
    .bind(tenant)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}
