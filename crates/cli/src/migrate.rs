//! `towpath migrate`

use towpath_store::backup;

use crate::arguments::Migrate;
use crate::config::{Config, Mode};
use crate::storage::Storage;
use crate::telemetry;

/// Brings the schema up to date. The other commands do the same when they start; this one is for operators who want
/// it done, and seen, before the first new process starts.
///
/// # Errors
/// When the database cannot be reached or migrated.
pub async fn run(command: Migrate) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Api, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    let store = Storage::open(&config.settings).await?.store;
    let known = backup::known_migrations(store.dialect()).len();
    store.close().await;
    println!("the schema is up to date: all {known} migrations are applied");
    Ok(())
}
