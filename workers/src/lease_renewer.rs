//! Renews the lease of this process, in its own OS thread with its own connection.
//!
//! So no blocking handler, busy pool or long transaction can delay a renewal. If renewals fail, the renewer stops the
//! handlers by its own monotonic clock before the database lets other workers take the jobs. After a lost lease, the
//! process claims nothing until it has a new one under a new id.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::WorkerId;
use towpath_durable::{Engine, JobFence, Signal};
use towpath_queue::{Cancels, Signal as Hint};
use towpath_store::workers::{self, Worker};
use towpath_store::{self as store, Dialect, Store, jobs, leases};

use crate::StartError;
use crate::active_jobs::ActiveJobs;
use crate::claimer::safe_lease_part;
use crate::metric;
use crate::pool_peers::PoolPeers;

pub(crate) struct LeaseRenewer {
    stop: CancellationToken,
    stopped: oneshot::Receiver<()>,
    active_jobs: Arc<ActiveJobs>,
}

struct RenewalLoop {
    store: Store,
    lease: Duration,
    active_jobs: Arc<ActiveJobs>,
    peers: Arc<PoolPeers>,
    /// Pools with waiting jobs that are claimed alone.
    suspect_pools: watch::Sender<Vec<String>>,
    draining: CancellationToken,
    stop: CancellationToken,
    state: RefCell<State>,
}

struct State {
    /// The worker row, with its current or next id.
    row: Worker,
    /// Whether the start of a lease under that id was attempted with an unknown result.
    begin_attempted: bool,
    /// Previous ids whose leases may still be in the database.
    past_ids: Vec<WorkerId>,
    /// Jobs that look like strays, and since when.
    stray_candidates: HashMap<JobFence, Instant>,
    /// When the database last reported the jobs of this worker.
    jobs_checked_at: Instant,
}

/// Maximum number of previous ids. Leases of older ones expire.
const PAST_IDS: usize = 16;

impl LeaseRenewer {
    pub(crate) fn start(
        engine: &Engine,
        held: Arc<ActiveJobs>,
        peers: Arc<PoolPeers>,
        row: Worker,
        suspects: watch::Sender<Vec<String>>,
        draining: CancellationToken,
        cancels: Cancels,
    ) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let (done, stopped) = oneshot::channel();
        let main_store = engine.store().clone();
        let lease = engine.settings().lease;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        // The connection belongs to the thread's runtime.
        let store = {
            let _inside = runtime.enter();
            main_store.with_own_pool(1).map_err(StartError::Store)?
        };
        let work = RenewalLoop {
            store,
            lease,
            active_jobs: held.clone(),
            peers,
            suspect_pools: suspects,
            draining,
            stop: stop.clone(),
            state: RefCell::new(State {
                row,
                begin_attempted: false,
                past_ids: Vec::new(),
                stray_candidates: HashMap::new(),
                jobs_checked_at: Instant::now(),
            }),
        };
        std::thread::Builder::new()
            .name("leases".to_owned())
            .spawn(move || {
                runtime.block_on(work.run(cancels));
                let _ = done.send(());
            })
            .map_err(StartError::Thread)?;
        Ok(Self {
            stop,
            stopped,
            active_jobs: held,
        })
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.stopped).await;
    }
}

impl Drop for LeaseRenewer {
    /// Workers that are dropped without a drain return what they can, and do not keep a lease alive.
    fn drop(&mut self) {
        self.stop.cancel();
        self.active_jobs.signal_all(Signal::HandBack);
    }
}

