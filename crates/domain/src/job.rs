//! Jobs: states, retries, ends.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{JobId, TenantId, Timestamp};

/// Where a job is.
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
    Ready,
    /// A worker holds its lease.
    Running,
    /// Waits for its children; keeps its lane slot, but has no worker and no lease.
    Waiting,
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
}

impl JobState {
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// Whether a job in this state always holds a lane slot. (A `scheduled` job holds one only while it backs off, if
    /// its kind keeps the slot.)
    #[must_use]
    pub const fn holds_lane_slot(self) -> bool {
        matches!(self, Self::Ready | Self::Running | Self::Waiting)
    }

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

/// How a job ended if its worker did not settle it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// All attempts failed, a failure was fatal, or too many leases were lost. The text is the last error.
    Failed(String),
    /// Cancelled on request.
    Cancelled,
    /// Its deadline passed, or its last attempt timed out.
    TimedOut,
}

impl EndReason {
    #[must_use]
    pub const fn state(&self) -> JobState {
        match self {
            Self::Failed(_) => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
            Self::TimedOut => JobState::TimedOut,
        }
    }
}

/// How often and how soon a failed attempt is repeated. Where a failure occurs decides whether it may be repeated
/// (`.retry()`, `.fatal()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    pub retries: u32,
    pub delay: Duration,
    /// Each further delay is this many times the one before; 1 keeps it fixed.
    pub factor: u32,
    pub max_delay: Duration,
}

impl RetryPolicy {
    #[must_use]
    pub const fn fixed(retries: u32, delay: Duration) -> Self {
        Self {
            retries,
            delay,
            factor: 1,
            max_delay: delay,
        }
    }

    #[must_use]
    pub const fn doubling(retries: u32, delay: Duration, longest: Duration) -> Self {
        Self {
            retries,
            delay,
            factor: 2,
            max_delay: longest,
        }
    }

    /// The delay before the next retry after `failures` failed attempts, or `None` if no retries are left.
    #[must_use]
    pub fn delay_after(&self, failures: u32) -> Option<Duration> {
        if failures > self.retries {
            return None;
        }
        let factor = self.factor.max(1).saturating_pow(failures.saturating_sub(1));
        Some(self.delay.saturating_mul(factor).min(self.max_delay.max(self.delay)))
    }
}

/// The number of consecutive lost leases, without a new step or checkpoint in between, after which a job counts as
/// poison.
pub const MAX_LOST_LEASES: u32 = 5;

/// A job with this many consecutive lost leases may be what kills its workers. It is claimed alone, and no other
/// suspect runs beside it in the same process, so that an innocent neighbour is cleared.
pub const SUSPECT: u32 = 2;

/// The delay after this many consecutive lost leases: about one second, then two, then four. `chance`, from 0 to 1,
/// scales it from half to one and a half.
#[must_use]
pub fn backoff_after_lost_lease(lost: u32, chance: f64) -> Duration {
    let rest = Duration::from_secs(1).saturating_mul(1 << lost.saturating_sub(1).min(2));
    rest.mul_f64(0.5 + chance.clamp(0.0, 1.0))
}

/// A ready job: its id, and what decides when it is its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyJob {
    pub pool: String,
    pub tenant: TenantId,
    /// Higher priorities go first within a tenant.
    pub priority: i64,
    /// Older jobs go first within a priority.
    pub run_at: Timestamp,
    pub id: JobId,
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
        let seconds = |lost, chance| backoff_after_lost_lease(lost, chance).as_secs_f64();
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
