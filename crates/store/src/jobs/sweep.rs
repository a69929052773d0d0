//! What the scheduler looks for. Each finds candidates without locking; the caller locks and looks again.

use sqlx::FromRow;
use towpath_domain::{JobId, Timestamp};

use crate::error::Result;
use crate::tx::Tx;

/// A candidate: its id, and its lane, because lanes are locked before jobs.
#[derive(Clone, Debug, FromRow)]
pub struct Candidate {
    /// The job.
    pub id: JobId,
    /// Its lane.
    pub lane: Option<String>,
}

/// Scheduled jobs with a lane whose time has come, the longest due first.
///
/// # Errors
/// As every statement.
pub async fn due(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Candidate>> {
    let text = sql!(tx,
        sqlite: "SELECT id, lane FROM job WHERE state = 'scheduled' AND run_at <= $1 AND lane IS NOT NULL
                 ORDER BY run_at, id LIMIT $2 + 0",
        postgres: "SELECT id, lane FROM job WHERE state = 'scheduled' AND run_at <= towpath_now($1) AND lane IS NOT NULL
                   ORDER BY run_at, id LIMIT $2 + 0");
    find(tx, text, limit).await
}

/// Readies due jobs that have no lane, in one statement, and wakes their pools. Returns how many.
///
/// # Errors
/// As every statement.
pub async fn ready_plain(tx: &mut Tx<'_>, limit: i64) -> Result<usize> {
    let text = sql!(tx,
        sqlite: "UPDATE job SET state = 'ready' WHERE id IN (
                     SELECT id FROM job WHERE state = 'scheduled' AND run_at <= $1 AND lane IS NULL
                     ORDER BY run_at LIMIT $2 + 0)
                 RETURNING pool",
        // SKIP LOCKED: several schedulers share the work instead of waiting for one another.
        postgres: "UPDATE job SET state = 'ready' WHERE id = ANY (ARRAY (
                       SELECT id FROM job WHERE state = 'scheduled' AND run_at <= towpath_now($1) AND lane IS NULL
                       ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED))
                   RETURNING pool");
    let now = tx.now_param();
    let pools: Vec<String> = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(now)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    for pool in &pools {
        tx.wake(pool);
    }
    Ok(pools.len())
}

/// Running jobs whose lease has ended.
///
/// # Errors
/// As every statement.
pub async fn expired(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Candidate>> {
    let text = sql!(tx,
        sqlite: "SELECT id, lane FROM job WHERE state = 'running' AND lease_until < $1 ORDER BY lease_until, id LIMIT $2 + 0",
        postgres: "SELECT id, lane FROM job WHERE state = 'running' AND lease_until < towpath_now($1)
                   ORDER BY lease_until, id LIMIT $2 + 0");
    find(tx, text, limit).await
}

/// Jobs past their deadline. A running one has its worker's own timer, so the caller gives it some grace.
///
/// # Errors
/// As every statement.
pub async fn overdue(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Candidate>> {
    let text = sql!(tx,
        sqlite: "SELECT id, lane FROM job WHERE deadline_at IS NOT NULL AND finished_at IS NULL AND deadline_at <= $1
                 ORDER BY deadline_at, id LIMIT $2 + 0",
        postgres: "SELECT id, lane FROM job WHERE deadline_at IS NOT NULL AND finished_at IS NULL
                   AND deadline_at <= towpath_now($1) ORDER BY deadline_at, id LIMIT $2 + 0");
    find(tx, text, limit).await
}

/// Readies every job an earlier life of this process held: on SQLite one process is all there is, so whatever is
/// running at its start belongs to nobody. Returns their ids.
///
/// # Errors
/// As every statement.
pub async fn ready_earlier_boots(tx: &mut Tx<'_>) -> Result<Vec<Candidate>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT id, lane FROM job WHERE state = 'running' ORDER BY id")
            .fetch_all(conn)
            .await
    })?)
}

/// Deletes at most `limit` jobs that ended before `before`, with their steps and attempts. A child stays as long as
/// its parent does. Returns how many jobs went.
///
/// # Errors
/// As every statement.
pub async fn forget(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    // Ids are version 7, so the oldest jobs have the smallest ids and no index on finished_at is needed.
    let ids: Vec<JobId> = on!(tx, |conn| {
        sqlx::query_scalar(
            "SELECT j.id FROM job j WHERE j.finished_at < $1 AND j.created_at < $1 AND NOT j.dead
             AND NOT EXISTS (SELECT 1 FROM job p WHERE p.id = j.parent_id)
             ORDER BY j.id LIMIT $2 + 0",
        )
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?;
    let mut gone = 0;
    for id in ids {
        on!(tx, |conn| {
            sqlx::query("DELETE FROM step WHERE job_id = $1")
                .bind(id)
                .execute(&mut *conn)
                .await?;
            sqlx::query("DELETE FROM attempt WHERE job_id = $1")
                .bind(id)
                .execute(&mut *conn)
                .await?;
            gone += sqlx::query("DELETE FROM job WHERE id = $1")
                .bind(id)
                .execute(conn)
                .await?
                .rows_affected();
        });
    }
    Ok(gone)
}

async fn find(tx: &mut Tx<'_>, text: &'static str, limit: i64) -> Result<Vec<Candidate>> {
    let now = tx.now_param();
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(now)
        .bind(limit)
        .fetch_all(conn)
        .await)?)
}
