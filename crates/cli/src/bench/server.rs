//! A server for a benchmark: this binary in its own process.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child as Process, Command};

use super::cores::{self, Half};
use super::process;
const DATA: &str = "data";

/// Time limit of a start.
const START: Duration = Duration::from_secs(60);

/// A temporary folder for a server.
pub(super) fn folder() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("towpath-bench.").tempdir()
}

/// A running server.
pub(super) struct Child {
    process: Process,
    base: String,
    folder: TempDir,
}

impl Child {
    /// `towpath dev` in a temporary folder, ready; restricted to one half of the cores if given.
    pub(super) async fn dev(half: Option<Half>) -> anyhow::Result<Self> {
        Self::dev_with(half, &[]).await
    }

    /// Like `dev`, with additional environment variables.
    pub(super) async fn dev_with(half: Option<Half>, environment: &[(&str, String)]) -> anyhow::Result<Self> {
        Self::start(&["dev", "--agent-listen", "127.0.0.1:0"], folder()?, environment, half).await
    }

    /// `towpath agent` in a temporary folder, ready: all roles, SQLite, one graph that echoes.
    pub(super) async fn agent() -> anyhow::Result<Self> {
        Self::start(&["agent"], folder()?, &[], None).await
    }

    /// `towpath agent` in a folder with a graph file, with this interpreter and number of processes.
    pub(super) async fn agent_in(folder: TempDir, python: &Path, hosts: usize) -> anyhow::Result<Self> {
        let python = python.display().to_string();
        let environment = [
            ("TOWPATH_AGENT_PYTHON", python),
            ("TOWPATH_AGENT_HOSTS", hosts.to_string()),
        ];
        Self::start(&["agent"], folder, &environment, None).await
    }

    /// `towpath serve` with one role in a temporary folder, ready.
    pub(super) async fn serve(role: &str, environment: &[(&str, String)]) -> anyhow::Result<Self> {
        Self::start(&["serve", "--role", role], folder()?, environment, None).await
    }

    async fn start(
        command: &[&str],
        folder: TempDir,
        environment: &[(&str, String)],
        half: Option<Half>,
    ) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut program = Command::new(std::env::current_exe()?);
        program
            .args(command)
            .args(["--log", "error", "--listen", &address.to_string(), "--data-dir"])
            .arg(folder.path().join(DATA))
            .current_dir(folder.path())
            .env_clear()
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        let mut process = spawn(program, half)?;
        let base = format!("http://{address}");
        let http = reqwest::Client::builder().no_proxy().build()?;
        let began = Instant::now();
        loop {
            if let Some(status) = process.try_wait()? {
                bail!("the server ended with {status}");
            }
            let ready = http.get(format!("{base}/readyz")).send().await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            if began.elapsed() > START {
                bail!("the server was not ready after {} s", START.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Self { process, base, folder })
    }

    pub(super) fn base(&self) -> String {
        self.base.clone()
    }

    /// The first key of a `dev` server.
    pub(super) async fn key(&self) -> anyhow::Result<String> {
        let file = self.folder.path().join(DATA).join("api.key");
        let key = tokio::fs::read_to_string(file).await.context("its key")?;
        Ok(key.trim().to_owned())
    }

    /// Process id while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Total size of the files below a folder of its data.
    pub(super) fn stored(&self, folder: &str) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let mut folders = vec![self.folder.path().join(DATA).join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let entry = entry?;
                let about = entry.metadata()?;
                if about.is_dir() {
                    folders.push(entry.path());
                } else {
                    bytes += about.len();
                }
            }
        }
        Ok(bytes)
    }

    /// Resident memory in MB, if the system reports it.
    pub(super) fn memory_mb(&self) -> Option<f64> {
        process::memory_mb(self.process.id()?)
    }

    /// Drains the server.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.process.id() {
            kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
        }
        let ended = tokio::time::timeout(START, self.process.wait()).await;
        let status = ended.context("the server does not end")??;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }
}

/// A process inherits the cores of the thread that starts it, so a restricted one is started from its own thread.
fn spawn(mut program: Command, half: Option<Half>) -> anyhow::Result<Process> {
    let Some(half) = half else {
        return Ok(program.spawn()?);
    };
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let _inside = runtime.enter();
        cores::keep_to(half)?;
        Ok(program.spawn()?)
    })
    .join()
    .expect("starting a process does not panic")
}
