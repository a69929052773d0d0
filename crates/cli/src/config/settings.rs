//! Typed settings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use towpath_api::limits::PerMinuteLimits;
use towpath_api::{GatewayAccess, Proxies};
use towpath_compute::isolation::Level;
use towpath_domain::export::Limits;
use towpath_domain::git::Transport;
use towpath_domain::{Secret, TenantId, sandbox};
use towpath_outbound::AllowEntry;
use towpath_queue::DispatchMode;
use towpath_sandbox::Isolation;
use towpath_store::pending_patches::Bounds;
use towpath_store::quarantine;
use towpath_workflows::{run_agent, sandbox_host};

use super::kind;
use super::values::ResolvedSetting;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Absolute.
    pub data_dir: PathBuf,
    /// Minimum free space on the disks of this process; 0 is no limit.
    pub disk_least_free_bytes: u64,
    /// May contain a password.
    pub database_uri: Secret,
    /// Connections of this process to the database.
    pub database_connections: u32,
    /// May contain a password.
    pub redis_uri: Option<Secret>,
    /// With its colon.
    pub redis_prefix: String,
    /// Most connections to Redis, if they are limited.
    pub redis_connections: Option<u32>,
    /// How workers learn of ready jobs from Redis.
    pub dispatch: DispatchMode,
    /// `file:///…` or `s3://…`.
    pub objects: String,
    /// Address of the platform API, or of health and metrics in a process without it.
    pub listen: SocketAddr,
    /// Address at which others reach the platform; `None`: the listen address.
    pub public_url: Option<String>,
    /// Address of dev's agent server.
    pub agent_listen: SocketAddr,
    pub encryption_key: Option<Secret>,
    pub api_key: Option<Secret>,
    pub tenant_id: Option<TenantId>,
    pub lease: Duration,
    /// Time for running jobs to finish at shutdown.
    pub drain_grace: Duration,
    /// Slots of each pool, if set: see [`Settings::slots_of`].
    pub slots: Option<usize>,
    /// Slots of single pools.
    pub pool_slots: BTreeMap<String, usize>,
    /// `file` destinations write below it.
    pub file_root: PathBuf,
    /// Whether destinations may use this process's own credentials.
    pub environment_credentials: bool,
    /// Approximate size at which a file of an export is closed.
    pub export_file_bytes: u64,
    /// Number of concurrent exports and their time limit.
    pub exports: Limits,
    /// `None` keeps trace runs for ever.
    pub retention_days: Option<u32>,
    /// Trace data that a workspace may keep; 0 is no limit.
    pub stored_bytes_per_workspace: u64,
    /// Memory for finding trace runs by id.
    pub index_cache_bytes: usize,
    /// Prices of models that precede the bundled ones.
    pub price_file: Option<PathBuf>,
    /// Concurrent requests.
    pub max_requests: usize,
    /// Connections from one remote address.
    pub connections_per_address: usize,
    /// Invalid keys that one address may send in a minute; 0 is no limit.
    pub failed_keys_per_minute: u32,
    /// Proxies whose headers about their clients are trusted.
    pub trusted_proxies: Proxies,
    /// Certificate and key of the listeners.
    pub tls: Option<TlsFiles>,
    /// Loopback address without TLS of a platform that uses TLS.
    pub tls_plain_listen: SocketAddr,
    pub limits: LimitSettings,
    /// Required for metrics and for the names of dependencies in `/readyz`.
    pub metrics_key: Option<Secret>,
    /// Largest ingest body as sent.
    pub ingest_body_bytes: usize,
    /// Memory of all ingest bodies in progress.
    pub ingest_memory_bytes: usize,
    /// Accepted trace data that may wait for its flush.
    pub ingest_backlog_bytes: u64,
    /// How long trace data waits for more before a flush.
    pub fold_delay: Duration,
    /// Patches of a workspace that may wait for their trace runs.
    pub pending: Bounds,
    /// Quarantine of one workspace.
    pub quarantine: quarantine::Quota,
    /// Private or local addresses that may be called.
    pub outbound_allow: Vec<AllowEntry>,
    pub agent: AgentSettings,
    pub deployments: DeploymentSettings,
    pub sandboxes: SandboxSettings,
    /// Directives of `tracing`.
    pub log_filter: String,
    pub log_format: LogFormat,
    /// OpenTelemetry collector for spans.
    pub otlp_endpoint: Option<String>,
}

