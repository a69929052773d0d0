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

use super::{dockerfile, engine_failed, is_gone};
use crate::error::{Error, Result};
use crate::health::Place;
use crate::instances::Instance;
use crate::life::{Holder, Life};
use crate::log::{Log, Splitter};

/// Where an agent server listens in a network of its own.
const PORT: u16 = 8000;
/// Where its database lies in the container.
pub(super) const DATA: &str = "/data";
/// Processes and threads of one container: a loop that forks must not take the machine with it.
const PIDS: i64 = 4096;

/// How long the last lines of one that has ended are waited for.
const LINES_LIMIT: Duration = Duration::from_secs(2);
/// An engine that does not answer is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How the gateway reaches a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// A port of this machine's loopback leads into a network of the deployment's own.
    Bridge,
    /// The container has this machine's network, and listens on loopback.
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
    /// In place of the image's own: the program and its arguments, where what is listened on is added.
    pub(super) command: Option<Vec<String>>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) labels: HashMap<String, String>,
    pub(super) network: Network,
    /// The deployment's own network at the engine.
    pub(super) own_network: String,
    /// The volume of the database; where there is none, an empty file system in memory.
    pub(super) volume: Option<String>,
    /// The volume of the platform's program, where that is what runs.
    pub(super) program: Option<String>,
    /// In place of the image's own.
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
    life: Life,
    /// Whether it says when it has its port, which somebody else of this machine may have taken.
    tells: bool,
}

impl Container {
    /// Creates and starts it. Its lines go to the log.
    pub(super) async fn start(engine: &bollard::Docker, given: Startup, log: &Log) -> Result<Self> {
        // Dropped with this future, it is stopped.
        let (life, holder) = Life::begin();
        let (started, answer) = oneshot::channel();
        // A task of its own: a request that was sent must not be forgotten when nobody waits for its answer any more.
        let held = Held {
            engine: engine.clone(),
            log: log.clone(),
            holder,
            grace: given.grace,
        };
        let tells = given.network == Network::Host && given.command.is_some();
        tokio::spawn(held.own(given, started));
        let (id, address) = answer.await.unwrap_or(Err(Error::Cancelled))?;
        Ok(Self {
            id,
            address,
            life,
            tells,
        })
    }

    /// Its database is free.
    pub(super) async fn go(&self, engine: &bollard::Docker) -> Result<()> {
        let options = KillContainerOptionsBuilder::new().signal("SIGUSR1").build();
        let told = engine.kill_container(&self.id, Some(options)).await;
        told.map_err(engine_failed("telling a container that its database is free"))
    }

    /// Waits until it answers that it is healthy; where it does.
    pub(super) async fn healthy(&self, limit: Duration, cancel: &CancellationToken) -> Result<SocketAddr> {
        let begun = Instant::now();
        if self.tells {
            self.life.listens(limit, cancel).await?;
        }
        let left = limit.saturating_sub(begun.elapsed());
        self.life.healthy(Place::At(self.address), left, cancel).await
    }
}

impl Instance for Container {
    fn life(&self) -> &Life {
        &self.life
    }
}

/// What the task of a container has.
struct Held {
    engine: bollard::Docker,
    log: Log,
    holder: Holder,
    grace: Duration,
}

impl Held {
    /// Creates the container, holds it until it has ended, and removes it.
    async fn own(self, given: Startup, started: oneshot::Sender<Result<(String, SocketAddr)>>) {
        // A name that is known before the engine answers: what was made is removed although the answer was lost.
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
                        self.hold(&id).await
                    }
                };
                remove(&self.engine, &id).await;
                how
            }
        };
        self.holder.ended(how);
    }

    /// Reads its lines until it has ended, or is to stop. Answers how it ended.
    async fn hold(&self, id: &str) -> String {
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
        let ended = ended(&self.engine, id);
        let stopping = async {
            self.holder.stop.cancelled().await;
            let seconds = i32::try_from(self.grace.as_secs()).unwrap_or(i32::MAX);
            let options = StopContainerOptionsBuilder::new().t(seconds).build();
            if let Err(error) = self.engine.stop_container(id, Some(options)).await {
                tracing::debug!(%error, "a container does not stop; it is removed");
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
enum Reached {
    Loopback(u16),
    Published,
    Inside(String),
}

/// Waits until a container has ended, also when the engine is away meanwhile: containers may outlive it. Answers how.
pub(super) async fn ended(engine: &bollard::Docker, id: &str) -> String {
    let with_code = |code: i64| format!("ended with exit code {code}");
    loop {
        let mut waiting = Box::pin(engine.wait_container(id, None::<WaitContainerOptions>));
        match waiting.next().await {
            Some(Ok(ended)) => return with_code(ended.status_code),
            Some(Err(EngineError::DockerContainerWaitError { code, .. })) => return with_code(code),
            Some(Err(error)) => {
                tracing::debug!(%error, "the engine does not say how a container ends; it is asked again");
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

async fn create(engine: &bollard::Docker, name: &str, given: Startup) -> Result<(String, Reached)> {
    let (reached, listen) = match &given.network {
        Network::Host => {
            let port = free_port()?;
            (Reached::Loopback(port), SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        }
        Network::Bridge => (Reached::Published, SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))),
        Network::Named(name) => (
            Reached::Inside(name.clone()),
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
    let is_published = matches!(reached, Reached::Published);
    let memory = given.memory_mb.and_then(|mb| i64::try_from(mb << 20).ok());
    let mut tmpfs = HashMap::new();
    let mut mounts = Vec::new();
    match given.volume {
        Some(volume) => mounts.push(mount(volume, DATA, false)),
        None => drop(tmpfs.insert(DATA.to_owned(), "mode=1777".to_owned())),
    }
    mounts.extend(given.program.map(|volume| mount(volume, dockerfile::MOUNTED, true)));
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
    Ok((made.map_err(engine_failed("making a container"))?.id, reached))
}

async fn run(engine: &bollard::Docker, id: &str, reached: Reached) -> Result<SocketAddr> {
    let started = engine.start_container(id, None::<StartContainerOptions>).await;
    started.map_err(engine_failed("starting a container"))?;
    let name = match reached {
        Reached::Loopback(port) => return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Reached::Published => None,
        Reached::Inside(name) => Some(name),
    };
    let found = engine.inspect_container(id, None::<InspectContainerOptions>).await;
    let settings = found.map_err(engine_failed("looking at a container"))?.network_settings;
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
    // It may have ended before it was looked at: the engine forgets its address then.
    address.ok_or_else(|| Error::Refused("the container ended at once, or has no address".to_owned()))
}

pub(super) fn mount(volume: String, target: &str, read_only: bool) -> Mount {
    Mount {
        target: Some(target.to_owned()),
        source: Some(volume),
        typ: Some(MountType::VOLUME),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

/// Removes a container, and goes on until it is gone: while it is there it may have its database.
pub(super) async fn remove(engine: &bollard::Docker, id: &str) {
    let mut told = false;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match engine.remove_container(id, Some(options)).await {
            Ok(()) => return,
            Err(error) if is_gone(&error) => return,
            Err(error) if !told => {
                told = true;
                tracing::warn!(%error, container = id, "a container cannot be removed yet; it is tried again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// A port of loopback that nobody has. Somebody may take it before the container does: then that ends, and what answers
/// there is not asked, where the container is one that says when it has its port.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("looking for a free port"))?;
    let address = listener.local_addr().map_err(Error::io("looking for a free port"))?;
    Ok(address.port())
}
