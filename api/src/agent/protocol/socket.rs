//! Commands and events of a thread over a WebSocket.
//!
//! Subscriptions live as long as the socket. Every other command is handled as if it had come to its own route, with the
//! headers of the handshake: whoever may send it is judged anew each time.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tower::ServiceExt as _;
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;

use super::commands::{self, Command};
use super::event::{Event, Failure};
use super::stream::{Counted, Seen};
use super::subscriptions::Subscriptions;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::extract::Path;
use crate::browser::may_act;
use crate::client::Client;

/// The longest message: what is larger goes to the route of commands.
const MESSAGE_BYTES: usize = 32 << 20;
/// Between two pings.
const PING: Duration = Duration::from_secs(20);
/// So long a reader may take nothing before it is given up.
const SEND_PATIENCE: Duration = Duration::from_secs(60);
/// So long may nothing come from the other side, which answers pings.
const SILENCE: Duration = Duration::from_secs(60);

/// Commands and events of a thread, which need not exist yet, over a WebSocket.
#[utoipa::path(get, path = "/threads/{thread_id}/stream/events", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 101, description = "The connection becomes a WebSocket"),
              (status = 426, description = "The request asks for no WebSocket"), AgentError))]
pub(crate) async fn connect(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    parts: Parts,
) -> Result<Response, AgentError> {
    let upgrade = upgrade.map_err(|why| {
        let text = format!("{why}: connect with a WebSocket, or POST to this path for server-sent events");
        AgentError::new(StatusCode::UPGRADE_REQUIRED, text)
    })?;
    let settings = &app.settings;
    // Browsers let every page open sockets, and commands come through them.
    let open_to_pages = !settings.this_machine_only || settings.custom_auth;
    if !open_to_pages && !may_act(&Method::POST, &parts.headers, |origin| settings.cors.names(origin)) {
        let text = "this server asks for no key, and takes nothing from pages of elsewhere: name the page's origin in \
                    CORS_ALLOW_ORIGINS";
        return Err(AgentError::new(StatusCode::FORBIDDEN, text));
    }
    let mut seen = Seen::by_caller();
    seen.may_open(&app, thread).await?;
    let bytes = settings.body_bytes.min(MESSAGE_BYTES);
    let session = Session {
        subscriptions: Subscriptions::new(&app, thread),
        caller: Caller::of(&app, parts, thread),
        app,
        thread,
        seen,
        sent: 0,
        heard: Instant::now(),
        ping: pings(),
    };
    let upgrade = upgrade.max_message_size(bytes).max_frame_size(bytes);
    Ok(upgrade.on_upgrade(|socket| session.serve(socket)))
}

fn pings() -> Interval {
    let mut ping = interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping
}

/// Sends commands in the name of whoever opened the socket.
struct Caller {
    commands: Router,
    path: String,
    headers: HeaderMap,
    client: Client,
}

impl Caller {
    fn of(app: &AgentApp, parts: Parts, thread: ThreadId) -> Self {
        // As the router of the surface names it, so that auth finds the route.
        let prefix = app.settings.mount_prefix.trim_end_matches('/');
        let template = format!("{prefix}/threads/{{thread_id}}/commands");
        let commands = Router::new()
            .route(&template, post(commands::command))
            .route_layer(from_fn_with_state(app.clone(), auth::require))
            .with_state(app.clone());
        let client = Client::of(&parts.extensions);
        let mut headers = parts.headers;
        let of_handshake: Vec<_> = headers
            .keys()
            .filter(|name| name.as_str().starts_with("sec-websocket-"))
            .cloned()
            .collect();
        for name in of_handshake.iter().chain([&CONNECTION, &UPGRADE, &CONTENT_LENGTH]) {
            headers.remove(name);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self {
            commands,
            path: format!("{prefix}/threads/{thread}/commands"),
            headers,
            client,
        }
    }

    /// The answer to a command, as JSON.
    async fn send(&self, command: &Object, id: i64) -> Value {
        let mut request = Request::new(Body::from(serde_json::to_string(command).unwrap_or_default()));
        *request.method_mut() = Method::POST;
        if let Ok(path) = self.path.parse() {
            *request.uri_mut() = path;
        }
        *request.headers_mut() = self.headers.clone();
        request.extensions_mut().insert(self.client);
        let response = self
            .commands
            .clone()
            .oneshot(request)
            .await
            .unwrap_or_else(|never| match never {});
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let answer: Value = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok())
            .unwrap_or_default();
        if answer.get("type").is_some() {
            return answer;
        }
        let code = commands::code_of(status);
        let text = answer["detail"].as_str().unwrap_or("Internal Server Error");
        json!(Failure::new(Some(id), code, text))
    }
}

