//! Source trees: nothing in them leads out, and their size is bounded.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use towpath_domain::git::TreePath;

use crate::error::{Error, Result};
use crate::log::Log;

/// What a tree may be at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes that stay free on the disk it is on.
    pub free: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            entries: 100_000,
            free: 256 << 20,
        }
    }
}

/// The largest graph configuration file, in bytes.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Bytes of all files below `folder`; stops counting after `enough`. Links are not followed.
#[must_use]
pub fn bytes(folder: &Path, enough: u64) -> u64 {
    let mut sum = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // It is being written: what is gone again does not count.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => sum += about.len(),
                Err(_) => {}
            }
        }
        if sum > enough {
            break;
        }
    }
    sum
}

/// Whether the disk that `folder` is on has room for more.
pub fn has_room(folder: &Path, free: u64) -> Result<()> {
    // If the disk does not report its space, the writer finds out.
    let Ok(about) = statvfs(folder) else { return Ok(()) };
    // Wider than either on every system.
    let left = u128::from(about.blocks_available()) * u128::from(about.fragment_size());
    if left < u128::from(free) {
        return Err(Error::Transient(format!(
            "the disk of deployments has less than {} MB left",
            free >> 20
        )));
    }
    Ok(())
}

/// Checks a tree. Broken links are removed and logged.
pub fn check(top: &Path, limits: Limits, log: &Log) -> Result<()> {
    let failed = |what: &Path| Error::io(format!("reading {}", relative(top, what)));
    let top = &top.canonicalize().map_err(failed(top))?;
    let (mut bytes, mut entries) = (0, 0);
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
            let path = entry.map_err(failed(&folder))?.path();
            let about = path.symlink_metadata().map_err(failed(&path))?;
            entries += 1;
            if about.is_dir() {
                folders.push(path);
            } else if about.is_symlink() {
                check_link(top, &path, log)?;
            } else if about.is_file() {
                bytes += about.len();
            } else {
                let shown = relative(top, &path);
                return Err(Error::Refused(format!(
                    "{shown} is neither a file nor a folder nor a link"
                )));
            }
            if entries > limits.entries {
                return Err(Error::Refused(format!(
                    "the source has more than {} files",
                    limits.entries
                )));
            }
            if bytes > limits.bytes {
                return Err(Error::Refused(format!(
                    "the source is larger than {} MB",
                    limits.bytes >> 20
                )));
            }
        }
    }
    Ok(())
}

fn check_link(top: &Path, path: &Path, log: &Log) -> Result<()> {
    let shown = relative(top, path);
    match path.canonicalize() {
        Ok(target) if target.starts_with(top) => Ok(()),
        Ok(_) => Err(Error::Refused(format!("the link {shown} leads out of the source"))),
        // A loop, or a missing target, which a build could create.
        Err(_) => {
            log.warn(format!(
                "the target of the link {shown} does not exist; the link was skipped"
            ));
            fs::remove_file(path).map_err(Error::io(format!("removing the link {shown}")))
        }
    }
}

/// The graph configuration file of a tree.
pub fn config(top: &Path, path: &TreePath) -> Result<PathBuf> {
    let shown = path.as_str();
    let missing = || Error::Refused(format!("graph_config_path: the source has no file {shown}"));
    let top = top.canonicalize().map_err(Error::io("reading the source"))?;
    let found = top.join(shown).canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => missing(),
        _ => Error::Refused(format!("graph_config_path: {shown} cannot be read: {}", error.kind())),
    })?;
    if !found.starts_with(&top) {
        return Err(Error::Refused(format!(
            "graph_config_path: {shown} leads out of the source"
        )));
    }
    let about = found.metadata().map_err(|_| missing())?;
    if !about.is_file() {
        return Err(Error::Refused(format!("graph_config_path: {shown} is not a file")));
    }
    if about.len() > LARGEST_CONFIG {
        return Err(Error::Refused(format!(
            "graph_config_path: {shown} is larger than 1 MB"
        )));
    }
    Ok(found)
}

fn relative(top: &Path, path: &Path) -> String {
    path.strip_prefix(top).unwrap_or(path).display().to_string()
}

/// Removes a folder with everything in it, including read-only folders.
pub fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            open_up(folder);
            fs::remove_dir_all(folder)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes folders writable for their owner: package managers keep some that are not.
fn open_up(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let _ = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
}
