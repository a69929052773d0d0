//! The data folder: its lock for one process, and its key files.
//!
//! ```text
//! .towpath/
//!   lock             held by the process that uses the folder
//!   towpath.db       SQLite
//!   towpath.moved    says that its rows were moved to PostgreSQL
//!   encryption.key   32 bytes as hex, 0600: seals stored credentials
//!   api.key          the first API key of `towpath dev`, 0600
//!   objects/         write-ahead log, segments and index of traces
//!   exports/         what `file` destinations write
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use towpath_domain::Secret;

/// How long the lock of a dead process is waited for.
const DEAD_HOLDER_WAIT: Duration = Duration::from_secs(10);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A data folder that only this process uses, until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// The system releases the lock with the file, also when the process is killed.
    _lock: File,
}

impl DataDir {
    /// Creates the folder if necessary and takes its lock.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        // Only for its owner: it contains traces and keys.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("folder {shown}"))?;
        let lock = path.join("lock");
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .open(&lock)
            .with_context(|| format!("file {}", lock.display()))?;
        let deadline = Instant::now() + DEAD_HOLDER_WAIT;
        let wait = || {
            #[expect(
                clippy::disallowed_methods,
                reason = "at the start of the process, before it serves anything"
            )]
            std::thread::sleep(LOCK_RETRY_INTERVAL);
            Instant::now() < deadline
        };
        if let Some(holder) = lock_or_holder(&lock, wait).with_context(|| format!("locking {shown}"))? {
            let who = if holder.is_empty() {
                String::new()
            } else {
                format!(" (process {holder})")
            };
            bail!("another towpath process{who} is using {shown}; stop it, or use another folder with --data-dir");
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    pub fn api_key_file(&self) -> PathBuf {
        self.path.join("api.key")
    }

    /// The first API key, if the folder has one.
    pub fn api_key(&self) -> anyhow::Result<Option<Secret>> {
        Ok(read(&self.api_key_file())?.map(Secret::new))
    }

    /// Stores the first API key.
    pub fn keep_api_key(&self, key: &Secret) -> anyhow::Result<()> {
        create(&self.api_key_file(), key.reveal())
    }
}

/// Takes the lock, or returns the process that has it. The lock of a dead process is waited for as long as `wait`
/// returns true: a child that this process was starting when it died has a copy until it runs its program.
fn lock_or_holder(lock: &File, mut wait: impl FnMut() -> bool) -> std::io::Result<Option<String>> {
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        let mut holder = String::new();
        let mut file = lock;
        file.seek(SeekFrom::Start(0))?;
        file.read_to_string(&mut holder)?;
        let holder = holder.trim();
        if is_alive(holder) || !wait() {
            return Ok(Some(holder.to_owned()));
        }
    }
}

/// Whether a process has this id. One that is not written yet is that of a process that starts.
fn is_alive(process: &str) -> bool {
    let Ok(process) = process.parse() else { return true };
    kill(Pid::from_raw(process), None) != Err(Errno::ESRCH)
}

pub fn is_used(path: &Path) -> bool {
    let lock = OpenOptions::new().read(true).write(true).open(path.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why).with_context(|| format!("file {}", path.display())),
    }
}

/// Written to a temporary file and renamed, so that a crash leaves the complete file or none.
fn create(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&draft)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        std::fs::rename(&draft, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_second_process_is_told_who_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDir::open(folder.path()).unwrap();
        let refusal = DataDir::open(folder.path()).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("(process {})", std::process::id())),
            "{refusal}"
        );
        drop(first);
        DataDir::open(folder.path()).unwrap();
    }

    #[test]
    fn the_lock_of_a_dead_process_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id().to_string();
        child.wait().unwrap();
        let path = folder.path().join("lock");
        std::fs::write(&path, &dead).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut held = Some(open());
        held.as_ref().unwrap().lock().unwrap();
        let lock = open();
        assert_eq!(lock_or_holder(&lock, || false).unwrap(), Some(dead));
        let taken = lock_or_holder(&lock, || held.take().is_some());
        assert_eq!(taken.unwrap(), None, "the copy of the lock was closed in the meantime");
    }

    #[test]
    fn the_first_key_is_kept_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        assert_eq!(data.api_key().unwrap(), None);
        let key = Secret::new("a key of more than thirty-two characters");
        data.keep_api_key(&key).unwrap();
        assert_eq!(data.api_key().unwrap(), Some(key));
        assert_eq!(
            std::fs::metadata(data.api_key_file()).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
