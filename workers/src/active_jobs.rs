//! The jobs of this process and its lease, shared by the claimers, the lease renewer and the runtime.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use towpath_domain::{JobId, WorkerId};
use towpath_durable::{JobFence, Signal};

#[derive(Default)]
pub(crate) struct ActiveJobs {
    jobs: Mutex<HashMap<JobId, Entry>>,
    drained: Notify,
    finished_by_pool: Mutex<BTreeMap<String, u64>>,
    lease: watch::Sender<Option<Lease>>,
    /// Whether an operator asked this worker to claim nothing.
    drain_requested: watch::Sender<bool>,
    /// Claims in progress, by their start.
    open_claims: Mutex<BTreeSet<(Instant, u64)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Id of the lease holder; it changes after each lost lease.
    pub(crate) worker: WorkerId,
    /// The last moment, by this process's monotonic clock, at which the lease is certainly valid. `None` if leases do
    /// not expire.
    valid_until: Option<Instant>,
}

struct Entry {
    fence: i64,
    signal: watch::Sender<Signal>,
    worker: WorkerId,
}

/// A claim in progress: its jobs may be in the database and not yet here.
pub(crate) struct ClaimGuard {
    active_jobs: Arc<ActiveJobs>,
    key: (Instant, u64),
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        self.active_jobs.open_claims.lock().remove(&self.key);
    }
}

impl ActiveJobs {
    /// Starts a lease, and allows claims.
    pub(crate) fn begin_lease(&self, worker: WorkerId, until: Option<Instant>) {
        self.lease.send_replace(Some(Lease {
            worker,
            valid_until: until,
        }));
    }

    /// Extends the lease, unless it has ended.
    pub(crate) fn extend_lease(&self, worker: WorkerId, until: Instant) {
        self.lease.send_if_modified(|lease| {
            if let Some(lease) = lease.as_mut().filter(|lease| lease.worker == worker) {
                lease.valid_until = Some(until);
            }
            // No receiver waits for this change.
            false
        });
    }

    /// Ends the lease of `worker` and stops its jobs. Returns their number.
    pub(crate) fn end_lease(&self, worker: WorkerId) -> usize {
        self.lease.send_if_modified(|lease| {
            let ours = lease.is_some_and(|lease| lease.worker == worker);
            if ours {
                *lease = None;
            }
            ours
        });
        let jobs = self.jobs.lock();
        let lost = jobs.values().filter(|entry| entry.worker == worker);
        lost.filter(|entry| raise_signal(&entry.signal, Signal::Lost)).count()
    }

    /// Ends the lease if it may have expired by `now`. Returns the number of stopped jobs.
    pub(crate) fn end_expired_lease(&self, now: Instant) -> Option<usize> {
        let lease = (*self.lease.borrow()).filter(|lease| lease.valid_until.is_some_and(|until| until <= now))?;
        Some(self.end_lease(lease.worker))
    }

    /// The current lease holder.
    pub(crate) fn lease_owner(&self) -> Option<WorkerId> {
        self.lease.borrow().map(|lease| lease.worker)
    }

    /// The lease holder, if claims are allowed now.
    pub(crate) fn claiming_worker(&self) -> Option<WorkerId> {
        let drained = *self.drain_requested.borrow();
        (!drained).then(|| self.valid_lease_owner()).flatten()
    }

    /// The lease holder, if its lease is certainly valid now.
    fn valid_lease_owner(&self) -> Option<WorkerId> {
        let lease = (*self.lease.borrow())?;
        let runs = lease.valid_until.is_none_or(|until| Instant::now() < until);
        runs.then_some(lease.worker)
    }

    /// Stops or resumes claims. Returns whether this is a change.
    pub(crate) fn request_drain(&self, drain: bool) -> bool {
        let changed = self.drain_requested.send_if_modified(|now| {
            let changes = *now != drain;
            *now = drain;
            changes
        });
        if changed && !drain {
            // Claimers that pause without a right to claim wait for this channel.
            self.lease.send_modify(|_| ());
        }
        changed
    }

    pub(crate) fn subscribe_drain_request(&self) -> watch::Receiver<bool> {
        self.drain_requested.subscribe()
    }

