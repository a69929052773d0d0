//! Which process of an installation runs deployments: this one, another one, or this one as the standby of another.

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
use towpath_store::deployment_keepers::Claim;
use towpath_workers::{Options, Workers};
use towpath_workflows::deployment_host::DeploymentHost;
use towpath_workflows::keeper::{KeeperLease, LeaseStart};
use towpath_workflows::{Services, reconcile_deployments};
use uuid::Uuid;

use super::parts;
use crate::config::{DeploymentBackend, Settings};

/// Logged by a process that leaves deployments to another one.
const ELSEWHERE_MESSAGE: &str = "another process of this installation runs deployments, and this one does not";
const STANDBY_MESSAGE: &str =
    "another process of this installation runs deployments; this one waits until that process has ended";

pub enum DeploymentRole {
    /// Deployments are not enabled in this process.
    None,
    /// Another process runs deployments.
    Elsewhere,
    /// This process runs deployments.
    Keeper {
        hosting: Arc<DeploymentHost>,
        lease: KeeperLease,
        lease_start: LeaseStart,
    },
    /// This process takes over when the keeper has ended.
    Standby {
        hosting: Arc<DeploymentHost>,
        lease: KeeperLease,
        is_keeper: Arc<AtomicBool>,
    },
}

/// The build workers of a standby, started when it takes over.
pub struct BuildWorkers {
    pub engine: Engine,
    pub queue: Queue,
    pub registry: Arc<Registry<Services>>,
    pub options: Options,
    pub grace: Duration,
    /// Cancelled when the process stops accepting work.
    pub draining: CancellationToken,
}

impl DeploymentRole {
    /// Acquires the keeper lease, if this process should run deployments and no other process holds it.
    pub async fn of(settings: &Settings, store: &Store, hosting: Option<Arc<DeploymentHost>>) -> anyhow::Result<Self> {
        let Some(hosting) = hosting else {
            return Ok(Self::None);
        };
        let claim = Claim {
            host_id: hosting.root.host_id().context("reading the host id of deployments")?,
            host: parts::host(),
            pid: i64::from(std::process::id()),
            life: Uuid::now_v7(),
        };
        let lease = KeeperLease::new(store.clone(), claim, settings.deployments.keeper_lease);
        let holder = match lease.acquire().await.context("acquiring the lease of deployments")? {
            Ok(taken) => {
                return Ok(Self::Keeper {
                    hosting,
                    lease,
                    lease_start: taken,
                });
            }
            Err(holder) => holder,
        };
        if settings.deployments.backend == DeploymentBackend::Auto {
            tracing::warn!(
                %holder,
                "{ELSEWHERE_MESSAGE}. Restart it when the other process has ended for good, or set \
                 deployments.backend to process or docker to make it wait for that"
            );
            return Ok(Self::Elsewhere);
        }
        tracing::warn!(%holder, "{STANDBY_MESSAGE}");
        let keeps = Arc::default();
        Ok(Self::Standby {
            hosting,
            lease,
            is_keeper: keeps,
        })
    }

    pub fn hosting(&self) -> Option<Arc<DeploymentHost>> {
        match self {
            Self::None | Self::Elsewhere => None,
            Self::Keeper { hosting, .. } | Self::Standby { hosting, .. } => Some(Arc::clone(hosting)),
        }
    }

    /// Adds the role to the readiness report.
    pub fn add_probe(&self, health: Health) -> Health {
        let (keeps, otherwise) = match self {
            Self::None => return health,
            Self::Elsewhere => (Arc::default(), ELSEWHERE_MESSAGE),
            Self::Keeper { .. } => (Arc::new(AtomicBool::new(true)), ELSEWHERE_MESSAGE),
            Self::Standby { is_keeper: keeps, .. } => (Arc::clone(keeps), STANDBY_MESSAGE),
        };
        let probe = parts::probe(move || {
            let answer = if keeps.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(otherwise)
            };
            async move { answer }
        });
        health.informational("deployments", probe)
    }

    /// Starts to run deployments, or to wait for the lease; `None` if this process does neither. Only a standby starts
    /// `builders`: a keeper builds in its regular workers.
    pub fn start(
        self,
        world: Arc<Services>,
        builders: BuildWorkers,
    ) -> Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)> {
        let stop = CancellationToken::new();
        let keeping = match self {
            Self::None | Self::Elsewhere => return None,
            Self::Keeper {
                lease,
                lease_start: taken,
                ..
            } => tokio::spawn(keep(world, lease, taken, stop.clone())),
            Self::Standby {
                lease,
                is_keeper: keeps,
                ..
            } => tokio::spawn(stand_by(world, lease, keeps, builders, stop.clone())),
        };
        Some((stop, keeping))
    }
}

/// Runs deployments until `stop` is cancelled.
async fn keep(
    world: Arc<Services>,
    lease: KeeperLease,
    taken: LeaseStart,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let over = stop.child_token();
    let run = reconcile_deployments::run(world, over.clone());
    tokio::pin!(run);
    let lost = tokio::select! {
        () = &mut run => None,
        lost = lease.renew_until_lost(taken) => Some(lost),
    };
    match lost {
        None => {
            lease.release().await;
            Ok(())
        }
        Some(lost) => {
            tracing::error!(error = %lost, "this process lost the lease of deployments; it stops them and exits");
            over.cancel();
            run.await;
            Err(lost.into())
        }
    }
}

/// Waits for the lease, then builds and runs deployments until `stop` is cancelled.
async fn stand_by(
    world: Arc<Services>,
    lease: KeeperLease,
    keeps: Arc<AtomicBool>,
    builders: BuildWorkers,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let BuildWorkers {
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
            () = tokio::time::sleep(lease.poll_interval()) => {}
        }
        match lease.acquire().await {
            Ok(Ok(taken)) => break taken,
            Ok(Err(_)) => {}
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot read the lease of deployments; retrying"
            ),
        }
    };
    tracing::info!("the process that ran deployments has ended; this process takes over");
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
        // Before the agent servers that they deploy to are stopped.
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
