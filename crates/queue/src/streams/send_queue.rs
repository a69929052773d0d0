//! Hints waiting to be sent to Redis; bounded, however long an outage lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, ThreadId};

use crate::dispatch::{QueuedJobs, WINDOW};
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
    /// Pools with ids in that batch.
    unconfirmed_pools: Vec<String>,
    dropped: u64,
}

/// Contents of one exchange.
#[derive(Default)]
pub struct Batch {
    pub wakes: BTreeSet<String>,
    /// Ready jobs by pool.
    pub ready: BTreeMap<String, QueuedJobs>,
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
    /// Number of wakes, pools with ready jobs, signals and events.
    pub fn hints(&self) -> u64 {
        let hints = self.wakes.len() + self.ready.len() + self.cancels.len() + self.events.len();
        hints as u64 + u64::from(self.rescan)
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

    /// Adds ready jobs to the queues of their pools. Returns false if there is no session; nothing is counted then. Of
    /// more than the window of a pool, only a wake is kept.
    pub fn push(&self, jobs: &[ReadyJob]) -> bool {
        let mut waiting = self.state.lock();
        if !waiting.has_session {
            return false;
        }
        let was_empty = waiting.batch.is_empty();
        let batch = &mut waiting.batch;
        for of_pool in jobs.chunk_by(|one, next| one.pool == next.pool) {
            let pool = of_pool[0].pool.as_str();
            let queued = batch.ready.entry(pool.to_owned()).or_default();
            let room = WINDOW.saturating_sub(queued.jobs.len());
            queued.jobs.extend(of_pool.iter().take(room).cloned());
            if of_pool.len() > room && !batch.wakes.contains(pool) {
                batch.wakes.insert(pool.to_owned());
            }
        }
        drop(waiting);
        if was_empty {
            self.ready.notify_one();
        }
        true
    }

    /// Adds the result of a scan to the queues of a pool. Dropped without a session.
    pub fn refill(&self, pool: &str, jobs: Vec<ReadyJob>, complete: bool) {
        self.put(0, |batch| {
            let queued = batch.ready.entry(pool.to_owned()).or_default();
            if queued.jobs.len() < WINDOW {
                queued.jobs.extend(jobs);
                queued.scanned = Some(complete);
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
        self.state.lock().has_session = true;
    }

    /// Ends the session. Unconfirmed hints are dropped, and so are new ones until the next session, because polling
    /// finds their state. Returns the pools whose listeners in this process were not woken yet.
    pub fn close(&self) -> Vec<String> {
        let mut waiting = self.state.lock();
        waiting.has_session = false;
        let batch = std::mem::take(&mut waiting.batch);
        let lost = batch.hints() + std::mem::take(&mut waiting.unconfirmed);
        waiting.drop_hints(lost);
        let mut pools = std::mem::take(&mut waiting.unconfirmed_pools);
        pools.extend(batch.ready.into_keys());
        pools
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
        let mut waiting = self.state.lock();
        if waiting.batch.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut waiting.batch);
        waiting.unconfirmed = batch.hints();
        waiting.unconfirmed_pools = batch.ready.keys().cloned().collect();
        Some(batch)
    }

    /// Confirms that Redis has the taken batch.
    pub fn confirm(&self) {
        let mut waiting = self.state.lock();
        waiting.unconfirmed = 0;
        waiting.unconfirmed_pools.clear();
    }

    pub fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }

    fn put(&self, hints: u64, into: impl FnOnce(&mut Batch)) {
        let mut waiting = self.state.lock();
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
    async fn ids_that_wait_are_bounded_and_the_rest_is_a_wake() {
        let outbox = SendQueue::default();
        let ready = |pool: &str| ReadyJob {
            pool: pool.to_owned(),
            tenant: towpath_domain::TenantId::nil(),
            priority: 0,
            run_at: towpath_domain::Timestamp::from_micros(0),
            id: JobId::new(),
        };
        assert!(!outbox.push(&[ready("runs")]), "there is no session");
        outbox.open();
        let jobs: Vec<_> = (0..WINDOW).map(|_| ready("runs")).collect();
        assert!(outbox.push(&jobs));
        assert!(outbox.push(&[ready("runs"), ready("builds")]));
        outbox.refill("runs", vec![ready("runs")], true);
        let batch = outbox.take().await;
        let counts: Vec<_> = batch
            .ready
            .iter()
            .map(|(pool, queued)| (pool.as_str(), queued.jobs.len()))
            .collect();
        assert_eq!(counts, [("builds", 1), ("runs", WINDOW)]);
        assert_eq!(batch.wakes.into_iter().collect::<Vec<_>>(), ["runs"]);
        assert_eq!(
            outbox.close(),
            ["builds", "runs"],
            "their listeners here are not woken yet"
        );
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
