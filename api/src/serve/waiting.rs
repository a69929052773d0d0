//! How long something has been waited for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Counts from one sign of life to the next.
pub(super) struct Waiting {
    patience: Duration,
    /// Made at the first wait, which many never have.
    timer: Option<Pin<Box<Sleep>>>,
    counts: bool,
}

impl Waiting {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            timer: None,
            counts: false,
        }
    }

    /// There was one.
    pub(super) const fn passed(&mut self) {
        self.counts = false;
    }

    /// Ready when there was none for too long. Counts from the first call since the last one.
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if !self.counts {
            self.counts = true;
            timer.as_mut().reset(Instant::now() + patience);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(())
    }
}
