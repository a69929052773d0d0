//! One agent server as a container.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use bollard::errors::Error as EngineError;
use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, KillContainerOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions, StopContainerOptionsBuilder, WaitContainerOptions,
};
use futures::StreamExt as _;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::dockerfile::{self, DATA};
use super::failure::{engine_failed, is_gone};
use crate::error::{Error, Result};
use crate::health::HealthTarget;
use crate::instances::Instance;
use crate::lifecycle::{Lifecycle, LifecycleReporter};
use crate::log::{Log, Splitter};

/// Where an agent server listens in a network of its own.
const PORT: u16 = 8000;
/// Limit of processes and threads per container, against fork bombs.
const PIDS: i64 = 4096;

/// How long the last lines of one that has ended are waited for.
const LINES_LIMIT: Duration = Duration::from_secs(2);
/// Pause before an unresponsive engine is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How the gateway reaches a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// A port on this machine's loopback, forwarded into a network of the deployment.
    Bridge,
    /// The container uses this machine's network, and listens on loopback.
    Host,
    /// The platform is in this network too.
    Named(String),
}

impl Network {
    /// As the operator writes it.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "bridge" => Self::Bridge,
            "host" => Self::Host,
            name => Self::Named(name.to_owned()),
        }
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub(super) struct Startup {
    pub(super) image: String,
    /// Overrides the image's command: program and arguments, to which the address is appended.
    pub(super) command: Option<Vec<String>>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) labels: HashMap<String, String>,
    pub(super) network: Network,
    /// The deployment's own network at the engine.
    pub(super) own_network: String,
    /// The volume of the database; without one, an empty file system in memory.
    pub(super) volume: Option<String>,
    /// The volume of the platform's program, if that is what runs.
    pub(super) program: Option<String>,
    /// Instead of the image's own.
    pub(super) user: Option<String>,
    /// Capabilities that are left; none as a rule.
    pub(super) capabilities: Vec<String>,
    /// Whether nothing can be written but the database and `/tmp`.
    pub(super) read_only: bool,
    /// The engine's runtime, where it is not its default.
    pub(super) runtime: Option<String>,
    pub(super) cpus: Option<f64>,
    pub(super) memory_mb: Option<u64>,
    pub(super) grace: Duration,
}

/// A running container. Dropped, it is stopped and removed.
#[derive(Debug)]
pub(crate) struct Container {
    id: String,
    address: SocketAddr,
    life: Lifecycle,
    /// Whether it reports that it has its port, which another process of this machine may have taken.
    reports_port: bool,
}

impl Container {
    /// Creates and starts it. Its lines go to the log.
    pub(super) async fn start(engine: &bollard::Docker, given: Startup, log: &Log) -> Result<Self> {
        // Dropped with this future, it is stopped.
        let (life, holder) = Lifecycle::start();
        let (started, answer) = oneshot::channel();
        // A separate task: a sent request must be followed up even if its caller is gone.
        let held = ContainerTask {
            engine: engine.clone(),
            log: log.clone(),
            holder,
            grace: given.grace,
        };
        let tells = given.network == Network::Host && given.command.is_some();
        tokio::spawn(held.run(given, started));
        let (id, address) = answer.await.unwrap_or(Err(Error::Cancelled))?;
        Ok(Self {
            id,
            address,
            life,
            reports_port: tells,
        })
    }

    /// Its database is free.
    pub(super) async fn open_database(&self, engine: &bollard::Docker) -> Result<()> {
        let options = KillContainerOptionsBuilder::new().signal("SIGUSR1").build();
        let told = engine.kill_container(&self.id, Some(options)).await;
        told.map_err(engine_failed("signalling a container that its database is free"))
    }

    /// Waits until it answers that it is healthy; where it does.
    pub(super) async fn healthy(&self, limit: Duration, cancel: &CancellationToken) -> Result<SocketAddr> {
        let begun = Instant::now();
        if self.reports_port {
            self.life.wait_listening(limit, cancel).await?;
        }
        let left = limit.saturating_sub(begun.elapsed());
        self.life
            .wait_healthy(HealthTarget::Address(self.address), left, cancel)
            .await
    }
}

impl Instance for Container {
    fn lifecycle(&self) -> &Lifecycle {
        &self.life
    }
}

struct ContainerTask {
    engine: bollard::Docker,
    log: Log,
    holder: LifecycleReporter,
    grace: Duration,
}

