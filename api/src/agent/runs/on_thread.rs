//! Runs of a thread.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use towpath_domain::agent::request::modes;
use towpath_domain::agent::{EventStart, OneOrMany, RunRequest, RunStatus, StreamMode};
use towpath_domain::{RunId, ThreadId};
use towpath_store::runs::{self as rows, Page as RunPage};
use towpath_store::threads;
use towpath_workflows::run_agent::{self, Deletion};
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};

use super::begin::PreparedRun;
use super::cancel::CancelOnDrop;
use super::model::{FIELDS, Run, RunCreate};
use crate::agent::answer::{Json, Page, Select};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body, Pairs, Path, Query, number, one_or_list, yes};
use crate::agent::live::{Reader, StreamItem};
use crate::agent::sse::{StreamKind, StreamOptions, locations, prefix};
use crate::agent::wait::WaitFormat;
use crate::agent::{sse, wait};
use crate::routes::{Routes, routes};

/// The longest that the deletion of a run waits for it to stop. A worker that hears of it stops within its grace; one that died
/// is found out when its lease ends.
const STOP_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(create, list))
        .routes(routes!(create_streaming))
        .routes(routes!(create_waiting))
        .routes(routes!(get, delete))
        .routes(routes!(join))
        .routes(routes!(stream))
}

/// Start a run in the background.
#[utoipa::path(post, path = "/threads/{thread_id}/runs", tag = "runs", request_body = RunCreate,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "The run is recorded", body = Run),
              (status = 404, description = "No such thread or assistant"),
              (status = 409, description = "The thread is busy and the run requests `reject`"), AgentError))]
pub(crate) async fn create(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(thread): Path<ThreadId>,
    Body(request): Body<RunRequest>,
) -> Result<Response, AgentError> {
    let ready = PreparedRun::prepare(&app, &headers, request, Some(thread)).await?;
    let run = ready.start(&app).await?;
    let headers = locations(&prefix(&app, &headers), Some(thread), run.id, None);
    Ok((headers, Json(Run::try_from(run)?)).into_response())
}

/// Start a run and stream its events.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/stream", tag = "runs", request_body = RunCreate,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = sse::Event),
              (status = 404, description = "No such thread or assistant"),
              (status = 409, description = "The thread is busy and the run requests `reject`"), AgentError))]
pub(crate) async fn create_streaming(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(thread): Path<ThreadId>,
    Body(request): Body<RunRequest>,
) -> Result<Response, AgentError> {
    let ready = PreparedRun::prepare(&app, &headers, request, Some(thread)).await?;
    begin_stream(&app, &headers, ready, Some(thread)).await
}

/// Start a run and wait for its final state.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/wait", tag = "runs", request_body = RunCreate,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "The final state, or `__error__`", body = Object),
              (status = 404, description = "No such thread or assistant"),
              (status = 409, description = "The thread is busy and the run requests `reject`"), AgentError))]
pub(crate) async fn create_waiting(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(thread): Path<ThreadId>,
    Body(request): Body<RunRequest>,
) -> Result<Response, AgentError> {
    let ready = PreparedRun::prepare(&app, &headers, request, Some(thread)).await?;
    begin_wait(&app, &headers, ready, WaitFormat::State).await
}

/// Subscribes, records, streams. `shown` is the thread that the answer's locations name.
pub(super) async fn begin_stream(
    app: &AgentApp,
    headers: &HeaderMap,
    ready: PreparedRun,
    shown: Option<ThreadId>,
) -> Result<Response, AgentError> {
    let reader = ready.reader(app).await;
    let resumable = ready.resumable;
    let (run, guard) = ready.start_with_reader(app).await?;
    let show = StreamOptions {
        modes: None,
        ids: resumable,
        kind: StreamKind::Run,
    };
    let headers = locations(&prefix(app, headers), shown, run.id, Some("stream"));
    Ok(sse::respond(app, reader, show, headers, guard))
}

/// Subscribes, records, waits.
pub(super) async fn begin_wait(
    app: &AgentApp,
    headers: &HeaderMap,
    ready: PreparedRun,
    format: WaitFormat,
) -> Result<Response, AgentError> {
    let reader = ready.reader(app).await;
    let thread = ready.target.id();
    let (run, guard) = ready.start_with_reader(app).await?;
    let headers = locations(&prefix(app, headers), Some(thread), run.id, Some("join"));
    Ok(match format {
        WaitFormat::State => wait::respond(app, (thread, run.id), reader, headers, guard),
        WaitFormat::RunResult => wait::respond_with_run(app, run, reader, headers, guard),
    })
}

