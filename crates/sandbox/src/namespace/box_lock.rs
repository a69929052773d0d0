//! The lock of a box and its newest known generation.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::create_private_folder;
use crate::error::{Error, Result};
use crate::spec::Generation;

const GENERATION_FILE: &str = "generation";
/// What is behind the number of a box that was destroyed.
const DESTROYED_SUFFIX: &str = "destroyed";
/// Another operation on the same box.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Exclusive access to a box. Held until this is dropped and the launcher with which it was [shared](Self::share)
/// exits.
#[derive(Debug)]
pub(super) struct BoxLock {
    folder: PathBuf,
    file: File,
}

impl BoxLock {
    pub(super) async fn acquire(folder: &Path) -> Result<Self> {
        let path = folder.join("lock");
        let begun = Instant::now();
        loop {
            create_private_folder(folder)?;
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(Error::io("the lock of the sandbox"))?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path).map_err(Error::io("the lock of the sandbox"))? => {
                    return Ok(Self {
                        folder: folder.to_owned(),
                        file,
                    });
                }
                // The box was forgotten in between, along with this lock file: another one may be in use.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_TIMEOUT => sleep(LOCK_POLL_INTERVAL).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Busy(
                        "another operation on the sandbox is in progress".to_owned(),
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("the lock of the sandbox")(error)),
            }
        }
    }

    /// The same lock, for the launcher.
    pub(super) fn share(&self) -> Result<File> {
        self.file.try_clone().map_err(Error::io("the lock of the sandbox"))
    }

    /// Records a start. Refuses a generation older than the newest known one, or equal to a destroyed one.
    pub(super) fn record_start(&self, id: Uuid, generation: Generation) -> Result<()> {
        let (newest, is_destroyed) = read_generation(&self.folder)?;
        if generation < newest || (generation == newest && is_destroyed) {
            return Err(Error::Stale {
                id,
                asked: generation,
                newest,
            });
        }
        self.write(&generation.to_string())
    }

    /// Refuses what is older than what was seen.
    pub(super) fn check_generation(&self, id: Uuid, generation: Generation) -> Result<()> {
        let (newest, _) = read_generation(&self.folder)?;
        if generation < newest {
            return Err(Error::Stale {
                id,
                asked: generation,
                newest,
            });
        }
        Ok(())
    }

    /// Takes note of the end.
    pub(super) fn record_destroy(&self, id: Uuid, generation: Generation) -> Result<()> {
        self.check_generation(id, generation)?;
        self.write(&format!("{generation} {DESTROYED_SUFFIX}"))
    }

    pub(super) fn is_destroyed(&self) -> Result<bool> {
        let (newest, is_destroyed) = read_generation(&self.folder)?;
        // One that was never started leaves nothing behind, either.
        Ok(is_destroyed || newest == 0)
    }

    fn write(&self, text: &str) -> Result<()> {
        let draft = self.folder.join("generation.new");
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, self.folder.join(GENERATION_FILE)));
        written.map_err(Error::io("the generation of the sandbox"))
    }
}

/// Whether an open file is still the one at this path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The newest generation with which a box was started or destroyed. Zero: none.
pub(super) fn newest_generation(folder: &Path) -> Result<Generation> {
    Ok(read_generation(folder)?.0)
}

fn read_generation(folder: &Path) -> Result<(Generation, bool)> {
    let text = match fs::read_to_string(folder.join(GENERATION_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, false)),
        other => other.map_err(Error::io("the generation of the sandbox"))?,
    };
    // A crash of the machine may leave an empty file if none existed before.
    if text.bytes().all(|byte| byte == 0) {
        return Ok((0, false));
    }
    let (number, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let number = number.parse().map_err(|_| Error::Io {
        what: "the generation of the sandbox".to_owned(),
        source: io::ErrorKind::InvalidData.into(),
    })?;
    Ok((number, rest == DESTROYED_SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_older_generation_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let id = Uuid::now_v7();
        let lock = BoxLock::acquire(folder.path()).await.unwrap();
        lock.record_start(id, 3).unwrap();
        lock.record_start(id, 3).unwrap();
        assert!(matches!(lock.record_start(id, 2), Err(Error::Stale { newest: 3, .. })));
        assert!(matches!(lock.record_destroy(id, 2), Err(Error::Stale { .. })));
        lock.check_generation(id, 4).unwrap();
        lock.record_destroy(id, 4).unwrap();
        assert!(matches!(lock.record_start(id, 4), Err(Error::Stale { newest: 4, .. })));
        assert_eq!(newest_generation(folder.path()).unwrap(), 4);
        assert!(lock.is_destroyed().unwrap());
    }

    #[tokio::test]
    async fn the_lock_of_a_box_that_was_forgotten_is_none() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("box");
        let first = BoxLock::acquire(&folder).await.unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let second = BoxLock::acquire(&folder).await.unwrap();
        assert!(!is_at(&first.file, &folder.join("lock")).unwrap());
        assert!(is_at(&second.file, &folder.join("lock")).unwrap());
    }
}
