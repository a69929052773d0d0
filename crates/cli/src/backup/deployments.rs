//! What this machine keeps of deployments: the data folders of their agent servers, each with a database of its own,
//! and the artifacts these are started from.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use towpath_store::backup as copies;

use super::files;

const FOLDER: &str = "deployments";
const AGENTS: &str = "agents";
const ARTIFACTS: &str = "artifacts";
/// The record of an artifact that is whole.
const BUILT: &str = "built.json";
/// Of one life of an agent server.
const PASSING: [&str; 2] = ["lock", "address"];

/// Copies them; how many deployments there are. Agent servers may run meanwhile.
pub(super) async fn copy(data: &Path, to: &Path) -> anyhow::Result<u64> {
    let (from, to) = (data.join(FOLDER), to.join(FOLDER));
    let mut deployments = 0;
    for name in folders(&from.join(AGENTS))? {
        copy_agent(&from.join(AGENTS).join(&name), &to.join(AGENTS).join(&name)).await?;
        deployments += 1;
    }
    for name in folders(&from.join(ARTIFACTS))? {
        let (from, to) = (from.join(ARTIFACTS).join(&name), to.join(ARTIFACTS).join(&name));
        if !from.join(BUILT).is_file() {
            continue;
        }
        files::copy_tree(&from, &to)?;
        // Its removal takes the record with the rest: what still has one now was whole while it was copied.
        if !from.join(BUILT).is_file() {
            files::remove(&to.join(BUILT))?;
        }
    }
    Ok(deployments)
}

/// Puts them where a start finds them.
pub(super) fn restore(from: &Path, data: &Path) -> anyhow::Result<()> {
    files::copy_tree(&from.join(FOLDER), &data.join(FOLDER))
}

/// Databases as they are at one moment, everything else as it lies.
async fn copy_agent(from: &Path, to: &Path) -> anyhow::Result<()> {
    files::make(to)?;
    let entries = std::fs::read_dir(from).with_context(|| format!("folder {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files::copy_tree(&source, &target)?;
        } else if kind.is_file() && name.ends_with(".db") {
            copies::copy_sqlite(&source, &target).await?;
        } else if kind.is_file()
            && !PASSING.contains(&name.as_str())
            && !name.ends_with(".db-wal")
            && !name.ends_with(".db-shm")
        {
            files::copy_file(&source, &target)?;
        }
    }
    Ok(())
}

/// The databases of agent servers in a data folder or a backup, which have the same layout.
pub(super) fn databases(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let agents = folder.join(FOLDER).join(AGENTS);
    let mut databases = Vec::new();
    for name in folders(&agents)? {
        let agent = agents.join(name);
        let entries = std::fs::read_dir(&agent).with_context(|| format!("folder {}", agent.display()))?;
        for entry in entries {
            let file = entry?.path();
            if file.extension().is_some_and(|extension| extension == "db") {
                databases.push(file);
            }
        }
    }
    Ok(databases)
}

fn folders(of: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match std::fs::read_dir(of) {
        Ok(entries) => entries,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(why).with_context(|| format!("folder {}", of.display())),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}
