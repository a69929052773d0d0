//! Trees that a box wrote.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Removes a tree, also one whose folders nobody may read. Follows no links.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open(path)?;
            fs::remove_dir_all(path)
        }
        other => other,
    }
}

fn open(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open(&entry.path())?;
        }
    }
    Ok(())
}

/// Copies a tree with owners, links, times and extended attributes, which hold what an overlay hides. Blocks are shared
/// where the file system can.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    let ended = Command::new("cp")
        .args(["-a", "--reflink=auto", "--"])
        .arg(from.join("."))
        .arg(to)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let first = said.lines().next().unwrap_or_default();
    Err(io::Error::other(format!("copying the files of the box: {first}")))
}

/// What a tree takes on the disk.
pub(super) fn used_bytes(folder: &Path) -> io::Result<u64> {
    let mut used = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            used += about.blocks() * 512;
            if about.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(used)
}
