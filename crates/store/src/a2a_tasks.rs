//! Tasks of the Agent2Agent protocol: which runs belong together, and what they left.

use serde_json::Value;
use sqlx::FromRow;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::a2a::{Outcome, Task, TaskId, TaskState};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId, Timestamp};

use crate::error::{Error, Result};
use crate::query::{Arg, Query};
use crate::tx::Tx;

/// The most tasks that [`count`] counts.
pub const MOST_COUNTED: i64 = 100_000;

/// A task as it stands.
#[derive(Clone, Debug, FromRow)]
pub struct Standing {
    /// The run that began it.
    pub id: RunId,
    /// Its thread.
    pub thread_id: ThreadId,
    /// Its assistant.
    pub assistant_id: AssistantId,
    /// Its last run.
    pub run_id: RunId,
    /// It was cancelled while it waited for an answer.
    pub canceled: bool,
    /// JSON: [`Outcome`].
    pub outcome: Option<String>,
    /// Since when it stands there.
    pub updated_at: Timestamp,
    /// Where its last run stands.
    pub status: RunStatus,
    /// The thread waits for an answer.
    pub thread_waits: bool,
    /// No later run is on the thread.
    pub is_latest: bool,
    /// JSON: the state of the thread, where it was asked for.
    pub current_values: Option<String>,
}

impl Standing {
    /// Its id.
    #[must_use]
    pub const fn task_id(&self) -> TaskId {
        TaskId {
            thread: self.thread_id,
            run: self.id,
        }
    }

    /// The task.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where its outcome cannot be read.
    pub fn task(&self) -> Result<Task> {
        let outcome = self.outcome.as_deref().map(serde_json::from_str::<Outcome>).transpose();
        let waits = self.thread_waits && self.is_latest;
        Ok(Task {
            id: self.task_id(),
            run: self.run_id,
            state: if self.canceled {
                TaskState::Canceled
            } else {
                TaskState::of(self.status, waits)
            },
            at: self.updated_at,
            outcome: outcome.map_err(|_| Error::corrupt("a2a_task", "outcome", self.id))?,
        })
    }
}

macro_rules! standing {
    ($values:literal) => {
        concat!(
            "SELECT task.id, task.thread_id, task.assistant_id, task.run_id, task.canceled, task.outcome, task.updated_at,
    CASE WHEN run.status = 'pending' AND job.state = 'running' THEN 'running' ELSE run.status END AS status,
    thread.status = 'interrupted' AS thread_waits,
    NOT EXISTS (SELECT 1 FROM run later WHERE later.thread_id = run.thread_id
                AND (later.created_at, later.id) > (run.created_at, run.id)) AS is_latest, ",
            $values,
            " AS current_values "
        )
    };
}

const JOINED: &str = "FROM a2a_task task JOIN run ON run.id = task.run_id JOIN thread ON thread.id = task.thread_id
    LEFT JOIN job ON job.id = run.job_id WHERE task.tenant_id = ";

/// Whether the states of threads are read along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// They are.
    Read,
    /// They may be large, and nobody asks for them.
    Left,
}

impl Values {
    const fn columns(self) -> &'static str {
        match self {
            Self::Read => standing!("thread.current_values"),
            Self::Left => standing!("CAST(NULL AS TEXT)"),
        }
    }
}

/// Records a task that a run begins.
///
/// # Errors
/// As every statement.
pub async fn begin(tx: &mut Tx<'_>, tenant: TenantId, assistant: AssistantId, task: TaskId) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO a2a_task (id, tenant_id, assistant_id, thread_id, run_id, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $1, $5, $5)"
    )
    .bind(task.run)
    .bind(tenant)
    .bind(assistant)
    .bind(task.thread)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Another run continues a task.
///
/// # Errors
/// [`Error::Stale`] where its last run is not `from`, or it was cancelled: others were faster.
pub async fn go_on(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, from: RunId, to: RunId) -> Result<()> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE a2a_task SET run_id = $4, outcome = NULL, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND run_id = $3 AND NOT canceled"
    )
    .bind(tenant)
    .bind(task)
    .bind(from)
    .bind(to)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed == 1 { Ok(()) } else { Err(Error::Stale) }
}

/// The last run of a task ended and left this. Answers the task, where the run is that of one.
///
/// # Errors
/// As every statement.
pub async fn settle(tx: &mut Tx<'_>, tenant: TenantId, run: RunId, outcome: Option<&str>) -> Result<Option<RunId>> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "UPDATE a2a_task SET outcome = $3, updated_at = $4 WHERE tenant_id = $1 AND run_id = $2 RETURNING id"
    )
    .bind(tenant)
    .bind(run)
    .bind(outcome)
    .bind(now)
    .fetch_optional(conn)
    .await)?)
}

