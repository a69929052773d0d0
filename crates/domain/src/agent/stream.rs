//! Stream modes, and the ids from which a reader resumes.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamMode {
    Values,
    /// Messages with their accumulated content.
    Messages,
    /// Pieces of messages with their metadata.
    MessagesTuple,
    Tasks,
    /// Checkpoints as they are made.
    Checkpoints,
    /// What each node wrote.
    Updates,
    /// Events like those of tracing callbacks.
    Events,
    /// Checkpoints and tasks in one.
    Debug,
    /// Data that the graph writes itself.
    Custom,
}

impl StreamMode {
    /// In the order of the documentation.
    pub const ALL: [Self; 9] = [
        Self::Values,
        Self::Messages,
        Self::MessagesTuple,
        Self::Tasks,
        Self::Checkpoints,
        Self::Updates,
        Self::Events,
        Self::Debug,
        Self::Custom,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Messages => "messages",
            Self::MessagesTuple => "messages-tuple",
            Self::Tasks => "tasks",
            Self::Checkpoints => "checkpoints",
            Self::Updates => "updates",
            Self::Events => "events",
            Self::Debug => "debug",
            Self::Custom => "custom",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// The mode of an event, by its base name: `values|sub:…` belongs to `values`. `None` for events without a mode:
    /// `metadata`, `error`, `feedback`.
    #[must_use]
    pub fn of_event(event: &str) -> Option<Self> {
        match event.split('|').next().unwrap_or_default() {
            "messages" => Some(Self::MessagesTuple),
            base if base.starts_with("messages/") => Some(Self::Messages),
            base => Self::parse(base).filter(|mode| *mode != Self::MessagesTuple),
        }
    }
}

/// The id of a streamed event: Unix milliseconds and a sequence number. Ids of one thread strictly increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    pub ms: i64,
    /// Counts events within the millisecond, from 0.
    pub seq: i64,
}

impl EventId {
    /// The next id at `now_ms`. It increases even if the clock goes back.
    #[must_use]
    pub const fn next(self, now_ms: i64) -> Self {
        if now_ms > self.ms {
            Self { ms: now_ms, seq: 0 }
        } else {
            Self {
                ms: self.ms,
                seq: self.seq + 1,
            }
        }
    }

    /// Reads `ms-seq`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (ms, seq) = text.split_once('-')?;
        Some(Self {
            ms: digits(ms)?,
            seq: digits(seq)?,
        })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// The position from which a reader wants events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventStart {
    /// Only new events.
    #[default]
    Now,
    /// All stored events.
    Beginning,
    /// Exclusive.
    After(EventId),
}

impl EventStart {
    /// Reads `Last-Event-ID`: `-` or `-1` is the beginning, else `ms`, `ms-seq` or `ms-*`. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text {
            "-" | "-1" => return Some(Self::Beginning),
            _ => {}
        }
        let (ms, seq) = text.split_once('-').unwrap_or((text, "0"));
        let seq = if seq == "*" { i64::MAX } else { digits(seq)? };
        Some(Self::After(EventId { ms: digits(ms)?, seq }))
    }

    #[must_use]
    pub fn includes(self, id: EventId) -> bool {
        match self {
            Self::After(seen) => id > seen,
            Self::Now | Self::Beginning => true,
        }
    }
}

/// The standard library's `parse` also accepts a sign.
fn digits(text: &str) -> Option<i64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_belong_to_modes_by_their_base_name() {
        let of = StreamMode::of_event;
        assert_eq!(of("values|sub:5fc8"), Some(StreamMode::Values));
        assert_eq!(of("messages/partial"), Some(StreamMode::Messages));
        assert_eq!(of("messages|a:1|b:2"), Some(StreamMode::MessagesTuple));
        assert_eq!(of("metadata"), None);
        assert_eq!(of("error"), None);
        for mode in StreamMode::ALL {
            assert_eq!(StreamMode::parse(mode.as_str()), Some(mode));
        }
    }

    #[test]
    fn ids_only_grow_even_when_the_clock_steps_back() {
        let mut id = EventId { ms: 100, seq: 0 };
        for ms in [100, 100, 90, 101, 50] {
            let next = id.next(ms);
            assert!(next > id, "{next} after {id}");
            id = next;
        }
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn readers_say_from_where() {
        let after = |ms, seq| Some(EventStart::After(EventId { ms, seq }));
        assert_eq!(EventStart::parse("-1"), Some(EventStart::Beginning));
        assert_eq!(EventStart::parse("-"), Some(EventStart::Beginning));
        assert_eq!(EventStart::parse("17"), after(17, 0));
        assert_eq!(EventStart::parse("17-3"), after(17, 3));
        assert_eq!(EventStart::parse("17-*"), after(17, i64::MAX));
        for bad in ["", "x", "1-x", "1-2-3", "+1-2", "1--2"] {
            assert_eq!(EventStart::parse(bad), None, "{bad}");
        }
    }
}
