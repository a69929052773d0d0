//! A command over a WebSocket.
//!
//! ```text
//! client ── {"type": "execute", …} or {"type": "reconnect", …} ──►
//!        ◄─ {"type": "started", "command_id", "pid"}
//!        ◄─ {"type": "stdout" | "stderr", "data", "offset"} …
//!        ── {"type": "input", "data"}, {"type": "close_stdin"}, {"type": "kill"}, {"type": "resize", "rows", "cols"} ──►
//!        ◄─ {"type": "exit", "exit_code"} or {"type": "error", "error_type", "error"}
//! ```
//! An offset counts the bytes of a stream before `data`. A client that lost its connection reconnects with the offsets
//! that it reached; close code 1001 means that it may do so at once.

use std::sync::Arc;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use towpath_domain::{BoxId, Rejection};
use towpath_sandbox::{BoxAgent, Error, ExecEvent, ExecEvents, ExecInput, Execution, PtySize};

use super::exec::{CommandDefaults, ExecuteCommand, check_command_id, count_command as counted};
use super::readiness::{RunningBox, ensure_running, get_box};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Path, whole};

/// Timeout of the first message.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that accepts no output for this long is disconnected.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of a message.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Number and bytes of queued input while the command reads nothing.
const INPUT_QUEUE_CAPACITY: usize = 64;
const MAX_QUEUED_INPUT_BYTES: usize = MAX_MESSAGE_BYTES;
/// An idle connection is pinged at this interval.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Requires a WebSocket upgrade.
pub(super) fn require_upgrade(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<WebSocketUpgrade, ApiError> {
    let upgrade = upgrade.map_err(|problem| {
        tracing::debug!(error = %problem, "a request is not a WebSocket upgrade");
        ApiError::bad_request("open this address as a WebSocket")
    })?;
    Ok(upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES))
}

/// Run a command, or reattach to one, over a WebSocket.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/execute/ws", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 101, description = "A WebSocket with JSON frames; the client sends the first"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn socket(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    get_box(&app, tenant.id, id).await?;
    let upgrade = require_upgrade(upgrade)?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    Ok(upgrade.on_upgrade(move |socket| serve(socket, awake, id)))
}

/// First message of a client.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OpenMessage {
    Execute(Box<ExecuteCommand>),
    Reconnect {
        command_id: String,
        #[serde(default, deserialize_with = "whole")]
        stdout_offset: Option<i64>,
        #[serde(default, deserialize_with = "whole")]
        stderr_offset: Option<i64>,
    },
}

/// Later messages of a client.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ClientMessage {
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

enum ClientInput {
    /// With permits for its size until the command has read it.
    Bytes(String, OwnedSemaphorePermit),
    End,
    Size(PtySize),
}

async fn serve(mut socket: WebSocket, awake: RunningBox, id: BoxId) {
    // The client may disconnect or take too long.
    let Ok(Some(first)) = timeout(FIRST_MESSAGE_TIMEOUT, read_open_message(&mut socket)).await else {
        return;
    };
    let begun = match first {
        Ok(first) => open_command(&awake.agent, first).await,
        Err(rejection) => Err(rejection_frame(&rejection)),
    };
    let execution = match begun {
        Ok(execution) => execution,
        Err(frame) => {
            if frame["error_type"] == "NotReady" {
                awake.forget(id);
            }
            let _ = socket.send(text_message(&frame)).await;
            let _ = socket.send(Message::Close(None)).await;
            return;
        }
    };
    counted("websocket");
    let draining = awake.draining.clone();
    let (mut sink, stream) = socket.split();
    let Execution {
        command_id,
        pid,
        events,
        input,
    } = execution;
    let started = json!({"type": "started", "command_id": command_id, "pid": pid});
    if sink.send(text_message(&started)).await.is_err() {
        return;
    }
    let (give, given) = mpsc::channel(INPUT_QUEUE_CAPACITY);
    let close = tokio::select! {
        close = send_output(&mut sink, events) => close,
        () = receive_messages(stream, &awake.agent, &command_id, give) => None,
        () = write_input(input, given) => None,
        () = draining.cancelled() => Some(close_code::AWAY),
    };
    if let Some(code) = close {
        let frame = CloseFrame {
            code,
            reason: "".into(),
        };
        let _ = timeout(SEND_TIMEOUT, sink.send(Message::Close(Some(frame)))).await;
    }
}

