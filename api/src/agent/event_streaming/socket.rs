//! Commands and events of a thread over a WebSocket.
//!
//! Subscriptions live as long as the socket. All other commands are handled like requests to their route with the headers of
//! the handshake, so each is authorized again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use http::header::{COOKIE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;

use super::command_sender::CommandSender;
use super::commands::{self, Command};
use super::event::{Event, Failure};
use super::stream::{OpenStreamGauge, ThreadVisibility};
use super::subscriptions::{self, SubscriptionBackfill, Subscriptions};
use crate::agent::app::{AgentApp, Settings};
use crate::agent::errors::AgentError;
use crate::agent::extract::Path;
use crate::browser::{is_same_origin, may_act};

/// Maximum size of a message; larger commands must use the HTTP route.
const MAX_MESSAGE_BYTES: usize = 32 << 20;
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// A reader that accepts nothing for this long is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time without a message from the client, which answers pings.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Send commands to and receive events of a thread over a WebSocket. The thread need not exist yet.
#[utoipa::path(get, path = "/threads/{thread_id}/stream/events", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 101, description = "The connection becomes a WebSocket"),
              (status = 426, description = "The request is not a WebSocket upgrade"), AgentError))]
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
    if !is_allowed_origin(settings, &parts.headers) {
        let text = "this server rejects sockets from other origins: add the page's origin to CORS_ALLOW_ORIGINS";
        return Err(AgentError::new(StatusCode::FORBIDDEN, text));
    }
    let mut visibility = ThreadVisibility::from_caller();
    visibility.check_open(&app, thread).await?;
    let bytes = settings.body_bytes.min(MAX_MESSAGE_BYTES);
    let session = Session {
        subscriptions: Subscriptions::new(&app, thread),
        caller: CommandSender::new(&app, parts, thread),
        app,
        thread,
        visibility,
        opening: None,
        queued: VecDeque::new(),
        last_sent: 0,
        last_received: Instant::now(),
        ping: ping_ticker(),
    };
    let upgrade = upgrade.max_message_size(bytes).max_frame_size(bytes);
    Ok(upgrade.on_upgrade(|socket| session.serve(socket)))
}

/// Whether the page that opens a socket may send commands. Browsers let every page open sockets and send cookies along.
fn is_allowed_origin(settings: &Settings, headers: &HeaderMap) -> bool {
    if settings.custom_auth {
        // Without a cookie the page needs its own credentials.
        let Some(origin) = headers.get(ORIGIN).filter(|_| headers.contains_key(COOKIE)) else {
            return true;
        };
        return is_same_origin(headers)
            || origin
                .to_str()
                .is_ok_and(|origin| settings.cors.allows_origin(origin) == Some(true));
    }
    !settings.this_machine_only || may_act(&Method::POST, headers, |origin| settings.cors.allows_origin(origin))
}

fn ping_ticker() -> Interval {
    let mut ping = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping
}

/// A queued subscription.
struct SubscribeRequest {
    id: i64,
    params: Object,
    is_reconnect: bool,
}

/// A subscription being opened; its response follows the events it missed.
struct PendingSubscription {
    id: i64,
    opening: SubscriptionBackfill,
    events: u64,
}

/// An open socket.
struct Session {
    app: AgentApp,
    thread: ThreadId,
    subscriptions: Subscriptions,
    caller: CommandSender,
    visibility: ThreadVisibility,
    /// The subscription being opened. Events of others wait, so that all arrive in order.
    opening: Option<PendingSubscription>,
    queued: VecDeque<SubscribeRequest>,
    /// Number of the last sent event.
    last_sent: i64,
    /// Time of the last received message.
    last_received: Instant,
    ping: Interval,
}

/// Why the server closes a socket.
#[derive(Debug)]
enum CloseReason {
    Disconnected,
    /// Closed by the server.
    Code(u16, String),
}

impl From<AgentError> for CloseReason {
    fn from(error: AgentError) -> Self {
        // Clients read the status from the code.
        Self::Code(4000 + error.status().as_u16(), error.detail().to_owned())
    }
}

impl Session {
    async fn serve(mut self, mut socket: WebSocket) {
        let _counted = OpenStreamGauge::new("websocket");
        let CloseReason::Code(code, reason) = self.run(&mut socket).await else {
            return;
        };
        // A control frame holds at most 125 bytes.
        let reason: String = reason.chars().take(40).filter(char::is_ascii).collect();
        let close = Message::Close(Some(CloseFrame {
            code,
            reason: reason.into(),
        }));
        let _ = tokio::time::timeout(SEND_TIMEOUT, socket.send(close)).await;
    }

    async fn run(&mut self, socket: &mut WebSocket) -> CloseReason {
        let draining = self.app.draining.clone();
        loop {
            if let Err(closed) = self.open_queued(socket).await {
                return closed;
            }
            let turn = tokio::select! {
                biased;
                () = draining.cancelled() => {
                    // Clients reconnect to another process.
                    return CloseReason::Code(close_code::RESTART, "the server is shutting down".to_owned());
                }
                message = socket.recv() => match message {
                    Some(Ok(message)) => self.handle_message(socket, message).await,
                    Some(Err(_)) | None => return CloseReason::Disconnected,
                },
                event = next_missed(&mut self.opening) => match event {
                    Ok(event) => self.send_missed(socket, event).await,
                    Err(error) => return error.into(),
                },
                event = self.subscriptions.next(), if self.opening.is_none() => match event {
                    Ok(Some(event)) => self.send_event(socket, &event).await,
                    Ok(None) => return AgentError::no_thread(self.thread).into(),
                    Err(error) => return error.into(),
                },
                _ = self.ping.tick() => {
                    if self.last_received.elapsed() > RECEIVE_TIMEOUT {
                        return CloseReason::Disconnected;
                    }
                    send(socket, Message::Ping(Bytes::new())).await
                }
            };
            if let Err(closed) = turn {
                return closed;
            }
        }
    }

