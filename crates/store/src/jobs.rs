//! Job rows. `durable` decides what a transition means; here each is one statement that returns whether it applied.

use sqlx::FromRow;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp, WorkerId};

use crate::error::Result;
use crate::tx::{Conn, Tx};

mod bulk;
mod claim;
mod family;
mod history;
mod lane_completion;
mod list;
mod lost;
mod ready;
mod sweep;

pub use bulk::{JobFence, RunningJob, complete, jobs_still_held, running_jobs};
pub(crate) use claim::SQLITE_PICKED;
pub use claim::{ClaimOutcome, ClaimPosition, ClaimRequest, ClaimedJob, claim, claim_suspects, complete_and_claim};
pub use family::{
    cancel_all, children, count_children, count_ended_children, has_new_children, insert_all, lanes_and_parents,
    mark_cancel_all, open_children, release_savepoint, rollback_to_savepoint, savepoint, unfinished_children,
};
pub use history::{
    ArchiveStep, DeletionStep, Position, archive, count_deletable, count_deletable_from, count_unarchived, delete_old,
    restore,
};
pub use list::{Filter, JobSummary, RunningCount, count_dead, dead, list, running_counts};
pub use lost::{RescueDelay, exhausted, limit_lock_wait, suspects, take_back};
pub use ready::ready_jobs;
pub use sweep::{Candidate, FIRST, due, overdue, ready_plain};

/// A job as it is.
#[derive(Clone, Debug, FromRow)]
pub struct Job {
    pub id: JobId,
    pub tenant_id: TenantId,
    pub kind: String,
    pub pool: String,
    pub priority: i64,
    pub state: JobState,
    pub run_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    pub input: String,
    pub cursor: Option<String>,
    pub lane: Option<String>,
    pub lane_seq: Option<i64>,
    pub lane_held: bool,
    pub keep_place: bool,
    pub parent_id: Option<JobId>,
    pub open_children: i64,
    pub bad_children: i64,
    pub attempt: i64,
    pub failures: i64,
    pub lost_leases: i64,
    pub fence: i64,
    pub worker_id: Option<WorkerId>,
    pub cancel_at: Option<Timestamp>,
    pub error: Option<String>,
    pub dead: bool,
    pub traceparent: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

/// A job about to be recorded, its place already decided.
#[derive(Clone, Debug)]
pub struct NewJob<'a> {
    pub id: JobId,
    pub tenant_id: TenantId,
    pub kind: &'a str,
    pub pool: &'a str,
    pub priority: i64,
    pub state: JobState,
    pub run_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    pub input: String,
    pub lane: Option<String>,
    pub lane_seq: Option<i64>,
    pub lane_held: bool,
    pub keep_place: bool,
    pub parent_id: Option<JobId>,
    pub traceparent: Option<String>,
}

/// A job that is recorded together with others that are like it.
#[derive(Clone, Debug)]
pub struct BatchedJob {
    pub id: JobId,
    pub state: JobState,
    pub input: String,
    pub lane: Option<String>,
    pub lane_seq: Option<i64>,
    pub lane_held: bool,
}

/// Records a job.
pub async fn insert(tx: &mut Tx<'_>, job: &NewJob<'_>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| {
        sqlx::query(
            "INSERT INTO job (id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, lane, lane_seq,
                              lane_held, keep_place, parent_id, traceparent, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
        )
        .bind(job.id)
        .bind(job.tenant_id)
        .bind(job.kind)
        .bind(job.pool)
        .bind(job.priority)
        .bind(job.state)
        .bind(job.run_at)
        .bind(job.deadline_at)
        .bind(&job.input)
        .bind(&job.lane)
        .bind(job.lane_seq)
        .bind(job.lane_held)
        .bind(job.keep_place)
        .bind(job.parent_id)
        .bind(&job.traceparent)
        .bind(now)
        .execute(conn)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Reads a job without locking it, also one that has left for the history.
pub async fn get(tx: &mut Tx<'_>, id: JobId) -> Result<Option<Job>> {
    if let Some(job) = current(tx, id).await? {
        return Ok(Some(job));
    }
    match history::get(tx, id).await? {
        Some(job) => Ok(Some(job)),
        // It may have come back in between.
        None => current(tx, id).await,
    }
}

/// Reads a job that has not left for the history.
async fn current(tx: &mut Tx<'_>, id: JobId) -> Result<Option<Job>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!("SELECT ", columns!(job), " FROM job WHERE id = $1"))
            .bind(id)
            .fetch_optional(conn)
            .await
    })?)
}

/// Up to so many rows are read one by one on SQLite, which prepares that statement once.
const FEW: usize = 4;

