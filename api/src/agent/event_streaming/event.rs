//! Events of the protocol.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::agent::answer::without_nul;

/// Topic of an event, used in filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Values,
    Updates,
    Messages,
    Tools,
    Lifecycle,
    Input,
    Tasks,
    Checkpoints,
    Custom,
}

impl Channel {
    /// Every channel, in the order of error messages.
    pub const ALL: [Self; 9] = [
        Self::Values,
        Self::Updates,
        Self::Messages,
        Self::Tools,
        Self::Lifecycle,
        Self::Input,
        Self::Tasks,
        Self::Checkpoints,
        Self::Custom,
    ];

    /// Name in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Updates => "updates",
            Self::Messages => "messages",
            Self::Tools => "tools",
            Self::Lifecycle => "lifecycle",
            Self::Input => "input",
            Self::Tasks => "tasks",
            Self::Checkpoints => "checkpoints",
            Self::Custom => "custom",
        }
    }

    pub const fn method(self) -> &'static str {
        match self {
            Self::Input => "input.requested",
            other => other.as_str(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|channel| channel.as_str() == text)
    }
}

#[derive(Debug)]
pub(super) struct Event {
    /// Increases within a thread.
    pub seq: i64,
    /// Absent for events that every subscription gets: lost events.
    pub channel: Option<Channel>,
    /// Name of a custom event: the part after `custom:`.
    pub name: Option<String>,
    /// Source: one `node:task` per nesting level.
    pub namespace: Vec<String>,
    /// The event as JSON.
    pub text: Bytes,
}

impl Event {
    pub fn method(&self) -> &'static str {
        self.channel.map_or("error", Channel::method)
    }
}

/// An event without a number.
#[derive(Debug)]
pub(super) struct DraftEvent {
    pub channel: Channel,
    pub name: Option<String>,
    pub namespace: Vec<String>,
    /// Source node, if known.
    pub node: Option<String>,
    pub data: Box<RawValue>,
    /// An id that does not depend on the frame.
    pub id: Option<String>,
}

impl DraftEvent {
    /// `None` if the data cannot be written as JSON.
    pub fn serialize(channel: Channel, namespace: &[String], data: &impl Serialize) -> Option<Self> {
        let data = serde_json::value::to_raw_value(data).ok()?;
        Some(Self::raw(channel, namespace, data))
    }

    /// As [`Self::serialize`], for data that are JSON already.
    pub fn raw(channel: Channel, namespace: &[String], data: Box<RawValue>) -> Self {
        Self {
            channel,
            name: None,
            namespace: namespace.to_vec(),
            node: None,
            data,
            id: None,
        }
    }

    pub fn with_node(mut self, node: Option<String>) -> Self {
        self.node = node;
        self
    }

    pub fn with_id(mut self, id: String) -> Self {
        self.id = Some(id);
        self
    }

    pub fn into_event(self, seq: i64, id: &str, timestamp: i64) -> Event {
        let envelope = Envelope {
            r#type: "event",
            event_id: id,
            seq,
            method: self.channel.method(),
            params: Params {
                namespace: &self.namespace,
                timestamp,
                node: self.node.as_deref(),
                data: &self.data,
            },
        };
        // Texts and numbers can always be serialized.
        let text = serde_json::to_vec(&envelope).unwrap_or_default();
        Event {
            seq,
            channel: Some(self.channel),
            text: without_nul(text),
            name: self.name,
            namespace: self.namespace,
        }
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    r#type: &'static str,
    event_id: &'a str,
    seq: i64,
    method: &'static str,
    params: Params<'a>,
}

#[derive(Serialize)]
struct Params<'a> {
    namespace: &'a [String],
    timestamp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    data: &'a RawValue,
}

/// The response to a rejected command, or an error event.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Failure<'a> {
    r#type: &'static str,
    id: Option<i64>,
    error: &'a str,
    message: &'a str,
}

impl<'a> Failure<'a> {
    pub const fn new(id: Option<i64>, error: &'a str, message: &'a str) -> Self {
        Self {
            r#type: "error",
            id,
            error,
            message,
        }
    }

    pub fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// The error of a reader that resumes before events that are no longer stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResumeGap {
    /// Number after which the reader resumes.
    pub since: i64,
    /// Number up to which events were removed.
    pub removed_until: i64,
}

impl ResumeGap {
    /// The error as JSON, with the id of the command that it answers.
    pub fn to_json(self, id: Option<i64>) -> Value {
        let Self { since, removed_until } = self;
        json!({
            "type": "error",
            "id": id,
            "error": "resume_gap",
            "message": format!(
                "Events after {since} are no longer stored: read the thread's state, and resume after {removed_until}"
            ),
            "since": since,
            "min_available_seq": removed_until + 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_written_as_clients_know_it() {
        let draft = DraftEvent::serialize(
            Channel::Input,
            &["a:1".to_owned()],
            &json!({"interrupt_id": "i", "payload": "\0"}),
        );
        let event = draft.unwrap().with_node(Some("a".to_owned())).into_event(7, "5-0", 5);
        let written: Value = serde_json::from_slice(&event.text).unwrap();
        assert_eq!(
            written,
            json!({"type": "event", "event_id": "5-0", "seq": 7, "method": "input.requested",
                   "params": {"namespace": ["a:1"], "timestamp": 5, "node": "a",
                              "data": {"interrupt_id": "i", "payload": "\u{fffd}"}}})
        );
    }
}
