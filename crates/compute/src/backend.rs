//! What runs deployments.

use tokio_util::sync::CancellationToken;
use towpath_domain::registry::RegistryLogin;
use towpath_domain::{DeploymentId, RevisionId, Secret};

use crate::agent::Agent;
use crate::artifact::{Artifact, Built, Origin, Plan};
use crate::build;
use crate::docker::{Container, Containers, Pulled};
use crate::error::{Error, Result};
use crate::fake::Fake;
use crate::health;
use crate::log::Log;
use crate::process::Processes;
use crate::root::Root;

/// What is only checked needs one process for its graphs: each loads all of them.
pub(crate) const ONE_HOST: (&str, &str) = ("TOWPATH_AGENT_HOSTS", "1");

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

/// An agent server whose graphs are loaded, and which waits for its database. Dropped, it is ended.
#[derive(Debug)]
pub struct Standby(Waiting);

#[derive(Debug)]
enum Waiting {
    Process(Agent),
    Docker(Container),
    /// It is started when its turn comes.
    Nothing,
}

/// A way to run deployments.
#[derive(Debug)]
pub enum Backend {
    /// Agent servers as processes of this machine.
    Process(Processes),
    /// Agent servers as containers of a Docker engine.
    Docker(Box<Containers>),
    /// None at all: for tests of what stands above.
    Fake(Fake),
}

