//! `towpath migrate`

use towpath_store::migrations;

use crate::arguments::Migrate;
use crate::config::{Config, Mode};
use crate::storage::Storage;
use crate::telemetry;

/// Brings the schema up to date. The other commands do the same when they start; this one is for operators who want
/// it done, and seen, before the first new process starts.
///
/// # Errors
/// When the database cannot be reached or migrated, or another build made it.
pub async fn run(command: Migrate) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Api, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    let store = Storage::open(&config.settings).await?.store;
    let version = migrations::newest(store.dialect());
    store.close().await;
    println!("the schema is up to date: version {version}");
    Ok(())
}
