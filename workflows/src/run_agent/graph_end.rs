//! How the graph of a run ended.

use serde_json::Value;
use towpath_domain::agent::{RunStatus, ThreadStatus};
use towpath_runtime::Shared;

pub enum Ending {
    /// The graph ended, or stopped at an interrupt.
    Done(FinalState),
    /// The graph raised an exception, or could not run at all.
    Failed {
        /// For clients: `{error, message}`.
        error: Value,
        /// Details for the operator.
        operator_error: Option<String>,
        /// The final state, if known.
        final_state: Option<FinalState>,
    },
    /// It exceeded its time limit.
    TimedOut {
        /// For clients.
        error: Value,
        final_state: Option<FinalState>,
    },
    /// It was cancelled.
    Cancelled { final_state: Option<FinalState> },
}

/// The state that a run leaves.
pub struct FinalState {
    pub values: Shared,
    /// Task id to its waiting interrupts.
    pub interrupts: Value,
    /// Whether steps remain.
    pub has_next_steps: bool,
}

impl Ending {
    pub(super) const fn status(&self) -> RunStatus {
        match self {
            Self::Done(_) => RunStatus::Success,
            Self::Failed { .. } => RunStatus::Error,
            Self::TimedOut { .. } => RunStatus::Timeout,
            Self::Cancelled { .. } => RunStatus::Interrupted,
        }
    }

    pub(super) const fn final_state(&self) -> Option<&FinalState> {
        match self {
            Self::Done(left) => Some(left),
            Self::Failed { final_state: left, .. }
            | Self::TimedOut { final_state: left, .. }
            | Self::Cancelled { final_state: left } => left.as_ref(),
        }
    }

    pub(super) const fn error(&self) -> Option<&Value> {
        match self {
            Self::Failed { error, .. } | Self::TimedOut { error, .. } => Some(error),
            Self::Done(_) | Self::Cancelled { .. } => None,
        }
    }

    /// Whether a strict run refused its resume before any work.
    pub(super) fn is_refused_resume(&self) -> bool {
        matches!(self, Self::Failed { error, .. } if error["error"] == "UnknownInterruptError")
    }

    pub(super) fn thread_status(&self) -> ThreadStatus {
        match self {
            Self::Failed {
                final_state: Some(left),
                ..
            } if self.is_refused_resume() => ThreadStatus::after(left.has_next_steps),
            Self::Failed { .. } | Self::TimedOut { .. } => ThreadStatus::Error,
            Self::Done(_) | Self::Cancelled { .. } => {
                ThreadStatus::after(self.final_state().is_some_and(|left| left.has_next_steps))
            }
        }
    }

    /// The same ending as a cancel, for a run that was cancelled before it was written.
    pub(super) fn into_cancelled(self) -> Self {
        let left = match self {
            Self::Done(left) => Some(left),
            Self::Failed { final_state: left, .. }
            | Self::TimedOut { final_state: left, .. }
            | Self::Cancelled { final_state: left } => left,
        };
        Self::Cancelled { final_state: left }
    }
}
