//! When a box stops or goes by itself.

use std::time::Duration;

use super::BoxStatus;
use crate::timestamp::Timestamp;

/// Times of a box in seconds; 0 switches one off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A box that runs and is not used stops after it.
    pub idle_ttl_seconds: i64,
    /// A box is removed so long after it was made.
    pub ttl_seconds: i64,
    /// A box that does not run is removed so long after it stopped.
    pub delete_after_stop_seconds: i64,
}

/// Where a box stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its status.
    pub status: BoxStatus,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was used last.
    pub active_at: Timestamp,
    /// When it stopped.
    pub stopped_at: Option<Timestamp>,
}

/// What happens to a box by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// It is removed.
    Delete,
    /// It stops.
    Stop,
}

impl Times {
    /// What happens next, and when.
    #[must_use]
    pub fn next(self, standing: &Standing) -> Option<(Timestamp, Due)> {
        if standing.status == BoxStatus::Deleting {
            return None;
        }
        let after = |from: Timestamp, seconds: i64| {
            let span = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
            Some(from.plus(Duration::from_secs(span)))
        };
        let ended = after(standing.created_at, self.ttl_seconds).map(|at| (at, Due::Delete));
        let idle = (standing.status == BoxStatus::Ready)
            .then(|| after(standing.active_at, self.idle_ttl_seconds))
            .flatten()
            .map(|at| (at, Due::Stop));
        let kept = (!standing.status.is_live())
            .then(|| after(standing.stopped_at?, self.delete_after_stop_seconds))
            .flatten()
            .map(|at| (at, Due::Delete));
        [ended, idle, kept].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        idle_ttl_seconds: 600,
        ttl_seconds: 0,
        delete_after_stop_seconds: 3600,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn standing(status: BoxStatus) -> Standing {
        Standing {
            status,
            created_at: at(0),
            active_at: at(100),
            stopped_at: (!status.is_live()).then(|| at(1000)),
        }
    }

    #[test]
    fn what_runs_stops_and_what_is_stopped_goes() {
        assert_eq!(TIMES.next(&standing(BoxStatus::Ready)), Some((at(700), Due::Stop)));
        assert_eq!(TIMES.next(&standing(BoxStatus::Stopped)), Some((at(4600), Due::Delete)));
        assert_eq!(TIMES.next(&standing(BoxStatus::Provisioning)), None);
        assert_eq!(TIMES.next(&standing(BoxStatus::Deleting)), None);
    }

    #[test]
    fn the_earliest_time_counts_and_zero_is_off() {
        let short = Times {
            ttl_seconds: 300,
            ..TIMES
        };
        assert_eq!(short.next(&standing(BoxStatus::Ready)), Some((at(300), Due::Delete)));
        let off = Times {
            idle_ttl_seconds: 0,
            ttl_seconds: 0,
            delete_after_stop_seconds: 0,
        };
        for status in [BoxStatus::Ready, BoxStatus::Stopped, BoxStatus::Failed] {
            assert_eq!(off.next(&standing(status)), None);
        }
    }
}
