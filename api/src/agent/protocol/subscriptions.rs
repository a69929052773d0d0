//! What a socket has subscribed to.

use std::sync::Arc;

use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::{RequestId, ThreadId};

use super::cursor::Cursor;
use super::event::Event;
use super::filter::{Filter, number, short};
use super::replay::Position;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Subscriptions of one socket.
pub(super) const MOST: usize = 256;

/// The subscriptions of one socket. An event of several of them is sent once.
pub(super) struct Subscriptions {
    app: AgentApp,
    thread: ThreadId,
    /// Where all of them are; absent as long as there is none.
    cursor: Option<Cursor>,
    open: Vec<(String, Filter)>,
}

/// The result of a command, or the code and the text of its refusal.
pub(super) type Outcome = Result<Value, (&'static str, String)>;

/// A subscription that is opened: what it missed is handed out first.
pub(super) struct Opening {
    pub id: String,
    filter: Filter,
    cursor: Cursor,
    until: i64,
}

impl Opening {
    /// The next event of what it missed; `None` when that is all, or no more of it is kept. May be dropped while waiting
    /// without losing one.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        while self.cursor.position() < self.until {
            match self.cursor.next_kept().await? {
                Position::At(event) if event.seq <= self.until && self.filter.takes(&event) => return Ok(Some(event)),
                Position::At(_) => {}
                Position::End | Position::Gone => break,
            }
        }
        Ok(None)
    }
}

impl Subscriptions {
    pub fn new(app: &AgentApp, thread: ThreadId) -> Self {
        Self {
            app: app.clone(),
            thread,
            cursor: None,
            open: Vec::new(),
        }
    }

    /// The next event of any of them; `None` when the thread is gone. Waits for ever when there is none. May be
    /// dropped while waiting without losing one.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        let Some(cursor) = &mut self.cursor else {
            return std::future::pending().await;
        };
        loop {
            let Some(event) = cursor.next().await? else {
                return Ok(None);
            };
            if self.open.iter().any(|(_, filter)| filter.takes(&event)) {
                return Ok(Some(event));
            }
        }
    }

    /// Opens a subscription. What it missed of that which the others had is answered as an [`Opening`].
    pub fn subscribe(&mut self, params: &Object, reconnects: bool) -> Result<Opening, (&'static str, String)> {
        let invalid = |text| ("invalid_argument", text);
        let filter = Filter::read(params).map_err(invalid)?;
        let since = number("since", params.get("since")).map_err(invalid)?;
        if reconnects && since.is_none() {
            return Err(invalid("since: subscription.reconnect requires it".to_owned()));
        }
        if self.open.len() >= MOST {
            return Err(invalid(format!(
                "a socket has at most {MOST} subscriptions: unsubscribe first"
            )));
        }
        let since = since.unwrap_or_default();
        let cursor = Cursor::after(&self.app, self.thread, since);
        let until = self.cursor.as_ref().map_or(since, Cursor::position);
        let named = params
            .get("subscription_id")
            .and_then(Value::as_str)
            .filter(|_| reconnects);
        if let Some(id) = named {
            short("subscription_id", id).map_err(invalid)?;
        }
        let id = named.map_or_else(|| RequestId::new().to_string(), str::to_owned);
        Ok(Opening {
            id,
            filter,
            cursor,
            until,
        })
    }

    /// What was opened takes its place among the others.
    pub fn opened(&mut self, opening: Opening) {
        self.open.retain(|(id, _)| *id != opening.id);
        self.open.push((opening.id, opening.filter));
        self.cursor.get_or_insert(opening.cursor);
    }

    pub fn unsubscribe(&mut self, params: &Object) -> Outcome {
        let Some(id) = params.get("subscription_id").and_then(Value::as_str) else {
            let text = "subscription_id: subscription.unsubscribe requires it".to_owned();
            return Err(("invalid_argument", text));
        };
        let before = self.open.len();
        self.open.retain(|(open, _)| open != id);
        if self.open.len() == before {
            return Err(("no_such_subscription", format!("Unknown subscription: {id}")));
        }
        if self.open.is_empty() {
            self.cursor = None;
        }
        Ok(json!({}))
    }
}