impl ContainerTask {
    /// Creates the container, supervises it until it has ended, and removes it.
    async fn run(self, given: Startup, started: oneshot::Sender<Result<(String, SocketAddr)>>) {
        // The name is chosen in advance, so that the container can be removed even if the answer was lost.
        let name = format!("towpath-{}", Uuid::now_v7());
        let how = match create(&self.engine, &name, given).await {
            Err(error) => {
                let _ = started.send(Err(error));
                remove(&self.engine, &name).await;
                "was not made".to_owned()
            }
            Ok((id, reached)) => {
                let how = match run(&self.engine, &id, reached).await {
                    Err(error) => {
                        let _ = started.send(Err(error));
                        "did not start".to_owned()
                    }
                    Ok(address) => {
                        let _ = started.send(Ok((id.clone(), address)));
                        self.wait_end(&id).await
                    }
                };
                remove(&self.engine, &id).await;
                how
            }
        };
        self.holder.report_end(how);
    }

    /// Reads its output until it has ended or must stop. Returns how it ended.
    async fn wait_end(&self, id: &str) -> String {
        let hears = self.holder.listener();
        let reading = async {
            let mut earlier = "all";
            loop {
                let options = LogsOptionsBuilder::new()
                    .follow(true)
                    .stdout(true)
                    .stderr(true)
                    .tail(earlier);
                let mut output = Box::pin(self.engine.logs(id, Some(options.build())));
                let mut lines = Splitter::new(&self.log);
                let mut broke_off = false;
                while let Some(piece) = output.next().await {
                    let Ok(piece) = piece else {
                        broke_off = true;
                        break;
                    };
                    // What was read once is not read again.
                    earlier = "0";
                    lines.take(piece.as_ref(), &hears);
                }
                lines.finish(|_| {});
                if !broke_off {
                    return;
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        let ended = wait_ended(&self.engine, id);
        let stopping = async {
            self.holder.stop.cancelled().await;
            let seconds = i32::try_from(self.grace.as_secs()).unwrap_or(i32::MAX);
            let options = StopContainerOptionsBuilder::new().t(seconds).build();
            if let Err(error) = self.engine.stop_container(id, Some(options)).await {
                tracing::debug!(%error, "a container does not stop; removing it");
            }
            "was stopped".to_owned()
        };
        let end = async {
            tokio::select! {
                how = ended => how,
                how = stopping => how,
            }
        };
        tokio::pin!(end, reading);
        let how = tokio::select! {
            how = &mut end => how,
            // Its output may end first, or break off.
            () = &mut reading => return end.await,
        };
        // Its last lines come with its end.
        let _ = tokio::time::timeout(LINES_LIMIT, reading).await;
        how
    }
}

/// Where an agent server is reached once it runs.
#[derive(Clone)]
enum ContainerAddress {
    Loopback(u16),
    Published,
    Network(String),
}

/// Waits until a container has ended, even if the engine is unavailable meanwhile: containers may outlive it. Returns
/// how it ended.
pub(super) async fn wait_ended(engine: &bollard::Docker, id: &str) -> String {
    let with_code = |code: i64| format!("exited with code {code}");
    loop {
        let mut waiting = Box::pin(engine.wait_container(id, None::<WaitContainerOptions>));
        match waiting.next().await {
            Some(Ok(ended)) => return with_code(ended.status_code),
            Some(Err(EngineError::DockerContainerWaitError { code, .. })) => return with_code(code),
            Some(Err(error)) => {
                tracing::debug!(%error, "the engine does not report how a container ended; retrying");
            }
            None => {}
        }
        match engine.inspect_container(id, None::<InspectContainerOptions>).await {
            Ok(found) => {
                let state = found.state.unwrap_or_default();
                if state.running == Some(false) {
                    return with_code(state.exit_code.unwrap_or(-1));
                }
            }
            Err(error) if is_gone(&error) => return "was removed".to_owned(),
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn create(engine: &bollard::Docker, name: &str, given: Startup) -> Result<(String, ContainerAddress)> {
    let (reached, listen) = match &given.network {
        Network::Host => {
            let port = free_port()?;
            (
                ContainerAddress::Loopback(port),
                SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            )
        }
        Network::Bridge => (
            ContainerAddress::Published,
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)),
        ),
        Network::Named(name) => (
            ContainerAddress::Network(name.clone()),
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)),
        ),
    };
    let mut variables = given.variables;
    variables.extend([
        ("PORT".to_owned(), listen.port().to_string()),
        ("HOST".to_owned(), listen.ip().to_string()),
        ("TOWPATH_LISTEN".to_owned(), listen.to_string()),
        ("TOWPATH_DATA_DIR".to_owned(), DATA.to_owned()),
    ]);
    let (entrypoint, command) = match given.command {
        Some(mut words) => {
            let arguments = words.split_off(1);
            (Some(words), Some(arguments))
        }
        None => (None, None),
    };
    let exposed = format!("{PORT}/tcp");
    let is_published = matches!(reached, ContainerAddress::Published);
    let memory = given.memory_mb.and_then(|mb| i64::try_from(mb << 20).ok());
    let mut tmpfs = HashMap::new();
    let mut mounts = Vec::new();
    match given.volume {
        Some(volume) => mounts.push(mount(volume, DATA)),
        None => drop(tmpfs.insert(DATA.to_owned(), "mode=1777".to_owned())),
    }
    mounts.extend(given.program.map(|volume| read_only_mount(volume, dockerfile::MOUNTED)));
    if given.read_only {
        // Programs are unpacked and started there.
        tmpfs.insert("/tmp".to_owned(), "exec,mode=1777".to_owned());
    }
    let host = HostConfig {
        network_mode: Some(match &given.network {
            Network::Host => "host".to_owned(),
            Network::Bridge => given.own_network,
            Network::Named(name) => name.clone(),
        }),
        port_bindings: is_published.then(|| {
            let binding = PortBinding {
                host_ip: Some(Ipv4Addr::LOCALHOST.to_string()),
                host_port: Some("0".to_owned()),
            };
            HashMap::from([(exposed.clone(), Some(vec![binding]))])
        }),
        mounts: Some(mounts),
        tmpfs: Some(tmpfs),
        readonly_rootfs: Some(given.read_only),
        // What its programs leave behind is waited for.
        init: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: (!given.capabilities.is_empty()).then_some(given.capabilities),
        runtime: given.runtime,
        memory,
        // No swap beside it.
        memory_swap: memory,
        nano_cpus: given.cpus.map(|cpus| (cpus * 1e9) as i64),
        pids_limit: Some(PIDS),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        // The platform keeps its lines; the engine's copy is bounded.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), "10m".to_owned()),
                ("max-file".to_owned(), "2".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    };
    let body = ContainerCreateBody {
        image: Some(given.image),
        user: given.user,
        entrypoint,
        cmd: command,
        env: Some(
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        labels: Some(given.labels),
        exposed_ports: is_published.then(|| vec![exposed]),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    let made = engine.create_container(Some(options), body).await;
    Ok((made.map_err(engine_failed("creating a container"))?.id, reached))
}

async fn run(engine: &bollard::Docker, id: &str, reached: ContainerAddress) -> Result<SocketAddr> {
    let started = engine.start_container(id, None::<StartContainerOptions>).await;
    started.map_err(engine_failed("starting a container"))?;
    let name = match reached {
        ContainerAddress::Loopback(port) => return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        ContainerAddress::Published => None,
        ContainerAddress::Network(name) => Some(name),
    };
    let found = engine.inspect_container(id, None::<InspectContainerOptions>).await;
    let settings = found.map_err(engine_failed("inspecting a container"))?.network_settings;
    let settings = settings.unwrap_or_default();
    let address = match name {
        None => settings
            .ports
            .as_ref()
            .and_then(|ports| ports.get(&format!("{PORT}/tcp"))?.as_ref()?.first()?.host_port.clone())
            .and_then(|port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse::<u16>().ok()?)))),
        Some(name) => settings
            .networks
            .as_ref()
            .and_then(|networks| networks.get(&name)?.ip_address.clone())
            .and_then(|ip| Some(SocketAddr::from((ip.parse::<Ipv4Addr>().ok()?, PORT)))),
    };
    // It may have ended already: the engine then forgets its address.
    address.ok_or_else(|| Error::Refused("the container exited immediately or has no address".to_owned()))
}

pub(super) fn mount(volume: String, target: &str) -> Mount {
    Mount {
        target: Some(target.to_owned()),
        source: Some(volume),
        typ: Some(MountType::VOLUME),
        read_only: Some(false),
        ..Mount::default()
    }
}

fn read_only_mount(volume: String, target: &str) -> Mount {
    Mount {
        read_only: Some(true),
        ..mount(volume, target)
    }
}

/// Removes a container and retries until it is gone: until then it may use its database.
pub(super) async fn remove(engine: &bollard::Docker, id: &str) {
    let mut told = false;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match engine.remove_container(id, Some(options)).await {
            Ok(()) => return,
            Err(error) if is_gone(&error) => return,
            Err(error) if !told => {
                told = true;
                tracing::warn!(%error, container = id, "a container cannot be removed yet; retrying");
            }
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// A free port on loopback. Another process may take it before the container does: then the container ends, and the
/// wrong process is not asked if the container reports its port.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("finding a free port"))?;
    let address = listener.local_addr().map_err(Error::io("finding a free port"))?;
    Ok(address.port())
}
