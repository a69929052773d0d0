//! Leases: until when a worker is taken to be alive.
//!
//! A worker renews its own row and nothing else, and no transaction of a job locks that row, so a renewal waits for nobody. A
//! running job names its worker. When the row of a worker is gone, its jobs are taken back (`jobs/lost.rs`): each then has a
//! higher fence, and what the worker may still write is refused. Deleting the row is what ends a lease. A row that has passed
//! its time and is still there can be renewed.
//!
//! An id that lost its row never gets one again: its worker goes on under a new one. So a worker that is found without a row can
//! be relied on to stay without.

use std::time::Duration;

use towpath_domain::{JobId, Timestamp, WorkerId};

use crate::error::Result;
use crate::tx::{Conn, Dialect, Tx};

/// The end of a lease that time does not end: the last second of the year 9999.
pub(crate) const NEVER: Timestamp = Timestamp::from_micros(253_402_300_799_000_000);

/// Begins the lease of a worker that never had one. On SQLite, where one process is all there is, it has no end in time.
///
/// # Errors
/// As every statement.
pub async fn begin(tx: &mut Tx<'_>, worker: WorkerId, lease: Duration) -> Result<()> {
    let known = tx.now_param();
    // A worker that was not told whether it began begins again; it has claimed nothing meanwhile.
    match tx.conn() {
        Conn::Sqlite(conn) => sqlx::query(
            "INSERT INTO lease (worker_id, alive_until) VALUES ($1, $2)
             ON CONFLICT (worker_id) DO UPDATE SET alive_until = excluded.alive_until",
        )
        .bind(worker)
        .bind(NEVER)
        .execute(conn)
        .await
        .map(drop)?,
        Conn::Postgres(conn) => sqlx::query(
            "INSERT INTO lease (worker_id, alive_until) VALUES ($1, towpath_now($2) + $3 * interval '1 millisecond')
             ON CONFLICT (worker_id) DO UPDATE SET alive_until = excluded.alive_until",
        )
        .bind(worker)
        .bind(known)
        .bind(millis(lease))
        .execute(conn)
        .await
        .map(drop)?,
    }
    Ok(())
}

/// Extends the lease of a worker. Answers whether it has one: `false` means that its jobs are others' from now on. On SQLite
/// that is all it does: a write would be a commit of its own.
///
/// # Errors
/// As every statement.
pub async fn renew(tx: &mut Tx<'_>, worker: WorkerId, lease: Duration) -> Result<bool> {
    let known = tx.now_param();
    let renewed: Option<WorkerId> =
        match tx.conn() {
            Conn::Sqlite(conn) => {
                sqlx::query_scalar("SELECT worker_id FROM lease WHERE worker_id = $1")
                    .bind(worker)
                    .fetch_optional(conn)
                    .await?
            }
            Conn::Postgres(conn) => sqlx::query_scalar(
                "UPDATE lease SET alive_until = towpath_now($2) + $3 * interval '1 millisecond' WHERE worker_id = $1
                 RETURNING worker_id",
            )
            .bind(worker)
            .bind(known)
            .bind(millis(lease))
            .fetch_optional(conn)
            .await?,
        };
    Ok(renewed.is_some())
}