    async fn handle_message(&mut self, socket: &mut WebSocket, message: Message) -> Result<(), CloseReason> {
        self.last_received = Instant::now();
        let text = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Close(_) => return Err(CloseReason::Disconnected),
            Message::Ping(_) | Message::Pong(_) => return Ok(()),
        };
        let answer = match serde_json::from_slice::<Value>(&text) {
            Ok(Value::Object(object)) => match Command::parse(&object) {
                Ok(command) => self.execute(&object, command).await,
                Err(answer) => Some(answer),
            },
            _ => Some(json!(Failure::new(
                None,
                "invalid_argument",
                "Protocol commands must be JSON objects."
            ))),
        };
        match answer {
            Some(answer) => send_json(socket, &answer).await,
            None => Ok(()),
        }
    }

    /// Executes a command. `None` if the response follows later.
    async fn execute(&mut self, object: &Object, command: Command<'_>) -> Option<Value> {
        let none = Object::new();
        let params = command.params.unwrap_or(&none);
        let outcome = match command.method {
            "subscription.subscribe" | "subscription.reconnect" => {
                if self.queued.len() < subscriptions::MAX_SUBSCRIPTIONS {
                    self.queued.push_back(SubscribeRequest {
                        id: command.id,
                        params: params.clone(),
                        is_reconnect: command.method == "subscription.reconnect",
                    });
                    return None;
                }
                let text = "too many subscriptions are being opened: wait for the answers".to_owned();
                Err(("invalid_argument", text))
            }
            "subscription.unsubscribe" => self.subscriptions.unsubscribe(params),
            _ => {
                let mut answer = self.caller.send(object, command.id).await;
                if let Some(meta) = answer.get_mut("meta") {
                    *meta = commands::meta(self.last_sent);
                }
                return Some(answer);
            }
        };
        Some(commands::reply(command.id, outcome, self.last_sent))
    }

    /// Opens the next queued subscription, unless one is being opened.
    async fn open_queued(&mut self, socket: &mut WebSocket) -> Result<(), CloseReason> {
        while self.opening.is_none()
            && let Some(next) = self.queued.pop_front()
        {
            match self.subscriptions.subscribe(&next.params, next.is_reconnect) {
                Ok(opening) => {
                    self.opening = Some(PendingSubscription {
                        id: next.id,
                        opening,
                        events: 0,
                    });
                }
                Err(refusal) => {
                    let answer = commands::reply(next.id, Err(refusal), self.last_sent);
                    send_json(socket, &answer).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends an event that the new subscription missed; after the last one, responds to its command.
    async fn send_missed(&mut self, socket: &mut WebSocket, event: Option<Arc<Event>>) -> Result<(), CloseReason> {
        if let Some(event) = event {
            self.send_event(socket, &event).await?;
            if let Some(replaying) = &mut self.opening {
                replaying.events += 1;
            }
            return Ok(());
        }
        let Some(PendingSubscription { id, opening, events }) = self.opening.take() else {
            return Ok(());
        };
        let result = json!({"subscription_id": opening.id, "replayed_events": events});
        self.subscriptions.add(opening);
        send_json(socket, &commands::reply(id, Ok(result), self.last_sent)).await
    }

    async fn send_event(&mut self, socket: &mut WebSocket, event: &Event) -> Result<(), CloseReason> {
        self.visibility.check_read(&self.app, self.thread).await?;
        // Events are JSON, and so UTF-8.
        let Ok(text) = Utf8Bytes::try_from(event.text.clone()) else {
            return Ok(());
        };
        send(socket, Message::Text(text)).await?;
        self.last_sent = self.last_sent.max(event.seq);
        Ok(())
    }
}

/// The next event that a subscription missed; `None` after the last one. Pending if none is being opened. Cancel safe.
async fn next_missed(opening: &mut Option<PendingSubscription>) -> Result<Option<Arc<Event>>, AgentError> {
    match opening {
        Some(replaying) => replaying.opening.next().await,
        None => std::future::pending().await,
    }
}

async fn send_json(socket: &mut WebSocket, answer: &Value) -> Result<(), CloseReason> {
    send(socket, Message::Text(Utf8Bytes::from(answer.to_string()))).await
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), CloseReason> {
    match tokio::time::timeout(SEND_TIMEOUT, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(CloseReason::Disconnected),
        Err(_) => Err(CloseReason::Code(
            close_code::POLICY,
            "the reader is too slow".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_headers::headers;

    #[test]
    fn pages_of_elsewhere_open_no_socket_by_a_cookie() {
        let cors = Settings::default()
            .cors
            .with_origins(vec!["https://chat.example".to_owned()]);
        let settings = Settings {
            custom_auth: true,
            cors,
            ..Settings::default()
        };
        let may = |pairs: &[(&'static str, &'static str)]| is_allowed_origin(&settings, &headers(pairs));
        let (host, cookie) = (("host", "agents.example"), ("cookie", "session=1"));
        assert!(!may(&[host, cookie, ("origin", "https://evil.example")]));
        assert!(!may(&[host, cookie, ("origin", "null")]));
        assert!(may(&[host, cookie, ("origin", "https://agents.example")]));
        assert!(may(&[host, cookie, ("origin", "https://chat.example")]));
        assert!(may(&[host, cookie]), "no browser");
        assert!(may(&[host, ("origin", "https://evil.example")]), "no cookie");
    }
}
