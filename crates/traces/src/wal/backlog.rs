//! How much of what was accepted waits to be folded, and who may bring more.
//!
//! Accepting is several times as fast as folding. Without a bound, whoever sends more than is folded would be accepted
//! until the disk is full, and long before that nobody could read: what is open is read along with every question. So
//! beyond half of the bound, bodies come in by a pace: that of folding, the slower the fuller. Where more is offered
//! than is folded, just as much comes in as is folded, evenly, and the backlog stands at the bound.
//!
//! Several processes share a backlog. Each looks at all of it now and then, and adds what it has accepted since.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use towpath_store::{Store, units};

/// Between two looks while it may matter soon.
const OFTEN: Duration = Duration::from_millis(250);
/// Between two looks at a small backlog.
const SELDOM: Duration = Duration::from_secs(1);
/// Over this time the pace of folding is measured.
const SPAN: Duration = Duration::from_secs(5);
/// What may come in at once by the pace is what the pace brings in this time.
const AT_ONCE: f64 = 0.1;
/// Nobody comes back sooner, or the answer would only spend one of its few tries.
const SHORTEST_WAIT: f64 = 2.0;
/// Nobody is sent away for longer: much may change.
const LONGEST_WAIT: f64 = 30.0;
/// What the smallest body counts as.
const LEAST_BYTES: u64 = 512;

/// The bytes of open units.
pub struct Backlog {
    bound: f64,
    state: Mutex<State>,
    /// Something was accepted.
    grew: Notify,
}

#[derive(Default)]
struct State {
    /// At the last look.
    open: u64,
    /// Accepted by this process since then.
    since: u64,
    /// Of the last moments, in bytes; `None` while nothing was folded in them.
    folded_per_second: Option<f64>,
    /// Bytes that may come in by the pace; below zero where a body was larger.
    room: f64,
    filled: Option<Instant>,
}

impl State {
    const fn bytes(&self) -> u64 {
        self.open + self.since
    }
}

impl Backlog {
    /// Of at most about `bound_bytes`.
    pub fn new(bound_bytes: u64) -> Self {
        Self {
            bound: bound_bytes.max(1) as f64,
            state: Mutex::default(),
            grew: Notify::new(),
        }
    }

    /// Whether a body of so many bytes may come in now, or when there will be room.
    pub fn admit(&self, bytes: u64, now: Instant) -> Result<(), Duration> {
        let mut state = self.lock();
        let fill = state.bytes() as f64 / self.bound;
        if fill <= 0.5 {
            return Ok(());
        }
        let Some(folded) = state.folded_per_second else {
            // Nothing is known of folding: it has not begun yet, or it stands still.
            return if fill < 1.0 {
                Ok(())
            } else {
                Err(wait(LONGEST_WAIT / 3.0))
            };
        };
        let pace = folded / (2.0 * fill - 1.0);
        let passed = state.filled.map_or(0.0, |then| now.duration_since(then).as_secs_f64());
        state.room = (state.room + passed * pace).min(pace * AT_ONCE);
        state.filled = Some(now);
        if state.room <= 0.0 {
            // By then everybody may come in, if nobody comes before.
            return Err(wait((fill - 0.5) * self.bound / folded));
        }
        state.room -= bytes.max(LEAST_BYTES) as f64;
        Ok(())
    }

    /// So many bytes were registered by this process.
    pub fn accepted(&self, bytes: u64) {
        self.lock().since += bytes;
        self.grew.notify_one();
    }

    /// Looks again and again. Ends never.
    pub async fn watch(&self, store: &Store) {
        loop {
            if self.lock().bytes() == 0 {
                self.grew.notified().await;
            }
            self.look(store).await;
            let full = self.lock().bytes() as f64 > self.bound / 4.0;
            tokio::time::sleep(if full { OFTEN } else { SELDOM }).await;
        }
    }

    async fn look(&self, store: &Store) {
        let before = self.lock().since;
        let after = store.clock().now().minus(SPAN);
        let seen = store
            .read(async |tx| Ok((units::backlog(tx).await?.1, units::folded_bytes_since(tx, after).await?)))
            .await;
        // Without an answer what was known stays; what is accepted meanwhile is still counted.
        if let Ok((open, folded)) = seen {
            let mut state = self.lock();
            state.open = u64::try_from(open).unwrap_or_default();
            state.since = state.since.saturating_sub(before);
            state.folded_per_second = (folded > 0).then(|| folded as f64 / SPAN.as_secs_f64());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In whole seconds, as the header has them.
fn wait(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.ceil().clamp(SHORTEST_WAIT, LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn backlog(open: u64, folded_per_second: Option<u64>) -> Backlog {
        let backlog = Backlog::new(100 * MB);
        *backlog.lock() = State {
            open,
            folded_per_second: folded_per_second.map(|bytes| bytes as f64),
            ..State::default()
        };
        backlog
    }

    /// Bytes that came in of bodies of 100 kB offered every millisecond for ten seconds.
    fn admitted(backlog: &Backlog) -> u64 {
        let began = Instant::now();
        let offered = (0..10_000).map(|at| began + Duration::from_millis(at));
        offered.filter(|&now| backlog.admit(100_000, now).is_ok()).count() as u64 * 100_000
    }

    #[test]
    fn as_much_comes_in_as_is_folded() {
        let near = |bytes: u64, wanted: u64| bytes.abs_diff(wanted) < wanted / 20;
        assert_eq!(
            admitted(&backlog(50 * MB, Some(MB))),
            1_000_000_000,
            "half full: everybody"
        );
        let full = admitted(&backlog(100 * MB, Some(4 * MB)));
        assert!(near(full, 40 * MB), "{full} at the bound");
        let less = admitted(&backlog(75 * MB, Some(4 * MB)));
        assert!(near(less, 80 * MB), "{less} below it");
        let more = admitted(&backlog(150 * MB, Some(4 * MB)));
        assert!(near(more, 20 * MB), "{more} above it");
    }

    #[test]
    fn before_anything_is_folded_the_bound_counts() {
        assert_eq!(backlog(99 * MB, None).admit(1, Instant::now()), Ok(()));
        let refused = backlog(100 * MB, None).admit(1, Instant::now());
        assert_eq!(refused, Err(Duration::from_secs(10)));
    }

    #[test]
    fn who_is_refused_learns_how_long_folding_takes() {
        let backlog = backlog(100 * MB, Some(10 * MB));
        let now = Instant::now();
        assert_eq!(backlog.admit(1, now), Err(Duration::from_secs(5)), "50 MB at 10 MB/s");
        backlog.accepted(50 * MB);
        assert_eq!(backlog.admit(1, now), Err(Duration::from_secs(10)));
        // However large: a body that could never come in would be lost.
        assert_eq!(backlog.admit(1000 * MB, now + Duration::from_secs(1)), Ok(()));
    }
}
