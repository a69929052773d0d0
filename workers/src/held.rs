//! The jobs this process holds, shared by those who claim, renew and perform.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use towpath_domain::JobId;
use towpath_durable::{Fenced, Signal};

#[derive(Default)]
pub(crate) struct Held {
    jobs: Mutex<HashMap<JobId, Entry>>,
    emptied: Notify,
    /// Attempts that ended here, by pool.
    finished: Mutex<BTreeMap<String, u64>>,
}

struct Entry {
    fence: i64,
    signal: watch::Sender<Signal>,
    /// By this process's own monotonic clock, the last moment at which the lease surely still runs.
    until: Option<Instant>,
}

impl Held {
    /// Adds a job just claimed.
    pub(crate) fn add(&self, job: Fenced, until: Option<Instant>) -> watch::Receiver<Signal> {
        let (signal, receiver) = watch::channel(Signal::Run);
        let before = self.jobs().insert(
            job.id,
            Entry {
                fence: job.fence,
                signal,
                until,
            },
        );
        if let Some(before) = before {
            // We claimed it anew while an older attempt of it is still here: that one lost its lease.
            before.signal.send_replace(Signal::Lost);
        }
        receiver
    }

    /// Removes a job, unless it has been claimed anew since.
    pub(crate) fn remove(&self, job: Fenced) {
        let mut jobs = self.jobs();
        if jobs.get(&job.id).is_some_and(|entry| entry.fence == job.fence) {
            jobs.remove(&job.id);
        }
        let none = jobs.is_empty();
        drop(jobs);
        if none {
            self.emptied.notify_waiters();
        }
    }

    /// Counts an attempt that ended.
    pub(crate) fn count(&self, pool: &str) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        match finished.get_mut(pool) {
            Some(jobs) => *jobs += 1,
            None => drop(finished.insert(pool.to_owned(), 1)),
        }
    }

    /// The counts, as the worker's row has them.
    pub(crate) fn finished(&self) -> String {
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::to_string(&*finished).expect("a map of texts and numbers is always JSON")
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs().len()
    }

    /// Waits until no job is held.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            // Registered before looking, so that a removal in between is not missed.
            emptied.as_mut().enable();
            if self.jobs().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    pub(crate) fn list(&self) -> Vec<Fenced> {
        self.jobs()
            .iter()
            .map(|(&id, entry)| Fenced { id, fence: entry.fence })
            .collect()
    }

    pub(crate) fn tell(&self, job: JobId, signal: Signal) {
        if let Some(entry) = self.jobs().get(&job) {
            raise(&entry.signal, signal);
        }
    }

    pub(crate) fn tell_all(&self, signal: Signal) {
        for entry in self.jobs().values() {
            raise(&entry.signal, signal);
        }
    }

    /// The lease of `job` was extended.
    pub(crate) fn renewed(&self, job: Fenced, until: Instant) {
        if let Some(entry) = self.jobs().get_mut(&job.id).filter(|entry| entry.fence == job.fence) {
            entry.until = Some(until);
        }
    }

    /// The lease of `job` is somebody else's. Answers whether that is news: the job may be done, or told already.
    pub(crate) fn lost(&self, job: Fenced) -> bool {
        let jobs = self.jobs();
        let entry = jobs.get(&job.id).filter(|entry| entry.fence == job.fence);
        entry.is_some_and(|entry| raise(&entry.signal, Signal::Lost))
    }

    /// Stops every job whose lease may have ended by `now`. Returns how many.
    pub(crate) fn stop_overdue(&self, now: Instant) -> usize {
        let jobs = self.jobs();
        let overdue = jobs
            .values()
            .filter(|entry| entry.until.is_some_and(|until| until <= now));
        overdue.filter(|entry| raise(&entry.signal, Signal::Lost)).count()
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Entry>> {
        // Nothing here panics while holding it, and the map is whole even if something did.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals only rise: a job that lost its lease is not told to stop gracefully afterwards. Answers whether it rose.
fn raise(to: &watch::Sender<Signal>, signal: Signal) -> bool {
    to.send_if_modified(|now| {
        let rises = signal > *now;
        *now = signal.max(*now);
        rises
    })
}