/// Cancels a task that waits for an answer. True when this call did it.
///
/// # Errors
/// As every statement.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, run: RunId) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE a2a_task SET canceled = TRUE, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND run_id = $3 AND NOT canceled"
    )
    .bind(tenant)
    .bind(task)
    .bind(run)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// One task of an assistant.
///
/// # Errors
/// [`Error::NotFound`] also for another assistant's, another workspace's, and where the thread is another one.
pub async fn get(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    id: TaskId,
    values: Values,
) -> Result<Standing> {
    let mut query = Query::new(tx, values.columns());
    query.push(JOINED).bind(Arg::Uuid(tenant.0));
    query.push(" AND task.assistant_id = ").bind(Arg::Uuid(assistant.0));
    query.push(" AND task.thread_id = ").bind(Arg::Uuid(id.thread.0));
    query.push(" AND task.id = ").bind(Arg::Uuid(id.run.0));
    let found: Vec<Standing> = query.fetch_all(tx).await?;
    found.into_iter().next().ok_or(Error::NotFound)
}

/// Which tasks of an assistant.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// On this thread.
    pub thread: Option<ThreadId>,
    /// Standing there.
    pub state: Option<TaskState>,
    /// Since then, or later.
    pub since: Option<Timestamp>,
    /// The metadata of their threads contain this object.
    pub metadata: Option<Value>,
}

/// Tasks of an assistant, those that changed last first, behind a place in that order.
///
/// # Errors
/// As every statement.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    filter: &Filter,
    behind: Option<(Timestamp, RunId)>,
    limit: i64,
    values: Values,
) -> Result<Vec<Standing>> {
    let mut query = Query::new(tx, values.columns());
    query.push(JOINED);
    narrow(&mut query, tenant, assistant, filter)?;
    if let Some((at, id)) = behind {
        query.push(" AND (task.updated_at, task.id) < (").bind(Arg::Time(at));
        query.push(", ").bind(Arg::Uuid(id.0)).push(")");
    }
    query.push(" ORDER BY task.updated_at DESC, task.id DESC").limit(limit);
    query.fetch_all(tx).await
}

/// How many tasks match, up to [`MOST_COUNTED`].
///
/// # Errors
/// As every statement.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId, assistant: AssistantId, filter: &Filter) -> Result<i64> {
    let mut query = Query::new(tx, "SELECT count(*) FROM (SELECT 1 ");
    query.push(JOINED);
    narrow(&mut query, tenant, assistant, filter)?;
    query.limit(MOST_COUNTED).push(") found");
    query.count(tx).await
}

fn narrow(query: &mut Query, tenant: TenantId, assistant: AssistantId, filter: &Filter) -> Result<()> {
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND task.assistant_id = ").bind(Arg::Uuid(assistant.0));
    if let Some(thread) = filter.thread {
        query.push(" AND task.thread_id = ").bind(Arg::Uuid(thread.0));
    }
    if let Some(since) = filter.since {
        query.push(" AND task.updated_at >= ").bind(Arg::Time(since));
    }
    if let Some(state) = filter.state {
        query.push(stands(state));
    }
    if let Some(metadata) = &filter.metadata {
        query.push(" AND ");
        query.contains("thread.metadata", "metadata", metadata)?;
    }
    Ok(())
}

/// That a thread waits because of the task's last run.
macro_rules! waits {
    () => {
        "(thread.status = 'interrupted' AND NOT EXISTS (SELECT 1 FROM run later WHERE later.thread_id = run.thread_id
          AND (later.created_at, later.id) > (run.created_at, run.id)))"
    };
}

const fn stands(state: TaskState) -> &'static str {
    match state {
        TaskState::Submitted => " AND run.status = 'pending' AND coalesce(job.state, '') <> 'running'",
        TaskState::Working => " AND run.status = 'pending' AND job.state = 'running'",
        TaskState::Completed => concat!(" AND NOT task.canceled AND run.status = 'success' AND NOT ", waits!()),
        TaskState::InputRequired => concat!(" AND NOT task.canceled AND run.status = 'success' AND ", waits!()),
        TaskState::Failed => " AND run.status IN ('error', 'timeout')",
        TaskState::Canceled => " AND (task.canceled OR run.status = 'interrupted')",
        // No task is ever there.
        TaskState::Rejected | TaskState::AuthRequired => " AND 1 = 0",
    }
}
