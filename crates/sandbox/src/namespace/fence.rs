//! The lock of a box and the newest generation that was seen of it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::private;
use crate::error::{Error, Result};
use crate::spec::Generation;

const FILE: &str = "generation";
/// What stands behind the number of a box that was destroyed.
const DESTROYED: &str = "destroyed";
/// Another operation on the same box.
const WAIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(10);

/// A box, for one operation at a time. Held until this is dropped and the launcher it was [shared](Self::share) with ends.
#[derive(Debug)]
pub(super) struct Lock {
    folder: PathBuf,
    file: File,
}

impl Lock {
    pub(super) async fn take(folder: &Path) -> Result<Self> {
        private(folder)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("lock"))
            .map_err(Error::io("the lock of the box"))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < WAIT => sleep(PAUSE).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Busy("another operation on the box goes on".to_owned()));
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("the lock of the box")(error)),
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            file,
        })
    }

    /// The same lock, for the launcher.
    pub(super) fn share(&self) -> Result<File> {
        self.file.try_clone().map_err(Error::io("the lock of the box"))
    }

    /// Takes note of a start. Refuses one that is older than what was seen, or as old as what was destroyed.
    pub(super) fn start(&self, id: Uuid, generation: Generation) -> Result<()> {
        let (newest, is_destroyed) = read(&self.folder)?;
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
    pub(super) fn check(&self, id: Uuid, generation: Generation) -> Result<()> {
        let (newest, _) = read(&self.folder)?;
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
    pub(super) fn destroy(&self, id: Uuid, generation: Generation) -> Result<()> {
        self.check(id, generation)?;
        self.write(&format!("{generation} {DESTROYED}"))
    }

    pub(super) fn is_destroyed(&self) -> Result<bool> {
        let (newest, is_destroyed) = read(&self.folder)?;
        // One that was never started leaves nothing behind, either.
        Ok(is_destroyed || newest == 0)
    }

    fn write(&self, text: &str) -> Result<()> {
        let draft = self.folder.join("generation.new");
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, self.folder.join(FILE)));
        written.map_err(Error::io("the generation of the box"))
    }
}

/// The newest generation that a box was started or destroyed with. Zero: none.
pub(super) fn newest(folder: &Path) -> Result<Generation> {
    Ok(read(folder)?.0)
}

fn read(folder: &Path) -> Result<(Generation, bool)> {
    let text = match fs::read_to_string(folder.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, false)),
        other => other.map_err(Error::io("the generation of the box"))?,
    };
    let (number, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let number = number.parse().map_err(|_| Error::Io {
        what: "the generation of the box".to_owned(),
        source: io::ErrorKind::InvalidData.into(),
    })?;
    Ok((number, rest == DESTROYED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_older_generation_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let id = Uuid::now_v7();
        let lock = Lock::take(folder.path()).await.unwrap();
        lock.start(id, 3).unwrap();
        lock.start(id, 3).unwrap();
        assert!(matches!(lock.start(id, 2), Err(Error::Stale { newest: 3, .. })));
        assert!(matches!(lock.destroy(id, 2), Err(Error::Stale { .. })));
        lock.check(id, 4).unwrap();
        lock.destroy(id, 4).unwrap();
        assert!(matches!(lock.start(id, 4), Err(Error::Stale { newest: 4, .. })));
        assert_eq!(newest(folder.path()).unwrap(), 4);
        assert!(lock.is_destroyed().unwrap());
    }
}
