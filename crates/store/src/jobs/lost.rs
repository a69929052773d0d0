//! Jobs of workers that lost their lease.
//!
//! Most return to `scheduled` in one statement per worker, due after a delay, and keep their lane slot. Rows locked by
//! another transaction are skipped and found by the next scan. Jobs that must end instead, because they were asked to
//! stop or lost too many leases, affect lanes, families and business rows, and are left to the caller.
//!
//! A worker without a lease never gets one again (see `leases.rs`), so its jobs need no second check.

use std::fmt::Write as _;

use towpath_domain::job::{MAX_LOST_LEASES, SUSPECT};
use towpath_domain::{JobId, WorkerId};

use super::bulk;
use super::bulk::JobFence;
use super::ready::ReadyRow;
use crate::error::Result;
use crate::tx::{Conn, Tx};

// The statements say these numbers, so that the index of suspects can serve them.
const _: () = assert!(
    MAX_LOST_LEASES == 5 && SUSPECT == 2,
    "the statements of lost.rs, sweep.rs, claim.rs, lanes.rs and leaving.rs"
);

/// Whether jobs that lost their worker rest before they are retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RescueDelay {
    /// As in [`backoff_after_lost_lease`](towpath_domain::job::backoff_after_lost_lease): random delays, so that what
    /// killed a worker does not meet all its neighbours again at the same moment.
    Backoff,
    /// None: the process has just been started.
    Immediate,
}

/// Why their attempt ended, for the operator.
const LOST: &str = "its worker stopped renewing the lease";

/// Takes at most `limit` jobs back from a worker without a lease, raises their fences and records the attempts. Returns
/// how many. After a first lost lease without a delay a job is ready immediately; others wait for the scheduler, or to
/// be claimed alone.
pub async fn take_back(tx: &mut Tx<'_>, worker: WorkerId, rest: RescueDelay, limit: i64) -> Result<usize> {
    let (now, known) = (tx.now(), tx.now_param());
    let rests = i64::from(rest == RescueDelay::Backoff);
    let back: Vec<ReadyRow> = match tx.conn() {
        Conn::Sqlite(conn) => {
            let held: Vec<JobFence> = sqlx::query_as(
                "SELECT id, fence FROM job
                 WHERE state = 'running' AND worker_id = $1 AND cancel_at IS NULL AND lost_leases < 5 LIMIT $2 + 0",
            )
            .bind(worker)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            if held.is_empty() {
                return Ok(0);
            }
            let held = bulk::as_json(&held);
            sqlx::query(
                "INSERT INTO attempt (job_id, fence, outcome, failure, error, worker_id, at)
                 SELECT unhex(value ->> 0), value ->> 1, 'lost', NULL, $2, $3, $4 FROM json_each($1) WHERE true
                 ON CONFLICT (job_id, fence) DO NOTHING",
            )
            .bind(&held)
            .bind(LOST)
            .bind(worker)
            .bind(now)
            .execute(&mut *conn)
            .await?;
            sqlx::query_as(
                "UPDATE job SET state = CASE WHEN $3 = 0 AND lost_leases = 0 THEN 'ready' ELSE 'scheduled' END,
                                run_at = $2 + $3 * (1 << min(lost_leases, 2)) * (500 + abs(random() % 1001)) * 1000,
                                lost_leases = lost_leases + 1, fence = fence + 1, worker_id = NULL, lease_until = NULL
                 WHERE id IN (SELECT unhex(value ->> 0) FROM json_each($1))
                 RETURNING id, tenant_id, pool, priority, run_at",
            )
            .bind(&held)
            .bind(now)
            .bind(rests)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_as(
                "WITH lost AS MATERIALIZED (
                     SELECT id, fence FROM job
                     WHERE state = 'running' AND worker_id = $2 AND lease_until IS NULL AND cancel_at IS NULL
                       AND lost_leases < 5
                     LIMIT $4 FOR UPDATE SKIP LOCKED
                 ),
                 noted AS (
                     INSERT INTO attempt (job_id, fence, outcome, failure, error, worker_id, at)
                     SELECT id, fence, 'lost', NULL, $5, $2, $6 FROM lost
                     ON CONFLICT (job_id, fence) DO NOTHING
                 )
                 UPDATE job SET state = CASE WHEN $3 = 0 AND lost_leases = 0 THEN 'ready' ELSE 'scheduled' END,
                                run_at = (SELECT towpath_now($1))
                                         + $3 * (1 << least(lost_leases, 2)::int) * (0.5 + random()) * interval '1 second',
                                lost_leases = lost_leases + 1, fence = fence + 1, worker_id = NULL
                 WHERE id = ANY (ARRAY (SELECT id FROM lost))
                 RETURNING id, tenant_id, pool, priority, run_at",
            )
            .bind(known)
            .bind(worker)
            .bind(rests)
            .bind(limit)
            .bind(LOST)
            .bind(now)
            .fetch_all(conn)
            .await?
        }
    };
    let count = back.len();
    if rest == RescueDelay::Immediate {
        back.into_iter().for_each(|job| tx.ready(job.into()));
    }
    Ok(count)
}

/// The jobs of these workers that [`take_back`] leaves because they must end. In id order, at most `limit` after
/// `after`.
pub async fn exhausted(tx: &mut Tx<'_>, workers: &[WorkerId], after: JobId, limit: i64) -> Result<Vec<JobId>> {
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            let mut ids = String::from("[");
            for (nth, worker) in workers.iter().enumerate() {
                let comma = if nth == 0 { "" } else { "," };
                let _ = write!(ids, "{comma}\"{}\"", worker.0.simple());
            }
            ids.push(']');
            sqlx::query_scalar(
                "SELECT id FROM job WHERE state = 'running' AND worker_id IN (SELECT unhex(value) FROM json_each($1))
                   AND (cancel_at IS NOT NULL OR lost_leases >= 5) AND id > $2
                 ORDER BY id LIMIT $3 + 0",
            )
            .bind(ids)
            .bind(after)
            .bind(limit)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            let ids: Vec<_> = workers.iter().map(|worker| worker.0).collect();
            sqlx::query_scalar(
                "SELECT id FROM job WHERE state = 'running' AND worker_id = ANY($1) AND lease_until IS NULL
                   AND (cancel_at IS NOT NULL OR lost_leases >= 5) AND id > $2
                 ORDER BY id LIMIT $3 + 0",
            )
            .bind(ids)
            .bind(after)
            .bind(limit)
            .fetch_all(conn)
            .await?
        }
    })
}

/// Limits lock waits in this transaction to the duration of a few statements. For sweeps, which come back later: one
/// locked row must not block the others.
pub async fn limit_lock_wait(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SET LOCAL lock_timeout = '500ms'").execute(conn).await?;
    }
    Ok(())
}

/// The pools in which a job waits to be claimed alone.
pub async fn suspects(tx: &mut Tx<'_>) -> Result<Vec<String>> {
    let now = tx.now_param();
    let text = sql!(tx,
        sqlite: "SELECT DISTINCT pool FROM job WHERE state = 'scheduled' AND lost_leases >= 2 AND run_at <= $1
                   AND (lane IS NULL OR lane_held)",
        // By its pool, and by a sum: `run_at` alone could be looked up in the index of all that is due.
        postgres: "SELECT DISTINCT pool FROM job WHERE state = 'scheduled' AND lost_leases >= 2 AND pool >= ''
                     AND run_at + interval '0' <= (SELECT towpath_now($1)) AND (lane IS NULL OR lane_held)");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(now)
        .fetch_all(conn)
        .await)?)
}
