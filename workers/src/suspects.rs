//! Jobs that lost two leases in a row, one at a time.
//!
//! A job that kills its process takes along whatever runs beside it, and all of that would be claimed together again, and die
//! together again. So from the second loss on, a job is no longer claimed with others, and no two of them are performed at the
//! same time in one process: those that did not kill it end well, and the one that did is found. They are looked for with each
//! renewal, since they are few and in no hurry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use towpath_durable::{Engine, Fenced};
use towpath_store::jobs;

use crate::held::Held;
use crate::metric::{self, Slots};
use crate::{Assignment, Place};

/// A pool as far as it matters here.
pub(crate) struct Line {
    pub(crate) pool: String,
    pub(crate) permits: Arc<Semaphore>,
    /// A job that is performed alone waits for a slot. While there is a backlog, slots pass from job to job and never get free.
    pub(crate) spare: Arc<AtomicBool>,
    pub(crate) taken: Slots,
    pub(crate) assignments: mpsc::Sender<Vec<Assignment>>,
}

pub(crate) struct Suspects {
    pub(crate) engine: Engine,
    pub(crate) held: Arc<Held>,
    pub(crate) lines: Vec<Line>,
    /// The pools in which one waits.
    pub(crate) suspects: watch::Receiver<Vec<String>>,
    pub(crate) draining: CancellationToken,
}

impl Suspects {
    pub(crate) async fn run(mut self) {
        let alone = Arc::new(Semaphore::new(1));
        let draining = self.draining.clone();
        loop {
            tokio::select! {
                biased;
                () = draining.cancelled() => return,
                changed = self.suspects.changed() => if changed.is_err() { return },
            }
            // One of each pool in turn, until none is left.
            loop {
                let pools = self.suspects.borrow_and_update().clone();
                let mut claimed = false;
                for line in self.lines.iter().filter(|line| pools.contains(&line.pool)) {
                    claimed |= self.claim(line, &alone).await;
                }
                if !claimed {
                    break;
                }
            }
        }
    }

    /// Waits until the job before is over and a slot is free, and claims one. Answers whether there was one. A pool whose slots
    /// long jobs hold is left for the next time: those of other pools wait, too.
    async fn claim(&self, line: &Line, alone: &Arc<Semaphore>) -> bool {
        let rights = async {
            let alone = Arc::clone(alone).acquire_owned().await;
            line.spare.store(true, Ordering::Relaxed);
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
        line.spare.store(false, Ordering::Relaxed);
        let (Some((alone, slot)), Some(worker)) = (rights, self.held.worker()) else {
            return false;
        };
        let claiming = self.held.claiming();
        let claimer = jobs::Claimer::new(&line.pool, worker, 1);
        let claimed = self
            .engine
            .store()
            .write(async |tx| jobs::claim_alone(tx, &claimer).await);
        let job = match claimed.await {
            Ok(mut claimed) => claimed.pop(),
            Err(error) => {
                tracing::warn!(pool = line.pool, error = %error, "cannot claim a job that is performed alone");
                None
            }
        };
        let Some(job) = job else {
            return false;
        };
        metrics::counter!(metric::CLAIMED, "pool" => line.pool.clone()).increment(1);
        tracing::warn!(job.id = %job.id, pool = line.pool, "performing a job alone whose workers were lost");
        let fenced = Fenced {
            id: job.id,
            fence: job.fence,
        };
        let signal = self.held.add(fenced, worker);
        let place = Place {
            held: self.held.clone(),
            job: fenced,
            pool: line.pool.clone(),
            slot: Some(line.taken.take(slot)),
            _alone: Some(alone),
        };
        drop(claiming);
        if line
            .assignments
            .send(vec![Assignment { job, signal, place }])
            .await
            .is_err()
        {
            tracing::error!(
                pool = line.pool,
                "the runtime of this pool is gone; the job will be given back"
            );
        }
        true
    }
}
