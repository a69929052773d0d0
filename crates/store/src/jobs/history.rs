//! Jobs that are over, once they have left the table that everybody works on.
//!
//! `job` holds what is open, what ended a short while ago, dead letters, and the children of jobs that are open or dead
//! letters. Everything else that is over lies in `job_history`, where nobody claims, locks or counts. Whoever reads a job by
//! its id, lists jobs, or asks for the children of one finds it in either. A job that is tried again comes back first.

use sqlx::FromRow;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp};

use super::Job;
use super::family::id_list;
use crate::error::Result;
use crate::tx::{Conn, Tx};

/// What is kept of a job. A job that is over has neither worker nor lease nor place in a lane, and no dead letter is here.
macro_rules! past_columns {
    () => {
        "id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq, keep_place, \
         parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, cancel_at, error, traceparent, \
         created_at, started_at, finished_at"
    };
}

/// A row of the history.
#[derive(FromRow)]
struct Past {
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

impl From<Past> for Job {
    fn from(past: Past) -> Self {
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
    let found: Option<Past> = on!(tx, |conn| sqlx::query_as(concat!(
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
    let found: Vec<Past> = on!(tx, |conn| sqlx::query_as(concat!(
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

/// Where a walk through the jobs that are over has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// When the last job looked at ended.
    pub finished_at: Timestamp,
    /// That job.
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
pub struct Archived {
    /// Jobs that left.
    pub moved: u64,
    /// Behind the last job looked at.
    pub position: Position,
    /// Nothing is left behind it.
    pub at_end: bool,
}

/// A job that is over.
#[derive(FromRow)]
struct Over {
    id: JobId,
    finished_at: Timestamp,
    /// Whether nobody needs it among the open ones.
    leaves: bool,
}

/// Whether the walk has the index it needs. Without it each step would read all open jobs and sort those that are over.
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

/// Looks at the next `limit` jobs that ended before `before`, and moves to the history those that may go. The others stay
/// behind the walk until it begins anew: children of a job that is open or a dead letter, and jobs with children that are
/// still ending. While the index of the walk is still to be made, nothing is moved.
///
/// # Errors
/// As every statement.
pub async fn archive(tx: &mut Tx<'_>, before: Timestamp, from: Position, limit: i64) -> Result<Archived> {
    if !can_walk(tx).await? {
        return Ok(Archived {
            moved: 0,
            position: from,
            at_end: true,
        });
    }
    // Subqueries of one row each. Of EXISTS, PostgreSQL may make a join that reads the table.
    let found: Vec<Over> = on!(tx, |conn| {
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
    Ok(Archived {
        moved: if leaving.is_empty() {
            0
        } else {
            leave(tx, &leaving).await?
        },
        position,
        at_end: i64::try_from(found.len()).is_ok_and(|found| found < limit),
    })
}

/// Moves those of these jobs that are over and no dead letters.
async fn leave(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<u64> {
    // A job counts as over when its parent is, too: so a family is forgotten at the same time. The parent may have left before.
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
        // Told by the state, not by `finished_at`: with that the index of the walk could serve, and PostgreSQL would read all of
        // it. Whoever holds a row is about to open it again, or moves it.
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

/// Brings a job back from the history, to be tried again, and its children with it: they stay among the open jobs for as long
/// as their parent does. Answers whether the job itself was there.
///
/// # Errors
/// As every statement.
pub async fn recall(tx: &mut Tx<'_>, id: JobId) -> Result<bool> {
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
        // Of two at once, the second waits for the first and finds nothing. An array, not OR, for which PostgreSQL reads the table.
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
pub struct Forgotten {
    /// Jobs that went.
    pub jobs: u64,
    /// When the last of them was over.
    pub reached: Timestamp,
    /// Nothing that old is left at or behind it.
    pub at_end: bool,
}

/// Deletes at most `limit` jobs of the history that were over at `from` or later and before `before`, the first to be over
/// first, with their steps and attempts. What was deleted stays in the index until the table is vacuumed; who goes on from
/// where the last step came to does not walk past it.
///
/// # Errors
/// As every statement.
pub async fn forget(tx: &mut Tx<'_>, before: Timestamp, from: Timestamp, limit: i64) -> Result<Forgotten> {
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
    Ok(Forgotten {
        jobs: over.len() as u64,
        reached: over.iter().copied().max().unwrap_or(from),
        at_end: i64::try_from(over.len()).is_ok_and(|gone| gone < limit),
    })
}

/// How many jobs that ended before `before` a walk has still to look at; `most` means so many or more.
///
/// # Errors
/// As every statement.
pub async fn unarchived(tx: &mut Tx<'_>, before: Timestamp, from: Position, most: i64) -> Result<i64> {
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

/// How many jobs of the history were over before `before`; `most` means so many or more.
///
/// # Errors
/// As every statement.
pub async fn unforgotten(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<i64> {
    unforgotten_from(tx, before, Timestamp::from_micros(0), most).await
}

/// As [`unforgotten`], of those that were over at `from` or later.
///
/// # Errors
/// As every statement.
pub async fn unforgotten_from(tx: &mut Tx<'_>, before: Timestamp, from: Timestamp, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM job_history WHERE over_at < $1 AND over_at >= $2 LIMIT $3 + 0) found",
    )
    .bind(before)
    .bind(from)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}
