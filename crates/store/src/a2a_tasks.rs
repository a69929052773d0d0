//! Agent2Agent tasks: which runs belong together, their states, and their outcomes.

mod listing;

use sqlx::FromRow;
use towpath_domain::agent::a2a::{Outcome, Task, TaskId, TaskState};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId, Timestamp};

use crate::error::{Error, Result};
use crate::query::{Arg, Query};
use crate::runs::OpenRun;
use crate::tx::Tx;

pub use listing::{MAX_COUNTED, TaskFilter, count, list};

#[derive(Clone, Debug, FromRow)]
pub struct TaskRow {
    /// The run that began it.
    pub id: RunId,
    /// Its context.
    pub thread_id: ThreadId,
    /// The client's name of the context, where it is not the id of the thread.
    pub context: Option<String>,
    /// Who performs it.
    pub assistant_id: AssistantId,
    /// Its last run.
    pub run_id: RunId,
    pub state: TaskState,
    /// JSON: [`Outcome`], where [`TaskDetail`] has it read.
    pub outcome: Option<String>,
    /// When it reached its state.
    pub updated_at: Timestamp,
    /// No later run is on the thread. False where [`TaskDetail`] leaves the state of the thread out.
    pub is_latest: bool,
    /// JSON: the state of the thread, where [`TaskDetail`] has it read.
    pub current_values: Option<String>,
}

impl TaskRow {
    /// Thread and first run.
    #[must_use]
    pub const fn task_id(&self) -> TaskId {
        TaskId {
            thread: self.thread_id,
            run: self.id,
        }
    }

    /// The task with what its last run left.
    pub fn task(&self) -> Result<Task> {
        let outcome = self.outcome.as_deref().map(serde_json::from_str::<Outcome>).transpose();
        Ok(Task {
            outcome: outcome.map_err(|_| Error::corrupt("a2a_task", "outcome", self.id))?,
            ..self.without_outcome()
        })
    }

    /// The task without what its last run left.
    #[must_use]
    pub fn without_outcome(&self) -> Task {
        Task {
            id: self.task_id(),
            context: self.context.clone(),
            run: self.run_id,
            state: self.state,
            updated_at: self.updated_at,
            outcome: None,
        }
    }
}

/// What is read with a task besides its state. The outcome of a failed or waiting task is always read, since its status
/// contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskDetail {
    /// The artifact of a completed task.
    pub artifact: bool,
    /// The state of the thread, unless it has more than 8 MiB.
    pub values: bool,
}

impl TaskDetail {
    /// Neither.
    pub const STATE: Self = Self {
        artifact: false,
        values: false,
    };
    /// The artifact of a completed task.
    pub const ARTIFACT: Self = Self {
        artifact: true,
        values: false,
    };
    /// Both.
    pub const ALL: Self = Self {
        artifact: true,
        values: true,
    };

    fn select(self, query: &mut Query) {
        query.push(if self.artifact {
            "task.outcome AS outcome, "
        } else {
            "CASE WHEN task.state IN ('input-required', 'failed') THEN task.outcome END AS outcome, "
        });
        query.push(if self.values {
            "NOT EXISTS (SELECT 1 FROM run later WHERE later.thread_id = run.thread_id
                         AND (later.created_at, later.id) > (run.created_at, run.id)) AS is_latest,
             CASE WHEN length(thread.current_values) <= 8388608 THEN thread.current_values END AS current_values"
        } else {
            "1 = 0 AS is_latest, CAST(NULL AS TEXT) AS current_values"
        });
    }
}

fn select(tx: &Tx<'_>, detail: TaskDetail) -> Query {
    let mut query = Query::new(
        tx,
        "SELECT task.id, task.thread_id, task.context, task.assistant_id, task.run_id, task.updated_at,
         CASE WHEN task.state = 'submitted' AND job.state = 'running' THEN 'working' ELSE task.state END AS state, ",
    );
    detail.select(&mut query);
    query.push(
        " FROM a2a_task task JOIN thread ON thread.id = task.thread_id
          LEFT JOIN run ON run.id = task.run_id LEFT JOIN job ON job.id = run.job_id WHERE ",
    );
    query
}

/// Records a task that a run begins. `context` is the client's name of its context, where that is not the id of the
/// thread.
pub async fn begin(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    task: TaskId,
    context: Option<&str>,
) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO a2a_task (id, tenant_id, assistant_id, thread_id, run_id, created_at, updated_at, context)
         VALUES ($1, $2, $3, $4, $1, $5, $5, $6)"
    )
    .bind(task.run)
    .bind(tenant)
    .bind(assistant)
    .bind(task.thread)
    .bind(now)
    .bind(context)
    .execute(conn)
    .await
    .map(drop))?;
    add_run(tx, tenant, task.run, task.run).await
}

/// Continues a task with another run.
///
/// # Errors
/// [`Error::Stale`] if the task no longer is as `before` describes.
pub async fn continue_task(tx: &mut Tx<'_>, tenant: TenantId, before: &TaskRow, run: RunId) -> Result<()> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE a2a_task SET run_id = $5, state = 'submitted', outcome = NULL, updated_at = $6
         WHERE tenant_id = $1 AND id = $2 AND run_id = $3 AND state = $4 AND state IN ('submitted', 'input-required')"
    )
    .bind(tenant)
    .bind(before.id)
    .bind(before.run_id)
    .bind(before.state.as_stored())
    .bind(run)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed != 1 {
        return Err(Error::Stale);
    }
    add_run(tx, tenant, before.id, run).await
}

