//! Commands and events of a thread over a WebSocket.
//!
//! Subscriptions live as long as the socket. Every other command is handled as if it had come to its own route, with the
//! headers of the handshake: whoever may send it is judged anew each time.

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

use super::caller::Caller;
use super::commands::{self, Command};
use super::event::{Event, Failure};
use super::stream::{Counted, Visibility};
use super::subscriptions::{self, Opening, Subscriptions};
use crate::agent::app::{AgentApp, Settings};
use crate::agent::errors::AgentError;
use crate::agent::extract::Path;
use crate::browser::{is_ours, may_act};

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
    if !may_connect(settings, &parts.headers) {
        let text = "this server takes no sockets from pages of elsewhere: name the page's origin in CORS_ALLOW_ORIGINS";
        return Err(AgentError::new(StatusCode::FORBIDDEN, text));
    }
    let mut visibility = Visibility::of_caller();
    visibility.may_open(&app, thread).await?;
    let bytes = settings.body_bytes.min(MESSAGE_BYTES);
    let session = Session {
        subscriptions: Subscriptions::new(&app, thread),
        caller: Caller::of(&app, parts, thread),
        app,
        thread,
        visibility,
        opening: None,
        queued: VecDeque::new(),
        sent: 0,
        heard: Instant::now(),
        ping: pings(),
    };
    let upgrade = upgrade.max_message_size(bytes).max_frame_size(bytes);
    Ok(upgrade.on_upgrade(|socket| session.serve(socket)))
}

/// Whether the page that opens a socket, if one does, may send commands. Browsers let every page open sockets, and send the
/// cookies of the server along.
fn may_connect(settings: &Settings, headers: &HeaderMap) -> bool {
    if settings.custom_auth {
        // Without a cookie, a page has to know the credentials itself.
        let Some(origin) = headers.get(ORIGIN).filter(|_| headers.contains_key(COOKIE)) else {
            return true;
        };
        return is_ours(headers)
            || origin
                .to_str()
                .is_ok_and(|origin| settings.cors.names(origin) == Some(true));
    }
    !settings.this_machine_only || may_act(&Method::POST, headers, |origin| settings.cors.names(origin))
}

fn pings() -> Interval {
    let mut ping = interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping
}

/// A command that opens a subscription, and waits until those before it are open.
struct Subscribe {
    id: i64,
    params: Object,
    reconnects: bool,
}

/// A subscription that is opened: its answer comes behind the events it missed.
struct Replaying {
    id: i64,
    opening: Opening,
    events: u64,
}

/// A socket that is open.
struct Session {
    app: AgentApp,
    thread: ThreadId,
    subscriptions: Subscriptions,
    caller: Caller,
    visibility: Visibility,
    /// The subscription that is opened. Events of the others wait, so that all come in order.
    opening: Option<Replaying>,
    queued: VecDeque<Subscribe>,
    /// The number of the last event that was sent.
    sent: i64,
    /// When something came from the other side.
    heard: Instant,
    ping: Interval,
}

/// Why a socket is closed from here.
#[derive(Debug)]
enum Close {
    /// The other side is gone.
    Left,
    /// By us.
    With(u16, String),
}

impl From<AgentError> for Close {
    fn from(error: AgentError) -> Self {
        // Clients read the status out of it.
        Self::With(4000 + error.status().as_u16(), error.detail().to_owned())
    }
}

