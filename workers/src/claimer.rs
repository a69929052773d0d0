//! The claimer of a pool: claims jobs for free slots, and writes completions that change only their own row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use rand::Rng;
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::{TenantId, WorkerId};
use towpath_durable::{CompletionBatch, Engine, JobFence, RecordRequest};
use towpath_queue::{Queue, Refill, TakenJobs, Wake, Wakes};
use towpath_store::Dialect;
use towpath_store::jobs::{self, ClaimOutcome};

use crate::active_jobs::{ActiveJobs, Lease};
use crate::claim_batch::{self, ClaimBatch, ClaimBatchResult, ClaimOrigin, ClaimSource};
use crate::claim_cursor::ClaimCursor;
use crate::claim_state::ClaimState;
use crate::metric::{self, Slots};
use crate::pool_peers::PoolPeers;
use crate::{Assignment, JobPermit, UnrecordedCompletion};

/// Maximum size of a batch; more slots need several batches.
const MAX_BATCH: usize = 256;

/// How long a free slot waits for other slots while no batch is in progress. Slots of long jobs are not waited for.
const LONGEST_WAIT: Duration = Duration::from_millis(5);

/// Pause without the right to claim, unless it comes: no lease, or drained by an operator.
const NO_LEASE_PAUSE: Duration = Duration::from_millis(500);

/// Below this number of slots, batches do not overlap.
const FEW_SLOTS: usize = 8;

pub(crate) struct Claimer {
    pub(crate) engine: Engine,
    pub(crate) pool: String,
    pub(crate) permits: Arc<Semaphore>,
    /// Reserves a slot for a job that runs alone, see `suspects.rs`.
    pub(crate) reserves_slot: Arc<AtomicBool>,
    pub(crate) slots: usize,
    pub(crate) busy_slots: Slots,
    pub(crate) active_jobs: Arc<ActiveJobs>,
    pub(crate) peers: Arc<PoolPeers>,
    pub(crate) assignments: mpsc::Sender<Vec<Assignment>>,
    /// Completions that change only their own row. During a backlog, they share a transaction and commit with the next
    /// claim.
    pub(crate) completions: mpsc::Receiver<UnrecordedCompletion>,
    /// Jobs that this process records in this pool, with the next batch.
    pub(crate) record_requests: mpsc::Receiver<RecordRequest>,
    pub(crate) wakes: Wakes,
    /// With directed dispatch, ids of ready jobs come from it.
    pub(crate) queue: Queue,
    /// The last tenant that a refill of the queue read; locked during one.
    pub(crate) last_refilled: Arc<Mutex<TenantId>>,
    /// Reports when a lease begins, and when an operator ends a drain.
    pub(crate) lease_changes: watch::Receiver<Option<Lease>>,
    pub(crate) poll_interval: Duration,
    pub(crate) draining: CancellationToken,
}

/// Pacing derived from earlier batches.
struct ClaimPacing {
    /// Start of the next claim.
    cursor: ClaimCursor,
    state: ClaimState,
    /// Whether two batches overlapped recently. Jobs that one of them did not find may have been in the other one.
    overlapped: bool,
    /// Whether the next claim scans the database, whatever the queue has.
    scans: bool,
    /// Whether there were jobs or ids since the last claim without.
    found: bool,
}

impl ClaimPacing {
    fn note(&mut self, wake: &Wake) {
        self.scans |= !matches!(wake, Wake::Queued(_));
    }
}

impl Claimer {
    pub(crate) async fn run(mut self) {
        self.claim_loop().await;
        self.busy_slots.close();
        // Further callers record by themselves; dropping the waiting requests tells their senders to do the same.
        self.record_requests.close();
        while self.record_requests.recv().await.is_some() {}
        // Later completions are written separately.
        self.completions.close();
        while let Some(finished) = self.completions.recv().await {
            self.complete_separately(finished);
        }
    }

