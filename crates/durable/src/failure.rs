//! Results of an attempt.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::batched_write::BatchedWrite;

/// The result of a workflow's `run`.
pub type Outcome = Result<Success, Failure>;

/// A successful attempt. Only [`Ctx`](crate::Ctx) creates one.
#[derive(Debug)]
pub struct Success(pub(crate) SuccessKind);

#[derive(Debug)]
pub(crate) enum SuccessKind {
    /// The job row is written.
    Settled,
    /// The job row and its batched rows remain to be written, together with those of other jobs.
    CompletionPending(Option<Arc<dyn BatchedWrite>>),
}

/// A failed or interrupted attempt. The code that made a call decides which, because it knows whether a retry can help.
#[derive(Debug)]
pub enum Failure {
    /// A retry may help; the retry policy decides when and whether.
    Retry(Cause),
    /// A retry cannot help: the job fails now.
    Fatal(Cause),
    /// Continue after this time. Not a failure; the attempt does not count.
    Snooze(Duration),
    /// The attempt exceeded its time limit. It is retried; after the last attempt the job ends as `timed_out`.
    TimedOut(Cause),
    /// The job was asked to stop.
    Cancelled,
    /// Another worker holds the job, or it has ended. Nothing more can be written.
    Lost,
}

/// Why an attempt failed: an error with its sources, as one text for the operator.
#[derive(Clone, PartialEq, Eq)]
pub struct Cause(String);

/// Longer texts are truncated, so that rows stay small.
const LONGEST: usize = 8 * 1024;

impl Cause {
    /// From an error, with its sources.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Transparent wrappers repeat the text of their source.
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        Self::new(text)
    }

    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(end);
            text.push_str(" … (cut)");
        }
        // PostgreSQL text cannot contain NUL.
        if text.contains('\0') {
            text = text.replace('\0', "\u{FFFD}");
        }
        Self(text)
    }

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
    /// A temporary failure, from a text.
    pub fn retry(text: impl Into<String>) -> Self {
        Self::Retry(Cause::new(text))
    }

    /// A permanent failure, from a text.
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

/// Classifies an error at the call site as temporary or permanent.
pub trait IntoFailure<T> {
    /// The error is temporary: [`Failure::Retry`].
    fn retry(self) -> Result<T, Failure>;

    /// The error is permanent: [`Failure::Fatal`].
    fn fatal(self) -> Result<T, Failure>;
}

impl<T, E: std::error::Error + 'static> IntoFailure<T> for Result<T, E> {
    fn retry(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Retry(Cause::of(&error)))
    }

    fn fatal(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Fatal(Cause::of(&error)))
    }
}
