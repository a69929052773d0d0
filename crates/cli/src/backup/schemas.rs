//! Which build made the databases of agent servers.

use std::path::Path;

use towpath_store::migrations;

use super::deployments;
use super::names::AGENT;

/// Checks that this build can use the database of `towpath dev`'s agent server and those of deployments, in a data
/// folder or a backup.
pub(super) async fn check_agents(folder: &Path) -> anyhow::Result<()> {
    let mut databases = deployments::databases(folder)?;
    databases.push(folder.join(AGENT));
    for file in databases.iter().filter(|file| file.is_file()) {
        migrations::of_sqlite(file).await?.check()?;
    }
    Ok(())
}