    async fn claim_loop(&mut self) {
        let mut pace = ClaimPacing {
            cursor: ClaimCursor::new(self.engine.store().dialect()),
            state: ClaimState::Ready,
            overlapped: false,
            scans: true,
            found: false,
        };
        let mut batch = ClaimBatch::default();
        let mut under_way = FuturesUnordered::new();
        loop {
            let overlaps = self.may_overlap(&pace);
            let (most, enough) = self.batch_sizes(overlaps);
            if under_way.is_empty() {
                if !self.wait_for_work(&mut batch, &mut pace).await {
                    if self.draining.is_cancelled() {
                        return;
                    }
                    continue;
                }
                let waits = pace.state.waits_until().is_some();
                let joins = !(waits && pace.state.has_failed());
                let claims = !waits || !batch.record_requests.is_empty();
                self.fill_from_ready(&mut batch, most, claims, joins).await;
                // A batch that only records needs no slot.
                if let ClaimState::Backlog { duration } = pace.state
                    && batch.slots() > 0
                {
                    // Completions that arrive meanwhile are in the batch in any case.
                    let _ = tokio::time::timeout(duration.min(LONGEST_WAIT), self.fill_until(&mut batch, enough)).await;
                }
                let wake = if pace.state.has_failed() {
                    None
                } else {
                    self.wakes.next().now_or_never()
                };
                if let Some(wake) = &wake {
                    pace.note(wake);
                }
                let nothing_new = waits && wake.is_none() && batch.record_requests.is_empty();
                if self.draining.is_cancelled() || nothing_new {
                    self.complete_batch(std::mem::take(&mut batch).completions).await;
                    continue;
                }
                pace.overlapped = false;
            } else {
                let another = under_way.len() == 1 && overlaps && !self.draining.is_cancelled();
                tokio::select! {
                    biased;
                    Some(over) = under_way.next() => {
                        self.finish_batch(over, &mut pace).await;
                        continue;
                    }
                    () = self.fill_until(&mut batch, enough), if another => {}
                }
                self.fill_from_ready(&mut batch, most, true, true).await;
                if self.draining.is_cancelled() {
                    // The batch is written after the one in progress.
                    continue;
                }
                pace.overlapped = true;
            }
            let Some(worker) = self.active_jobs.claiming_worker() else {
                // No claim without a lease or while drained. Dropping the record requests informs their senders.
                self.complete_batch(std::mem::take(&mut batch).completions).await;
                pace.state.wait(self.idle_deadline(NO_LEASE_PAUSE));
                continue;
            };
            pace.state.resume();
            let source = self.next_source(&batch, &mut pace);
            let batch = std::mem::take(&mut batch);
            let claiming = self.active_jobs.begin_claim();
            under_way.push(claim_batch::start(
                &self.engine,
                &self.pool,
                (worker, claiming),
                batch,
                usize::from(self.reserves_slot.load(Ordering::Relaxed)),
                source,
            ));
        }
    }

    /// The queue as long as it has ids; the database at the start, after a wake without ids, for a poll, and once more
    /// behind the last id.
    fn next_source(&self, batch: &ClaimBatch, pace: &mut ClaimPacing) -> ClaimSource {
        // Jobs that a batch records are claimed in its transaction.
        if !pace.scans && batch.record_requests.is_empty() && self.queue.can_take() {
            return ClaimSource::Queue(self.queue.clone());
        }
        pace.scans = false;
        let mut completions = batch.completions.iter();
        // A job that gets a freed lane slot may be older than the last claimed ones.
        let frees_lanes = completions.any(|finished| finished.completion.completion().lane.is_some());
        ClaimSource::Scan(pace.cursor.begin_claim(frees_lanes))
    }

