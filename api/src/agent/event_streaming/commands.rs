//! Commands of a thread: start a run, answer an interrupt, read state.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use towpath_domain::ThreadId;
use towpath_domain::agent::{EventStart, MultitaskStrategy, Object, RunRequest, ThreadStatus};
use towpath_runtime::StateRef;
use towpath_store as store;
use towpath_store::threads::{self, Thread};

use super::event::Failure;
use super::filter::{check_length, parse_integer, parse_namespace};
use super::subscriptions::CommandResult;
use super::tree;
use crate::agent::answer::Json;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body, Path, read_value};
use crate::agent::live::{Reader, StreamItem};
use crate::agent::runs::PreparedRun;
use crate::agent::threads::read_state;

/// Stream modes that the protocol shows.
const STREAM_MODES: [&str; 6] = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints"];
/// How long to wait for an interrupt that was streamed but is not stored yet.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks for it.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of interrupts in one command.
const MAX_RESPONSES: usize = 1000;

/// Whether a command starts a run.
pub(in crate::agent) fn starts_run(method: &str) -> bool {
    matches!(method, "run.start" | "input.respond")
}

pub(super) struct Command<'a> {
    pub id: i64,
    pub method: &'a str,
    pub params: Option<&'a Object>,
}

impl<'a> Command<'a> {
    /// Reads a command, or returns the error response.
    pub fn parse(object: &'a Object) -> Result<Self, Value> {
        let id = object.get("id").and_then(parse_integer);
        let refused = |text| json!(Failure::new(id, "invalid_argument", text));
        let method = object.get("method").and_then(Value::as_str);
        let Some((id, method)) = id.zip(method) else {
            return Err(refused(
                "Protocol commands must include an integer id and string method.",
            ));
        };
        let params = match object.get("params") {
            None | Some(Value::Null) => None,
            Some(Value::Object(params)) => Some(params),
            Some(_) => return Err(refused("params: expected an object")),
        };
        Ok(Self { id, method, params })
    }
}

/// A command in the API description.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "described here, read as a command")]
pub(crate) struct CommandBody {
    /// Repeated in the response.
    id: i64,
    /// run.start, input.respond, state.get or agent.getTree.
    method: String,
    /// `run.start`: assistant_id, input, config, metadata, multitaskStrategy, langsmith_tracer. `input.respond`: interrupt_id
    /// and response, or a list of both as responses; update, goto, config, metadata. `state.get`: namespace, keys.
    params: Option<Map<String, Value>>,
}

/// Send a command to a thread. Errors of a command have status 200 and type error.
#[utoipa::path(post, path = "/threads/{thread_id}/commands", tag = "threads", request_body = CommandBody,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "`{type, id, result, meta}`, or `{type, id, error, message}`", body = Object),
              (status = 400, description = "The body is not a command"), AgentError))]
pub(crate) async fn command(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(thread): Path<ThreadId>,
    Body(body): Body<Object>,
) -> Result<Response, AgentError> {
    let command = match Command::parse(&body) {
        Ok(command) => command,
        Err(answer) => return Ok((StatusCode::BAD_REQUEST, Json(answer)).into_response()),
    };
    let none = Object::new();
    let params = command.params.unwrap_or(&none);
    let outcome = match command.method {
        "run.start" => start_run(&app, &headers, thread, params).await,
        "input.respond" => respond_to_interrupts(&app, &headers, thread, params).await,
        "state.get" => thread_state(&app, thread, params).await,
        "agent.getTree" => match find_thread(&app, thread).await? {
            Some(_) => tree::read(&app, thread).await.map(|tree| match tree {
                Some(tree) => Ok(json!({ "tree": tree })),
                None => Err(no_run_error()),
            }),
            None => Ok(Err(no_run_error())),
        },
        "subscription.subscribe" | "subscription.unsubscribe" | "subscription.reconnect" => {
            let text = "Subscriptions require a WebSocket: open one, or POST to stream/events";
            Ok(Err(("not_supported", text.to_owned())))
        }
        other => Ok(Err(("unknown_command", format!("Unknown protocol command: {other}")))),
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        // Errors that the caller can fix belong to the command.
        Err(error) if is_command_error(error.status()) => Err((error_code(error.status()), error.detail().to_owned())),
        Err(error) => return Err(error),
    };
    Ok(Json(reply(command.id, outcome, 0)).into_response())
}

fn is_command_error(status: StatusCode) -> bool {
    // Auth errors and overload are reported by status.
    status.is_client_error()
        && !matches!(
            status,
            StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS
        )
}

pub(super) fn error_code(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "permission_denied",
        StatusCode::CONFLICT => "conflict",
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => "unknown_error",
        status if status.is_client_error() => "invalid_argument",
        _ => "unknown_error",
    }
}

pub(super) fn reply(id: i64, outcome: CommandResult, seq: i64) -> Value {
    match outcome {
        Ok(result) => json!({"type": "success", "id": id, "result": result, "meta": meta(seq)}),
        Err((code, text)) => json!(Failure::new(Some(id), code, &text)),
    }
}

