//! Candidates for the scheduler, found without locks; the caller locks and checks again.

use sqlx::FromRow;
use towpath_domain::{JobId, Timestamp};

use super::ready::ReadyRow;
use crate::error::Result;
use crate::tx::Tx;

/// A candidate: its id, and its lane, because lanes are locked before jobs.
#[derive(Clone, Debug, FromRow)]
pub struct Candidate {
    pub id: JobId,
    pub lane: Option<String>,
    /// Its due time or its deadline: with the id, its place among the candidates.
    pub at: Timestamp,
}

impl Candidate {
    /// Where the candidates behind this one begin.
    #[must_use]
    pub const fn position(&self) -> (Timestamp, JobId) {
        (self.at, self.id)
    }
}

/// Before all candidates.
pub const FIRST: (Timestamp, JobId) = (Timestamp::from_micros(0), JobId::nil());

/// Due `scheduled` jobs after `after` that need a lane slot, longest due first.
pub async fn due(tx: &mut Tx<'_>, after: (Timestamp, JobId), limit: i64) -> Result<Vec<Candidate>> {
    let text = sql!(tx,
        sqlite: "SELECT id, lane, run_at AS at FROM job
                 WHERE state = 'scheduled' AND run_at <= $1 AND (run_at, id) > ($2, $3) AND lane IS NOT NULL
                   AND NOT lane_held ORDER BY run_at, id LIMIT $4 + 0",
        postgres: "SELECT id, lane, run_at AS at FROM job
                   WHERE state = 'scheduled' AND run_at <= towpath_now($1) AND (run_at, id) > ($2, $3)
                     AND lane IS NOT NULL AND NOT lane_held ORDER BY run_at, id LIMIT $4 + 0");
    find(tx, text, after, limit).await
}

/// Makes due jobs ready that have no lane or hold their slot, in one statement, and wakes their pools. Returns how
/// many. Excludes suspects, which are claimed while scheduled, see [`claim_suspects`](super::claim_suspects).
pub async fn ready_plain(tx: &mut Tx<'_>, limit: i64) -> Result<usize> {
    let text = sql!(tx,
        sqlite: "UPDATE job SET state = 'ready' WHERE id IN (
                     SELECT id FROM job WHERE state = 'scheduled' AND run_at <= $1 AND (lane IS NULL OR lane_held) AND lost_leases < 2
                     ORDER BY run_at LIMIT $2 + 0)
                 RETURNING id, tenant_id, pool, priority, run_at",
        // SKIP LOCKED: several schedulers share the work instead of waiting for one another.
        postgres: "UPDATE job SET state = 'ready' WHERE id = ANY (ARRAY (
                       SELECT id FROM job WHERE state = 'scheduled' AND run_at <= towpath_now($1) AND (lane IS NULL OR lane_held)
                       AND lost_leases < 2 ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED))
                   RETURNING id, tenant_id, pool, priority, run_at");
    let now = tx.now_param();
    let ready: Vec<ReadyRow> = on!(tx, |conn| sqlx::query_as(text)
        .bind(now)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let count = ready.len();
    for job in ready {
        tx.ready(job.into());
    }
    Ok(count)
}

/// Jobs after `after` that are past their deadline. A running job's worker has its own timer, so the caller allows some
/// grace.
pub async fn overdue(tx: &mut Tx<'_>, after: (Timestamp, JobId), limit: i64) -> Result<Vec<Candidate>> {
    let text = sql!(tx,
        sqlite: "SELECT id, lane, deadline_at AS at FROM job
                 WHERE deadline_at IS NOT NULL AND finished_at IS NULL AND deadline_at <= $1
                   AND (deadline_at, id) > ($2, $3) ORDER BY deadline_at, id LIMIT $4 + 0",
        postgres: "SELECT id, lane, deadline_at AS at FROM job
                   WHERE deadline_at IS NOT NULL AND finished_at IS NULL AND deadline_at <= towpath_now($1)
                     AND (deadline_at, id) > ($2, $3) ORDER BY deadline_at, id LIMIT $4 + 0");
    find(tx, text, after, limit).await
}

async fn find(tx: &mut Tx<'_>, text: &'static str, after: (Timestamp, JobId), limit: i64) -> Result<Vec<Candidate>> {
    let now = tx.now_param();
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(now)
        .bind(after.0)
        .bind(after.1)
        .bind(limit)
        .fetch_all(conn)
        .await)?)
}
