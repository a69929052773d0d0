//! Rate limit of log lines of deployments.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;
use towpath_domain::DeploymentId;
use towpath_domain::deployment::{Level, LogKind};

/// Sustained lines per second, and the burst.
const LINES_PER_SECOND: f64 = 200.0;
const BURST: f64 = 4000.0;
/// The same for bytes.
const BYTES_PER_SECOND: f64 = 64.0 * 1024.0;
const BURST_BYTES: f64 = 4.0 * 1024.0 * 1024.0;
/// Errors may use this last part of a burst.
const RESERVE: f64 = 0.05;

/// Limits of each deployment, shared by all its logs of a kind: repeated restarts do not raise them, and a running
/// agent server does not reduce those of the next build.
#[derive(Debug, Default)]
pub struct LogRateLimits(Mutex<HashMap<(DeploymentId, LogKind), Arc<LogRateLimit>>>);

impl LogRateLimits {
    pub(super) fn of(&self, deployment: DeploymentId, kind: LogKind) -> Arc<LogRateLimit> {
        let wanted = (deployment, kind);
        let mut rates = self.0.lock();
        // A limit at its initial state need not be kept.
        rates.retain(|of, rate| *of == wanted || Arc::strong_count(rate) > 1 || !rate.is_fresh());
        Arc::clone(rates.entry(wanted).or_default())
    }
}

/// Limit of one deployment.
#[derive(Debug, Default)]
pub(super) struct LogRateLimit {
    bucket: Mutex<Bucket>,
    /// Dropped lines of closed logs that are not reported yet.
    unreported: AtomicU64,
}

impl LogRateLimit {
    /// Whether another line of this size is accepted.
    pub(super) fn take(&self, level: Level, bytes: usize) -> bool {
        let mut bucket = self.bucket.lock();
        bucket.take(level, bytes)
    }

    /// Leaves dropped lines for another log to report.
    pub(super) fn add_unreported(&self, dropped: u64) {
        self.unreported.fetch_add(dropped, Ordering::Relaxed);
    }

    /// Takes the dropped lines that other logs left.
    pub(super) fn take_unreported(&self) -> u64 {
        self.unreported.swap(0, Ordering::Relaxed)
    }

    fn is_fresh(&self) -> bool {
        let mut bucket = self.bucket.lock();
        bucket.fill();
        self.unreported.load(Ordering::Relaxed) == 0 && bucket.lines >= BURST && bucket.bytes >= BURST_BYTES
    }
}

#[derive(Debug)]
struct Bucket {
    lines: f64,
    bytes: f64,
    at: Instant,
}

impl Default for Bucket {
    /// Full.
    fn default() -> Self {
        Self {
            lines: BURST,
            bytes: BURST_BYTES,
            at: Instant::now(),
        }
    }
}

impl Bucket {
    fn fill(&mut self) {
        let now = Instant::now();
        let seconds = now.duration_since(self.at).as_secs_f64();
        self.lines = (self.lines + seconds * LINES_PER_SECOND).min(BURST);
        self.bytes = (self.bytes + seconds * BYTES_PER_SECOND).min(BURST_BYTES);
        self.at = now;
    }

    fn take(&mut self, level: Level, bytes: usize) -> bool {
        self.fill();
        let bytes = bytes as f64;
        let reserve = if level == Level::Error { RESERVE } else { 0.0 };
        let may = self.lines - 1.0 >= -reserve * BURST && self.bytes - bytes >= -reserve * BURST_BYTES;
        if may {
            self.lines -= 1.0;
            self.bytes -= bytes;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_prints_is_slowed_down_and_its_errors_are_heard() {
        let mut bucket = Bucket::default();
        let taken = (0..100_000).filter(|_| bucket.take(Level::Info, 10)).count();
        assert_eq!(taken, 4000);
        assert!(bucket.take(Level::Error, 10), "errors have a reserve");
        tokio::time::advance(Duration::from_secs(10)).await;
        let taken = (0..100_000).filter(|_| bucket.take(Level::Info, 10)).count();
        assert!((1990..=2000).contains(&taken), "{taken}");
        let errors = (0..100_000).filter(|_| bucket.take(Level::Error, 10)).count();
        assert_eq!(errors, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn long_lines_are_bounded_by_their_bytes() {
        let mut bucket = Bucket::default();
        let taken = (0..100_000).filter(|_| bucket.take(Level::Info, 4096)).count();
        assert_eq!(taken, 1024);
        tokio::time::advance(Duration::from_secs(10)).await;
        let taken = (0..100_000).filter(|_| bucket.take(Level::Info, 4096)).count();
        assert!((159..=160).contains(&taken), "{taken}");
    }

    /// A server that restarts may not print more than one that keeps running.
    #[tokio::test(start_paused = true)]
    async fn logs_of_a_deployment_share_what_it_may_say() {
        let (rates, one, other) = (LogRateLimits::default(), DeploymentId::new(), DeploymentId::new());
        let first = rates.of(one, LogKind::Deploy);
        while first.take(Level::Info, 10) {}
        drop(first);
        let may = |deployment, kind| rates.of(deployment, kind).take(Level::Info, 10);
        assert!(!may(one, LogKind::Deploy), "the next log begins anew");
        assert!(may(one, LogKind::Build), "its build is not heard");
        assert!(may(other, LogKind::Deploy), "another deployment has its own");
        rates.of(one, LogKind::Deploy).add_unreported(3);
        tokio::time::advance(Duration::from_secs(3600)).await;
        rates.of(other, LogKind::Deploy);
        assert_eq!(
            rates.of(one, LogKind::Deploy).take_unreported(),
            3,
            "nobody has told of them"
        );
        rates.of(other, LogKind::Deploy);
        assert_eq!(rates.0.lock().len(), 1, "one that is as good as new is kept");
    }
}
