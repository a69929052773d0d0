//! Files and folders, copied onto the disk.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::Context as _;

/// Copies a folder with its links and modes. What vanishes meanwhile was not needed.
pub(super) fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(from) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(why).with_context(|| format!("folder {}", from.display())),
    };
    make(to)?;
    for entry in entries {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else if kind.is_symlink() {
            let leads = std::fs::read_link(&source).with_context(|| format!("link {}", source.display()))?;
            symlink(leads, &target).with_context(|| format!("link {}", target.display()))?;
        } else if kind.is_file() {
            copy_file(&source, &target)?;
        }
    }
    Ok(())
}

/// Makes a folder for its owner alone.
pub(super) fn make(folder: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("folder {}", folder.display()))
}

/// Copies a file onto the disk; false where there is none.
pub(super) fn copy_file(from: &Path, to: &Path) -> anyhow::Result<bool> {
    match std::fs::copy(from, to) {
        Ok(_) => {
            let synced = File::open(to).and_then(|file| file.sync_all());
            synced.with_context(|| format!("file {}", to.display()))?;
            Ok(true)
        }
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why).with_context(|| format!("copying {} to {}", from.display(), to.display())),
    }
}

/// Copies a file that holds a secret, for its owner alone.
pub(super) fn copy_key(from: &Path, to: &Path) -> anyhow::Result<()> {
    if copy_file(from, to)? {
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Removes a file, where there is one.
pub(super) fn remove(file: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(file) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why).with_context(|| format!("file {}", file.display())),
        _ => Ok(()),
    }
}