impl Session {
    async fn serve(mut self, mut socket: WebSocket) {
        let _counted = Counted::new("websocket");
        let Close::With(code, reason) = self.talk(&mut socket).await else {
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

    async fn talk(&mut self, socket: &mut WebSocket) -> Close {
        let draining = self.app.draining.clone();
        loop {
            if let Err(closed) = self.open_queued(socket).await {
                return closed;
            }
            let turn = tokio::select! {
                biased;
                () = draining.cancelled() => {
                    // Clients come back, to another process.
                    return Close::With(close_code::RESTART, "the server is shutting down".to_owned());
                }
                message = socket.recv() => match message {
                    Some(Ok(message)) => self.hear(socket, message).await,
                    Some(Err(_)) | None => return Close::Left,
                },
                event = missed(&mut self.opening) => match event {
                    Ok(event) => self.replay(socket, event).await,
                    Err(error) => return error.into(),
                },
                event = self.subscriptions.next(), if self.opening.is_none() => match event {
                    Ok(Some(event)) => self.show(socket, &event).await,
                    Ok(None) => return AgentError::no_thread(self.thread).into(),
                    Err(error) => return error.into(),
                },
                _ = self.ping.tick() => {
                    if self.heard.elapsed() > SILENCE {
                        return Close::Left;
                    }
                    send(socket, Message::Ping(Bytes::new())).await
                }
            };
            if let Err(closed) = turn {
                return closed;
            }
        }
    }

    async fn hear(&mut self, socket: &mut WebSocket, message: Message) -> Result<(), Close> {
        self.heard = Instant::now();
        let text = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Close(_) => return Err(Close::Left),
            Message::Ping(_) | Message::Pong(_) => return Ok(()),
        };
        let answer = match serde_json::from_slice::<Value>(&text) {
            Ok(Value::Object(object)) => match Command::read(&object) {
                Ok(command) => self.obey(&object, command).await,
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

    /// The answer to a command; `None` where it comes later.
    async fn obey(&mut self, object: &Object, command: Command<'_>) -> Option<Value> {
        let none = Object::new();
        let params = command.params.unwrap_or(&none);
        let outcome = match command.method {
            "subscription.subscribe" | "subscription.reconnect" => {
                if self.queued.len() < subscriptions::MOST {
                    self.queued.push_back(Subscribe {
                        id: command.id,
                        params: params.clone(),
                        reconnects: command.method == "subscription.reconnect",
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
                    *meta = commands::meta(self.sent);
                }
                return Some(answer);
            }
        };
        Some(commands::reply(command.id, outcome, self.sent))
    }

    /// Begins to open the next subscription, where none is being opened.
    async fn open_queued(&mut self, socket: &mut WebSocket) -> Result<(), Close> {
        while self.opening.is_none()
            && let Some(next) = self.queued.pop_front()
        {
            match self.subscriptions.subscribe(&next.params, next.reconnects) {
                Ok(opening) => {
                    self.opening = Some(Replaying {
                        id: next.id,
                        opening,
                        events: 0,
                    });
                }
                Err(refusal) => {
                    let answer = commands::reply(next.id, Err(refusal), self.sent);
                    send_json(socket, &answer).await?;
                }
            }
        }
        Ok(())
    }

    /// Shows an event that the subscription which is opened missed; behind the last one, answers its command.
    async fn replay(&mut self, socket: &mut WebSocket, event: Option<Arc<Event>>) -> Result<(), Close> {
        if let Some(event) = event {
            self.show(socket, &event).await?;
            if let Some(replaying) = &mut self.opening {
                replaying.events += 1;
            }
            return Ok(());
        }
        let Some(Replaying { id, opening, events }) = self.opening.take() else {
            return Ok(());
        };
        let result = json!({"subscription_id": opening.id, "replayed_events": events});
        self.subscriptions.opened(opening);
        send_json(socket, &commands::reply(id, Ok(result), self.sent)).await
    }

    async fn show(&mut self, socket: &mut WebSocket, event: &Event) -> Result<(), Close> {
        self.visibility.may_read(&self.app, self.thread).await?;
        // Events are JSON, and so UTF-8.
        let Ok(text) = Utf8Bytes::try_from(event.text.clone()) else {
            return Ok(());
        };
        send(socket, Message::Text(text)).await?;
        self.sent = self.sent.max(event.seq);
        Ok(())
    }
}

/// The next event that a subscription missed; `None` when that is all. Waits for ever when none is being opened. May be
/// dropped while waiting without losing one.
async fn missed(opening: &mut Option<Replaying>) -> Result<Option<Arc<Event>>, AgentError> {
    match opening {
        Some(replaying) => replaying.opening.next().await,
        None => std::future::pending().await,
    }
}

async fn send_json(socket: &mut WebSocket, answer: &Value) -> Result<(), Close> {
    send(socket, Message::Text(Utf8Bytes::from(answer.to_string()))).await
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), Close> {
    match tokio::time::timeout(SEND_PATIENCE, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Close::Left),
        Err(_) => Err(Close::With(close_code::POLICY, "the reader is too slow".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name: http::HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

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
        let may = |pairs: &[(&'static str, &'static str)]| may_connect(&settings, &headers(pairs));
        let (host, cookie) = (("host", "agents.example"), ("cookie", "session=1"));
        assert!(!may(&[host, cookie, ("origin", "https://evil.example")]));
        assert!(!may(&[host, cookie, ("origin", "null")]));
        assert!(may(&[host, cookie, ("origin", "https://agents.example")]));
        assert!(may(&[host, cookie, ("origin", "https://chat.example")]));
        assert!(may(&[host, cookie]), "no browser");
        assert!(may(&[host, ("origin", "https://evil.example")]), "no cookie");
    }
}
