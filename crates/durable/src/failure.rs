//! How an attempt can end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::along::Along;

/// What a workflow's `run` answers.
pub type Outcome = Result<Done, Failure>;

/// An attempt that ended as it should. Only [`Ctx`](crate::Ctx) makes one.
#[derive(Debug)]
pub struct Done(pub(crate) End);

#[derive(Debug)]
pub(crate) enum End {
    /// The job row is already written.
    Written,
    /// Nothing but the job row is to be written, and what goes along with it: many such are completed together.
    Bare(Option<Arc<dyn Along>>),
}

/// An attempt that did not. Which one it is, is decided where it happens: the code that made the call knows whether
/// trying again can help.
#[derive(Debug)]
pub enum Failure {
    /// Trying again may help; the retry policy says when, and whether.
    Retry(Cause),
    /// Trying again cannot help: the job fails now.
    Fatal(Cause),
    /// Not now: come back after this long. Not a failure; the attempt is given back.
    Snooze(Duration),
    /// The attempt ran out of time. Retried; on the last attempt the job ends `timed_out`.
    TimedOut(Cause),
    /// The job was asked to stop.
    Cancelled,
    /// Another worker holds the job now, or it is over. Nothing more can be written.
    Lost,
}

/// Why an attempt failed: an error with its sources, as one text for the operator.
#[derive(Clone, PartialEq, Eq)]
pub struct Cause(String);

/// Longer texts are cut: an error is for reading, and its rows stay small.
const LONGEST: usize = 8 * 1024;

impl Cause {
    /// From an error, with its sources.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Transparent wrappers repeat their source.
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        Self::new(text)
    }

    /// From a text.
    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(end);
            text.push_str(" … (cut)");
        }
        // PostgreSQL text holds no NUL.
        if text.contains('\0') {
            text = text.replace('\0', "\u{FFFD}");
        }
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Failure {
    /// A failure that may pass, from a text.
    pub fn retry(text: impl Into<String>) -> Self {
        Self::Retry(Cause::new(text))
    }

    /// A failure that stays, from a text.
    pub fn fatal(text: impl Into<String>) -> Self {
        Self::Fatal(Cause::new(text))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry(cause) | Self::Fatal(cause) | Self::TimedOut(cause) => cause.fmt(f),
            Self::Snooze(span) => write!(f, "snoozes for {span:?}"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Lost => f.write_str("the job is held by another worker"),
        }
    }
}

impl std::error::Error for Failure {}

/// Says at the call site whether an error is worth another attempt.
pub trait Verdict<T> {
    /// Trying again may help.
    ///
    /// # Errors
    /// [`Failure::Retry`] with the error and its sources.
    fn retry(self) -> Result<T, Failure>;

    /// Trying again cannot help.
    ///
    /// # Errors
    /// [`Failure::Fatal`] with the error and its sources.
    fn fatal(self) -> Result<T, Failure>;
}

impl<T, E: std::error::Error + 'static> Verdict<T> for Result<T, E> {
    fn retry(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Retry(Cause::of(&error)))
    }

    fn fatal(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Fatal(Cause::of(&error)))
    }
}
