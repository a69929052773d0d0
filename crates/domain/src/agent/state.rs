//! States of runs and threads, and how a new run affects unfinished runs.

use serde::{Deserialize, Serialize};

/// The state of a run. A rolled back run has none: its row is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum RunStatus {
    /// Waits for its thread, its start time, or a worker.
    Pending,
    /// A worker performs it. Never stored: it follows from the job of the run.
    Running,
    /// The graph ended or stopped at an interrupt.
    Success,
    /// The graph raised an error, or all attempts failed.
    Error,
    Timeout,
    /// A user cancelled it.
    Interrupted,
}

impl RunStatus {
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

    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum ThreadStatus {
    Idle,
    /// It has an unfinished run: delayed, queued or running.
    Busy,
    /// The last run stopped with steps left.
    Interrupted,
    /// The last run failed.
    Error,
}

impl ThreadStatus {
    #[must_use]
    pub const fn after(steps_left: bool) -> Self {
        if steps_left { Self::Interrupted } else { Self::Idle }
    }
}

/// How a new run affects unfinished runs of its thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum MultitaskStrategy {
    /// Wait for them.
    #[default]
    Enqueue,
    /// Refuse the new run.
    Reject,
    /// Stop them and keep their results.
    Interrupt,
    /// Stop them and undo their results.
    Rollback,
}

/// How a run is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum CancelAction {
    /// Keep the run and its checkpoints, as interrupted.
    #[default]
    Interrupt,
    /// Delete the run and its checkpoints.
    Rollback,
}

impl CancelAction {
    /// An unknown action counts as an interrupt.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text == "rollback" {
            Self::Rollback
        } else {
            Self::Interrupt
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunConflictAction {
    /// The new run waits for them.
    Wait,
    Reject,
    /// They are cancelled so; the new run follows.
    Cancel(CancelAction),
}

impl MultitaskStrategy {
    #[must_use]
    pub const fn decide(self) -> RunConflictAction {
        match self {
            Self::Enqueue => RunConflictAction::Wait,
            Self::Reject => RunConflictAction::Reject,
            Self::Interrupt => RunConflictAction::Cancel(CancelAction::Interrupt),
            Self::Rollback => RunConflictAction::Cancel(CancelAction::Rollback),
        }
    }
}

/// What the sweep does with a thread whose time to live has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum TtlStrategy {
    #[default]
    Delete,
    KeepLatest,
}
