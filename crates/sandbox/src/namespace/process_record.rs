//! The process of a box on disk: a process id alone could later name another process.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

const RECORD_FILE: &str = "record.json";

/// The first process of a box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    pub(crate) pid: i32,
    /// In ticks since the machine's start.
    start_time: u64,
    /// Differs after each start of the machine.
    boot: String,
}

impl ProcessRecord {
    /// Of a process that runs.
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        let start_time =
            read_start_time(pid).ok_or_else(|| io::Error::other("the first process of the sandbox has ended"))?;
        Ok(Self {
            pid,
            start_time,
            boot: boot_id()?,
        })
    }

    /// Whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let draft = folder.join("record.new");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::rename(&draft, folder.join(RECORD_FILE))
    }

    /// The record of a life, if its process runs.
    pub(crate) fn running(folder: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(folder.join(RECORD_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        // It is written atomically: an unreadable one is left from a machine crash, which also ended the process.
        let Ok(record) = serde_json::from_slice::<Self>(&text) else {
            return Ok(None);
        };
        Ok(record.is_running()?.then_some(record))
    }

    fn is_running(&self) -> io::Result<bool> {
        Ok(self.boot == boot_id()? && read_start_time(self.pid) == Some(self.start_time))
    }

    /// Kills it and with it every process of the box, and waits for their end.
    pub(crate) async fn kill(&self, limit: Duration) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::InvalidData)?;
        let process = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            other => other?,
        };
        // An open pidfd cannot refer to another process later, so it is checked only now.
        if !self.is_running()? {
            return Ok(());
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            other => other?,
        }
        // Readable once it has ended, which the kernel reports for the first process last.
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, and an owned descriptor meets what it asks"
        )]
        let process = AsyncFd::with_interest(process, Interest::READABLE)?;
        let ended = timeout(limit, process.readable()).await;
        drop(ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??);
        // A platform that is the first process of its container becomes its parent.
        match nix::sys::wait::waitpid(
            nix::unistd::Pid::from_raw(self.pid),
            Some(nix::sys::wait::WaitPidFlag::WNOHANG),
        ) {
            Ok(_) | Err(Errno::ECHILD) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When a process was started; None where it does not run.
fn read_start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold blanks and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
    // The state is the third field, the start time the twenty-second.
    let time = fields.nth(18)?.parse().ok()?;
    (!has_ended).then_some(time)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn only_the_process_that_was_recorded_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ProcessRecord::running(folder.path()).unwrap(), None);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let record = ProcessRecord::of_process(child.id()).unwrap();
        record.write(folder.path()).unwrap();
        assert_eq!(ProcessRecord::running(folder.path()).unwrap(), Some(record.clone()));
        let other = ProcessRecord {
            start_time: record.start_time + 1,
            ..record.clone()
        };
        other.kill(Duration::from_secs(10)).await.unwrap();
        assert!(child.try_wait().unwrap().is_none(), "another process was killed");
        record.kill(Duration::from_secs(10)).await.unwrap();
        assert_eq!(ProcessRecord::running(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_record_that_a_crash_of_the_machine_left_empty_names_no_process() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(RECORD_FILE), "").unwrap();
        assert_eq!(ProcessRecord::running(folder.path()).unwrap(), None);
    }
}
