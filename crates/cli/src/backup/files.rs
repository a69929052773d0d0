//! Files and folders, copied onto the disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::Context as _;

/// Copies a folder with its links and modes. Files that disappear meanwhile are skipped.
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
        let Some(kind) = ignore_missing(entry.file_type(), &source)? else {
            continue;
        };
        if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else if kind.is_symlink() {
            if let Some(leads) = ignore_missing(std::fs::read_link(&source), &source)? {
                link(&leads, &target)?;
            }
        } else if kind.is_file() {
            copy_file(&source, &target)?;
        }
    }
    Ok(())
}

/// `None` if the file has disappeared.
pub(super) fn ignore_missing<T>(found: std::io::Result<T>, at: &Path) -> anyhow::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why).with_context(|| format!("looking at {}", at.display())),
    }
}

/// Creates a link and replaces one that an earlier attempt created.
fn link(leads: &Path, at: &Path) -> anyhow::Result<()> {
    let made = match symlink(leads, at) {
        Err(why) if why.kind() == ErrorKind::AlreadyExists => {
            std::fs::remove_file(at).and_then(|()| symlink(leads, at))
        }
        made => made,
    };
    made.with_context(|| format!("link {}", at.display()))
}

/// Creates a folder that only its owner can access.
pub(super) fn make(folder: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("folder {}", folder.display()))
}

/// Copies a file and replaces an existing one; false if there is none to copy.
pub(super) fn copy_file(from: &Path, to: &Path) -> anyhow::Result<bool> {
    let Some(mut source) = ignore_missing(File::open(from), from)? else {
        return Ok(false);
    };
    let copied = (|| {
        let permissions = source.metadata()?.permissions();
        // A file from an earlier attempt may be read-only.
        match std::fs::remove_file(to) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        std::io::copy(&mut source, &mut target)?;
        target.set_permissions(permissions)?;
        target.sync_all()
    })();
    copied.with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(true)
}

/// Copies a file that holds a secret; only its owner can read the copy.
pub(super) fn copy_key(from: &Path, to: &Path) -> anyhow::Result<()> {
    if copy_file(from, to)? {
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Writes a secret to a file that only its owner can read.
pub(super) fn write_key(file: &Path, secret: &[u8]) -> anyhow::Result<()> {
    remove(file)?;
    let written = (|| {
        let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        target.write_all(secret)?;
        target.sync_all()
    })();
    written.with_context(|| format!("file {}", file.display()))
}

pub(super) fn remove(file: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(file) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why).with_context(|| format!("file {}", file.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_over_what_an_earlier_attempt_left() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        make(&from.join("bin")).unwrap();
        std::fs::write(from.join("tool"), "new").unwrap();
        std::fs::set_permissions(from.join("tool"), std::fs::Permissions::from_mode(0o444)).unwrap();
        symlink("../tool", from.join("bin/tool")).unwrap();
        copy_tree(&from, &to).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("bin/tool")).unwrap(), "new");
        let mode = std::fs::metadata(to.join("tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o444);
    }

    #[test]
    fn a_file_that_is_gone_is_no_error_and_a_folder_that_is_gone_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&to, "kept").unwrap();
        assert!(!copy_file(&from, &to).unwrap());
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "kept");
        std::fs::write(&from, "new").unwrap();
        assert!(copy_file(&from, &folder.path().join("no such folder/to")).is_err());
    }
}
