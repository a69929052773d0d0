//! Statements for many jobs at once: the hot path of completing.
//!
//! Each locks its job rows in the order of their ids and sees fence and state as they are *once locked*: under READ
//! COMMITTED a row that changed meanwhile is read again before it counts as locked. Rows are found by `= ANY`, which
//! keeps cached plans from reading the table (see `postgres.rs`), and compared with the fences once locked: joining
//! before the lock costs twice as much.
//!
//! On PostgreSQL a job that runs is told by its `worker_id`, which only those have. By its state, the index of jobs at work
//! could serve the statement too, and while statistics are of a quiet minute PostgreSQL prefers it: each statement then reads
//! all jobs that run anywhere.

use std::fmt::Write;

use sqlx::{FromRow, SqliteConnection};
use towpath_domain::{JobId, Timestamp, WorkerId};

use super::leaving;
use crate::error::{Error, Result};
use crate::tx::{Conn, Tx};

/// A job and the fence its holder believes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromRow)]
pub struct Fenced {
    /// The job.
    pub id: JobId,
    /// The fence at which it was claimed.
    pub fence: i64,
}

/// A job that a worker has at work.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct AtWork {
    /// The job.
    pub id: JobId,
    /// The fence at which it was claimed.
    pub fence: i64,
    /// Somebody asked it to stop.
    pub cancel: bool,
}

/// The jobs that a worker has at work. Locks none.
///
/// # Errors
/// As every statement.
pub async fn at_work(tx: &mut Tx<'_>, worker: WorkerId) -> Result<Vec<AtWork>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT id, fence, cancel_at IS NOT NULL AS cancel FROM job WHERE state = 'running' AND worker_id = $1",
        )
        .bind(worker)
        .fetch_all(conn)
        .await
    })?)
}

/// Of these jobs, those that the worker has still at work. Locks none. Looks each up by its id: the index of jobs at work has dead
/// entries of every job that the worker had, until they are vacuumed, and a lease depends on this answer.
///
/// # Errors
/// Only those of the database.
pub async fn still_held(tx: &mut Tx<'_>, worker: WorkerId, held: &[Fenced]) -> Result<Vec<AtWork>> {
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

/// Ends jobs well that have nothing else to write: no business rows, no parent, no open children. Each gives its place in
/// its lane, if it has one, to whoever waits longest there; `lanes` are those of all of them, in order, each once. Returns
/// those that hit; the others moved on, or were asked to stop.
///
/// Without lanes this is one statement that writes, so that no transaction is needed.
///
/// # Errors
/// As every statement.
pub async fn complete(tx: &mut Tx<'_>, held: &[Fenced], lanes: &[String]) -> Result<Vec<Fenced>> {
    let now = tx.now();
    if !lanes.is_empty() {
        let left = match tx.conn() {
            Conn::Sqlite(conn) => leaving::sqlite(conn, now, held, lanes).await?,
            Conn::Postgres(conn) => leaving::postgres(conn, now, held, lanes).await?,
        };
        left.wakes.iter().for_each(|pool| tx.wake(pool));
        return Ok(left.done);
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

/// Which jobs [`sqlite_completes`] ended, when it ended `done` of them.
///
/// Nearly always all of them. Reading them back costs more than writing them: each row wakes this task.
pub(super) async fn done_sqlite(
    conn: &mut SqliteConnection,
    now: Timestamp,
    held: &[Fenced],
    done: i64,
) -> Result<Vec<Fenced>> {
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
pub(crate) fn as_json(held: &[Fenced]) -> String {
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
pub(crate) fn from_json(text: &str) -> Option<Vec<Fenced>> {
    let held: Vec<(JobId, i64)> = serde_json::from_str(text).ok()?;
    Some(held.into_iter().map(|(id, fence)| Fenced { id, fence }).collect())
}

/// One array of ids and one of fences, sorted by id, for `unnest`.
pub(crate) fn as_arrays(held: &[Fenced]) -> (Vec<sqlx::types::Uuid>, Vec<i64>) {
    held.iter().map(|job| (job.id.0, job.fence)).unzip()
}
