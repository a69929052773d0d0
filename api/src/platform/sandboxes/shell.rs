//! A command over a WebSocket.
//!
//! ```text
//! client ── {"type": "execute", …} or {"type": "reconnect", …} ──►
//!        ◄─ {"type": "started", "command_id", "pid"}
//!        ◄─ {"type": "stdout" | "stderr", "data", "offset"} …
//!        ── {"type": "input", "data"}, {"type": "close_stdin"}, {"type": "kill"}, {"type": "resize", "rows", "cols"} ──►
//!        ◄─ {"type": "exit", "exit_code"} or {"type": "error", "error_type", "error"}
//! ```
//! An offset counts the bytes of a stream before `data`. A client that lost its connection comes again with the offsets that
//! it reached; close code 1001 says that it may at once.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use towpath_domain::{BoxId, Rejection};
use towpath_sandbox::{BoxAgent, Error, Events, ExecEvent, Execution, Input, PtySize};

use super::exec::{Command, Usual, checked_id};
use super::wake::{Awake, awake, known};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Path, whole};

/// How long a client may take to say what it wants.
const FIRST: Duration = Duration::from_secs(30);
/// A client that takes no output for so long has gone away.
const STALL: Duration = Duration::from_secs(120);
/// Bytes of one message of a client.
const LARGEST_MESSAGE: usize = 4 << 20;
/// Inputs that wait while the command reads nothing.
const INPUTS: usize = 64;

/// A connection that is a WebSocket, or says what is missing for one.
pub(super) fn upgraded(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<WebSocketUpgrade, ApiError> {
    let upgrade = upgrade.map_err(|problem| {
        tracing::debug!(error = %problem, "a request is no WebSocket");
        ApiError::bad_request("open this address as a WebSocket")
    })?;
    Ok(upgrade
        .max_message_size(LARGEST_MESSAGE)
        .max_frame_size(LARGEST_MESSAGE))
}

/// Run a command, or come back to one, over a WebSocket.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/execute/ws", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 101, description = "A WebSocket: frames of JSON, the first of them from the client"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "This process has no sandboxes"), ApiError))]
pub async fn socket(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    known(&app, tenant.id, id).await?;
    let upgrade = upgraded(upgrade)?;
    let awake = awake(&app, tenant.id, id).await?;
    Ok(upgrade.on_upgrade(move |socket| serve(socket, awake, id)))
}

/// What a client begins with.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum First {
    Execute(Box<Command>),
    Reconnect {
        command_id: String,
        #[serde(default, deserialize_with = "whole")]
        stdout_offset: Option<i64>,
        #[serde(default, deserialize_with = "whole")]
        stderr_offset: Option<i64>,
    },
}

/// What a client says later.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Later {
    Input {
        data: String,
    },
    CloseStdin,
    Kill,
    Resize {
        rows: u16,
        cols: u16,
    },
    #[serde(other)]
    Unknown,
}

enum Given {
    Bytes(String),
    End,
    Size(PtySize),
}

async fn serve(mut socket: WebSocket, awake: Awake, id: BoxId) {
    let first = match timeout(FIRST, first(&mut socket)).await {
        Ok(Some(first)) => first,
        // It left, or took too long.
        _ => return,
    };
    let begun = match first {
        Ok(first) => begin(&awake.agent, first).await,
        Err(rejection) => Err(told(&rejection)),
    };
    let execution = match begun {
        Ok(execution) => execution,
        Err(frame) => {
            if frame["error_type"] == "NotReady" {
                awake.machine.forget(id);
            }
            let _ = socket.send(text(&frame)).await;
            let _ = socket.send(Message::Close(None)).await;
            return;
        }
    };
    let draining = awake.machine.draining.clone();
    let (mut sink, stream) = socket.split();
    let Execution {
        command_id,
        pid,
        events,
        input,
    } = execution;
    let started = json!({"type": "started", "command_id": command_id, "pid": pid});
    if sink.send(text(&started)).await.is_err() {
        return;
    }
    let (give, given) = mpsc::channel(INPUTS);
    let close = tokio::select! {
        close = output(&mut sink, events) => close,
        () = listen(stream, &awake.agent, &command_id, give) => None,
        () = feed(input, given) => None,
        () = draining.cancelled() => Some(close_code::AWAY),
    };
    if let Some(code) = close {
        let frame = CloseFrame {
            code,
            reason: "".into(),
        };
        let _ = timeout(STALL, sink.send(Message::Close(Some(frame)))).await;
    }
}

