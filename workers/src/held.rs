//! The jobs this process holds and the lease it holds them by, shared by those who claim, renew and perform.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use towpath_domain::{JobId, WorkerId};
use towpath_durable::{Fenced, Signal};

#[derive(Default)]
pub(crate) struct Held {
    jobs: Mutex<HashMap<JobId, Entry>>,
    emptied: Notify,
    /// Attempts that ended here, by pool.
    finished: Mutex<BTreeMap<String, u64>>,
    lease: watch::Sender<Option<Lease>>,
    /// Claims under way, by when they began.
    claims: Mutex<BTreeSet<(Instant, u64)>>,
}

/// The lease of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Whose it is. Another one after each lease that was lost.
    pub(crate) worker: WorkerId,
    /// By this process's own monotonic clock, the last moment at which the lease surely still runs. `None` where no lease is
    /// ended by time.
    until: Option<Instant>,
}

struct Entry {
    fence: i64,
    signal: watch::Sender<Signal>,
    worker: WorkerId,
}

/// A claim under way: what it brings may be in the database and not here yet.
pub(crate) struct Claiming {
    held: Arc<Held>,
    key: (Instant, u64),
}

impl Drop for Claiming {
    fn drop(&mut self) {
        self.held.claims().remove(&self.key);
    }
}

impl Held {
    /// A lease has begun: claims may, too.
    pub(crate) fn begin(&self, worker: WorkerId, until: Option<Instant>) {
        self.lease.send_replace(Some(Lease { worker, until }));
    }

    /// The lease was extended, unless it is over by now.
    pub(crate) fn renewed(&self, worker: WorkerId, until: Instant) {
        self.lease.send_if_modified(|lease| {
            if let Some(lease) = lease.as_mut().filter(|lease| lease.worker == worker) {
                lease.until = Some(until);
            }
            // Nobody waits for that.
            false
        });
    }

    /// The lease of `worker` is over: stops its jobs. Returns how many.
    pub(crate) fn end(&self, worker: WorkerId) -> usize {
        self.lease.send_if_modified(|lease| {
            let ours = lease.is_some_and(|lease| lease.worker == worker);
            if ours {
                *lease = None;
            }
            ours
        });
        let jobs = self.jobs();
        let lost = jobs.values().filter(|entry| entry.worker == worker);
        lost.filter(|entry| raise(&entry.signal, Signal::Lost)).count()
    }

    /// Ends the lease if it may be over by `now`. Returns how many jobs were stopped.
    pub(crate) fn end_overdue(&self, now: Instant) -> Option<usize> {
        let lease = (*self.lease.borrow()).filter(|lease| lease.until.is_some_and(|until| until <= now))?;
        Some(self.end(lease.worker))
    }

    /// Whose lease there is.
    pub(crate) fn current(&self) -> Option<WorkerId> {
        self.lease.borrow().map(|lease| lease.worker)
    }

    /// By whose lease jobs can be claimed now.
    pub(crate) fn worker(&self) -> Option<WorkerId> {
        let lease = (*self.lease.borrow())?;
        let runs = lease.until.is_none_or(|until| Instant::now() < until);
        runs.then_some(lease.worker)
    }

    /// Told when a lease begins or ends.
    pub(crate) fn leases(&self) -> watch::Receiver<Option<Lease>> {
        self.lease.subscribe()
    }

    /// A claim begins.
    pub(crate) fn claiming(self: &Arc<Self>) -> Claiming {
        let mut claims = self.claims();
        let began = Instant::now();
        let next = claims.last().map_or(0, |(_, nth)| nth.wrapping_add(1));
        claims.insert((began, next));
        drop(claims);
        Claiming {
            held: Arc::clone(self),
            key: (began, next),
        }
    }

    /// Whether every claim under way began after `moment`: what others brought is here.
    pub(crate) fn claimed_since(&self, moment: Instant) -> bool {
        self.claims().first().is_none_or(|(began, _)| *began > moment)
    }

    fn claims(&self) -> MutexGuard<'_, BTreeSet<(Instant, u64)>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job just claimed by the lease of `worker`.
    pub(crate) fn add(&self, job: Fenced, worker: WorkerId) -> watch::Receiver<Signal> {
        let (signal, receiver) = watch::channel(Signal::Run);
        let mut jobs = self.jobs();
        // Looked at under the lock of the jobs, as `end` does: either that one finds the job, or this one the end.
        if self.worker() != Some(worker) {
            signal.send_replace(Signal::Lost);
        }
        let before = jobs.insert(
            job.id,
            Entry {
                fence: job.fence,
                signal,
                worker,
            },
        );
        drop(jobs);
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

    /// The jobs held by the lease of `worker`.
    pub(crate) fn list(&self, worker: WorkerId) -> Vec<Fenced> {
        self.jobs()
            .iter()
            .filter(|(_, entry)| entry.worker == worker)
            .map(|(&id, entry)| Fenced { id, fence: entry.fence })
            .collect()
    }

    /// Whether this job is held.
    pub(crate) fn has(&self, job: Fenced) -> bool {
        self.jobs().get(&job.id).is_some_and(|entry| entry.fence == job.fence)
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

    /// The job is somebody else's. Answers whether that is news: the job may be done, or told already.
    pub(crate) fn lost(&self, job: Fenced) -> bool {
        let jobs = self.jobs();
        let entry = jobs.get(&job.id).filter(|entry| entry.fence == job.fence);
        entry.is_some_and(|entry| raise(&entry.signal, Signal::Lost))
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