    /// Whether a batch may start while another one is in progress. During a backlog this keeps the database busy while
    /// jobs run, and slots busy while it works. If several workers share a pool, their batches overlap anyway, and
    /// smaller batches only cost more. SQLite has a single writer.
    fn may_overlap(&self, pace: &ClaimPacing) -> bool {
        matches!(pace.state, ClaimState::Backlog { .. })
            && self.slots >= FEW_SLOTS
            && self.engine.store().dialect() == Dialect::Postgres
            && !self.peers.share_pool(&self.pool)
    }

    /// Maximum slots of the next batch, and how many justify one during a backlog, when a batch of one job costs as
    /// much as a batch of many.
    fn batch_sizes(&self, overlaps: bool) -> (usize, usize) {
        let slots = if overlaps { self.slots / 2 } else { self.slots };
        let most = slots.min(MAX_BATCH);
        (most, most / 2)
    }

    /// Waits for work unless the batch has some. Returns whether there is any.
    async fn wait_for_work(&mut self, batch: &mut ClaimBatch, pace: &mut ClaimPacing) -> bool {
        if batch.slots() > 0 {
            return true;
        }
        let until = pace.state.waits_until();
        let (waits, has_failed) = (until.is_some(), pace.state.has_failed());
        let rested = tokio::time::sleep_until(until.unwrap_or_else(tokio::time::Instant::now));
        tokio::select! {
            biased;
            () = self.draining.cancelled() => return false,
            Some(finished) = self.completions.recv() => batch.completions.push(finished),
            // After an error, nothing is tried during the pause. A dropped request is recorded by its sender, who gets
            // the error.
            Some(joining) = self.record_requests.recv() => {
                if waits && has_failed {
                    return false;
                }
                batch.record_requests.push(joining);
            }
            // Wakes are ignored too: they would only repeat the attempt.
            wake = self.wakes.next(), if waits && !has_failed => {
                pace.note(&wake);
                pace.state.resume();
                return false;
            }
            _ = self.lease_changes.changed(), if waits => {
                pace.scans = true;
                pace.state.resume();
                return false;
            }
            () = rested, if waits => {
                pace.scans = true;
                pace.state.resume();
                return false;
            }
            // The permit comes before the claim, so that a claimed job starts at once. Without a permit, no wake is
            // read.
            permit = self.permits.clone().acquire_owned(), if !waits => batch.permits.extend(permit),
        }
        true
    }

    /// Adds whatever is ready: completions, and free slots if the batch claims.
    async fn fill_from_ready(&mut self, batch: &mut ClaimBatch, most: usize, claims: bool, joins: bool) {
        // Ready tasks may be about to finish too, so this yields to the runtime as long as each turn brings another
        // completion.
        loop {
            let before = (batch.slots(), batch.record_requests.len());
            tokio::task::yield_now().await;
            while batch.slots() < most
                && let Ok(finished) = self.completions.try_recv()
            {
                batch.completions.push(finished);
            }
            while joins
                && batch.record_requests.len() < MAX_BATCH
                && let Ok(joining) = self.record_requests.try_recv()
            {
                batch.record_requests.push(joining);
            }
            while claims
                && batch.slots() < most
                && let Ok(permit) = self.permits.clone().try_acquire_owned()
            {
                batch.permits.push(permit);
            }
            if (batch.slots(), batch.record_requests.len()) == before || batch.slots() >= most {
                break;
            }
        }
    }

    /// Waits until the batch has this many slots; the caller sets the time limit.
    async fn fill_until(&mut self, batch: &mut ClaimBatch, enough: usize) {
        while batch.slots() < enough {
            tokio::select! {
                Some(finished) = self.completions.recv() => batch.completions.push(finished),
                permit = self.permits.clone().acquire_owned() => batch.permits.extend(permit),
            }
        }
    }