impl RenewalLoop {
    async fn run(self, cancels: Cancels) {
        let mut cancels = CancelListener { cancels, lagged: false };
        let third = self.lease / 3;
        let mut next = Instant::now();
        loop {
            // Checked often, so that handlers are stopped close to their time limit.
            let glance = (Instant::now() + third / 10).min(next);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = cancels.forward_next(&self.active_jobs) => {}
                () = tokio::time::sleep_until(glance.into()) => {}
            }
            self.stop_expired();
            // Signals may have been missed; the rows have them.
            if std::mem::take(&mut cancels.lagged) {
                next = Instant::now();
            }
            if Instant::now() >= next {
                let began = Instant::now();
                let renewed = self
                    .run_checking_lease(third, "renew the lease", &mut cancels, self.renew_lease())
                    .await;
                metrics::histogram!(metric::RENEWAL_SECONDS).record(began.elapsed());
                let outcome = if renewed { "ok" } else { "failed" };
                metrics::counter!(metric::RENEWALS, "outcome" => outcome).increment(1);
                if renewed {
                    // This statement may wait for locks of others, so it has its own limit and does not delay the next
                    // renewal.
                    self.run_checking_lease(third, "check the jobs", &mut cancels, self.report_alive())
                        .await;
                }
                // A failed renewal is retried soon, because two thirds of the lease are left. The same applies if the
                // lease ended right after it.
                next = if renewed && self.active_jobs.lease_owner().is_some() {
                    began + third
                } else {
                    Instant::now() + third / 5
                };
            }
        }
    }

    /// Runs `work` with a time limit, and stops handlers meanwhile if necessary. Returns whether it succeeded.
    async fn run_checking_lease(
        &self,
        limit: Duration,
        what: &'static str,
        cancels: &mut CancelListener,
        work: impl Future<Output = store::Result<()>>,
    ) -> bool {
        tokio::pin!(work);
        let give_up = tokio::time::sleep(limit);
        tokio::pin!(give_up);
        loop {
            tokio::select! {
                done = &mut work => return match done {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::warn!(error = %error, "cannot {what}");
                        false
                    }
                },
                () = &mut give_up => {
                    tracing::warn!(seconds = limit.as_secs_f64(), "it takes too long to {what}; retrying");
                    return false;
                }
                // Many signals must not delay the check of the time.
                () = cancels.forward_next(&self.active_jobs) => self.stop_expired(),
                () = tokio::time::sleep(limit / 20) => self.stop_expired(),
            }
        }
    }

    /// Stops all handlers when the lease may have expired by this process's clock: another worker may take the jobs by
    /// the time the expiry is noticed. Also when the database could not report lost jobs for too long: their handlers
    /// would run in parallel with those of the new holders.
    fn stop_expired(&self) {
        let now = Instant::now();
        let Some(worker) = self.active_jobs.lease_owner() else {
            return;
        };
        let (stopped, why) = if let Some(stopped) = self.active_jobs.end_expired_lease(now) {
            (stopped, "the lease could not be renewed in time")
        } else if self
            .lease_deadline(self.state.borrow().jobs_checked_at)
            .is_some_and(|until| until <= now)
        {
            (
                self.active_jobs.end_lease(worker),
                "the jobs of this worker could not be checked in time",
            )
        } else {
            return;
        };
        metrics::counter!(metric::GIVEN_UP).increment(stopped as u64);
        tracing::error!(worker.id = %worker, jobs = stopped, "{why}; handlers are stopped");
        self.replace_worker_id(worker);
    }

    /// After a lost lease the worker gets a new id. Jobs claimed under the old one are taken back by other processes.
    fn replace_worker_id(&self, worker: WorkerId) {
        let mut state = self.state.borrow_mut();
        state.past_ids.push(worker);
        if state.past_ids.len() > PAST_IDS {
            state.past_ids.remove(0);
        }
        state.row.id = WorkerId::new();
        state.begin_attempted = false;
        state.stray_candidates.clear();
    }

    /// Extends the lease: one row, which no job's transaction locks. Begins a lease if there is none.
    async fn renew_lease(&self) -> store::Result<()> {
        let Some(worker) = self.active_jobs.lease_owner() else {
            return self.begin_lease().await;
        };
        // Counted from before the statement, so that this clock never assumes a longer lease than the database.
        let started = Instant::now();
        let renew = self
            .store
            .write_one(async |tx| leases::renew(tx, worker, self.lease).await);
        if renew.await? {
            if let Some(until) = self.lease_deadline(started) {
                self.active_jobs.extend_lease(worker, until);
            }
            return Ok(());
        }
        // A process that was suspended for a while looks dead by the database's clock.
        let lost = self.active_jobs.end_lease(worker);
        metrics::counter!(metric::LOST).increment(lost as u64);
        tracing::error!(worker.id = %worker, jobs = lost, "the lease was lost to another process; handlers stop");
        self.replace_worker_id(worker);
        self.begin_lease().await
    }

    async fn begin_lease(&self) -> store::Result<()> {
        let (tried, worker) = {
            let state = self.state.borrow();
            (state.begin_attempted, state.row.id)
        };
        // The lease may have begun and ended meanwhile, and an id without a row never gets one again.
        if tried {
            self.replace_worker_id(worker);
        }
        self.state.borrow_mut().begin_attempted = true;
        let started = Instant::now();
        let (row, lost) = {
            let state = self.state.borrow();
            (state.row.clone(), state.past_ids.clone())
        };
        let begun = self.store.write(async |tx| {
            let mut row = row.clone();
            // The replaced rows know best: an operator may have resumed this worker since its last heartbeat.
            let mut requested = None;
            for worker in &lost {
                // Nothing here uses it any more, so others need not wait for its expiry.
                leases::end(tx, *worker).await?;
                if let Some(draining) = workers::replace(tx, *worker).await? {
                    requested = Some(requested.unwrap_or(false) || draining);
                }
            }
            row.draining = self.draining.is_cancelled() || requested.unwrap_or(row.draining);
            let draining = workers::heartbeat(tx, &row).await?;
            leases::begin(tx, row.id, self.lease).await?;
            Ok(draining)
        });
        self.apply_drain_request(begun.await?);
        let mut state = self.state.borrow_mut();
        state.past_ids.clear();
        state.begin_attempted = false;
        state.jobs_checked_at = started;
        drop(state);
        self.active_jobs.begin_lease(row.id, self.lease_deadline(started));
        Ok(())
    }

    /// The end of a lease that was begun or renewed at `started`. `None` on SQLite, which has a single process and no
    /// expiring leases.
    fn lease_deadline(&self, started: Instant) -> Option<Instant> {
        (self.store.dialect() == Dialect::Postgres).then(|| started + safe_lease_part(self.lease))
    }

    /// Writes the heartbeat. Reads the other workers, whether to drain, which jobs were asked to stop or lost, and
    /// which jobs have no holder here.
    async fn report_alive(&self) -> store::Result<()> {
        let Some(worker) = self.active_jobs.lease_owner() else {
            return Ok(());
        };
        self.check_active_jobs(worker).await?;
        let row = Worker {
            finished: self.active_jobs.finished_counts(),
            ..self.state.borrow().row.clone()
        };
        let requested = self.store.write_one(async |tx| workers::heartbeat(tx, &row).await);
        self.apply_drain_request(requested.await?);
        self.refresh_peers(worker).await?;
        let at_work = self.store.read(async |tx| jobs::running_jobs(tx, worker).await).await?;
        let ours = at_work.iter().map(|row| JobFence {
            id: row.id,
            fence: row.fence,
        });
        for job in self.find_strays(&ours.collect()) {
            match towpath_durable::give_up(&self.store, job).await {
                Ok(true) => {
                    metrics::counter!(metric::STRAYS).increment(1);
                    tracing::warn!(job.id = %job.id, "a job of this worker had no handler; returned it");
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(job.id = %job.id, error = %error, "cannot return a job without a handler yet");
                }
            }
        }
        Ok(())
    }

    /// Reads the other workers, and the pools with jobs that are claimed alone.
    async fn refresh_peers(&self, worker: WorkerId) -> store::Result<()> {
        // Other workers may have the same heartbeat interval as this one.
        let window = workers::HEARTBEAT_WINDOW.max(self.lease);
        let shared = self.store.dialect() == Dialect::Postgres;
        let looked = self.store.read(async |tx| {
            let suspects = jobs::suspects(tx).await?;
            let alive = if shared {
                workers::alive(tx, window).await?
            } else {
                Vec::new()
            };
            Ok((suspects, alive))
        });
        let (suspects, alive) = looked.await?;
        if shared {
            self.peers.update(worker, &alive);
        }
        if !suspects.is_empty() {
            self.suspect_pools.send_replace(suspects);
        }
        Ok(())
    }

    /// Checks which active jobs still belong to this worker, and signals those that were asked to stop or are lost. It
    /// is a separate statement, so that nothing else can delay it.
    async fn check_active_jobs(&self, worker: WorkerId) -> store::Result<()> {
        let held = self.active_jobs.list(worker);
        let asked = Instant::now();
        let still_held = self
            .store
            .read(async |tx| jobs::jobs_still_held(tx, worker, &held).await)
            .await?;
        self.state.borrow_mut().jobs_checked_at = asked;
        let mut ours = HashSet::with_capacity(still_held.len());
        for row in still_held {
            // A stop signal may have been lost, or sent before the job was known here.
            if row.cancel {
                self.active_jobs.send_signal(row.id, Signal::Cancel);
            }
            ours.insert(JobFence {
                id: row.id,
                fence: row.fence,
            });
        }
        for job in held.into_iter().filter(|job| !ours.contains(job)) {
            if self.active_jobs.mark_lost(job) {
                metrics::counter!(metric::LOST).increment(1);
            }
        }
        Ok(())
    }

    /// Jobs that belong to this worker in the database but have no handler: the end of the attempt could not be
    /// written, or the response of the claim was lost. The lease is renewed, so no other worker would take them. To
    /// exclude jobs in transit, a stray must be found twice, after the end of every claim that was in progress the
    /// first time.
    fn find_strays(&self, ours: &HashSet<JobFence>) -> Vec<JobFence> {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        state
            .stray_candidates
            .retain(|job, _| ours.contains(job) && !self.active_jobs.contains(*job));
        let mut found = Vec::new();
        for job in ours.iter().filter(|job| !self.active_jobs.contains(**job)) {
            let first = *state.stray_candidates.entry(*job).or_insert(now);
            if first < now && self.active_jobs.claims_began_after(first) {
                found.push(*job);
            }
        }
        found
    }

    /// Stops or resumes claims as the row of this worker says.
    fn apply_drain_request(&self, drain: bool) {
        let mut state = self.state.borrow_mut();
        // For a new row: the current one may be pruned while this process is suspended.
        state.row.draining = drain;
        if self.active_jobs.request_drain(drain) {
            let text = if drain {
                "drained on request; no more claims"
            } else {
                "resumed on request; claiming again"
            };
            tracing::info!(worker.id = %state.row.id, "{text}");
        }
    }
}

struct CancelListener {
    cancels: Cancels,
    /// Some signals may have been missed.
    lagged: bool,
}

impl CancelListener {
    /// Forwards the next signal.
    async fn forward_next(&mut self, held: &ActiveJobs) {
        match self.cancels.next().await {
            Hint::Job(job) => held.send_signal(job, Signal::Cancel),
            Hint::Lagged => self.lagged = true,
        }
    }
}