/// Runs of a thread, newest first.
#[utoipa::path(get, path = "/threads/{thread_id}/runs", tag = "runs",
    params(("thread_id" = Uuid, Path, description = "The thread"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 1000, description = "1 to 1000; default 10"),
           ("offset" = Option<i64>, Query, minimum = 0, description = "Results to skip"),
           ("status" = Option<super::model::RunStatusFilter>, Query, description = "Only those that stand there"),
           ("select" = Option<Vec<String>>, Query, description = "Only these fields")),
    responses((status = 200, description = "Runs", body = Vec<Run>),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn list(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Query(query): Query<Pairs>,
) -> Result<Json<Vec<Value>>, AgentError> {
    let (mut limit, mut offset, mut status, mut select) = (None, None, None, Vec::new());
    for (name, value) in query {
        match name.as_str() {
            "limit" => limit = Some(number("limit", &value)?),
            "offset" => offset = Some(number("offset", &value)?),
            "status" => status = Some(parse_status(&value)?),
            "select" => select.extend(one_or_list(&value)),
            _ => {}
        }
    }
    let page = Page::of(limit, offset)?;
    let select = Select::of((!select.is_empty()).then_some(select), &FIELDS)?;
    let wanted = RunPage {
        status,
        limit: page.limit,
        offset: page.offset,
    };
    let found = app
        .store
        .read(async |tx| {
            threads::get(tx, app.tenant, thread).await?;
            rows::list(tx, app.tenant, thread, wanted).await
        })
        .await
        .map_err(|error| AgentError::from(error).or_missing(AgentError::no_thread(thread)))?;
    Ok(Json(select.apply_all::<Run, _>(found)?))
}

fn parse_status(text: &str) -> Result<RunStatus, AgentError> {
    let all = [
        RunStatus::Pending,
        RunStatus::Running,
        RunStatus::Success,
        RunStatus::Error,
        RunStatus::Timeout,
        RunStatus::Interrupted,
    ];
    all.into_iter()
        .find(|status| status.as_str() == text)
        .ok_or_else(|| AgentError::invalid("status: expected pending, running, success, error, timeout or interrupted"))
}

/// One run; of this thread, if one is named.
pub(super) async fn run_of(app: &AgentApp, thread: Option<ThreadId>, run: RunId) -> Result<rows::Run, AgentError> {
    let found = app.store.read(async |tx| rows::get(tx, app.tenant, run).await).await?;
    match thread {
        Some(thread) if found.thread_id != thread => Err(AgentError::not_found()),
        _ => Ok(found),
    }
}

/// Get one run.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}", tag = "runs",
    params(("thread_id" = Uuid, Path, description = "The thread"), ("run_id" = Uuid, Path, description = "The run")),
    responses((status = 200, description = "The run", body = Run),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn get(
    State(app): State<AgentApp>,
    Path((thread, run)): Path<(ThreadId, RunId)>,
) -> Result<Json<Run>, AgentError> {
    Ok(Json(run_of(&app, Some(thread), run).await?.try_into()?))
}

/// Delete a run with the checkpoints it made. One that goes on is stopped first.
#[utoipa::path(delete, path = "/threads/{thread_id}/runs/{run_id}", tag = "runs",
    params(("thread_id" = Uuid, Path, description = "The thread"), ("run_id" = Uuid, Path, description = "The run")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such run"),
              (status = 409, description = "Another run of the thread is at work, which may hold its checkpoints"),
              AgentError))]
pub(crate) async fn delete(
    State(app): State<AgentApp>,
    Path((thread, run)): Path<(ThreadId, RunId)>,
) -> Result<StatusCode, AgentError> {
    let found = run_of(&app, Some(thread), run).await?;
    delete_run(&app, &found).await
}

