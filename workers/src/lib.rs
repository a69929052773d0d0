//! Workers: processes that claim jobs and perform them.
//!
//! Guarantees: a job is claimed only for a free slot, so no claimed job waits behind a busy worker. The lease is
//! renewed in a separate thread, whatever the handlers do. A worker that cannot renew its lease stops its handlers
//! before the lease ends, and claims again only with a new one. A draining worker claims nothing, finishes or returns
//! its jobs, and loses no lease. One that an operator drained claims again when it is resumed. The `durable` crate
//! performs jobs and writes their results.
//!
//! The apalis runtime drives the handlers; all code that uses it is in [`runtime`].

mod active_jobs;
mod claim_batch;
mod claim_cursor;
mod claim_state;
mod claimer;
mod lease_renewer;
pub mod metric;
mod pool_peers;
mod runtime;
mod suspects;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use towpath_domain::{TenantId, WorkerId};
use towpath_durable::{Engine, JobFence, PendingCompletion, Registry, Signal};
use towpath_queue::Queue;
use towpath_store::workers::Worker;

use crate::active_jobs::ActiveJobs;
use crate::claimer::Claimer;
use crate::lease_renewer::LeaseRenewer;
use crate::metric::{Slot, Slots};
use crate::pool_peers::PoolPeers;
use crate::suspects::{SuspectPool, SuspectRunner};

/// How long a stopping worker waits for its jobs to be returned.
const HAND_BACK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Options {
    /// Pools with their number of slots.
    pub pools: Vec<(String, usize)>,
    /// Interval at which an idle pool polls if nothing wakes it, with a jitter of half.
    pub poll_interval: Duration,
    /// Host name, for operators.
    pub host: String,
    /// Version of the program, for operators.
    pub version: String,
}

impl Options {
    /// Defaults for these pools.
    pub fn new(pools: impl IntoIterator<Item = (impl Into<String>, usize)>) -> Self {
        Self {
            pools: pools.into_iter().map(|(pool, slots)| (pool.into(), slots)).collect(),
            poll_interval: Duration::from_secs(1),
            host: "localhost".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// The running workers of one process.
pub struct Workers {
    /// Its first id.
    id: WorkerId,
    engine: Engine,
    active_jobs: Arc<ActiveJobs>,
    /// Cancelled when the worker must stop claiming for good.
    draining: CancellationToken,
    claimer_tasks: JoinSet<()>,
    runtimes: JoinSet<()>,
    lease_renewer: LeaseRenewer,
}

/// Result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Jobs that were running when the drain began.
    pub running: usize,
    /// Jobs that were returned because the grace was over.
    pub handed_back: usize,
}

impl Workers {
    /// Starts claiming and performing.
    pub fn start<World: Send + Sync + 'static>(
        engine: Engine,
        queue: &Queue,
        registry: &Arc<Registry<World>>,
        world: &Arc<World>,
        options: &Options,
    ) -> Result<Self, StartError> {
        // Each process life is a new worker, so no name has to become free.
        let id = WorkerId::new();
        let held = Arc::new(ActiveJobs::default());
        let draining = CancellationToken::new();
        let row = Worker {
            id,
            host: options.host.clone(),
            pid: i64::from(std::process::id()),
            pools: serde_json::to_string(
                &options
                    .pools
                    .iter()
                    .cloned()
                    .collect::<std::collections::BTreeMap<_, _>>(),
            )
            .expect("a map of texts and numbers is always JSON"),
            version: options.version.clone(),
            draining: false,
            started_at: engine.store().clock().now(),
            seen_at: engine.store().clock().now(),
            finished: "{}".to_owned(),
            drain_at: None,
        };
        let peers = Arc::new(PoolPeers::default());
        let (suspected, suspects) = watch::channel(Vec::new());
        let keeper = LeaseRenewer::start(
            &engine,
            held.clone(),
            peers.clone(),
            row,
            suspected,
            draining.clone(),
            queue.cancels(),
        )?;
        let mut claimers = JoinSet::new();
        let mut runtimes = JoinSet::new();
        let mut lines = Vec::new();
        for (pool, slots) in &options.pools {
            let slots = (*slots).max(1);
            let (send, receive) = tokio::sync::mpsc::channel(slots);
            let (finish, finished) = tokio::sync::mpsc::channel(slots);
            let line = SuspectPool {
                pool: pool.clone(),
                permits: Arc::new(Semaphore::new(slots)),
                reserves_slot: Arc::default(),
                busy_slots: Slots::new(pool, slots),
                assignments: send.clone(),
            };
            let claimer = Claimer {
                engine: engine.clone(),
                pool: pool.clone(),
                permits: line.permits.clone(),
                reserves_slot: line.reserves_slot.clone(),
                slots,
                busy_slots: line.busy_slots.clone(),
                active_jobs: held.clone(),
                peers: peers.clone(),
                assignments: send,
                completions: finished,
                record_requests: engine.record_requests(pool),
                wakes: queue.listen([pool]),
                queue: queue.clone(),
                last_refilled: Arc::new(tokio::sync::Mutex::new(TenantId::nil())),
                lease_changes: held.subscribe_lease(),
                poll_interval: options.poll_interval,
                draining: draining.clone(),
            };
            lines.push(line);
            claimers.spawn(claimer.run());
            runtimes.spawn(runtime::run(
                pool.clone(),
                engine.clone(),
                registry.clone(),
                world.clone(),
                receive,
                finish,
            ));
        }
        let suspects = SuspectRunner {
            engine: engine.clone(),
            active_jobs: held.clone(),
            pools: lines,
            suspect_pools: suspects,
            draining: draining.clone(),
        };
        claimers.spawn(suspects.run());
        Ok(Self {
            id,
            engine,
            active_jobs: held,
            draining,
            claimer_tasks: claimers,
            runtimes,
            lease_renewer: keeper,
        })
    }

    /// Id of this process life and its first lease; after a lost lease the worker continues under another id.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.active_jobs.lease_owner().unwrap_or(self.id)
    }