async fn add_run(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, run: RunId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO a2a_task_run (run_id, tenant_id, task_id) VALUES ($1, $2, $3)"
    )
    .bind(run)
    .bind(tenant)
    .bind(task)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Takes a run that ends from the open runs of its task. Returns the task.
async fn remove_run(tx: &mut Tx<'_>, tenant: TenantId, run: RunId) -> Result<Option<RunId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "DELETE FROM a2a_task_run WHERE tenant_id = $1 AND run_id = $2 RETURNING task_id"
    )
    .bind(tenant)
    .bind(run)
    .fetch_optional(conn)
    .await)?)
}

/// Runs of a task that are not over, oldest first.
pub async fn open_runs(tx: &mut Tx<'_>, tenant: TenantId, task: RunId) -> Result<Vec<OpenRun>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT run.id, run.thread_id, run.job_id FROM a2a_task_run own JOIN run ON run.id = own.run_id
         WHERE own.tenant_id = $1 AND own.task_id = $2 AND run.status = 'pending' ORDER BY run.created_at, run.id"
    )
    .bind(tenant)
    .bind(task)
    .fetch_all(conn)
    .await)?)
}

/// Records the end of a run. If it is the last one of a task, the task moves to `state` and is returned.
pub async fn finish_run(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    run: RunId,
    state: TaskState,
    outcome: Option<&str>,
) -> Result<Option<RunId>> {
    if remove_run(tx, tenant, run).await?.is_none() {
        return Ok(None);
    }
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "UPDATE a2a_task SET state = $3, outcome = $4, updated_at = $5
         WHERE tenant_id = $1 AND run_id = $2 AND state = 'submitted' RETURNING id"
    )
    .bind(tenant)
    .bind(run)
    .bind(state)
    .bind(outcome)
    .bind(now)
    .fetch_optional(conn)
    .await)?)
}

/// Rolls a run back. Its task takes the state of the previous run if that one is not over; otherwise it is canceled and
/// returned.
pub async fn roll_back_run(tx: &mut Tx<'_>, tenant: TenantId, run: RunId) -> Result<Option<RunId>> {
    let Some(task) = remove_run(tx, tenant, run).await? else {
        return Ok(None);
    };
    let before = open_runs(tx, tenant, task)
        .await?
        .into_iter()
        .rfind(|open| open.id != run);
    let now = tx.now();
    let changed = match before {
        Some(before) => {
            on!(tx, |conn| sqlx::query(
                "UPDATE a2a_task SET run_id = $3, updated_at = $4 WHERE tenant_id = $1 AND run_id = $2"
            )
            .bind(tenant)
            .bind(run)
            .bind(before.id)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
            None
        }
        None => on!(tx, |conn| sqlx::query_scalar(
            "UPDATE a2a_task SET state = 'canceled', outcome = NULL, updated_at = $3
             WHERE tenant_id = $1 AND run_id = $2 AND state = 'submitted' RETURNING id"
        )
        .bind(tenant)
        .bind(run)
        .bind(now)
        .fetch_optional(conn)
        .await)?,
    };
    Ok(changed)
}

/// Cancels the tasks of a thread that wait for an answer. Returns each with its last run.
pub async fn cancel_waiting(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> Result<Vec<(RunId, RunId)>> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(
        "UPDATE a2a_task SET state = 'canceled', outcome = NULL, updated_at = $3
         WHERE tenant_id = $1 AND thread_id = $2 AND state = 'input-required' RETURNING id, run_id"
    )
    .bind(tenant)
    .bind(thread)
    .bind(now)
    .fetch_all(conn)
    .await)?)
}

/// # Errors
/// [`Error::NotFound`] also if the task belongs to another assistant, workspace or thread.
pub async fn get(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    id: TaskId,
    detail: TaskDetail,
) -> Result<TaskRow> {
    let mut query = select(tx, detail);
    query.push("task.tenant_id = ").bind(Arg::Uuid(tenant.0));
    query.push(" AND task.assistant_id = ").bind(Arg::Uuid(assistant.0));
    query.push(" AND task.thread_id = ").bind(Arg::Uuid(id.thread.0));
    query.push(" AND task.id = ").bind(Arg::Uuid(id.run.0));
    let found: Vec<TaskRow> = query.fetch_all(tx).await?;
    found.into_iter().next().ok_or(Error::NotFound)
}

/// One task of a workspace, by the run that began it.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, detail: TaskDetail) -> Result<TaskRow> {
    let mut query = select(tx, detail);
    query.push("task.tenant_id = ").bind(Arg::Uuid(tenant.0));
    query.push(" AND task.id = ").bind(Arg::Uuid(task.0));
    let found: Vec<TaskRow> = query.fetch_all(tx).await?;
    found.into_iter().next().ok_or(Error::NotFound)
}
