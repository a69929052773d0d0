//! Trees that a box wrote.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Removes a tree, including unreadable folders. Follows no links.
///
/// A box can nest folders deeper than the limits of paths, stacks and open files. So nested folders are moved to the
/// top of the tree instead of descending.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => make_readable(path, &other?)?,
    }
    let mut moved = 0;
    loop {
        let mut is_empty = true;
        for entry in fs::read_dir(path)? {
            is_empty = false;
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                flatten(&entry.path(), path, &mut moved)?;
            } else {
                gone(fs::remove_file(entry.path()))?;
            }
        }
        if is_empty {
            return gone(fs::remove_dir(path));
        }
    }
}

/// Empties a folder into `top`. Entries missed because the folder changed are found in the next pass.
fn flatten(folder: &Path, top: &Path, moved: &mut u64) -> io::Result<()> {
    make_readable(folder, &fs::symlink_metadata(folder)?)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            // Moving it changes it.
            make_readable(&entry.path(), &entry.metadata()?)?;
            raise(&entry.path(), top, moved)?;
        } else {
            gone(fs::remove_file(entry.path()))?;
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => gone(other),
    }
}

fn raise(folder: &Path, top: &Path, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match fs::rename(folder, top.join(format!(".removed-{moved}"))) {
            // The box, or an unfinished removal, uses this name.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory
                ) => {}
            other => return other,
        }
    }
}

/// Lets a folder be read and changed.
fn make_readable(folder: &Path, about: &Metadata) -> io::Result<()> {
    if about.permissions().mode() & 0o700 == 0o700 {
        return Ok(());
    }
    fs::set_permissions(folder, Permissions::from_mode(0o700))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Copies a tree with owners, links, times and extended attributes, which mark what an overlay hides. Shares blocks if
/// the file system supports it.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
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
    Err(io::Error::other(format!("copying the files of the sandbox: {first}")))
}

/// What a tree takes on the disk.
pub(crate) fn used_bytes(folder: &Path) -> io::Result<u64> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_of_any_depth_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("kept")).unwrap();
        fs::write(at("kept/file"), "kept").unwrap();
        fs::create_dir(at("deep")).unwrap();
        fs::write(at("deep/file"), "").unwrap();
        // No path reaches the innermost folder: each step enters the next.
        for _ in 0..5000 {
            fs::create_dir(at("next")).unwrap();
            fs::rename(at("deep"), at("next/inner")).unwrap();
            fs::rename(at("next"), at("deep")).unwrap();
        }
        fs::write(at("deep/.removed-1"), "a name that removing uses").unwrap();
        fs::create_dir(at("deep/closed")).unwrap();
        symlink(at("kept"), at("deep/closed/link")).unwrap();
        fs::set_permissions(at("deep/closed"), Permissions::from_mode(0o000)).unwrap();
        remove(&at("deep")).unwrap();
        assert!(!at("deep").exists());
        assert_eq!(fs::read(at("kept/file")).unwrap(), b"kept");
        remove(&at("deep")).unwrap();
    }
}
