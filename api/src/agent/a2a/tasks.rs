//! Tasks: read and cancelled.

use axum::response::Response;
use serde_json::Value;
use towpath_domain::AssistantId;
use towpath_domain::agent::a2a::{Code, Dialect, Refusal, TaskId, TaskState, history};
use towpath_domain::agent::{CancelAction, Object, Since};
use towpath_store::a2a_tasks::{self, Standing, Values};
use towpath_store::assistants::Assistant;
use towpath_workflows::a2a;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::live::{Item, Reader};
use crate::agent::runs::stop::stop;

/// A task as it stands.
pub(super) async fn get(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task(&call.params, "id")?;
    let most = params::count(&call.params, "historyLength")?;
    allow(app, "read", id).await?;
    let standing = find(app, assistant.id, id, values_for(most)).await?;
    Ok(call.answer(shown(&standing, call.dialect, most)?))
}

/// Cancels a task: its run, or the question that it waits for.
pub(super) async fn cancel(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task(&call.params, "id")?;
    allow(app, "update", id).await?;
    let standing = find(app, assistant.id, id, Values::Left).await?;
    let task = standing.task()?;
    if task.state.is_final() {
        return Err(over(id).into());
    }
    if task.state == TaskState::InputRequired {
        let done = app.store.write(async |tx| a2a::cancel(tx, app.tenant, &standing).await);
        if !done.await? {
            return Err(over(id).into());
        }
        let standing = find(app, assistant.id, id, Values::Read).await?;
        return Ok(call.answer(shown(&standing, call.dialect, None)?));
    }
    // Before it is told: the end may come at once.
    let reader = Reader::of_run(app, standing.thread_id, standing.run_id, false, Since::Now).await?;
    if !stop(app, standing.run_id, CancelAction::Interrupt).await? {
        return Err(over(id).into());
    }
    let (asked, assistant, dialect) = (app.clone(), assistant.id, call.dialect);
    Ok(call.answer_later(app, async move {
        end_of(reader).await?;
        let standing = read(&asked, assistant, id, Values::Read).await?;
        // It may have ended by itself at the same moment.
        match standing.task().map_err(internal)?.state {
            TaskState::Canceled => shown(&standing, dialect, None).map_err(internal),
            _ => Err(over(id)),
        }
    }))
}

/// Has the author's auth judge an operation on the thread of a task.
pub(super) async fn allow(app: &AgentApp, action: &'static str, id: TaskId) -> Result<(), Failure> {
    let allowed = auth::allow(app, ("threads", action), Some(id.thread), Object::new()).await;
    allowed
        .map(drop)
        .map_err(|refusal| Failure::denied(refusal, || Refusal::no_task(id)))
}

/// A task, for a call that is being answered.
pub(super) async fn find(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    values: Values,
) -> Result<Standing, Failure> {
    let found = app
        .store
        .read(async |tx| a2a_tasks::get(tx, app.tenant, assistant, id, values).await)
        .await;
    found.map_err(|error| Failure::of(error.into(), || Refusal::no_task(id)))
}

/// A task, for an answer whose head is sent.
pub(super) async fn read(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    values: Values,
) -> Result<Standing, Refusal> {
    let found = app
        .store
        .read(async |tx| a2a_tasks::get(tx, app.tenant, assistant, id, values).await)
        .await;
    found.map_err(|error| match error {
        towpath_store::Error::NotFound => Refusal::no_task(id),
        error => internal(error),
    })
}

/// Reads a run to its end.
pub(super) async fn end_of(mut reader: Reader) -> Result<(), Refusal> {
    while let Some(item) = reader.next().await.map_err(internal)? {
        if matches!(item, Item::End(..)) {
            break;
        }
    }
    Ok(())
}

/// What went wrong behind a head that is sent.
pub(super) fn internal(error: impl Into<AgentError>) -> Refusal {
    let error: AgentError = error.into();
    Refusal::new(Code::Internal, error.detail())
}

/// The states of threads are read where their messages are shown.
pub(super) const fn values_for(most: Option<usize>) -> Values {
    match most {
        Some(0) => Values::Left,
        _ => Values::Read,
    }
}

/// A task with its last `most` messages.
pub(super) fn shown(standing: &Standing, dialect: Dialect, most: Option<usize>) -> Result<Value, AgentError> {
    let task = standing.task()?;
    let history = messages(standing, dialect, most)?;
    Ok(task.write(dialect, history))
}

/// The last `most` messages of a task.
pub(super) fn messages(
    standing: &Standing,
    dialect: Dialect,
    most: Option<usize>,
) -> Result<Option<Vec<Value>>, AgentError> {
    if most == Some(0) {
        return Ok(None);
    }
    let values = standing.current_values.as_deref().unwrap_or("null");
    let values: Value = serde_json::from_str(values).map_err(|error| AgentError::internal(&error))?;
    let task = standing.task()?;
    Ok(Some(history(dialect, &values, &task, standing.is_latest, most)))
}

fn over(id: TaskId) -> Refusal {
    let text = format!("Task {id} is over and cannot be canceled");
    Refusal::new(Code::TaskNotCancelable, text)
}
