//! Deployments of this machine: the data folders of their agent servers, each with a database of its own, and the
//! artifacts that the servers start from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use towpath_domain::DeploymentId;
use towpath_store::backup as copies;
use towpath_store::sealing::Sealer;

use super::files;
use super::keys::{self, PlatformKeys};
use super::names::{AGENT, OWN, RECORD};

pub(super) const FOLDER: &str = "deployments";
const AGENTS: &str = "agents";
const ARTIFACTS: &str = "artifacts";
/// Record of a complete artifact.
const BUILT: &str = "built.json";
/// Files of one process life of an agent server.
const TRANSIENT_FILES: [&str; 3] = ["lock", "agent.lock", "address"];

/// Copies deployments and returns their number. Agent servers may keep running. For deployments whose files are
/// `elsewhere`, only the key is copied, and they do not count.
pub(super) async fn copy(
    data: &Path,
    to: &Path,
    keys: &PlatformKeys,
    elsewhere: &BTreeSet<DeploymentId>,
) -> anyhow::Result<u64> {
    let (from, to) = (data.join(FOLDER), to.join(FOLDER));
    let mut deployments = 0;
    for name in folders(&from.join(AGENTS))? {
        if is_of(&name, elsewhere) {
            let (from, to) = (from.join(AGENTS).join(&name), to.join(AGENTS).join(&name));
            files::make(&to)?;
            keys.copy(&from.join(keys::PLATFORM), &to)?;
        } else if copy_agent(&from.join(AGENTS).join(&name), &to.join(AGENTS).join(&name), keys).await? {
            deployments += 1;
        }
    }
    for name in folders(&from.join(ARTIFACTS))? {
        let (from, to) = (from.join(ARTIFACTS).join(&name), to.join(ARTIFACTS).join(&name));
        if !from.join(BUILT).is_file() {
            continue;
        }
        files::copy_tree(&from, &to)?;
        // Removing an artifact removes this record too, so an artifact that still has it was complete while it was
        // copied.
        if !from.join(BUILT).is_file() {
            files::remove(&to.join(BUILT))?;
        }
    }
    Ok(deployments)
}

/// Restores deployments; for those whose files go `elsewhere`, only the key.
pub(super) fn restore(
    from: &Path,
    data: &Path,
    sealer: Option<&Sealer>,
    elsewhere: &BTreeSet<DeploymentId>,
) -> anyhow::Result<()> {
    let (from, to) = (from.join(FOLDER), data.join(FOLDER));
    files::copy_tree(&from.join(ARTIFACTS), &to.join(ARTIFACTS))?;
    for name in folders(&from.join(AGENTS))? {
        let (kept, own) = (from.join(AGENTS).join(&name), to.join(AGENTS).join(&name));
        if is_of(&name, elsewhere) {
            files::make(&own)?;
            for file in OWN {
                files::copy_key(&kept.join(file), &own.join(file))?;
            }
        } else {
            files::copy_tree(&kept, &own)?;
            files::remove(&own.join(RECORD))?;
        }
        keys::open_platform_key(sealer, &own)?;
    }
    Ok(())
}

fn is_of(folder: &str, ids: &BTreeSet<DeploymentId>) -> bool {
    folder.parse::<DeploymentId>().is_ok_and(|id| ids.contains(&id))
}

pub(super) fn agent(folder: &Path, deployment: DeploymentId) -> PathBuf {
    folder.join(FOLDER).join(AGENTS).join(deployment.to_string())
}

