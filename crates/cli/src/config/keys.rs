//! Every setting there is. `docs/configuration.md` lists the same keys; a test compares them.

mod agent;
mod deployments;
mod engine;
mod http;
mod ingest;
mod observability;
mod process;
mod sandboxes;
mod traces;

use super::key::Key;

/// Settings of another name before, with today's. One that is set is refused: to ignore it would change what the process does.
pub const RENAMED: [(&str, &str); 4] = [
    ("deployments.keeper_lease_seconds", "deployments.lease_seconds"),
    ("disk.least_free_mb", "disk.min_free_mb"),
    ("ingest.fold_delay_ms", "ingest.flush_delay_ms"),
    ("sandboxes.most_per_workspace", "sandboxes.max_per_workspace"),
];

/// Today's name of a setting that had `name` before.
pub fn renamed(name: &str) -> Option<&'static str> {
    let mut pairs = RENAMED.into_iter();
    pairs.find_map(|(old, new)| (old == name).then_some(new))
}

/// The settings, in the order `towpath config show` prints them.
pub fn all() -> impl Iterator<Item = &'static Key> {
    let tables = [
        process::KEYS,
        agent::KEYS,
        engine::KEYS,
        traces::KEYS,
        http::KEYS,
        ingest::KEYS,
        deployments::KEYS,
        sandboxes::KEYS,
        observability::KEYS,
    ];
    tables.into_iter().flatten()
}
