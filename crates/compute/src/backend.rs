//! What runs deployments.

use tokio_util::sync::CancellationToken;
use towpath_domain::DeploymentId;
use towpath_domain::registry::RegistryLogin;

use crate::agent::Agent;
use crate::artifact::{Artifact, BuiltArtifact, Origin, Plan};
use crate::build;
use crate::docker::{Container, Containers, PulledImage};
use crate::error::{Error, Result};
use crate::fake::Fake;
use crate::health;
use crate::launch::{Launch, RunningAgent};
use crate::log::Log;
use crate::process::Processes;
use crate::root::Root;

/// A standby agent server: its graphs are loaded, and it waits for its database. Dropped, it is stopped.
#[derive(Debug)]
pub struct Standby(StandbyKind);

#[derive(Debug)]
enum StandbyKind {
    Process(Agent),
    Docker(Container),
    /// It is started when its turn comes.
    None,
}

/// A way to run deployments.
#[derive(Debug)]
pub enum Backend {
    /// Agent servers as processes of this machine.
    Process(Processes),
    /// Agent servers as containers of a Docker engine.
    Docker(Box<Containers>),
    /// None at all: for tests of what is above.
    Fake(Fake),
}

impl Backend {
    /// Stops everything that an earlier process left running. Call it before anything is started.
    pub async fn end_leftovers(&self) -> Result<()> {
        match self {
            // The root's lock did, when it was taken.
            Self::Process(_) | Self::Fake(_) => Ok(()),
            Self::Docker(containers) => containers.begin().await,
        }
    }

    /// Whether it can start images of a registry.
    #[must_use]
    pub const fn runs_images(&self) -> bool {
        matches!(self, Self::Docker(_))
    }

