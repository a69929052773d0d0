//! Patches that name neither place nor time of their trace run and came before it. Each fold asks for those whose
//! trace run it has just met.

use serde::Serialize;
use towpath_domain::{TenantId, Timestamp, TraceRunId};

use crate::bulk;
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

/// An operation in a list.
#[derive(Serialize)]
struct PatchRow<'a> {
    tenant_id: TenantId,
    run_id: TraceRunId,
    seq: i64,
    operation: &'a str,
}

/// As [`put`] for each, in few statements. Their own `created_at` is not looked at.
///
/// # Errors
/// Only what the database says.
pub async fn put_all(tx: &mut Tx<'_>, patches: &[PendingPatch]) -> Result<()> {
    let (large, small): (Vec<_>, Vec<_>) = patches.iter().partition(|patch| patch.operation.len() > bulk::LARGE);
    for patch in large {
        put(tx, patch.tenant_id, patch.run_id, patch.seq, &patch.operation).await?;
    }
    let now = tx.now();
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to rows differs.
        sqlite: "INSERT INTO pending_patch (tenant_id, run_id, seq, operation, created_at)
                 SELECT unhex(value ->> 'tenant_id', '-'), unhex(value ->> 'run_id', '-'), value ->> 'seq',
                        value ->> 'operation', $2
                 FROM json_each($1) WHERE true
                 ON CONFLICT DO NOTHING",
        postgres: "INSERT INTO pending_patch (tenant_id, run_id, seq, operation, created_at)
                   SELECT tenant_id, run_id, seq, operation, $2
                   FROM json_to_recordset($1::json) AS listed(tenant_id uuid, run_id uuid, seq bigint, operation text)
                   ON CONFLICT DO NOTHING");
    let listed = small.into_iter().map(|patch| PatchRow {
        tenant_id: patch.tenant_id,
        run_id: patch.run_id,
        seq: patch.seq,
        operation: &patch.operation,
    });
    for list in bulk::lists(listed) {
        on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
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

/// As [`remove`] for each, in few statements. How many of them waited.
///
/// # Errors
/// Only what the database says.
pub async fn remove_all(tx: &mut Tx<'_>, patches: &[(TenantId, TraceRunId, i64)]) -> Result<u64> {
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to rows differs.
        sqlite: "DELETE FROM pending_patch WHERE (tenant_id, run_id, seq) IN (
                     SELECT unhex(value ->> 0, '-'), unhex(value ->> 1, '-'), value ->> 2 FROM json_each($1))",
        // Rows are never updated, so their addresses stay good within one statement.
        postgres: "DELETE FROM pending_patch WHERE ctid = ANY (ARRAY (
                       SELECT found.ctid
                       FROM (SELECT (value ->> 0)::uuid AS tenant_id, (value ->> 1)::uuid AS run_id,
                                    (value ->> 2)::bigint AS seq
                             FROM json_array_elements($1::json)) listed
                       CROSS JOIN LATERAL (SELECT p.ctid FROM pending_patch p
                                           WHERE p.tenant_id = listed.tenant_id AND p.run_id = listed.run_id
                                             AND p.seq = listed.seq LIMIT 1) found))");
    let mut removed = 0;
    for list in bulk::lists(patches) {
        removed += on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?;
    }
    Ok(removed)
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