/// A socket that is open.
struct Session {
    app: AgentApp,
    thread: ThreadId,
    subscriptions: Subscriptions,
    caller: Caller,
    seen: Seen,
    /// The number of the last event that was sent.
    sent: i64,
    /// When something came from the other side.
    heard: Instant,
    ping: Interval,
}

/// Why a socket is closed from here.
#[derive(Debug)]
enum Closed {
    /// The other side is gone.
    Left,
    /// By us.
    With(u16, String),
}

impl From<AgentError> for Closed {
    fn from(error: AgentError) -> Self {
        // Clients read the status out of it.
        Self::With(4000 + error.status().as_u16(), error.detail().to_owned())
    }
}

impl Session {
    async fn serve(mut self, mut socket: WebSocket) {
        let _counted = Counted::new("websocket");
        let Closed::With(code, reason) = self.talk(&mut socket).await else {
            return;
        };
        // A control frame holds 125 bytes.
        let reason: String = reason.chars().take(40).filter(char::is_ascii).collect();
        let close = Message::Close(Some(CloseFrame {
            code,
            reason: reason.into(),
        }));
        let _ = tokio::time::timeout(SEND_PATIENCE, socket.send(close)).await;
    }

    async fn talk(&mut self, socket: &mut WebSocket) -> Closed {
        let draining = self.app.draining.clone();
        loop {
            let turn = tokio::select! {
                biased;
                () = draining.cancelled() => {
                    // Clients come back, to another process.
                    return Closed::With(close_code::RESTART, "the server is shutting down".to_owned());
                }
                message = socket.recv() => match message {
                    Some(Ok(message)) => self.hear(socket, message).await,
                    Some(Err(_)) | None => return Closed::Left,
                },
                event = self.subscriptions.next() => match event {
                    Ok(Some(event)) => self.show(socket, &event).await,
                    Ok(None) => return AgentError::no_thread(self.thread).into(),
                    Err(error) => return error.into(),
                },
                _ = self.ping.tick() => {
                    if self.heard.elapsed() > SILENCE {
                        return Closed::Left;
                    }
                    send(socket, Message::Ping(Bytes::new())).await
                }
            };
            if let Err(closed) = turn {
                return closed;
            }
        }
    }

    async fn hear(&mut self, socket: &mut WebSocket, message: Message) -> Result<(), Closed> {
        self.heard = Instant::now();
        let text = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Close(_) => return Err(Closed::Left),
            Message::Ping(_) | Message::Pong(_) => return Ok(()),
        };
        let answer = match serde_json::from_slice::<Value>(&text) {
            Ok(Value::Object(object)) => match Command::read(&object) {
                Ok(command) => self.obey(socket, &object, command).await?,
                Err(answer) => answer,
            },
            _ => json!(Failure::new(
                None,
                "invalid_argument",
                "Protocol commands must be JSON objects."
            )),
        };
        send(socket, Message::Text(Utf8Bytes::from(answer.to_string()))).await
    }

    async fn obey(&mut self, socket: &mut WebSocket, object: &Object, command: Command<'_>) -> Result<Value, Closed> {
        let none = Object::new();
        let params = command.params.unwrap_or(&none);
        let outcome = match command.method {
            "subscription.subscribe" | "subscription.reconnect" => {
                let reconnects = command.method == "subscription.reconnect";
                match self.subscriptions.subscribe(params, reconnects) {
                    Ok(mut opening) => {
                        let mut replayed = 0_u64;
                        while let Some(event) = opening.next().await? {
                            self.show(socket, &event).await?;
                            replayed += 1;
                        }
                        let id = opening.id.clone();
                        self.subscriptions.opened(opening);
                        Ok(json!({"subscription_id": id, "replayed_events": replayed}))
                    }
                    Err(refused) => Err(refused),
                }
            }
            "subscription.unsubscribe" => self.subscriptions.unsubscribe(params),
            _ => {
                let mut answer = self.caller.send(object, command.id).await;
                if let Some(meta) = answer.get_mut("meta") {
                    *meta = commands::meta(self.sent);
                }
                return Ok(answer);
            }
        };
        Ok(commands::reply(command.id, outcome, self.sent))
    }

    async fn show(&mut self, socket: &mut WebSocket, event: &Event) -> Result<(), Closed> {
        self.seen.may_read(&self.app, self.thread).await?;
        // Events are JSON, and so UTF-8.
        let Ok(text) = Utf8Bytes::try_from(event.text.clone()) else {
            return Ok(());
        };
        send(socket, Message::Text(text)).await?;
        self.sent = self.sent.max(event.seq);
        Ok(())
    }
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), Closed> {
    match tokio::time::timeout(SEND_PATIENCE, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Closed::Left),
        Err(_) => Err(Closed::With(close_code::POLICY, "the reader is too slow".to_owned())),
    }
}
