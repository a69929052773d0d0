//! Finished jobs, in a table apart from the busy one.
//!
//! `job` holds open jobs, recently finished ones, dead letters, and the children of open jobs and dead letters. All
//! other finished jobs are in `job_history`, where nothing claims, locks or counts. Reads by id, lists, and lookups of
//! children search both tables. A retried job moves back first.

use sqlx::FromRow;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp};

use super::Job;
use super::family::id_list;
use crate::error::Result;
use crate::tx::{Conn, Tx};

/// The stored columns of a finished job. It has no worker, lease or lane slot, and it is never a dead letter.
macro_rules! past_columns {
    () => {
        "id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq, keep_place, \
         parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, cancel_at, error, traceparent, \
         created_at, started_at, finished_at"
    };
}

#[derive(FromRow)]
struct HistoryRow {
    id: JobId,
    tenant_id: TenantId,
    kind: String,
    pool: String,
    priority: i64,
    state: JobState,
    run_at: Timestamp,
    deadline_at: Option<Timestamp>,
    input: String,
    cursor: Option<String>,
    lane: Option<String>,
    lane_seq: Option<i64>,
    keep_place: bool,
    parent_id: Option<JobId>,
    open_children: i64,
    bad_children: i64,
    attempt: i64,
    failures: i64,
    lost_leases: i64,
    fence: i64,
    cancel_at: Option<Timestamp>,
    error: Option<String>,
    traceparent: Option<String>,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Timestamp,
}

impl From<HistoryRow> for Job {
    fn from(past: HistoryRow) -> Self {
        Self {
            id: past.id,
            tenant_id: past.tenant_id,
            kind: past.kind,
            pool: past.pool,
            priority: past.priority,
            state: past.state,
            run_at: past.run_at,
            deadline_at: past.deadline_at,
            input: past.input,
            cursor: past.cursor,
            lane: past.lane,
            lane_seq: past.lane_seq,
            lane_held: false,
            keep_place: past.keep_place,
            parent_id: past.parent_id,
            open_children: past.open_children,
            bad_children: past.bad_children,
            attempt: past.attempt,
            failures: past.failures,
            lost_leases: past.lost_leases,
            fence: past.fence,
            worker_id: None,
            cancel_at: past.cancel_at,
            error: past.error,
            dead: false,
            traceparent: past.traceparent,
            created_at: past.created_at,
            started_at: past.started_at,
            finished_at: Some(past.finished_at),
        }
    }
}

/// Reads a job that has left for the history.
pub(super) async fn get(tx: &mut Tx<'_>, id: JobId) -> Result<Option<Job>> {
    let found: Option<HistoryRow> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        past_columns!(),
        " FROM job_history WHERE id = $1"
    ))
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(found.map(Job::from))
}

/// Children of a job that have left for the history, in the order they were recorded.
pub(super) async fn children(tx: &mut Tx<'_>, parent: JobId, limit: i64) -> Result<Vec<Job>> {
    let found: Vec<HistoryRow> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        past_columns!(),
        " FROM job_history WHERE parent_id = $1 ORDER BY id LIMIT $2 + 0"
    ))
    .bind(parent)
    .bind(limit)
    .fetch_all(conn)
    .await)?;
    Ok(found.into_iter().map(Job::from).collect())
}

/// The position of a scan of the jobs that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// When the last scanned job ended.
    pub finished_at: Timestamp,
    pub id: JobId,
}

impl Position {
    /// Before all of them.
    pub const START: Self = Self {
        finished_at: Timestamp::from_micros(0),
        id: JobId::nil(),
    };
}

/// What one step of the walk did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveStep {
    /// Jobs that left.
    pub moved: u64,
    /// Behind the last scanned job.
    pub position: Position,
    /// Nothing is left behind it.
    pub at_end: bool,
}

/// A job that is over.
#[derive(FromRow)]
struct EndedJob {
    id: JobId,
    finished_at: Timestamp,
    /// Whether no one needs it among the open ones.
    leaves: bool,
}

/// Whether the index for archiving exists. Without it each step would read all open jobs and sort the finished ones.
async fn can_walk(tx: &mut Tx<'_>) -> Result<bool> {
    match tx.conn() {
        Conn::Sqlite(_) => Ok(true),
        // Made beside the work, which takes long where many jobs are over: see `postgres/indexes.rs`.
        Conn::Postgres(conn) => Ok(sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('job_over') AND indisvalid)",
        )
        .fetch_one(conn)
        .await?),
    }
}

