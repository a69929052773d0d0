//! `towpath migrate`

use towpath_store::migrations;

use crate::arguments::Migrate;
use crate::config::{Config, Mode};
use crate::storage::Storage;
use crate::telemetry;

/// Migrates the schema. Other commands do so when they start; operators use this one to migrate before the first new
/// process starts.
pub async fn run(command: Migrate) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Api, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    let store = Storage::open(&config.settings).await?.store;
    let version = migrations::newest(store.dialect());
    store.close().await;
    println!("the schema is up to date: version {version}");
    Ok(())
}
