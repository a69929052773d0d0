//! Subscriptions of a socket.

use std::sync::Arc;

use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::{RequestId, ThreadId};

use super::cursor::Cursor;
use super::event::{Event, ResumeGap};
use super::filter::{EventFilter, check_length, parse_number};
use super::replay::NextEvent;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Maximum number of subscriptions of a socket.
pub(super) const MAX_SUBSCRIPTIONS: usize = 256;

/// Subscriptions of a socket. An event that matches several is sent once.
pub(super) struct Subscriptions {
    app: AgentApp,
    thread: ThreadId,
    /// Shared position; absent without subscriptions.
    cursor: Option<Cursor>,
    open: Vec<(String, EventFilter)>,
}

/// Result of a command, or code and text of its error.
pub(super) type CommandResult = Result<Value, (&'static str, String)>;

/// A subscription being opened: events that it missed are sent first.
pub(super) struct SubscriptionBackfill {
    pub id: String,
    filter: EventFilter,
    cursor: Cursor,
    end: i64,
    /// Whether all events after the start are stored. Unknown at first.
    is_complete: bool,
}

/// What a subscription that is being opened sends next.
pub(super) enum BackfillPart {
    Event(Arc<Event>),
    /// The subscription cannot be opened: events after its start are no longer stored.
    Gap(ResumeGap),
    /// All missed events were sent.
    End,
}

impl SubscriptionBackfill {
    /// The next missed event. Cancel safe.
    pub async fn next(&mut self) -> Result<BackfillPart, AgentError> {
        if !self.is_complete {
            if let Some(gap) = self.cursor.resume_gap().await? {
                return Ok(BackfillPart::Gap(gap));
            }
            self.is_complete = true;
        }
        while self.cursor.position() < self.end {
            match self.cursor.next_logged().await? {
                NextEvent::Event(event) if event.seq <= self.end && self.filter.matches(&event) => {
                    return Ok(BackfillPart::Event(event));
                }
                NextEvent::Event(_) => {}
                NextEvent::CaughtUp | NextEvent::ThreadDeleted => break,
            }
        }
        Ok(BackfillPart::End)
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

    /// The next event of any subscription; `None` when the thread was deleted. Pending without subscriptions. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        let Some(cursor) = &mut self.cursor else {
            return std::future::pending().await;
        };
        loop {
            let Some(event) = cursor.next().await? else {
                return Ok(None);
            };
            if self.open.iter().any(|(_, filter)| filter.matches(&event)) {
                return Ok(Some(event));
            }
        }
    }

    /// Opens a subscription. Missed events that others have received are returned as a [`SubscriptionBackfill`].
    pub fn subscribe(
        &mut self,
        params: &Object,
        reconnects: bool,
    ) -> Result<SubscriptionBackfill, (&'static str, String)> {
        let invalid = |text| ("invalid_argument", text);
        let filter = EventFilter::parse(params).map_err(invalid)?;
        let since = parse_number("since", params.get("since")).map_err(invalid)?;
        if reconnects && since.is_none() {
            return Err(invalid("since: subscription.reconnect requires it".to_owned()));
        }
        if self.open.len() >= MAX_SUBSCRIPTIONS {
            return Err(invalid(format!(
                "a socket may have at most {MAX_SUBSCRIPTIONS} subscriptions: unsubscribe first"
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
            check_length("subscription_id", id).map_err(invalid)?;
        }
        let id = named.map_or_else(|| RequestId::new().to_string(), str::to_owned);
        Ok(SubscriptionBackfill {
            id,
            filter,
            cursor,
            end: until,
            is_complete: false,
        })
    }

    /// Adds an opened subscription.
    pub fn add(&mut self, opening: SubscriptionBackfill) {
        self.open.retain(|(id, _)| *id != opening.id);
        self.open.push((opening.id, opening.filter));
        self.cursor.get_or_insert(opening.cursor);
    }

    pub fn unsubscribe(&mut self, params: &Object) -> CommandResult {
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
