//! What waits to be sent to Redis: bounded, whatever callers do and however long Redis is away.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use towpath_domain::{JobId, ThreadId};

use crate::metric;

/// Signals that may wait; more become one "look at the rows".
const SIGNALS_WAITING: usize = 4096;

/// Bytes of events that may wait; further ones are dropped, and their readers look into the log.
const EVENT_BYTES_WAITING: usize = 32 << 20;

/// One wake per pool and a bounded number of signals, while there is a session; nothing while there is none.
#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    ready: Notify,
}

#[derive(Default)]
struct Waiting {
    open: bool,
    batch: Batch,
    /// Hints of the batch that was taken and not yet confirmed.
    taken: u64,
    dropped: u64,
}

/// What goes out in one exchange.
#[derive(Default)]
pub struct Batch {
    /// Pools to wake, sorted.
    pub wakes: BTreeSet<String>,
    /// Jobs to signal.
    pub cancels: Vec<JobId>,
    /// Events of threads, in their order.
    pub events: Vec<(ThreadId, Arc<str>)>,
    /// Their bytes.
    pub(super) event_bytes: usize,
    /// There were too many signals to name.
    pub look: bool,
    /// The reader of this process is to be unblocked.
    pub nudge: bool,
}

impl Batch {
    /// Wakes, signals and events in it.
    pub fn hints(&self) -> u64 {
        (self.wakes.len() + self.cancels.len() + self.events.len()) as u64 + u64::from(self.look)
    }

    fn is_empty(&self) -> bool {
        self.hints() == 0 && !self.nudge
    }
}

impl Outbox {
    /// A wake for the pool.
    pub fn wake(&self, pool: &str) {
        self.put(1, |batch| {
            if !batch.wakes.contains(pool) {
                batch.wakes.insert(pool.to_owned());
            }
        });
    }

    /// Signals for the jobs.
    pub fn cancel(&self, jobs: &[JobId]) {
        if jobs.is_empty() {
            return;
        }
        self.put(jobs.len() as u64, |batch| {
            if batch.look || batch.cancels.len() + jobs.len() > SIGNALS_WAITING {
                batch.look = true;
                batch.cancels.clear();
            } else {
                batch.cancels.extend_from_slice(jobs);
            }
        });
    }

    /// An event of a thread.
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

    /// An entry that nobody heeds, which ends a blocking read of this process.
    pub fn nudge(&self) {
        self.put(0, |batch| batch.nudge = true);
    }

    /// A session began: hints wait for it.
    pub fn open(&self) {
        self.waiting().open = true;
    }

    /// The session ended. What it did not confirm is dropped, and so is what comes until the next one: by then the
    /// scans have found it.
    pub fn close(&self) {
        let mut waiting = self.waiting();
        waiting.open = false;
        let lost = std::mem::take(&mut waiting.batch).hints() + std::mem::take(&mut waiting.taken);
        waiting.drop_hints(lost);
    }

    /// Waits until there is something, and takes all of it. May be dropped while waiting.
    pub async fn take(&self) -> Batch {
        loop {
            if let Some(batch) = self.try_take() {
                return batch;
            }
            self.ready.notified().await;
        }
    }

    fn try_take(&self) -> Option<Batch> {
        let mut waiting = self.waiting();
        if waiting.batch.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut waiting.batch);
        waiting.taken = batch.hints();
        Some(batch)
    }

    /// Redis has what was taken last.
    pub fn confirm(&self) {
        self.waiting().taken = 0;
    }

    /// Hints dropped so far.
    pub fn dropped(&self) -> u64 {
        self.waiting().dropped
    }

    fn put(&self, hints: u64, into: impl FnOnce(&mut Batch)) {
        let mut waiting = self.waiting();
        if !waiting.open {
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

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
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
        let outbox = Outbox::default();
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
        let outbox = Outbox::default();
        outbox.open();
        outbox.cancel(&jobs(SIGNALS_WAITING));
        outbox.cancel(&jobs(1));
        outbox.cancel(&jobs(1));
        let batch = outbox.take().await;
        assert!(batch.look && batch.cancels.is_empty());
    }

    #[tokio::test]
    async fn without_a_session_hints_are_dropped_and_counted() {
        let outbox = Outbox::default();
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
