//! Deployments in containers, whose databases are in volumes of a Docker engine.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use towpath_compute::docker::{RestoreRef, VolumeMetadata, Volumes};
use towpath_domain::{DeploymentId, Timestamp};

use super::keys::{PLATFORM, PlatformKeys, SEALED};
use super::names::RECORD;
use super::{deployments, files};
use crate::arguments::CopyData;
use crate::config::{DeploymentBackend, Settings};
use crate::wiring;

/// Files of a backup's folder that do not go into a volume.
const NOT_IN_VOLUMES: &[&str] = &[RECORD, PLATFORM, SEALED];

#[derive(Debug, Default)]
pub(super) struct VolumeSource {
    engine: Option<Volumes>,
    /// Why there is no engine.
    why: Option<String>,
    data: PathBuf,
    /// Whether databases in the data folder are ignored, because they predate the containers.
    is_all: bool,
}

impl VolumeSource {
    /// Connects to the engine if deployments may have volumes there.
    pub(super) async fn open(settings: &Settings, placed: &[DeploymentId]) -> anyhow::Result<Self> {
        let backend = settings.deployments.backend;
        let mut apart = Self {
            data: settings.data_dir.clone(),
            is_all: backend == DeploymentBackend::Docker,
            ..Self::default()
        };
        let is_asked = match backend {
            DeploymentBackend::Docker => !placed.is_empty(),
            DeploymentBackend::Process => false,
            DeploymentBackend::Auto | DeploymentBackend::None => {
                !deployments::without_database(&settings.data_dir, placed)?.is_empty()
            }
        };
        if !is_asked {
            return Ok(apart);
        }
        match connect(settings).await {
            Ok(engine) => apart.engine = Some(engine),
            Err(why) if apart.is_all => {
                return Err(why.context(format!(
                    "the databases of {} deployments are in volumes of a Docker engine: make the backup on the \
                     machine that has the engine, start the engine, set deployments.docker_host to its address, or \
                     leave deployments out of this backup with --without-deployments",
                    placed.len()
                )));
            }
            Err(why) => apart.why = Some(format!("{why:#}")),
        }
        Ok(apart)
    }

    pub(super) async fn find(&self, placed: &[DeploymentId]) -> anyhow::Result<BTreeSet<DeploymentId>> {
        let mut found = BTreeSet::new();
        let Some(engine) = &self.engine else {
            return Ok(found);
        };
        let asked = if self.is_all {
            placed.to_vec()
        } else {
            deployments::without_database(&self.data, placed)?
        };
        for id in asked {
            if engine.has(id).await? {
                found.insert(id);
            }
        }
        Ok(found)
    }

    /// Copies the files of volumes into a backup and returns their number. Agent servers may keep running.
    pub(super) async fn copy(&self, ids: &BTreeSet<DeploymentId>, to: &Path) -> anyhow::Result<u64> {
        let Some(engine) = &self.engine else { return Ok(0) };
        let mut copied = 0;
        for id in ids {
            let work = tempfile::Builder::new().prefix("volume-").tempdir_in(to);
            let work = work.with_context(|| format!("folder {}", to.display()))?;
            let fetched = engine.fetch(*id, work.path()).await;
            let fetched = fetched.with_context(|| format!("copying the database of deployment {id}"))?;
            // Deleted meanwhile.
            let Some(placed) = fetched else { continue };
            let own = deployments::agent(to, *id);
            deployments::copy_agent(work.path(), &own, &PlatformKeys::Absent).await?;
            files::write_key(&own.join(RECORD), &serde_json::to_vec(&placed)?)?;
            work.close().context("removing a temporary folder")?;
            copied += 1;
        }
        Ok(copied)
    }

    /// Fails when there are deployments whose database cannot be copied.
    pub(super) fn expect_none(&self, missing: &[DeploymentId]) -> anyhow::Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = missing.iter().take(20).map(ToString::to_string).collect();
        let engine = match (&self.engine, &self.why) {
            (Some(_), _) => " nor in volumes of the Docker engine".to_owned(),
            (None, Some(why)) => format!(", and {why}"),
            (None, None) => String::new(),
        };
        bail!(
            "the databases of {} deployments are not in this data folder{engine}: {}; make the backup on the machine \
             that keeps the deployments, with its settings, or leave deployments out of this backup with \
             --without-deployments",
            missing.len(),
            named.join(", ")
        );
    }

    pub(super) async fn close(&self) {
        if let Some(engine) = &self.engine {
            engine.close().await;
        }
    }
}

/// Target of deployments that run in containers.
pub(super) struct VolumeTarget {
    engine: Option<Volumes>,
    pub(super) ids: BTreeSet<DeploymentId>,
    restoring: RestoreRef,
}

impl VolumeTarget {
    /// Volumes if deployments run in containers here, or did and the backend is not set explicitly.
    pub(super) async fn open(settings: &Settings, from: &Path, backup: Timestamp) -> anyhow::Result<Self> {
        let ids = into_volumes(settings.deployments.backend, from)?;
        let engine = if ids.is_empty() {
            None
        } else {
            let opened = connect(settings).await.with_context(|| {
                format!(
                    "the databases of {} deployments go into volumes of a Docker engine: start it, set \
                     deployments.docker_host to its address, or set deployments.backend to process to have them in \
                     the data folder",
                    ids.len()
                )
            })?;
            Some(opened)
        };
        let data = std::path::absolute(&settings.data_dir)?;
        Ok(Self {
            engine,
            ids,
            restoring: RestoreRef {
                name: format!("{backup} into {}", data.display()),
                is_repeated: false,
            },
        })
    }

