//! What readiness is told.

use towpath_domain::Timestamp;

/// How a queue does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether hints cross processes.
    pub state: State,
    /// Times the connection was made again after a loss, since the start of this process.
    pub reconnects: u64,
    /// Wakes and signals that were not sent because Redis was away, since the start of this process.
    pub dropped: u64,
}

/// Whether hints cross processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is one process only.
    Local,
    /// Both connections answer.
    Up,
    /// Hints stay within this process; the others find work by their scans.
    Down {
        /// Since when.
        since: Timestamp,
        /// What the last attempt said, without credentials.
        error: String,
    },
}

impl Health {
    pub(crate) fn local() -> Self {
        Self {
            state: State::Local,
            reconnects: 0,
            dropped: 0,
        }
    }

    /// Whether hints are lost on the way to other processes. The process is as right as ever, only slower.
    #[must_use]
    pub fn degraded(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }
}
