//! A command over server-sent events: its answer streams what it does, and a client that loses it comes again with the offsets
//! that it reached.

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
use towpath_sandbox::{Error, Events, ExecEvent, Execution};
use towpath_workflows::boxes::InUse;

use super::exec::{Command, Usual, checked_id};
use super::shell::too_long;
use super::wake::{Awake, awake};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// A stream that says nothing for so long says that it is alive.
const BEAT: Duration = Duration::from_secs(15);
/// Proxies hand on what they get.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Run a command, and stream what it does.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/execute/stream/start", tag = "sandbox-dataplane",
    request_body = Command, params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Events: started, stdout, stderr, stream_end, exit, error", body = String,
               content_type = "text/event-stream"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
pub async fn start(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(command): Json<Command>,
) -> Result<Response, ApiError> {
    let usual = Usual {
        close_stdin: true,
        kill_on_disconnect: false,
    };
    let request = command.admit(usual)?;
    let awake = awake(&app, tenant.id, id).await?;
    let started = awake.agent.execute(&request).await;
    let execution = started.map_err(|error| awake.failed(id, &error))?;
    Ok(respond(awake, execution, Offsets::default()))
}

/// A command to come back to.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResumeSandboxCommand)]
pub struct Resume {
    command_id: String,
    /// Bytes of standard output that were read.
    #[serde(default, deserialize_with = "whole")]
    stdout_offset: Option<i64>,
    /// Bytes of standard error that were read.
    #[serde(default, deserialize_with = "whole")]
    stderr_offset: Option<i64>,
}

/// Come back to a command, and stream what it has done since.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/execute/stream/resume", tag = "sandbox-dataplane",
    request_body = Resume, params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Events: started, stdout, stderr, stream_end, exit, error", body = String,
               content_type = "text/event-stream"),
              (status = 404, description = "No such sandbox in this workspace, or `CommandNotFound`"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
pub async fn resume(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(asked): Json<Resume>,
) -> Result<Response, ApiError> {
    let offset = |sent: Option<i64>| sent.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
    let at = Offsets {
        stdout: offset(asked.stdout_offset),
        stderr: offset(asked.stderr_offset),
    };
    let command_id = checked_id(asked.command_id)?;
    let awake = awake(&app, tenant.id, id).await?;
    let execution = match awake.agent.attach(&command_id, at.stdout, at.stderr).await {
        Err(Error::NotFound(text)) => {
            return Err(ApiError::named(StatusCode::NOT_FOUND, "CommandNotFound", text));
        }
        attached => attached.map_err(|error| awake.failed(id, &error))?,
    };
    Ok(respond(awake, execution, at))
}

/// How far the streams of a command were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Offsets {
    stdout: u64,
    stderr: u64,
}

struct Streaming {
    events: Events,
    at: Offsets,
    draining: CancellationToken,
    is_over: bool,
    _in_use: InUse,
}

fn respond(awake: Awake, execution: Execution, at: Offsets) -> Response {
    let started = json!({"command_id": execution.command_id, "pid": execution.pid});
    let started = event("started", &started);
    let state = Streaming {
        events: execution.events,
        at,
        draining: awake.machine.draining.clone(),
        is_over: false,
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
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    response
}

impl Streaming {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let beat = sleep_until(Instant::now() + BEAT);
        let next = tokio::select! {
            next = self.events.next() => next,
            () = beat => return Some(Bytes::from_static(b": alive\n\n")),
            () = self.draining.cancelled() => {
                self.is_over = true;
                let text = "the server is shutting down; resume elsewhere";
                return Some(event("error", &json!({"error_type": "ServerShuttingDown", "error": text})));
            }
        };
        match next {
            Ok(Some(ExecEvent::Stdout { offset, data })) => {
                self.at.stdout = offset + data.len() as u64;
                Some(chunk("stdout", offset, &data))
            }
            Ok(Some(ExecEvent::Stderr { offset, data })) => {
                self.at.stderr = offset + data.len() as u64;
                Some(chunk("stderr", offset, &data))
            }
            Ok(Some(ExecEvent::Exit { exit_code, timed_out })) => {
                self.is_over = true;
                Some(self.ends(exit_code, timed_out))
            }
            // The answer breaks off, and the client comes again.
            Ok(None) | Err(_) => {
                self.is_over = true;
                None
            }
        }
    }

    fn ends(&self, exit_code: i32, timed_out: bool) -> Bytes {
        let end = |stream: &str, offset: u64| event("stream_end", &json!({"stream": stream, "offset": offset}));
        let last = if timed_out {
            event("error", &too_long())
        } else {
            event("exit", &json!({"exit_code": exit_code}))
        };
        let all = [end("stdout", self.at.stdout), end("stderr", self.at.stderr), last];
        Bytes::from(all.concat())
    }
}

fn event(name: &str, data: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

fn chunk(stream: &str, offset: u64, data: &Bytes) -> Bytes {
    event(stream, &json!({"offset": offset, "data": BASE64.encode(data)}))
}
