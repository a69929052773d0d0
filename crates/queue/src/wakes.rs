//! Listening to pools.

use std::sync::Arc;

use crate::listener_registry::PendingWakes;
use crate::{Queue, metric};

/// A hint that there may be work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The database may have ready jobs of the pool.
    Pool(Arc<str>),
    /// Ids of ready jobs are in the queues of the pool, see [`Queue::take`].
    Queued(Arc<str>),
    /// In any pool: the listener is new, or hints may have been lost during an outage of Redis. Check every pool.
    All,
}

/// Where the work of a pool may be. The later one includes the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeKind {
    Queued,
    Database,
}

/// Wakes of some pools. A busy listener finds at most one per pool, or one for all.
///
/// A worker without a free permit does not wait for a wake. Dropping this stops listening.
pub struct Wakes {
    pending: Arc<PendingWakes>,
    /// Also keeps the connections of the queue alive.
    queue: Queue,
}

impl Wakes {
    pub(crate) fn new(queue: Queue, pools: impl Iterator<Item = Arc<str>>) -> Self {
        let slot = Arc::new(PendingWakes::new(pools.collect()));
        queue.listeners().add(&slot);
        Self { pending: slot, queue }
    }

    /// Waits for the next wake. Cancel-safe, for example in a `select!`.
    pub async fn next(&mut self) -> Wake {
        loop {
            if let Some(wake) = self.pending.take_next() {
                metrics::counter!(metric::RECEIVED).increment(1);
                return wake;
            }
            self.pending.ready().await;
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.queue.listeners().remove(&self.pending);
    }
}