/// Locks jobs in the order of their ids and reads them once locked. Unknown ids are skipped.
pub async fn lock(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Job>> {
    let mut ids: Vec<JobId> = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    match tx.conn() {
        // Nothing to lock: the writer is alone.
        Conn::Sqlite(conn) if ids.len() > FEW => Ok(sqlx::query_as(concat!(
            "SELECT ",
            columns!(job),
            " FROM job WHERE id IN (SELECT unhex(value) FROM json_each($1)) ORDER BY id"
        ))
        .bind(family::id_list(&ids))
        .fetch_all(conn)
        .await?),
        Conn::Sqlite(conn) => {
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let job = sqlx::query_as(concat!("SELECT ", columns!(job), " FROM job WHERE id = $1"))
                    .bind(id)
                    .fetch_optional(&mut *conn)
                    .await?;
                found.extend(job);
            }
            Ok(found)
        }
        Conn::Postgres(conn) => {
            let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
            Ok(sqlx::query_as(concat!(
                "SELECT ",
                columns!(job),
                " FROM job WHERE id = ANY($1) ORDER BY id FOR UPDATE"
            ))
            .bind(ids)
            .fetch_all(conn)
            .await?)
        }
    }
}

/// A transition of a running job off its worker, or of a queued job. Every field is written.
#[derive(Clone, Debug)]
pub struct JobTransition {
    pub state: JobState,
    pub run_at: Option<Timestamp>,
    pub lane_held: bool,
    pub attempt: i64,
    pub failures: i64,
    pub lost_leases: i64,
    pub fence: i64,
    pub error: Option<String>,
    pub dead: bool,
}

impl JobTransition {
    /// To `state`, all else as it is in `job`.
    #[must_use]
    pub fn of(job: &Job, state: JobState) -> Self {
        Self {
            state,
            run_at: None,
            lane_held: job.lane_held,
            attempt: job.attempt,
            failures: job.failures,
            lost_leases: job.lost_leases,
            fence: job.fence,
            error: job.error.clone(),
            dead: false,
        }
    }
}

/// Moves a job that the caller has locked: off its worker, to another state. A final state sets `finished_at` and
/// clears the cancel request.
///
/// # Errors
/// [`Error::Stale`](crate::Error::Stale) if the row is no longer at the fence with which the caller locked it.
pub async fn apply(tx: &mut Tx<'_>, job: &Job, to: &JobTransition) -> Result<()> {
    let finished = to.state.is_final().then(|| tx.now());
    let done = on!(tx, |conn| {
        sqlx::query(
            "UPDATE job SET state = $3, run_at = coalesce($4, run_at), lane_held = $5, attempt = $6, failures = $7,
                            lost_leases = $8, fence = $9, error = $10, dead = $11, finished_at = $12,
                            cancel_at = CASE WHEN $13 THEN NULL ELSE cancel_at END, worker_id = NULL, lease_until = NULL
             WHERE id = $1 AND fence = $2",
        )
        .bind(job.id)
        .bind(job.fence)
        .bind(to.state)
        .bind(to.run_at)
        .bind(to.lane_held)
        .bind(to.attempt)
        .bind(to.failures)
        .bind(to.lost_leases)
        .bind(to.fence)
        .bind(&to.error)
        .bind(to.dead)
        .bind(finished)
        .bind(finished.is_some())
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    })?;
    was_changed(done)
}

/// Completes a running job without lane, parent or open children, for its holder. Returns `false` if the job is not
/// held at this fence or was asked to stop.
pub async fn succeed(tx: &mut Tx<'_>, job: JobFence) -> Result<bool> {
    let now = tx.now();
    let done = on!(tx, |conn| {
        // The fence rises whenever a running job is taken off its worker, so that late writes of its holder are stale.
        sqlx::query(
            "UPDATE job SET state = 'succeeded', fence = fence + 1, finished_at = $3, worker_id = NULL, lease_until = NULL
             WHERE id = $1 AND fence = $2 AND worker_id IS NOT NULL AND cancel_at IS NULL",
        )
        .bind(job.id)
        .bind(job.fence)
        .bind(now)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    })?;
    Ok(done == 1)
}

