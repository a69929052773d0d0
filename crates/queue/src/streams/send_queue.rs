//! Hints waiting to be sent to Redis; bounded, however long an outage lasts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use towpath_domain::{JobId, ThreadId};

use crate::metric;

/// Maximum number of waiting signals; more become one "check the rows".
const SIGNALS_WAITING: usize = 4096;

/// Maximum size of waiting events; further ones are dropped, and their readers use the log.
const EVENT_BYTES_WAITING: usize = 32 << 20;

/// During a session: one wake per pool and a bounded number of signals. Otherwise empty.
#[derive(Default)]
pub struct SendQueue {
    state: Mutex<SendQueueState>,
    ready: Notify,
}

#[derive(Default)]
struct SendQueueState {
    has_session: bool,
    batch: Batch,
    /// Hints in the batch that was taken and not confirmed yet.
    unconfirmed: u64,
    dropped: u64,
}

/// Contents of one exchange.
#[derive(Default)]
pub struct Batch {
    pub wakes: BTreeSet<String>,
    pub cancels: Vec<JobId>,
    /// Events of threads, in order.
    pub events: Vec<(ThreadId, Arc<str>)>,
    pub(super) event_bytes: usize,
    /// There were too many signals to name.
    pub rescan: bool,
    /// The reader of this process must be unblocked.
    pub unblock_reader: bool,
}

impl Batch {
    /// Number of wakes, signals and events.
    pub fn hints(&self) -> u64 {
        (self.wakes.len() + self.cancels.len() + self.events.len()) as u64 + u64::from(self.rescan)
    }

    fn is_empty(&self) -> bool {
        self.hints() == 0 && !self.unblock_reader
    }
}

impl SendQueue {
    pub fn wake(&self, pool: &str) {
        self.put(1, |batch| {
            if !batch.wakes.contains(pool) {
                batch.wakes.insert(pool.to_owned());
            }
        });
    }

    pub fn cancel(&self, jobs: &[JobId]) {
        if jobs.is_empty() {
            return;
        }
        self.put(jobs.len() as u64, |batch| {
            if batch.rescan || batch.cancels.len() + jobs.len() > SIGNALS_WAITING {
                batch.rescan = true;
                batch.cancels.clear();
            } else {
                batch.cancels.extend_from_slice(jobs);
            }
        });
    }

    pub fn publish(&self, thread: ThreadId, frame: &Arc<str>) {
        self.put(1, |batch| {
            if batch.event_bytes + frame.len() > EVENT_BYTES_WAITING && !batch.events.is_empty() {
                metrics::counter!(metric::DROPPED).increment(1);
                return;
            }
            batch.event_bytes += frame.len();
            batch.events.push((thread, frame.clone()));
        });
    }

    /// An entry without a hint, which only ends a blocking read of this process.
    pub fn unblock_reader(&self) {
        self.put(0, |batch| batch.unblock_reader = true);
    }

    /// Starts to accept hints for a new session.
    pub fn open(&self) {
        self.lock_state().has_session = true;
    }

    /// Ends the session. Unconfirmed hints are dropped, and so are new ones until the next session, because polling
    /// finds their state.
    pub fn close(&self) {
        let mut waiting = self.lock_state();
        waiting.has_session = false;
        let lost = std::mem::take(&mut waiting.batch).hints() + std::mem::take(&mut waiting.unconfirmed);
        waiting.drop_hints(lost);
    }

    /// Waits until there are hints, and takes all of them. Cancel-safe.
    pub async fn take(&self) -> Batch {
        loop {
            if let Some(batch) = self.try_take() {
                return batch;
            }
            self.ready.notified().await;
        }
    }

    fn try_take(&self) -> Option<Batch> {
        let mut waiting = self.lock_state();
        if waiting.batch.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut waiting.batch);
        waiting.unconfirmed = batch.hints();
        Some(batch)
    }

    /// Confirms that Redis has the taken batch.
    pub fn confirm(&self) {
        self.lock_state().unconfirmed = 0;
    }

    pub fn dropped(&self) -> u64 {
        self.lock_state().dropped
    }

    fn put(&self, hints: u64, into: impl FnOnce(&mut Batch)) {
        let mut waiting = self.lock_state();
        if !waiting.has_session {
            waiting.drop_hints(hints);
            return;
        }
        let was_empty = waiting.batch.is_empty();
        into(&mut waiting.batch);
        drop(waiting);
        if was_empty {
            self.ready.notify_one();
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, SendQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SendQueueState {
    fn drop_hints(&mut self, hints: u64) {
        if hints > 0 {
            self.dropped += hints;
            metrics::counter!(metric::DROPPED).increment(hints);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(count: usize) -> Vec<JobId> {
        std::iter::repeat_with(JobId::new).take(count).collect()
    }

    #[tokio::test]
    async fn one_wake_per_pool_waits() {
        let outbox = SendQueue::default();
        outbox.open();
        for _ in 0..10_000 {
            outbox.wake("runs");
            outbox.wake("builds");
        }
        let batch = outbox.take().await;
        assert_eq!(batch.wakes.into_iter().collect::<Vec<_>>(), ["builds", "runs"]);
    }

    #[tokio::test]
    async fn a_flood_of_signals_becomes_one_look() {
        let outbox = SendQueue::default();
        outbox.open();
        outbox.cancel(&jobs(SIGNALS_WAITING));
        outbox.cancel(&jobs(1));
        outbox.cancel(&jobs(1));
        let batch = outbox.take().await;
        assert!(batch.rescan && batch.cancels.is_empty());
    }

    #[tokio::test]
    async fn without_a_session_hints_are_dropped_and_counted() {
        let outbox = SendQueue::default();
        outbox.wake("runs");
        outbox.cancel(&jobs(2));
        assert_eq!(outbox.dropped(), 3);

        outbox.open();
        outbox.wake("runs");
        outbox.take().await;
        outbox.wake("builds");
        outbox.close();
        assert_eq!(outbox.dropped(), 5, "the batch under way and the one that waited");

        outbox.open();
        outbox.wake("runs");
        outbox.take().await;
        outbox.confirm();
        outbox.close();
        assert_eq!(outbox.dropped(), 5, "a confirmed batch is not lost");
    }
}