/// Ends the lease of a worker that has let go of its jobs.
///
/// # Errors
/// As every statement.
pub async fn end(tx: &mut Tx<'_>, worker: WorkerId) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("DELETE FROM lease WHERE worker_id = $1")
            .bind(worker)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Ends every lease, for SQLite: when a process starts, whoever had one is gone.
///
/// # Errors
/// As every statement.
pub async fn end_all(tx: &mut Tx<'_>) -> Result<()> {
    on!(tx, |conn| sqlx::query("DELETE FROM lease")
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Until when a running job is kept by its worker, unless that one renews its lease. `None` when it has lost it, or the job does
/// not run. On SQLite, where no time ends a lease, that is now.
///
/// # Errors
/// As every statement.
pub async fn until(tx: &mut Tx<'_>, job: JobId) -> Result<Option<Timestamp>> {
    let now = tx.now();
    // An old process has a lease for each job.
    let text = sql!(tx,
        sqlite: "SELECT l.alive_until FROM job j JOIN lease l ON l.worker_id = j.worker_id WHERE j.id = $1",
        postgres: "SELECT coalesce(l.alive_until, j.lease_until) FROM job j LEFT JOIN lease l ON l.worker_id = j.worker_id
                   WHERE j.id = $1");
    let until: Option<Option<Timestamp>> =
        on!(tx, |conn| sqlx::query_scalar(text).bind(job).fetch_optional(conn).await)?;
    Ok(until.flatten().map(|until| match tx.dialect() {
        Dialect::Sqlite => now,
        Dialect::Postgres => until,
    }))
}

/// Whether a look for lost workers may end leases that have passed their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// They are ended, unless the database's clock says a later time than this. It may stand still between the question and the
    /// answer, and those who would have renewed their leases with it.
    End {
        /// `None` is any time.
        by: Option<Timestamp>,
    },
    /// They are left alone: whoever looks was away, and so may have been those who would renew them.
    Leave,
}

/// How far a look goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only to the leases that it ends itself. They are a few rows, so this is cheap whatever the table of jobs went through.
    Leases,
    /// To everybody who has jobs: what others ended, too, and what was left the last time.
    Holders,
}

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// When it was, by the database's clock.
    pub at: Timestamp,
    /// Workers without a lease that have jobs, or may have.
    pub lost: Vec<WorkerId>,
}

/// Looks for workers that have jobs and no lease. Leases that have passed their time are ended first, if that is wanted. On SQLite,
/// where a look is made at a start only, it always reaches all.
///
/// # Errors
/// As every statement.
pub async fn look(tx: &mut Tx<'_>, expired: Expired, reach: Reach) -> Result<Look> {
    let (now, known) = (tx.now(), tx.now_param());
    let (ends, by) = match expired {
        Expired::End { by } => (true, by),
        Expired::Leave => (false, None),
    };
    match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query("DELETE FROM lease WHERE $2 AND ($3 IS NULL OR $1 <= $3) AND alive_until < $1")
                .bind(known)
                .bind(ends)
                .bind(by)
                .execute(&mut *conn)
                .await?;
            let lost = sqlx::query_scalar(
                "SELECT DISTINCT worker_id FROM job
                 WHERE state = 'running' AND worker_id NOT IN (SELECT worker_id FROM lease) ORDER BY worker_id",
            );
            Ok(Look {
                at: now,
                lost: lost.fetch_all(conn).await?,
            })
        }
        Conn::Postgres(conn) => {
            let rows: Vec<(Timestamp, Option<WorkerId>)> = sqlx::query_as(POSTGRES_LOOK)
                .bind(known)
                .bind(ends)
                .bind(by)
                .bind(reach == Reach::Holders)
                .fetch_all(conn)
                .await?;
            Ok(Look {
                at: rows.first().map_or(now, |(at, _)| *at),
                lost: rows.into_iter().filter_map(|(_, worker)| worker).collect(),
            })
        }
    }
}

/// One statement, since somebody sends it twice a second. The time comes with each row, and with one without a worker.
///
/// Those who have jobs are found by a skip scan over `job_worker`: one index probe each, however many jobs they have. But a probe
/// walks past entries of jobs that are over, until they are vacuumed: after 300,000 jobs beside one old snapshot it read 165,000
/// pages. So not every look goes there. A lease that is being renewed at this moment is passed by.
const POSTGRES_LOOK: &str = "WITH RECURSIVE clock AS MATERIALIZED (SELECT towpath_now($1) AS at),
     holder AS (
         (SELECT worker_id FROM job WHERE $4 AND state = 'running' ORDER BY worker_id LIMIT 1)
         UNION ALL
         SELECT (SELECT j.worker_id FROM job j WHERE j.state = 'running' AND j.worker_id > holder.worker_id
                 ORDER BY j.worker_id LIMIT 1)
         FROM holder WHERE holder.worker_id IS NOT NULL
     ),
     ended AS (
         DELETE FROM lease WHERE worker_id = ANY (ARRAY (
             SELECT worker_id FROM lease
             WHERE $2 AND ($3::timestamptz IS NULL OR (SELECT at FROM clock) <= $3) AND alive_until < (SELECT at FROM clock)
             FOR UPDATE SKIP LOCKED))
         RETURNING worker_id
     )
     SELECT clock.at, lost.worker_id FROM clock LEFT JOIN (
         SELECT worker_id FROM ended
         UNION
         SELECT worker_id FROM holder
         WHERE worker_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.worker_id = holder.worker_id)
     ) lost ON true
     ORDER BY 2";

/// Ends the leases of single jobs that have passed their time, which only old processes renew: those jobs are then their
/// worker's, which has no lease. Only PostgreSQL has old processes beside this one.
///
/// # Errors
/// As every statement.
pub async fn end_old(tx: &mut Tx<'_>) -> Result<u64> {
    let now = tx.now_param();
    match tx.conn() {
        Conn::Sqlite(_) => Ok(0),
        Conn::Postgres(conn) => Ok(sqlx::query(
            "UPDATE job SET lease_until = NULL WHERE id = ANY (ARRAY (
                 SELECT id FROM job WHERE state = 'running' AND lease_until < (SELECT towpath_now($1))
                 FOR UPDATE SKIP LOCKED))",
        )
        .bind(now)
        .execute(conn)
        .await?
        .rows_affected()),
    }
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