pub(super) fn ids(folder: &Path) -> anyhow::Result<Vec<DeploymentId>> {
    let names = folders(&folder.join(FOLDER).join(AGENTS))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Those of `placed` whose database is not in a data folder or a backup. A copy out of a volume counts as present,
/// whatever it contains.
pub(super) fn without_database(folder: &Path, placed: &[DeploymentId]) -> anyhow::Result<Vec<DeploymentId>> {
    let databases = databases(folder)?;
    let mut missing = placed.to_vec();
    missing.retain(|id| {
        let own = agent(folder, *id);
        !own.join(RECORD).is_file() && !databases.iter().any(|file| file.parent() == Some(own.as_path()))
    });
    Ok(missing)
}

pub(super) fn has_deployments(folder: &Path) -> anyhow::Result<bool> {
    Ok(!folders(&folder.join(FOLDER).join(AGENTS))?.is_empty())
}

/// Copies databases as consistent snapshots and all other files as they are; false if the deployment is deleted
/// meanwhile.
pub(super) async fn copy_agent(from: &Path, to: &Path, keys: &PlatformKeys) -> anyhow::Result<bool> {
    let Some(entries) = files::ignore_missing(std::fs::read_dir(from), from)? else {
        return Ok(false);
    };
    files::make(to)?;
    for entry in entries {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(kind) = files::ignore_missing(entry.file_type(), &source)? else {
            continue;
        };
        // Reserved names of the backup: a deployment's own file of this name is skipped.
        if [keys::SEALED, RECORD].contains(&name.as_str()) || (name == keys::PLATFORM && !kind.is_file()) {
            continue;
        }
        if kind.is_dir() {
            files::copy_tree(&source, &target)?;
        } else if kind.is_file() && name == keys::PLATFORM {
            keys.copy(&source, to)?;
        } else if kind.is_file() && name.ends_with(".db") {
            match copy_database(&source, &target).await {
                // The deployment's code may have a file of this name that is not a database.
                Err(_) if name != AGENT => {
                    files::remove(&target)?;
                    files::copy_file(&source, &target)?;
                }
                copied => copied?,
            }
        } else if kind.is_file()
            && !TRANSIENT_FILES.contains(&name.as_str())
            && !name.ends_with(".db-wal")
            && !name.ends_with(".db-shm")
            // The journal belongs to the database file, which is copied as a snapshot.
            && !name.ends_with(".db-journal")
        {
            files::copy_file(&source, &target)?;
        }
    }
    if from.is_dir() {
        return Ok(true);
    }
    // A partial copy.
    std::fs::remove_dir_all(to).with_context(|| format!("folder {}", to.display()))?;
    Ok(false)
}

async fn copy_database(from: &Path, to: &Path) -> anyhow::Result<()> {
    match copies::copy_sqlite(from, to).await {
        Err(_) if !from.exists() => files::remove(to),
        copied => Ok(copied?),
    }
}

/// Databases of agent servers in a data folder or a backup; both have the same layout.
pub(super) fn databases(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let agents = folder.join(FOLDER).join(AGENTS);
    let mut databases = Vec::new();
    for name in folders(&agents)? {
        let agent = agents.join(name);
        // It may be deleted meanwhile.
        let entries = files::ignore_missing(std::fs::read_dir(&agent), &agent)?;
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            // Other files and links of such names belong to the deployment's code.
            let is_file = files::ignore_missing(entry.file_type(), &entry.path())?.is_some_and(|kind| kind.is_file());
            if is_file && entry.file_name() == AGENT {
                databases.push(entry.path());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deployment_that_is_deleted_meanwhile_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        assert!(!copy_agent(&from, &to, &PlatformKeys::Plain).await.unwrap());
        assert!(!to.exists());
        files::make(&from).unwrap();
        // Listed, and gone when it is opened.
        std::os::unix::fs::symlink("gone", from.join("agent.db")).unwrap();
        std::fs::write(from.join("platform.key"), "key").unwrap();
        assert!(copy_agent(&from, &to, &PlatformKeys::Plain).await.unwrap());
        assert!(to.join("platform.key").is_file() && !to.join("agent.db").exists());
    }

    #[test]
    fn a_deployment_whose_database_is_elsewhere_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (here, elsewhere, unknown) = (DeploymentId::new(), DeploymentId::new(), DeploymentId::new());
        for id in [here, elsewhere] {
            let own = folder.path().join(FOLDER).join(AGENTS).join(id.to_string());
            files::make(&own).unwrap();
            std::fs::write(own.join("platform.key"), "key").unwrap();
        }
        let own = folder.path().join(FOLDER).join(AGENTS).join(here.to_string());
        std::fs::write(own.join("agent.db"), "").unwrap();
        let found = without_database(folder.path(), &[here, elsewhere, unknown]).unwrap();
        assert_eq!(found, [elsewhere, unknown]);
        std::fs::write(agent(folder.path(), elsewhere).join(RECORD), "{}").unwrap();
        let found = without_database(folder.path(), &[here, elsewhere, unknown]).unwrap();
        assert_eq!(found, [unknown]);
    }

    #[tokio::test]
    async fn of_a_deployment_whose_files_are_elsewhere_only_the_key_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
        let id = DeploymentId::new();
        files::make(&agent(&data, id)).unwrap();
        for file in ["platform.key", "agent.db"] {
            std::fs::write(agent(&data, id).join(file), "of another time").unwrap();
        }
        let elsewhere = BTreeSet::from([id]);
        let copied = copy(&data, &backup, &PlatformKeys::Plain, &elsewhere).await.unwrap();
        assert_eq!(copied, 0);
        let own = agent(&backup, id);
        assert!(own.join("platform.key").is_file() && !own.join("agent.db").exists());
        for file in ["agent.db", RECORD] {
            std::fs::write(own.join(file), "of the volume").unwrap();
        }

        let (apart, here) = (folder.path().join("apart"), folder.path().join("here"));
        restore(&backup, &apart, None, &elsewhere).unwrap();
        let own = agent(&apart, id);
        assert!(own.join("platform.key").is_file() && !own.join("agent.db").exists());
        restore(&backup, &here, None, &BTreeSet::new()).unwrap();
        let own = agent(&here, id);
        assert!(own.join("agent.db").is_file() && !own.join(RECORD).exists());
    }
}