async fn first(socket: &mut WebSocket) -> Option<Result<First, Rejection>> {
    loop {
        let message = match socket.recv().await? {
            Ok(Message::Text(text)) => Bytes::from(text),
            Ok(Message::Binary(bytes)) => bytes,
            Ok(Message::Ping(_) | Message::Pong(_)) => continue,
            Ok(Message::Close(_)) | Err(_) => return None,
        };
        return Some(serde_json::from_slice(&message).map_err(|error| {
            tracing::debug!(%error, "the first frame cannot be read");
            Rejection::invalid("type", "expected a frame of type execute or reconnect with its fields")
        }));
    }
}

async fn begin(agent: &BoxAgent, first: First) -> Result<Execution, Value> {
    let usual = Usual {
        close_stdin: false,
        kill_on_disconnect: false,
    };
    match first {
        First::Execute(command) => {
            let request = command.admit(usual).map_err(|rejection| told(&rejection))?;
            agent.execute(&request).await.map_err(|error| failure(&error))
        }
        First::Reconnect {
            command_id,
            stdout_offset,
            stderr_offset,
        } => {
            let offset = |sent: Option<i64>| sent.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
            let command_id = checked_id(command_id).map_err(|rejection| told(&rejection))?;
            let attached = agent.attach(&command_id, offset(stdout_offset), offset(stderr_offset));
            attached.await.map_err(|error| failure(&error))
        }
    }
}

fn told(rejection: &Rejection) -> Value {
    let error = format!("{}: {}", rejection.field, rejection.message);
    json!({"type": "error", "error_type": "CommandError", "error": error})
}

/// What a client is told of a command that cannot be run or found.
pub(super) fn failure(error: &Error) -> Value {
    let kind = match error {
        Error::NotFound(_) => "CommandNotFound",
        Error::NotRunning => "NotReady",
        Error::TimedOut(_) => "Timeout",
        _ => "CommandError",
    };
    json!({"type": "error", "error_type": kind, "error": error.to_string()})
}

/// What a client is told of a command that took too long.
pub(super) fn too_long() -> Value {
    json!({"type": "error", "error_type": "CommandTimeout", "error": "the command was killed after its timeout_seconds"})
}

fn text(frame: &Value) -> Message {
    Message::text(frame.to_string())
}

/// Sends what the command does, up to its end. Answers the code to close with; none where the client has gone away.
async fn output(sink: &mut SplitSink<WebSocket, Message>, mut events: Events) -> Option<u16> {
    loop {
        let (frame, is_last) = match events.next().await {
            Ok(Some(ExecEvent::Stdout { offset, data })) => (chunk("stdout", offset, &data), false),
            Ok(Some(ExecEvent::Stderr { offset, data })) => (chunk("stderr", offset, &data), false),
            Ok(Some(ExecEvent::Exit { timed_out: true, .. })) => (too_long(), true),
            Ok(Some(ExecEvent::Exit { exit_code, .. })) => (json!({"type": "exit", "exit_code": exit_code}), true),
            // The client comes again with its offsets.
            Ok(None) | Err(_) => return Some(close_code::ERROR),
        };
        match timeout(STALL, sink.send(text(&frame))).await {
            Ok(Ok(())) if is_last => return Some(close_code::NORMAL),
            Ok(Ok(())) => {}
            _ => return None,
        }
    }
}

fn chunk(stream: &str, offset: u64, data: &Bytes) -> Value {
    json!({"type": stream, "data": String::from_utf8_lossy(data), "offset": offset})
}

/// Takes what the client says until it leaves. A kill does not wait behind input that the command does not read.
async fn listen(mut stream: SplitStream<WebSocket>, agent: &BoxAgent, command_id: &str, give: mpsc::Sender<Given>) {
    while let Some(Ok(message)) = stream.next().await {
        let message = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return,
        };
        let Ok(said) = serde_json::from_slice::<Later>(&message) else {
            tracing::debug!("a frame of a client cannot be read; it is left out");
            continue;
        };
        let given = match said {
            Later::Input { data } => Given::Bytes(data),
            Later::CloseStdin => Given::End,
            Later::Resize { rows, cols } => Given::Size(PtySize { rows, cols }),
            Later::Kill => {
                if let Err(error) = agent.kill(command_id).await {
                    tracing::debug!(%error, "a command cannot be killed");
                }
                continue;
            }
            Later::Unknown => continue,
        };
        if give.send(given).await.is_err() {
            return;
        }
    }
}

/// Hands on what the client gives. It never ends by itself: the command's end is the end.
async fn feed(mut input: Input, mut given: mpsc::Receiver<Given>) {
    while let Some(next) = given.recv().await {
        let done = match next {
            Given::Bytes(data) => input.write(data.as_bytes()).await,
            Given::End => input.close().await,
            Given::Size(size) => input.resize(size).await,
        };
        if let Err(error) = done {
            // The command has ended or closed its input; its output says how.
            tracing::debug!(%error, "a command takes no input");
        }
    }
    std::future::pending().await
}