    /// Fails when there are volumes with other files.
    pub(super) async fn expect_free(&mut self, is_repeated: bool) -> anyhow::Result<()> {
        self.restoring.is_repeated = is_repeated;
        let Some(engine) = &self.engine else { return Ok(()) };
        for id in &self.ids {
            engine.expect_free(*id, &self.restoring).await?;
        }
        Ok(())
    }

    /// Fills the volumes. The folder of deployments must exist.
    pub(super) async fn fill(&self, from: &Path) -> anyhow::Result<()> {
        let Some(engine) = &self.engine else { return Ok(()) };
        for id in &self.ids {
            let own = deployments::agent(from, *id);
            let placed = record(&own)?.unwrap_or_default();
            let put = engine.put(*id, own, NOT_IN_VOLUMES, placed, &self.restoring).await;
            put.with_context(|| format!("restoring the database of deployment {id}"))?;
        }
        Ok(())
    }

    pub(super) async fn close(&self) {
        if let Some(engine) = &self.engine {
            engine.close().await;
        }
    }
}

/// Deployments of a backup whose files go into volumes.
fn into_volumes(backend: DeploymentBackend, from: &Path) -> anyhow::Result<BTreeSet<DeploymentId>> {
    let ids = deployments::ids(from)?;
    if backend == DeploymentBackend::Process {
        return Ok(BTreeSet::new());
    }
    let bare = deployments::without_database(from, &ids)?;
    let is_docker = backend == DeploymentBackend::Docker;
    let goes = |id: &DeploymentId| {
        let was_in_one = deployments::agent(from, *id).join(RECORD).is_file();
        was_in_one || (is_docker && !bare.contains(id))
    };
    Ok(ids.into_iter().filter(goes).collect())
}

/// The metadata of the volume, from the deployment's folder in a backup.
fn record(own: &Path) -> anyhow::Result<Option<VolumeMetadata>> {
    let file = own.join(RECORD);
    match std::fs::read(&file) {
        Ok(text) => {
            let placed = serde_json::from_slice(&text);
            Ok(Some(placed.with_context(|| format!("file {}", file.display()))?))
        }
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why).with_context(|| format!("file {}", file.display())),
    }
}

async fn connect(settings: &Settings) -> anyhow::Result<Volumes> {
    let docker = &settings.deployments.docker;
    let root = settings.data_dir.join(deployments::FOLDER);
    Ok(Volumes::open(&docker.host, &docker.base_image, wiring::program()?, root).await?)
}

/// Copies the data folder of an agent server, inside a container that mounts it.
pub async fn copy_data(command: CopyData) -> anyhow::Result<()> {
    let (from, to) = (&command.from, &command.to);
    deployments::copy_agent(from, to, &PlatformKeys::Absent).await?;
    // Databases are new files and need the owner of the originals.
    for entry in std::fs::read_dir(to).with_context(|| format!("folder {}", to.display()))? {
        let entry = entry?;
        let source = from.join(entry.file_name());
        if !entry.file_type()?.is_file() {
            continue;
        }
        if let Some(about) = files::ignore_missing(std::fs::metadata(&source), &source)? {
            chown(entry.path(), Some(about.uid()), Some(about.gid()))
                .with_context(|| format!("file {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(files_of: &[&[&str]]) -> (tempfile::TempDir, Vec<DeploymentId>) {
        let folder = tempfile::tempdir().unwrap();
        let ids = files_of.iter().map(|names| {
            let id = DeploymentId::new();
            let own = deployments::agent(folder.path(), id);
            files::make(&own).unwrap();
            for name in *names {
                std::fs::write(own.join(name), "{}").unwrap();
            }
            id
        });
        let ids = ids.collect();
        (folder, ids)
    }

    #[test]
    fn files_go_into_volumes_where_deployments_run_in_containers() {
        let (folder, ids) = backup(&[
            &["platform.key", "agent.db", RECORD],
            &["platform.key", "agent.db"],
            &["platform.key"],
        ]);
        let goes = |backend| into_volumes(backend, folder.path()).unwrap();
        assert_eq!(goes(DeploymentBackend::Docker), BTreeSet::from([ids[0], ids[1]]));
        for silent in [DeploymentBackend::Auto, DeploymentBackend::None] {
            assert_eq!(goes(silent), BTreeSet::from([ids[0]]));
        }
        assert_eq!(goes(DeploymentBackend::Process), BTreeSet::new());
    }

    #[test]
    fn what_a_volume_was_is_read_again() {
        let (folder, ids) = backup(&[&[]]);
        let own = deployments::agent(folder.path(), ids[0]);
        assert_eq!(record(&own).unwrap(), None);
        let placed = VolumeMetadata {
            labels: [("owner".to_owned(), "somebody".to_owned())].into(),
            ..VolumeMetadata::default()
        };
        files::write_key(&own.join(RECORD), &serde_json::to_vec(&placed).unwrap()).unwrap();
        assert_eq!(record(&own).unwrap(), Some(placed));
    }

    #[tokio::test]
    async fn a_copy_has_databases_alone_and_without_what_passes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        let uri = format!("sqlite://{}", from.join("agent.db").display());
        let store = towpath_store::Store::open(&uri, towpath_store::Options::default());
        let store = store.await.unwrap();
        store.migrate().await.unwrap();
        for name in ["lock", "address", "note"] {
            std::fs::write(from.join(name), "text").unwrap();
        }
        let command = CopyData { from, to: to.clone() };
        copy_data(command).await.unwrap();
        store.close().await;
        let mut names: Vec<_> = std::fs::read_dir(&to)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["agent.db", "note"]);
        towpath_store::migrations::of_sqlite(&to.join("agent.db"))
            .await
            .unwrap()
            .check()
            .unwrap();
    }
}
