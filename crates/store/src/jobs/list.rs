//! Jobs for operators: lists and details.
//!
//! Lists are ordered by id, newest first. Ids never change and increase, so pagination shows each job once and misses
//! none, even while jobs change state.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, FromRow};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp, WorkerId};

use crate::error::Result;
use crate::pools::COUNTED;
use crate::tx::{Dialect, Tx};

/// A job in a list: all but its input, its cursor and what the engine counts for itself.
#[derive(Clone, Debug, FromRow)]
pub struct JobSummary {
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

impl From<super::Job> for JobSummary {
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
    pub pool: Option<String>,
    pub kind: Option<String>,
    pub state: Option<JobState>,
    /// Of this workspace.
    pub tenant: Option<TenantId>,
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

/// Rows of an index that are counted to learn which has the fewest.
const PROBED: i64 = 10_000;

/// The leading column of the index by which jobs are found; the index is ordered by id. `None` scans by id, or uses the
/// index of a state.
type IndexColumn = Option<&'static str>;

/// Binds what a filter says, in the order of [`Filter::columns`].
macro_rules! bind_filter {
    ($query:expr, $filter:expr) => {{
        let mut query = $query;
        if let Some(pool) = &$filter.pool {
            query = query.bind(pool);
        }
        if let Some(kind) = &$filter.kind {
            query = query.bind(kind);
        }
        if let Some(tenant) = $filter.tenant {
            query = query.bind(tenant);
        }
        if let Some(lane) = &$filter.lane {
            query = query.bind(lane);
        }
        if let Some(parent) = $filter.parent {
            query = query.bind(parent);
        }
        if let Some(worker) = $filter.worker {
            query = query.bind(worker);
        }
        query
    }};
}

impl Filter {
    /// Whether a job of the history can fit.
    fn reaches_back(&self) -> bool {
        self.worker.is_none() && self.state.is_none_or(JobState::is_final)
    }

    /// What is given beside the state.
    fn columns(&self) -> Vec<&'static str> {
        let given = [
            ("pool", self.pool.is_some()),
            ("kind", self.kind.is_some()),
            ("tenant_id", self.tenant.is_some()),
            ("lane", self.lane.is_some()),
            ("parent_id", self.parent.is_some()),
            ("worker_id", self.worker.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(column, _)| column).collect()
    }

    /// The conditions of the filter. Parameters are those bound by `bind_filter`, followed by `before`.
    fn conditions(&self, dialect: Dialect, lead: IndexColumn, before: Option<JobId>) -> String {
        let mut text = String::from("TRUE");
        if let Some(state) = self.state {
            // Literal, so that the index of that state can serve, unless another is to; the names are ours.
            let column = if lead.is_none() { "state" } else { "state || ''" };
            let _ = write!(text, " AND {column} = '{}'", state.as_str());
        }
        let columns = self.columns();
        let last = columns.len() + 1;
        for (column, n) in columns.into_iter().zip(1..) {
            let _ = match (lead == Some(column), before, dialect) {
                // A range of one value: for `=`, PostgreSQL estimates the average number of rows, and if that is large
                // it would rather scan by id.
                (true, None, _) => write!(text, " AND {column} >= ${n} AND {column} <= ${n}"),
                (true, Some(_), _) => write!(text, " AND {column} >= ${n} AND ({column}, id) < (${n}, ${last})"),
                // SQLite would rather have the index of this one, and sort what it finds.
                (false, _, Dialect::Sqlite) if lead.is_some() => write!(text, " AND +{column} = ${n}"),
                (false, _, _) => write!(text, " AND {column} = ${n}"),
            };
        }
        if before.is_some() && lead.is_none() {
            let _ = write!(text, " AND id < ${last}");
        }
        text
    }

    /// How jobs in `job` are found: the leading column, and the condition that its index needs.
    fn present(&self) -> Vec<(IndexColumn, &'static str)> {
        if self.worker.is_some() {
            return vec![(Some("worker_id"), " AND state = 'running'")];
        }
        if self.lane.is_some() {
            let open = (Some("lane"), " AND finished_at IS NULL");
            let over = (Some("lane"), " AND finished_at IS NOT NULL");
            return match self.state {
                None => vec![open, over],
                Some(state) if state.is_final() => vec![over],
                Some(_) => vec![open],
            };
        }
        vec![(self.parent.is_some().then_some("parent_id"), "")]
    }

