//! A child process of a test: its log, its health, the signals it gets.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::{environment, towpath, until};

/// How a start may take at most. Debug builds on a busy machine are slow; a start that hangs is still seen.
const START_LIMIT: Duration = Duration::from_secs(180);

/// What to run: kept, so that the same command can be started again after a kill.
#[derive(Clone, Debug)]
pub struct Program {
    /// Names the process in messages and its log file.
    pub name: String,
    /// Arguments after `towpath`.
    pub args: Vec<String>,
    /// The environment, beside the few variables every child gets; nothing else is inherited.
    pub env: Vec<(String, String)>,
    /// Where it serves `/readyz`; `None` for a command that ends by itself.
    pub address: Option<SocketAddr>,
    /// Where it runs and where its log goes.
    pub folder: PathBuf,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    Signal(i32),
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` without waiting for it to become ready. Logs of earlier starts under the same name are kept
    /// in the same file.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn spawn(program: &Program) -> Self {
        let log = program.folder.join(format!("{}.log", program.name));
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the world's folder is ours");
        let errors = output.try_clone().expect("a file handle can be doubled");
        let mut command = Command::new(towpath());
        command.args(&program.args).current_dir(&program.folder).env_clear();
        // TOWPATH_TEST_RUN marks the process for the script's sweep of leftovers.
        for name in ["PATH", "HOME", "TMPDIR", "TOWPATH_TEST_RUN"] {
            if let Some(value) = environment(name) {
                command.env(name, value);
            }
        }
        command.env("RUST_BACKTRACE", "1").envs(program.env.iter().cloned());
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.name));
        Self {
            program: program.clone(),
            child,
            log,
        }
    }

    /// Starts `program` and waits until `/readyz` says so.
    ///
    /// # Panics
    /// If it ends before, or does not become ready; its log is in the message.
    pub async fn start(program: &Program) -> Self {
        let mut process = Self::spawn(program);
        process.ready().await;
        process
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Panics
    /// If the process ends before, or does not become ready; its log is in the message.
    pub async fn ready(&mut self) {
        let address = self.program.address.expect("only servers become ready");
        let http = crate::api::http();
        let url = format!("http://{address}/readyz");
        let name = self.program.name.clone();
        let answered = timeout(
            START_LIMIT,
            until(&format!("{name} to become ready"), START_LIMIT, async || {
                if let Some(exit) = self.ended() {
                    return Some(Err(exit));
                }
                let answer = http.get(&url).timeout(Duration::from_secs(2)).send().await.ok()?;
                answer.status().is_success().then_some(Ok(()))
            }),
        )
        .await;
        match answered {
            Ok(Ok(())) => {}
            Ok(Err(exit)) => panic!("{name} ended with {exit:?} before it was ready:\n{}", self.log_tail()),
            Err(_) => panic!("{name} was not ready within {START_LIMIT:?}:\n{}", self.log_tail()),
        }
    }

    /// What was started.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The file that holds everything it printed.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Everything it printed so far, earlier starts under the same name included.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// What `/metrics` shows under this name, all series together; 0 if there is none.
    ///
    /// # Panics
    /// If the process does not answer.
    pub async fn metric(&self, name: &str) -> f64 {
        let address = self.program.address.expect("only servers have metrics");
        let url = format!("http://{address}/metrics");
        let answer = crate::api::http().get(&url).send().await;
        let text = match answer {
            Ok(answer) => answer.text().await,
            Err(error) => Err(error),
        };
        let text = text.unwrap_or_else(|error| panic!("GET {url}: {error:?}"));
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let of_name = labels.is_empty() || labels.starts_with('{');
            of_name.then(|| value.parse::<f64>().expect("the value of a series is a number"))
        });
        values.sum()
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal; nothing happens when it is over already.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id() {
            let pid = Pid::from_raw(i32::try_from(pid).expect("pids are small"));
            // It may end between the two lines; then there is no one to tell.
            let _ = kill(pid, signal);
        }
    }

    /// How it ended, if it has. Does not wait.
    ///
    /// # Panics
    /// If the system does not tell.
    pub fn ended(&mut self) -> Option<Exit> {
        self.child.try_wait().expect("a child can be asked").map(exit)
    }

    /// SIGKILL, and gone when this returns.
    ///
    /// # Panics
    /// If the system does not tell how it ended.
    pub async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().await.expect("a child can be awaited");
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// If it is still there after `limit`; its log is in the message.
    pub async fn terminate(&mut self, limit: Duration) -> Exit {
        self.signal(Signal::SIGTERM);
        self.wait(limit).await
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it is still there after `limit`; its log is in the message.
    pub async fn wait(&mut self, limit: Duration) -> Exit {
        match timeout(limit, self.child.wait()).await {
            Ok(status) => exit(status.expect("a child can be awaited")),
            Err(_) => panic!("{} still runs after {limit:?}:\n{}", self.program.name, self.log_tail()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process does not die of SIGTERM, but of this.
        self.signal(Signal::SIGKILL);
        if std::thread::panicking() {
            eprintln!("---- the end of {}\n{}\n----", self.log.display(), self.log_tail());
        }
    }
}

fn exit(status: std::process::ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.expect("a process without a code was ended by a signal")),
    }
}

/// Runs `towpath` with `args` to its end and gives its exit and what it printed (both streams).
///
/// # Panics
/// If it does not end within three minutes.
pub async fn run_to_end(program: &Program) -> (Exit, String) {
    let file = program.folder.join(format!("{}.log", program.name));
    let _ = File::create(&file);
    let mut process = Process::spawn(program);
    let exit = process.wait(START_LIMIT).await;
    (exit, process.log_text())
}
