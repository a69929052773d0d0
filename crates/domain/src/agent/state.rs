//! Where runs and threads stand, and what a new run does to those that are in its way.

use serde::{Deserialize, Serialize};

/// Where a run stands. A rolled back run has no state: its row is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum RunStatus {
    /// Recorded; waits for its thread, its time, or a worker.
    Pending,
    /// A worker performs it. Never stored: it is what the run's job says.
    Running,
    /// The graph ended, or stopped at an interrupt of its own.
    Success,
    /// The graph raised, or its attempts are spent.
    Error,
    /// It took longer than a run may.
    Timeout,
    /// Somebody cancelled it.
    Interrupted,
}

impl RunStatus {
    /// As it stands in the database and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether the run is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum ThreadStatus {
    /// Nothing is to be done.
    Idle,
    /// A run of it is not over, be it delayed, queued or at work.
    Busy,
    /// The last run stopped with steps left.
    Interrupted,
    /// The last run ended badly.
    Error,
}

impl ThreadStatus {
    /// Of a thread whose last run left `steps_left`.
    #[must_use]
    pub const fn after(steps_left: bool) -> Self {
        if steps_left { Self::Interrupted } else { Self::Idle }
    }
}

/// What a new run does when its thread has runs that are not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum MultitaskStrategy {
    /// Waits its turn.
    #[default]
    Enqueue,
    /// Is refused.
    Reject,
    /// Stops them, keeping what they have done.
    Interrupt,
    /// Stops them and takes back what they have done.
    Rollback,
}

/// How a run is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum CancelAction {
    /// Keeps its checkpoints; the run stays, as interrupted.
    #[default]
    Interrupt,
    /// Deletes its checkpoints and the run.
    Rollback,
}

impl CancelAction {
    /// As clients write it; an unknown action is an interrupt.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text == "rollback" {
            Self::Rollback
        } else {
            Self::Interrupt
        }
    }
}

/// What becomes of the runs in the way of a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTheWay {
    /// They go first.
    Wait,
    /// The new run is refused.
    Refuse,
    /// They are cancelled so; the new run follows.
    Cancel(CancelAction),
}

impl MultitaskStrategy {
    /// What happens to runs in flight.
    #[must_use]
    pub const fn decide(self) -> InTheWay {
        match self {
            Self::Enqueue => InTheWay::Wait,
            Self::Reject => InTheWay::Refuse,
            Self::Interrupt => InTheWay::Cancel(CancelAction::Interrupt),
            Self::Rollback => InTheWay::Cancel(CancelAction::Rollback),
        }
    }
}

/// What the sweep does with a thread whose time to live is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum TtlStrategy {
    /// Deletes it.
    #[default]
    Delete,
    /// Deletes all but its latest checkpoint.
    KeepLatest,
}
