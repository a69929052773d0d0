//! The catalog of index files: which Parquet objects say where the trace runs of a workspace are.
//!
//! ```text
//! writing ──► live ──► superseded ──► deleting ──► (row gone)
//!    └────────────────────────────────────▲   an intent whose writer is gone
//! ```
//! Segments are the truth, and index files repeat it in the order of ids. A live segment is `indexed` when live index
//! files name every row of it. A caller that looks for an id reads the live index files and the segments that are not
//! indexed: see [`sources`].

use towpath_domain::{JobId, RunIndexId, SegmentId, TenantId, Timestamp, TraceRunId};

use crate::segments::{Segment, SegmentState, id_list};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct IndexFile {
    /// The file.
    pub id: RunIndexId,
    pub tenant_id: TenantId,
    /// Its object.
    pub path: String,
    /// Where it is. It has the states of a segment.
    pub state: SegmentState,
    /// The job that wrote it.
    pub job: Option<JobId>,
    /// Trace runs in it.
    pub entries: i64,
    /// Size of the object.
    pub bytes: i64,
    /// The smallest id in it; `None` while it is being written.
    pub first_run: Option<TraceRunId>,
    /// The largest id in it; `None` while it is being written.
    pub last_run: Option<TraceRunId>,
    /// When it was intended.
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
}

/// An index file that was written and is to be made live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFileRecord {
    /// The file.
    pub id: RunIndexId,
    /// Trace runs in it.
    pub entries: i64,
    /// Size of the object.
    pub bytes: i64,
    /// The smallest id in it.
    pub first_run: TraceRunId,
    /// The largest id in it.
    pub last_run: TraceRunId,
}

/// An object that says where trace runs are.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct IndexSource {
    /// The object.
    pub path: String,
    /// The smallest id in an index file; `None` for a segment.
    pub first_run: Option<TraceRunId>,
    /// The largest id in an index file; `None` for a segment.
    pub last_run: Option<TraceRunId>,
}

/// Records that an index file is going to be written, before it is.
pub async fn intend(tx: &mut Tx<'_>, tenant: TenantId, id: RunIndexId, path: &str, job: Option<JobId>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO run_index (id, tenant_id, path, state, job, created_at, changed_at)
         VALUES ($1, $2, $3, 'writing', $4, $5, $5)",
    )
    .bind(id)
    .bind(tenant)
    .bind(path)
    .bind(job)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Makes index files live that together name every row of `segments`, and marks those as indexed.
///
/// # Errors
/// [`Error::Stale`] if a file is not `writing`: its intent was swept, so its object may be gone.
pub async fn publish(tx: &mut Tx<'_>, tenant: TenantId, new: &[IndexFileRecord], segments: &[SegmentId]) -> Result<()> {
    publish_file(tx, tenant, new).await?;
    // Compactions and sweeps lock segments in this order, too. One that is gone needs no mark.
    let lock = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM segment WHERE tenant_id = $1
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))",
        postgres: "SELECT id FROM segment WHERE tenant_id = $1
                     AND id IN (SELECT value::uuid FROM json_array_elements_text($2::json)) ORDER BY id FOR UPDATE");
    let ids = id_list(segments.iter().map(|id| id.0));
    let there: Vec<SegmentId> = on!(tx, |conn| sqlx::query_scalar(lock)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?;
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: "UPDATE segment SET indexed = 1
                 WHERE id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "UPDATE segment SET indexed = true
                   WHERE id IN (SELECT value::uuid FROM json_array_elements_text($1::json))");
    let ids = id_list(there.iter().map(|id| id.0));
    on!(tx, |conn| sqlx::query(text).bind(ids).execute(conn).await.map(drop))?;
    Ok(())
}

/// Replaces `old` by `new`, which names the same trace runs. Running readers may continue with `old`, whose objects
/// stay for a while.
///
/// # Errors
/// [`Error::Stale`] if a file of `old` is not live any more, or an intent of `new` was swept.
pub async fn replace(tx: &mut Tx<'_>, tenant: TenantId, old: &[RunIndexId], new: &[IndexFileRecord]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE run_index SET state = 'superseded', changed_at = $3
                 WHERE tenant_id = $1 AND state = 'live'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))",
        postgres: "UPDATE run_index SET state = 'superseded', changed_at = $3
                   WHERE tenant_id = $1 AND state = 'live'
                     AND id IN (SELECT value::uuid FROM json_array_elements_text($2::json))");
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id_list(old.iter().map(|id| id.0)))
        .bind(now)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if usize::try_from(changed) != Ok(old.len()) {
        return Err(Error::Stale);
    }
    publish_file(tx, tenant, new).await
}

async fn publish_file(tx: &mut Tx<'_>, tenant: TenantId, new: &[IndexFileRecord]) -> Result<()> {
    let now = tx.now();
    for file in new {
        let changed = on!(tx, |conn| {
            sqlx::query(
            "UPDATE run_index SET state = 'live', entries = $3, bytes = $4, first_run = $5, last_run = $6, changed_at = $7
             WHERE tenant_id = $1 AND id = $2 AND state = 'writing'",
        )
        .bind(tenant)
        .bind(file.id)
        .bind(file.entries)
        .bind(file.bytes)
        .bind(file.first_run)
        .bind(file.last_run)
        .bind(now)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
        })?;
        if changed != 1 {
            return Err(Error::Stale);
        }
    }
    Ok(())
}

