//! What runs deployments.

use tokio_util::sync::CancellationToken;
use towpath_domain::{DeploymentId, RevisionId, Secret};

use crate::error::Result;
use crate::fake::Fake;
use crate::log::Log;
use crate::process::Processes;

/// An agent server to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Whose it is: its database outlives every revision.
    pub deployment: DeploymentId,
    /// What it runs.
    pub revision: RevisionId,
    /// The artifact's key.
    pub artifact: String,
    /// Variables, secrets among them.
    pub variables: Vec<(String, Secret)>,
    /// CPUs it may use.
    pub cpus: Option<f64>,
    /// Memory it may use, in MB.
    pub memory_mb: Option<u64>,
}

/// An agent server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// What it runs.
    pub revision: RevisionId,
    /// Where the gateway finds it: `host:port`.
    pub address: String,
}

/// A way to run deployments.
#[derive(Debug)]
pub enum Backend {
    /// Agent servers as processes of this machine.
    Process(Processes),
    /// None at all: for tests of what stands above.
    Fake(Fake),
}

impl Backend {
    /// Starts the agent server beside whatever runs, on an empty database, looks whether it becomes healthy, and stops
    /// it.
    ///
    /// # Errors
    /// It does not, or somebody asked to stop.
    pub async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        match self {
            Self::Process(processes) => processes.check(launch, log, cancel).await,
            Self::Fake(fake) => fake.check(launch, cancel).await,
        }
    }

    /// Starts the agent server on the deployment's database, after it stopped the one that is there, and waits until
    /// it is healthy. Answers where it is. When this fails, none runs.
    ///
    /// # Errors
    /// It does not become healthy, or somebody asked to stop.
    pub async fn replace(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<State> {
        match self {
            Self::Process(processes) => processes.replace(launch, log, cancel).await,
            Self::Fake(fake) => fake.replace(launch, cancel).await,
        }
    }

    /// What runs of a deployment.
    #[must_use]
    pub fn state(&self, deployment: DeploymentId) -> Option<State> {
        match self {
            Self::Process(processes) => processes.state(deployment),
            Self::Fake(fake) => fake.state(deployment),
        }
    }

    /// Every deployment of which something runs.
    #[must_use]
    pub fn running(&self) -> Vec<DeploymentId> {
        match self {
            Self::Process(processes) => processes.running(),
            Self::Fake(fake) => fake.running(),
        }
    }

    /// Stops what runs of a deployment, its running work handed back to its database.
    pub async fn stop(&self, deployment: DeploymentId) {
        match self {
            Self::Process(processes) => processes.stop(deployment).await,
            Self::Fake(fake) => fake.stop(deployment),
        }
    }

    /// Stops everything.
    pub async fn stop_all(&self) {
        match self {
            Self::Process(processes) => processes.stop_all().await,
            Self::Fake(fake) => fake.stop_all(),
        }
    }

    /// Stops what runs of a deployment and removes its database.
    ///
    /// # Errors
    /// The disk's.
    pub async fn remove(&self, deployment: DeploymentId) -> Result<()> {
        match self {
            Self::Process(processes) => processes.remove(deployment).await,
            Self::Fake(fake) => {
                fake.stop(deployment);
                Ok(())
            }
        }
    }

    /// Waits until an agent server has ended by itself.
    pub async fn ended(&self) {
        match self {
            Self::Process(processes) => processes.ended().await,
            Self::Fake(fake) => fake.ended().await,
        }
    }
}
