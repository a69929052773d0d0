//! TCP connections to ports of a sandbox, several over one WebSocket.
//!
//! The WebSocket carries yamux in binary frames. A stream starts with three bytes of the client, a version and the
//! port, and one status byte of the server. Then both sides send data.

use std::future::poll_fn;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy_bidirectional, duplex, split};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::compat::{FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use tokio_util::sync::CancellationToken;
use towpath_domain::BoxId;
use towpath_sandbox::{BoxAgent, Error};
use yamux::{Config, Connection, Mode, Stream};

use super::exec_socket::{PING_INTERVAL, SEND_TIMEOUT, require_upgrade};
use super::readiness::{RunningBox, ensure_running, get_box};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Path;

const PROTOCOL_VERSION: u8 = 1;
/// Maximum number of streams of a tunnel.
const MAX_STREAMS: usize = 128;
/// Receive window of all streams: at least 256 KiB for each.
const RECEIVE_WINDOW_BYTES: usize = 64 << 20;
/// Buffer between the WebSocket and its streams.
const BUFFER_BYTES: usize = 256 * 1024;
/// Maximum size of a frame to the client.
const FRAME_BYTES: usize = 64 * 1024;

/// Status of a new stream.
#[derive(Clone, Copy)]
enum StreamStatus {
    Open = 0,
    NotAllowed = 1,
    ConnectionRefused = 2,
    UnknownVersion = 3,
}

/// Open a tunnel to ports of a sandbox.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/tunnel", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 101, description = "A WebSocket: yamux in binary frames"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn open(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    get_box(&app, tenant.id, id).await?;
    let upgrade = require_upgrade(upgrade)?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    Ok(upgrade.on_upgrade(move |socket| serve(socket, awake)))
}

async fn serve(socket: WebSocket, awake: RunningBox) {
    let (here, there) = duplex(BUFFER_BYTES);
    let mut config = Config::default();
    config.set_max_num_streams(MAX_STREAMS);
    config.set_max_connection_receive_window(Some(RECEIVE_WINDOW_BYTES));
    let connection = Connection::new(there.compat(), config, Mode::Server);
    let draining = awake.draining.clone();
    tokio::select! {
        () = relay_frames(socket, here, draining) => {}
        () = accept_streams(connection, &awake.agent) => {}
    }
    drop(awake.in_use);
}

/// Relays bytes between the WebSocket and the multiplexer until either ends.
async fn relay_frames(socket: WebSocket, bytes: DuplexStream, draining: CancellationToken) {
    let (mut sink, mut stream) = socket.split();
    let (mut read, mut write) = split(bytes);
    let incoming = async {
        while let Some(Ok(message)) = stream.next().await {
            let done = match message {
                Message::Binary(bytes) => write.write_all(&bytes).await,
                Message::Text(text) => write.write_all(text.as_str().as_bytes()).await,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
                Message::Close(_) => return,
            };
            if done.is_err() {
                return;
            }
        }
    };
    let outgoing = async {
        loop {
            let mut frame = BytesMut::with_capacity(FRAME_BYTES);
            let message = match timeout(PING_INTERVAL, read.read_buf(&mut frame)).await {
                Ok(Ok(0) | Err(_)) => return close_code::NORMAL,
                Ok(Ok(_)) => Message::Binary(frame.freeze()),
                // Detects clients that disappeared.
                Err(_) => Message::Ping(Bytes::new()),
            };
            if !matches!(timeout(SEND_TIMEOUT, sink.send(message)).await, Ok(Ok(()))) {
                return close_code::NORMAL;
            }
        }
    };
    let code = tokio::select! {
        () = incoming => close_code::NORMAL,
        code = outgoing => code,
        () = draining.cancelled() => close_code::AWAY,
    };
    let frame = CloseFrame {
        code,
        reason: "".into(),
    };
    let _ = timeout(PING_INTERVAL, sink.send(Message::Close(Some(frame)))).await;
}

/// Accepts streams until the connection ends, which ends open streams too.
async fn accept_streams(mut connection: Connection<tokio_util::compat::Compat<DuplexStream>>, agent: &BoxAgent) {
    let mut streams = JoinSet::new();
    while let Some(next) = poll_fn(|cx| connection.poll_next_inbound(cx)).await {
        let stream = match next {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a tunnel was disconnected");
                return;
            }
        };
        streams.spawn(connect_stream(stream, agent.clone()));
        while streams.try_join_next().is_some() {}
    }
}

async fn connect_stream(stream: Stream, agent: BoxAgent) {
    let mut stream = stream.compat();
    let mut head = [0; 3];
    if stream.read_exact(&mut head).await.is_err() {
        return;
    }
    let [version, high, low] = head;
    let port = u16::from_be_bytes([high, low]);
    let dialled = match (version, port) {
        (PROTOCOL_VERSION, 0) => Err(StreamStatus::NotAllowed),
        (PROTOCOL_VERSION, port) => agent.connect_port(port).await.map_err(|error| match error {
            Error::Denied(_) => StreamStatus::NotAllowed,
            _ => StreamStatus::ConnectionRefused,
        }),
        _ => Err(StreamStatus::UnknownVersion),
    };
    let status = match &dialled {
        Ok(_) => StreamStatus::Open,
        Err(status) => *status,
    };
    if stream.write_all(&[status as u8]).await.is_err() || stream.flush().await.is_err() {
        return;
    }
    if let Ok(mut port) = dialled {
        let _ = copy_bidirectional(&mut stream, &mut port).await;
    }
    let _ = stream.shutdown().await;
}