#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// In PEM, with its chain.
    pub cert: PathBuf,
    /// In PEM.
    pub key: PathBuf,
}

#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// `off`, `us`, `eu`, or a file.
    pub rules: String,
    /// Limits of the operator, besides the rules.
    pub per_minute: PerMinuteLimits,
}

/// Settings of the agent server.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub graphs: Option<PathBuf>,
    pub auth: AgentAuth,
    /// Only requests that the gateway signed with this key are accepted.
    pub gateway_key: Option<Secret>,
    /// Path prefix; empty for the root.
    pub mount_prefix: String,
    /// How names of the official server's metrics begin.
    pub metric_prefix: String,
    /// Origins of web pages that may call; empty is any.
    pub cors_origins: Vec<String>,
    pub body_bytes: usize,
    /// Whether events of every run are kept.
    pub always_resumable: bool,
    pub event_retention: Duration,
    pub run_timeout: Duration,
    /// Attempts before a run ends as failed.
    pub run_attempts: u32,
    pub webhook_secret: Option<Secret>,
    /// Checkpoints kept for each thread; 0 keeps all.
    pub keep_checkpoints: u32,
    /// How long checkpoints except the latest are kept; zero keeps all.
    pub checkpoint_retention: Duration,
    /// Processes that run users' own graphs.
    pub hosts: HostSettings,
}

#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// Whether this process runs sandboxes.
    pub enabled: SandboxMode,
    /// The first user id for sandboxes.
    pub first_user_id: u32,
    pub node: SandboxNodeSettings,
    /// Maximum bytes of one image.
    pub image_bytes: u64,
    /// Maximum bytes of all images.
    pub images_bytes: u64,
    pub host: sandbox_host::SandboxHostSettings,
    pub quota: sandbox::SandboxQuota,
}

/// This process as a node.
#[derive(Clone, Debug)]
pub struct SandboxNodeSettings {
    /// Where other processes connect.
    pub listen: Option<SocketAddr>,
    /// The same, as they reach it.
    pub address: Option<String>,
    /// Length of the lease.
    pub lease: Duration,
    /// 0 is no limit.
    pub max_boxes: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxMode {
    /// On if one process has all roles.
    Auto,
    On,
    Off,
}

#[derive(Clone, Debug)]
pub struct DeploymentSettings {
    pub backend: DeploymentBackend,
    /// Whether only one workspace may run code as processes of this machine.
    pub one_workspace: bool,
    /// Whose keys may call a deployment.
    pub access: GatewayAccess,
    /// Whether deployments may authenticate their callers themselves, without platform keys.
    pub own_auth: bool,
    /// Required isolation of processes.
    pub min_isolation: Level,
    /// The first user id for processes of deployments.
    pub first_user_id: u32,
    /// Transports for repositories besides https.
    pub git_transports: Vec<Transport>,
    /// Time limit of one program of a build.
    pub build_timeout: Duration,
    /// Largest source tree.
    pub source_bytes: u64,
    /// How long an agent server may take to become healthy.
    pub health_timeout: Duration,
    /// Time for an agent server to finish when it is replaced.
    pub drain_grace: Duration,
    /// How long a request waits for an agent server.
    pub gateway_wait: Duration,
    /// How long a keeper lease lasts unless it is renewed.
    pub keeper_lease: Duration,
    /// Artifacts kept of each deployment.
    pub keep_artifacts: u32,
    pub docker: DockerSettings,
}

#[derive(Clone, Debug)]
pub struct DockerSettings {
    /// Address of the Docker engine.
    pub host: String,
    /// How containers are reached.
    pub network: String,
    /// Base of built images.
    pub base_image: String,
    /// Logins of registries, as `docker login` writes them.
    pub config: Option<PathBuf>,
    /// Runtime of containers, such as `runsc`.
    pub runtime: Option<String>,
    /// User of images that name none.
    pub user: String,
    /// Memory of one step of a build.
    pub build_memory_bytes: i32,
    /// CPUs of one step of a build.
    pub build_cpus: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentBackend {
    /// Processes if one process has all roles.
    Auto,
    /// Processes of this machine.
    Process,
    /// Containers of this machine's Docker engine.
    Docker,
    /// This process runs none.
    None,
}

/// Settings of the processes that run users' own graphs.
#[derive(Clone, Debug)]
pub struct HostSettings {
    pub python: Option<PathBuf>,
    /// Folder for their environments.
    pub folder: PathBuf,
    /// 0 derives the number from the processors.
    pub max_processes: usize,
    /// Whether each run has its own process.
    pub isolated: bool,
    /// Runs after which a process is replaced; 0 is never.
    pub max_runs: u64,
    /// Memory at which a process is replaced; 0 is never.
    pub max_rss_bytes: u64,
    /// How long imports may take.
    pub start_timeout: Duration,
    /// How long a cancelled run may continue.
    pub cancel_grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAuth {
    /// Required unless the server listens on loopback.
    Auto,
    Key,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For programs, one object a line.
    Json,
}

/// Default slots of a pool, as in the official server.
const SLOTS: usize = 10;
/// Agent runs that share processes mostly wait for models. With only ten slots, the processes would be idle while the
/// last of ten results is written.
const AGENT_SLOTS: usize = 64;

impl Settings {
    /// The folder of objects, if they are on this machine.
    pub fn objects_folder(&self) -> Option<PathBuf> {
        self.objects.parse::<url::Url>().ok()?.to_file_path().ok()
    }

