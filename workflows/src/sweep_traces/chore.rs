//! One chore of a sweep: how long it goes on, and what it leaves for the next.

use std::time::{Duration, Instant};

// Those of the scheduler's own sweeps, which says what they mean.
const SECONDS: &str = "towpath_sweep_seconds";
const LEFT: &str = "towpath_sweep_left";

/// How long a chore goes on, so that every one gets its turn.
const BUDGET: Duration = Duration::from_secs(20);

/// A chore at work. It goes on until it has caught up or its time is up.
pub(crate) struct Chore {
    name: &'static str,
    began: Instant,
    budget: Duration,
}

impl Chore {
    /// Begins a chore. Its name is the label of its metrics.
    pub(crate) fn begin(name: &'static str) -> Self {
        Self::lasting(name, BUDGET)
    }

    /// As [`Chore::begin`], with another time.
    pub(crate) fn lasting(name: &'static str, budget: Duration) -> Self {
        Self {
            name,
            began: Instant::now(),
            budget,
        }
    }

    /// Whether its time is up.
    pub(crate) fn is_spent(&self) -> bool {
        self.began.elapsed() >= self.budget
    }

    /// Says what it leaves: nothing, or at least so many. Answers whether that is anything.
    pub(crate) fn end(self, left: usize) -> bool {
        metrics::histogram!(SECONDS, "sweep" => self.name).record(self.began.elapsed());
        metrics::gauge!(LEFT, "sweep" => self.name).set(left as f64);
        left > 0
    }
}
