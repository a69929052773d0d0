//! The folder that everything here lies in.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tempfile::TempDir;
use towpath_domain::DeploymentId;

use crate::error::{Error, Result};
use crate::orphans::{self, ROOT_MARK};
use crate::tree;

/// The file with the platform's key for a deployment, in the data folder of its agent server.
pub const PLATFORM_KEY: &str = "platform.key";
/// More is no key.
const LONGEST_KEY: u64 = 4096;

/// The folder, this process's alone until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Root(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// The lock goes with the file: also when the process is killed.
    _lock: File,
}

impl Root {
    /// Takes the folder, makes it where it is missing, and ends whatever an earlier life left running or half made.
    ///
    /// # Errors
    /// Another process uses it, or it cannot be written.
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
                    "another process keeps deployments in {shown}: one process of an installation does"
                )));
            }
            Err(TryLockError::Error(source)) => {
                return Err(Error::Io {
                    what: format!("locking {shown}"),
                    source,
                });
            }
        }
        let root = Self(Arc::new(Inner { path, _lock: lock }));
        let ended = orphans::end(ROOT_MARK, &root.mark());
        if ended > 0 {
            tracing::warn!(processes = ended, "ended what an earlier life left running");
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

    /// Where artifacts lie.
    #[must_use]
    pub fn artifacts(&self) -> PathBuf {
        self.0.path.join("artifacts")
    }

    /// The data folder of a deployment's agent server.
    #[must_use]
    pub fn agent(&self, deployment: DeploymentId) -> PathBuf {
        self.0.path.join("agents").join(deployment.to_string())
    }

    /// Where the agent server of a deployment makes environments for its code, where it has a user id of its own.
    pub(crate) fn hosts(&self, deployment: DeploymentId) -> PathBuf {
        self.0.path.join("hosts").join(deployment.to_string())
    }

    /// The platform's key for a deployment, where there is one. A file that somebody else has put there is none: the
    /// deployment may write to that folder.
    #[must_use]
    pub fn platform_key(&self, deployment: DeploymentId) -> Option<String> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(self.agent(deployment).join(PLATFORM_KEY))
            .ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || about.uid() != geteuid().as_raw() {
            return None;
        }
        let mut text = String::new();
        file.take(LONGEST_KEY).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    /// Keeps a small file below the root, for its owner alone. A crash leaves the whole file or none.
    ///
    /// # Errors
    /// It cannot be written.
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

    /// A new folder that goes away when it is dropped, or at the next start.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn temporary(&self) -> Result<TempDir> {
        tempfile::tempdir_in(self.scratch()).map_err(Error::io("a temporary folder"))
    }
}

/// Only for its owner: sources and databases lie in it.
pub(crate) fn make(folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(Error::io(format!("folder {}", folder.display())))
}

/// Written beside its place and moved there, so that a crash leaves the whole file or none.
pub(crate) fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let draft = path.with_extension("new");
    // Not what somebody else may have put there, nor where that leads.
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
}