/// The live index files of a workspace, the smallest first.
pub async fn live(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<IndexFile>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(run_index),
        " FROM run_index WHERE tenant_id = $1 AND state = 'live' ORDER BY entries, id"
    ),)
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// The objects that together locate every trace run of a workspace: live index files, and live unindexed segments.
pub async fn sources(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<IndexSource>> {
    // One statement sees one moment. Two would miss a segment that is indexed in between.
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT path, first_run, last_run FROM run_index WHERE tenant_id = $1 AND state = 'live'
         UNION ALL
         SELECT path, NULL, NULL FROM segment WHERE tenant_id = $1 AND state = 'live' AND NOT indexed",
    )
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// Live segments of a workspace that are not indexed, the oldest first.
pub async fn unindexed(tx: &mut Tx<'_>, tenant: TenantId, limit: i64) -> Result<Vec<Segment>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(segment),
        " FROM segment WHERE tenant_id = $1 AND state = 'live' AND NOT indexed
         ORDER BY changed_at, id LIMIT $2 + 0"
    ),)
    .bind(tenant)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Those of `tenants` that have at least so many live segments that are not indexed.
pub async fn due_among(tx: &mut Tx<'_>, tenants: &[TenantId], least: i64) -> Result<Vec<TenantId>> {
    let text = sql!(tx,
        sqlite: "SELECT tenant_id FROM segment WHERE state = 'live' AND NOT indexed
                   AND tenant_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))
                 GROUP BY tenant_id HAVING count(*) >= $2",
        postgres: "SELECT tenant_id FROM segment WHERE state = 'live' AND NOT indexed
                     AND tenant_id IN (SELECT value::uuid FROM json_array_elements_text($1::json))
                   GROUP BY tenant_id HAVING count(*) >= $2");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(id_list(tenants.iter().map(|id| id.0)))
        .bind(least)
        .fetch_all(conn)
        .await)?)
}

/// Workspaces with at least that many live unindexed segments, or one that has been live since before `before`; longest
/// waiting first.
pub async fn due(tx: &mut Tx<'_>, least: i64, before: Timestamp, limit: i64) -> Result<Vec<TenantId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT tenant_id FROM segment WHERE state = 'live' AND NOT indexed
         GROUP BY tenant_id HAVING count(*) >= $1 OR min(changed_at) < $2
         ORDER BY min(changed_at), tenant_id LIMIT $3 + 0",
    )
    .bind(least)
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Supersedes the index files of those of `tenants` without live segments.
pub(crate) async fn supersede_unneeded(tx: &mut Tx<'_>, tenants: &[TenantId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE run_index SET state = 'superseded', changed_at = $2 WHERE state = 'live'
                   AND tenant_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))
                   AND NOT EXISTS (SELECT 1 FROM segment s WHERE s.tenant_id = run_index.tenant_id AND s.state = 'live')",
        postgres: "UPDATE run_index SET state = 'superseded', changed_at = $2 WHERE state = 'live'
                     AND tenant_id IN (SELECT value::uuid FROM json_array_elements_text($1::json))
                     AND NOT EXISTS (SELECT 1 FROM segment s WHERE s.tenant_id = run_index.tenant_id AND s.state = 'live')");
    on!(tx, |conn| sqlx::query(text)
        .bind(id_list(tenants.iter().map(|id| id.0)))
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Moves files that were superseded before `before` to `deleting`, so that their objects can be removed. `before` must
/// be longer ago than the longest lookup takes.
pub async fn collect(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE run_index SET state = 'deleting', changed_at = $3 WHERE state = 'superseded' AND id IN (
             SELECT id FROM run_index WHERE state = 'superseded' AND changed_at < $1 ORDER BY changed_at LIMIT $2 + 0)",
    )
    .bind(before)
    .bind(limit)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Moves intents that were not finished since `before` to `deleting`, so that their objects can be removed; their
/// writer can no longer publish them.
pub async fn abandon(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE run_index SET state = 'deleting', changed_at = $3 WHERE state = 'writing' AND id IN (
             SELECT id FROM run_index WHERE state = 'writing' AND changed_at < $1 ORDER BY changed_at LIMIT $2 + 0)",
    )
    .bind(before)
    .bind(limit)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Takes the intents of `job`, which is over, as [`abandon`] takes old ones.
pub async fn abandon_of(tx: &mut Tx<'_>, job: JobId) -> Result<u64> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE run_index SET state = 'deleting', changed_at = $2 WHERE state = 'writing' AND job = $1",
    )
    .bind(job)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Where a walk through files in `deleting` begins: before all of them.
pub const FIRST: (Timestamp, RunIndexId) = (Timestamp::from_micros(0), RunIndexId::nil());

/// Files in `deleting` after `after`, by the time of that change: their objects may still exist. Files that were never
/// published only if abandoned before `abandoned`: until then their writer may be active.
pub async fn deleting(
    tx: &mut Tx<'_>,
    abandoned: Timestamp,
    after: (Timestamp, RunIndexId),
    limit: i64,
) -> Result<Vec<IndexFile>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(run_index),
        " FROM run_index WHERE state = 'deleting' AND (entries > 0 OR changed_at < $1) AND (changed_at, id) > ($2, $3)
         ORDER BY changed_at, id LIMIT $4 + 0"
    ))
    .bind(abandoned)
    .bind(after.0)
    .bind(after.1)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Deletes a file whose object is gone.
///
/// # Errors
/// [`Error::Stale`] when it is not `deleting`.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId, id: RunIndexId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM run_index WHERE tenant_id = $1 AND id = $2 AND state = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(Error::Stale) }
}
