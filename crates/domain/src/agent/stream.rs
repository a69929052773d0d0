//! What is streamed: modes, and the ids by which a reader resumes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of chunk a run can stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamMode {
    /// The whole state after each step.
    Values,
    /// Messages as they grow, accumulated.
    Messages,
    /// Pieces of messages with their metadata.
    MessagesTuple,
    /// Starts and results of tasks.
    Tasks,
    /// Checkpoints as they are made.
    Checkpoints,
    /// What each node wrote.
    Updates,
    /// Events in the manner of tracing callbacks.
    Events,
    /// Checkpoints and tasks in one.
    Debug,
    /// Whatever the graph says.
    Custom,
}

impl StreamMode {
    /// Every mode, in the order in which they are documented.
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

    /// As clients write it.
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

    /// By the name clients write.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// The mode an event belongs to, by its base name: `values|sub:…` belongs to `values`. `None` for events that are
    /// no chunk of a mode: `metadata`, `error`, `feedback`.
    #[must_use]
    pub fn of_event(event: &str) -> Option<Self> {
        match event.split('|').next().unwrap_or_default() {
            "messages" => Some(Self::MessagesTuple),
            base if base.starts_with("messages/") => Some(Self::Messages),
            base => Self::parse(base).filter(|mode| *mode != Self::MessagesTuple),
        }
    }
}

/// The id of a streamed event: Unix milliseconds and a number within them. Ids of one thread strictly increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// Unix milliseconds.
    pub ms: i64,
    /// Counts events of the same millisecond from 0.
    pub seq: i64,
}

impl EventId {
    /// The id that follows this one at `now_ms`: never smaller, whatever the clock does.
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

/// From where a reader wants events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// Only what comes from now on.
    #[default]
    Now,
    /// Everything that is kept.
    Beginning,
    /// What follows this id.
    After(EventId),
}

impl Since {
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

    /// Whether an event of this id is wanted.
    #[must_use]
    pub fn wants(self, id: EventId) -> bool {
        match self {
            Self::After(seen) => id > seen,
            Self::Now | Self::Beginning => true,
        }
    }
}

/// `parse` of the standard library takes a sign too.
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
        let after = |ms, seq| Some(Since::After(EventId { ms, seq }));
        assert_eq!(Since::parse("-1"), Some(Since::Beginning));
        assert_eq!(Since::parse("-"), Some(Since::Beginning));
        assert_eq!(Since::parse("17"), after(17, 0));
        assert_eq!(Since::parse("17-3"), after(17, 3));
        assert_eq!(Since::parse("17-*"), after(17, i64::MAX));
        for bad in ["", "x", "1-x", "1-2-3", "+1-2", "1--2"] {
            assert_eq!(Since::parse(bad), None, "{bad}");
        }
    }
}
