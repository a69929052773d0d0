//! One child process: how it starts, what it left behind when it ended, and how it is ended.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use towpath_domain::Secret;

use super::connection::{Connection, MAX_FRAME_BYTES};
use super::frame::{Frame, Type};
use super::logs;
use super::message::{self, Hello, Init, Json, LoadError, Ready, Shutdown, VERSIONS};
use super::spawner;

/// What is kept of a child's last words.
const LAST_WORDS: usize = 64 << 10;
/// Credit of a run at its start.
pub const WINDOW_BYTES: u64 = 4 << 20;
/// Between the request to end and the signal that cannot be refused.
const TERM_TO_KILL: Duration = Duration::from_secs(2);

/// How children of one set of graphs are started.
#[derive(Clone)]
pub struct Launch {
    /// The interpreter.
    pub program: PathBuf,
    /// Its arguments. It finds its connection as standard input.
    pub arguments: Vec<OsString>,
    /// Added to the environment of this process, or in its place where `clean`.
    pub environment: BTreeMap<String, Secret>,
    /// Take nothing from the environment of this process.
    pub clean: bool,
    /// The folder of the config file.
    pub folder: PathBuf,
    /// The config file.
    pub config: String,
    /// Graphs to load; all when `None`.
    pub graphs: Option<Vec<String>>,
    /// Whether the config file names routes of the user's own.
    pub http: bool,
    /// Where sockets for the user's own routes are made.
    pub sockets: PathBuf,
    /// How long a child may take until it serves.
    pub start_timeout: Duration,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// Why a child does not serve.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The user's code could not be loaded.
    #[error("{}", told(.0))]
    Load(Box<LoadError>),
    /// The process could not be started, or ended, or said something else.
    #[error("{0}")]
    Process(String),
}

fn told(error: &LoadError) -> String {
    let graph = error
        .graph
        .as_ref()
        .map_or_else(String::new, |id| format!("graph {id:?}: "));
    let place = match (&error.file, error.line) {
        (Some(file), Some(line)) => format!(" ({file}, line {line})"),
        (Some(file), None) => format!(" ({file})"),
        _ => String::new(),
    };
    let hint = if error.error == "ModuleNotFoundError" {
        "; name its package in `dependencies` of the config file"
    } else {
        ""
    };
    format!("{graph}{}: {}{place}{hint}", error.error, error.message)
}

/// A child that serves.
pub struct Child {
    /// Number in its pool, for logs.
    pub number: u64,
    /// The connection.
    pub connection: Connection,
    /// What it loaded.
    pub ready: Ready,
    /// Versions of its libraries.
    pub hello: Hello,
    /// Where the user's own routes are served.
    pub http_socket: Option<PathBuf>,
    /// Runs it has now.
    pub open: AtomicUsize,
    /// Runs it ever had.
    pub served: AtomicU64,
    /// It takes no more runs.
    pub draining: AtomicBool,
    /// When it began to serve.
    pub since: Instant,
    /// When it had a run last.
    pub used: Mutex<Instant>,
    ending: mpsc::UnboundedSender<End>,
    ended: watch::Receiver<Option<String>>,
    _socket_file: SocketFile,
}

enum End {
    /// TERM to its group, then KILL.
    Now,
    /// When it has not ended by itself after this long.
    After(Duration),
}

