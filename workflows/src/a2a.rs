//! State changes of Agent2Agent tasks, and the addresses that are notified.

use towpath_domain::agent::a2a::{Outcome, TaskId, TaskState};
use towpath_domain::agent::{CancelAction, RunStatus};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId};
use towpath_store::a2a_tasks::{TaskDetail, TaskRow};
use towpath_store::runs::{self, OpenRun, Run};
use towpath_store::{self as store, Tx, a2a_push_configs, a2a_tasks, lanes};

use crate::run_agent::job::lane;
use crate::run_agent::stop;
use crate::send_push::{self, SendPush};

/// Records the task of a run, in the transaction that records the run. A task of the same thread that waits for input
/// is canceled.
pub async fn begin(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    task: TaskId,
    context: Option<&str>,
) -> store::Result<()> {
    supersede(tx, tenant, task.thread).await?;
    a2a_tasks::begin(tx, tenant, assistant, task, context).await
}

/// Continues a task with a run that is about to be recorded. Locks the thread's lane, so that the task keeps the state
/// `before` until the end of the transaction: call it before the other writes.
///
/// [`store::Error::Stale`] if the task is in another state.
pub async fn continue_task(tx: &mut Tx<'_>, tenant: TenantId, before: &TaskRow, run: RunId) -> store::Result<()> {
    lanes::lock(tx, lane(before.thread_id).key(), 1).await?;
    a2a_tasks::continue_task(tx, tenant, before, run).await
}

/// Cancels a waiting task when a run begins or continues on its thread: nobody can answer its question any more.
pub(crate) async fn supersede(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> store::Result<()> {
    for (task, run) in a2a_tasks::cancel_waiting(tx, tenant, thread).await? {
        notify(tx, tenant, (task, run), TaskState::Canceled).await?;
    }
    Ok(())
}

/// Stores the result of an ended run in its task, if it is the last run of one. Does nothing for runs without a task.
/// Call it in the transaction that ends the run, after the run is finished.
pub(crate) async fn finish_run(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    run: &Run,
    status: RunStatus,
    outcome: impl FnOnce() -> Option<Outcome>,
) -> store::Result<()> {
    if !run.metadata.contains("\"a2a\"") {
        return Ok(());
    }
    let mut outcome = outcome();
    let mut state = TaskState::from_run(status, matches!(outcome, Some(Outcome::Question(_))));
    // The run that waits behind it continues from the question, so nobody can answer it.
    if state == TaskState::InputRequired && runs::any_open(tx, tenant, run.thread_id).await? {
        (state, outcome) = (TaskState::Canceled, None);
    }
    let json = outcome.as_ref().map(Outcome::to_json);
    match a2a_tasks::finish_run(tx, tenant, run.id, state, json.as_deref()).await? {
        Some(task) => notify(tx, tenant, (task, run.id), state).await,
        None => Ok(()),
    }
}

/// Cancels the task of a run that is rolled back or deleted, unless it has another open run.
pub(crate) async fn roll_back_run(tx: &mut Tx<'_>, tenant: TenantId, run: RunId) -> store::Result<()> {
    match a2a_tasks::roll_back_run(tx, tenant, run).await? {
        Some(task) => notify(tx, tenant, (task, run), TaskState::Canceled).await,
        None => Ok(()),
    }
}

/// Cancels a task: all its open runs, or the question that it asks. Returns the runs; nothing if the task has ended. It
/// takes locks, so call it before the transaction's other writes.
pub async fn cancel(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    id: TaskId,
) -> store::Result<Option<Vec<OpenRun>>> {
    lanes::lock(tx, lane(id.thread).key(), 1).await?;
    let task = a2a_tasks::get(tx, tenant, assistant, id, TaskDetail::STATE).await?;
    if task.state.is_final() {
        return Ok(None);
    }
    if task.state == TaskState::InputRequired {
        // A run asked, and a task of the thread waits for the answer.
        supersede(tx, tenant, id.thread).await?;
        return Ok(Some(Vec::new()));
    }
    let open = a2a_tasks::open_runs(tx, tenant, task.id).await?;
    stop::cancel(tx, tenant, &open, CancelAction::Interrupt).await?;
    Ok(Some(open))
}

/// Records a call to each address of a task. It is only made while the task is in the same state.
async fn notify(tx: &mut Tx<'_>, tenant: TenantId, (task, run): (RunId, RunId), state: TaskState) -> store::Result<()> {
    for config in a2a_push_configs::list(tx, tenant, task).await? {
        let call = SendPush {
            tenant,
            config: config.id,
            task,
            run,
            state,
        };
        send_push::start(tx, &call).await?;
    }
    Ok(())
}
