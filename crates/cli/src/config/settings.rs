//! The settings as the rest of the program uses them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use towpath_api::limits::Own;
use towpath_api::{GatewayAccess, Proxies};
use towpath_compute::isolation::Level;
use towpath_domain::export::Limits;
use towpath_domain::git::Transport;
use towpath_domain::sandbox::Quota;
use towpath_domain::{Secret, TenantId};
use towpath_outbound::Allowed;
use towpath_sandbox::Isolation;
use towpath_store::pending_patches::Bounds;
use towpath_store::quarantine::Quota;
use towpath_workflows::{boxes, run_agent};

use super::kind;
use super::values::Resolved;

/// Typed values of every key.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Absolute.
    pub data_dir: PathBuf,
    /// So much has to be free on the disks of this process; 0 is anything.
    pub disk_least_free_bytes: u64,
    /// May hold a password.
    pub database_uri: Secret,
    /// Connections of this process to the database.
    pub database_connections: u32,
    /// May hold a password.
    pub redis_uri: Option<Secret>,
    /// `file:///…` or `s3://…`.
    pub objects: String,
    /// The platform API, or health and metrics of a process without it.
    pub listen: SocketAddr,
    /// Where others reach the platform, if not where it listens.
    pub public_url: Option<String>,
    /// Dev's agent server.
    pub agent_listen: SocketAddr,
    /// Seals stored credentials, as `store::sealing::Keys` reads it.
    pub encryption_key: Option<Secret>,
    /// The first API key.
    pub api_key: Option<Secret>,
    /// The first workspace.
    pub tenant_id: Option<TenantId>,
    /// How long a silent worker keeps its jobs.
    pub lease: Duration,
    /// What running jobs get at shutdown.
    pub drain_grace: Duration,
    /// Jobs of one pool at a time, where it was said: see [`Settings::slots_of`].
    pub slots: Option<usize>,
    /// Pools with another number.
    pub pool_slots: BTreeMap<String, usize>,
    /// `file` destinations write below it.
    pub file_root: PathBuf,
    /// Whether destinations may use this process's own credentials.
    pub environment_credentials: bool,
    /// A file of an export is closed at about this many bytes.
    pub export_file_bytes: u64,
    /// How many exports work at the same time, and how long one may take.
    pub exports: Limits,
    /// Days that trace runs are kept; `None` is for ever.
    pub retention_days: Option<u32>,
    /// Trace data that a workspace may keep; 0 is no limit.
    pub stored_bytes_per_workspace: u64,
    /// Memory for finding trace runs by id, in bytes.
    pub index_cache_bytes: usize,
    /// Requests worked on at once.
    pub requests: usize,
    /// Connections from one address of another machine.
    pub connections_per_address: usize,
    /// Keys that open nothing which one address may send in a minute; 0 is no limit.
    pub failed_keys_per_minute: u32,
    /// Proxies whose word about their clients counts.
    pub trusted_proxies: Proxies,
    /// What listeners speak TLS with.
    pub tls: Option<TlsFiles>,
    /// Where a platform that speaks TLS answers this machine without it.
    pub tls_plain_listen: SocketAddr,
    /// How often one caller may ask.
    pub limits: LimitSettings,
    /// Opens metrics and what `/readyz` says of dependencies.
    pub metrics_key: Option<Secret>,
    /// Largest ingest body as sent, in bytes.
    pub ingest_body_bytes: usize,
    /// Memory that ingest bodies under way may take together, in bytes.
    pub ingest_memory_bytes: usize,
    /// Accepted trace data that may wait to be folded.
    pub ingest_backlog_bytes: u64,
    /// How long it waits for more.
    pub fold_delay: Duration,
    /// Patches of a workspace that may wait for their trace runs.
    pub pending: Bounds,
    /// What a workspace may have in quarantine.
    pub quarantine: Quota,
    /// Private or local addresses that destinations may have.
    pub outbound_allow: Vec<Allowed>,
    /// The agent server.
    pub agent: AgentSettings,
    /// Deployments.
    pub deployments: DeploymentSettings,
    /// Sandboxes.
    pub sandboxes: SandboxSettings,
    /// Directives of `tracing`.
    pub log_filter: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Collector of spans.
    pub otlp_endpoint: Option<String>,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// In PEM, with its chain.
    pub cert: PathBuf,
    /// In PEM.
    pub key: PathBuf,
}

/// How often one caller may ask.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// `off`, `us`, `eu`, or a file.
    pub rules: String,
    /// Limits of one's own.
    pub own: Own,
}

