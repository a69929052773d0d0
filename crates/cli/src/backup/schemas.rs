//! Which build made the databases of agent servers.

use std::path::Path;

use towpath_store::migrations;

use super::{AGENT, deployments};

/// Looks at the database of the agent server of `towpath dev` and at those of deployments, in a data folder or a backup.
///
/// # Errors
/// When this build cannot work with one of them.
pub(super) async fn check_agents(folder: &Path) -> anyhow::Result<()> {
    let mut databases = deployments::databases(folder)?;
    databases.push(folder.join(AGENT));
    for file in databases.iter().filter(|file| file.is_file()) {
        migrations::of_sqlite(file).await?.check()?;
    }
    Ok(())
}
