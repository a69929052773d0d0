//! A command over server-sent events. A client that loses the stream resumes with the offsets that it reached.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use towpath_domain::BoxId;
use towpath_sandbox::{Error, ExecEvent, ExecEvents, Execution};

use super::exec::{CommandDefaults, ExecuteCommand, check_command_id, count_command};
use super::exec_socket::timeout_frame;
use super::readiness::{BoxUse, RunningBox, ensure_running};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// Interval of heartbeats on an idle stream.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Disables buffering in proxies.
const BUFFERING_HEADER: HeaderName = HeaderName::from_static("x-accel-buffering");

/// One event of a stream.
#[derive(utoipa::ToSchema)]
#[schema(as = SandboxCommandEvent)]
#[expect(dead_code, reason = "described only")]
struct StreamEvent {
    /// Kind: `started`, `stdout`, `stderr`, `stream_end`, `exit` or `error`.
    event: String,
    /// JSON.
    data: String,
}

/// Run a command and stream its output.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/execute/stream/start", tag = "sandbox-dataplane",
    request_body = ExecuteCommand, params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Events: started, stdout, stderr, stream_end, exit, error", body = StreamEvent,
               content_type = "text/event-stream"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn start(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(command): Json<ExecuteCommand>,
) -> Result<Response, ApiError> {
    let usual = CommandDefaults {
        close_stdin: true,
        kill_on_disconnect: false,
    };
    let request = command.admit(usual)?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    let started = awake.agent.execute(&request).await;
    let execution = started.map_err(|error| awake.agent_error(id, &error))?;
    Ok(respond(awake, execution, StreamOffsets::default()))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResumeSandboxCommand)]
pub struct ResumeCommand {
    command_id: String,
    /// Bytes of standard output received so far.
    #[serde(default, deserialize_with = "whole")]
    stdout_offset: Option<i64>,
    /// Bytes of standard error received so far.
    #[serde(default, deserialize_with = "whole")]
    stderr_offset: Option<i64>,
}

/// Reattach to a command and stream its output from an offset.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/execute/stream/resume", tag = "sandbox-dataplane",
    request_body = ResumeCommand, params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Events: started, stdout, stderr, stream_end, exit, error", body = StreamEvent,
               content_type = "text/event-stream"),
              (status = 404, description = "No such sandbox in this workspace, or `CommandNotFound`"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn resume(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(asked): Json<ResumeCommand>,
) -> Result<Response, ApiError> {
    let offset = |sent: Option<i64>| sent.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
    let at = StreamOffsets {
        stdout: offset(asked.stdout_offset),
        stderr: offset(asked.stderr_offset),
    };
    let command_id = check_command_id(asked.command_id)?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    let execution = match awake.agent.attach(&command_id, at.stdout, at.stderr).await {
        Err(Error::NotFound(text)) => {
            return Err(ApiError::with_name(StatusCode::NOT_FOUND, "CommandNotFound", text));
        }
        attached => attached.map_err(|error| awake.agent_error(id, &error))?,
    };
    Ok(respond(awake, execution, at))
}

#[derive(Clone, Copy, Debug, Default)]
struct StreamOffsets {
    stdout: u64,
    stderr: u64,
}

struct CommandStream {
    events: ExecEvents,
    offsets: StreamOffsets,
    draining: CancellationToken,
    is_finished: bool,
    _in_use: BoxUse,
}

fn respond(awake: RunningBox, execution: Execution, at: StreamOffsets) -> Response {
    count_command("events");
    let started = json!({"command_id": execution.command_id, "pid": execution.pid});
    let started = sse_event("started", &started);
    let state = CommandStream {
        events: execution.events,
        offsets: at,
        draining: awake.draining.clone(),
        is_finished: false,
        _in_use: awake.in_use,
    };
    let rest = stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    });
    let all = futures::StreamExt::chain(stream::iter([Ok::<_, Infallible>(started)]), rest);
    let mut response = Body::from_stream(all).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(BUFFERING_HEADER, HeaderValue::from_static("no"));
    response
}

impl CommandStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_finished {
            return None;
        }
        let beat = sleep_until(Instant::now() + HEARTBEAT_INTERVAL);
        let next = tokio::select! {
            next = self.events.next() => next,
            () = beat => return Some(Bytes::from_static(b": alive\n\n")),
            () = self.draining.cancelled() => {
                self.is_finished = true;
                let text = "the server is shutting down; reconnect and resume";
                return Some(sse_event("error", &json!({"error_type": "ServerShuttingDown", "error": text})));
            }
        };
        match next {
            Ok(Some(ExecEvent::Stdout { offset, data })) => {
                self.offsets.stdout = offset + data.len() as u64;
                Some(chunk_event("stdout", offset, &data))
            }
            Ok(Some(ExecEvent::Stderr { offset, data })) => {
                self.offsets.stderr = offset + data.len() as u64;
                Some(chunk_event("stderr", offset, &data))
            }
            Ok(Some(ExecEvent::Exit { exit_code, timed_out })) => {
                self.is_finished = true;
                Some(self.exit_event(exit_code, timed_out))
            }
            // The connection breaks off, and the client resumes.
            Ok(None) | Err(_) => {
                self.is_finished = true;
                None
            }
        }
    }

    fn exit_event(&self, exit_code: i32, timed_out: bool) -> Bytes {
        let end = |stream: &str, offset: u64| sse_event("stream_end", &json!({"stream": stream, "offset": offset}));
        let last = if timed_out {
            sse_event("error", &timeout_frame())
        } else {
            sse_event("exit", &json!({"exit_code": exit_code}))
        };
        let all = [
            end("stdout", self.offsets.stdout),
            end("stderr", self.offsets.stderr),
            last,
        ];
        Bytes::from(all.concat())
    }
}

fn sse_event(name: &str, data: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

fn chunk_event(stream: &str, offset: u64, data: &Bytes) -> Bytes {
    sse_event(stream, &json!({"offset": offset, "data": BASE64.encode(data)}))
}
