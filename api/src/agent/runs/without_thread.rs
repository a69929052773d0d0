//! Stateless runs, and runs addressed without their thread.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use towpath_domain::agent::RunStatus;
use towpath_domain::{RunId, ThreadId};
use towpath_store::runs as rows;

use super::begin::PreparedRun;
use super::model::{FIELDS, Run, RunCreate, RunStatusFilter};
use super::on_thread::{JoinRun, begin_stream, begin_wait, delete_run, join_run, run_of, stream_run};
use crate::agent::agent_protocol::{RunBody, RunWaitResponse};
use crate::agent::answer::{Json, Page, Select};
use crate::agent::app::AgentApp;
use crate::agent::assistants::named_assistant;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body, Pairs, Path, Query};
use crate::agent::sse::{Event, locations, prefix};
use crate::agent::wait::WaitFormat;
use crate::extract::whole;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(create))
        .routes(routes!(create_streaming))
        .routes(routes!(create_waiting))
        .routes(routes!(search))
        .routes(routes!(get, delete))
        .routes(routes!(stream))
        .routes(routes!(join))
        .routes(routes!(wait))
}

/// Start a stateless run in the background.
#[utoipa::path(post, path = "/runs", tag = "runs", request_body = RunCreate,
    responses((status = 200, description = "The run is recorded", body = Run),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn create(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    body: RunBody,
) -> Result<Response, AgentError> {
    let (thread, protocol) = (body.thread(), body.protocol);
    let ready = PreparedRun::prepare(&app, &headers, body.request, thread).await?;
    let run = ready.start(&app).await?;
    let headers = locations(&prefix(&app, &headers), thread, run.id, None);
    let run = Run::try_from(run)?;
    let run = if protocol.is_some() { run.with_agent() } else { run };
    Ok((headers, Json(run)).into_response())
}

/// Start a stateless run and stream its events.
#[utoipa::path(post, path = "/runs/stream", tag = "runs", request_body = RunCreate,
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = Event),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn create_streaming(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    body: RunBody,
) -> Result<Response, AgentError> {
    let thread = body.thread();
    let ready = PreparedRun::prepare(&app, &headers, body.request, thread).await?;
    begin_stream(&app, &headers, ready, thread).await
}

