//! Exports, and how long and how much of traces is kept.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;
use crate::config::mode::Mode;

pub const KEYS: &[Key] = &[
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
        about: "whether a destination without credentials may use the AWS credentials of this process",
    },
    Key {
        name: "exports.file_size_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count { least: 1, most: 4096 },
        about: "approximate size at which a file of an export is closed",
    },
    Key {
        name: "exports.per_workspace",
        environment: &[],
        default: Fallback::Text("15"),
        kind: Kind::Count { least: 1, most: 10_000 },
        about: "exports of one workspace that run at the same time; others wait; a change takes effect when none is running",
    },
    Key {
        name: "exports.runs_at_once",
        environment: &[],
        default: Fallback::Text("45"),
        kind: Kind::Count { least: 1, most: 10_000 },
        about: "export runs of one export that run at the same time",
    },
    Key {
        name: "exports.timeout_hours",
        environment: &[],
        default: Fallback::Text("72"),
        kind: Kind::Count { least: 1, most: 8760 },
        about: "an export that takes longer, counted from the start of its work, ends as TIMEDOUT",
    },
    Key {
        name: "exports.retry_seconds",
        environment: &[],
        default: Fallback::Text("30"),
        kind: Kind::Count { least: 0, most: 3600 },
        about: "pause before a failed export run is retried",
    },
    Key {
        name: "traces.retention_days",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count { least: 0, most: 36_500 },
        about: "days that trace runs are kept, counted from the day on which they started; 0 keeps them for ever",
    },
    Key {
        name: "traces.workspace_limit_mb",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1 << 40,
        },
        about: "trace data, datasets and prompts that one workspace may keep; traces count with their size after the flush. At the limit, traces, examples and commits are refused with 507. 0 is no limit",
    },
    Key {
        name: "traces.index_cache_mb",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "memory for finding trace runs by id; 2 MB hold a million of a workspace",
    },
    Key {
        name: "traces.price_file",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "JSON file with prices of models that precede the bundled ones; read at the start",
    },
];
