//! Claims jobs of one pool, as many as there are free slots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use towpath_domain::{TenantId, WorkerId};
use towpath_durable::{Claimed, Engine, Fenced};
use towpath_queue::Wakes;
use towpath_store::{self as store, Dialect, jobs};

use crate::held::Held;
use crate::metric::{self, Slots};
use crate::{Assignment, Place};

/// The most one claim takes; more slots are filled by several claims.
const LARGEST: usize = 256;

/// The longest a free slot waits for company.
const LONGEST_WAIT: Duration = Duration::from_millis(5);

pub(crate) struct Claimer {
    pub(crate) engine: Engine,
    pub(crate) pool: String,
    pub(crate) worker: WorkerId,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) slots: usize,
    pub(crate) taken: Slots,
    pub(crate) held: Arc<Held>,
    pub(crate) assignments: mpsc::Sender<Vec<Assignment>>,
    pub(crate) wakes: Wakes,
    pub(crate) fallback: Duration,
    pub(crate) draining: CancellationToken,
}

impl Claimer {
    pub(crate) async fn run(mut self) {
        self.work().await;
        self.taken.close();
    }

    async fn work(&mut self) {
        // Tenants take turns; where the last claim ended, the next begins.
        let mut after = TenantId::nil();
        let mut trouble = Duration::ZERO;
        // How long the last claim took, if it left a backlog behind.
        let mut backlog = None;
        loop {
            // Permits before the claim: a job that is claimed starts at once. Without one no wake is read either.
            let Some(permits) = self.free_slots(backlog).await else {
                return;
            };
            let wanted = permits.len();
            let started = Instant::now();
            let claim = self.claim(wanted, after).await;
            metrics::histogram!(metric::CLAIM_SECONDS, "pool" => self.pool.clone()).record(started.elapsed());
            match claim {
                Ok(claimed) if claimed.is_empty() => {
                    drop(permits);
                    trouble = Duration::ZERO;
                    backlog = None;
                    self.idle(Duration::ZERO).await;
                }
                Ok(claimed) => {
                    trouble = Duration::ZERO;
                    backlog = (claimed.len() == wanted).then(|| started.elapsed());
                    // The tenant served last, in the order of their turns.
                    after = last_in_turn(&claimed, after);
                    self.assign(claimed, permits).await;
                }
                Err(error) => {
                    drop(permits);
                    trouble = (trouble * 2).clamp(Duration::from_millis(100), Duration::from_secs(2));
                    tracing::warn!(pool = self.pool, error = %error, retry_ms = trouble.as_millis(), "cannot claim");
                    self.idle(trouble).await;
                }
            }
            if self.draining.is_cancelled() {
                return;
            }
        }
    }

    /// Waits for one free slot and takes all that are free; `None` when the worker leaves.
    ///
    /// While there is a backlog, a claim of one job costs as much as a claim of many. So it waits for half of
    /// the slots then, but no longer than the last claim took: slots that long jobs hold are not waited for.
    async fn free_slots(&self, backlog: Option<Duration>) -> Option<Vec<OwnedSemaphorePermit>> {
        let first = tokio::select! {
            biased;
            () = self.draining.cancelled() => return None,
            first = self.permits.clone().acquire_owned() => first.ok()?,
        };
        // Jobs that were completed in one statement give their slots back one after another: let them.
        tokio::task::yield_now().await;
        let half = u32::try_from(self.slots / 2).unwrap_or(u32::MAX);
        if let Some(patience) = backlog.filter(|_| half > 1) {
            let more = self.permits.clone().acquire_many_owned(half - 1);
            // Given back at once: what is free is taken below.
            drop(tokio::time::timeout(patience.min(LONGEST_WAIT), more).await);
        }
        let mut permits = vec![first];
        while permits.len() < LARGEST.min(self.slots) {
            match self.permits.clone().try_acquire_owned() {
                Ok(permit) => permits.push(permit),
                Err(_) => break,
            }
        }
        Some(permits)
    }

    async fn claim(&self, wanted: usize, after: TenantId) -> store::Result<Vec<(Claimed, Option<Instant>)>> {
        let lease = self.engine.settings().lease;
        let store = self.engine.store();
        // The lease is counted from before the statement: ours never seems longer than the database's.
        let started = Instant::now();
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        let claimed = store
            .write_one(async |tx| jobs::claim(tx, &self.pool, self.worker, lease, wanted, after).await)
            .await?;
        // On SQLite this process is all there is, and its leases are not rescued by time.
        let until = (store.dialect() == Dialect::Postgres).then(|| started + safe_part(lease));
        Ok(claimed.into_iter().map(|job| (job, until)).collect())
    }

    async fn assign(&self, claimed: Vec<(Claimed, Option<Instant>)>, permits: Vec<OwnedSemaphorePermit>) {
        metrics::counter!(metric::CLAIMED, "pool" => self.pool.clone()).increment(claimed.len() as u64);
        let now = self.engine.store().clock().now();
        let wait = metrics::histogram!(metric::WAIT, "pool" => self.pool.clone());
        let mut assigned = Vec::with_capacity(claimed.len());
        for ((job, until), permit) in claimed.into_iter().zip(permits) {
            wait.record(now.since(job.run_at));
            let fenced = Fenced {
                id: job.id,
                fence: job.fence,
            };
            let signal = self.held.add(fenced, until);
            let place = Place {
                held: self.held.clone(),
                job: fenced,
                _permit: permit,
                _slot: self.taken.take(),
            };
            assigned.push(Assignment { job, signal, place });
        }
        // There is room: each claim brings at least one job, and the channel has a place for each slot.
        if self.assignments.send(assigned).await.is_err() {
            tracing::error!(
                pool = self.pool,
                "the runtime of this pool is gone; the leases of its jobs will end"
            );
        }
    }

    /// Until something wakes this pool, or the fallback says to look anyway. After trouble no wake counts: it would
    /// only repeat it.
    async fn idle(&mut self, trouble: Duration) {
        let jitter = rand::rng().random_range(0.5..1.5);
        tokio::select! {
            biased;
            () = self.draining.cancelled() => {}
            _ = self.wakes.next(), if trouble.is_zero() => {}
            () = tokio::time::sleep(if trouble.is_zero() { self.fallback } else { trouble }.mul_f64(jitter)) => {}
        }
    }
}

/// How much of a lease its holder counts on: a tenth is left for what lies between two clocks and two hosts.
pub(crate) fn safe_part(lease: Duration) -> Duration {
    lease - lease / 10
}

/// The tenant whose turn came last: turns begin after `after` and wrap around.
fn last_in_turn(claimed: &[(Claimed, Option<Instant>)], after: TenantId) -> TenantId {
    claimed
        .iter()
        .map(|(job, _)| job.tenant_id)
        .max_by_key(|&tenant| (tenant <= after, tenant))
        .unwrap_or(after)
}
