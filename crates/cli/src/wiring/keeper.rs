//! Which process of an installation keeps deployments: this one, another one, or this one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_api::Health;
use towpath_durable::{Engine, Registry};
use towpath_queue::Queue;
use towpath_store::Store;
use towpath_store::keepers::Claim;
use towpath_workers::{Options, Workers};
use towpath_workflows::hosting::Hosting;
use towpath_workflows::keeper::{Lease, Taken};
use towpath_workflows::{World, keep_deployments};
use uuid::Uuid;

use super::parts;
use crate::config::{DeploymentBackend, Settings};

/// Told by a process that leaves deployments to another one.
const OUT: &str = "another process of this installation keeps deployments, and this one does not";
/// Told by a process that waits.
const WAITS: &str = "another process of this installation keeps deployments; this one waits until that has ended";

/// What this process does about deployments.
pub enum Part {
    /// Nothing: it is not meant to.
    None,
    /// Nothing: another process keeps them.
    Out,
    /// It keeps them.
    Keeper {
        /// With this.
        hosting: Arc<Hosting>,
        /// By this right.
        lease: Lease,
        /// Since then.
        taken: Taken,
    },
    /// It does once the process that keeps them has ended.
    Standby {
        /// With this.
        hosting: Arc<Hosting>,
        /// By this right.
        lease: Lease,
        /// Whether it does by now.
        keeps: Arc<AtomicBool>,
    },
}

/// What builds revisions in a process that waits to keep deployments, once it does.
pub struct Builders {
    /// Claims and ends jobs.
    pub engine: Engine,
    /// Wakes and cancel signals.
    pub queue: Queue,
    /// Kinds of jobs.
    pub registry: Arc<Registry<World>>,
    /// The pool of builds.
    pub options: Options,
    /// What they get to finish.
    pub grace: Duration,
    /// Cancelled: take nothing more.
    pub draining: CancellationToken,
}

impl Part {
    /// Takes the right to keep deployments, where this process is to have it and nobody else does.
    ///
    /// # Errors
    /// Those of the database, and of the folder of deployments.
    pub async fn of(settings: &Settings, store: &Store, hosting: Option<Arc<Hosting>>) -> anyhow::Result<Self> {
        let Some(hosting) = hosting else {
            return Ok(Self::None);
        };
        let claim = Claim {
            host_id: hosting.root.host_id().context("the id of this machine's deployments")?,
            host: parts::host(),
            pid: i64::from(std::process::id()),
            life: Uuid::now_v7(),
        };
        let lease = Lease::new(store.clone(), claim, settings.deployments.keeper_lease);
        let holder = match lease.take().await.context("taking the right to keep deployments")? {
            Ok(taken) => {
                return Ok(Self::Keeper { hosting, lease, taken });
            }
            Err(holder) => holder,
        };
        if settings.deployments.backend == DeploymentBackend::Auto {
            tracing::warn!(
                %holder,
                "{OUT}: it builds and runs none. Start it again when that one has ended for good, or set \
                 deployments.backend to process or docker to have it wait for that"
            );
            return Ok(Self::Out);
        }
        tracing::warn!(%holder, "{WAITS}");
        let keeps = Arc::default();
        Ok(Self::Standby { hosting, lease, keeps })
    }

    /// What it runs deployments with.
    pub fn hosting(&self) -> Option<Arc<Hosting>> {
        match self {
            Self::None | Self::Out => None,
            Self::Keeper { hosting, .. } | Self::Standby { hosting, .. } => Some(Arc::clone(hosting)),
        }
    }

    /// Has readiness say it.
    pub fn told(&self, health: Health) -> Health {
        let (keeps, otherwise) = match self {
            Self::None => return health,
            Self::Out => (Arc::default(), OUT),
            Self::Keeper { .. } => (Arc::new(AtomicBool::new(true)), OUT),
            Self::Standby { keeps, .. } => (Arc::clone(keeps), WAITS),
        };
        let probe = parts::probe(move || {
            let answer = if keeps.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(otherwise)
            };
            async move { answer }
        });
        health.tell("deployments", probe)
    }

    /// Begins to keep deployments, or to wait for that; nothing where this process does neither. `builders` are started by
    /// one that waits: a process that keeps deployments from its start builds among its other jobs.
    pub fn start(
        self,
        world: Arc<World>,
        builders: Builders,
    ) -> Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)> {
        let stop = CancellationToken::new();
        let keeping = match self {
            Self::None | Self::Out => return None,
            Self::Keeper { lease, taken, .. } => tokio::spawn(keep(world, lease, taken, stop.clone())),
            Self::Standby { lease, keeps, .. } => tokio::spawn(stand_by(world, lease, keeps, builders, stop.clone())),
        };
        Some((stop, keeping))
    }
}

/// Keeps deployments until `stop` is cancelled.
///
/// # Errors
/// The right to do so was lost before.
async fn keep(world: Arc<World>, lease: Lease, taken: Taken, stop: CancellationToken) -> anyhow::Result<()> {
    let over = stop.child_token();
    let run = keep_deployments::run(world, over.clone());
    tokio::pin!(run);
    let lost = tokio::select! {
        () = &mut run => None,
        lost = lease.hold(taken) => Some(lost),
    };
    match lost {
        None => {
            lease.give_back().await;
            Ok(())
        }
        Some(lost) => {
            tracing::error!(error = %lost, "this process may not keep deployments any more; it stops them and ends");
            over.cancel();
            run.await;
            Err(lost.into())
        }
    }
}

/// Waits for the right to keep deployments, then builds and keeps them until `stop` is cancelled.
///
/// # Errors
/// As [`keep`], and when builders cannot be started.
async fn stand_by(
    world: Arc<World>,
    lease: Lease,
    keeps: Arc<AtomicBool>,
    builders: Builders,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Builders {
        engine,
        queue,
        registry,
        options,
        grace,
        draining,
    } = builders;
    let taken = loop {
        tokio::select! {
            () = draining.cancelled() => return Ok(()),
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(lease.pause()) => {}
        }
        match lease.take().await {
            Ok(Ok(taken)) => break taken,
            Ok(Err(_)) => {}
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "it is not known whether another process keeps deployments; it is asked again"
            ),
        }
    };
    tracing::info!("the process that kept deployments has ended; this one does from now on");
    let workers = Workers::start(engine, &queue, &registry, &world, &options)?;
    keeps.store(true, Ordering::Relaxed);
    let (over, gone) = (CancellationToken::new(), CancellationToken::new());
    let keeping = async {
        let kept = keep(world, lease, taken, over.clone()).await;
        gone.cancel();
        kept
    };
    let leaving = async {
        let grace = tokio::select! {
            () = draining.cancelled() => grace,
            () = gone.cancelled() => Duration::ZERO,
        };
        // Before what they deploy to is stopped.
        workers.drain(grace).await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = gone.cancelled() => {}
        }
        over.cancel();
    };
    let (kept, ()) = tokio::join!(keeping, leaving);
    kept
}
