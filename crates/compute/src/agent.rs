//! One agent server as a child process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::orphans::{ROOT_MARK, RUN_MARK};
use crate::program::{Group, lines};

/// How often a new agent server is asked whether it is healthy.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// What one question may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Beyond its own grace, before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(2);

/// What to start.
pub(crate) struct Startup<'a> {
    /// The program: `towpath`.
    pub(crate) program: &'a Path,
    /// The graph configuration file.
    pub(crate) config: &'a Path,
    /// Its data folder.
    pub(crate) data: &'a Path,
    /// Its whole environment but the marks.
    pub(crate) variables: Vec<(String, String)>,
    /// The root's mark.
    pub(crate) mark: String,
    /// What its work gets when it is asked to stop.
    pub(crate) grace: Duration,
}

/// A running agent server. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Agent {
    address_file: PathBuf,
    stop: CancellationToken,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<String>>,
    pub(crate) pid: Option<u32>,
}

impl Agent {
    /// Starts it. Its lines go to the log.
    pub(crate) fn start(given: Startup<'_>, log: &Log) -> Result<Self> {
        let address_file = given.data.join("address");
        let settings = given.data.join("settings.toml");
        let failed = || Error::io("preparing the agent server's folder");
        match std::fs::remove_file(&address_file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        // Named, so that it does not read a file of the source tree in its place: that is the user's.
        std::fs::write(&settings, "").map_err(failed())?;
        let run = Uuid::now_v7().to_string();
        let mut child = Command::new(given.program)
            .args(["agent", "--listen", "127.0.0.1:0", "--while-stdin-is-open"])
            .arg("--address-file")
            .arg(&address_file)
            .arg("--config")
            .arg(given.config)
            .arg("--data-dir")
            .arg(given.data)
            .arg("--settings")
            .arg(&settings)
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
        for stream in [
            child.stdout.take().map(Stream::Out),
            child.stderr.take().map(Stream::Err),
        ] {
            let log = log.clone();
            tokio::spawn(async move {
                let mut tail = Vec::new();
                let read = match stream {
                    Some(Stream::Out(out)) => lines(out, &log, &mut tail).await,
                    Some(Stream::Err(err)) => lines(err, &log, &mut tail).await,
                    None => Ok(()),
                };
                if let Err(error) = read {
                    tracing::debug!(%error, "the output of an agent server ended early");
                }
            });
        }
        let stop = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        tokio::spawn(own(child, group, stop.clone(), given.grace, tell));
        Ok(Self {
            address_file,
            stop,
            ended,
            pid,
        })
    }

    /// Waits until it answers that it is healthy; where it does.
    pub(crate) async fn healthy(&self, limit: Duration, cancel: &CancellationToken) -> Result<SocketAddr> {
        let deadline = Instant::now() + limit;
        let mut ended = self.ended.clone();
        loop {
            if let Some(how) = ended.borrow_and_update().clone() {
                return Err(Error::Refused(format!("the agent server {how} before it was healthy")));
            }
            if let Some(address) = self.address().await
                && timeout(ASK_LIMIT, ask(address))
                    .await
                    .is_ok_and(|healthy| healthy.unwrap_or(false))
            {
                return Ok(address);
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(Error::Cancelled),
                () = tokio::time::sleep_until(deadline) => {
                    return Err(Error::TimedOut(format!(
                        "the agent server did not answer /ok within {} s",
                        limit.as_secs()
                    )));
                }
                _ = ended.changed() => {}
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
        }
    }

    /// Where it listens, once it does.
    async fn address(&self) -> Option<SocketAddr> {
        tokio::fs::read_to_string(&self.address_file)
            .await
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// How it ended, once it has.
    pub(crate) fn has_ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        // An error says that its task is gone, and so is it.
        let _ = ended.wait_for(Option::is_some).await;
    }

    /// Waits until it has ended.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.ended.clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
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
    stop: CancellationToken,
    grace: Duration,
    tell: watch::Sender<Option<String>>,
) {
    // `wait` would close it, and with it end the agent server.
    let lifeline = child.stdin.take();
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.cancelled() => {
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
            Some(code) => format!("ended with exit code {code}"),
            None => format!("was ended by {status}"),
        },
        Err(error) => format!("is lost: {error}"),
    };
    tell.send_replace(Some(how));
}

/// Whether an agent server says that it is healthy. Its own surface is plain HTTP on loopback.
async fn ask(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /ok HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}
