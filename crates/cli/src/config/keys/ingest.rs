//! How traces are taken in.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;

pub const KEYS: &[Key] = &[
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
        about: "trace data, as sent, that may wait for its flush. Beyond half of it, data is accepted only at the pace of the flush; the rest is answered 429",
    },
    Key {
        name: "ingest.flush_delay_ms",
        environment: &[],
        default: Fallback::Text("2000"),
        kind: Kind::Count { least: 0, most: 60_000 },
        about: "how long trace data waits for more before it is flushed; an export does not wait for this",
    },
    Key {
        name: "ingest.pending_patches",
        environment: &[],
        default: Fallback::Text("100000"),
        kind: Kind::Count {
            least: 1,
            most: 100_000_000,
        },
        about: "patches of one workspace that may wait for trace runs that have not arrived; the oldest beyond that are dropped",
    },
    Key {
        name: "ingest.pending_bytes",
        environment: &[],
        default: Fallback::Text("268435456"),
        kind: Kind::Count {
            least: 1_048_576,
            most: 1_099_511_627_776,
        },
        about: "bytes of patches of one workspace that may wait for trace runs that have not arrived; the oldest beyond that are dropped",
    },
    Key {
        name: "ingest.memory_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count {
            least: 16,
            most: 65_536,
        },
        about: "memory that ingest bodies in progress may take together; more are answered 503",
    },
    Key {
        name: "ingest.quarantine_bytes",
        environment: &[],
        default: Fallback::Text("1073741824"),
        kind: Kind::Count {
            least: 1 << 20,
            most: 1 << 50,
        },
        about: "accepted trace data of one workspace that could not be flushed and is kept for a retry; beyond it, the oldest is dropped",
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
];
