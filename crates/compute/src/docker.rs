//! Agent servers as containers of a Docker engine.
//!
//! What the platform makes there carries labels: the root folder it belongs to, and the life of the process that made
//! it. Whoever holds the root's lock removes the containers of earlier lives, so a platform that was killed leaves
//! nothing behind. Databases lie in volumes named after their deployment. As with processes, one container at a time
//! has a database, so the switch is the same: check on an empty volume, stop the old one, start the new one.

mod container;
mod dockerfile;
mod image;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as EngineError;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use towpath_domain::{DeploymentId, Secret};
use uuid::Uuid;

pub(crate) use self::container::Container;
pub use self::container::Network;
use self::container::{DATA, Startup};
pub use self::image::Pulled;
use crate::artifact::{Artifact, Built, Origin};
use crate::backend::{Launch, ONE_HOST, State};
use crate::error::{Error, Result};
use crate::health;
use crate::instances::{Instance as _, Instances};
use crate::log::Log;
use crate::root::Root;

/// Whose it is: the root folder.
const ROOT_LABEL: &str = "dev.towpath.root";
/// Which life of the process made it.
const LIFE_LABEL: &str = "dev.towpath.life";
const DEPLOYMENT_LABEL: &str = "dev.towpath.deployment";
const REVISION_LABEL: &str = "dev.towpath.revision";
/// What a call to the engine may take; builds, pulls, logs and waits go on as long as they answer.
const CALL_LIMIT_SECONDS: u64 = 120;

/// What the operator says about containers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the engine is: `unix:///var/run/docker.sock`, or `tcp://` on this machine.
    pub host: String,
    /// How the gateway reaches containers.
    pub network: Network,
    /// What images are built from; `{python_version}` stands for the version of the graph configuration.
    pub base_image: String,
    /// The program that goes into images: `towpath`.
    pub program: PathBuf,
    /// A `config.json` of Docker with logins of registries that every workspace may pull from.
    pub logins: Option<PathBuf>,
    /// Variables of this machine that builds and agent servers need: proxies, registries.
    pub variables: BTreeMap<String, Secret>,
    /// Settings of agent servers that their owners cannot change.
    pub fixed: Vec<(String, String)>,
    /// How long one may take until it is healthy.
    pub health: Duration,
    /// What its work gets when it is asked to stop.
    pub grace: Duration,
    /// What a build may take.
    pub build: Duration,
}

/// The containers.
#[derive(Debug)]
pub struct Containers {
    engine: bollard::Docker,
    settings: Settings,
    root: Root,
    life: String,
    running: Instances<Container>,
    /// CPUs of the engine's machine: it refuses limits above.
    cpus: OnceCell<f64>,
    /// The image that holds the program.
    program: OnceCell<String>,
}

impl Containers {
    /// None yet. The engine need not answer now.
    ///
    /// # Errors
    /// An address that is none.
    pub fn new(settings: Settings, root: Root) -> Result<Self> {
        let host = &settings.host;
        let version = bollard::API_DEFAULT_VERSION;
        let engine = if host.starts_with("unix://") {
            bollard::Docker::connect_with_unix(host, CALL_LIMIT_SECONDS, version)
        } else {
            bollard::Docker::connect_with_http(host, CALL_LIMIT_SECONDS, version)
        };
        let engine = engine.map_err(|error| Error::Refused(format!("the Docker engine at {host}: {error}")))?;
        Ok(Self {
            engine,
            settings,
            root,
            life: Uuid::now_v7().to_string(),
            running: Instances::default(),
            cpus: OnceCell::new(),
            program: OnceCell::new(),
        })
    }

    /// Removes the containers that earlier lives left.
    ///
    /// # Errors
    /// The engine does not answer, or does not want to.
    pub(crate) async fn begin(&self) -> Result<()> {
        let ours = HashMap::from([("label", vec![format!("{ROOT_LABEL}={}", self.root.mark())])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&ours).build();
        let found = self.engine.list_containers(Some(options)).await;
        let mut removed = 0;
        for container in found.map_err(engine_failed("listing containers"))? {
            let life = container.labels.as_ref().and_then(|labels| labels.get(LIFE_LABEL));
            let (Some(id), true) = (container.id, life != Some(&self.life)) else {
                continue;
            };
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            match self.engine.remove_container(&id, Some(options)).await {
                Ok(()) => removed += 1,
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(engine_failed("removing a container")(error)),
            }
        }
        if removed > 0 {
            tracing::warn!(containers = removed, "removed what an earlier life left running");
        }
        Ok(())
    }

    pub(crate) const fn running(&self) -> &Instances<Container> {
        &self.running
    }

    pub(crate) async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        let container = self.start(launch, None, false, log, cancel).await?;
        let healthy = container.healthy(self.settings.health, cancel).await;
        container.life().stop().await;
        healthy.map(drop)
    }

