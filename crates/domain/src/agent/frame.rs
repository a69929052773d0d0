//! A streamed event on its way from the worker that made it to the caller that reads it, and in the log between them.
//!
//! ```text
//! <run, 32 hex digits, or -> <attempt> <number> <ms> <seq> <event>\n<data>
//! ```
//! `attempt` is the fence of the job that performs the run: it rises with every attempt. Frames of one attempt are
//! numbered from 1 without gaps, so a reader sees when it missed some. Number 0 is outside of that order: events of the
//! thread itself, its end, and the end of a run. In a log, frames stand behind each other, each after its length in
//! bytes.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::state::RunStatus;
use super::stream::EventId;
use crate::RunId;

/// The name of the event that ends a run, or, without a run, reports that the thread was deleted. Internal: readers
/// never see it.
pub const END: &str = "";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub run: Option<RunId>,
    /// The fence of the attempt.
    pub attempt: i64,
    /// The number within the attempt, from 1; 0 for events outside that order.
    pub number: i64,
    pub id: EventId,
    /// Empty for the end of a run, see [`END`].
    pub event: &'a str,
    pub data: &'a str,
}

/// The data of the event that ends a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Absent when the run was rolled back or deleted.
    pub status: Option<RunStatus>,
    /// The fence of the attempt that streamed the last frame; 0 if unknown. If another process ended the run, its
    /// worker may have published more frames than were logged.
    #[serde(default)]
    pub attempt: i64,
    /// The number of that frame.
    #[serde(default)]
    pub last: i64,
    /// The final state, when the thread was deleted with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<serde_json::Value>,
    /// The error, when the thread was deleted with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<serde_json::Value>,
}

impl<'a> Frame<'a> {
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
        // A line break would end the name.
        text.extend(self.event.chars().filter(|c| !matches!(c, '\r' | '\n')));
        text.push('\n');
        text.push_str(self.data);
        text
    }

    /// `None` for invalid text, perhaps of a newer version.
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

    /// Whether the run is over or the thread was deleted.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        self.event.is_empty()
    }
}

pub fn append(log: &mut String, frame: &str) {
    writeln!(log, "{}", frame.len()).expect("writing to a String does not fail");
    log.push_str(frame);
}

/// The frame that says a thread is gone.
#[must_use]
pub fn thread_deleted(id: EventId) -> String {
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

/// The first frame of a log and the rest; `None` at the end and for unreadable data.
#[must_use]
pub fn first_frame(log: &str) -> Option<(&str, &str)> {
    let (length, after) = log.split_once('\n')?;
    after.split_at_checked(length.parse().ok()?)
}

/// The frames of a log, up to the first that cannot be read.
pub fn split(log: &str) -> impl Iterator<Item = &str> {
    let mut rest = log;
    std::iter::from_fn(move || {
        let (frame, next) = first_frame(rest)?;
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
