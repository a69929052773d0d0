//! Lists of tasks, and how many there are.

use serde_json::Value;
use towpath_domain::agent::a2a::{Dialect, TaskState};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId, Timestamp};

use super::{TaskDetail, TaskRow, select};
use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::Tx;

/// The maximum number of tasks that [`count`] looks at.
pub const MAX_COUNTED: i64 = 10_000;

/// Conditions on the tasks of an assistant.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    pub thread: Option<ThreadId>,
    /// Standing there.
    pub state: Option<TaskState>,
    /// Since then, or later.
    pub since: Option<Timestamp>,
    /// The metadata of their threads contain this object; `$and` and `$or` are lists of such filters.
    pub metadata: Option<Value>,
}

/// Tasks of an assistant, those that changed last first, behind a place in that order.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    filter: &TaskFilter,
    behind: Option<(Timestamp, RunId)>,
    limit: i64,
    detail: TaskDetail,
) -> Result<Vec<TaskRow>> {
    let mut query = select(tx, detail);
    push_filter(&mut query, tenant, assistant, filter);
    push_joined_filter(&mut query, filter)?;
    if let Some((at, id)) = behind {
        query.push(" AND (task.updated_at, task.id) < (").bind(Arg::Time(at));
        query.push(", ").bind(Arg::Uuid(id.0)).push(")");
    }
    query.push(" ORDER BY task.updated_at DESC, task.id DESC").limit(limit);
    query.fetch_all(tx).await
}

/// How many tasks match, of the [`MAX_COUNTED`] that changed last.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId, assistant: AssistantId, filter: &TaskFilter) -> Result<i64> {
    let mut query = Query::new(
        tx,
        "SELECT count(*) FROM (SELECT task.thread_id, task.run_id FROM a2a_task task WHERE ",
    );
    push_filter(&mut query, tenant, assistant, filter);
    query
        .push(" ORDER BY task.updated_at DESC, task.id DESC")
        .limit(MAX_COUNTED);
    query.push(") task");
    if filter.metadata.is_some() {
        query.push(" JOIN thread ON thread.id = task.thread_id");
    }
    if filter
        .state
        .is_some_and(|state| state.as_stored() == TaskState::Submitted)
    {
        query.push(" LEFT JOIN run ON run.id = task.run_id LEFT JOIN job ON job.id = run.job_id");
    }
    query.push(" WHERE 1 = 1");
    push_joined_filter(&mut query, filter)?;
    query.count(tx).await
}

/// Conditions that an index of the tasks covers.
fn push_filter(query: &mut Query, tenant: TenantId, assistant: AssistantId, filter: &TaskFilter) {
    query.push("task.tenant_id = ").bind(Arg::Uuid(tenant.0));
    query.push(" AND task.assistant_id = ").bind(Arg::Uuid(assistant.0));
    if let Some(thread) = filter.thread {
        query.push(" AND task.thread_id = ").bind(Arg::Uuid(thread.0));
    }
    if let Some(since) = filter.since {
        query.push(" AND task.updated_at >= ").bind(Arg::Time(since));
    }
    if let Some(state) = filter.state {
        let stored = state.as_stored().as_str(Dialect::V03).to_owned();
        query.push(" AND task.state = ").bind(Arg::Text(stored));
    }
}

/// Conditions on job and thread.
fn push_joined_filter(query: &mut Query, filter: &TaskFilter) -> Result<()> {
    match filter.state {
        Some(TaskState::Working) => {
            query.push(" AND job.state = 'running'");
        }
        Some(TaskState::Submitted) => {
            query.push(" AND coalesce(job.state, '') <> 'running'");
        }
        _ => {}
    }
    if let Some(metadata) = &filter.metadata {
        query.push(" AND ");
        query.matches("thread.metadata", "metadata", metadata)?;
    }
    Ok(())
}