impl Backend {
    /// Ends what an earlier life of this process left running. Call it before anything is started.
    ///
    /// # Errors
    /// What runs agent servers does not answer.
    pub async fn begin(&self) -> Result<()> {
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
    ///
    /// # Errors
    /// What runs agent servers does not answer.
    pub async fn has(&self, artifact: &Artifact) -> Result<bool> {
        let Some(built) = artifact.built() else {
            return Ok(false);
        };
        match self {
            Self::Process(_) | Self::Fake(_) => Ok(built.image.is_none()),
            Self::Docker(containers) => containers.has(&built).await,
        }
    }

    /// Builds the artifact of a plan, whose tree was fetched. Doing it again begins anew.
    ///
    /// # Errors
    /// The configuration cannot be used, a program fails, or somebody asked to stop.
    pub async fn build(
        &self,
        settings: &build::Settings,
        root: &Root,
        plan: &Plan,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<Built> {
        let key = plan.key();
        let artifact = Artifact::of(root, &key)?;
        match self {
            Self::Process(_) | Self::Fake(_) => build::build(settings, root, &artifact, plan, log, cancel).await,
            Self::Docker(containers) => containers.build(&artifact, &key, plan, log, cancel).await,
        }
    }

    /// Makes what the code of a deployment runs in, as the last part of the build of its artifact. False where there is
    /// nothing to make: an image has it.
    ///
    /// # Errors
    /// It cannot be made, or somebody asked to stop.
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

    /// Removes what [`Backend::prepare`] has made, is older than so many hours, and no artifact needs any more. Answers
    /// how much went. Call it when nothing is prepared.
    ///
    /// # Errors
    /// The disk's.
    pub async fn prune_environments(&self, hours: u64) -> Result<usize> {
        match self {
            Self::Process(processes) => processes.prune_environments(hours).await,
            Self::Docker(_) | Self::Fake(_) => Ok(0),
        }
    }

    /// Fetches an image of a registry, with the login that fits it, where there is one.
    ///
    /// # Errors
    /// There is none of that name, or images cannot be started here.
    pub async fn pull(
        &self,
        uri: &str,
        logins: &[RegistryLogin],
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<Pulled> {
        match self {
            Self::Docker(containers) => containers.pull(uri, logins, log, cancel).await,
            Self::Process(_) | Self::Fake(_) => Err(no_images()),
        }
    }

    /// Makes the artifact of an image that was pulled, whose key is [`image_key`].
    ///
    /// # Errors
    /// The image is gone again, or the disk's.
    pub async fn record_image(&self, root: &Root, uri: &str, pulled: &Pulled) -> Result<String> {
        let Self::Docker(containers) = self else {
            return Err(no_images());
        };
        let plan = image_plan(uri, pulled);
        let key = plan.key();
        let built = Built {
            plan,
            variables: Vec::new(),
            image: Some(pulled.id.clone()),
        };
        // Before its name: a sweep takes names that no record stands for.
        Artifact::of(root, &key)?.record_image(&built)?;
        containers.keep(&key, pulled).await?;
        Ok(key)
    }

    /// Removes images whose artifact is gone.
    ///
    /// # Errors
    /// What runs agent servers does not answer.
    pub async fn sweep(&self) -> Result<()> {
        match self {
            Self::Process(_) | Self::Fake(_) => Ok(()),
            Self::Docker(containers) => containers.sweep().await.map(drop),
        }
    }

    /// Starts the agent server beside whatever runs, on an empty database, looks whether it becomes healthy, and stops
    /// it.
    ///
    /// # Errors
    /// It does not, or somebody asked to stop.
    pub async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        match self {
            Self::Process(processes) => processes.check(launch, log, cancel).await,
            Self::Docker(containers) => containers.check(launch, log, cancel).await,
            Self::Fake(fake) => fake.check(launch, cancel).await,
        }
    }

    /// Starts the agent server as far as it goes while the one that is there has the database: its graphs are loaded.
    ///
    /// # Errors
    /// They cannot be loaded, or somebody asked to stop.
    pub async fn stand_by(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<Standby> {
        Ok(Standby(match self {
            Self::Process(processes) => Waiting::Process(processes.stand_by(launch, log, cancel).await?),
            Self::Docker(containers) => match containers.stand_by(launch, log, cancel).await? {
                Some(container) => Waiting::Docker(container),
                None => Waiting::Nothing,
            },
            Self::Fake(_) => Waiting::Nothing,
        }))
    }

    /// Starts the agent server on the deployment's database, after it stopped the one that is there, and waits until
    /// it is healthy. Answers where it is. When this fails, none runs.
    ///
    /// # Errors
    /// It does not become healthy, or somebody asked to stop.
    pub async fn replace(
        &self,
        launch: &Launch,
        standby: Standby,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<State> {
        match (self, standby.0) {
            (Self::Process(processes), Waiting::Process(agent)) => processes.replace(launch, agent, cancel).await,
            (Self::Docker(containers), Waiting::Docker(container)) => {
                containers.replace(launch, Some(container), log, cancel).await
            }
            (Self::Docker(containers), _) => containers.replace(launch, None, log, cancel).await,
            (Self::Fake(fake), _) => fake.replace(launch, cancel).await,
            (Self::Process(_), _) => Err(Error::Refused("nothing stands by that could take over".to_owned())),
        }
    }

    /// The id of the database of a deployment that is there, where it has one.
    ///
    /// # Errors
    /// What runs agent servers does not answer.
    pub async fn database(&self, deployment: DeploymentId) -> Result<Option<String>> {
        match self {
            Self::Process(processes) => Ok(processes.root().database(deployment)),
            Self::Docker(containers) => containers.database(deployment).await,
            Self::Fake(fake) => Ok(fake.database(deployment)),
        }
    }

    /// The same of a deployment that runs, whose database is given an id where it has none.
    ///
    /// # Errors
    /// The disk's, or what runs agent servers does not answer.
    pub async fn name_database(&self, deployment: DeploymentId) -> Result<String> {
        match self {
            Self::Process(processes) => processes.root().name_database(deployment),
            Self::Docker(containers) => {
                let found = containers.database(deployment).await?;
                found.ok_or_else(|| Error::Transient("the volume of the database is gone".to_owned()))
            }
            Self::Fake(fake) => Ok(fake.name_database(deployment)),
        }
    }

    /// What runs of a deployment.
    #[must_use]
    pub fn state(&self, deployment: DeploymentId) -> Option<State> {
        match self {
            Self::Process(processes) => processes.agents().state(deployment),
            Self::Docker(containers) => containers.running().state(deployment),
            Self::Fake(fake) => fake.state(deployment),
        }
    }

    /// Whether what runs of a deployment answers `/ok` within a few seconds. False when nothing runs.
    pub async fn answers(&self, deployment: DeploymentId) -> bool {
        let Some(state) = self.state(deployment) else {
            return false;
        };
        match self {
            Self::Process(_) | Self::Docker(_) => health::answers(&state.address).await,
            Self::Fake(fake) => !fake.is_deaf(deployment),
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

    /// Stops what runs of a deployment, its running work handed back to its database.
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
    ///
    /// # Errors
    /// The disk's.
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

/// The key of the artifact that an image is, which is known once it was pulled.
#[must_use]
pub fn image_key(uri: &str, pulled: &Pulled) -> String {
    image_plan(uri, pulled).key()
}

fn image_plan(uri: &str, pulled: &Pulled) -> Plan {
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