    /// How jobs in the history are found: by the most selective column. A filter on two common values that seldom
    /// coincide still reads all rows of one of them.
    async fn past(&self, tx: &mut Tx<'_>) -> Result<IndexColumn> {
        let columns = self.columns();
        let state = self.state.filter(|state| *state != JobState::Succeeded);
        if columns.len() + usize::from(state.is_some()) < 2 {
            return Ok(columns.first().copied());
        }
        let mut counts: Vec<String> = columns
            .iter()
            .zip(1..)
            .map(|(column, n)| {
                format!(
                    "SELECT CAST({n} AS bigint) AS n, count(*) AS jobs FROM (
                         SELECT 1 FROM job_history WHERE {column} >= ${n} AND {column} <= ${n} LIMIT {PROBED}) found"
                )
            })
            .collect();
        if let Some(state) = state {
            counts.push(format!(
                "SELECT CAST(0 AS bigint) AS n, count(*) AS jobs FROM (
                     SELECT 1 FROM job_history WHERE state = '{}' LIMIT {PROBED}) found",
                state.as_str()
            ));
        }
        let text = format!("{} ORDER BY 2, 1 LIMIT 1", counts.join(" UNION ALL "));
        let (fewest, _): (i64, i64) = on!(tx, |conn| {
            let query = sqlx::query_as(AssertSqlSafe(text)).persistent(false);
            bind_filter!(query, self).fetch_one(conn).await
        })?;
        let nth = usize::try_from(fewest - 1).ok();
        Ok(nth.and_then(|nth| columns.get(nth).copied()))
    }
}

/// In the order of the ids, so that an index of the leading column can serve.
fn order(lead: IndexColumn, limit: i64) -> String {
    match lead {
        Some(column) => format!("ORDER BY {column} DESC, id DESC LIMIT {limit}"),
        None => format!("ORDER BY id DESC LIMIT {limit}"),
    }
}

/// Matching jobs, including those in the history, newest first, at most `limit` of those recorded before the job
/// `before`.
pub async fn list(tx: &mut Tx<'_>, filter: &Filter, before: Option<JobId>, limit: i64) -> Result<Vec<JobSummary>> {
    let past = if filter.reaches_back() {
        Some(filter.past(tx).await?)
    } else {
        None
    };
    let dialect = tx.dialect();
    let part = |columns: &str, table: &str, lead: IndexColumn, and: &str| {
        let (conditions, order) = (filter.conditions(dialect, lead, before), order(lead, limit));
        format!("SELECT {columns} FROM {table} WHERE {conditions}{and} {order}")
    };
    let present = filter.present().into_iter();
    let mut parts: Vec<String> = present.map(|(lead, and)| part(COLUMNS, "job", lead, and)).collect();
    parts.extend(past.map(|lead| part(PAST, "job_history", lead, "")));
    // One statement, so that a job that moves between the tables meanwhile is found. Each part is read in id order up
    // to the limit.
    let text = if parts.len() == 1 {
        parts.remove(0)
    } else {
        let parts = parts.iter().zip(1..);
        let parts: Vec<String> = parts
            .map(|(part, n)| format!("SELECT {COLUMNS} FROM ({part}) part_{n}"))
            .collect();
        format!("{} {}", parts.join(" UNION ALL "), order(None, limit))
    };
    Ok(on!(tx, |conn| {
        // One of very many texts: not worth a place among the prepared ones.
        let query = sqlx::query_as(AssertSqlSafe(text)).persistent(false);
        let mut query = bind_filter!(query, filter);
        if let Some(before) = before {
            query = query.bind(before);
        }
        query.fetch_all(conn).await
    })?)
}

/// Dead letters, last ended first, at most `limit` of those that ended before the given time and job. Neither changes
/// while a job is a dead letter.
pub async fn dead(tx: &mut Tx<'_>, before: Option<(Timestamp, JobId)>, limit: i64) -> Result<Vec<JobSummary>> {
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

/// How many dead letters there are; [`COUNTED`] means at least that many.
pub async fn count_dead(tx: &mut Tx<'_>) -> Result<i64> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT count(*) FROM (SELECT 1 FROM job WHERE dead LIMIT $1 + 0) found")
            .bind(COUNTED)
            .fetch_one(conn)
            .await
    })?)
}

/// Jobs a worker has in hand, by pool.
#[derive(Clone, Debug, FromRow)]
pub struct RunningCount {
    pub worker_id: WorkerId,
    pub pool: String,
    pub jobs: i64,
}

/// Running jobs by the worker that holds them.
pub async fn running_counts(tx: &mut Tx<'_>) -> Result<Vec<RunningCount>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT worker_id, pool, count(*) AS jobs FROM job WHERE state = 'running' AND worker_id IS NOT NULL
             GROUP BY worker_id, pool",
        )
        .fetch_all(conn)
        .await
    })?)
}
