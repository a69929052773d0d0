//! Reading tasks, and canceling them.

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;
use towpath_domain::agent::a2a::{Code, Dialect, Refusal, TaskId, TaskState, history};
use towpath_domain::agent::{Object, Since};
use towpath_domain::{AssistantId, RunId};
use towpath_store::a2a_tasks::{self, Detail, TaskRow};
use towpath_store::assistants::Assistant;
use towpath_workflows::a2a;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::live::{Item, Reader};

/// The most messages of an answer whose caller names no number.
const MOST_MESSAGES: usize = 100;

pub(super) async fn get(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task(&call.params, "id")?;
    let most = params::count(&call.params, "historyLength")?;
    allow(app, "read", id).await?;
    let row = find(app, assistant.id, id, detail(most)).await?;
    Ok(call.answer(shown(&row, call.dialect, most)?))
}

/// Cancels a task: its runs, or the question that it asks. Answers when all of them are over.
pub(super) async fn cancel(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task(&call.params, "id")?;
    allow(app, "update", id).await?;
    let canceled = app
        .store
        .write(async |tx| a2a::cancel(tx, app.tenant, assistant.id, id).await)
        .await;
    let canceled = canceled.map_err(|error| Failure::of(error.into(), || Refusal::no_task(id)))?;
    let open = canceled.ok_or_else(|| over(id))?;
    let (app_of_answer, assistant, dialect) = (app.clone(), assistant.id, call.dialect);
    Ok(call.answer_later(app, async move {
        for run in open {
            ended(&app_of_answer, id, run.id).await?;
        }
        let row = read(&app_of_answer, assistant, id, Detail::ALL).await?;
        // It may have ended by itself at the same moment.
        match row.state {
            TaskState::Canceled => shown(&row, dialect, None).map_err(internal),
            _ => Err(over(id)),
        }
    }))
}

/// Waits for the end of a run.
async fn ended(app: &AgentApp, id: TaskId, run: RunId) -> Result<(), Refusal> {
    match Reader::of_run(app, id.thread, run, false, Since::Now).await {
        Ok(reader) => end_of(reader).await,
        Err(error) if error.status() == StatusCode::NOT_FOUND => Ok(()),
        Err(error) => Err(internal(error)),
    }
}

/// Has the author's auth judge an operation on the thread of a task.
pub(super) async fn allow(app: &AgentApp, action: &'static str, id: TaskId) -> Result<(), Failure> {
    let allowed = auth::allow(app, ("threads", action), Some(id.thread), Object::new()).await;
    allowed
        .map(drop)
        .map_err(|refusal| Failure::denied(refusal, || Refusal::no_task(id)))
}

/// Reads a task for a call that is being answered.
pub(super) async fn find(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    detail: Detail,
) -> Result<TaskRow, Failure> {
    let row = row(app, assistant, id, detail).await;
    row.map_err(|error| Failure::of(error.into(), || Refusal::no_task(id)))
}

/// Reads a task for an answer whose head is sent.
pub(super) async fn read(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    detail: Detail,
) -> Result<TaskRow, Refusal> {
    let row = row(app, assistant, id, detail).await;
    row.map_err(|error| match error {
        towpath_store::Error::NotFound => Refusal::no_task(id),
        error => internal(error),
    })
}

async fn row(app: &AgentApp, assistant: AssistantId, id: TaskId, detail: Detail) -> towpath_store::Result<TaskRow> {
    app.store
        .read(async |tx| a2a_tasks::get(tx, app.tenant, assistant, id, detail).await)
        .await
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
pub(super) const fn detail(most: Option<usize>) -> Detail {
    match most {
        Some(0) => Detail::ARTIFACT,
        _ => Detail::ALL,
    }
}

/// A task with its last `most` messages.
pub(super) fn shown(row: &TaskRow, dialect: Dialect, most: Option<usize>) -> Result<Value, AgentError> {
    let history = messages(row, dialect, most)?;
    Ok(row.task()?.write(dialect, history))
}

/// The last `most` messages of a task.
pub(super) fn messages(row: &TaskRow, dialect: Dialect, most: Option<usize>) -> Result<Option<Vec<Value>>, AgentError> {
    if most == Some(0) {
        return Ok(None);
    }
    let values = row.current_values.as_deref().unwrap_or("null");
    let values: Value = serde_json::from_str(values).map_err(|error| AgentError::internal(&error))?;
    let most = most.unwrap_or(MOST_MESSAGES);
    Ok(Some(history(dialect, &values, &row.bare(), row.is_latest, Some(most))))
}

fn over(id: TaskId) -> Refusal {
    let text = format!("Task {id} is over and cannot be canceled");
    Refusal::new(Code::TaskNotCancelable, text)
}
