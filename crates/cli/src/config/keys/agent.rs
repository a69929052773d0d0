//! The agent server and the processes that run graphs.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;

pub const KEYS: &[Key] = &[
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
        about: "whether callers of the agent server need an API key; auto requires one unless the server listens on loopback",
    },
    Key {
        name: "agent.gateway_key",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::EncryptionKey,
        about: "set by a platform for the agent servers of its deployments: they answer only requests that its gateway signed with this key",
    },
    Key {
        name: "agent.mount_prefix",
        environment: &["MOUNT_PREFIX"],
        default: Fallback::Text(""),
        kind: Kind::Prefix,
        about: "path prefix of the agent server, such as /agents/one",
    },
    Key {
        name: "agent.metric_prefix",
        environment: &["METRIC_PREFIX"],
        default: Fallback::Text("lg_api_"),
        kind: Kind::MetricPrefix,
        about: "how names of the official server's metrics begin on the agent server; all others begin with towpath_",
    },
    Key {
        name: "agent.cors_origins",
        environment: &["CORS_ALLOW_ORIGINS"],
        default: Fallback::Text("*"),
        kind: Kind::Origins,
        about: "origins of web pages that may call the agent server, separated by commas; * is any",
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
        about: "which runs keep their events for readers that reconnect: runs that ask for it (asked), or all (always)",
    },
    Key {
        name: "agent.event_retention_seconds",
        environment: &["RESUMABLE_STREAM_TTL_SECONDS"],
        default: Fallback::Text("120"),
        kind: Kind::Count {
            least: 1,
            most: 31_536_000,
        },
        about: "how long events are kept after their run has ended",
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
        about: "attempts of a run before it ends as failed; lost workers have a limit of their own, and exceptions of a graph are never retried",
    },
    Key {
        name: "agent.webhook_secret",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::ApiKey,
        about: "key that signs the bodies of webhooks (HMAC-SHA256); at least 32 characters",
    },
    Key {
        name: "agent.keep_checkpoints",
        environment: &[],
        default: Fallback::Text("1000"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "newest checkpoints kept for each thread; checkpoints of subgraphs are deleted with the checkpoint that called them; 0 keeps all",
    },
    Key {
        name: "agent.keep_checkpoints_days",
        environment: &[],
        default: Fallback::Text("90"),
        kind: Kind::Count { least: 0, most: 36_500 },
        about: "days that checkpoints are kept; the latest state of a thread is kept at any age; 0 keeps all",
    },
    Key {
        name: "agent.python",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "interpreter that runs Python graphs and has their packages; absent: that of the active virtual environment if it has langgraph, else one made from the dependencies of the graph file",
    },
    Key {
        name: "agent.hosts_dir",
        environment: &[],
        default: Fallback::BelowData {
            scheme: "",
            file: "hosts",
        },
        kind: Kind::Path,
        about: "folder for the processes of Python graphs: the environments made for them, and the server's part of the program",
    },
    Key {
        name: "agent.hosts",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count { least: 0, most: 256 },
        about: "most processes that run Python graphs at the same time; 0 is one for each processor, at most 4",
    },
    Key {
        name: "agent.isolation",
        environment: &[],
        default: Fallback::Text("shared"),
        kind: Kind::Choice(&["shared", "process"]),
        about: "whether runs of Python graphs share a process (shared), or each has its own while it runs (process)",
    },
    Key {
        name: "agent.host_runs",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000_000,
        },
        about: "number of runs after which a process of Python graphs is replaced; 0 is never",
    },
    Key {
        name: "agent.host_memory_mb",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1 << 30,
        },
        about: "a process of Python graphs that holds more gets no new runs, and is replaced when its runs have ended; 0 is no limit",
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
        about: "time for Python code to stop after a cancel; then the run ends anyway, and its process gets no more runs",
    },
];