async fn read_open_message(socket: &mut WebSocket) -> Option<Result<OpenMessage, Rejection>> {
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

async fn open_command(agent: &BoxAgent, first: OpenMessage) -> Result<Execution, Value> {
    let usual = CommandDefaults {
        close_stdin: false,
        kill_on_disconnect: false,
    };
    match first {
        OpenMessage::Execute(command) => {
            let request = command.admit(usual).map_err(|rejection| rejection_frame(&rejection))?;
            agent.execute(&request).await.map_err(|error| error_frame(&error))
        }
        OpenMessage::Reconnect {
            command_id,
            stdout_offset,
            stderr_offset,
        } => {
            let offset = |sent: Option<i64>| sent.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
            let command_id = check_command_id(command_id).map_err(|rejection| rejection_frame(&rejection))?;
            let attached = agent.attach(&command_id, offset(stdout_offset), offset(stderr_offset));
            attached.await.map_err(|error| error_frame(&error))
        }
    }
}

fn rejection_frame(rejection: &Rejection) -> Value {
    let error = format!("{}: {}", rejection.field, rejection.message);
    json!({"type": "error", "error_type": "CommandError", "error": error})
}

/// Error frame for a command that cannot be run or found.
pub(super) fn error_frame(error: &Error) -> Value {
    let kind = match error {
        Error::NotFound(_) => "CommandNotFound",
        Error::NotRunning | Error::Unreachable(_) => "NotReady",
        Error::TimedOut(_) => "Timeout",
        _ => "CommandError",
    };
    json!({"type": "error", "error_type": kind, "error": error.to_string()})
}

/// Error frame for a timeout.
pub(super) fn timeout_frame() -> Value {
    json!({"type": "error", "error_type": "CommandTimeout", "error": "the command was killed after its timeout_seconds"})
}

fn text_message(frame: &Value) -> Message {
    Message::text(frame.to_string())
}

/// Sends events of the command until its end. Returns the close code; `None` if the client disconnected.
async fn send_output(sink: &mut SplitSink<WebSocket, Message>, mut events: ExecEvents) -> Option<u16> {
    loop {
        let Ok(next) = timeout(PING_INTERVAL, events.next()).await else {
            // Detects clients that disappeared.
            match timeout(SEND_TIMEOUT, sink.send(Message::Ping(Bytes::new()))).await {
                Ok(Ok(())) => continue,
                _ => return None,
            }
        };
        let (frame, is_last) = match next {
            Ok(Some(ExecEvent::Stdout { offset, data })) => (chunk_frame("stdout", offset, &data), false),
            Ok(Some(ExecEvent::Stderr { offset, data })) => (chunk_frame("stderr", offset, &data), false),
            Ok(Some(ExecEvent::Exit { timed_out: true, .. })) => (timeout_frame(), true),
            Ok(Some(ExecEvent::Exit { exit_code, .. })) => (json!({"type": "exit", "exit_code": exit_code}), true),
            // The client reconnects with its offsets.
            Ok(None) | Err(_) => return Some(close_code::ERROR),
        };
        match timeout(SEND_TIMEOUT, sink.send(text_message(&frame))).await {
            Ok(Ok(())) if is_last => return Some(close_code::NORMAL),
            Ok(Ok(())) => {}
            _ => return None,
        }
    }
}

fn chunk_frame(stream: &str, offset: u64, data: &Bytes) -> Value {
    json!({"type": stream, "data": String::from_utf8_lossy(data), "offset": offset})
}

/// Receives messages until the client disconnects. A kill does not wait behind unread input.
async fn receive_messages(
    mut stream: SplitStream<WebSocket>,
    agent: &BoxAgent,
    command_id: &str,
    give: mpsc::Sender<ClientInput>,
) {
    let room = Arc::new(Semaphore::new(MAX_QUEUED_INPUT_BYTES));
    while let Some(Ok(message)) = stream.next().await {
        let message = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return,
        };
        let Ok(said) = serde_json::from_slice::<ClientMessage>(&message) else {
            tracing::debug!("ignoring an invalid frame of a client");
            continue;
        };
        let given = match said {
            ClientMessage::Input { data } => {
                let bytes = u32::try_from(data.len().min(MAX_QUEUED_INPUT_BYTES)).unwrap_or(u32::MAX);
                let Ok(taken) = Arc::clone(&room).acquire_many_owned(bytes).await else {
                    return;
                };
                ClientInput::Bytes(data, taken)
            }
            ClientMessage::CloseStdin => ClientInput::End,
            ClientMessage::Resize { rows, cols } => ClientInput::Size(PtySize { rows, cols }),
            ClientMessage::Kill => {
                if let Err(error) = agent.kill(command_id).await {
                    tracing::debug!(%error, "cannot kill a command");
                }
                continue;
            }
            ClientMessage::Unknown => continue,
        };
        if give.send(given).await.is_err() {
            return;
        }
    }
}

/// Forwards input to the command. Ends with the command.
async fn write_input(mut input: ExecInput, mut given: mpsc::Receiver<ClientInput>) {
    while let Some(next) = given.recv().await {
        let done = match next {
            ClientInput::Bytes(data, _room) => input.write(data.as_bytes()).await,
            ClientInput::End => input.close().await,
            ClientInput::Size(size) => input.resize(size).await,
        };
        if let Err(error) = done {
            // The command has ended or closed its input; its output tells.
            tracing::debug!(%error, "a command accepts no input");
        }
    }
    std::future::pending::<()>().await;
}
