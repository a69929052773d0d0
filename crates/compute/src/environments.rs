//! Environments for agent servers' code, outside artifacts: which artifact needs which, and the removal of unused ones.
//!
//! Several artifacts may share one. If deployments have their own user ids, each has its own folder; otherwise all are
//! in one folder, where other agent servers create theirs too. So environments created for a deployment carry a mark,
//! and only those are removed.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::artifact::Artifact;
use crate::error::{Error, Result};
use crate::root::{self, Root};
use crate::tree;

/// What the name of every environment begins with.
const NAME: &str = "python-";
/// What the name of one that is being removed begins with.
const REMOVED: &str = "removed-";
/// The file in one that is whole.
const WHOLE: &str = ".complete";
/// The ending of its mark.
const MARK: &str = "deployment";
/// More is not a path.
const LONGEST: u64 = 4096;

/// The environment that a program reports to have created, if it is in `hosts`. The content is untrusted.
pub(crate) fn acquire(file: &Path, hosts: &Path) -> Result<Option<PathBuf>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(file);
    let opened = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(Error::io("reading the recorded environment"))?,
    };
    let mut text = String::new();
    let read = opened.take(LONGEST).read_to_string(&mut text);
    read.map_err(Error::io("reading the recorded environment"))?;
    let path = PathBuf::from(text.trim());
    Ok((path.parent() == Some(hosts) && is_environment(&path)).then_some(path))
}

/// Records that an artifact needs an environment. `is_shared`: others create theirs in the same folder.
pub(crate) fn record(artifact: &Artifact, environment: &Path, is_shared: bool) -> Result<()> {
    if is_shared {
        let marked = root::write(&environment.with_extension(MARK), b"");
        marked.map_err(Error::io("marking an environment"))?;
    }
    let text = environment.display().to_string();
    let folder = artifact.environments();
    root::make(&folder)?;
    let file = folder.join(hex::encode(&Sha256::digest(text.as_bytes())[..16]));
    root::write(&file, text.as_bytes()).map_err(Error::io("recording an environment"))
}

/// Removes environments that no artifact needs and that are older than `hours`. `shared` is the folder of agent servers
/// without their own user id. Returns how many. Call it while none is being created.
pub(crate) fn prune(root: &Root, shared: &Path, hours: u64) -> Result<usize> {
    let needed = needed_environments(root)?;
    let mut outcome: Result<usize> = Ok(0);
    let mut of_deployments = Vec::new();
    for entry in entries(&root.path().join("hosts"))? {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            of_deployments.push(entry.path());
        }
    }
    let folders = of_deployments.iter().map(|folder| (folder.as_path(), false));
    for (folder, is_shared) in folders.chain([(shared, true)]) {
        for entry in entries(folder)? {
            let path = entry.path();
            // A link is none: it leads to what is not ours.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            let removed = if is_shared && name.to_string_lossy().starts_with(REMOVED) {
                tree::remove(&path).map(|()| true)
            } else if is_environment(&path) && !needed.contains(&path) && is_idle(&path, hours) {
                remove(root, &path, is_shared)
            } else {
                Ok(false)
            };
            match removed {
                Ok(removed) => outcome = outcome.map(|count| count + usize::from(removed)),
                Err(error) => outcome = Err(Error::io(format!("removing {}", path.display()))(error)),
            }
        }
    }
    outcome
}

/// What artifacts say that they need.
fn needed_environments(root: &Root) -> Result<BTreeSet<PathBuf>> {
    let mut needed = BTreeSet::new();
    for entry in entries(&root.artifacts())? {
        let Ok(artifact) = Artifact::of(root, &entry.file_name().to_string_lossy()) else {
            continue;
        };
        for file in entries(&artifact.environments())? {
            match fs::read_to_string(file.path()) {
                Ok(text) => needed.insert(PathBuf::from(text)),
                // The artifact went meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("reading the environments of an artifact")(error)),
            };
        }
    }
    Ok(needed)
}

fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    let failed = || Error::io(format!("reading {}", folder.display()));
    match fs::read_dir(folder) {
        Ok(read) => read.collect::<io::Result<_>>().map_err(failed()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed()(error)),
    }
}

fn is_environment(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let rest = name.and_then(|name| name.strip_prefix(NAME));
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn is_idle(path: &Path, hours: u64) -> bool {
    let made = path.symlink_metadata().and_then(|about| about.modified());
    made.is_ok_and(|made| SystemTime::now().duration_since(made).unwrap_or_default().as_secs() >= hours * 3600)
}

/// Moves it away first, so that a half removed one is never taken for complete. False if it stays.
fn remove(root: &Root, path: &Path, is_shared: bool) -> io::Result<bool> {
    let (mark, lock) = (path.with_extension(MARK), path.with_extension("lock"));
    let Some(held) = EnvironmentLock::take(&lock)? else {
        return Ok(false);
    };
    // An unfinished one belongs to its creator, who holds its lock.
    if is_shared && path.join(WHOLE).exists() && !mark.is_file() {
        return Ok(false);
    }
    if is_shared {
        // In its own folder: it may be on another disk, and its parent cannot be written.
        let away = path.with_file_name(format!("{REMOVED}{}", Uuid::now_v7().simple()));
        fs::rename(path, &away)?;
        match fs::remove_file(&mark) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        held.forget(&lock)?;
        tree::remove(&away)?;
    } else {
        // Out of reach of the deployment, which may write to its folder.
        let away = tempfile::tempdir_in(root.scratch())?;
        fs::rename(path, away.path().join("environment"))?;
        held.forget(&lock)?;
        tree::remove(away.path())?;
    }
    Ok(true)
}

/// The lock of an environment, held by its creator. Without a file it is free.
struct EnvironmentLock(Option<File>);

impl EnvironmentLock {
    /// `None` while it is held. The file is not created, since it would not belong to the deployment.
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match OpenOptions::new().write(true).custom_flags(flags.bits()).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Self(None))),
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(Some(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes the file, too. A waiting process notices that it has another file.
    fn forget(self, path: &Path) -> io::Result<()> {
        match self.0 {
            Some(_held) => fs::remove_file(path),
            None => Ok(()),
        }
    }
}
