//! Keys of an installation, and the engine with its workers.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;

pub const KEYS: &[Key] = &[
    Key {
        name: "encryption_key",
        environment: &["TOWPATH_ENCRYPTION_KEY"],
        default: Fallback::Absent,
        kind: Kind::EncryptionKey,
        about: "32 bytes as base64 or hex that seal stored credentials; absent: a key file in the data folder. Of several keys, separated by commas, the first seals and all open",
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
        about: "how long a silent worker keeps its jobs; it renews its lease every third of this time",
    },
    Key {
        name: "engine.drain_grace_seconds",
        environment: &["BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS"],
        default: Fallback::Text("10"),
        kind: Kind::Count { least: 0, most: 3600 },
        about: "time for running jobs to finish at shutdown before they are returned",
    },
    Key {
        name: "workers.slots",
        environment: &["N_JOBS_PER_WORKER"],
        default: Fallback::Absent,
        kind: Kind::Count { least: 1, most: 4096 },
        about: "jobs of one pool that this process performs at the same time; absent: 64 agent runs where runs share a process, 10 of everything else",
    },
    Key {
        name: "workers.pool_slots",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::PoolSlots,
        about: "slots of single pools, as pool=count",
    },
];
