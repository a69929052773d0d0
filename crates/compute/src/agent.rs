//! One agent server as a child process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::health::HealthTarget;
use crate::instances::Instance;
use crate::isolation::PreparedCell;
use crate::launcher;
use crate::lifecycle::{Lifecycle, LifecycleReporter};
use crate::limits::Groups;
use crate::log::Log;
use crate::orphans::{ROOT_MARK, RUN_MARK};
use crate::program::{Group, lines};

/// Beyond its own grace, before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(2);

/// What to start.
pub(crate) struct Startup<'a> {
    /// The program: `towpath`.
    pub(crate) program: &'a Path,
    /// The graph configuration file.
    pub(crate) config: &'a Path,
    pub(crate) data: &'a Path,
    /// Its whole environment but the marks.
    pub(crate) variables: Vec<(String, String)>,
    /// The root's mark.
    pub(crate) mark: String,
    /// What its work gets when it is asked to stop.
    pub(crate) grace: Duration,
    pub(crate) run: String,
    /// What limits it, with all that it starts.
    pub(crate) groups: Groups,
    /// What keeps it apart, where something does.
    pub(crate) cell: Option<PreparedCell>,
    /// Whether it loads its graphs and waits for [`Agent::go`] before it opens its database.
    pub(crate) standby: bool,
}

/// A running agent server. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Agent {
    address_file: PathBuf,
    life: Lifecycle,
    pid: Option<u32>,
}

impl Agent {
    /// Starts it. Its lines go to the log.
    pub(crate) fn start(given: Startup<'_>, log: &Log) -> Result<Self> {
        let run = given.run;
        // A separate file: another server may use the folder while this one is on standby.
        let address_file = given.data.join(format!("address-{run}"));
        let mut command = Command::new(given.program);
        let entries: Vec<_> = given.groups.entries().collect();
        if !entries.is_empty() || given.cell.is_some() {
            command.arg(launcher::COMMAND);
            for entry in entries {
                command.arg("--group").arg(entry);
            }
            command.args(given.cell.iter().flat_map(PreparedCell::arguments));
            command.arg("--").arg(given.program);
        }
        let mut child = command
            .args(["agent", "--listen", "127.0.0.1:0", "--while-stdin-is-open"])
            .arg("--address-file")
            .arg(&address_file)
            .arg("--config")
            .arg(given.config)
            .arg("--data-dir")
            .arg(given.data)
            // Set explicitly, so that it does not read a settings file of the user's source tree.
            .args(["--settings", "/dev/null"])
            .args(given.standby.then_some("--standby"))
            .env_clear()
            .envs(given.variables)
            .env(ROOT_MARK, given.mark)
            .env(RUN_MARK, &run)
            .current_dir(given.config.parent().unwrap_or(given.data))
            // It ends when this does: also when this process is killed.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("starting the agent server"))?;
        let pid = child.id();
        let group = Group::of(&child, run);
        let (life, holder) = Lifecycle::start();
        for stream in [
            child.stdout.take().map(Stream::Out),
            child.stderr.take().map(Stream::Err),
        ] {
            let (log, hears) = (log.clone(), holder.listener());
            tokio::spawn(async move {
                let read = match stream {
                    Some(Stream::Out(out)) => lines(out, &log, hears).await,
                    Some(Stream::Err(err)) => lines(err, &log, |_| {}).await,
                    None => Ok(()),
                };
                if let Err(error) = read {
                    tracing::debug!(%error, "cannot read the output of an agent server");
                }
            });
        }
        let folder = given.cell.map(PreparedCell::into_folder);
        tokio::spawn(own(child, group, given.groups, folder, holder, given.grace));
        Ok(Self {
            address_file,
            life,
            pid,
        })
    }

    /// Its database is free.
    pub(crate) fn open_database(&self) {
        if let Some(pid) = self.pid.and_then(|id| i32::try_from(id).ok()) {
            // One that has ended is found when its health is asked for.
            let _ = kill(Pid::from_raw(pid), Signal::SIGUSR1);
        }
    }

    /// Waits until it answers that it is healthy; where it does.
    pub(crate) async fn healthy(&self, limit: Duration, cancel: &CancellationToken) -> Result<SocketAddr> {
        let found = self
            .life
            .wait_healthy(HealthTarget::File(&self.address_file), limit, cancel)
            .await;
        // Read once; one that is not there leaves nothing.
        let _ = tokio::fs::remove_file(&self.address_file).await;
        found
    }
}

impl Instance for Agent {
    fn lifecycle(&self) -> &Lifecycle {
        &self.life
    }
}

enum Stream {
    Out(tokio::process::ChildStdout),
    Err(tokio::process::ChildStderr),
}

/// Holds the child until it has ended.
async fn own(
    mut child: Child,
    group: Group,
    groups: Groups,
    folder: Option<TempDir>,
    holder: LifecycleReporter,
    grace: Duration,
) {
    // `wait` would close it, and with it end the agent server.
    let lifeline = child.stdin.take();
    let status = tokio::select! {
        status = child.wait() => status,
        () = holder.stop.cancelled() => {
            if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) {
                // Only itself: it ends its graph hosts in its own order.
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
            match timeout(grace + KILL_AFTER, child.wait()).await {
                Ok(status) => status,
                Err(_) => {
                    group.end();
                    child.wait().await
                }
            }
        }
    };
    drop(lifeline);
    // Whatever it left behind.
    drop(group);
    let how = match status {
        Ok(status) => match status.code() {
            Some(code) => format!("exited with code {code}"),
            None => format!("was terminated by {status}"),
        },
        Err(error) => format!("could not be waited for: {error}"),
    };
    holder.report_end(how);
    groups.remove().await;
    // It may hold many files.
    let _ = tokio::task::spawn_blocking(move || drop(folder)).await;
}
