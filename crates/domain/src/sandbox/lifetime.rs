//! When a sandbox stops or is removed automatically.

use std::time::Duration;

use super::BoxStatus;
use crate::timestamp::Timestamp;

/// Lifetimes in seconds; 0 disables one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Idle time after which a running sandbox stops.
    pub idle_ttl_seconds: i64,
    /// Age at which a sandbox is removed.
    pub ttl_seconds: i64,
    /// Time after the stop until a sandbox is removed.
    pub delete_after_stop_seconds: i64,
}

/// The activity of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxActivity {
    pub status: BoxStatus,
    pub created_at: Timestamp,
    /// When it was last used.
    pub active_at: Timestamp,
    pub stopped_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DueAction {
    Delete,
    Stop,
}

impl Lifetime {
    /// The next automatic action and its time.
    #[must_use]
    pub fn next_due(self, standing: &BoxActivity) -> Option<(Timestamp, DueAction)> {
        if standing.status == BoxStatus::Deleting {
            return None;
        }
        let after = |from: Timestamp, seconds: i64| {
            let span = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
            Some(from.plus(Duration::from_secs(span)))
        };
        let ended = after(standing.created_at, self.ttl_seconds).map(|at| (at, DueAction::Delete));
        let idle = (standing.status == BoxStatus::Ready)
            .then(|| after(standing.active_at, self.idle_ttl_seconds))
            .flatten()
            .map(|at| (at, DueAction::Stop));
        let kept = (!standing.status.is_live())
            .then(|| after(standing.stopped_at?, self.delete_after_stop_seconds))
            .flatten()
            .map(|at| (at, DueAction::Delete));
        [ended, idle, kept].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Lifetime = Lifetime {
        idle_ttl_seconds: 600,
        ttl_seconds: 0,
        delete_after_stop_seconds: 3600,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn standing(status: BoxStatus) -> BoxActivity {
        BoxActivity {
            status,
            created_at: at(0),
            active_at: at(100),
            stopped_at: (!status.is_live()).then(|| at(1000)),
        }
    }

    #[test]
    fn what_runs_stops_and_what_is_stopped_goes() {
        assert_eq!(
            TIMES.next_due(&standing(BoxStatus::Ready)),
            Some((at(700), DueAction::Stop))
        );
        assert_eq!(
            TIMES.next_due(&standing(BoxStatus::Stopped)),
            Some((at(4600), DueAction::Delete))
        );
        assert_eq!(TIMES.next_due(&standing(BoxStatus::Provisioning)), None);
        assert_eq!(TIMES.next_due(&standing(BoxStatus::Deleting)), None);
    }

    #[test]
    fn the_earliest_time_counts_and_zero_is_off() {
        let short = Lifetime {
            ttl_seconds: 300,
            ..TIMES
        };
        assert_eq!(
            short.next_due(&standing(BoxStatus::Ready)),
            Some((at(300), DueAction::Delete))
        );
        let off = Lifetime {
            idle_ttl_seconds: 0,
            ttl_seconds: 0,
            delete_after_stop_seconds: 0,
        };
        for status in [BoxStatus::Ready, BoxStatus::Stopped, BoxStatus::Failed] {
            assert_eq!(off.next_due(&standing(status)), None);
        }
    }
}