/// Deletes a run that was found. One that goes on is stopped first.
pub(super) async fn delete_run(app: &AgentApp, found: &rows::Run) -> Result<StatusCode, AgentError> {
    let (thread, run) = (found.thread_id, found.id);
    // Before it is told: the end may come at once.
    let reader = match found.status.is_final() {
        true => None,
        false => Some(Reader::of_published_frames(app, thread, run).await?),
    };
    let deletion = app
        .store
        .write(async |tx| run_agent::delete_run(tx, app.tenant, thread, run).await)
        .await?;
    if let (Deletion::Stopping, Some(reader)) = (deletion, reader) {
        let stopped = tokio::time::timeout(STOP_LIMIT, end_of(reader)).await;
        stopped.unwrap_or_else(|_| {
            let text = "The run was told to stop and has not stopped yet. It is deleted when it has; repeat the request to wait for that.";
            Err(AgentError::unavailable(text, Duration::from_secs(2)))
        })?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a run to its end.
async fn end_of(mut reader: Reader) -> Result<(), AgentError> {
    while let Some(item) = reader.next().await? {
        if matches!(item, StreamItem::End(..)) {
            break;
        }
    }
    Ok(())
}

/// How a run is joined.
#[derive(Debug, Default, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct JoinRun {
    /// Whether to stop the run when the caller goes away.
    #[param(value_type = Option<String>)]
    cancel_on_disconnect: bool,
    /// Only these modes: names, or a list as JSON.
    #[param(schema_with = joined_modes, required = false)]
    stream_mode: Option<Vec<StreamMode>>,
}

fn joined_modes() -> Array {
    let modes = StreamMode::ALL.map(StreamMode::as_str).join("|");
    let pattern = format!(r#"^(({modes})|\[("({modes})"(,"({modes})")*)?\])?$"#);
    let mode = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    ArrayBuilder::new().items(mode).build()
}

impl JoinRun {
    pub fn of(query: Pairs) -> Result<Self, AgentError> {
        let mut how = Self::default();
        let mut said = false;
        let mut asked = Vec::new();
        for (name, value) in query {
            match name.as_str() {
                "cancel_on_disconnect" if said => {
                    return Err(AgentError::invalid("cancel_on_disconnect: the field was sent twice"));
                }
                "cancel_on_disconnect" => (said, how.cancel_on_disconnect) = (true, yes(&value)),
                "stream_mode" if !value.is_empty() => asked.extend(one_or_list(&value)),
                _ => {}
            }
        }
        if !asked.is_empty() {
            how.stream_mode = Some(modes(Some(OneOrMany::Many(asked)))?);
        }
        Ok(how)
    }
}

/// Wait for a run and return its final state.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/join", tag = "runs",
    params(("thread_id" = Uuid, Path, description = "The thread"), ("run_id" = Uuid, Path, description = "The run"),
           JoinRun),
    responses((status = 200, description = "The final state, or `__error__`", body = Object),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn join(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path((thread, run)): Path<(ThreadId, RunId)>,
    Query(query): Query<Pairs>,
) -> Result<Response, AgentError> {
    let found = run_of(&app, Some(thread), run).await?;
    join_run(&app, &headers, &found, JoinRun::of(query)?, WaitFormat::State).await
}

/// Waits for a run that is recorded.
pub(super) async fn join_run(
    app: &AgentApp,
    headers: &HeaderMap,
    run: &rows::Run,
    how: JoinRun,
    format: WaitFormat,
) -> Result<Response, AgentError> {
    let reader = Reader::of_run(app, run.thread_id, run.id, resumable(run), EventStart::Now).await?;
    let headers = locations(&prefix(app, headers), Some(run.thread_id), run.id, Some("join"));
    let guard = CancelOnDrop::new(app, run.id, how.cancel_on_disconnect);
    Ok(match format {
        WaitFormat::State => wait::respond(app, (run.thread_id, run.id), reader, headers, guard),
        WaitFormat::RunResult => wait::respond_with_run(app, run.clone(), reader, headers, guard),
    })
}

/// Stream the events of a run, from now on or after `Last-Event-ID`.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/stream", tag = "runs",
    params(("thread_id" = Uuid, Path, description = "The thread"), ("run_id" = Uuid, Path, description = "The run"),
           JoinRun, ("Last-Event-ID" = Option<String>, Header, pattern = r"^(-|-1|[0-9]{1,15}(-([0-9]{1,15}|\*))?)$", description = "Id of the last received event; -1 for all")),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = sse::Event),
              (status = 404, description = "No such run"), AgentError))]
pub(crate) async fn stream(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path((thread, run)): Path<(ThreadId, RunId)>,
    Query(query): Query<Pairs>,
) -> Result<Response, AgentError> {
    let found = run_of(&app, Some(thread), run).await?;
    stream_run(&app, &headers, &found, JoinRun::of(query)?, Some(thread)).await
}

/// Streams a run that is recorded.
pub(super) async fn stream_run(
    app: &AgentApp,
    headers: &HeaderMap,
    run: &rows::Run,
    how: JoinRun,
    shown: Option<ThreadId>,
) -> Result<Response, AgentError> {
    let since = since(headers)?;
    let resumable = resumable(run);
    let reader = Reader::of_run(app, run.thread_id, run.id, resumable, since).await?;
    let show = StreamOptions {
        modes: how.stream_mode,
        ids: resumable,
        kind: StreamKind::Run,
    };
    let headers = locations(&prefix(app, headers), shown, run.id, Some("stream"));
    let guard = CancelOnDrop::new(app, run.id, how.cancel_on_disconnect);
    Ok(sse::respond(app, reader, show, headers, guard))
}

/// From where a reader wants events.
pub(crate) fn since(headers: &HeaderMap) -> Result<EventStart, AgentError> {
    let Some(id) = headers.get("last-event-id") else {
        return Ok(EventStart::Now);
    };
    id.to_str()
        .ok()
        .and_then(EventStart::parse)
        .ok_or_else(|| AgentError::invalid("Last-Event-ID: expected <ms>-<seq>, or -1 for all events"))
}

fn resumable(run: &rows::Run) -> bool {
    #[derive(Deserialize)]
    struct StoredKwargs {
        #[serde(default)]
        resumable: bool,
    }
    serde_json::from_str::<StoredKwargs>(&run.kwargs).is_ok_and(|kept| kept.resumable)
}
