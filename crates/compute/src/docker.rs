//! Agent servers as containers of a Docker engine.
//!
//! Everything the platform creates there carries labels: its root folder, and the process life that created it. The
//! holder of the root's lock removes the containers of earlier lives, so a killed platform leaves nothing behind.
//! Databases are in volumes named after their deployment. As with processes, one container at a time has a database, so
//! the switch is the same: check on an empty volume, stop the old one, start the new one.

mod backup;
mod container;
mod dockerfile;
mod failure;
mod image;
mod labels;
mod pack;
mod program;
mod program_cache;
mod reference;
mod volume;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as EngineError;
use bollard::models::{NetworkCreateRequest, VolumeCreateRequest};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;
use towpath_domain::{DeploymentId, Secret};
use towpath_outbound::Guard;
use uuid::Uuid;

pub use self::backup::{Ids, RestoreRef, VolumeMetadata, Volumes};
pub(crate) use self::container::Container;
pub use self::container::Network;
use self::container::Startup;
use self::failure::{engine_failed, is_gone};
pub use self::image::PulledImage;
use self::labels::{DATABASE_LABEL, DEPLOYMENT_LABEL, LIFE_LABEL, REVISION_LABEL, ROOT_LABEL};
use self::program_cache::ProgramCache;
use self::volume::{Owner, User};
use crate::artifact::{Artifact, BuiltArtifact, Origin};
use crate::error::{Error, Result};
use crate::health;
use crate::instances::{Instance as _, Instances};
use crate::launch::{Launch, ONE_HOST, RunningAgent};
use crate::log::Log;
use crate::root::Root;
use crate::tree;

/// Time for the engine to stop a container, in addition to the container's own time.
const STOP_MARGIN: Duration = Duration::from_secs(15);
/// The setting that leaves images that name no user to root.
const IMAGE_USER: &str = "image";
/// Time limit of a call to the engine; builds, pulls, logs and waits may take longer while they make progress.
const CALL_LIMIT_SECONDS: u64 = 120;

/// What the operator says about containers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine: `unix:///var/run/docker.sock`, or `tcp://` on this machine.
    pub host: String,
    /// How the gateway reaches containers.
    pub network: Network,
    /// Base of built images; `{python_version}` is replaced by the version from the graph configuration.
    pub base_image: String,
    /// The program that goes into images: `towpath`.
    pub program: PathBuf,
    /// A Docker `config.json` with credentials for registries that every workspace may pull from.
    pub logins: Option<PathBuf>,
    /// Environment variables of this machine that builds and agent servers need: proxies, registries.
    pub variables: BTreeMap<String, Secret>,
    /// Settings of agent servers that their owners cannot change.
    pub fixed: Vec<(String, String)>,
    /// How long one may take until it is healthy.
    pub health: Duration,
    /// What its work gets when it is asked to stop.
    pub grace: Duration,
    /// What a build may take.
    pub build: Duration,
    /// Memory of one step of a build.
    pub build_memory_bytes: i32,
    /// CPUs of one step of a build.
    pub build_cpus: i32,
    /// The container runtime, if not the engine's default: for example `runsc`.
    pub runtime: Option<String>,
    /// The user of images that set none: two numbers separated by a colon, or `image` for root.
    pub user: String,
    /// Judges the registries of images.
    pub guard: Guard,
    /// `host:port` of the platform's own registry.
    pub registries: Vec<String>,
}

#[derive(Debug)]
pub struct Containers {
    engine: bollard::Docker,
    settings: Settings,
    root: Root,
    process_life: String,
    running: Instances<Container>,
    /// CPUs of the engine's machine: it refuses limits above.
    cpus: OnceCell<f64>,
    /// One at a time makes its image or its volume.
    program: Mutex<ProgramCache>,
    /// Networks are created one at a time: an engine accepts duplicate names, which then cannot be used.
    networks: Mutex<()>,
}

impl Containers {
    /// None yet. The engine need not answer now.
    pub fn new(settings: Settings, root: Root) -> Result<Self> {
        let host = &settings.host;
        // Agent servers would listen on the loopback of the engine's machine.
        if settings.network == Network::Host && !host.starts_with("unix://") {
            return Err(Error::Refused(
                "deployments.docker_network = host needs an engine on this machine: set deployments.docker_host to a unix:// address"
                    .to_owned(),
            ));
        }
        if settings.user != IMAGE_USER && (User::parse(&settings.user) == User::Named || settings.user.is_empty()) {
            return Err(Error::Refused(
                "deployments.docker_user must be two numbers such as 10001:10001, or image".to_owned(),
            ));
        }
        Ok(Self {
            engine: connect(host, CALL_LIMIT_SECONDS)?,
            settings,
            root,
            process_life: Uuid::now_v7().to_string(),
            running: Instances::default(),
            cpus: OnceCell::new(),
            program: Mutex::default(),
            networks: Mutex::default(),
        })
    }