/// Marks a running job as asked to stop.
pub async fn mark_cancel(tx: &mut Tx<'_>, id: JobId) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| {
        sqlx::query("UPDATE job SET cancel_at = coalesce(cancel_at, $2) WHERE id = $1")
            .bind(id)
            .bind(now)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Makes a scheduled job due now. The caller has locked it.
pub async fn make_due(tx: &mut Tx<'_>, id: JobId) -> Result<()> {
    let now = tx.now_param();
    let text = sql!(tx,
        sqlite: "UPDATE job SET run_at = $2 WHERE id = $1 AND state = 'scheduled'",
        postgres: "UPDATE job SET run_at = towpath_now($2) WHERE id = $1 AND state = 'scheduled'");
    on!(tx, |conn| sqlx::query(text)
        .bind(id)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Reopens a finished job that the caller has locked: due now, as if it had never failed. It keeps its steps and
/// checkpoint, but not its lane slot, deadline or cancel request.
pub async fn revive(tx: &mut Tx<'_>, id: JobId) -> Result<()> {
    let now = tx.now_param();
    let text = sql!(tx,
        sqlite:
        "UPDATE job SET state = 'scheduled', run_at = $2, deadline_at = NULL, lane_seq = NULL, cancel_at = NULL,
                        failures = 0, lost_leases = 0, dead = 0, finished_at = NULL
         WHERE id = $1",
        postgres:
        "UPDATE job SET state = 'scheduled', run_at = towpath_now($2), deadline_at = NULL, lane_seq = NULL,
                        cancel_at = NULL, failures = 0, lost_leases = 0, dead = false, finished_at = NULL
         WHERE id = $1");
    on!(tx, |conn| {
        sqlx::query(text).bind(id).bind(now).execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Saves how far a running job has come. Progress: lost leases count again.
pub async fn save_cursor(tx: &mut Tx<'_>, id: JobId, cursor: &str) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("UPDATE job SET cursor = $2, lost_leases = 0 WHERE id = $1")
            .bind(id)
            .bind(cursor)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Sets the deadline of a job, once. Later calls keep the first.
pub async fn set_deadline(tx: &mut Tx<'_>, id: JobId, deadline: Timestamp) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("UPDATE job SET deadline_at = coalesce(deadline_at, $2) WHERE id = $1")
            .bind(id)
            .bind(deadline)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Gives a job its number in its lane.
pub async fn set_lane_seq(tx: &mut Tx<'_>, id: JobId, seq: i64) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("UPDATE job SET lane_seq = $2 WHERE id = $1")
            .bind(id)
            .bind(seq)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// The clock for due times, leases and deadlines: the database's own on PostgreSQL.
pub async fn db_now(tx: &mut Tx<'_>) -> Result<Timestamp> {
    match tx.conn() {
        Conn::Sqlite(_) => Ok(tx.now()),
        Conn::Postgres(conn) => Ok(sqlx::query_scalar("SELECT towpath_now()").fetch_one(conn).await?),
    }
}

/// Jobs in a lane that are not over, oldest first.
pub async fn in_lane(tx: &mut Tx<'_>, lane: &str, limit: i64) -> Result<Vec<Job>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            columns!(job),
            " FROM job WHERE lane = $1 AND finished_at IS NULL ORDER BY lane_seq, id LIMIT $2 + 0"
        ))
        .bind(lane)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?)
}

/// Whether a job of the lane waits to be claimed, so that another would be one too many.
pub async fn lane_has_queued(tx: &mut Tx<'_>, lane: &str) -> Result<bool> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM job WHERE lane = $1 AND finished_at IS NULL
                            AND state IN ('scheduled', 'blocked', 'ready'))",
        )
        .bind(lane)
        .fetch_one(conn)
        .await
    })?)
}

#[derive(Clone, Debug, FromRow)]
pub struct LaneJobs {
    pub lane: String,
    /// Whether a job waits to be claimed.
    pub queued: bool,
    /// Whether a job is not over.
    pub open: bool,
}

/// The jobs in each of these lanes.
pub async fn in_lanes(tx: &mut Tx<'_>, lanes: &[String]) -> Result<Vec<LaneJobs>> {
    let text = sql!(tx,
        sqlite: "SELECT given.value AS lane,
                        (SELECT j.id FROM job j WHERE j.lane = given.value AND j.finished_at IS NULL
                         AND j.state IN ('scheduled', 'blocked', 'ready') LIMIT 1) IS NOT NULL AS queued,
                        (SELECT j.id FROM job j WHERE j.lane = given.value AND j.finished_at IS NULL
                         LIMIT 1) IS NOT NULL AS open
                 FROM json_each($1) AS given",
        // Not EXISTS, for which PostgreSQL may read all open jobs once.
        postgres: "SELECT given.lane,
                          (SELECT j.id FROM job j WHERE j.lane = given.lane AND j.finished_at IS NULL
                           AND j.state IN ('scheduled', 'blocked', 'ready') LIMIT 1) IS NOT NULL AS queued,
                          (SELECT j.id FROM job j WHERE j.lane = given.lane AND j.finished_at IS NULL
                           LIMIT 1) IS NOT NULL AS open
                   FROM json_array_elements_text($1::json) AS given(lane)");
    let lanes = serde_json::to_string(lanes).expect("texts are always JSON");
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(lanes).fetch_all(conn).await)?)
}

fn was_changed(rows: u64) -> Result<()> {
    if rows == 1 { Ok(()) } else { Err(crate::Error::Stale) }
}
