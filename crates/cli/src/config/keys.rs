//! Every setting there is. `docs/configuration.md` lists the same keys; a test compares them.

use super::Mode;
use super::kind::Kind;

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Dotted, as in the configuration file. A number carries its unit in its name.
    pub name: &'static str,
    /// Names in the environment that are fixed by use, most important first. [`Key::derived_environment_name`], which
    /// each key is read from, comes before them.
    pub environment: &'static [&'static str],
    /// Where nobody says anything.
    pub default: Fallback,
    /// What it must look like.
    pub kind: Kind,
    /// A sentence for people.
    pub about: &'static str,
}

/// A default.
#[derive(Debug)]
pub enum Fallback {
    /// The setting may be absent.
    Absent,
    /// Always the same.
    Text(&'static str),
    /// Depends on the command.
    ByMode(fn(Mode) -> &'static str),
    /// A place below the data folder that depends on the command.
    BelowDataByMode {
        /// Before the absolute path of the data folder.
        scheme: &'static str,
        /// After it.
        file: fn(Mode) -> &'static str,
    },
    /// A place below the data folder.
    BelowData {
        /// Before the absolute path of the data folder.
        scheme: &'static str,
        /// After it.
        file: &'static str,
    },
}

impl Key {
    /// `exports.file_root` is also `TOWPATH_EXPORTS_FILE_ROOT`.
    pub fn derived_environment_name(&self) -> String {
        format!("TOWPATH_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// Every name the environment may use for it, most important first. The derived name is made for this program;
    /// `DATABASE_URI` may be there for another one.
    pub fn environment_names(&self) -> impl Iterator<Item = String> {
        let derived = self.derived_environment_name();
        let fixed = self.environment.iter().map(|name| (*name).to_owned());
        let mut names = vec![derived];
        for name in fixed {
            // Some keys have their derived name as a fixed one, too.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.into_iter()
    }
}

/// The settings, in the order `towpath config show` prints them.
pub const KEYS: &[Key] = &[
    Key {
        name: "data_dir",
        environment: &[],
        default: Fallback::Text(".towpath"),
        kind: Kind::Path,
        about: "folder for everything that is kept on this machine",
    },
    Key {
        name: "database_uri",
        environment: &["DATABASE_URI", "POSTGRES_URI"],
        default: Fallback::BelowDataByMode {
            scheme: "sqlite://",
            file: |mode| match mode {
                Mode::Agent => "agent.db",
                Mode::Dev | Mode::Api | Mode::Worker | Mode::Scheduler => "towpath.db",
            },
        },
        kind: Kind::Uri(&["sqlite", "postgres", "postgresql"]),
        about: "the database: sqlite:///path/file.db or postgres://user:password@host/name",
    },
    Key {
        name: "database_connections",
        environment: &[],
        // A worker that performs many jobs at a time gets more: see `Config::load`.
        default: Fallback::ByMode(|mode| match mode {
            Mode::Dev | Mode::Api | Mode::Agent => "16",
            Mode::Worker | Mode::Scheduler => "6",
        }),
        kind: Kind::Count { least: 2, most: 1000 },
        about: "connections of this process to the database",
    },
    Key {
        name: "redis_uri",
        environment: &["REDIS_URI"],
        default: Fallback::Absent,
        kind: Kind::Uri(&["redis", "rediss", "unix", "redis+unix"]),
        about: "Redis for wake-ups between processes; without it they find work by looking",
    },
    Key {
        name: "objects",
        environment: &["TOWPATH_OBJECTS"],
        default: Fallback::BelowData {
            scheme: "file://",
            file: "objects",
        },
        kind: Kind::Uri(&["file", "s3"]),
        about: "where trace data lies: file:///folder or s3://bucket/prefix with the usual AWS variables",
    },
    Key {
        name: "listen",
        environment: &["TOWPATH_LISTEN"],
        default: Fallback::ByMode(|mode| match mode {
            Mode::Dev | Mode::Api => "127.0.0.1:8400",
            Mode::Worker => "127.0.0.1:8401",
            Mode::Scheduler => "127.0.0.1:8402",
            Mode::Agent => "127.0.0.1:8123",
        }),
        kind: Kind::Address,
        about: "address of the platform API, or of health and metrics where this process serves no API",
    },
    Key {
        name: "public_url",
        environment: &["TOWPATH_PUBLIC_URL"],
        default: Fallback::Absent,
        kind: Kind::Uri(&["http", "https"]),
        about: "where others reach the platform: what the addresses of deployments, uploads and webhooks begin with; of towpath agent, where others reach that, as the metadata of its runs say; absent: where it listens",
    },
    Key {
        name: "agent_listen",
        environment: &[],
        default: Fallback::Text("127.0.0.1:8123"),
        kind: Kind::Address,
        about: "address of dev's agent server; `towpath agent` listens on `listen`",
    },
    Key {
        name: "agent.graphs",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "the file that declares the graphs of the agent server; absent: langgraph.json or towpath.json of the current folder, else one graph that echoes",
    },
    Key {
        name: "agent.auth",
        environment: &[],
        default: Fallback::Text("auto"),
        kind: Kind::Choice(&["auto", "key", "none"]),
        about: "whether callers of the agent server need an API key; auto asks for one unless it listens on loopback",
    },
    Key {
        name: "agent.gateway_key",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::EncryptionKey,
        about: "set by a platform for the agent servers of its deployments: they answer only what its gateway signed with this key",
    },
    Key {
        name: "agent.mount_prefix",
        environment: &["MOUNT_PREFIX"],
        default: Fallback::Text(""),
        kind: Kind::Prefix,
        about: "path below which the agent server answers, such as /agents/one",
    },
    Key {
        name: "agent.cors_origins",
        environment: &["CORS_ALLOW_ORIGINS"],
        default: Fallback::Text("*"),
        kind: Kind::Origins,
        about: "web pages that may call the agent server, with commas between them; * is any",
    },
    Key {
        name: "agent.body_limit_bytes",
        environment: &["HTTP_MAX_REQUEST_BODY_BYTES"],
        default: Fallback::Text("314572800"),
        kind: Kind::Count {
            least: 1024,
            most: 4 << 30,
        },
        about: "largest request body of the agent server",
    },
    Key {
        name: "agent.resumable",
        environment: &[],
        default: Fallback::Text("asked"),
        kind: Kind::Choice(&["asked", "always"]),
        about: "whose events are kept for readers that come back: of runs that ask for it, or of all",
    },
    Key {
        name: "agent.event_retention_seconds",
        environment: &["RESUMABLE_STREAM_TTL_SECONDS"],
        default: Fallback::Text("120"),
        kind: Kind::Count {
            least: 1,
            most: 31_536_000,
        },
        about: "how long kept events stay after their run is over",
    },
    Key {
        name: "agent.run_timeout_seconds",
        environment: &["BG_JOB_TIMEOUT_SECS"],
        default: Fallback::Text("86400"),
        kind: Kind::Count {
            least: 1,
            most: 31_536_000,
        },
        about: "a run that takes longer ends as timed out",
    },
    Key {
        name: "agent.run_attempts",
        environment: &["BG_JOB_MAX_RETRIES"],
        default: Fallback::Text("3"),
        kind: Kind::Count { least: 1, most: 100 },
        about: "a run whose attempts failed so often ends as failed; lost workers have a limit of their own, and what a graph raises is never repeated",
    },
    Key {
        name: "agent.webhook_secret",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::ApiKey,
        about: "signs the bodies of webhooks (HMAC-SHA256); at least 32 characters",
    },
    Key {
        name: "agent.keep_checkpoints",
        environment: &[],
        default: Fallback::Text("1000"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "checkpoints kept for each thread, the newest first; what subgraphs saved goes with the checkpoint that called them; 0 keeps all",
    },
    Key {
        name: "agent.keep_checkpoints_days",
        environment: &[],
        default: Fallback::Text("90"),
        kind: Kind::Count { least: 0, most: 36_500 },
        about: "days that checkpoints are kept; the latest state of a thread stays however old it is; 0 keeps all",
    },
    Key {
        name: "agent.python",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "interpreter that runs Python graphs and has their packages; absent: that of the active virtual environment where it has langgraph, else one made from the dependencies of the graph file",
    },
    Key {
        name: "agent.hosts_dir",
        environment: &[],
        default: Fallback::BelowData {
            scheme: "",
            file: "hosts",
        },
        kind: Kind::Path,
        about: "folder of what processes of Python graphs need: the environments made for them, and our side of the program",
    },
    Key {
        name: "agent.hosts",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count { least: 0, most: 256 },
        about: "most processes at a time that run Python graphs; 0 is one for each processor, at most 4",
    },
    Key {
        name: "agent.isolation",
        environment: &[],
        default: Fallback::Text("shared"),
        kind: Kind::Choice(&["shared", "process"]),
        about: "whether runs of Python graphs share a process, or each has one of its own while it works",
    },
    Key {
        name: "agent.host_runs",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000_000,
        },
        about: "a process of Python graphs is replaced after so many runs; 0 is never",
    },
    Key {
        name: "agent.host_memory_mb",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1 << 30,
        },
        about: "a process of Python graphs that holds more gets no new runs and is replaced when its runs are over; 0 is no limit",
    },
    Key {
        name: "agent.host_start_seconds",
        environment: &[],
        default: Fallback::Text("120"),
        kind: Kind::Count { least: 1, most: 3600 },
        about: "how long a process of Python graphs may take to import them",
    },
    Key {
        name: "agent.cancel_grace_seconds",
        environment: &[],
        default: Fallback::Text("10"),
        kind: Kind::Count { least: 0, most: 3600 },
        about: "a cancelled run of Python code that is still at work after this is over all the same; its process gets no more runs",
    },
    Key {
        name: "encryption_key",
        environment: &["TOWPATH_ENCRYPTION_KEY"],
        default: Fallback::Absent,
        kind: Kind::EncryptionKey,
        about: "32 bytes as base64 or hex that seal stored credentials; absent: a key file in the data folder. With commas between several, the first seals and all open",
    },
    Key {
        name: "api_key",
        environment: &["TOWPATH_API_KEY"],
        default: Fallback::Absent,
        kind: Kind::ApiKey,
        about: "becomes the first API key at the first start; at least 32 characters",
    },
    Key {
        name: "tenant_id",
        environment: &["TOWPATH_TENANT_ID"],
        default: Fallback::Absent,
        kind: Kind::Uuid,
        about: "becomes the first workspace at the first start",
    },
    Key {
        name: "engine.lease_seconds",
        environment: &[],
        default: Fallback::Text("15"),
        kind: Kind::Count { least: 1, most: 3600 },
        about: "how long a silent worker keeps its jobs; it renews every third of this",
    },
    Key {
        name: "engine.drain_grace_seconds",
        environment: &["BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS"],
        default: Fallback::Text("10"),
        kind: Kind::Count { least: 0, most: 3600 },
        about: "time running jobs get to finish at shutdown before they are handed back",
    },
    Key {
        name: "workers.slots",
        environment: &["N_JOBS_PER_WORKER"],
        default: Fallback::Absent,
        kind: Kind::Count { least: 1, most: 4096 },
        about: "jobs of one pool that this process performs at a time; absent: 64 runs of agents where runs share a \
                process, 10 of everything else",
    },
    Key {
        name: "workers.pool_slots",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::PoolSlots,
        about: "pools with another number, as pool=count",
    },
    Key {
        name: "exports.file_root",
        environment: &[],
        default: Fallback::BelowData {
            scheme: "",
            file: "exports",
        },
        kind: Kind::Path,
        about: "folder that `file` destinations write below",
    },
    Key {
        name: "exports.environment_credentials",
        environment: &[],
        default: Fallback::ByMode(|mode| if mode == Mode::Dev { "true" } else { "false" }),
        kind: Kind::Switch,
        about: "whether a destination without credentials may use this process's own AWS ones",
    },
    Key {
        name: "exports.file_size_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count { least: 1, most: 4096 },
        about: "a file of an export is closed at about this size",
    },
    Key {
        name: "exports.per_workspace",
        environment: &[],
        default: Fallback::Text("15"),
        kind: Kind::Count { least: 1, most: 10_000 },
        about: "exports of one workspace at work at the same time; further ones wait; a change counts once none is at work",
    },
    Key {
        name: "exports.runs_at_once",
        environment: &[],
        default: Fallback::Text("45"),
        kind: Kind::Count { least: 1, most: 10_000 },
        about: "export runs of one export at work at the same time",
    },
    Key {
        name: "exports.timeout_hours",
        environment: &[],
        default: Fallback::Text("72"),
        kind: Kind::Count { least: 1, most: 8760 },
        about: "an export that takes longer ends as TIMEDOUT, counted from when it begins to run",
    },
    Key {
        name: "exports.retry_seconds",
        environment: &[],
        default: Fallback::Text("30"),
        kind: Kind::Count { least: 0, most: 3600 },
        about: "how long an export run that failed waits before it is tried again",
    },
    Key {
        name: "traces.retention_days",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count { least: 0, most: 36_500 },
        about: "days that trace runs are kept, counted from the day they started on; 0 keeps them for ever",
    },
    Key {
        name: "traces.index_cache_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "memory for finding trace runs by id; 2 MB hold a million of a workspace",
    },
    Key {
        name: "http.requests",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "requests worked on at once; more are answered 503",
    },
    Key {
        name: "http.connections_per_address",
        environment: &[],
        default: Fallback::Text("1024"),
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "connections from one address of another machine; more are closed as they come: raise it where a proxy stands between",
    },
    Key {
        name: "http.trusted_proxies",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::Networks,
        about: "addresses and networks (10.0.0.0/8) of proxies whose X-Forwarded-For, X-Forwarded-Proto and Forwarded count, with commas between",
    },
    Key {
        name: "metrics.key",
        environment: &["TOWPATH_METRICS_KEY"],
        default: Fallback::Absent,
        kind: Kind::ApiKey,
        about: "asked for, as a bearer token, before metrics are given out and /readyz names dependencies; at least 32 characters; absent: everybody may look",
    },
    Key {
        name: "ingest.body_limit_mb",
        environment: &[],
        default: Fallback::Text("24"),
        kind: Kind::Count { least: 1, most: 1024 },
        about: "largest ingest body as it is sent, compressed or not",
    },
    Key {
        name: "ingest.backlog_mb",
        environment: &[],
        default: Fallback::Text("1024"),
        kind: Kind::Count {
            least: 16,
            most: 1_048_576,
        },
        about: "trace data, as sent, that may wait to be folded; beyond half of it more comes in at the pace of folding only, the rest is answered 429",
    },
    Key {
        name: "ingest.fold_delay_ms",
        environment: &[],
        default: Fallback::Text("2000"),
        kind: Kind::Count { least: 0, most: 60_000 },
        about: "how long trace data waits for more before it is folded; an export does not wait for this",
    },
    Key {
        name: "ingest.pending_patches",
        environment: &[],
        default: Fallback::Text("100000"),
        kind: Kind::Count {
            least: 1,
            most: 100_000_000,
        },
        about: "patches of one workspace that may wait for trace runs that have not come; the oldest beyond that are dropped",
    },
    Key {
        name: "ingest.pending_bytes",
        environment: &[],
        default: Fallback::Text("268435456"),
        kind: Kind::Count {
            least: 1_048_576,
            most: 1_099_511_627_776,
        },
        about: "bytes of patches of one workspace that may wait for trace runs that have not come; the oldest beyond that are dropped",
    },
    Key {
        name: "ingest.memory_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count {
            least: 16,
            most: 65_536,
        },
        about: "memory that ingest bodies under way may take together; more are answered 503",
    },
    Key {
        name: "ingest.quarantine_bytes",
        environment: &[],
        default: Fallback::Text("1073741824"),
        kind: Kind::Count {
            least: 1 << 20,
            most: 1 << 50,
        },
        about: "accepted trace data of one workspace that could not be folded and is kept for another try; beyond it the oldest is dropped",
    },
    Key {
        name: "ingest.quarantine_entries",
        environment: &[],
        default: Fallback::Text("10000"),
        kind: Kind::Count {
            least: 1,
            most: 1_000_000,
        },
        about: "the same in entries, most of which are one request each",
    },
    Key {
        name: "deployments.backend",
        environment: &[],
        default: Fallback::Text("auto"),
        kind: Kind::Choice(&["auto", "process", "docker", "none"]),
        about: "what runs deployments: processes of this machine, containers of its Docker engine, or nothing here; auto runs processes where one process does everything. One process of an installation may",
    },
    Key {
        name: "deployments.trust",
        environment: &[],
        default: Fallback::Text("one"),
        kind: Kind::Choice(&["one", "all"]),
        about: "whose code runs as processes of this machine: that of one workspace, or that of all; one refuses deployments of a second workspace",
    },
    Key {
        name: "deployments.docker_host",
        environment: &[],
        default: Fallback::Text("unix:///var/run/docker.sock"),
        kind: Kind::Uri(&["unix", "tcp", "http"]),
        about: "where the Docker engine answers: unix:// and a path, or tcp:// and an address; it has to be on the gateway's machine",
    },
    Key {
        name: "deployments.docker_network",
        environment: &[],
        default: Fallback::Text("bridge"),
        kind: Kind::Name,
        about: "how containers are reached: bridge gives each a port on loopback, host shares this machine's network, any other is the name of a network that the platform's own container is in",
    },
    Key {
        name: "deployments.docker_base_image",
        environment: &[],
        default: Fallback::Text("ghcr.io/astral-sh/uv:python{python_version}-bookworm-slim"),
        kind: Kind::Name,
        about: "what images are built from where the graph configuration names no base_image; it needs glibc, and uv or Python for Python graphs",
    },
    Key {
        name: "deployments.docker_config",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "a config.json of Docker with logins of registries; images of every workspace are pulled with them where the workspace has no login of its own",
    },
    Key {
        name: "deployments.docker_runtime",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Name,
        about: "what the engine runs agent servers with, such as runsc of gVisor; the engine has to know it. Without it the engine's default",
    },
    Key {
        name: "deployments.docker_user",
        environment: &[],
        default: Fallback::Text("10001:10001"),
        kind: Kind::Name,
        about: "who agent servers of images run as that name no user: two numbers with a colon between them; image leaves them to root",
    },
    Key {
        name: "deployments.docker_build_memory_mb",
        environment: &[],
        default: Fallback::Text("2047"),
        kind: Kind::Count { least: 64, most: 2047 },
        about: "memory of one step of an image's build, with as much swap; the engine's interface takes no more",
    },
    Key {
        name: "deployments.docker_build_cpus",
        environment: &[],
        default: Fallback::Text("2"),
        kind: Kind::Count { least: 1, most: 1000 },
        about: "CPUs of one step of an image's build",
    },
    Key {
        name: "deployments.git_transports",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::Several(&["http", "ssh", "file"]),
        about: "how repositories may be reached beside https, with commas between; file reads this machine's disk",
    },
    Key {
        name: "deployments.build_timeout_seconds",
        environment: &[],
        default: Fallback::Text("900"),
        kind: Kind::Count { least: 1, most: 86_400 },
        about: "what one program of a build may take",
    },
    Key {
        name: "deployments.source_limit_mb",
        environment: &[],
        default: Fallback::Text("1024"),
        kind: Kind::Count {
            least: 1,
            most: 1_048_576,
        },
        about: "largest source tree of a deployment, with what its build puts there",
    },
    Key {
        name: "deployments.health_timeout_seconds",
        environment: &[],
        default: Fallback::Text("300"),
        kind: Kind::Count { least: 1, most: 3600 },
        about: "what an agent server of a deployment may take until it answers /ok",
    },
    Key {
        name: "deployments.drain_grace_seconds",
        environment: &[],
        default: Fallback::Text("3"),
        kind: Kind::Count { least: 0, most: 3600 },
        about: "what requests and runs of a deployment get to finish when its agent server is replaced; runs that are not done go on in the new one",
    },
    Key {
        name: "deployments.hold_seconds",
        environment: &[],
        default: Fallback::Text("5"),
        kind: Kind::Count { least: 0, most: 600 },
        about: "how long a request waits for an agent server that is replaced or started again, before it is answered 503",
    },
    Key {
        name: "deployments.keep_artifacts",
        environment: &[],
        default: Fallback::Text("10"),
        kind: Kind::Count { least: 1, most: 1000 },
        about: "built revisions kept of each deployment, so that they are deployed again at once",
    },
    Key {
        name: "outbound.allow",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::Allowed,
        about: "private addresses that destinations may have: host, host:port, address, 10.0.0.0/8, or :port",
    },
    Key {
        name: "log.filter",
        environment: &["TOWPATH_LOG", "RUST_LOG"],
        default: Fallback::Text("info,apalis_core=warn,sqlx=warn"),
        kind: Kind::LogFilter,
        about: "how much is logged, as in info or info,towpath_durable=debug",
    },
    Key {
        name: "log.format",
        environment: &[],
        default: Fallback::Text("auto"),
        kind: Kind::Choice(&["auto", "text", "json"]),
        about: "text for people, json for programs; auto asks whether the output is a terminal",
    },
    Key {
        name: "telemetry.otlp_endpoint",
        environment: &["TOWPATH_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
        default: Fallback::Absent,
        kind: Kind::Uri(&["http", "https"]),
        about: "OpenTelemetry collector that gets the spans of requests and jobs, as http://host:4318; absent: none",
    },
];
