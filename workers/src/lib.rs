//! Workers: processes that claim jobs and perform them.
//!
//! Promises: a job is claimed only when a slot is free for it, so no claimed job waits behind a busy worker; its lease
//! is renewed from a thread of its own, whatever the handlers do; a worker that cannot renew stops its handlers
//! before its lease ends, and claims again only by another one; a worker that is told to leave claims nothing more, finishes
//! or hands back what it has, and loses no lease. Leaves to others: what a job does, and what becomes of it (`durable`).
//!
//! The apalis runtime drives the handlers; everything that touches it is in [`runtime`].

mod claimer;
mod held;
mod keeper;
pub mod metric;
mod peers;
mod rota;
mod runtime;
mod suspects;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use towpath_domain::WorkerId;
use towpath_durable::{Bare, Engine, Fenced, Registry, Signal};
use towpath_queue::Queue;
use towpath_store::workers::Worker;

use crate::claimer::Claimer;
use crate::held::Held;
use crate::keeper::Keeper;
use crate::metric::{Slot, Slots};
use crate::peers::Peers;
use crate::suspects::{Line, Suspects};

/// How long a worker that leaves waits for its jobs to be handed back.
const HAND_BACK: Duration = Duration::from_secs(5);

/// What a worker process serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pools and how many jobs of each may be at work here at once.
    pub pools: Vec<(String, usize)>,
    /// How long an idle pool goes without looking when nothing wakes it. Jittered by half either way.
    pub fallback: Duration,
    /// Host name, for operators.
    pub host: String,
    /// Version of the program, for operators.
    pub version: String,
}

impl Options {
    /// These pools, all else as usual.
    pub fn new(pools: impl IntoIterator<Item = (impl Into<String>, usize)>) -> Self {
        Self {
            pools: pools.into_iter().map(|(pool, slots)| (pool.into(), slots)).collect(),
            fallback: Duration::from_secs(1),
            host: "localhost".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// The workers of one process, at work.
pub struct Workers {
    /// Its first one.
    id: WorkerId,
    engine: Engine,
    held: Arc<Held>,
    /// Cancelled: claim nothing more.
    draining: CancellationToken,
    claimers: JoinSet<()>,
    runtimes: JoinSet<()>,
    keeper: Keeper,
}

/// How a drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Jobs that were at work when the drain began.
    pub at_work: usize,
    /// Those handed back because the grace was over.
    pub handed_back: usize,
}

impl Workers {
    /// Starts claiming and performing.
    ///
    /// # Errors
    /// When the lease thread or its own connection cannot be made.
    pub fn start<World: Send + Sync + 'static>(
        engine: Engine,
        queue: &Queue,
        registry: &Arc<Registry<World>>,
        world: &Arc<World>,
        options: &Options,
    ) -> Result<Self, StartError> {
        // Each life of a process is a worker of its own: nothing depends on a name being free again.
        let id = WorkerId::new();
        let held = Arc::new(Held::default());
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
        let peers = Arc::new(Peers::default());
        let (suspected, suspects) = watch::channel(Vec::new());
        let keeper = Keeper::start(
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
            let line = Line {
                pool: pool.clone(),
                permits: Arc::new(Semaphore::new(slots)),
                spare: Arc::default(),
                taken: Slots::new(pool, slots),
                assignments: send.clone(),
            };
            let claimer = Claimer {
                engine: engine.clone(),
                pool: pool.clone(),
                permits: line.permits.clone(),
                spare: line.spare.clone(),
                slots,
                taken: line.taken.clone(),
                held: held.clone(),
                peers: peers.clone(),
                assignments: send,
                finished,
                joining: engine.joining(pool),
                wakes: queue.listen([pool]),
                leased: held.leases(),
                fallback: options.fallback,
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
        let suspects = Suspects {
            engine: engine.clone(),
            held: held.clone(),
            lines,
            suspects,
            draining: draining.clone(),
        };
        claimers.spawn(suspects.run());
        Ok(Self {
            id,
            engine,
            held,
            draining,
            claimers,
            runtimes,
            keeper,
        })
    }

    /// This life of the process, and of its lease: a worker whose lease was lost goes on under another id.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.held.current().unwrap_or(self.id)
    }

    /// Waits until this process has a lease, by which it can claim and record jobs.
    pub async fn leased(&self) {
        // The sender is kept by what this holds.
        let _ = self.held.leases().wait_for(Option::is_some).await;
    }

    /// Jobs at work.
    #[must_use]
    pub fn at_work(&self) -> usize {
        self.held.len()
    }

    /// Cancelled once this worker claims nothing more: somebody called [`Workers::drain`], or asked through the
    /// store.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Leaves: claims nothing more, lets jobs finish for up to `grace`, hands back the rest, and signs off. No lease
    /// is lost and nothing runs twice because of it.
    pub async fn drain(mut self, grace: Duration) -> Drained {
        self.draining.cancel();
        // Claimers end when no turn is under way, so whatever they claimed has reached its runtime by then.
        while self.claimers.join_next().await.is_some() {}
        let at_work = self.held.len();
        let finished = tokio::time::timeout(grace, self.held.empty()).await;
        let handed_back = self.held.len();
        if finished.is_err() {
            tracing::info!(jobs = handed_back, "the grace is over; handing jobs back");
            self.held.tell_all(Signal::HandBack);
            // Handing back is one short transaction each. A database that is away must not keep us, nor a handler
            // that blocks its thread: the leases end.
            let _ = tokio::time::timeout(HAND_BACK, self.held.empty()).await;
        }
        if self.held.len() == 0 {
            while self.runtimes.join_next().await.is_some() {}
        } else {
            tracing::warn!(
                jobs = self.held.len(),
                "left jobs behind; they are taken over when the lease ends"
            );
            self.runtimes.shutdown().await;
        }
        self.keeper.stop().await;
        let id = self.held.current().unwrap_or(self.id);
        // What goes on here although it was told to stop keeps its lease: nobody else is to begin beside it.
        let lets_go = self.held.len() == 0;
        let gone = self.engine.store().clock().now().minus(Duration::from_secs(3600));
        let signed_off = self.engine.store().write(async |tx| {
            if lets_go {
                towpath_store::leases::end(tx, id).await?;
            }
            towpath_store::workers::remove(tx, id, gone).await
        });
        let _ = tokio::time::timeout(Duration::from_secs(2), signed_off).await;
        Drained { at_work, handed_back }
    }
}

/// A worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The thread that renews leases.
    #[error("cannot start the thread that renews leases")]
    Thread(#[source] std::io::Error),
    /// Its connection.
    #[error("cannot prepare a connection for renewing leases")]
    Store(#[source] towpath_store::Error),
}

/// What the claimer hands to the runtime.
pub(crate) struct Assignment {
    pub(crate) job: towpath_durable::Claimed,
    pub(crate) signal: watch::Receiver<Signal>,
    pub(crate) place: Place,
}

/// A job whose row is for the claimer to write, with its next claim.
pub(crate) struct Finished {
    pub(crate) bare: Box<Bare>,
    pub(crate) place: Place,
}

/// A slot that is taken, and the job's entry among the held ones. Dropped when the job is done with, in whatever way.
pub(crate) struct Place {
    held: Arc<Held>,
    job: Fenced,
    pool: String,
    /// Gone when the slot is another's already: the handler has ended, and only its row is still to be written.
    slot: Option<Slot>,
    /// The right to perform a job that next to no other such one is performed.
    _alone: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Gives the slot on.
    fn vacate(&mut self) -> Option<Slot> {
        self.slot.take()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.count(&self.pool);
        self.held.remove(self.job);
    }
}