    /// Reports when a lease begins or ends, and when claims are resumed.
    pub(crate) fn subscribe_lease(&self) -> watch::Receiver<Option<Lease>> {
        self.lease.subscribe()
    }

    pub(crate) fn begin_claim(self: &Arc<Self>) -> ClaimGuard {
        let mut claims = self.open_claims.lock();
        let began = Instant::now();
        let next = claims.last().map_or(0, |(_, nth)| nth.wrapping_add(1));
        claims.insert((began, next));
        drop(claims);
        ClaimGuard {
            active_jobs: Arc::clone(self),
            key: (began, next),
        }
    }

    /// Whether every claim in progress began after `moment`: the jobs of earlier ones are here.
    pub(crate) fn claims_began_after(&self, moment: Instant) -> bool {
        self.open_claims.lock().first().is_none_or(|(began, _)| *began > moment)
    }

    /// Adds a job just claimed by the lease of `worker`.
    pub(crate) fn add(&self, job: JobFence, worker: WorkerId) -> watch::Receiver<Signal> {
        let (signal, receiver) = watch::channel(Signal::Run);
        let mut jobs = self.jobs.lock();
        // Checked under the lock of the jobs, as in `end`: either `end` finds the job, or this finds the end of the
        // lease.
        if self.valid_lease_owner() != Some(worker) {
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
            // This process claimed the job again while an older attempt is still here: that one lost its lease.
            before.signal.send_replace(Signal::Lost);
        }
        receiver
    }

    /// Removes a job, unless it was claimed again.
    pub(crate) fn remove(&self, job: JobFence) {
        let mut jobs = self.jobs.lock();
        if jobs.get(&job.id).is_some_and(|entry| entry.fence == job.fence) {
            jobs.remove(&job.id);
        }
        let none = jobs.is_empty();
        drop(jobs);
        if none {
            self.drained.notify_waiters();
        }
    }

    /// Counts an ended attempt.
    pub(crate) fn count_finished(&self, pool: &str) {
        let mut finished = self.finished_by_pool.lock();
        match finished.get_mut(pool) {
            Some(jobs) => *jobs += 1,
            None => drop(finished.insert(pool.to_owned(), 1)),
        }
    }

    /// The counts in the format of the worker's row.
    pub(crate) fn finished_counts(&self) -> String {
        let finished = self.finished_by_pool.lock();
        serde_json::to_string(&*finished).expect("a map of texts and numbers is always JSON")
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Waits until no job is active.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let emptied = self.drained.notified();
            tokio::pin!(emptied);
            // Registered before the check, so that a removal in between is not missed.
            emptied.as_mut().enable();
            if self.jobs.lock().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    pub(crate) fn list(&self, worker: WorkerId) -> Vec<JobFence> {
        self.jobs
            .lock()
            .iter()
            .filter(|(_, entry)| entry.worker == worker)
            .map(|(&id, entry)| JobFence { id, fence: entry.fence })
            .collect()
    }

    pub(crate) fn contains(&self, job: JobFence) -> bool {
        self.jobs
            .lock()
            .get(&job.id)
            .is_some_and(|entry| entry.fence == job.fence)
    }

    pub(crate) fn send_signal(&self, job: JobId, signal: Signal) {
        if let Some(entry) = self.jobs.lock().get(&job) {
            raise_signal(&entry.signal, signal);
        }
    }

    pub(crate) fn signal_all(&self, signal: Signal) {
        for entry in self.jobs.lock().values() {
            raise_signal(&entry.signal, signal);
        }
    }

    /// Stops a job that another worker holds. Returns false if it has ended or was stopped already.
    pub(crate) fn mark_lost(&self, job: JobFence) -> bool {
        let jobs = self.jobs.lock();
        let entry = jobs.get(&job.id).filter(|entry| entry.fence == job.fence);
        entry.is_some_and(|entry| raise_signal(&entry.signal, Signal::Lost))
    }
}

/// Signals only rise: a job with a lost lease is not asked to stop gracefully afterwards. Returns whether the signal
/// rose.
fn raise_signal(to: &watch::Sender<Signal>, signal: Signal) -> bool {
    to.send_if_modified(|now| {
        let rises = signal > *now;
        *now = signal.max(*now);
        rises
    })
}