    /// Updates the pacing after a batch, and starts the claimed jobs.
    async fn finish_batch(&self, over: ClaimBatchResult, pace: &mut ClaimPacing) {
        let ClaimBatchResult {
            mut batch,
            claimed_by: (worker, _claiming),
            limit: wanted,
            origin,
            duration: took,
            outcome,
        } = over;
        metrics::histogram!(metric::CLAIM_SECONDS, "pool" => self.pool.clone()).record(took);
        match outcome {
            Ok(outcome) => {
                for joining in batch.record_requests.drain(..) {
                    let _ = joining.recorded.send(());
                }
                if wanted > 0 {
                    let idle = match origin {
                        ClaimOrigin::Scan(outset) => {
                            let more =
                                pace.cursor.record_claim(&outset, &outcome.claimed, wanted, took) || pace.overlapped;
                            pace.found = !outcome.claimed.is_empty();
                            pace.scans |= more && !pace.found;
                            !more && !pace.found
                        }
                        ClaimOrigin::Queue(taken) => self.record_take(taken, outcome.claimed.len(), pace),
                    };
                    pace.state = if idle {
                        ClaimState::Idle {
                            until: self.idle_deadline(self.poll_interval),
                        }
                    } else if outcome.claimed.len() * 2 > wanted {
                        // Each tenant gets an equal share, so many tenants leave some slots free.
                        ClaimState::Backlog { duration: took }
                    } else {
                        ClaimState::Ready
                    };
                } else {
                    pace.state.recover();
                }
                self.dispatch(batch, outcome, worker).await;
            }
            Err(error) => {
                pace.cursor.record_failure();
                // The ids that it took are gone.
                pace.scans = true;
                let brought = !batch.completions.is_empty() || !batch.record_requests.is_empty();
                // Their senders record by themselves.
                drop(batch.record_requests);
                batch
                    .completions
                    .into_iter()
                    .for_each(|finished| self.complete_separately(finished));
                if brought && !error.is_transient() {
                    // One of the batched writes was refused. The next batch goes without it.
                    return;
                }
                let pause = pace.state.next_pause();
                pace.state = ClaimState::BackingOff {
                    until: self.idle_deadline(pause),
                    pause,
                };
                tracing::warn!(pool = self.pool, error = %error, retry_ms = pause.as_millis(), "cannot claim");
            }
        }
    }

    /// Updates the pacing after a claim by ids. Returns whether there was nothing to do.
    fn record_take(&self, taken: Option<TakenJobs>, claimed: usize, pace: &mut ClaimPacing) -> bool {
        let Some(taken) = taken else {
            // Redis did not answer.
            pace.scans = true;
            return false;
        };
        let stale = taken.ids.len().saturating_sub(claimed);
        metrics::counter!(metric::CLAIMED_BY_ID, "pool" => self.pool.clone()).increment(claimed as u64);
        metrics::counter!(metric::STALE, "pool" => self.pool.clone()).increment(stale as u64);
        if let Some(refill) = taken.refill {
            self.refill(refill);
        }
        pace.found |= !taken.ids.is_empty();
        if !taken.ids.is_empty() {
            return false;
        }
        // Behind the last id the database may have jobs that the queue missed.
        let idle = !pace.found;
        pace.scans |= pace.found;
        pace.found = false;
        idle
    }

    /// Reads ready jobs and puts their ids into the queue, beside the batches.
    fn refill(&self, refill: Refill) {
        let Ok(mut last_tenant) = self.last_refilled.clone().try_lock_owned() else {
            return;
        };
        metrics::counter!(metric::REFILLS, "pool" => self.pool.clone(), "reason" => refill.as_str()).increment(1);
        let (store, queue, pool) = (self.engine.store().clone(), self.queue.clone(), self.pool.clone());
        tokio::spawn(async move {
            let (after, limit) = (*last_tenant, i64::try_from(refill.limit()).unwrap_or(i64::MAX));
            let read = store.read(async |tx| jobs::ready_jobs(tx, &pool, after, limit).await);
            match read.await {
                Ok(ready) => {
                    let tenants = ready.iter().map(|job| job.tenant);
                    *last_tenant = tenants.max_by_key(|&tenant| (tenant <= after, tenant)).unwrap_or(after);
                    queue.refill(&pool, ready, refill);
                }
                Err(error) => tracing::warn!(pool, error = %error, "cannot read ready jobs for the queues in Redis"),
            }
        });
    }

