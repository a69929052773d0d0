//! The backlog of accepted data that wait for a flush, and admission control.
//!
//! Accepting is several times as fast as flushing. Without a limit, data would be accepted until the disk is full, and
//! long before that reads would fail: unflushed data are read with every query. So above half of the limit, bodies are
//! admitted at a rate that approaches that of flushing as the backlog grows. Under overload the admitted rate equals
//! the flush rate, and the backlog stays at the limit.
//!
//! Several processes share a backlog. Each reads the total periodically and adds what it has accepted since.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_store::{Store, wal_segments};

/// Between two looks while it may matter soon.
const OFTEN: Duration = Duration::from_millis(250);
/// Between two looks at a small backlog.
const SELDOM: Duration = Duration::from_secs(1);
/// Over this time the pace of flushing is measured.
const SPAN: Duration = Duration::from_secs(5);
/// Burst size, as the time in which the rate yields as much.
const AT_ONCE: f64 = 0.1;
/// Minimum wait, or the answer would only use up one of the client's few retries.
const SHORTEST_WAIT: f64 = 2.0;
/// No one is sent away for longer: much may change.
const LONGEST_WAIT: f64 = 30.0;
/// What the smallest body counts as.
const LEAST_BYTES: u64 = 512;

/// The bytes of open WAL segments.
pub struct Backlog {
    bound: f64,
    state: Mutex<BacklogState>,
    /// Something was accepted.
    bytes_added: Notify,
}

#[derive(Default)]
struct BacklogState {
    /// At the last look.
    open_bytes: u64,
    /// Accepted by this process since then.
    added_since_refresh: u64,
    /// The recent flush rate in bytes; `None` if nothing was flushed.
    flushed_per_second: Option<f64>,
    /// Bytes that may be admitted by the rate; negative after a larger body.
    allowance: f64,
    filled: Option<Instant>,
}

impl BacklogState {
    const fn bytes(&self) -> u64 {
        self.open_bytes + self.added_since_refresh
    }
}

impl Backlog {
    /// Of at most about `bound_bytes`.
    pub fn new(bound_bytes: u64) -> Self {
        Self {
            bound: bound_bytes.max(1) as f64,
            state: Mutex::default(),
            bytes_added: Notify::new(),
        }
    }

    /// Whether a body of this size may be admitted now, or when there will be room.
    pub fn admit(&self, bytes: u64, now: Instant) -> Result<(), Duration> {
        let mut state = self.state.lock();
        let fill = state.bytes() as f64 / self.bound;
        if fill <= 0.5 {
            return Ok(());
        }
        let Some(folded) = state.flushed_per_second else {
            // The flush rate is unknown: flushing has not begun yet, or it is stuck.
            return if fill < 1.0 {
                Ok(())
            } else {
                Err(retry_after(LONGEST_WAIT / 3.0))
            };
        };
        let pace = folded / (2.0 * fill - 1.0);
        let passed = state.filled.map_or(0.0, |then| now.duration_since(then).as_secs_f64());
        state.allowance = (state.allowance + passed * pace).min(pace * AT_ONCE);
        state.filled = Some(now);
        if state.allowance <= 0.0 {
            // By then everyone may come in, if no one comes before.
            return Err(retry_after((fill - 0.5) * self.bound / folded));
        }
        state.allowance -= bytes.max(LEAST_BYTES) as f64;
        Ok(())
    }

    /// So many bytes were registered by this process.
    pub fn accepted(&self, bytes: u64) {
        self.state.lock().added_since_refresh += bytes;
        self.bytes_added.notify_one();
    }

    /// Looks again and again. Ends never.
    pub async fn watch(&self, store: &Store) {
        loop {
            if self.state.lock().bytes() == 0 {
                self.bytes_added.notified().await;
            }
            self.refresh(store).await;
            let full = self.state.lock().bytes() as f64 > self.bound / 4.0;
            tokio::time::sleep(if full { OFTEN } else { SELDOM }).await;
        }
    }

    async fn refresh(&self, store: &Store) {
        let before = self.state.lock().added_since_refresh;
        let after = store.clock().now().minus(SPAN);
        let seen = store
            .read(async |tx| {
                Ok((
                    wal_segments::backlog(tx).await?.1,
                    wal_segments::flushed_bytes_since(tx, after).await?,
                ))
            })
            .await;
        // Without an answer the last value stays; newly accepted data are still added.
        if let Ok((open, folded)) = seen {
            let mut state = self.state.lock();
            state.open_bytes = u64::try_from(open).unwrap_or_default();
            state.added_since_refresh = state.added_since_refresh.saturating_sub(before);
            state.flushed_per_second = (folded > 0).then(|| folded as f64 / SPAN.as_secs_f64());
        }
    }
}

/// In whole seconds, as the header has them.
fn retry_after(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.ceil().clamp(SHORTEST_WAIT, LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn backlog(open: u64, folded_per_second: Option<u64>) -> Backlog {
        let backlog = Backlog::new(100 * MB);
        *backlog.state.lock() = BacklogState {
            open_bytes: open,
            flushed_per_second: folded_per_second.map(|bytes| bytes as f64),
            ..BacklogState::default()
        };
        backlog
    }

    /// Bytes admitted when bodies of 100 kB are offered every millisecond for ten seconds.
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
