//! Every setting there is. `docs/configuration.md` lists the same keys; a test compares them.

mod agent;
mod deployments;
mod engine;
mod http;
mod ingest;
mod observability;
mod process;
mod traces;

use super::key::Key;

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
        observability::KEYS,
    ];
    tables.into_iter().flatten()
}
