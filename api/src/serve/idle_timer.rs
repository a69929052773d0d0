//! How long something has been waited for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// So many bytes earn a second more. Slower connections are older than what is sent over them.
const LEAST_BYTES_PER_SECOND: u64 = 1024;

/// How long a client may still be waited for. What is waited is used up, and comes back with the bytes that pass: without
/// that a byte now and then would hold a connection for ever.
pub(super) struct IdleTimer {
    /// The most, at the beginning and whatever passes.
    timeout: Duration,
    remaining: Duration,
    since: Option<Instant>,
    /// Made at the first wait, which many never have.
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            timeout: patience,
            remaining: patience,
            since: None,
            timer: None,
        }
    }

    /// So many bytes passed, or something else went on.
    pub(super) fn record_progress(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.remaining = self.remaining.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_millis(bytes as u64 * 1000 / LEAST_BYTES_PER_SECOND);
        self.remaining = (self.remaining + earned).min(self.timeout);
    }

    /// Ready when it was waited for too long. Counts from the first call since something passed.
    pub(super) fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let left = self.remaining;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            timer.as_mut().reset(now + left);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// How long a client is waited for that sends `bytes` every `pause`, at most an hour.
    async fn lasts(bytes: usize, pause: Duration) -> Duration {
        let mut waiting = IdleTimer::new(PATIENCE);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE * 60 {
            let over = poll_fn(|context| waiting.poll_expired(context));
            if tokio::time::timeout(pause, over).await.is_ok() {
                break;
            }
            waiting.record_progress(bytes);
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_to_keep_up() {
        for (bytes, pause, least, most) in [
            (1, 59, 60, 62),
            (1, 1, 60, 62),
            (0, 7, 60, 62),
            (500, 1, 100, 130),
            (30_000, 59, 80, 100),
            (2_000, 1, 3600, 3700),
            (100_000, 59, 3600, 3700),
        ] {
            let lasted = lasts(bytes, Duration::from_secs(pause)).await.as_secs();
            assert!(
                (least..most).contains(&lasted),
                "{bytes} bytes every {pause} s are waited for {lasted} s"
            );
        }
    }
}