/// What the agent server alone is told.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The file that declares its graphs.
    pub graphs: Option<PathBuf>,
    /// Whether callers need a key.
    pub auth: AgentAuth,
    /// Only the gateway that signs with this may call.
    pub gateway_key: Option<Secret>,
    /// Where it stands below its address; empty for the top.
    pub mount_prefix: String,
    /// Web pages that may call; empty means any.
    pub cors_origins: Vec<String>,
    /// Largest request body, in bytes.
    pub body_bytes: usize,
    /// Events of every run are kept.
    pub always_resumable: bool,
    /// How long kept events stay.
    pub event_retention: Duration,
    /// How long a run may take.
    pub run_timeout: Duration,
    /// A run whose worker failed so often ends as failed.
    pub run_attempts: u32,
    /// Signs the bodies of webhooks.
    pub webhook_secret: Option<Secret>,
    /// Checkpoints kept for each thread; 0 keeps all.
    pub keep_checkpoints: u32,
    /// How long checkpoints that are not the latest are kept; zero keeps all.
    pub checkpoints_kept: Duration,
    /// Processes that run users' own graphs.
    pub hosts: HostSettings,
}

/// How sandboxes are kept.
#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// Whether this process holds their machine.
    pub enabled: SandboxSwitch,
    /// The first of the user ids that are for them.
    pub first_user_id: u32,
    /// How the machine keeps them.
    pub machine: boxes::Settings,
    /// What one workspace may have.
    pub quota: Quota,
}

/// Whether a process holds the machine of sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxSwitch {
    /// Where one process does everything.
    Auto,
    /// It does.
    On,
    /// It does not.
    Off,
}

/// How deployments are built and run.
#[derive(Clone, Debug)]
pub struct DeploymentSettings {
    /// What runs them.
    pub backend: DeploymentBackend,
    /// Whether processes of this machine run the code of one workspace alone.
    pub one_workspace: bool,
    /// Whose keys the gateway opens them to.
    pub access: GatewayAccess,
    /// Whether they may judge their callers themselves, in place of keys.
    pub own_auth: bool,
    /// How far those have to be kept apart.
    pub min_isolation: Level,
    /// The first of the user ids that are for them.
    pub first_user_id: u32,
    /// How repositories may be reached beside https.
    pub git_transports: Vec<Transport>,
    /// What one program of a build may take.
    pub build_timeout: Duration,
    /// Largest source tree, in bytes.
    pub source_bytes: u64,
    /// What an agent server may take until it is healthy.
    pub health_timeout: Duration,
    /// What it gets to finish when it is replaced.
    pub drain_grace: Duration,
    /// How long a request waits for it.
    pub hold: Duration,
    /// How long the right to keep deployments lasts, unless it is renewed.
    pub keeper_lease: Duration,
    /// Artifacts kept of each.
    pub keep_artifacts: u32,
    /// Where containers run.
    pub docker: DockerSettings,
}

/// Deployments as containers.
#[derive(Clone, Debug)]
pub struct DockerSettings {
    /// Where the engine answers.
    pub host: String,
    /// How containers are reached.
    pub network: String,
    /// What images are built from.
    pub base_image: String,
    /// Logins of registries, as `docker login` writes them.
    pub config: Option<PathBuf>,
    /// What containers are run with.
    pub runtime: Option<String>,
    /// Who images run as that name nobody.
    pub user: String,
    /// Memory of a step of a build.
    pub build_memory_bytes: i32,
    /// CPUs of a step of a build.
    pub build_cpus: i32,
}

/// What runs deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentBackend {
    /// Processes, where one process does everything.
    Auto,
    /// Processes of this machine.
    Process,
    /// Containers of this machine's Docker engine.
    Docker,
    /// Nothing here.
    None,
}

/// What the processes that run users' own graphs are told.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The interpreter.
    pub python: Option<PathBuf>,
    /// Where environments are made.
    pub folder: PathBuf,
    /// At most so many; 0 by the number of processors.
    pub most: usize,
    /// One run for each.
    pub isolated: bool,
    /// Runs until one is replaced; 0 is never.
    pub max_runs: u64,
    /// Memory until one is replaced; 0 is never.
    pub max_rss_bytes: u64,
    /// How long imports may take.
    pub start_timeout: Duration,
    /// How long a cancelled run may go on.
    pub cancel_grace: Duration,
}

/// Whether callers of the agent server need an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAuth {
    /// Unless it listens on loopback.
    Auto,
    /// Always.
    Key,
    /// Never.
    None,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For programs, one object a line.
    Json,
}

/// Jobs of one pool at a time where nobody says another number, as the official server has it.
const SLOTS: usize = 10;
/// Runs of agents that share processes: they mostly wait for models, and with ten the processes stand idle while the
/// last of ten is written.
const AGENT_SLOTS: usize = 64;