    /// Fields of a resource specification that have an effect here.
    #[must_use]
    pub const fn honours(&self) -> &'static [&'static str] {
        const SIZES: [&str; 5] = ["cpu", "cpu_limit", "memory_mb", "memory_limit_mb", "image_pull_secrets"];
        match self {
            Self::Docker(_) => &SIZES,
            Self::Process(processes) => processes.honours(),
            // Nothing is pulled.
            Self::Fake(_) => SIZES.split_at(4).0,
        }
    }

    /// Whether an artifact can be started as it is.
    pub async fn has(&self, artifact: &Artifact) -> Result<bool> {
        let Some(built) = artifact.built() else {
            return Ok(false);
        };
        match self {
            Self::Process(_) | Self::Fake(_) => Ok(built.image.is_none()),
            Self::Docker(containers) => containers.has(&built).await,
        }
    }

    /// Builds the artifact of a plan whose tree was fetched. A repeated build starts over.
    pub async fn build(
        &self,
        settings: &build::Settings,
        root: &Root,
        plan: &Plan,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<BuiltArtifact> {
        let key = plan.key();
        let artifact = Artifact::of(root, &key)?;
        match self {
            Self::Process(_) | Self::Fake(_) => build::build(settings, root, &artifact, plan, log, cancel).await,
            Self::Docker(containers) => containers.build(&artifact, &key, plan, log, cancel).await,
        }
    }

    /// Creates the environments for a deployment's code, as the last step of the build. False if there is nothing to
    /// create: images contain them.
    pub async fn prepare(
        &self,
        settings: &build::Settings,
        launch: &Launch,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<bool> {
        match self {
            Self::Process(processes) => processes.prepare(launch, settings, log, cancel).await,
            Self::Docker(_) | Self::Fake(_) => Ok(false),
        }
    }

    /// Removes environments from [`Backend::prepare`] that are older than this many hours and that no artifact needs.
    /// Returns how many. Call it while nothing is being prepared.
    pub async fn prune_environments(&self, hours: u64) -> Result<usize> {
        match self {
            Self::Process(processes) => processes.prune_environments(hours).await,
            Self::Docker(_) | Self::Fake(_) => Ok(0),
        }
    }

    /// Pulls an image from a registry, with the matching credentials, if any.
    pub async fn pull(
        &self,
        uri: &str,
        logins: &[RegistryLogin],
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<PulledImage> {
        match self {
            Self::Docker(containers) => containers.pull(uri, logins, log, cancel).await,
            Self::Process(_) | Self::Fake(_) => Err(no_images()),
        }
    }

    /// Records the artifact of a pulled image, whose key is [`image_key`].
    pub async fn record_image(&self, root: &Root, uri: &str, pulled: &PulledImage) -> Result<String> {
        let Self::Docker(containers) = self else {
            return Err(no_images());
        };
        let plan = image_plan(uri, pulled);
        let key = plan.key();
        let built = BuiltArtifact {
            plan,
            variables: Vec::new(),
            image: Some(pulled.id.clone()),
        };
        // Recorded before it is named: a sweep removes names without a record.
        Artifact::of(root, &key)?.record_image(&built)?;
        containers.keep(&key, pulled).await?;
        Ok(key)
    }

    /// Removes images whose artifact is gone.
    pub async fn sweep(&self) -> Result<()> {
        match self {
            Self::Process(_) | Self::Fake(_) => Ok(()),
            Self::Docker(containers) => containers.sweep().await.map(drop),
        }
    }

    /// Checks an agent server: starts it next to whatever runs, on an empty database, waits until it is healthy, and
    /// stops it.
    pub async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        match self {
            Self::Process(processes) => processes.check(launch, log, cancel).await,
            Self::Docker(containers) => containers.check(launch, log, cancel).await,
            Self::Fake(fake) => fake.check(launch, cancel).await,
        }
    }

    /// Starts a standby agent server while the current one has the database, up to the point where its graphs are
    /// loaded.
    pub async fn stand_by(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<Standby> {
        Ok(Standby(match self {
            Self::Process(processes) => StandbyKind::Process(processes.stand_by(launch, log, cancel).await?),
            Self::Docker(containers) => match containers.stand_by(launch, log, cancel).await? {
                Some(container) => StandbyKind::Docker(container),
                None => StandbyKind::None,
            },
            Self::Fake(_) => StandbyKind::None,
        }))
    }

    /// Stops the current agent server, starts the new one on the deployment's database, and waits until it is healthy.
    /// Returns its address. If this fails, none runs.
    pub async fn replace(
        &self,
        launch: &Launch,
        standby: Standby,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<RunningAgent> {
        match (self, standby.0) {
            (Self::Process(processes), StandbyKind::Process(agent)) => processes.replace(launch, agent, cancel).await,
            (Self::Docker(containers), StandbyKind::Docker(container)) => {
                containers.replace(launch, Some(container), log, cancel).await
            }
            (Self::Docker(containers), _) => containers.replace(launch, None, log, cancel).await,
            (Self::Fake(fake), _) => fake.replace(launch, cancel).await,
            (Self::Process(_), _) => Err(Error::Refused("no standby agent server could take over".to_owned())),
        }
    }

    /// The id of a deployment's existing database, if it has one.
    pub async fn database(&self, deployment: DeploymentId) -> Result<Option<String>> {
        match self {
            Self::Process(processes) => Ok(processes.root().database(deployment)),
            Self::Docker(containers) => containers.database(deployment).await,
            Self::Fake(fake) => Ok(fake.database(deployment)),
        }
    }

    /// The same for a running deployment; assigns an id if its database has none.
    pub async fn name_database(&self, deployment: DeploymentId) -> Result<String> {
        match self {
            Self::Process(processes) => processes.root().name_database(deployment),
            Self::Docker(containers) => {
                let found = containers.database(deployment).await?;
                found.ok_or_else(|| Error::Transient("the volume of the database is missing".to_owned()))
            }
            Self::Fake(fake) => Ok(fake.name_database(deployment)),
        }
    }

    /// What runs of a deployment.
    #[must_use]
    pub fn state(&self, deployment: DeploymentId) -> Option<RunningAgent> {
        match self {
            Self::Process(processes) => processes.agents().state(deployment),
            Self::Docker(containers) => containers.running().state(deployment),
            Self::Fake(fake) => fake.state(deployment),
        }
    }

    /// Whether the agent server of a deployment answers `/ok` within a few seconds. False if none runs.
    pub async fn answers(&self, deployment: DeploymentId) -> bool {
        let Some(state) = self.state(deployment) else {
            return false;
        };
        match self {
            Self::Process(_) | Self::Docker(_) => health::answers(&state.address).await,
            Self::Fake(fake) => fake.check_health(deployment),
        }
    }

    /// Every deployment of which something runs.
    #[must_use]
    pub fn running(&self) -> Vec<DeploymentId> {
        match self {
            Self::Process(processes) => processes.agents().running(),
            Self::Docker(containers) => containers.running().running(),
            Self::Fake(fake) => fake.running(),
        }
    }

    /// Stops the agent server of a deployment; it hands unfinished work back to its database.
    pub async fn stop(&self, deployment: DeploymentId) {
        match self {
            Self::Process(processes) => processes.agents().stop(deployment).await,
            Self::Docker(containers) => containers.running().stop(deployment).await,
            Self::Fake(fake) => fake.drain(deployment).await,
        }
    }

    /// Stops everything.
    pub async fn stop_all(&self) {
        match self {
            Self::Process(processes) => processes.agents().stop_all().await,
            Self::Docker(containers) => containers.stop_all().await,
            Self::Fake(fake) => fake.stop_all(),
        }
    }

    /// Stops what runs of a deployment and removes its database.
    pub async fn remove(&self, deployment: DeploymentId) -> Result<()> {
        match self {
            Self::Process(processes) => processes.remove(deployment).await,
            Self::Docker(containers) => containers.remove(deployment).await,
            Self::Fake(fake) => {
                fake.stop(deployment);
                fake.put_database(deployment, None);
                Ok(())
            }
        }
    }

    /// Waits until an agent server has ended by itself.
    pub async fn ended(&self) {
        match self {
            Self::Process(processes) => processes.agents().ended().await,
            Self::Docker(containers) => containers.running().ended().await,
            Self::Fake(fake) => fake.ended().await,
        }
    }
}

/// The key of the artifact of a pulled image.
#[must_use]
pub fn image_key(uri: &str, pulled: &PulledImage) -> String {
    image_plan(uri, pulled).key()
}

fn image_plan(uri: &str, pulled: &PulledImage) -> Plan {
    Plan {
        origin: Origin::Image {
            uri: uri.to_owned(),
            id: pulled.id.clone(),
        },
        config: String::new(),
        install: None,
        build: None,
    }
}

fn no_images() -> Error {
    Error::Refused("images cannot be started here: no container backend is configured".to_owned())
}