/// Start a stateless run and wait for its final state.
#[utoipa::path(post, path = "/runs/wait", tag = "runs", request_body = RunCreate,
    responses((status = 200, description = "The final state, or `__error__`; the run with its values and messages to a body of the Agent Protocol",
               body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn create_waiting(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    body: RunBody,
) -> Result<Response, AgentError> {
    let (thread, protocol) = (body.thread(), body.protocol);
    let ready = PreparedRun::prepare(&app, &headers, body.request, thread).await?;
    let format = match protocol {
        Some(_) => WaitFormat::RunResult,
        None => WaitFormat::State,
    };
    begin_wait(&app, &headers, ready, format).await
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct RunSearch {
    /// Must be contained in the metadata of the run.
    metadata: Option<Map<String, Value>>,
    status: Option<RunStatusFilter>,
    #[schema(value_type = Option<Uuid>)]
    thread_id: Option<ThreadId>,
    /// An assistant's id, or the name of a graph.
    assistant_id: Option<String>,
    /// The same, as the Agent Protocol calls it.
    agent_id: Option<String>,
    /// 1 to 1000; default 10.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
    select: Option<Vec<String>>,
}

/// Runs of all threads, newest first.
#[utoipa::path(post, path = "/runs/search", tag = "runs", request_body = RunSearch,
    responses((status = 200, description = "A page; `X-Pagination-Next` is the offset of the next page", body = Vec<Run>),
              AgentError))]
pub(crate) async fn search(State(app): State<AgentApp>, Body(search): Body<RunSearch>) -> Result<Response, AgentError> {
    let page = Page::of(search.limit, search.offset)?;
    let select = Select::of(search.select, &[&FIELDS[..], &["agent_id"]].concat())?;
    let assistant = search
        .assistant_id
        .or(search.agent_id)
        .map(|text| named_assistant(&app, &text))
        .transpose()?;
    let filter = rows::Filter {
        thread: search.thread_id,
        assistant,
        status: search.status.map(|status| match status {
            RunStatusFilter::Pending => RunStatus::Pending,
            RunStatusFilter::Running => RunStatus::Running,
            RunStatusFilter::Success => RunStatus::Success,
            RunStatusFilter::Error => RunStatus::Error,
            RunStatusFilter::Timeout => RunStatus::Timeout,
            RunStatusFilter::Interrupted => RunStatus::Interrupted,
        }),
        metadata: search.metadata.map(Value::Object),
    };
    let found = app
        .store
        .read(async |tx| rows::search(tx, app.tenant, &filter, page.fetch(), page.offset).await)
        .await?;
    let (headers, found) = page.cut(found);
    let runs: Result<Vec<Value>, AgentError> = found
        .into_iter()
        .map(|row| select.apply(&Run::try_from(row)?.with_agent()))
        .collect();
    Ok((headers, Json(runs?)).into_response())
}

/// Get one run.
#[utoipa::path(get, path = "/runs/{run_id}", tag = "runs",
    params(("run_id" = Uuid, Path, description = "The run")),
    responses((status = 200, description = "The run", body = Run),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn get(State(app): State<AgentApp>, Path(run): Path<RunId>) -> Result<Json<Run>, AgentError> {
    let found = run_of(&app, None, run).await?;
    Ok(Json(Run::try_from(found)?.with_agent()))
}

/// Delete a run with the checkpoints it made. One that goes on is stopped first.
#[utoipa::path(delete, path = "/runs/{run_id}", tag = "runs",
    params(("run_id" = Uuid, Path, description = "The run")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such run"),
              (status = 409, description = "Another run of the thread is at work, which may hold its checkpoints"),
              AgentError))]
pub(crate) async fn delete(State(app): State<AgentApp>, Path(run): Path<RunId>) -> Result<StatusCode, AgentError> {
    let found = run_of(&app, None, run).await?;
    delete_run(&app, &found).await
}

/// Stream the events of a run, from now on or after `Last-Event-ID`.
#[utoipa::path(get, path = "/runs/{run_id}/stream", tag = "runs",
    params(("run_id" = Uuid, Path, description = "The run"), JoinRun,
           ("Last-Event-ID" = Option<String>, Header, pattern = r"^(-|-1|[0-9]{1,15}(-([0-9]{1,15}|\*))?)$", description = "Id of the last received event; -1 for all")),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = Event),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn stream(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(run): Path<RunId>,
    Query(query): Query<Pairs>,
) -> Result<Response, AgentError> {
    let found = run_of(&app, None, run).await?;
    stream_run(&app, &headers, &found, JoinRun::of(query)?, None).await
}

/// Wait for a run and return its final state.
#[utoipa::path(get, path = "/runs/{run_id}/join", tag = "runs",
    params(("run_id" = Uuid, Path, description = "The run"), JoinRun),
    responses((status = 200, description = "The final state, or `__error__`", body = Object),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn join(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(run): Path<RunId>,
    Query(query): Query<Pairs>,
) -> Result<Response, AgentError> {
    let found = run_of(&app, None, run).await?;
    join_run(&app, &headers, &found, JoinRun::of(query)?, WaitFormat::State).await
}

/// Wait for a run and return it with its final state, as in the Agent Protocol.
#[utoipa::path(get, path = "/runs/{run_id}/wait", tag = "runs",
    params(("run_id" = Uuid, Path, description = "The run"), JoinRun),
    responses((status = 200, description = "The run with its values and messages", body = RunWaitResponse),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn wait(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(run): Path<RunId>,
    Query(query): Query<Pairs>,
) -> Result<Response, AgentError> {
    let found = run_of(&app, None, run).await?;
    join_run(&app, &headers, &found, JoinRun::of(query)?, WaitFormat::RunResult).await
}
