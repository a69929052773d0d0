//! How busy an agent server is.

use towpath_domain::job::JobState;
use towpath_domain::{TenantId, Timestamp};

use crate::{Result, Tx};

/// Waiting runs looked at for the times they wait.
const SAMPLE: i64 = 10_000;

/// Unfinished runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenRuns {
    /// Wait, for a worker or for their turn on their thread. Delayed ones are not counted.
    pub pending: i64,
    /// A worker is at it.
    pub running: i64,
    pub longest_wait_seconds: f64,
    /// Half of the waiting runs wait longer, in seconds.
    pub median_wait_seconds: f64,
    /// The longest wait of a run that nothing is before, in seconds.
    pub longest_unblocked_wait_seconds: f64,
}

/// Counts the runs of a workspace that are not over.
pub async fn open_runs(tx: &mut Tx<'_>, tenant: TenantId) -> Result<OpenRuns> {
    let now = tx.now();
    let counts: Vec<(JobState, i64)> = on!(tx, |conn| sqlx::query_as(
        "SELECT j.state, count(*) FROM run r JOIN job j ON j.id = r.job_id
         WHERE r.tenant_id = $1 AND r.status = 'pending' AND r.created_at <= $2 GROUP BY j.state",
    )
    .bind(tenant)
    .bind(now)
    .fetch_all(conn)
    .await)?;
    let waiting: Vec<(JobState, Timestamp)> = on!(tx, |conn| sqlx::query_as(
        "SELECT j.state, r.created_at FROM run r JOIN job j ON j.id = r.job_id
         WHERE r.tenant_id = $1 AND r.status = 'pending' AND r.created_at <= $2 AND j.state <> 'running'
         ORDER BY r.created_at LIMIT $3 + 0",
    )
    .bind(tenant)
    .bind(now)
    .bind(SAMPLE)
    .fetch_all(conn)
    .await)?;
    let mut open = OpenRuns::default();
    for (state, count) in counts {
        if state == JobState::Running {
            open.running += count;
        } else {
            open.pending += count;
        }
    }
    let wait = |since: &Timestamp| now.since(*since).as_secs_f64();
    // Oldest first, so the waits fall.
    open.longest_wait_seconds = waiting.first().map_or(0.0, |(_, since)| wait(since));
    open.median_wait_seconds = waiting.get(waiting.len() / 2).map_or(0.0, |(_, since)| wait(since));
    open.longest_unblocked_wait_seconds = waiting
        .iter()
        .find(|(state, _)| *state == JobState::Ready)
        .map_or(0.0, |(_, since)| wait(since));
    Ok(open)
}