    /// Starts it on the deployment's volume, where it is one that can wait with its graphs loaded: an image of somebody
    /// else's makes cannot.
    pub(crate) async fn stand_by(
        &self,
        launch: &Launch,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<Option<Container>> {
        let built = self.built(launch)?;
        if command(&built, true).is_none() {
            return Ok(None);
        }
        let container = self.on_volume(launch, true, log, cancel).await?;
        match container.life().loaded(self.settings.health, cancel).await {
            Ok(()) => Ok(Some(container)),
            Err(error) => {
                container.life().stop().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn replace(
        &self,
        launch: &Launch,
        standby: Option<Container>,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<State> {
        let mut limit = self.settings.health;
        if let Some(container) = &standby {
            health::stands_by(container.life())?;
            limit = health::switch_limit(self.running.state(launch.deployment).is_some(), limit);
        }
        self.running.stop(launch.deployment).await;
        let waits = standby.is_some();
        let container = match standby {
            Some(container) => container,
            None => self.on_volume(launch, false, log, cancel).await?,
        };
        let container = Arc::new(container);
        self.running.enter(launch.deployment, Arc::clone(&container));
        let healthy = async {
            if waits {
                container.go(&self.engine).await?;
            }
            container.healthy(limit, cancel).await
        };
        match healthy.await {
            Ok(address) => {
                let address = address.to_string();
                Ok(self.running.put(launch.deployment, container, launch.revision, address))
            }
            Err(error) => {
                self.running.stop(launch.deployment).await;
                Err(error)
            }
        }
    }

    async fn on_volume(
        &self,
        launch: &Launch,
        standby: bool,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<Container> {
        let volume = volume(launch.deployment);
        let request = VolumeCreateRequest {
            name: Some(volume.clone()),
            labels: Some(HashMap::from([
                (ROOT_LABEL.to_owned(), self.root.mark()),
                (DEPLOYMENT_LABEL.to_owned(), launch.deployment.to_string()),
            ])),
            ..VolumeCreateRequest::default()
        };
        let made = self.engine.create_volume(request).await;
        made.map_err(engine_failed("making the volume of the database"))?;
        self.start(launch, Some(volume), standby, log, cancel).await
    }

    fn built(&self, launch: &Launch) -> Result<Built> {
        let built = Artifact::of(&self.root, &launch.artifact)?.built();
        built.ok_or_else(|| Error::Refused("the image of this revision is not there any more".to_owned()))
    }

    pub(crate) async fn remove(&self, deployment: DeploymentId) -> Result<()> {
        self.running.stop(deployment).await;
        let options = RemoveVolumeOptionsBuilder::new().force(true).build();
        match self.engine.remove_volume(&volume(deployment), Some(options)).await {
            Err(error) if !is_gone(&error) => Err(engine_failed("removing the deployment's database")(error)),
            _ => Ok(()),
        }
    }

    async fn start(
        &self,
        launch: &Launch,
        volume: Option<String>,
        standby: bool,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<Container> {
        let built = self.built(launch)?;
        let image = built.image.clone();
        let image = image.ok_or_else(|| Error::Refused("this revision was not built as an image".to_owned()))?;
        let mut variables = self.machine();
        variables.extend(built.variables.iter().cloned());
        let own = launch.variables.iter();
        variables.extend(own.map(|(name, value)| (name.clone(), value.reveal().to_owned())));
        // Last, so that they win.
        variables.extend(self.settings.fixed.iter().cloned());
        let grace = self.settings.grace;
        variables.push((
            "TOWPATH_ENGINE_DRAIN_GRACE_SECONDS".to_owned(),
            grace.as_secs().to_string(),
        ));
        if volume.is_none() {
            variables.push((ONE_HOST.0.to_owned(), ONE_HOST.1.to_owned()));
        }
        let given = Startup {
            image,
            command: command(&built, standby),
            variables,
            labels: HashMap::from([
                (ROOT_LABEL.to_owned(), self.root.mark()),
                (LIFE_LABEL.to_owned(), self.life.clone()),
                (DEPLOYMENT_LABEL.to_owned(), launch.deployment.to_string()),
                (REVISION_LABEL.to_owned(), launch.revision.to_string()),
            ]),
            network: self.settings.network.clone(),
            volume,
            cpus: match launch.cpus {
                Some(wanted) => Some(wanted.min(self.cpus().await?)),
                None => None,
            },
            memory_mb: launch.memory_mb,
            grace,
        };
        Artifact::of(&self.root, &launch.artifact)?.touch();
        tokio::select! {
            () = cancel.cancelled() => Err(Error::Cancelled),
            started = Container::start(&self.engine, given, log) => started,
        }
    }

    async fn cpus(&self) -> Result<f64> {
        let ask = || async {
            let info = self.engine.info().await.map_err(engine_failed("asking the engine"))?;
            Ok(info.ncpu.map_or(f64::MAX, |cpus| cpus as f64))
        };
        self.cpus.get_or_try_init(ask).await.copied()
    }

    fn machine(&self) -> Vec<(String, String)> {
        let variables = self.settings.variables.iter();
        variables
            .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
            .collect()
    }

    /// What names of images of this root begin with: several platforms may share an engine.
    fn repository(&self) -> String {
        let hash = Sha256::digest(self.root.mark());
        format!("towpath-{}", hex::encode(&hash[..6]))
    }
}

/// Started in place of what an image says: `towpath` itself in the images that are built here.
fn command(built: &Built, standby: bool) -> Option<Vec<String>> {
    if matches!(built.plan.origin, Origin::Image { .. }) {
        return None;
    }
    let config = format!("{}/{}", dockerfile::SOURCE, built.plan.config);
    let words = [
        dockerfile::PROGRAM,
        "agent",
        "--config",
        &config,
        "--data-dir",
        DATA,
        "--settings",
        dockerfile::SETTINGS,
    ];
    let words = words.into_iter().chain(standby.then_some("--standby"));
    Some(words.map(str::to_owned).collect())
}

fn volume(deployment: DeploymentId) -> String {
    format!("towpath-{deployment}")
}

/// For `map_err`: what an engine's error means.
fn engine_failed(what: &'static str) -> impl FnOnce(EngineError) -> Error {
    move |error| match error {
        // It is there and says no; at 500 and above it may say yes later, but says why now.
        EngineError::DockerResponseServerError { message, .. } => Error::Refused(format!("{what}: {message}")),
        EngineError::DockerStreamError { error } => Error::Refused(format!("{what}: {error}")),
        other => Error::Transient(format!("{what}: the Docker engine does not answer: {other}")),
    }
}

fn is_gone(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 404, .. })
}
