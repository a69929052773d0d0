//! A child process: start, handshake, end, and its last output.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::connection::{Connection, MAX_FRAME_BYTES};
use super::fork_server::ForkServer;
use super::frame::{Frame, FrameType};
use super::launch::{Launch, StartError, TERM_TO_KILL};
use super::logs;
use super::message::{self, Hello, Init, Json, VERSIONS};
use super::spawn_thread;

/// What is stored of a child's last words.
const LAST_WORDS: usize = 64 << 10;
/// A longer line is read in pieces of this size.
const PIECE: usize = 16 << 10;
/// Credit of a run at its start.
pub const WINDOW_BYTES: u64 = 4 << 20;

/// A process that was started and has said nothing yet.
pub struct StartedProcess {
    /// Its connection.
    pub socket: UnixStream,
    pub running: HostProcess,
    /// What it will write.
    pub output: OutputTail,
}

impl StartedProcess {
    /// Starts the program, with one more argument if there is one.
    pub fn spawn(launch: &Launch, argument: Option<&std::ffi::OsStr>) -> Result<Self, StartError> {
        let unable = |error: std::io::Error| StartError::Process(format!("a socket: {error}"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(unable)?;
        ours.set_nonblocking(true).map_err(unable)?;
        let socket = UnixStream::from_std(ours).map_err(unable)?;
        let mut command = Command::new(&launch.program);
        if launch.clean {
            command.env_clear();
        }
        command
            .args(&launch.arguments)
            .args(argument)
            .envs(launch.environment.iter().map(|(name, value)| (name, value.reveal())))
            .env("TOWPATH_HOST_PARENT", std::process::id().to_string())
            .current_dir(&launch.folder)
            .stdin(std::os::fd::OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // So that whatever it starts can be ended with it.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = spawn_thread::spawn(command).map_err(|error| {
            let program = launch.program.display();
            StartError::Process(format!("cannot start {program}: {error}"))
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let words = OutputTail::default();
        if let Some(out) = child.stdout.take() {
            tokio::spawn(words.clone().listen(out));
        }
        if let Some(err) = child.stderr.take() {
            tokio::spawn(words.clone().listen(err));
        }
        let process = ProcessKind::Own(child);
        Ok(Self {
            socket,
            running: HostProcess { process, group },
            output: words,
        })
    }
}

/// HELLO and INIT.
pub async fn handshake(
    launch: &Launch,
    http_socket: Option<&Path>,
    connection: &Connection,
    control: &mut mpsc::UnboundedReceiver<Frame>,
    running: &mut HostProcess,
    words: &OutputTail,
) -> Result<Hello, StartError> {
    let hello: Hello = expect_frame(control, FrameType::HELLO, running, words).await?;
    let protocol = (*VERSIONS.end()).min(hello.protocol.max);
    if !VERSIONS.contains(&protocol) || protocol < hello.protocol.min {
        return Err(StartError::Process(format!(
            "the graph host supports protocol versions {} to {}, this server {VERSIONS:?}",
            hello.protocol.min, hello.protocol.max
        )));
    }
    connection.send(
        FrameType::INIT,
        &Init {
            protocol,
            config: Json(launch.config.clone()),
            folder: launch.folder.display().to_string(),
            graphs: launch.graphs.clone(),
            window_bytes: WINDOW_BYTES,
            max_frame_bytes: MAX_FRAME_BYTES as u64,
            http_socket: http_socket.map(|path| path.display().to_string()),
            log_level: None,
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    );
    Ok(hello)
}

/// Limits the duration of a start; a process that takes longer is stopped.
pub async fn within_start_timeout<T>(
    launch: &Launch,
    running: &mut HostProcess,
    words: &OutputTail,
    start: impl AsyncFnOnce(&mut HostProcess) -> Result<T, StartError>,
) -> Result<T, StartError> {
    let error = match timeout(launch.start_timeout, start(running)).await {
        Ok(Ok(begun)) => return Ok(begun),
        Ok(Err(error)) => error,
        Err(_) => StartError::Process(format!(
            "the graph host was not ready within {} s. Its last output:\n{}",
            launch.start_timeout.as_secs(),
            words.tail(20)
        )),
    };
    running.kill().await;
    Err(error)
}

/// Waits for a message of the start.
pub async fn expect_frame<T: serde::de::DeserializeOwned>(
    control: &mut mpsc::UnboundedReceiver<Frame>,
    wanted: FrameType,
    running: &mut HostProcess,
    words: &OutputTail,
) -> Result<T, StartError> {
    let Some(frame) = control.recv().await else {
        let status = timeout(TERM_TO_KILL, running.wait()).await;
        let status = status.ok().flatten();
        return Err(StartError::Process(words.exit_message(status).await));
    };
    let unreadable = |error: message::WireError| StartError::Process(error.to_string());
    match frame.r#type {
        found if found == wanted => message::read(&frame.payload).map_err(unreadable),
        FrameType::LOAD_ERROR => Err(StartError::Load(Box::new(
            message::read(&frame.payload).map_err(unreadable)?,
        ))),
        FrameType(other) => Err(StartError::Process(format!(
            "the graph host sent an unexpected message of type {other:#04x}"
        ))),
    }
}

/// A process and its group.
pub struct HostProcess {
    process: ProcessKind,
    group: Option<Pid>,
}

enum ProcessKind {
    Own(tokio::process::Child),
    /// One of a process that forks, which ends with that.
    Fork {
        ended: oneshot::Receiver<ExitStatus>,
        /// How it ended, once known; the inner `None` if its parent died before it could report.
        status: Option<Option<ExitStatus>>,
        _parent: Arc<ForkServer>,
    },
}

impl HostProcess {
    /// A process that was forked.
    pub fn forked(pid: i32, ended: oneshot::Receiver<ExitStatus>, parent: Arc<ForkServer>) -> Self {
        Self {
            process: ProcessKind::Fork {
                ended,
                status: None,
                _parent: parent,
            },
            group: Some(Pid::from_raw(pid)),
        }
    }

    /// Waits for its end. May be dropped and called again.
    pub async fn wait(&mut self) -> Option<ExitStatus> {
        match &mut self.process {
            ProcessKind::Own(child) => child.wait().await.ok(),
            ProcessKind::Fork { ended, status, .. } => match status {
                Some(status) => *status,
                None => *status.insert(ended.await.ok()),
            },
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Gone already: what was wanted.
            let _ = killpg(group, signal);
        }
    }

    pub async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.wait().await;
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        // A child of this process is ended by its handle.
        if let ProcessKind::Fork { status: None, .. } = self.process {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// The last lines of a process's standard output and error.
#[derive(Clone, Default)]
pub struct OutputTail(Arc<Mutex<(VecDeque<String>, usize)>>);

impl OutputTail {
    /// Reads to the end, line by line. An overlong line is taken in pieces, as it may never end.
    pub async fn listen(self, mut from: impl AsyncRead + Unpin) {
        let mut read = vec![0; PIECE];
        // A line whose end has not come yet.
        let mut begun: Vec<u8> = Vec::new();
        loop {
            let count = from.read(&mut read).await.unwrap_or(0);
            let mut rest = &read[..count];
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                begun.extend_from_slice(&rest[..end]);
                self.append(&begun);
                begun.clear();
                rest = &rest[end + 1..];
            }
            begun.extend_from_slice(rest);
            let over = count == 0;
            if begun.len() >= PIECE || (over && !begun.is_empty()) {
                self.append(&begun);
                begun.clear();
            }
            if over {
                return;
            }
        }
    }

    fn append(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).into_owned();
        tracing::info!("{}", logs::cut(&line));
        let mut kept = self.0.lock();
        kept.1 += line.len();
        kept.0.push_back(line);
        while kept.1 > LAST_WORDS && kept.0.len() > 1 {
            let gone = kept.0.pop_front().map_or(0, |line| line.len());
            kept.1 -= gone;
        }
    }

    pub fn tail(&self, lines: usize) -> String {
        let kept = self.0.lock();
        let skip = kept.0.len().saturating_sub(lines);
        let lines: Vec<&str> = kept.0.iter().skip(skip).map(String::as_str).collect();
        lines.join("\n")
    }

    /// How a process ended, with its last words.
    pub async fn exit_message(&self, status: Option<ExitStatus>) -> String {
        // What it wrote last may still be on its way through the pipe.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let how = match status {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("the graph host exited with status {code}"),
                (None, Some(signal)) => {
                    let name = Signal::try_from(signal).map_or_else(|_| signal.to_string(), |name| name.to_string());
                    format!("the graph host was terminated by signal {name}")
                }
                (None, None) => "the graph host exited".to_owned(),
            },
            None => "the graph host closed its connection".to_owned(),
        };
        let said = self.tail(30);
        if said.trim().is_empty() {
            return how;
        }
        format!("{how}. Its last output:\n{said}")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn until(words: &OutputTail, what: &str, holds: impl Fn(&str) -> bool) {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !holds(&words.tail(usize::MAX)) {
            assert!(std::time::Instant::now() < deadline, "waited for {what}");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_line_that_never_ends_is_kept_in_pieces() {
        let (mut said, heard) = tokio::io::duplex(4096);
        let words = OutputTail::default();
        let listening = tokio::spawn(words.clone().listen(heard));
        said.write_all(&vec![b'x'; 10 * LAST_WORDS]).await.unwrap();
        until(&words, "the beginning of a line", |tail| !tail.is_empty()).await;
        said.write_all(b"!\nlast\nwords").await.unwrap();
        until(&words, "the end of a line", |tail| tail.ends_with("!\nlast")).await;
        drop(said);
        listening.await.unwrap();
        let tail = words.tail(usize::MAX);
        assert!(tail.ends_with("!\nlast\nwords"), "what is left at the end is a line");
        assert!(tail.len() <= LAST_WORDS + PIECE, "{} bytes are kept", tail.len());
    }

    #[tokio::test]
    async fn lines_are_kept_as_they_are() {
        let words = OutputTail::default();
        words.clone().listen(&b"one\n\ntwo\nthree\n"[..]).await;
        assert_eq!(words.tail(usize::MAX), "one\n\ntwo\nthree");
        assert_eq!(words.tail(2), "two\nthree");
    }
}
