//! A streamed event on its way from the worker that made it to whoever reads it, and in the log between them.
//!
//! ```text
//! <run, 32 hex digits, or -> <attempt> <number> <ms> <seq> <event>\n<data>
//! ```
//! `attempt` is the fence of the job that performs the run: it rises with every attempt. Frames of one attempt are
//! numbered from 1 without gaps, so a reader sees when it missed some. Number 0 is outside of that order: events of
//! the thread itself, its end, and the end of a run. In a log, frames stand behind each other, each after its length in bytes.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::state::RunStatus;
use super::stream::EventId;
use crate::RunId;

/// The event that says a run is over; without a run, that the thread is gone. Readers never see it by this name: it is no
/// event of the protocol.
pub const END: &str = "";

/// An event, borrowed from its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The run; absent for events of the thread itself.
    pub run: Option<RunId>,
    /// The fence of the attempt.
    pub attempt: i64,
    /// Its number within the attempt, from 1; 0 when it is outside of that order.
    pub number: i64,
    /// Its id.
    pub id: EventId,
    /// Its name; empty for the end of the run, see [`End`].
    pub event: &'a str,
    /// JSON without line breaks.
    pub data: &'a str,
}

/// What the end of a run carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// How it ended; absent when the run was rolled back or deleted.
    pub status: Option<RunStatus>,
    /// The fence of the attempt that streamed the last frame; 0 when that is not known. Who was ended by others may have
    /// published more, which was never logged.
    #[serde(default)]
    pub attempt: i64,
    /// The number of that frame.
    #[serde(default)]
    pub last: i64,
    /// The final state, when its thread went with the run and so cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<serde_json::Value>,
    /// The error, when its thread went with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<serde_json::Value>,
}

impl<'a> Frame<'a> {
    /// As text.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::with_capacity(96 + self.event.len() + self.data.len());
        match self.run {
            Some(run) => write!(text, "{}", run.0.simple()),
            None => write!(text, "-"),
        }
        .and_then(|()| {
            write!(
                text,
                " {} {} {} {} ",
                self.attempt, self.number, self.id.ms, self.id.seq
            )
        })
        .expect("writing to a String does not fail");
        // A line break would end the name, here and on the wire.
        text.extend(self.event.chars().filter(|c| !matches!(c, '\r' | '\n')));
        text.push('\n');
        text.push_str(self.data);
        text
    }

    /// From text; `None` when it is none, perhaps of a newer version.
    #[must_use]
    pub fn decode(text: &'a str) -> Option<Self> {
        let (head, data) = text.split_once('\n')?;
        let mut parts = head.splitn(6, ' ');
        let run = match parts.next()? {
            "-" => None,
            run => Some(RunId(Uuid::parse_str(run).ok()?)),
        };
        let mut number = || parts.next()?.parse::<i64>().ok();
        Some(Self {
            run,
            attempt: number()?,
            number: number()?,
            id: EventId {
                ms: number()?,
                seq: number()?,
            },
            event: parts.next()?,
            data,
        })
    }

    /// Whether it says that its run is over, or that the thread is gone.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        self.event.is_empty()
    }
}

/// Adds a frame to a log.
pub fn append(log: &mut String, frame: &str) {
    writeln!(log, "{}", frame.len()).expect("writing to a String does not fail");
    log.push_str(frame);
}

/// The frame that says a thread is gone.
#[must_use]
pub fn thread_gone(id: EventId) -> String {
    Frame {
        run: None,
        attempt: 0,
        number: 0,
        id,
        event: END,
        data: "{}",
    }
    .encode()
}

/// The first frame of a log and what follows it; `None` at the end, and where no frame can be read.
#[must_use]
pub fn first(log: &str) -> Option<(&str, &str)> {
    let (length, after) = log.split_once('\n')?;
    after.split_at_checked(length.parse().ok()?)
}

/// The frames of a log, up to the first that cannot be read.
pub fn split(log: &str) -> impl Iterator<Item = &str> {
    let mut rest = log;
    std::iter::from_fn(move || {
        let (frame, next) = first(rest)?;
        rest = next;
        Some(frame)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_was() {
        let frame = Frame {
            run: Some(RunId::new()),
            attempt: 2,
            number: 7,
            id: EventId {
                ms: 1_795_163_036_386,
                seq: 3,
            },
            event: "values|a node:5fc8|b:1",
            data: r#"{"text":"ü\n"}"#,
        };
        let text = frame.encode();
        assert_eq!(Frame::decode(&text), Some(frame));
        let thread = Frame {
            run: None,
            event: END,
            ..frame
        };
        let other = thread.encode();
        assert!(Frame::decode(&other).unwrap().is_end());
        let mut log = String::new();
        append(&mut log, &text);
        append(&mut log, &other);
        assert_eq!(split(&log).collect::<Vec<_>>(), [text.as_str(), other.as_str()]);
        assert_eq!(split(&log[..log.len() - 1]).count(), 1, "a torn log ends early");
    }

    #[test]
    fn names_cannot_break_the_frame() {
        let frame = Frame {
            run: None,
            attempt: 1,
            number: 1,
            id: EventId::default(),
            event: "a\r\nb c",
            data: "1",
        };
        let text = frame.encode();
        assert_eq!(Frame::decode(&text).unwrap().event, "ab c");
        for bad in ["", "x", "- 1 2 3\n{}", "zz 1 1 1 1 e\n{}"] {
            assert_eq!(Frame::decode(bad), None, "{bad}");
        }
    }
}