/// Number of the last event before the response.
pub(super) fn meta(seq: i64) -> Value {
    json!({"applied_through_seq": seq})
}

fn no_run_error() -> (&'static str, String) {
    ("no_such_run", "No run of this thread is stored.".to_owned())
}

fn invalid_argument(text: &str) -> CommandResult {
    Err(("invalid_argument", text.to_owned()))
}

/// Starts a run, or answers the thread's interrupt.
async fn start_run(
    app: &AgentApp,
    headers: &HeaderMap,
    thread: ThreadId,
    params: &Object,
) -> Result<CommandResult, AgentError> {
    let assistant = params.get("assistant_id").and_then(Value::as_str);
    if assistant.is_none_or(str::is_empty) {
        return Ok(invalid_argument("run.start requires an assistant_id."));
    }
    let checkpoint = params
        .get("config")
        .and_then(|config| config.pointer("/configurable/checkpoint_id"));
    let checkpoint = checkpoint.filter(|checkpoint| !checkpoint.is_null());
    if checkpoint.is_some_and(|checkpoint| !checkpoint.is_string()) {
        return Ok(invalid_argument(
            "config.configurable.checkpoint_id must be a non-empty string.",
        ));
    }
    let mut body = select_fields(params, &["assistant_id", "config", "metadata", "langsmith_tracer"]);
    let strategy = params.get("multitaskStrategy").cloned().unwrap_or_default();
    // Clients expect that an unknown strategy is ignored.
    let strategy = serde_json::from_value::<MultitaskStrategy>(strategy).unwrap_or(MultitaskStrategy::Enqueue);
    body.insert("multitask_strategy".to_owned(), json!(strategy));
    if let Some(checkpoint) = checkpoint {
        body.insert("checkpoint_id".to_owned(), checkpoint.clone());
    }
    let input = params.get("input").filter(|input| !input.is_null());
    let waits = match input {
        // A run from an earlier checkpoint answers no interrupt.
        Some(_) if checkpoint.is_none() => find_thread(app, thread)
            .await?
            .is_some_and(|thread| waits_for_input(&thread)),
        _ => false,
    };
    match input {
        Some(input) if waits => body.insert("command".to_owned(), json!({ "resume": input })),
        Some(input) => body.insert("input".to_owned(), input.clone()),
        None => None,
    };
    let run = prepare_run(app, headers, thread, body).await?.start(app).await?;
    Ok(Ok(json!({"run_id": run.id})))
}

/// Answers interrupts by starting a run.
async fn respond_to_interrupts(
    app: &AgentApp,
    headers: &HeaderMap,
    thread: ThreadId,
    params: &Object,
) -> Result<CommandResult, AgentError> {
    let answers = match parse_responses(params) {
        Ok(answers) => answers,
        Err(text) => return Ok(invalid_argument(&text)),
    };
    let Some(row) = wait_until_idle(app, thread).await? else {
        return Ok(Err(no_run_error()));
    };
    let ids: Vec<String> = answers.keys().cloned().collect();
    if let Err(refusal) = check_awaited(&row, &ids) {
        return Ok(Err(refusal));
    }
    let metadata: Object = serde_json::from_str(&row.metadata).unwrap_or_default();
    let Some(assistant) = metadata.get("assistant_id").filter(|id| id.is_string()) else {
        return Ok(Err(no_run_error()));
    };
    let mut body = select_fields(params, &["config", "metadata", "strict_resume"]);
    let mut command = select_fields(params, &["update", "goto"]);
    command.insert("resume".to_owned(), Value::Object(answers));
    body.insert("command".to_owned(), Value::Object(command));
    body.insert("assistant_id".to_owned(), assistant.clone());
    body.insert("multitask_strategy".to_owned(), json!("enqueue"));
    let ready = prepare_run(app, headers, thread, body).await?;
    // Another request may have answered since the check.
    let recorded = ready.start_if(app, thread, |row| check_awaited(row, &ids)).await?;
    Ok(recorded.map(|run| json!({"run_id": run.id})))
}

/// Rejects answers to interrupts that the thread does not wait for.
fn check_awaited(thread: &Thread, ids: &[String]) -> Result<(), (&'static str, String)> {
    let waiting = interrupt_ids(thread);
    let is_answered = |id: &&String| thread.status == ThreadStatus::Busy || !waiting.contains(*id);
    match ids.iter().find(is_answered) {
        Some(id) => Err((
            "no_such_interrupt",
            format!("Unknown or already-consumed interrupt: {id}"),
        )),
        None => Ok(()),
    }
}

/// A run that streams the modes of the protocol.
async fn prepare_run(
    app: &AgentApp,
    headers: &HeaderMap,
    thread: ThreadId,
    mut body: Object,
) -> Result<PreparedRun, AgentError> {
    for (name, value) in [
        ("stream_mode", json!(STREAM_MODES)),
        ("stream_subgraphs", json!(true)),
        ("stream_resumable", json!(true)),
        ("if_not_exists", json!("create")),
    ] {
        body.insert(name.to_owned(), value);
    }
    let request: RunRequest = read_value(Value::Object(body))?;
    let ready = PreparedRun::prepare(app, headers, request, Some(thread)).await?;
    Ok(ready.with_event_streaming())
}