    /// Starts jobs claimed by the lease of `worker`, on freed slots and free ones.
    async fn dispatch(&self, mut batch: ClaimBatch, outcome: ClaimOutcome, worker: WorkerId) {
        metrics::counter!(metric::CLAIMED, "pool" => self.pool.clone()).increment(outcome.claimed.len() as u64);
        let now = self.engine.store().clock().now();
        let wait = metrics::histogram!(metric::WAIT, "pool" => self.pool.clone());
        let vacated: Vec<_> = batch
            .completions
            .iter_mut()
            .map(|finished| finished.permit.release_slot())
            .collect();
        let free = batch.permits.into_iter().map(|permit| self.busy_slots.take(permit));
        let assigned: Vec<_> = outcome
            .claimed
            .into_iter()
            .zip(vacated.into_iter().flatten().chain(free))
            .map(|(job, slot)| {
                wait.record(now.since(job.run_at));
                let fenced = JobFence {
                    id: job.id,
                    fence: job.fence,
                };
                let signal = self.active_jobs.add(fenced, worker);
                let place = JobPermit {
                    active_jobs: self.active_jobs.clone(),
                    job: fenced,
                    pool: self.pool.clone(),
                    slot: Some(slot),
                    _exclusive_permit: None,
                };
                Assignment {
                    job,
                    signal,
                    permit: place,
                }
            })
            .collect();
        // There is capacity: each message has at least one job, and the channel has room for each slot.
        if !assigned.is_empty() && self.assignments.send(assigned).await.is_err() {
            tracing::error!(
                pool = self.pool,
                "the runtime of this pool has ended; its jobs will be returned"
            );
        }
        self.release_completed(batch.completions, &outcome.not_completed);
    }

    /// Writes completions without a claim.
    async fn complete_batch(&self, finished: Vec<UnrecordedCompletion>) {
        if finished.is_empty() {
            return;
        }
        let endings = CompletionBatch::of(finished.iter().map(|finished| finished.completion.completion()));
        match endings.complete(self.engine.store()).await {
            Ok(hit) if hit.len() == endings.jobs.len() => self.release_completed(finished, &[]),
            Ok(hit) => {
                let missed: Vec<JobFence> = endings.jobs.into_iter().filter(|job| !hit.contains(job)).collect();
                self.release_completed(finished, &missed);
            }
            Err(_) => finished
                .into_iter()
                .for_each(|finished| self.complete_separately(finished)),
        }
    }

    /// Releases jobs whose rows are written. The `missed` ones write their own end.
    fn release_completed(&self, finished: Vec<UnrecordedCompletion>, missed: &[JobFence]) {
        for UnrecordedCompletion {
            completion: bare,
            permit: place,
        } in finished
        {
            if missed.contains(&bare.completion().job) {
                let engine = self.engine.clone();
                tokio::spawn(async move {
                    bare.record_missed(&engine).await;
                    drop(place);
                });
            } else {
                bare.finish();
            }
        }
    }

    /// Writes a completion on its own: the batch failed with it, or nothing is claimed any more.
    fn complete_separately(&self, finished: UnrecordedCompletion) {
        let engine = self.engine.clone();
        tokio::spawn(async move {
            let UnrecordedCompletion {
                completion: bare,
                permit: place,
            } = finished;
            bare.complete(&engine).await;
            drop(place);
        });
    }

    fn idle_deadline(&self, span: Duration) -> tokio::time::Instant {
        tokio::time::Instant::now() + span.mul_f64(rand::rng().random_range(0.5..1.5))
    }
}

/// The part of a lease that its holder relies on: a tenth is the margin for differences between clocks and hosts.
pub(crate) fn safe_lease_part(lease: Duration) -> Duration {
    lease - lease / 10
}
