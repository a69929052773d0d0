//! Jobs: their states, how they retry, how they end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where a job stands.
///
/// ```text
/// scheduled ──due──► ready ──claim──► running ──► succeeded
///     ▲     └► blocked ─┘ ▲              │  └───► failed / cancelled / timed_out
///     │      (lane full)  └── waiting ◄──┤
///     └───────── backoff, snooze ────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum JobState {
    /// Due later: delayed, backing off, or snoozing.
    Scheduled,
    /// Due, but its lane is full.
    Blocked,
    /// Waits for a worker.
    Ready,
    /// A worker holds its lease.
    Running,
    /// Waits for its children; holds its lane place, but no worker and no lease.
    Waiting,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Ended because somebody asked.
    Cancelled,
    /// Ended because its time was up.
    TimedOut,
}

impl JobState {
    /// Whether the job is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// Whether a job in this state always holds a place in its lane. (A `scheduled` job holds one only when it backs
    /// off and its kind keeps its place.)
    #[must_use]
    pub const fn holds_place(self) -> bool {
        matches!(self, Self::Ready | Self::Running | Self::Waiting)
    }

    /// As it stands in the database and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Blocked => "blocked",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

/// How a job ended other than by its own settling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// Attempts spent, a fatal failure, or too many lost leases. The text is the last error.
    Failed(String),
    /// Somebody asked.
    Cancelled,
    /// Its deadline passed, or its last attempt ran out of time.
    TimedOut,
}

impl Ended {
    /// The final state this gives the job.
    #[must_use]
    pub const fn state(&self) -> JobState {
        match self {
            Self::Failed(_) => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
            Self::TimedOut => JobState::TimedOut,
        }
    }
}

/// How often and how soon a failed attempt is repeated. Whether a failure may be repeated at all is said where it
/// happens (`.retry()`, `.fatal()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Retries after the first attempt.
    pub retries: u32,
    /// Before the first retry.
    pub delay: Duration,
    /// Each further delay is this many times the one before; 1 keeps it fixed.
    pub factor: u32,
    /// No delay is longer.
    pub longest: Duration,
}

impl RetryPolicy {
    /// The same delay before every retry.
    #[must_use]
    pub const fn fixed(retries: u32, delay: Duration) -> Self {
        Self {
            retries,
            delay,
            factor: 1,
            longest: delay,
        }
    }

    /// Delays that double up to `longest`.
    #[must_use]
    pub const fn doubling(retries: u32, delay: Duration, longest: Duration) -> Self {
        Self {
            retries,
            delay,
            factor: 2,
            longest,
        }
    }

    /// The delay before the retry that follows `failures` failed attempts, or `None` when they are spent.
    #[must_use]
    pub fn delay_after(&self, failures: u32) -> Option<Duration> {
        if failures > self.retries {
            return None;
        }
        let factor = self.factor.max(1).saturating_pow(failures.saturating_sub(1));
        Some(self.delay.saturating_mul(factor).min(self.longest.max(self.delay)))
    }
}

/// Leases a job may lose in a row, without a new step or checkpoint between them, before it counts as poison.
pub const MAX_LOST_LEASES: u32 = 5;

/// A job that lost so many leases in a row may be what kills its workers. It is claimed alone, and no other such job runs beside it
/// in its process: so neighbours of one that kills are found not to.
pub const SUSPECT: u32 = 2;

/// How long a job rests after so many leases lost in a row: about one second, then two, then four; by chance, from 0 to 1, half as
/// long to half as long again.
#[must_use]
pub fn rest_after_lost_lease(lost: u32, chance: f64) -> Duration {
    let rest = Duration::from_secs(1).saturating_mul(1 << lost.saturating_sub(1).min(2));
    rest.mul_f64(0.5 + chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_retries_are_twenty_one_attempts() {
        let policy = RetryPolicy::fixed(20, Duration::from_secs(30));
        assert_eq!(policy.delay_after(1), Some(Duration::from_secs(30)));
        assert_eq!(policy.delay_after(20), Some(Duration::from_secs(30)));
        assert_eq!(policy.delay_after(21), None);
    }

    #[test]
    fn the_rest_after_a_lost_lease_doubles_and_differs() {
        let seconds = |lost, chance| rest_after_lost_lease(lost, chance).as_secs_f64();
        assert_eq!([1, 2, 3, 5].map(|lost| seconds(lost, 0.5)), [1.0, 2.0, 4.0, 4.0]);
        assert_eq!([0.0, 1.0].map(|chance| seconds(1, chance)), [0.5, 1.5]);
    }

    #[test]
    fn doubling_stops_at_the_longest() {
        let policy = RetryPolicy::doubling(9, Duration::from_secs(1), Duration::from_secs(10));
        let delays: Vec<_> = (1..=6).map(|n| policy.delay_after(n).unwrap().as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
    }
}
