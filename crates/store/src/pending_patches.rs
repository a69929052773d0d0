//! Patches that name neither place nor time of their trace run and came before it. Each fold asks for those whose
//! trace run it has just met.

use towpath_domain::{TenantId, Timestamp, TraceRunId};

use crate::segments::id_list;
use crate::{Result, Tx};

/// A waiting operation.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct PendingPatch {
    /// Its workspace.
    pub tenant_id: TenantId,
    /// The trace run it is about.
    pub run_id: TraceRunId,
    /// Its place in the order of acceptance.
    pub seq: i64,
    /// The operation as JSON.
    pub operation: String,
    /// When it was put aside.
    pub created_at: Timestamp,
}

/// Puts an operation aside. The same one again is no error: a fold may be repeated.
///
/// # Errors
/// Only what the database says.
pub async fn put(tx: &mut Tx<'_>, tenant: TenantId, run: TraceRunId, seq: i64, operation: &str) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO pending_patch (tenant_id, run_id, seq, operation, created_at) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT DO NOTHING",
    )
    .bind(tenant)
    .bind(run)
    .bind(seq)
    .bind(operation)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// What waits for any of `runs`, in order of acceptance.
///
/// # Errors
/// Only what the database says.
pub async fn for_runs(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<PendingPatch>> {
    // Nearly always nothing waits at all; then a long list of ids need not travel.
    let any: Option<i64> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT seq FROM pending_patch WHERE tenant_id = $1 LIMIT 1"
    )
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    if any.is_none() || runs.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
        sqlite: "SELECT * FROM pending_patch WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) ORDER BY seq",
        postgres: "SELECT * FROM pending_patch WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json)) ORDER BY seq");
    let ids = id_list(runs.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Removes an operation that has found its trace run.
///
/// # Errors
/// Only what the database says.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, run: TraceRunId, seq: i64) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM pending_patch WHERE tenant_id = $1 AND run_id = $2 AND seq = $3"
    )
    .bind(tenant)
    .bind(run)
    .bind(seq)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Drops what has waited since before `before`, and says how many that were.
///
/// # Errors
/// Only what the database says.
pub async fn drop_older(tx: &mut Tx<'_>, before: Timestamp) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM pending_patch WHERE created_at < $1"
    )
    .bind(before)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}