impl Settings {
    /// The folder of objects, where they are in one of this machine.
    pub fn objects_folder(&self) -> Option<PathBuf> {
        self.objects.parse::<url::Url>().ok()?.to_file_path().ok()
    }

    /// How many jobs of a pool this process performs at a time.
    pub fn slots_of(&self, pool: &str) -> usize {
        let own = self.pool_slots.get(pool).copied().or(self.slots);
        own.unwrap_or(if pool == run_agent::POOL && !self.agent.hosts.isolated {
            AGENT_SLOTS
        } else {
            SLOTS
        })
    }

    /// How clients of `listen` speak.
    pub const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Where this machine reaches the platform that these settings start.
    pub fn local_url(&self) -> String {
        let address = match self.tls {
            Some(_) => self.tls_plain_listen,
            None => self.listen,
        };
        format!("http://{address}")
    }

    /// Reads values whose kinds were checked before.
    pub(super) fn from_checked(resolved: &[Resolved]) -> Self {
        let values = Checked(resolved);
        Self {
            data_dir: values.path("data_dir"),
            disk_least_free_bytes: values.number::<u64>("disk.least_free_mb") << 20,
            database_uri: Secret::new(values.text("database_uri")),
            database_connections: values.number("database_connections"),
            redis_uri: values.optional("redis_uri").map(Secret::new),
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
            requests: values.number("http.requests"),
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
                own: Own {
                    key: values.number("limits.requests_per_key"),
                    workspace: values.number("limits.requests_per_workspace"),
                    deployment: values.number("limits.requests_per_deployment"),
                },
            },
            metrics_key: values.optional("metrics.key").map(Secret::new),
            ingest_body_bytes: values.number::<usize>("ingest.body_limit_mb") << 20,
            ingest_backlog_bytes: values.number::<u64>("ingest.backlog_mb") << 20,
            fold_delay: Duration::from_millis(values.number("ingest.fold_delay_ms")),
            pending: Bounds {
                patches: values.number("ingest.pending_patches"),
                bytes: values.number("ingest.pending_bytes"),
            },
            quarantine: Quota {
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
                checkpoints_kept: Duration::from_secs(86_400 * values.number::<u64>("agent.keep_checkpoints_days")),
                hosts: HostSettings {
                    python: values.optional("agent.python").map(PathBuf::from),
                    folder: values.path("agent.hosts_dir"),
                    most: values.number("agent.hosts"),
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
                hold: Duration::from_secs(values.number("deployments.hold_seconds")),
                keeper_lease: Duration::from_secs(values.number("deployments.keeper_lease_seconds")),
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
                    "on" => SandboxSwitch::On,
                    "off" => SandboxSwitch::Off,
                    _ => SandboxSwitch::Auto,
                },
                first_user_id: values.number("sandboxes.first_user_id"),
                machine: boxes::Settings {
                    min_isolation: match values.text("sandboxes.min_isolation") {
                        "gvisor" => Isolation::Gvisor,
                        "vm" => Isolation::Vm,
                        _ => Isolation::Namespace,
                    },
                    allow_unenforced: values.text("sandboxes.unenforced_limits") == "allow",
                    memory_bytes: values.number::<u64>("sandboxes.memory_mb") << 20,
                    processes: values.number("sandboxes.processes"),
                    grace: Duration::from_secs(values.number("sandboxes.stop_grace_seconds")),
                },
                quota: Quota {
                    boxes: values.number("sandboxes.most_per_workspace"),
                    snapshots: values.number("sandboxes.snapshots_per_workspace"),
                    volumes: values.number("sandboxes.volumes_per_workspace"),
                    volume_bytes: values.number::<i64>("sandboxes.volume_mb_per_workspace") << 20,
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

struct Checked<'a>(&'a [Resolved]);

impl<'a> Checked<'a> {
    fn optional(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|value| value.key.name == name)?.text.as_deref()
    }

    fn text(&self, name: &str) -> &'a str {
        self.optional(name).expect("the table of keys gives this one a default")
    }

    fn path(&self, name: &str) -> PathBuf {
        absolute(self.text(name))
    }

    fn optional_path(&self, name: &str) -> Option<PathBuf> {
        self.optional(name).map(absolute)
    }

    fn number<T: FromStr>(&self, name: &str) -> T {
        self.text(name).parse().ok().expect("its kind was checked before")
    }
}

fn absolute(path: &str) -> PathBuf {
    let path = PathBuf::from(path);
    std::path::absolute(&path).unwrap_or(path)
}