/// Scans the next `limit` jobs that ended before `before` and moves eligible ones to the history. The others are
/// skipped until the scan restarts: children of an open job or a dead letter, and jobs with unfinished children.
/// Nothing is moved until the index exists.
pub async fn archive(tx: &mut Tx<'_>, before: Timestamp, from: Position, limit: i64) -> Result<ArchiveStep> {
    if !can_walk(tx).await? {
        return Ok(ArchiveStep {
            moved: 0,
            position: from,
            at_end: true,
        });
    }
    // Subqueries of one row each. Of EXISTS, PostgreSQL may make a join that reads the table.
    let found: Vec<EndedJob> = on!(tx, |conn| {
        sqlx::query_as(
        "SELECT j.id, j.finished_at,
                (SELECT p.id FROM job p WHERE p.id = j.parent_id AND (p.finished_at IS NULL OR p.dead)) IS NULL
                AND (SELECT c.id FROM job c WHERE c.parent_id = j.id AND c.finished_at IS NULL LIMIT 1) IS NULL AS leaves
         FROM job j
         WHERE j.finished_at IS NOT NULL AND NOT j.dead AND j.finished_at < $1 AND (j.finished_at, j.id) > ($2, $3)
         ORDER BY j.finished_at, j.id LIMIT $4 + 0",
    )
    .bind(before)
    .bind(from.finished_at)
    .bind(from.id)
    .bind(limit)
    .fetch_all(conn)
    .await
    })?;
    let leaving: Vec<JobId> = found.iter().filter(|job| job.leaves).map(|job| job.id).collect();
    let position = found.last().map_or(from, |last| Position {
        finished_at: last.finished_at,
        id: last.id,
    });
    Ok(ArchiveStep {
        moved: if leaving.is_empty() {
            0
        } else {
            move_to_history(tx, &leaving).await?
        },
        position,
        at_end: i64::try_from(found.len()).is_ok_and(|found| found < limit),
    })
}

/// Moves those of these jobs that are over and no dead letters.
async fn move_to_history(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<u64> {
    // A job counts as finished when its parent is, so that a family is deleted together. The parent may already be in
    // the history.
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let ids = id_list(ids);
            let moved = sqlx::query(concat!(
                "INSERT INTO job_history (",
                past_columns!(),
                ", over_at) SELECT ",
                past_columns!(),
                ", max(finished_at, coalesce((SELECT p.finished_at FROM job p WHERE p.id = job.parent_id), 0),
                       coalesce((SELECT p.over_at FROM job_history p WHERE p.id = job.parent_id), 0))
                 FROM job WHERE id IN (SELECT unhex(value) FROM json_each($1))"
            ))
            .bind(&ids)
            .execute(&mut *conn)
            .await?
            .rows_affected();
            sqlx::query("DELETE FROM job WHERE id IN (SELECT unhex(value) FROM json_each($1))")
                .bind(&ids)
                .execute(conn)
                .await?;
            Ok(moved)
        }
        // By state, not by `finished_at`: otherwise PostgreSQL could use the archiving index and read all of it. A
        // locked row is about to be reopened or moved.
        Conn::Postgres(conn) => Ok(sqlx::query(concat!(
            "WITH picked AS MATERIALIZED (
                 SELECT id FROM job
                 WHERE id = ANY($1) AND state IN ('succeeded', 'failed', 'cancelled', 'timed_out') AND NOT dead
                 ORDER BY id FOR UPDATE SKIP LOCKED
             ),
             gone AS (
                 DELETE FROM job WHERE id = ANY (ARRAY (SELECT id FROM picked)) RETURNING ",
            past_columns!(),
            "
             )
             INSERT INTO job_history (",
            past_columns!(),
            ", over_at) SELECT ",
            past_columns!(),
            ", greatest(finished_at, (SELECT p.finished_at FROM job p WHERE p.id = gone.parent_id),
                        (SELECT p.over_at FROM job_history p WHERE p.id = gone.parent_id))
             FROM gone"
        ))
        .bind(ids.iter().map(|id| id.0).collect::<Vec<_>>())
        .execute(conn)
        .await?
        .rows_affected()),
    }
}

