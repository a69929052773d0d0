//! Tasks of the Agent2Agent protocol at their turning points: what a run leaves to its task, and who is told.

use serde_json::value::to_raw_value;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::a2a::{Task, TaskId, TaskState, task_event};
use towpath_domain::{TenantId, Timestamp};
use towpath_store::a2a_tasks::Standing;
use towpath_store::runs::Run;
use towpath_store::{self as store, Tx, a2a_push_configs, a2a_tasks};

use crate::send_push;

pub use towpath_domain::agent::a2a::Outcome as Left;

/// The last run of a task ended: keeps what it left, and records the calls that tell of it. Of runs that belong to no task nothing
/// is read. Call it in the transaction that ends the run.
///
/// # Errors
/// As every statement.
pub(crate) async fn settle(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    run: &Run,
    status: RunStatus,
    left: impl FnOnce() -> Option<Left>,
) -> store::Result<()> {
    if !run.metadata.contains("\"a2a\"") {
        return Ok(());
    }
    let outcome = left();
    let text = outcome.as_ref().map(serde_json::to_string).transpose();
    let text = text.map_err(|_| store::Error::corrupt("a2a_task", "outcome", run.id))?;
    let Some(id) = a2a_tasks::settle(tx, tenant, run.id, text.as_deref()).await? else {
        return Ok(());
    };
    let task = Task {
        id: TaskId {
            thread: run.thread_id,
            run: id,
        },
        run: run.id,
        state: TaskState::of(status, matches!(outcome, Some(Left::Question(_)))),
        at: tx.now(),
        outcome,
    };
    tell(tx, tenant, &task).await
}

/// Cancels a task that waits for an answer. False where others were faster.
///
/// # Errors
/// As every statement.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, standing: &Standing) -> store::Result<bool> {
    if !a2a_tasks::cancel(tx, tenant, standing.id, standing.run_id).await? {
        return Ok(false);
    }
    tell(tx, tenant, &canceled(standing, tx.now())).await?;
    Ok(true)
}

/// The task as it is once it was cancelled.
const fn canceled(standing: &Standing, at: Timestamp) -> Task {
    Task {
        id: standing.task_id(),
        run: standing.run_id,
        state: TaskState::Canceled,
        at,
        outcome: None,
    }
}

/// Records a call of each address that wants to know.
async fn tell(tx: &mut Tx<'_>, tenant: TenantId, task: &Task) -> store::Result<()> {
    for config in a2a_push_configs::list(tx, tenant, task.id.run).await? {
        let event = task_event(config.dialect, task.write(config.dialect, None));
        let body = to_raw_value(&event).map_err(|_| store::Error::corrupt("a2a_task", "outcome", task.id))?;
        send_push::start(tx, tenant, config.id, body).await?;
    }
    Ok(())
}