    /// Removes the containers that earlier lives left.
    pub(crate) async fn begin(&self) -> Result<()> {
        let ours = HashMap::from([("label", vec![format!("{ROOT_LABEL}={}", self.root.mark())])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&ours).build();
        let found = self.engine.list_containers(Some(options)).await;
        let mut removed = 0;
        for container in found.map_err(engine_failed("listing containers"))? {
            let life = container.labels.as_ref().and_then(|labels| labels.get(LIFE_LABEL));
            let (Some(id), true) = (container.id, life != Some(&self.process_life)) else {
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
            tracing::warn!(
                containers = removed,
                "removed containers that an earlier process left running"
            );
        }
        Ok(())
    }

    pub(crate) const fn running(&self) -> &Instances<Container> {
        &self.running
    }

    /// Stops everything. An engine that does not answer is not waited for: the next process life removes what is left.
    pub(crate) async fn stop_all(&self) {
        let limit = self.settings.grace + STOP_MARGIN;
        if tokio::time::timeout(limit, self.running.stop_all()).await.is_err() {
            tracing::warn!("the Docker engine does not confirm that containers were stopped");
        }
    }

    pub(crate) async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        let container = self.start(launch, None, false, log, cancel).await?;
        let healthy = container.healthy(self.settings.health, cancel).await;
        container.lifecycle().stop().await;
        healthy.map(drop)
    }

    /// Starts a standby on the deployment's volume, if the image supports it: images of other origin do not.
    pub(crate) async fn stand_by(
        &self,
        launch: &Launch,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<Option<Container>> {
        let built = self.built(launch)?;
        if dockerfile::command(&built, true).is_none() {
            return Ok(None);
        }
        let container = self.on_volume(launch, true, log, cancel).await?;
        match container.lifecycle().wait_loaded(self.settings.health, cancel).await {
            Ok(()) => Ok(Some(container)),
            Err(error) => {
                container.lifecycle().stop().await;
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
    ) -> Result<RunningAgent> {
        let mut limit = self.settings.health;
        if let Some(container) = &standby {
            container.lifecycle().check_standby()?;
            limit = health::switch_limit(self.running.state(launch.deployment).is_some(), limit);
        }
        self.running.stop(launch.deployment).await;
        let waits = standby.is_some();
        let container = match standby {
            Some(container) => container,
            None => self.on_volume(launch, false, log, cancel).await?,
        };
        let container = Arc::new(container);
        self.running.insert(launch.deployment, Arc::clone(&container)).await?;
        let healthy = async {
            if waits {
                container.open_database(&self.engine).await?;
            }
            container.healthy(limit, cancel).await
        };
        match healthy.await {
            Ok(address) => {
                let address = address.to_string();
                Ok(self
                    .running
                    .set_healthy(launch.deployment, container, launch.revision, address))
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
                // For an existing volume the engine keeps its labels.
                (DATABASE_LABEL.to_owned(), Uuid::now_v7().to_string()),
            ])),
            ..VolumeCreateRequest::default()
        };
        let made = self.engine.create_volume(request).await;
        made.map_err(engine_failed("creating the volume of the database"))?;
        self.start(launch, Some(volume), standby, log, cancel).await
    }

    pub(crate) async fn database(&self, deployment: DeploymentId) -> Result<Option<String>> {
        match self.engine.inspect_volume(&volume(deployment)).await {
            Ok(found) => Ok(volume::database(found)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(engine_failed("finding the deployment's database")(error)),
        }
    }

    fn built(&self, launch: &Launch) -> Result<BuiltArtifact> {
        let built = Artifact::of(&self.root, &launch.artifact)?.built();
        built.ok_or_else(|| Error::Refused("the image of this revision no longer exists".to_owned()))
    }

    pub(crate) async fn remove(&self, deployment: DeploymentId) -> Result<()> {
        self.running.stop(deployment).await;
        let options = RemoveVolumeOptionsBuilder::new().force(true).build();
        match self.engine.remove_volume(&volume(deployment), Some(options)).await {
            Err(error) if !is_gone(&error) => return Err(engine_failed("removing the deployment's database")(error)),
            _ => {}
        }
        match self.engine.remove_network(&volume(deployment)).await {
            Err(error) if !is_gone(&error) => return Err(engine_failed("removing the deployment's network")(error)),
            _ => {}
        }
        let folder = self.root.agent(deployment);
        crate::git::blocking(move || tree::remove(&folder).map_err(Error::io("removing the deployment's folder"))).await
    }

    /// The network that only this deployment's containers are in.
    async fn network(&self, deployment: DeploymentId) -> Result<String> {
        let name = volume(deployment);
        if self.settings.network != Network::Bridge {
            return Ok(name);
        }
        let _one = self.networks.lock().await;
        match self.engine.inspect_network(&name, None).await {
            Ok(_) => return Ok(name),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(engine_failed("finding the deployment's network")(error)),
        }
        let request = NetworkCreateRequest {
            name: name.clone(),
            driver: Some("bridge".to_owned()),
            labels: Some(HashMap::from([
                (ROOT_LABEL.to_owned(), self.root.mark()),
                (DEPLOYMENT_LABEL.to_owned(), deployment.to_string()),
            ])),
            ..NetworkCreateRequest::default()
        };
        match self.engine.create_network(request).await {
            Ok(_) => Ok(name),
            Err(EngineError::DockerResponseServerError { message, .. }) if message.contains("address pool") => {
                Err(Error::Refused(format!(
                    "creating the deployment's network: {message}; each deployment needs one: add \
                     default-address-pools to the engine"
                )))
            }
            Err(error) => Err(engine_failed("creating the deployment's network")(error)),
        }
    }

    /// The permissions of a container of an image, with its volume if it has one.
    async fn access(&self, built: &BuiltArtifact, image: &str, volume: Option<&str>, log: &Log) -> Result<Access> {
        let found = self.engine.inspect_image(image).await;
        let found = found.map_err(engine_failed("finding an image"))?;
        let own = found.config.and_then(|config| config.user).unwrap_or_default();
        let is_foreign = matches!(built.plan.origin, Origin::Image { .. });
        let user = User::parse(&own);
        // Images built by an earlier version of the platform name no user, and only root can read them.
        let named =
            (is_foreign && user.is_root() && self.settings.user != IMAGE_USER).then(|| self.settings.user.clone());
        let user = named.as_deref().map_or(user, User::parse);
        let access = Access {
            user: named,
            capabilities: Vec::new(),
            // Images built by an earlier version of the platform may need to create their environment again.
            read_only: !is_foreign && !own.is_empty(),
        };
        let Some(volume) = volume else {
            return Ok(access);
        };
        let helper = self.helper(image.to_owned(), volume.to_owned());
        let as_root = Access {
            user: Some("0:0".to_owned()),
            capabilities: vec!["DAC_OVERRIDE".to_owned()],
            read_only: access.read_only,
        };
        match volume::own(helper, user.clone()).await? {
            Owner::User => Ok(access),
            Owner::Root => {
                log.warn(format!(
                    "the files in the volume {volume} belong to root, so its container runs as root; see \
                     docs/hosting.md to change their owner"
                ));
                Ok(as_root)
            }
            Owner::Other if user.is_root() => Ok(as_root),
            Owner::Other => Ok(access),
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
        let image = image.ok_or_else(|| Error::Refused("this revision has no image".to_owned()))?;
        let access = self.access(&built, &image, volume.as_deref(), log).await?;
        let command = dockerfile::command(&built, standby);
        let program = match &command {
            Some(_) => Some(self.program_volume().await?),
            None => None,
        };
        let mut variables = self.machine();
        if command.is_some() {
            // The image's own cannot be written.
            variables.push(("HOME".to_owned(), "/tmp".to_owned()));
        }
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
            command,
            variables,
            labels: HashMap::from([
                (ROOT_LABEL.to_owned(), self.root.mark()),
                (LIFE_LABEL.to_owned(), self.process_life.clone()),
                (DEPLOYMENT_LABEL.to_owned(), launch.deployment.to_string()),
                (REVISION_LABEL.to_owned(), launch.revision.to_string()),
            ]),
            network: self.settings.network.clone(),
            own_network: self.network(launch.deployment).await?,
            volume,
            program,
            user: access.user,
            capabilities: access.capabilities,
            read_only: access.read_only,
            runtime: self.settings.runtime.clone(),
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

    /// The name prefix of images of this root: several platforms may share an engine.
    fn repository(&self) -> String {
        let hash = Sha256::digest(self.root.mark());
        format!("towpath-{}", hex::encode(&hash[..6]))
    }
}

/// What a container may do.
struct Access {
    /// Instead of whom the image names.
    user: Option<String>,
    /// What that user needs to use the volume.
    capabilities: Vec<String>,
    /// Whether it may only write to its volume and `/tmp`: foreign images may write anywhere.
    read_only: bool,
}

/// The engine need not answer now.
fn connect(host: &str, limit_seconds: u64) -> Result<bollard::Docker> {
    let version = bollard::API_DEFAULT_VERSION;
    let engine = if host.starts_with("unix://") {
        bollard::Docker::connect_with_unix(host, limit_seconds, version)
    } else {
        bollard::Docker::connect_with_http(host, limit_seconds, version)
    };
    engine.map_err(|error| Error::Refused(format!("the Docker engine at {host}: {error}")))
}

fn volume(deployment: DeploymentId) -> String {
    format!("towpath-{deployment}")
}
