//! The official development server on the same project, if its user has installed it.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::super::server;
use super::project;

/// Time limit of a start.
const START: Duration = Duration::from_secs(90);
/// Time between SIGTERM and SIGKILL.
const TERM_TO_KILL: Duration = Duration::from_secs(10);

/// `langgraph dev`: in memory, with its own defaults, without reloading and logging.
pub struct Official {
    process: Child,
    base: String,
    _folder: TempDir,
}

impl Official {
    /// Starts the one of this interpreter.
    pub async fn start(python: &Path) -> anyhow::Result<Self> {
        let folder = server::folder()?;
        project::write(folder.path())?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let log = folder.path().join("log");
        let mut process = Command::new(std::path::absolute(python)?)
            .args(["-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"])
            .args(["--host", "127.0.0.1", "--port", &port, "--config", project::CONFIG])
            .args(["--server-log-level", "error"])
            .current_dir(folder.path())
            .env_clear()
            .envs([
                ("HOME", folder.path().as_os_str()),
                ("LOG_LEVEL", "ERROR".as_ref()),
                ("LANGGRAPH_CLI_NO_ANALYTICS", "1".as_ref()),
                ("LANGSMITH_TRACING", "false".as_ref()),
            ])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log)?)
            .stderr(std::fs::File::options().append(true).open(&log)?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", python.display()))?;
        let base = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::builder().no_proxy().build()?;
        let began = Instant::now();
        loop {
            if let Some(status) = process.try_wait()? {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("the official server ended with {status}; --official needs `langgraph-cli[inmem]`:\n{said}");
            }
            let ready = http.get(format!("{base}/ok")).send().await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            if began.elapsed() > START {
                bail!("the official server was not ready after {} s", START.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Self {
            process,
            base,
            _folder: folder,
        })
    }

    pub fn base(&self) -> String {
        self.base.clone()
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Ends it with all its children.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let Some(pid) = self.process.id() else { return Ok(()) };
        let group = Pid::from_raw(i32::try_from(pid)?);
        let _ = killpg(group, Signal::SIGTERM);
        let ended = tokio::time::timeout(TERM_TO_KILL, self.process.wait()).await;
        let _ = killpg(group, Signal::SIGKILL);
        if ended.is_err() {
            self.process.wait().await?;
        }
        Ok(())
    }
}