/// Removes a socket's path.
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Child {
    /// Starts a child and waits until it serves.
    ///
    /// # Errors
    /// It cannot be started, or cannot load its graphs.
    pub async fn start(launch: &Launch, number: u64) -> Result<Self, StartError> {
        let process = |what: &str, error: &dyn fmt::Display| StartError::Process(format!("{what}: {error}"));
        let http_path = launch.http.then(|| launch.sockets.join(format!("{number}.http.sock")));
        if let Some(path) = &http_path {
            // Of an earlier life of the server.
            let _ = std::fs::remove_file(path);
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|error| process("a socket", &error))?;
        let ours = ours.set_nonblocking(true).and_then(|()| UnixStream::from_std(ours));
        let socket = ours.map_err(|error| process("a socket", &error))?;
        let (mut running, words) = Running::spawn(launch, theirs.into())?;
        let begun = async {
            let (connection, mut control) = Connection::start(socket);
            let hello: Hello = expect(&mut control, Type::HELLO, &mut running, &words).await?;
            let protocol = (*VERSIONS.end()).min(hello.protocol.max);
            if !VERSIONS.contains(&protocol) || protocol < hello.protocol.min {
                return Err(StartError::Process(format!(
                    "the graph host speaks versions {} to {} of the protocol, this server {VERSIONS:?}",
                    hello.protocol.min, hello.protocol.max
                )));
            }
            connection.send(
                Type::INIT,
                &Init {
                    protocol,
                    config: Json(launch.config.clone()),
                    folder: launch.folder.display().to_string(),
                    graphs: launch.graphs.clone(),
                    window_bytes: WINDOW_BYTES,
                    max_frame_bytes: MAX_FRAME_BYTES as u64,
                    http_socket: http_path.as_ref().map(|path| path.display().to_string()),
                    log_level: None,
                    host_version: env!("CARGO_PKG_VERSION").to_owned(),
                },
            );
            let ready: Ready = expect(&mut control, Type::READY, &mut running, &words).await?;
            Ok((connection, hello, ready, control))
        };
        let begun = timeout(launch.start_timeout, begun).await;
        let (connection, hello, ready, control) = match begun {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                running.kill().await;
                return Err(error);
            }
            Err(_) => {
                running.kill().await;
                let seconds = launch.start_timeout.as_secs();
                let said = words.tail(20);
                return Err(StartError::Process(format!(
                    "the graph host did not serve within {seconds} s. It said last:\n{said}"
                )));
            }
        };
        let http_socket = http_path.filter(|_| ready.http);
        let (ending, endings) = mpsc::unbounded_channel();
        let (tell, ended) = watch::channel(None);
        tokio::spawn(supervise(running, words, connection.clone(), control, endings, tell));
        Ok(Self {
            number,
            connection,
            ready,
            hello,
            open: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            since: Instant::now(),
            used: Mutex::new(Instant::now()),
            ending,
            ended,
            _socket_file: SocketFile(http_socket.clone()),
            http_socket,
        })
    }

    /// Whether it still serves.
    pub fn lives(&self) -> bool {
        !self.connection.closed().is_cancelled() && self.ended.borrow().is_none()
    }

    /// Ends it: TERM to its whole group, then KILL.
    pub fn kill(&self) {
        self.draining.store(true, Ordering::Relaxed);
        let _ = self.ending.send(End::Now);
    }

    /// Asks it to end once its runs are over, at the latest after `grace`.
    pub fn retire(&self, grace: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.connection.send(Type::SHUTDOWN, &Shutdown { grace_ms });
        let _ = self.ending.send(End::After(grace + TERM_TO_KILL));
    }

    /// Waits until the process is gone; how it ended.
    pub async fn gone(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => "ended".to_owned(),
        }
    }

    /// Marks that it was used now.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Waits for a message of the start.
async fn expect<T: serde::de::DeserializeOwned>(
    control: &mut mpsc::UnboundedReceiver<Frame>,
    wanted: Type,
    running: &mut Running,
    words: &Words,
) -> Result<T, StartError> {
    let Some(frame) = control.recv().await else {
        let status = timeout(TERM_TO_KILL, running.child.wait()).await;
        let status = status.ok().and_then(Result::ok);
        return Err(StartError::Process(words.after(status).await));
    };
    let unreadable = |error: message::WireError| StartError::Process(error.to_string());
    match frame.r#type {
        found if found == wanted => message::read(&frame.payload).map_err(unreadable),
        Type::LOAD_ERROR => Err(StartError::Load(Box::new(
            message::read(&frame.payload).map_err(unreadable)?,
        ))),
        Type(other) => Err(StartError::Process(format!(
            "the graph host sent a message of type {other:#04x} where it should have said something else"
        ))),
    }
}

/// A process and its group.
struct Running {
    child: tokio::process::Child,
    group: Option<Pid>,
}

