//! Leases: until when a worker counts as alive.
//!
//! A worker renews its own row, and no transaction of a job locks that row, so a renewal never waits. A running job
//! names its worker. When the row of a worker is deleted, its jobs are taken back (`jobs/lost.rs`): each gets a higher
//! fence, and late writes of the worker are refused. The lease ends with the deletion; an expired row that still exists
//! can be renewed.
//!
//! An id that lost its row never gets one again: its worker continues under a new id. So a worker without a row stays
//! without.

use std::time::Duration;

use towpath_domain::{JobId, Timestamp, WorkerId};

use crate::error::Result;
use crate::tx::{Conn, Dialect, Tx};

/// The end of a lease that time does not end: the last second of the year 9999.
pub(crate) const FAR_FUTURE: Timestamp = Timestamp::from_micros(253_402_300_799_000_000);

/// Begins the lease of a new worker. On SQLite, which has a single process, it never expires.
pub async fn begin(tx: &mut Tx<'_>, worker: WorkerId, lease: Duration) -> Result<()> {
    let known = tx.now_param();
    // A worker that was not told whether it began begins again; it has claimed nothing meanwhile.
    match tx.conn() {
        Conn::Sqlite(conn) => sqlx::query(
            "INSERT INTO lease (worker_id, alive_until) VALUES ($1, $2)
             ON CONFLICT (worker_id) DO UPDATE SET alive_until = excluded.alive_until",
        )
        .bind(worker)
        .bind(FAR_FUTURE)
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

/// Extends the lease of a worker. Returns `false` if it has none: its jobs belong to others from now on. On SQLite it
/// only checks: a write would need its own commit.
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

/// Ends every lease, for SQLite: when a process starts, all earlier holders are gone.
pub async fn end_all(tx: &mut Tx<'_>) -> Result<()> {
    on!(tx, |conn| sqlx::query("DELETE FROM lease")
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Until when the worker of a running job holds it, unless the lease is renewed. `None` if it was lost or the job does
/// not run. On SQLite, where leases do not expire, that is now.
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

/// Whether a scan for lost workers may end leases that have passed their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiredLeases {
    /// End expired leases, unless the database's clock is past this time. The process may have been suspended in
    /// between, together with the workers that would have renewed their leases.
    End {
        /// `None` is any time.
        by: Option<Timestamp>,
    },
    /// Keep expired leases: the caller was unavailable, and so may have been their workers.
    Keep,
}

/// How far a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostWorkerScope {
    /// Only for leases that it ends itself. These are a few rows, so this is cheap.
    Leases,
    /// To everyone who has jobs: what others ended, too, and what was left the last time.
    AllWorkers,
}

/// What a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostWorkers {
    /// When it was, by the database's clock.
    pub scanned_at: Timestamp,
    /// Workers without a lease that have jobs, or may have.
    pub workers: Vec<WorkerId>,
}

/// Finds workers that have jobs but no lease. Expired leases are ended first, if requested. On SQLite it always checks
/// all, as it only runs at startup.
pub async fn find_lost_workers(tx: &mut Tx<'_>, expired: ExpiredLeases, reach: LostWorkerScope) -> Result<LostWorkers> {
    let (now, known) = (tx.now(), tx.now_param());
    let (ends, by) = match expired {
        ExpiredLeases::End { by } => (true, by),
        ExpiredLeases::Keep => (false, None),
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
            Ok(LostWorkers {
                scanned_at: now,
                workers: lost.fetch_all(conn).await?,
            })
        }
        Conn::Postgres(conn) => {
            let rows: Vec<(Timestamp, Option<WorkerId>)> = sqlx::query_as(POSTGRES_FIND_LOST_WORKERS)
                .bind(known)
                .bind(ends)
                .bind(by)
                .bind(reach == LostWorkerScope::AllWorkers)
                .fetch_all(conn)
                .await?;
            Ok(LostWorkers {
                scanned_at: rows.first().map_or(now, |(at, _)| *at),
                workers: rows.into_iter().filter_map(|(_, worker)| worker).collect(),
            })
        }
    }
}

/// One statement, since it runs twice a second. The time comes with each row, also without a worker.
///
/// Workers with jobs are found by a skip scan over `job_worker`: one index probe each. But a probe passes dead entries
/// until a vacuum: after 300,000 jobs beside an old snapshot it read 165,000 pages. So not every scan goes there. A
/// lease that is being renewed is skipped.
const POSTGRES_FIND_LOST_WORKERS: &str = "WITH RECURSIVE clock AS MATERIALIZED (SELECT towpath_now($1) AS at),
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

/// Ends expired leases of single jobs, which only old processes renew: these jobs then belong to a worker without a
/// lease. Only for PostgreSQL, where old processes may still run.
pub async fn end_job_leases(tx: &mut Tx<'_>) -> Result<u64> {
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
