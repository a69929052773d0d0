//! What can go wrong, by whether trying again helps.

use std::io;

/// Why something was not fetched, built or started. The texts go to the deployment's owner.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It will be the same next time: a value that is not allowed, a program that says no.
    #[error("{0}")]
    Refused(String),
    /// It may pass: a network that is away.
    #[error("{0}")]
    Transient(String),
    /// It took longer than it may.
    #[error("{0}")]
    TimedOut(String),
    /// Somebody asked to stop.
    #[error("interrupted")]
    Cancelled,
    /// This machine's disk or processes.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: says what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The error with what lies behind it, as one text.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Io { what, source } => format!("{what}: {source}"),
            other => other.to_string(),
        }
    }

    /// Whether trying again may help.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Transient(_) | Self::Io { .. })
    }
}

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;
