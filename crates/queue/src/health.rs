//! Health of a queue, for readiness.

use towpath_domain::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether hints reach other processes.
    pub state: State,
    /// Reconnections since the start of this process.
    pub reconnects: u64,
    /// Wakes and signals that were not sent because Redis was unavailable, since the start of this process.
    pub dropped: u64,
}

/// Connections of a process to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Open while Redis is available.
    pub needed: u32,
    pub open: u32,
}

/// Whether hints reach other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is only one process.
    Local,
    /// Both connections work.
    Up,
    /// Hints stay within this process; the others find jobs by polling.
    Down {
        since: Timestamp,
        /// The last error, without credentials.
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

    /// Whether hints to other processes are lost. The process still works correctly, but slower.
    #[must_use]
    pub fn degraded(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }
}