    /// Waits until this process has a lease, which claims and records require.
    pub async fn leased(&self) {
        // `self` owns the sender.
        let _ = self.active_jobs.subscribe_lease().wait_for(Option::is_some).await;
    }

    #[must_use]
    pub fn running_jobs(&self) -> usize {
        self.active_jobs.len()
    }

    /// Cancelled once [`Workers::drain`] has begun.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Whether an operator drained this worker through the store, as of its last heartbeat.
    #[must_use]
    pub fn drain_requested(&self) -> watch::Receiver<bool> {
        self.active_jobs.subscribe_drain_request()
    }

    /// Stops claiming, lets jobs finish for up to `grace`, returns the rest, and signs off. No lease is lost, and
    /// nothing runs twice because of it.
    pub async fn drain(mut self, grace: Duration) -> DrainReport {
        self.draining.cancel();
        // Claimers end when no batch is in progress, so all claimed jobs have reached their runtime by then.
        while self.claimer_tasks.join_next().await.is_some() {}
        let at_work = self.active_jobs.len();
        let finished = tokio::time::timeout(grace, self.active_jobs.wait_until_empty()).await;
        let handed_back = self.active_jobs.len();
        if finished.is_err() {
            tracing::info!(jobs = handed_back, "the grace time is over; returning jobs");
            self.active_jobs.signal_all(Signal::HandBack);
            // Each return is a short transaction. An unavailable database or a blocking handler must not delay the
            // exit: the leases expire.
            let _ = tokio::time::timeout(HAND_BACK, self.active_jobs.wait_until_empty()).await;
        }
        if self.active_jobs.len() == 0 {
            while self.runtimes.join_next().await.is_some() {}
        } else {
            tracing::warn!(
                jobs = self.active_jobs.len(),
                "jobs are still running; other workers take them over when the lease ends"
            );
            self.runtimes.shutdown().await;
        }
        self.lease_renewer.stop().await;
        let id = self.active_jobs.lease_owner().unwrap_or(self.id);
        // A job that is still running keeps its lease, so that no other worker starts it in parallel.
        let lets_go = self.active_jobs.len() == 0;
        let gone = self.engine.store().clock().now().minus(Duration::from_secs(3600));
        let signed_off = self.engine.store().write(async |tx| {
            if lets_go {
                towpath_store::leases::end(tx, id).await?;
            }
            towpath_store::workers::remove(tx, id, gone).await
        });
        let _ = tokio::time::timeout(Duration::from_secs(2), signed_off).await;
        DrainReport {
            running: at_work,
            handed_back,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot start the thread that renews leases")]
    Thread(#[source] std::io::Error),
    #[error("cannot prepare a connection for renewing leases")]
    Store(#[source] towpath_store::Error),
}

/// Passed from the claimer to the runtime.
pub(crate) struct Assignment {
    pub(crate) job: towpath_durable::ClaimedJob,
    pub(crate) signal: watch::Receiver<Signal>,
    pub(crate) permit: JobPermit,
}

/// A completion whose row the claimer writes with its next claim.
pub(crate) struct UnrecordedCompletion {
    pub(crate) completion: Box<PendingCompletion>,
    pub(crate) permit: JobPermit,
}

/// A used slot and the entry of its job. Dropped when the job is done in any way.
pub(crate) struct JobPermit {
    active_jobs: Arc<ActiveJobs>,
    job: JobFence,
    pool: String,
    /// `None` when the slot was passed on: the handler has ended, and only its row remains to be written.
    slot: Option<Slot>,
    /// Permit of a job that must run alone among its kind.
    _exclusive_permit: Option<OwnedSemaphorePermit>,
}

impl JobPermit {
    /// Passes the slot on.
    fn release_slot(&mut self) -> Option<Slot> {
        self.slot.take()
    }
}

impl Drop for JobPermit {
    fn drop(&mut self) {
        self.active_jobs.count_finished(&self.pool);
        self.active_jobs.remove(self.job);
    }
}
