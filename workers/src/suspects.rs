//! Jobs that lost two leases in a row, performed one at a time.
//!
//! A job that kills its process also kills the jobs that run next to it, and all of them would be claimed together
//! again. So from the second lost lease on, a job is claimed alone, and a process performs only one of them at a time.
//! Innocent jobs then succeed, and the guilty one is found. Suspects are few and not urgent, so they are searched with
//! each renewal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use towpath_durable::{Engine, JobFence};
use towpath_store::jobs;

use crate::active_jobs::ActiveJobs;
use crate::metric::{self, Slots};
use crate::{Assignment, JobPermit};

/// The parts of a pool needed here.
pub(crate) struct SuspectPool {
    pub(crate) pool: String,
    pub(crate) permits: Arc<Semaphore>,
    /// Reserves a slot for a job that runs alone. During a backlog, slots pass from job to job and never become free.
    pub(crate) reserves_slot: Arc<AtomicBool>,
    pub(crate) busy_slots: Slots,
    pub(crate) assignments: mpsc::Sender<Vec<Assignment>>,
}

pub(crate) struct SuspectRunner {
    pub(crate) engine: Engine,
    pub(crate) active_jobs: Arc<ActiveJobs>,
    pub(crate) pools: Vec<SuspectPool>,
    /// Pools with waiting suspects.
    pub(crate) suspect_pools: watch::Receiver<Vec<String>>,
    pub(crate) draining: CancellationToken,
}

impl SuspectRunner {
    pub(crate) async fn run(mut self) {
        let alone = Arc::new(Semaphore::new(1));
        let draining = self.draining.clone();
        loop {
            tokio::select! {
                biased;
                () = draining.cancelled() => return,
                changed = self.suspect_pools.changed() => if changed.is_err() { return },
            }
            // One of each pool in rotation, until none is left.
            loop {
                let pools = self.suspect_pools.borrow_and_update().clone();
                let mut claimed = false;
                for line in self.pools.iter().filter(|line| pools.contains(&line.pool)) {
                    claimed |= self.claim_one(line, &alone).await;
                }
                if !claimed {
                    break;
                }
            }
        }
    }

    /// Waits until the previous suspect has ended and a slot is free, and claims one. Returns whether there was one. A
    /// pool whose slots are used by long jobs is skipped until the next time, because other pools wait too.
    async fn claim_one(&self, line: &SuspectPool, alone: &Arc<Semaphore>) -> bool {
        let rights = async {
            let alone = Arc::clone(alone).acquire_owned().await;
            line.reserves_slot.store(true, Ordering::Relaxed);
            let slot = tokio::time::timeout(
                self.engine.settings().lease / 3,
                Arc::clone(&line.permits).acquire_owned(),
            );
            Some((alone.ok()?, slot.await.ok()?.ok()?))
        };
        let rights = tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            rights = rights => rights,
        };
        line.reserves_slot.store(false, Ordering::Relaxed);
        let (Some((alone, slot)), Some(worker)) = (rights, self.active_jobs.claiming_worker()) else {
            return false;
        };
        let claiming = self.active_jobs.begin_claim();
        let claimer = jobs::ClaimRequest::new(&line.pool, worker, 1);
        let claimed = self
            .engine
            .store()
            .write(async |tx| jobs::claim_suspects(tx, &claimer).await);
        let job = match claimed.await {
            Ok(mut claimed) => claimed.pop(),
            Err(error) => {
                tracing::warn!(pool = line.pool, error = %error, "cannot claim a suspect job");
                None
            }
        };
        let Some(job) = job else {
            return false;
        };
        metrics::counter!(metric::CLAIMED, "pool" => line.pool.clone()).increment(1);
        tracing::warn!(job.id = %job.id, pool = line.pool, "performing a suspect job alone");
        let fenced = JobFence {
            id: job.id,
            fence: job.fence,
        };
        let signal = self.active_jobs.add(fenced, worker);
        let permit = JobPermit {
            active_jobs: self.active_jobs.clone(),
            job: fenced,
            pool: line.pool.clone(),
            slot: Some(line.busy_slots.take(slot)),
            _exclusive_permit: Some(alone),
        };
        drop(claiming);
        if line
            .assignments
            .send(vec![Assignment { job, signal, permit }])
            .await
            .is_err()
        {
            tracing::error!(
                pool = line.pool,
                "the runtime of this pool has ended; the job will be returned"
            );
        }
        true
    }
}