/// Moves a job and its children back from the history for a retry; children stay with their parent. Returns whether the
/// job was there.
pub async fn restore(tx: &mut Tx<'_>, id: JobId) -> Result<bool> {
    let came: Vec<JobId> = match tx.conn() {
        Conn::Sqlite(conn) => {
            let came = sqlx::query_scalar(concat!(
                "INSERT INTO job (",
                past_columns!(),
                ") SELECT ",
                past_columns!(),
                " FROM job_history WHERE id = $1 OR parent_id = $1 RETURNING id"
            ))
            .bind(id)
            .fetch_all(&mut *conn)
            .await?;
            sqlx::query("DELETE FROM job_history WHERE id = $1 OR parent_id = $1")
                .bind(id)
                .execute(conn)
                .await?;
            came
        }
        // Of two concurrent calls, the second waits and then finds nothing. An array, not OR, for which PostgreSQL
        // would scan the table.
        Conn::Postgres(conn) => {
            sqlx::query_scalar(concat!(
                "WITH gone AS (
                     DELETE FROM job_history
                     WHERE id = ANY (ARRAY (SELECT id FROM job_history WHERE parent_id = $1 UNION ALL SELECT $1::uuid))
                     RETURNING ",
                past_columns!(),
                ") INSERT INTO job (",
                past_columns!(),
                ") SELECT ",
                past_columns!(),
                " FROM gone RETURNING id"
            ))
            .bind(id)
            .fetch_all(conn)
            .await?
        }
    };
    Ok(came.contains(&id))
}

/// What one step of forgetting did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletionStep {
    /// Jobs that went.
    pub jobs: u64,
    /// When the last of them was over.
    pub last_finished_at: Timestamp,
    /// Nothing that old is left at or behind it.
    pub at_end: bool,
}

/// Deletes at most `limit` jobs of the history that ended at `from` or later and before `before`, oldest first, with
/// their steps and attempts. Deleted entries stay in the index until a vacuum; continuing from the last position avoids
/// passing them again.
pub async fn delete_old(tx: &mut Tx<'_>, before: Timestamp, from: Timestamp, limit: i64) -> Result<DeletionStep> {
    let over: Vec<Timestamp> = match tx.conn() {
        Conn::Sqlite(conn) => {
            let old: Vec<(JobId, Timestamp)> = sqlx::query_as(
                "SELECT id, over_at FROM job_history WHERE over_at < $1 AND over_at >= $2 ORDER BY over_at LIMIT $3 + 0",
            )
            .bind(before)
            .bind(from)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            let (ids, over): (Vec<JobId>, Vec<Timestamp>) = old.into_iter().unzip();
            let ids = id_list(&ids);
            for text in [
                "DELETE FROM step WHERE job_id IN (SELECT unhex(value) FROM json_each($1))",
                "DELETE FROM attempt WHERE job_id IN (SELECT unhex(value) FROM json_each($1))",
                "DELETE FROM job_history WHERE id IN (SELECT unhex(value) FROM json_each($1))",
            ] {
                sqlx::query(text).bind(&ids).execute(&mut *conn).await?;
            }
            over
        }
        // SKIP LOCKED: several schedulers share the work, and a job that comes back is passed by.
        Conn::Postgres(conn) => {
            sqlx::query_scalar(
                "WITH picked AS MATERIALIZED (
                     SELECT id FROM job_history WHERE over_at < $1 AND over_at >= $2
                     ORDER BY over_at LIMIT $3 FOR UPDATE SKIP LOCKED
                 ),
                 steps AS (DELETE FROM step WHERE job_id = ANY (ARRAY (SELECT id FROM picked))),
                 attempts AS (DELETE FROM attempt WHERE job_id = ANY (ARRAY (SELECT id FROM picked)))
                 DELETE FROM job_history WHERE id = ANY (ARRAY (SELECT id FROM picked)) RETURNING over_at",
            )
            .bind(before)
            .bind(from)
            .bind(limit)
            .fetch_all(conn)
            .await?
        }
    };
    Ok(DeletionStep {
        jobs: over.len() as u64,
        last_finished_at: over.iter().copied().max().unwrap_or(from),
        at_end: i64::try_from(over.len()).is_ok_and(|gone| gone < limit),
    })
}

/// How many jobs that ended before `before` archiving has still to scan; `most` means at least that many.
pub async fn count_unarchived(tx: &mut Tx<'_>, before: Timestamp, from: Position, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM job WHERE finished_at IS NOT NULL AND NOT dead AND finished_at < $1
                               AND (finished_at, id) > ($2, $3) LIMIT $4 + 0) found",
    )
    .bind(before)
    .bind(from.finished_at)
    .bind(from.id)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}

/// How many jobs of the history were over before `before`; `most` means at least that many.
pub async fn count_deletable(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<i64> {
    count_deletable_from(tx, before, Timestamp::from_micros(0), most).await
}

/// As [`count_deletable`], of those that were over at `from` or later.
pub async fn count_deletable_from(tx: &mut Tx<'_>, before: Timestamp, from: Timestamp, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM job_history WHERE over_at < $1 AND over_at >= $2 LIMIT $3 + 0) found",
    )
    .bind(before)
    .bind(from)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}
