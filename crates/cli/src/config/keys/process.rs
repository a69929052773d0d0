//! What every process needs: its folder, the database, Redis, objects, and where it listens.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;
use crate::config::mode::Mode;

pub const KEYS: &[Key] = &[
    Key {
        name: "data_dir",
        environment: &[],
        default: Fallback::Text(".towpath"),
        kind: Kind::Path,
        about: "folder for all data kept on this machine",
    },
    Key {
        name: "disk.min_free_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count {
            least: 0,
            most: 1 << 30,
        },
        about: "minimum free space on the disk of the data folder, or of objects in a folder; below it, traces and uploads are refused with 507 and builds wait. On the disk of `exports.file_root`, exports to it wait. 0 is no limit",
    },
    Key {
        name: "database_uri",
        environment: &["DATABASE_URI", "POSTGRES_URI", "POSTGRES_URI_CUSTOM"],
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
        environment: &["LANGGRAPH_POSTGRES_POOL_MAX_SIZE"],
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
        environment: &["REDIS_URI", "REDIS_URI_CUSTOM"],
        default: Fallback::Absent,
        kind: Kind::Uri(&["redis", "rediss", "unix", "redis+unix"]),
        about: "Redis for wakes between processes; without it, they poll",
    },
    Key {
        name: "redis_prefix",
        environment: &["REDIS_KEY_PREFIX"],
        default: Fallback::Text("towpath"),
        kind: Kind::KeyPrefix,
        about: "how the names of all keys and channels in Redis begin, with a colon after it if it does not end with one; the same in every process of an installation, and another one in each installation that shares the Redis",
    },
    Key {
        name: "redis_connections",
        environment: &["REDIS_MAX_CONNECTIONS"],
        default: Fallback::Absent,
        kind: Kind::Count {
            least: 1,
            most: 1_000_000,
        },
        about: "most connections of this process to Redis; it does not start if it needs more: three, one more with queue.dispatch = \"directed\", and one more with limits",
    },
    Key {
        name: "queue.dispatch",
        environment: &[],
        default: Fallback::Text("scan"),
        kind: Kind::Choice(&["scan", "directed"]),
        about: "how workers learn of ready jobs from Redis, the same in every process: a wake, after which they scan the database (scan), or ids of their own (directed); no effect without redis_uri",
    },
    Key {
        name: "objects",
        environment: &["TOWPATH_OBJECTS"],
        default: Fallback::BelowData {
            scheme: "file://",
            file: "objects",
        },
        kind: Kind::Uri(&["file", "s3"]),
        about: "where trace data is stored: file:///folder (all of it on one file system) or s3://bucket/prefix with the usual AWS variables",
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
        about: "address of the platform API; of health and metrics in a process without an API",
    },
    Key {
        name: "public_url",
        environment: &["TOWPATH_PUBLIC_URL"],
        default: Fallback::Absent,
        kind: Kind::Uri(&["http", "https"]),
        about: "address at which others reach the platform; addresses of deployments, uploads and webhooks begin with it. For towpath agent: the address of the agent server, shown in the metadata of its runs",
    },
    Key {
        name: "agent_listen",
        environment: &[],
        default: Fallback::Text("127.0.0.1:8123"),
        kind: Kind::Address,
        about: "address of dev's agent server; `towpath agent` listens on `listen`",
    },
];