impl Running {
    fn spawn(launch: &Launch, socket: OwnedFd) -> Result<(Self, Words), StartError> {
        let mut command = Command::new(&launch.program);
        if launch.clean {
            command.env_clear();
        }
        command
            .args(&launch.arguments)
            .envs(launch.environment.iter().map(|(name, value)| (name, value.reveal())))
            .env("TOWPATH_HOST_PARENT", std::process::id().to_string())
            .current_dir(&launch.folder)
            .stdin(socket)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // So that whatever it starts can be ended with it.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = spawner::spawn(command).map_err(|error| {
            let program = launch.program.display();
            StartError::Process(format!("cannot start {program}: {error}"))
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let words = Words::default();
        if let Some(out) = child.stdout.take() {
            tokio::spawn(words.clone().listen(out));
        }
        if let Some(err) = child.stderr.take() {
            tokio::spawn(words.clone().listen(err));
        }
        Ok((Self { child, group }, words))
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Gone already: what was wanted.
            let _ = killpg(group, signal);
        }
    }

    async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait().await;
    }
}

/// The last that a process wrote to its standard output and error.
#[derive(Clone, Default)]
struct Words(Arc<Mutex<(VecDeque<String>, usize)>>);

impl Words {
    async fn listen(self, from: impl AsyncRead + Unpin) {
        let mut lines = BufReader::new(from).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            let line = String::from_utf8_lossy(&line).into_owned();
            tracing::info!("{}", logs::cut(&line));
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.1 += line.len();
            kept.0.push_back(line);
            while kept.1 > LAST_WORDS && kept.0.len() > 1 {
                let gone = kept.0.pop_front().map_or(0, |line| line.len());
                kept.1 -= gone;
            }
        }
    }

    fn tail(&self, lines: usize) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = kept.0.len().saturating_sub(lines);
        let lines: Vec<&str> = kept.0.iter().skip(skip).map(String::as_str).collect();
        lines.join("\n")
    }

    /// How a process ended, with its last words.
    async fn after(&self, status: Option<ExitStatus>) -> String {
        // What it wrote last may still be on its way through the pipe.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let how = match status {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("the graph host ended with status {code}"),
                (None, Some(signal)) => {
                    let name = Signal::try_from(signal).map_or_else(|_| signal.to_string(), |name| name.to_string());
                    format!("the graph host was ended by signal {name}")
                }
                (None, None) => "the graph host ended".to_owned(),
            },
            None => "the graph host closed its connection".to_owned(),
        };
        let said = self.tail(30);
        if said.trim().is_empty() {
            return how;
        }
        format!("{how}. It said last:\n{said}")
    }
}

/// Stays with a child until it is gone.
async fn supervise(
    mut running: Running,
    words: Words,
    connection: Connection,
    mut control: mpsc::UnboundedReceiver<Frame>,
    mut endings: mpsc::UnboundedReceiver<End>,
    tell: watch::Sender<Option<String>>,
) {
    let mut deadline = None;
    let mut open = true;
    let closed = connection.closed();
    let status = loop {
        let wait = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = running.child.wait() => break status.ok(),
            ending = endings.recv(), if open => match ending {
                // Nobody holds it any more; it may have been asked to end in its time.
                None if deadline.is_some() => open = false,
                Some(End::Now) | None => {
                    open = ending.is_some();
                    running.signal(Signal::SIGTERM);
                    deadline = Some(tokio::time::Instant::now() + TERM_TO_KILL);
                }
                Some(End::After(grace)) => {
                    // Asking again gives no more time.
                    let at = tokio::time::Instant::now() + grace;
                    deadline = Some(deadline.map_or(at, |earlier: tokio::time::Instant| earlier.min(at)));
                }
            },
            // Without its connection it is of no use.
            () = closed.cancelled(), if deadline.is_none() => {
                deadline = Some(tokio::time::Instant::now() + TERM_TO_KILL);
            }
            () = wait => {
                running.signal(Signal::SIGKILL);
                deadline = None;
                if let Ok(status) = timeout(TERM_TO_KILL, running.child.wait()).await {
                    break status.ok();
                }
            }
            // Nothing is expected there; reading keeps it from growing.
            Some(_) = control.recv() => {}
        }
    };
    // What it had started goes with it.
    running.signal(Signal::SIGKILL);
    let how = words.after(status).await;
    tell.send_replace(Some(how));
    connection.close();
}
