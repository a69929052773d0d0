//! Statements on many jobs at once: the hot path of completion.
//!
//! Each locks its job rows in the order of their ids and evaluates fence and state *once locked*: under READ COMMITTED
//! a changed row is read again before it counts as locked. Rows are found by `= ANY`, which keeps cached plans from
//! reading the table (see `postgres.rs`), and compared with the fences after locking: joining before the lock costs
//! twice as much.
//!
//! On PostgreSQL a running job is recognised by its `worker_id`. With a condition on the state, the index of running
//! jobs could serve the statement too; with statistics from a quiet minute PostgreSQL prefers it, and each statement
//! then reads all running jobs.

use std::fmt::Write;

use sqlx::{FromRow, SqliteConnection};
use towpath_domain::{JobId, Timestamp, WorkerId};

use super::lane_completion;
use crate::error::{Error, Result};
use crate::tx::{Conn, Tx};

/// A job and the fence its holder believes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromRow)]
pub struct JobFence {
    pub id: JobId,
    /// The fence at which it was claimed.
    pub fence: i64,
}

/// A job that a worker has at work.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct RunningJob {
    pub id: JobId,
    /// The fence at which it was claimed.
    pub fence: i64,
    /// A stop was requested.
    pub cancel: bool,
}

/// The jobs that a worker has at work. Locks none.
pub async fn running_jobs(tx: &mut Tx<'_>, worker: WorkerId) -> Result<Vec<RunningJob>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT id, fence, cancel_at IS NOT NULL AS cancel FROM job WHERE state = 'running' AND worker_id = $1",
        )
        .bind(worker)
        .fetch_all(conn)
        .await
    })?)
}

/// Those of these jobs that the worker still holds. Takes no locks. Looks each up by id: the index of running jobs has
/// dead entries of all earlier jobs of the worker until a vacuum, and a lease depends on this answer.
pub async fn jobs_still_held(tx: &mut Tx<'_>, worker: WorkerId, held: &[JobFence]) -> Result<Vec<RunningJob>> {
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_as(
                "SELECT id, fence, cancel_at IS NOT NULL AS cancel FROM job
                 WHERE id IN (SELECT unhex(value ->> 0) FROM json_each($1)) AND +worker_id = $2",
            )
            .bind(as_json(held))
            .bind(worker)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_as(
                "SELECT id, fence, cancel_at IS NOT NULL AS cancel FROM job WHERE id = ANY($1) AND worker_id = $2",
            )
            .bind(as_arrays(held).0)
            .bind(worker)
            .fetch_all(conn)
            .await?
        }
    })
}

/// Ends jobs, for SQLite.
macro_rules! sqlite_completes {
    () => {
        "UPDATE job SET state = 'succeeded', finished_at = $2, worker_id = NULL, lease_until = NULL, lane_held = 0
         FROM (SELECT unhex(value ->> 0) AS id, value ->> 1 AS fence FROM json_each($1)) held
         WHERE job.id = held.id AND job.fence = held.fence AND job.state = 'running' AND job.cancel_at IS NULL"
    };
}
pub(super) use sqlite_completes;

/// Those that [`sqlite_completes`] ended just now, as [`from_json`] reads them.
macro_rules! sqlite_completed {
    () => {
        "SELECT json_group_array(json_array(hex(job.id), job.fence))
         FROM (SELECT unhex(value ->> 0) AS id, value ->> 1 AS fence FROM json_each($1)) held
         JOIN job ON job.id = held.id AND job.fence = held.fence
         WHERE job.state = 'succeeded' AND job.finished_at = $2"
    };
}
pub(super) use sqlite_completed;

/// Completes jobs that write nothing else: no business rows, no parent, no open children. Each passes its lane slot, if
/// any, to the job that has waited longest; `lanes` lists all their lanes once, sorted. Returns the completed ones; the
/// others were changed concurrently or asked to stop.
///
/// Without lanes this is a single writing statement, so no transaction is needed.
pub async fn complete(tx: &mut Tx<'_>, held: &[JobFence], lanes: &[String]) -> Result<Vec<JobFence>> {
    let now = tx.now();
    if !lanes.is_empty() {
        let left = match tx.conn() {
            Conn::Sqlite(conn) => lane_completion::sqlite(conn, now, held, lanes).await?,
            Conn::Postgres(conn) => lane_completion::postgres(conn, now, held, lanes).await?,
        };
        left.promoted.into_iter().for_each(|job| tx.ready(job));
        return Ok(left.completed);
    }
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            let done = sqlx::query(sqlite_completes!())
                .bind(as_json(held))
                .bind(now)
                .execute(&mut *conn)
                .await?;
            done_sqlite(conn, now, held, i64::try_from(done.rows_affected()).unwrap_or(i64::MAX)).await?
        }
        Conn::Postgres(conn) => {
            let (ids, fences) = as_arrays(held);
            sqlx::query_as(
                "WITH locked AS MATERIALIZED (
                     SELECT id, fence FROM job WHERE id = ANY($1) AND worker_id IS NOT NULL AND cancel_at IS NULL
                     ORDER BY id FOR UPDATE
                 ),
                 held AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS held(id, fence))
                 UPDATE job SET state = 'succeeded', finished_at = $3, worker_id = NULL, lease_until = NULL
                 WHERE id = ANY (ARRAY (SELECT id FROM locked JOIN held USING (id, fence)))
                 RETURNING id, fence",
            )
            .bind(ids)
            .bind(fences)
            .bind(now)
            .fetch_all(conn)
            .await?
        }
    })
}

/// The jobs that [`sqlite_completes`] completed, given that it completed `done` of them.
///
/// Nearly always all of them. Reading them back costs more than writing them, because each row wakes this task.
pub(super) async fn done_sqlite(
    conn: &mut SqliteConnection,
    now: Timestamp,
    held: &[JobFence],
    done: i64,
) -> Result<Vec<JobFence>> {
    if usize::try_from(done).is_ok_and(|done| done == held.len()) {
        return Ok(held.to_vec());
    }
    let done: String = sqlx::query_scalar(sqlite_completed!())
        .bind(as_json(held))
        .bind(now)
        .fetch_one(conn)
        .await?;
    from_json(&done).ok_or_else(|| Error::corrupt("job", "id", "one that is over"))
}

/// `[["hex id", fence], …]` for `json_each`: SQLite has no arrays.
pub(crate) fn as_json(held: &[JobFence]) -> String {
    let mut text = String::with_capacity(held.len() * 48 + 2);
    text.push('[');
    for (nth, job) in held.iter().enumerate() {
        let comma = if nth == 0 { "" } else { "," };
        let _ = write!(text, "{comma}[\"{}\",{}]", job.id.0.simple(), job.fence);
    }
    text.push(']');
    text
}

/// The same read back.
pub(crate) fn from_json(text: &str) -> Option<Vec<JobFence>> {
    let held: Vec<(JobId, i64)> = serde_json::from_str(text).ok()?;
    Some(held.into_iter().map(|(id, fence)| JobFence { id, fence }).collect())
}

/// One array of ids and one of fences, sorted by id, for `unnest`.
pub(crate) fn as_arrays(held: &[JobFence]) -> (Vec<sqlx::types::Uuid>, Vec<i64>) {
    held.iter().map(|job| (job.id.0, job.fence)).unzip()
}
