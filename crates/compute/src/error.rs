//! What can go wrong, by whether retrying helps.

use std::io;

/// Why a fetch, a build or a start failed. The texts are for the deployment's owner.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A retry would fail the same way: an invalid value, or a program that refuses.
    #[error("{0}")]
    Refused(String),
    /// It may pass: a network that is unavailable.
    #[error("{0}")]
    Transient(String),
    /// It took longer than it may.
    #[error("{0}")]
    TimedOut(String),
    /// A stop was requested.
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

    /// The error with what is behind it, as one text.
    #[must_use]
    pub fn user_message(&self) -> String {
        match self {
            Self::Io { what, source } => format!("{what}: {source}"),
            other => other.to_string(),
        }
    }

    /// Whether retrying may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Transient(_) | Self::Io { .. })
    }
}

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;
