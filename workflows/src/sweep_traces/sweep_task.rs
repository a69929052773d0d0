//! One task of a sweep: its time budget, and what it leaves for the next sweep.

use std::time::{Duration, Instant};

// Shared with the scheduler's sweeps, which describe the metrics.
const SECONDS: &str = "towpath_sweep_seconds";
const REMAINING: &str = "towpath_sweep_left";

/// Default time budget of a task, so that every task gets its turn.
const BUDGET: Duration = Duration::from_secs(20);

/// A running task. It ends when it has caught up or its time budget is used.
pub(crate) struct SweepTask {
    name: &'static str,
    began: Instant,
    budget: Duration,
}

impl SweepTask {
    /// Begins a task. Its name is the label of its metrics.
    pub(crate) fn begin(name: &'static str) -> Self {
        Self::with_budget(name, BUDGET)
    }

    /// Like [`SweepTask::begin`], with another time budget.
    pub(crate) fn with_budget(name: &'static str, budget: Duration) -> Self {
        Self {
            name,
            began: Instant::now(),
            budget,
        }
    }

    /// Whether the time budget is used.
    pub(crate) fn is_spent(&self) -> bool {
        self.began.elapsed() >= self.budget
    }

    /// Reports the remainder: nothing, or at least this much. Returns whether anything is left.
    pub(crate) fn end(self, left: usize) -> bool {
        metrics::histogram!(SECONDS, "sweep" => self.name).record(self.began.elapsed());
        metrics::gauge!(REMAINING, "sweep" => self.name).set(left as f64);
        left > 0
    }
}
