//! Listening to pools.

use std::sync::Arc;

use crate::board::Slot;
use crate::{Queue, metric};

/// A hint that there may be work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// In this pool.
    Pool(Arc<str>),
    /// Anywhere: the listener is new, or Redis was away and hints may have been lost. Look at every pool.
    All,
}

/// The wakes of some pools. However many come while the listener is busy, it finds one per pool, or one for all.
///
/// A worker without a free permit does not ask for the next wake. Dropping it ends the listening.
pub struct Wakes {
    slot: Arc<Slot>,
    /// Also keeps the connections of the queue.
    queue: Queue,
}

impl Wakes {
    pub(crate) fn new(queue: Queue, pools: impl Iterator<Item = Arc<str>>) -> Self {
        let slot = Arc::new(Slot::new(pools.collect()));
        queue.board().enter(&slot);
        Self { slot, queue }
    }

    /// Waits for the next wake. It may be dropped while waiting (in a `select!`) without losing one.
    pub async fn next(&mut self) -> Wake {
        loop {
            if let Some(wake) = self.slot.take() {
                metrics::counter!(metric::RECEIVED).increment(1);
                return wake;
            }
            self.slot.ready().await;
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.queue.board().leave(&self.slot);
    }
}
