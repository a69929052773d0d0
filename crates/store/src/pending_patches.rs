//! Pending patches: operations without the location or time of their trace run that arrived before it. Each flush looks
//! them up for the trace runs it meets.
//!
//! Triggers count them per workspace in `pending_usage`. Its row also serves as their lock: callers that add or remove
//! some lock it first, so that contention is at one place.

use std::collections::BTreeSet;

use serde::Serialize;
use towpath_domain::{TenantId, Timestamp, TraceRunId};

use crate::bulk;
use crate::query::{Arg, Query};
use crate::segments::id_list;
use crate::{Dialect, Result, Tx};

/// A waiting operation.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct PendingPatch {
    pub tenant_id: TenantId,
    /// The trace run it is about.
    pub run_id: TraceRunId,
    /// Its position in the order of acceptance.
    pub seq: i64,
    /// The operation as JSON.
    pub operation: String,
    /// When it was put aside.
    pub created_at: Timestamp,
}

/// A waiting operation without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct PatchSize {
    /// The trace run it is about.
    pub run_id: TraceRunId,
    /// Its position in the order of acceptance.
    pub seq: i64,
    /// Bytes of the operation as JSON.
    pub bytes: i64,
}

/// How many operations wait in a workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct Usage {
    /// Operations.
    pub patches: i64,
    /// Bytes of them, as JSON.
    pub bytes: i64,
}

/// How many operations may wait in each workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Operations.
    pub patches: i64,
    /// Bytes of them, as JSON.
    pub bytes: i64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            patches: 100_000,
            bytes: 256 << 20,
        }
    }
}

impl Bounds {
    const fn hold(self, usage: Usage) -> bool {
        usage.patches <= self.patches && usage.bytes <= self.bytes
    }
}

/// The pending patches dropped in a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedPatches {
    pub tenant_id: TenantId,
    /// Operations dropped, and their bytes.
    pub usage: Usage,
}

/// Puts an operation aside. The same one again is not an error: a flush may be repeated.
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

