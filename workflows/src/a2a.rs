//! Tasks of the Agent2Agent protocol at their turning points: where a run leaves its task, and which addresses are called.

use towpath_domain::agent::a2a::{Outcome, TaskId, TaskState};
use towpath_domain::agent::{CancelAction, RunStatus};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId};
use towpath_store::a2a_tasks::{Detail, TaskRow};
use towpath_store::runs::{self, Open, Run};
use towpath_store::{self as store, Tx, a2a_push_configs, a2a_tasks, lanes};

use crate::run_agent;
use crate::send_push::{self, SendPush};

/// Records a task that a run begins, in the transaction that records the run. A task of the same thread that waits for an answer is
/// canceled.
///
/// # Errors
/// As every statement.
pub async fn begin(tx: &mut Tx<'_>, tenant: TenantId, assistant: AssistantId, task: TaskId) -> store::Result<()> {
    supersede(tx, tenant, task.thread).await?;
    a2a_tasks::begin(tx, tenant, assistant, task).await
}

/// A run that is about to be recorded continues a task. Locks the thread's lane, so that the task stands as `before` says until the
/// transaction ends: call it before the other writes.
///
/// # Errors
/// [`store::Error::Stale`] where the task stands elsewhere; those of the database.
pub async fn go_on(tx: &mut Tx<'_>, tenant: TenantId, before: &TaskRow, run: RunId) -> store::Result<()> {
    lanes::lock(tx, run_agent::lane(before.thread_id).key(), 1).await?;
    a2a_tasks::go_on(tx, tenant, before, run).await
}

/// A run begins on a thread that waits for an answer, or goes on from there: nobody is to answer the question any more.
///
/// # Errors
/// As every statement.
pub(crate) async fn supersede(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> store::Result<()> {
    for (task, run) in a2a_tasks::cancel_waiting(tx, tenant, thread).await? {
        notify(tx, tenant, (task, run), TaskState::Canceled).await?;
    }
    Ok(())
}

/// A run ended. Its task, where it is the last run of one, keeps what it left. Of runs that belong to no task nothing is read. Call it
/// in the transaction that ends the run, after the run is finished.
///
/// # Errors
/// As every statement.
pub(crate) async fn settle(
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
    let mut state = TaskState::of(status, matches!(outcome, Some(Outcome::Question(_))));
    // The run that waits behind it goes on from the question, so nobody can answer it.
    if state == TaskState::InputRequired && runs::any_open(tx, tenant, run.thread_id).await? {
        (state, outcome) = (TaskState::Canceled, None);
    }
    let json = outcome.as_ref().map(Outcome::to_json);
    match a2a_tasks::settle(tx, tenant, run.id, state, json.as_deref()).await? {
        Some(task) => notify(tx, tenant, (task, run.id), state).await,
        None => Ok(()),
    }
}

/// A run is rolled back, or its row is gone. A task that has no other open run is canceled.
///
/// # Errors
/// As every statement.
pub(crate) async fn take_back(tx: &mut Tx<'_>, tenant: TenantId, run: RunId) -> store::Result<()> {
    match a2a_tasks::take_back(tx, tenant, run).await? {
        Some(task) => notify(tx, tenant, (task, run), TaskState::Canceled).await,
        None => Ok(()),
    }
}

/// Cancels a task: all its runs that are not over, or the question that it asks. Answers the runs, and nothing where the task is
/// over. Takes locks, so call it before the transaction's other writes.
///
/// # Errors
/// [`store::Error::NotFound`]; those of the database.
pub async fn cancel(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    id: TaskId,
) -> store::Result<Option<Vec<Open>>> {
    lanes::lock(tx, run_agent::lane(id.thread).key(), 1).await?;
    let task = a2a_tasks::get(tx, tenant, assistant, id, Detail::STATE).await?;
    if task.state.is_final() {
        return Ok(None);
    }
    if task.state == TaskState::InputRequired {
        // One run asked, and one task of the thread waits for its answer.
        supersede(tx, tenant, id.thread).await?;
        return Ok(Some(Vec::new()));
    }
    let open = a2a_tasks::open_runs(tx, tenant, task.id).await?;
    run_agent::cancel(tx, tenant, &open, CancelAction::Interrupt).await?;
    Ok(Some(open))
}

/// Records a call of each address of a task. It is made where the task still stands there.
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
