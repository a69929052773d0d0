//! What the results of a pool's claims mean for its next one.

use std::time::Duration;

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimState {
    /// Jobs may be ready: any free slot is reason to claim.
    Ready,
    /// The last batch left jobs, and took so long. A batch of one job costs as much as a batch of many, so slots are
    /// gathered, and batches may overlap.
    Backlog { duration: Duration },
    /// No job was found, or none may be claimed: no claim before this time, unless the pool is woken.
    Idle { until: Instant },
    /// The last claim failed: no claim before this time. Wakes would only repeat the attempt.
    BackingOff { until: Instant, pause: Duration },
    /// The next claim is an attempt after the pause.
    Retrying { pause: Duration },
}

impl ClaimState {
    /// The time before which nothing is claimed.
    pub(crate) fn waits_until(self) -> Option<Instant> {
        match self {
            Self::Idle { until } | Self::BackingOff { until, .. } => Some(until),
            Self::Ready | Self::Backlog { .. } | Self::Retrying { .. } => None,
        }
    }

    /// Whether the last claim failed.
    pub(crate) fn has_failed(self) -> bool {
        self.pause().is_some()
    }

    fn pause(self) -> Option<Duration> {
        match self {
            Self::BackingOff { pause, .. } | Self::Retrying { pause } => Some(pause),
            Self::Ready | Self::Backlog { .. } | Self::Idle { .. } => None,
        }
    }

    /// The pause after one more failure; it doubles each time.
    pub(crate) fn next_pause(self) -> Duration {
        self.pause()
            .map_or(FIRST_PAUSE, |pause| (pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE))
    }

    /// Nothing is claimed before this time. A failed claim still counts as failed.
    pub(crate) fn wait(&mut self, until: Instant) {
        *self = match self.pause() {
            Some(pause) => Self::BackingOff { until, pause },
            None => Self::Idle { until },
        };
    }

    /// Ends the waiting.
    pub(crate) fn resume(&mut self) {
        *self = match *self {
            Self::Idle { .. } => Self::Ready,
            Self::BackingOff { pause, .. } => Self::Retrying { pause },
            state => state,
        };
    }

    /// A transaction succeeded that claimed nothing.
    pub(crate) fn recover(&mut self) {
        *self = match *self {
            Self::BackingOff { until, .. } => Self::Idle { until },
            Self::Retrying { .. } => Self::Ready,
            state => state,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_claim_succeeds() {
        let until = Instant::now();
        let mut state = ClaimState::Backlog { duration: MAX_PAUSE };
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let pause = state.next_pause();
            pauses.push(pause.as_millis());
            state = ClaimState::BackingOff { until, pause };
            state.resume();
            assert_eq!((state.has_failed(), state.waits_until()), (true, None));
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000]);
        state.recover();
        assert_eq!((state, state.next_pause()), (ClaimState::Ready, FIRST_PAUSE));
    }

    #[test]
    fn waiting_without_a_lease_hides_no_failure() {
        let until = Instant::now();
        let mut state = ClaimState::Retrying { pause: FIRST_PAUSE };
        state.wait(until);
        let pause = FIRST_PAUSE;
        assert_eq!(state, ClaimState::BackingOff { until, pause });
        state.recover();
        assert_eq!(state, ClaimState::Idle { until });
        state.resume();
        assert_eq!(state, ClaimState::Ready);
        state.wait(until);
        assert_eq!(state, ClaimState::Idle { until });
    }
}