/// The non-null fields with these names.
fn select_fields(params: &Object, names: &[&str]) -> Object {
    let there = |name: &&str| Some(((*name).to_owned(), params.get(*name)?.clone()));
    names
        .iter()
        .filter_map(there)
        .filter(|(_, value)| !value.is_null())
        .collect()
}

/// Answers by interrupt id.
fn parse_responses(params: &Object) -> Result<Object, String> {
    let one = std::slice::from_ref(params);
    let many: Vec<Object>;
    let entries = match params.get("responses") {
        None | Some(Value::Null) => one,
        Some(responses) => {
            let read = serde_json::from_value(responses.clone());
            many = read.map_err(|_| "responses: expected a list of objects".to_owned())?;
            many.as_slice()
        }
    };
    if entries.is_empty() || entries.len() > MAX_RESPONSES {
        return Err(format!("responses: expected 1 to {MAX_RESPONSES} entries"));
    }
    let mut answers = Object::new();
    for entry in entries {
        let Some(id) = entry.get("interrupt_id").and_then(Value::as_str) else {
            return Err("interrupt_id: input.respond requires it".to_owned());
        };
        check_length("interrupt_id", id)?;
        if let Some(given) = entry.get("namespace").filter(|given| !given.is_null()) {
            parse_namespace(given)?;
        }
        answers.insert(id.to_owned(), entry.get("response").cloned().unwrap_or_default());
    }
    Ok(answers)
}

/// Waits until no run is active on the thread: a streamed interrupt is stored a moment later, and an answered one is stored
/// until its run ends.
async fn wait_until_idle(app: &AgentApp, thread: ThreadId) -> Result<Option<Thread>, AgentError> {
    // Subscribe before the first check, so that no end is missed.
    let mut reader = Reader::of_thread(app, thread, EventStart::Now).await?;
    let until = Instant::now() + INTERRUPT_TIMEOUT;
    loop {
        let Some(row) = find_thread(app, thread).await? else {
            return Ok(None);
        };
        if row.status != ThreadStatus::Busy || Instant::now() >= until {
            return Ok(Some(row));
        }
        let next_end = async { while !matches!(reader.next().await, Ok(Some(StreamItem::End(..)) | None) | Err(_)) {} };
        let _ = tokio::time::timeout(INTERRUPT_POLL_INTERVAL, next_end).await;
    }
}

async fn find_thread(app: &AgentApp, thread: ThreadId) -> Result<Option<Thread>, AgentError> {
    let tenant = app.tenant;
    match app.store.read(async |tx| threads::get(tx, tenant, thread).await).await {
        Ok(row) => Ok(Some(row)),
        Err(store::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn waits_for_input(thread: &Thread) -> bool {
    thread.status != ThreadStatus::Busy && !interrupt_ids(thread).is_empty()
}

/// Ids of the thread's open interrupts.
fn interrupt_ids(thread: &Thread) -> Vec<String> {
    let by_task: Object = serde_json::from_str(&thread.interrupts).unwrap_or_default();
    let all = by_task.values().filter_map(Value::as_array).flatten();
    all.filter_map(|one| one.get("id")?.as_str().map(str::to_owned))
        .collect()
}

/// State of a thread or a subgraph.
async fn thread_state(app: &AgentApp, thread: ThreadId, params: &Object) -> Result<CommandResult, AgentError> {
    let namespace = match params.get("namespace").map(parse_namespace).transpose() {
        Ok(namespace) => namespace.unwrap_or_default(),
        Err(text) => return Ok(invalid_argument(&text)),
    };
    let keys = params.get("keys").filter(|keys| !keys.is_null()).cloned();
    let Ok(keys) = keys.map(serde_json::from_value::<Vec<String>>).transpose() else {
        return Ok(invalid_argument("keys: expected a list of strings"));
    };
    let at = StateRef {
        ns: namespace.join("|"),
        ..StateRef::latest(thread.0)
    };
    let Json(state) = match read_state(app, at, thread, false).await {
        Ok(state) => state,
        Err(error) if error.status() == StatusCode::NOT_FOUND => {
            let code = if namespace.is_empty() {
                "no_such_run"
            } else {
                "no_such_namespace"
            };
            return Ok(Err((code, error.detail().to_owned())));
        }
        Err(error) => return Err(error),
    };
    let mut values = state["values"].clone();
    if let (Some(keys), Value::Object(values)) = (keys, &mut values) {
        values.retain(|key, _| keys.contains(key));
    }
    let mut result = json!({ "values": values });
    if let Some(id) = state.pointer("/checkpoint/checkpoint_id").filter(|id| id.is_string()) {
        result["checkpoint"] = json!({"id": id, "ns": state["checkpoint"]["checkpoint_ns"]});
    }
    Ok(Ok(result))
}
