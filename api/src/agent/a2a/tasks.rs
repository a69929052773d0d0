//! Reads and cancels tasks.

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{A2aError, Dialect, ErrorCode, TaskId, TaskState, history};
use towpath_domain::{AssistantId, RunId};
use towpath_store::a2a_tasks::{self, TaskDetail, TaskRow};
use towpath_store::assistants::Assistant;
use towpath_workflows::a2a;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::live::{Reader, StreamItem};

/// Default maximum number of messages in a response.
const MAX_MESSAGES: usize = 100;

pub(super) async fn get(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task_param(&call.params, "id")?;
    let most = params::count_param(&call.params, "historyLength")?;
    authorize(app, "read", id).await?;
    let row = find(app, assistant.id, id, detail(most)).await?;
    Ok(call.success_response(task_json(&row, call.dialect, most)?))
}

/// Cancels the runs of a task, or its open question. Responds after all runs have ended.
pub(super) async fn cancel(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task_param(&call.params, "id")?;
    authorize(app, "update", id).await?;
    let canceled = app
        .store
        .write(async |tx| a2a::cancel(tx, app.tenant, assistant.id, id).await)
        .await;
    let canceled = canceled.map_err(|error| Failure::or_not_found(error.into(), || A2aError::task_not_found(id)))?;
    let open = canceled.ok_or_else(|| already_finished(id))?;
    let (app_of_answer, assistant, dialect) = (app.clone(), assistant.id, call.dialect);
    Ok(call.deferred_response(app, async move {
        for run in open {
            wait_run_ended(&app_of_answer, id, run.id).await?;
        }
        let row = read(&app_of_answer, assistant, id, TaskDetail::ALL).await?;
        // The task may have ended by itself.
        match row.state {
            TaskState::Canceled => task_json(&row, dialect, None).map_err(internal_error),
            _ => Err(already_finished(id)),
        }
    }))
}

/// Waits for the end of a run.
async fn wait_run_ended(app: &AgentApp, id: TaskId, run: RunId) -> Result<(), A2aError> {
    match Reader::of_published_frames(app, id.thread, run).await {
        Ok(reader) => wait_ended(reader).await,
        Err(error) if error.status() == StatusCode::NOT_FOUND => Ok(()),
        Err(error) => Err(internal_error(error)),
    }
}

/// Authorizes an operation on the thread of a task.
pub(super) async fn authorize(app: &AgentApp, action: &'static str, id: TaskId) -> Result<(), Failure> {
    let allowed = auth::authorize_operation(app, ("threads", action), Some(id.thread), Object::new()).await;
    allowed
        .map(drop)
        .map_err(|refusal| Failure::from_auth_refusal(refusal, || A2aError::task_not_found(id)))
}

/// Reads a task for a response that has not started.
pub(super) async fn find(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    detail: TaskDetail,
) -> Result<TaskRow, Failure> {
    let row = load_task(app, assistant, id, detail).await;
    row.map_err(|error| Failure::or_not_found(error.into(), || A2aError::task_not_found(id)))
}

/// Reads a task for a response whose head was sent.
pub(super) async fn read(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    detail: TaskDetail,
) -> Result<TaskRow, A2aError> {
    let row = load_task(app, assistant, id, detail).await;
    row.map_err(|error| match error {
        towpath_store::Error::NotFound => A2aError::task_not_found(id),
        error => internal_error(error),
    })
}

pub(super) async fn load_task(
    app: &AgentApp,
    assistant: AssistantId,
    id: TaskId,
    detail: TaskDetail,
) -> towpath_store::Result<TaskRow> {
    app.store
        .read(async |tx| a2a_tasks::get(tx, app.tenant, assistant, id, detail).await)
        .await
}

pub(super) async fn wait_ended(mut reader: Reader) -> Result<(), A2aError> {
    while let Some(item) = reader.next().await.map_err(internal_error)? {
        if matches!(item, StreamItem::End(..)) {
            break;
        }
    }
    Ok(())
}

/// An error after the head of the response was sent.
pub(super) fn internal_error(error: impl Into<AgentError>) -> A2aError {
    let error: AgentError = error.into();
    A2aError::new(ErrorCode::Internal, error.detail())
}

/// States of threads are only read for their messages.
pub(super) const fn detail(most: Option<usize>) -> TaskDetail {
    match most {
        Some(0) => TaskDetail::ARTIFACT,
        _ => TaskDetail::ALL,
    }
}

/// A task with its last `most` messages.
pub(super) fn task_json(row: &TaskRow, dialect: Dialect, most: Option<usize>) -> Result<Value, AgentError> {
    let history = messages(row, dialect, most)?;
    Ok(row.task()?.to_json(dialect, history))
}

/// The last `most` messages of a task.
pub(super) fn messages(row: &TaskRow, dialect: Dialect, most: Option<usize>) -> Result<Option<Vec<Value>>, AgentError> {
    if most == Some(0) {
        return Ok(None);
    }
    let values = row.current_values.as_deref().unwrap_or("null");
    let values: Value = serde_json::from_str(values).map_err(|error| AgentError::internal(&error))?;
    let most = most.unwrap_or(MAX_MESSAGES);
    Ok(Some(history(
        dialect,
        &values,
        &row.without_outcome(),
        row.is_latest,
        Some(most),
    )))
}

fn already_finished(id: TaskId) -> A2aError {
    let text = format!("Task {id} has ended and cannot be canceled");
    A2aError::new(ErrorCode::TaskNotCancelable, text)
}
