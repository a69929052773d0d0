//! Jobs for people: listed, and one with all that belongs to it.
//!
//! Lists go by the id, latest first. An id never changes and ids made later are greater, so a list that goes on behind
//! the last id shows each job once and misses none, however the jobs move from state to state meanwhile.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, FromRow};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp, WorkerId};

use crate::error::Result;
use crate::tx::Tx;

/// A job in a list: all but its input, its cursor and what the engine counts for itself.
#[derive(Clone, Debug, FromRow)]
#[expect(missing_docs, reason = "the columns are explained once, in the migration")]
pub struct Listed {
    pub id: JobId,
    pub tenant_id: TenantId,
    pub kind: String,
    pub pool: String,
    pub priority: i64,
    pub state: JobState,
    pub run_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    pub lane: Option<String>,
    pub parent_id: Option<JobId>,
    pub open_children: i64,
    pub attempt: i64,
    pub failures: i64,
    pub lost_leases: i64,
    pub worker_id: Option<WorkerId>,
    pub cancel_at: Option<Timestamp>,
    pub error: Option<String>,
    pub dead: bool,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

const COLUMNS: &str = "id, tenant_id, kind, pool, priority, state, run_at, deadline_at, lane, parent_id, open_children, \
                       attempt, failures, lost_leases, worker_id, cancel_at, error, dead, created_at, started_at, \
                       finished_at";

impl From<super::Job> for Listed {
    fn from(job: super::Job) -> Self {
        Self {
            id: job.id,
            tenant_id: job.tenant_id,
            kind: job.kind,
            pool: job.pool,
            priority: job.priority,
            state: job.state,
            run_at: job.run_at,
            deadline_at: job.deadline_at,
            lane: job.lane,
            parent_id: job.parent_id,
            open_children: job.open_children,
            attempt: job.attempt,
            failures: job.failures,
            lost_leases: job.lost_leases,
            worker_id: job.worker_id,
            cancel_at: job.cancel_at,
            error: job.error,
            dead: job.dead,
            created_at: job.created_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
        }
    }
}

/// Which jobs. What is absent does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this pool.
    pub pool: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
    /// In this state.
    pub state: Option<JobState>,
    /// Of this workspace.
    pub tenant: Option<TenantId>,
    /// In this lane.
    pub lane: Option<String>,
    /// Children of this job.
    pub parent: Option<JobId>,
    /// Held by this worker.
    pub worker: Option<WorkerId>,
}

/// The same of the history.
const PAST: &str = "id, tenant_id, kind, pool, priority, state, run_at, deadline_at, lane, parent_id, open_children, \
                    attempt, failures, lost_leases, CAST(NULL AS uuid) AS worker_id, \
                    cancel_at, error, false AS dead, created_at, started_at, \
                    finished_at";

impl Filter {
    /// Whether a job of the history can fit.
    fn reaches_back(&self) -> bool {
        self.worker.is_none() && self.state.is_none_or(JobState::is_final)
    }

    /// What holds for a job that fits. Parameters are in the order in which [`list`] binds them.
    fn conditions(&self, before: Option<JobId>) -> String {
        let mut text = String::from("TRUE");
        // Literal, so that the index of that state can serve; the names are ours.
        if let Some(state) = self.state {
            let _ = write!(text, " AND state = '{}'", state.as_str());
        }
        let wanted = [
            ("pool = ", self.pool.is_some()),
            ("kind = ", self.kind.is_some()),
            ("tenant_id = ", self.tenant.is_some()),
            ("lane = ", self.lane.is_some()),
            ("parent_id = ", self.parent.is_some()),
            ("worker_id = ", self.worker.is_some()),
            ("id < ", before.is_some()),
        ];
        for (nth, (condition, _)) in wanted.iter().filter(|(_, wanted)| *wanted).enumerate() {
            let _ = write!(text, " AND {condition}${}", nth + 1);
        }
        text
    }
}

/// Jobs that fit, also those that have left for the history, the latest first, at most `limit` of those recorded before the
/// job `before`.
///
/// # Errors
/// As every statement.
pub async fn list(tx: &mut Tx<'_>, filter: &Filter, before: Option<JobId>, limit: i64) -> Result<Vec<Listed>> {
    let conditions = filter.conditions(before);
    let order = format!("ORDER BY id DESC LIMIT {limit}");
    let mut text = format!("SELECT {COLUMNS} FROM job WHERE {conditions} {order}");
    if filter.reaches_back() {
        // One statement, so that a job that moves between the two tables meanwhile is in one of them. Each is read in the
        // order of its ids, and no further than the limit.
        text = format!(
            "SELECT * FROM ({text}) present
             UNION ALL
             SELECT * FROM (SELECT {PAST} FROM job_history WHERE {conditions} {order}) past
             {order}"
        );
    }
    Ok(on!(tx, |conn| {
        // One of very many texts: not worth a place among the prepared ones.
        let mut query = sqlx::query_as(AssertSqlSafe(text)).persistent(false);
        if let Some(pool) = &filter.pool {
            query = query.bind(pool);
        }
        if let Some(kind) = &filter.kind {
            query = query.bind(kind);
        }
        if let Some(tenant) = filter.tenant {
            query = query.bind(tenant);
        }
        if let Some(lane) = &filter.lane {
            query = query.bind(lane);
        }
        if let Some(parent) = filter.parent {
            query = query.bind(parent);
        }
        if let Some(worker) = filter.worker {
            query = query.bind(worker);
        }
        if let Some(before) = before {
            query = query.bind(before);
        }
        query.fetch_all(conn).await
    })?)
}

/// Dead letters, the latest to end first, at most `limit` of those that ended before the moment and job given. Both
/// stay as they are for as long as a job is a dead letter.
///
/// # Errors
/// As every statement.
pub async fn dead(tx: &mut Tx<'_>, before: Option<(Timestamp, JobId)>, limit: i64) -> Result<Vec<Listed>> {
    let behind = if before.is_some() {
        "AND (finished_at, id) < ($2, $3)"
    } else {
        ""
    };
    let text = format!(
        "SELECT {COLUMNS} FROM job WHERE dead AND finished_at IS NOT NULL {behind}
         ORDER BY finished_at DESC, id DESC LIMIT $1 + 0"
    );
    Ok(on!(tx, |conn| {
        let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(limit);
        if let Some((ended, id)) = before {
            query = query.bind(ended).bind(id);
        }
        query.fetch_all(conn).await
    })?)
}

/// How many dead letters there are.
///
/// # Errors
/// As every statement.
pub async fn count_dead(tx: &mut Tx<'_>) -> Result<i64> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT count(*) FROM job WHERE dead")
            .fetch_one(conn)
            .await
    })?)
}

/// Jobs a worker has in hand, by pool.
#[derive(Clone, Debug, FromRow)]
pub struct InHand {
    /// The worker.
    pub worker_id: WorkerId,
    /// The pool.
    pub pool: String,
    /// Jobs.
    pub jobs: i64,
}

/// Running jobs by the worker that holds them.
///
/// # Errors
/// As every statement.
pub async fn in_hand(tx: &mut Tx<'_>) -> Result<Vec<InHand>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT worker_id, pool, count(*) AS jobs FROM job WHERE state = 'running' AND worker_id IS NOT NULL
             GROUP BY worker_id, pool",
        )
        .fetch_all(conn)
        .await
    })?)
}
