//! TCP connections to ports of a box, several over one WebSocket.
//!
//! The WebSocket carries yamux in binary frames. A stream begins with three bytes of the client, a version and the port, and
//! one byte of the server: what became of it. Then both sides send what they like.

use std::future::poll_fn;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::BytesMut;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy_bidirectional, duplex, split};
use tokio::task::JoinSet;
use tokio_util::compat::{FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use tokio_util::sync::CancellationToken;
use towpath_domain::BoxId;
use towpath_sandbox::{BoxAgent, Error};
use yamux::{Config, Connection, Mode, Stream};

use super::shell::upgraded;
use super::wake::{Awake, awake, known};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Path;

/// What a stream begins with.
const VERSION: u8 = 1;
/// Streams of one tunnel.
const STREAMS: usize = 128;
/// Bytes between the WebSocket and its streams.
const BUFFER: usize = 256 * 1024;
/// Bytes of one frame to the client.
const FRAME: usize = 64 * 1024;

/// What became of a stream.
#[derive(Clone, Copy)]
enum Status {
    Open = 0,
    NotAllowed = 1,
    NobodyListens = 2,
    UnknownVersion = 3,
}

/// Open a tunnel to ports of a sandbox.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/tunnel", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 101, description = "A WebSocket: yamux in binary frames"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "This process has no sandboxes"), ApiError))]
pub async fn open(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    known(&app, tenant.id, id).await?;
    let upgrade = upgraded(upgrade)?;
    let awake = awake(&app, tenant.id, id).await?;
    Ok(upgrade.on_upgrade(move |socket| serve(socket, awake)))
}

async fn serve(socket: WebSocket, awake: Awake) {
    let (here, there) = duplex(BUFFER);
    let mut config = Config::default();
    config.set_max_num_streams(STREAMS);
    let connection = Connection::new(there.compat(), config, Mode::Server);
    let draining = awake.machine.draining.clone();
    tokio::select! {
        () = carry(socket, here, draining) => {}
        () = accept(connection, &awake.agent) => {}
    }
    drop(awake.in_use);
}

/// Carries bytes between the WebSocket and the multiplexer until either ends.
async fn carry(socket: WebSocket, bytes: DuplexStream, draining: CancellationToken) {
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
            let mut frame = BytesMut::with_capacity(FRAME);
            match read.read_buf(&mut frame).await {
                Ok(0) | Err(_) => return close_code::NORMAL,
                Ok(_) => {}
            }
            if sink.send(Message::Binary(frame.freeze())).await.is_err() {
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
    let _ = sink.send(Message::Close(Some(frame))).await;
}

/// Takes streams until the connection ends; those that are open end with it.
async fn accept(mut connection: Connection<tokio_util::compat::Compat<DuplexStream>>, agent: &BoxAgent) {
    let mut streams = JoinSet::new();
    while let Some(next) = poll_fn(|cx| connection.poll_next_inbound(cx)).await {
        let stream = match next {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a tunnel broke off");
                return;
            }
        };
        streams.spawn(connect(stream, agent.clone()));
        while streams.try_join_next().is_some() {}
    }
}

async fn connect(stream: Stream, agent: BoxAgent) {
    let mut stream = stream.compat();
    let mut head = [0; 3];
    if stream.read_exact(&mut head).await.is_err() {
        return;
    }
    let [version, high, low] = head;
    let port = u16::from_be_bytes([high, low]);
    let dialled = match (version, port) {
        (VERSION, 0) => Err(Status::NotAllowed),
        (VERSION, port) => agent.dial(port).await.map_err(|error| match error {
            Error::Denied(_) => Status::NotAllowed,
            _ => Status::NobodyListens,
        }),
        _ => Err(Status::UnknownVersion),
    };
    let status = match &dialled {
        Ok(_) => Status::Open,
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
