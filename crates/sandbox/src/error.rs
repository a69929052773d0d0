//! What can go wrong with a box.

use std::io;

/// Why an operation on a box failed. The texts are for its owner and contain no paths of the host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the request is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// This machine or driver cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// The driver has seen a newer generation of the box.
    #[error("sandbox {id} has generation {newest} on this machine; {asked} is older")]
    Stale {
        /// The box.
        id: uuid::Uuid,
        asked: u64,
        /// What the machine has.
        newest: u64,
    },
    /// The box does not run.
    #[error("the sandbox is not running")]
    NotRunning,
    /// A file, a command or a layer does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The path is a directory where a file is needed.
    #[error("{0} is a directory")]
    IsDirectory(String),
    /// The user of the box may not do it.
    #[error("{0}")]
    Denied(String),
    /// The byte range is after the end of the file.
    #[error("the range begins after the end of the file ({size} bytes)")]
    Range {
        /// Size of the file.
        size: u64,
    },
    /// Nothing listens on the port.
    #[error("nothing listens on port {0} of the sandbox")]
    Refused(u16),
    /// The box has as many commands or connections as it may.
    #[error("{0}")]
    Busy(String),
    /// The machine of the box does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The operation took longer than it may.
    #[error("{0} timed out")]
    TimedOut(&'static str),
    /// The agent in the box sent an invalid answer, or closed the connection.
    #[error("the agent of the sandbox failed: {0}")]
    Agent(String),
    /// The machine's disk or processes.
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

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Io { .. } | Self::Agent(_) | Self::Busy(_) | Self::TimedOut(_) | Self::Unreachable(_)
        )
    }
}

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;
