//! The folder that everything here is in.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tempfile::TempDir;
use towpath_domain::DeploymentId;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::orphans::{self, ROOT_MARK};
use crate::tree;

/// The file with the platform's key for a deployment, in the data folder of its agent server.
pub const PLATFORM_KEY: &str = "platform.key";
/// The file with the id of a deployment's database, beside it.
pub(crate) const DATABASE_ID: &str = "database.id";
/// The database, as an agent server names it in its data folder.
const DATABASE: &str = "agent.db";
/// The file with the id of the root, which identifies machine and folder.
const HOST_ID: &str = "host.id";
/// More is not a key, and no id.
const LONGEST_KEY: u64 = 4096;

/// The root folder, exclusive to this process until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Root(Arc<RootState>);

#[derive(Debug)]
struct RootState {
    path: PathBuf,
    /// The lock goes with the file: also when the process is killed.
    _lock: File,
}

impl Root {
    /// Locks the folder, creates it if missing, and removes what an earlier process left running or unfinished.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        make(path)?;
        let path = path.canonicalize().map_err(Error::io(shown.clone()))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
            .map_err(Error::io(format!("{shown}/lock")))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Refused(format!(
                    "another process already runs deployments in {shown}; only one process per installation may"
                )));
            }
            Err(TryLockError::Error(source)) => {
                return Err(Error::Io {
                    what: format!("locking {shown}"),
                    source,
                });
            }
        }
        let root = Self(Arc::new(RootState { path, _lock: lock }));
        let ended = orphans::end(ROOT_MARK, &root.mark());
        if ended > 0 {
            tracing::warn!(
                processes = ended,
                "stopped processes that an earlier process left running"
            );
        }
        tree::remove(&root.scratch()).map_err(Error::io(format!("{shown}/scratch")))?;
        tree::remove(&root.cells()).map_err(Error::io(format!("{shown}/cells")))?;
        for folder in [
            root.scratch(),
            root.cells(),
            root.artifacts(),
            root.path().join("agents"),
        ] {
            make(&folder)?;
        }
        Ok(root)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// What every process started for it carries as [`ROOT_MARK`].
    #[must_use]
    pub fn mark(&self) -> String {
        self.0.path.display().to_string()
    }

    /// Where artifacts are.
    #[must_use]
    pub fn artifacts(&self) -> PathBuf {
        self.0.path.join("artifacts")
    }

    /// The data folder of a deployment's agent server.
    #[must_use]
    pub fn agent(&self, deployment: DeploymentId) -> PathBuf {
        self.0.path.join("agents").join(deployment.to_string())
    }

    /// Where a deployment's agent server creates environments for its code, if it has its own user id.
    pub(crate) fn hosts(&self, deployment: DeploymentId) -> PathBuf {
        self.0.path.join("hosts").join(deployment.to_string())
    }

    /// The platform's key for a deployment, if any. A file placed there by the deployment, which may write to that
    /// folder, is ignored.
    #[must_use]
    pub fn platform_key(&self, deployment: DeploymentId) -> Option<String> {
        self.own_text(deployment, PLATFORM_KEY)
    }

    /// The id of a deployment's database, if it exists and has one.
    pub(crate) fn database(&self, deployment: DeploymentId) -> Option<String> {
        let is_there = self.agent(deployment).join(DATABASE).is_file();
        is_there.then(|| self.own_text(deployment, DATABASE_ID)).flatten()
    }

    /// The same, given now where it has none.
    pub(crate) fn name_database(&self, deployment: DeploymentId) -> Result<String> {
        if let Some(id) = self.own_text(deployment, DATABASE_ID) {
            return Ok(id);
        }
        let id = Uuid::now_v7().to_string();
        self.keep(&self.agent(deployment).join(DATABASE_ID), id.as_bytes())?;
        Ok(id)
    }

    /// The id of the root, created at the first call. A copy of the folder would have the same: backups leave it out.
    pub fn host_id(&self) -> Result<Uuid> {
        let file = self.0.path.join(HOST_ID);
        let shown = file.display();
        match fs::read_to_string(&file) {
            Ok(text) => text
                .trim()
                .parse()
                .map_err(|_| Error::Refused(format!("{shown} holds no id; remove it to generate a new one"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let id = Uuid::now_v7();
                self.keep(&file, id.to_string().as_bytes())?;
                Ok(id)
            }
            Err(error) => Err(Error::io(shown.to_string())(error)),
        }
    }

    /// A small file of the platform in a deployment's folder.
    fn own_text(&self, deployment: DeploymentId, name: &str) -> Option<String> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(self.agent(deployment).join(name))
            .ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || about.uid() != geteuid().as_raw() {
            return None;
        }
        let mut text = String::new();
        file.take(LONGEST_KEY).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    /// Writes a small file below the root, readable only by its owner. A crash leaves the whole file or none.
    pub fn keep(&self, file: &Path, text: &[u8]) -> Result<()> {
        make(file.parent().unwrap_or(&self.0.path))?;
        write(file, text).map_err(Error::io(format!("file {}", file.display())))
    }

    /// What programs in cells keep as long as they run.
    pub(crate) fn cells(&self) -> PathBuf {
        self.0.path.join("cells")
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.0.path.join("scratch")
    }

    /// A new folder that is removed when dropped, or at the next start.
    pub fn temporary(&self) -> Result<TempDir> {
        tempfile::tempdir_in(self.scratch()).map_err(Error::io("a temporary folder"))
    }
}

/// Only for its owner: sources and databases are in it.
pub(crate) fn make(folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(Error::io(format!("folder {}", folder.display())))
}

/// Written to a temporary file and moved, so that a crash leaves the whole file or none.
pub(crate) fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let draft = path.with_extension("new");
    // Neither a file that another process placed there, nor the target of a link.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A deployment may write to its data folder.
    #[test]
    fn a_link_in_place_of_a_key_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("deployments")).unwrap();
        let deployment = DeploymentId::new();
        let file = root.agent(deployment).join(PLATFORM_KEY);
        assert_eq!(root.platform_key(deployment), None);
        let other = folder.path().join("other");
        fs::write(&other, "secret").unwrap();
        make(&root.agent(deployment)).unwrap();
        symlink(&other, file.with_extension("new")).unwrap();
        root.keep(&file, b"key\n").unwrap();
        assert_eq!(root.platform_key(deployment).as_deref(), Some("key"));
        assert_eq!(fs::read_to_string(&other).unwrap(), "secret");

        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        assert_eq!(root.platform_key(deployment), None);
    }

    #[test]
    fn a_database_that_is_away_has_no_id() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("deployments")).unwrap();
        let deployment = DeploymentId::new();
        assert_eq!(root.database(deployment), None);
        make(&root.agent(deployment)).unwrap();
        let database = root.agent(deployment).join(DATABASE);
        fs::write(&database, "").unwrap();
        assert_eq!(root.database(deployment), None, "one from before there were ids");
        let id = root.name_database(deployment).unwrap();
        assert_eq!(root.name_database(deployment).unwrap(), id);
        assert_eq!(root.database(deployment), Some(id));
        fs::remove_file(&database).unwrap();
        assert_eq!(root.database(deployment), None);
    }

    #[test]
    fn a_root_is_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deployments");
        let id = Root::open(&path).unwrap().host_id().unwrap();
        assert_eq!(Root::open(&path).unwrap().host_id().unwrap(), id);
        let other = Root::open(&folder.path().join("other")).unwrap();
        assert_ne!(other.host_id().unwrap(), id);
        fs::write(other.path().join(HOST_ID), "x").unwrap();
        assert!(other.host_id().unwrap_err().to_string().contains("holds no id"));
    }
}