/// As [`put`] for each, in few statements. Their own `created_at` is ignored.
pub async fn put_all(tx: &mut Tx<'_>, patches: &[PendingPatch]) -> Result<()> {
    lock(tx, patches.iter().map(|patch| patch.tenant_id)).await?;
    let (large, small): (Vec<_>, Vec<_>) = patches.iter().partition(|patch| patch.operation.len() > bulk::LARGE);
    for patch in large {
        put(tx, patch.tenant_id, patch.run_id, patch.seq, &patch.operation).await?;
    }
    let now = tx.now();
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing rows.
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
    for list in bulk::lists(listed.collect()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Pending operations of `runs` with their sizes, in order of acceptance. Their texts may not fit into memory together;
/// [`read`] reads those of a [page](pages).
pub async fn for_runs(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<PatchSize>> {
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
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: "SELECT run_id, seq, CAST(octet_length(operation) AS bigint) AS bytes FROM pending_patch
                 WHERE tenant_id = $1 AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))
                 ORDER BY seq",
        postgres: "SELECT run_id, seq, CAST(octet_length(operation) AS bigint) AS bytes FROM pending_patch
                   WHERE tenant_id = $1 AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json))
                   ORDER BY seq");
    let ids = id_list(runs.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Splits a list into pages of at most `bytes`. A larger operation gets its own page.
pub fn pages(patches: &[PatchSize], bytes: usize) -> impl Iterator<Item = &[PatchSize]> {
    let most = i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut rest = patches;
    std::iter::from_fn(move || {
        let mut sum = 0_i64;
        let fit = rest.iter().take_while(|patch| {
            sum = sum.saturating_add(patch.bytes);
            sum <= most
        });
        let count = fit.count().max(1).min(rest.len());
        let (page, later) = rest.split_at(count);
        rest = later;
        (!page.is_empty()).then_some(page)
    })
}

/// The operations of a page. Those that were removed meanwhile are left out.
pub async fn read(tx: &mut Tx<'_>, tenant: TenantId, page: &[PatchSize]) -> Result<Vec<PendingPatch>> {
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing rows.
        sqlite: concat!("SELECT ", columns!(pending_patch), " FROM pending_patch WHERE (tenant_id, run_id, seq) IN (
                     SELECT $1, unhex(value ->> 0, '-'), value ->> 1 FROM json_each($2))"),
        postgres: concat!("SELECT ", columns!(found, pending_patch), "
                   FROM (SELECT (value ->> 0)::uuid AS run_id, (value ->> 1)::bigint AS seq
                         FROM json_array_elements($2::json)) listed
                   CROSS JOIN LATERAL (SELECT ", columns!(p, pending_patch), " FROM pending_patch p
                                       WHERE p.tenant_id = $1 AND p.run_id = listed.run_id AND p.seq = listed.seq
                                       LIMIT 1) found"));
    let keys: Vec<(TraceRunId, i64)> = page.iter().map(|patch| (patch.run_id, patch.seq)).collect();
    let mut found = Vec::with_capacity(keys.len());
    for list in bulk::lists(keys) {
        let rows: Vec<PendingPatch> = on!(tx, |conn| sqlx::query_as(text)
            .bind(tenant)
            .bind(list)
            .fetch_all(conn)
            .await)?;
        found.extend(rows);
    }
    Ok(found)
}

/// Removes an operation that has found its trace run.
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
pub async fn remove_all(tx: &mut Tx<'_>, patches: &[(TenantId, TraceRunId, i64)]) -> Result<u64> {
    lock(tx, patches.iter().map(|(tenant, ..)| *tenant)).await?;
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing rows.
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
    for list in bulk::lists(patches.to_vec()) {
        removed += on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?;
    }
    Ok(removed)
}

/// Locks the pending operations of these workspaces until the transaction ends. A caller that changes some in several
/// statements locks all of their workspaces first, to avoid deadlocks.
pub async fn lock(tx: &mut Tx<'_>, tenants: impl Iterator<Item = TenantId>) -> Result<()> {
    // SQLite has one writer.
    if tx.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let tenants: BTreeSet<TenantId> = tenants.collect();
    if tenants.is_empty() {
        return Ok(());
    }
    let mut query = Query::new(tx, "SELECT tenant_id FROM pending_usage WHERE tenant_id");
    query
        .among(tenants.into_iter().map(|tenant| tenant.0))
        .push(" ORDER BY tenant_id FOR UPDATE");
    query.fetch_all::<(TenantId,)>(tx).await.map(drop)
}

/// How many operations wait in a workspace. One row is read, however many they are.
pub async fn usage(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Usage> {
    let counted: Option<Usage> = on!(tx, |conn| sqlx::query_as(
        "SELECT patches, bytes FROM pending_usage WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(counted.unwrap_or_default())
}

/// Drops the oldest operations of each of `tenants` beyond `bounds`, a few thousand per workspace at most; the next
/// call continues. Must run in the transaction that adds operations.
pub async fn trim(
    tx: &mut Tx<'_>,
    tenants: impl IntoIterator<Item = TenantId>,
    bounds: Bounds,
) -> Result<Vec<DroppedPatches>> {
    let tenants: BTreeSet<TenantId> = tenants.into_iter().collect();
    if tenants.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        "SELECT tenant_id, patches, bytes FROM pending_usage WHERE (patches > ",
    );
    query.bind(Arg::Int(bounds.patches)).push(" OR bytes > ");
    query.bind(Arg::Int(bounds.bytes)).push(") AND tenant_id");
    query
        .among(tenants.into_iter().map(|tenant| tenant.0))
        .push(" ORDER BY tenant_id");
    let over: Vec<(TenantId, i64, i64)> = query.fetch_all(tx).await?;
    let mut dropped = Vec::with_capacity(over.len());
    for (tenant_id, patches, bytes) in over {
        let usage = drop_oldest(tx, tenant_id, Usage { patches, bytes }, bounds).await?;
        if usage.patches > 0 {
            dropped.push(DroppedPatches { tenant_id, usage });
        }
    }
    Ok(dropped)
}

/// Workspaces in which more waits than `bounds` allow, at most `limit` of them.
pub async fn tenants_over_bounds(tx: &mut Tx<'_>, bounds: Bounds, limit: i64) -> Result<Vec<TenantId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT tenant_id FROM pending_usage WHERE patches > $1 OR bytes > $2 ORDER BY tenant_id LIMIT $3 + 0"
    )
    .bind(bounds.patches)
    .bind(bounds.bytes)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Operations that are looked at in one statement, and statements of one call.
const OLDEST: i64 = 1000;
const ROUNDS: usize = 8;

async fn drop_oldest(tx: &mut Tx<'_>, tenant: TenantId, mut waiting: Usage, bounds: Bounds) -> Result<Usage> {
    let mut dropped = Usage::default();
    for _ in 0..ROUNDS {
        if bounds.hold(waiting) {
            break;
        }
        let oldest: Vec<(TraceRunId, i64, i64)> = on!(tx, |conn| sqlx::query_as(
            "SELECT run_id, seq, CAST(octet_length(operation) AS bigint) FROM pending_patch WHERE tenant_id = $1
             ORDER BY seq LIMIT $2 + 0",
        )
        .bind(tenant)
        .bind(OLDEST)
        .fetch_all(conn)
        .await)?;
        let mut surplus = Vec::new();
        for (run, seq, bytes) in oldest {
            if bounds.hold(waiting) {
                break;
            }
            surplus.push((tenant, run, seq));
            waiting.patches -= 1;
            waiting.bytes -= bytes;
            dropped.patches += 1;
            dropped.bytes += bytes;
        }
        if surplus.is_empty() {
            break;
        }
        remove_all(tx, &surplus).await?;
    }
    Ok(dropped)
}

/// Operations that have waited since before `before`, oldest first, for [`remove_all`].
pub async fn older(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<(TenantId, TraceRunId, i64)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT tenant_id, run_id, seq FROM pending_patch WHERE created_at < $1 ORDER BY created_at LIMIT $2 + 0"
    )
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}