    /// How many jobs of a pool this process performs at the same time.
    pub fn slots_of(&self, pool: &str) -> usize {
        let own = self.pool_slots.get(pool).copied().or(self.slots);
        own.unwrap_or(if pool == run_agent::POOL && !self.agent.hosts.isolated {
            AGENT_SLOTS
        } else {
            SLOTS
        })
    }

    /// URL scheme of `listen`.
    pub const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Address at which this machine reaches the platform.
    pub fn local_url(&self) -> String {
        let address = match self.tls {
            Some(_) => self.tls_plain_listen,
            None => self.listen,
        };
        format!("http://{address}")
    }

    /// Reads values whose kinds are already validated.
    pub(super) fn from_checked(resolved: &[ResolvedSetting]) -> Self {
        let values = CheckedValues(resolved);
        Self {
            data_dir: values.path("data_dir"),
            disk_least_free_bytes: values.number::<u64>("disk.min_free_mb") << 20,
            database_uri: Secret::new(values.text("database_uri")),
            database_connections: values.number("database_connections"),
            redis_uri: values.optional("redis_uri").map(Secret::new),
            redis_prefix: key_prefix(values.text("redis_prefix")),
            redis_connections: values
                .optional("redis_connections")
                .and_then(|count| count.parse().ok()),
            dispatch: match values.text("queue.dispatch") {
                "directed" => DispatchMode::Directed,
                _ => DispatchMode::Scan,
            },
            objects: values.text("objects").to_owned(),
            listen: values.number("listen"),
            public_url: values.optional("public_url").map(str::to_owned),
            agent_listen: values.number("agent_listen"),
            encryption_key: values.optional("encryption_key").map(Secret::new),
            api_key: values.optional("api_key").map(Secret::new),
            tenant_id: values.optional("tenant_id").and_then(|id| id.parse().ok()),
            lease: Duration::from_secs(values.number("engine.lease_seconds")),
            drain_grace: Duration::from_secs(values.number("engine.drain_grace_seconds")),
            slots: values.optional("workers.slots").and_then(|count| count.parse().ok()),
            pool_slots: kind::items(values.text("workers.pool_slots"))
                .filter_map(kind::pool_slots)
                .map(|(pool, slots)| (pool.to_owned(), slots))
                .collect(),
            file_root: values.path("exports.file_root"),
            environment_credentials: values.number("exports.environment_credentials"),
            export_file_bytes: values.number::<u64>("exports.file_size_mb") << 20,
            exports: Limits {
                per_workspace: values.number("exports.per_workspace"),
                runs_per_export: values.number("exports.runs_at_once"),
                export: Duration::from_secs(values.number::<u64>("exports.timeout_hours") * 3600),
                run_retry: Duration::from_secs(values.number("exports.retry_seconds")),
            },
            retention_days: Some(values.number("traces.retention_days")).filter(|days| *days > 0),
            stored_bytes_per_workspace: values.number::<u64>("traces.workspace_limit_mb") << 20,
            index_cache_bytes: values.number::<usize>("traces.index_cache_mb") << 20,
            price_file: values.optional_path("traces.price_file"),
            max_requests: values.number("http.requests"),
            connections_per_address: values.number("http.connections_per_address"),
            failed_keys_per_minute: values.number("http.failed_keys_per_minute"),
            trusted_proxies: Proxies::new(kind::items(values.text("http.trusted_proxies")).filter_map(Proxies::parse)),
            tls: values
                .optional_path("tls.cert")
                .zip(values.optional_path("tls.key"))
                .map(|(cert, key)| TlsFiles { cert, key }),
            tls_plain_listen: values.number("tls.plain_listen"),
            limits: LimitSettings {
                rules: values.text("limits.rules").to_owned(),
                per_minute: PerMinuteLimits {
                    key: values.number("limits.requests_per_key"),
                    workspace: values.number("limits.requests_per_workspace"),
                    deployment: values.number("limits.requests_per_deployment"),
                },
            },
            metrics_key: values.optional("metrics.key").map(Secret::new),
            ingest_body_bytes: values.number::<usize>("ingest.body_limit_mb") << 20,
            ingest_backlog_bytes: values.number::<u64>("ingest.backlog_mb") << 20,
            fold_delay: Duration::from_millis(values.number("ingest.flush_delay_ms")),
            pending: Bounds {
                patches: values.number("ingest.pending_patches"),
                bytes: values.number("ingest.pending_bytes"),
            },
            quarantine: quarantine::Quota {
                entries: values.number("ingest.quarantine_entries"),
                bytes: values.number("ingest.quarantine_bytes"),
            },
            ingest_memory_bytes: values.number::<usize>("ingest.memory_mb") << 20,
            outbound_allow: kind::items(values.text("outbound.allow"))
                .filter_map(|item| item.parse().ok())
                .collect(),
            agent: AgentSettings {
                graphs: values.optional("agent.graphs").map(PathBuf::from),
                auth: match values.text("agent.auth") {
                    "key" => AgentAuth::Key,
                    "none" => AgentAuth::None,
                    _ => AgentAuth::Auto,
                },
                gateway_key: values.optional("agent.gateway_key").map(Secret::new),
                mount_prefix: values.text("agent.mount_prefix").to_owned(),
                metric_prefix: values.text("agent.metric_prefix").to_owned(),
                cors_origins: kind::items(values.text("agent.cors_origins"))
                    .filter(|origin| *origin != "*")
                    .map(|origin| origin.trim_end_matches('/').to_owned())
                    .collect(),
                body_bytes: values.number("agent.body_limit_bytes"),
                always_resumable: values.text("agent.resumable") == "always",
                event_retention: Duration::from_secs(values.number("agent.event_retention_seconds")),
                run_timeout: Duration::from_secs(values.number("agent.run_timeout_seconds")),
                run_attempts: values.number("agent.run_attempts"),
                webhook_secret: values.optional("agent.webhook_secret").map(Secret::new),
                keep_checkpoints: values.number("agent.keep_checkpoints"),
                checkpoint_retention: Duration::from_secs(86_400 * values.number::<u64>("agent.keep_checkpoints_days")),
                hosts: HostSettings {
                    python: values.optional("agent.python").map(PathBuf::from),
                    folder: values.path("agent.hosts_dir"),
                    max_processes: values.number("agent.hosts"),
                    isolated: values.text("agent.isolation") == "process",
                    max_runs: values.number("agent.host_runs"),
                    max_rss_bytes: values.number::<u64>("agent.host_memory_mb") << 20,
                    start_timeout: Duration::from_secs(values.number("agent.host_start_seconds")),
                    cancel_grace: Duration::from_secs(values.number("agent.cancel_grace_seconds")),
                },
            },
            deployments: DeploymentSettings {
                backend: match values.text("deployments.backend") {
                    "process" => DeploymentBackend::Process,
                    "docker" => DeploymentBackend::Docker,
                    "none" => DeploymentBackend::None,
                    _ => DeploymentBackend::Auto,
                },
                one_workspace: values.text("deployments.trust") == "one",
                access: match values.text("gateway.access") {
                    "workspace" => GatewayAccess::Workspace,
                    _ => GatewayAccess::Organization,
                },
                own_auth: values.text("gateway.own_auth") == "allow",
                min_isolation: match values.text("deployments.min_isolation") {
                    "namespace" => Level::Namespace,
                    _ => Level::None,
                },
                first_user_id: values.number("deployments.first_user_id"),
                git_transports: kind::items(values.text("deployments.git_transports"))
                    .filter_map(|item| match item {
                        "http" => Some(Transport::Http),
                        "ssh" => Some(Transport::Ssh),
                        "file" => Some(Transport::File),
                        _ => None,
                    })
                    .collect(),
                build_timeout: Duration::from_secs(values.number("deployments.build_timeout_seconds")),
                source_bytes: values.number::<u64>("deployments.source_limit_mb") << 20,
                health_timeout: Duration::from_secs(values.number("deployments.health_timeout_seconds")),
                drain_grace: Duration::from_secs(values.number("deployments.drain_grace_seconds")),
                gateway_wait: Duration::from_secs(values.number("deployments.hold_seconds")),
                keeper_lease: Duration::from_secs(values.number("deployments.lease_seconds")),
                keep_artifacts: values.number("deployments.keep_artifacts"),
                docker: DockerSettings {
                    host: values.text("deployments.docker_host").to_owned(),
                    network: values.text("deployments.docker_network").to_owned(),
                    base_image: values.text("deployments.docker_base_image").to_owned(),
                    config: values.optional("deployments.docker_config").map(PathBuf::from),
                    runtime: values.optional("deployments.docker_runtime").map(str::to_owned),
                    user: values.text("deployments.docker_user").to_owned(),
                    build_memory_bytes: values.number::<i32>("deployments.docker_build_memory_mb") << 20,
                    build_cpus: values.number("deployments.docker_build_cpus"),
                },
            },
            sandboxes: SandboxSettings {
                enabled: match values.text("sandboxes.enabled") {
                    "on" => SandboxMode::On,
                    "off" => SandboxMode::Off,
                    _ => SandboxMode::Auto,
                },
                first_user_id: values.number("sandboxes.first_user_id"),
                node: SandboxNodeSettings {
                    listen: values
                        .optional("sandboxes.node_listen")
                        .and_then(|address| address.parse().ok()),
                    address: values.optional("sandboxes.node_address").map(str::to_owned),
                    lease: Duration::from_secs(values.number("sandboxes.node_lost_seconds")),
                    max_boxes: values.number("sandboxes.max_per_node"),
                },
                image_bytes: values.number::<u64>("sandboxes.image_mb") << 20,
                images_bytes: values.number::<u64>("sandboxes.images_mb") << 20,
                host: sandbox_host::SandboxHostSettings {
                    min_isolation: match values.text("sandboxes.min_isolation") {
                        "gvisor" => Isolation::Gvisor,
                        "vm" => Isolation::Vm,
                        _ => Isolation::Namespace,
                    },
                    allow_unenforced: values.text("sandboxes.unenforced_limits") == "allow",
                    memory_bytes: values.number::<u64>("sandboxes.memory_mb") << 20,
                    processes: values.number("sandboxes.processes"),
                    grace: Duration::from_secs(values.number("sandboxes.stop_grace_seconds")),
                    network_allow: kind::items(values.text("sandboxes.network_allow"))
                        .filter_map(|item| item.parse().ok())
                        .collect(),
                },
                quota: sandbox::SandboxQuota {
                    boxes: values.number("sandboxes.max_per_workspace"),
                    snapshots: values.number("sandboxes.snapshots_per_workspace"),
                    volumes: values.number("sandboxes.volumes_per_workspace"),
                    volume_bytes: values.number::<i64>("sandboxes.volume_mb_per_workspace") << 20,
                    templates: values.number("sandboxes.templates_per_workspace"),
                    pools: values.number("sandboxes.pools_per_workspace"),
                    registries: values.number("sandboxes.registries_per_workspace"),
                },
            },
            log_filter: values.text("log.filter").to_owned(),
            log_format: match values.text("log.format") {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => LogFormat::Auto,
            },
            otlp_endpoint: values.optional("telemetry.otlp_endpoint").map(str::to_owned),
        }
    }
}

struct CheckedValues<'a>(&'a [ResolvedSetting]);

impl<'a> CheckedValues<'a> {
    fn optional(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|value| value.key.name == name)?.text.as_deref()
    }

    fn text(&self, name: &str) -> &'a str {
        self.optional(name).expect("the table of keys has a default for it")
    }

    fn path(&self, name: &str) -> PathBuf {
        absolute(self.text(name))
    }

    fn optional_path(&self, name: &str) -> Option<PathBuf> {
        self.optional(name).map(absolute)
    }

    fn number<T: FromStr>(&self, name: &str) -> T {
        self.text(name).parse().ok().expect("its kind was validated")
    }
}

/// A prefix that is set apart from the rest of a name.
fn key_prefix(text: &str) -> String {
    if text.ends_with(':') {
        text.to_owned()
    } else {
        format!("{text}:")
    }
}

fn absolute(path: &str) -> PathBuf {
    let path = PathBuf::from(path);
    std::path::absolute(&path).unwrap_or(path)
}
