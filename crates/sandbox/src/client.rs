//! The host's client for the agent in a box.
//!
//! Its answers are untrusted: lengths, counts and times are bounded, and texts are only data.

mod stream;
mod transport;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::exec::{CommandStatus, ExecRequest, OutputTail};
use crate::file::{ByteRange, Entry, FileStat, GlobRequest, GrepMatch, GrepRequest, Page, byte_bounds};
use crate::wire::{self, CHUNK_BYTES, FileOperation, Frame, FrameKind, Reply, Request};
pub use stream::{Download, ExecEvents, ExecInput, Execution, PortConnection};
pub use transport::AgentDialer;
use transport::AgentStream;

/// The socket in the folder of a box's life.
pub(crate) const SOCKET: &str = "agent.sock";
/// Connecting and the first answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A search over many files.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(120);
/// A file that makes no progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Results of one call.
const MAX_RESULTS: usize = 10_000;
/// What they may take; the agent itself keeps to half of it.
const RESULT_BYTES: usize = 32 << 20;

/// The agent of a box. Cheap to clone; each call uses its own connection.
#[derive(Clone, Debug)]
pub struct BoxAgent {
    location: AgentLocation,
    user: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
enum AgentLocation {
    /// The folder of its life on this machine.
    Folder(Arc<Path>),
    /// Another machine.
    Node(Arc<dyn AgentDialer>),
}

impl BoxAgent {
    /// The agent whose life has this folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            location: AgentLocation::Folder(folder.into()),
            user: None,
        }
    }

    /// The agent of a box on another machine.
    #[must_use]
    pub fn remote(dialer: Arc<dyn AgentDialer>) -> Self {
        Self {
            location: AgentLocation::Node(dialer),
            user: None,
        }
    }

    /// A connection to the socket of the agent on this machine, for a client on another one.
    pub async fn open_socket(&self) -> Result<UnixStream> {
        match self.connect().await? {
            AgentStream::Local(stream) => Ok(stream),
            AgentStream::Remote(_) => Err(Error::Unsupported("the sandbox is on another machine".to_owned())),
        }
    }

    /// The same client with file operations as another user of the box.
    #[must_use]
    pub fn with_user(self, user: &str) -> Self {
        Self {
            user: Some(user.into()),
            ..self
        }
    }

    /// Asks whether it answers.
    pub async fn check_ready(&self) -> Result<()> {
        match self.send_request(&Request::Hello).await?.1 {
            Reply::Hello { version: wire::VERSION } => Ok(()),
            Reply::Hello { version } => Err(Error::Agent(format!(
                "it uses protocol version {version}: stop and start the sandbox"
            ))),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Runs a command, or attaches to the one with this id from offset 0.
    pub async fn execute(&self, request: &ExecRequest) -> Result<Execution> {
        let command = request.clone();
        self.open_execution(&Request::Execute { command }).await
    }

    /// Attaches to a command that was started before.
    pub async fn attach(&self, command_id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Execution> {
        let request = Request::Attach {
            command_id: command_id.to_owned(),
            stdout_offset,
            stderr_offset,
        };
        self.open_execution(&request).await
    }

    /// Kills a command with its process group. No effect after its end.
    pub async fn kill(&self, command_id: &str) -> Result<()> {
        let command_id = command_id.to_owned();
        self.request_done(&Request::Kill { command_id }).await
    }

    /// Sends SIGTERM to every command.
    pub async fn terminate(&self) -> Result<()> {
        self.request_done(&Request::Terminate).await
    }

    /// The listening socket of the proxy.
    #[cfg(target_os = "linux")]
    pub(crate) async fn proxy_listener(&self) -> Result<std::net::TcpListener> {
        let (stream, reply) = self.send_request(&Request::Proxy).await?;
        let Reply::Done = reply else {
            return Err(unexpected_reply(&reply));
        };
        let AgentStream::Local(stream) = stream else {
            return Err(Error::Unsupported("the sandbox is on another machine".to_owned()));
        };
        with_timeout("answer", ANSWER_TIMEOUT, crate::descriptor::receive_listener(&stream)).await
    }

    /// The commands it knows.
    pub async fn commands(&self) -> Result<Vec<CommandStatus>> {
        match self.send_request(&Request::Commands).await?.1 {
            Reply::Commands { commands } => Ok(commands),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// The latest output of a command, at most `most` bytes of each stream and at most 64 KiB. Unlike
    /// [`attach`](Self::attach) it does not affect other clients or the idle timeout.
    pub async fn tail(&self, command_id: &str, most: usize) -> Result<OutputTail> {
        let request = Request::Tail {
            command_id: command_id.to_owned(),
            most: most.min(wire::TAIL_BYTES),
        };
        match self.send_request(&request).await?.1 {
            Reply::Tail { tail } => Ok(tail),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// What is known of a file. Links are followed.
    pub async fn stat(&self, path: &str) -> Result<FileStat> {
        let call = FileOperation::Stat { path: path.to_owned() };
        match self.send_request(&self.file_request(call)).await?.1 {
            Reply::Stat { stat } => Ok(stat),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// What a directory holds, by name.
    pub async fn list(&self, path: &str, limit: usize) -> Result<Page<Entry>> {
        let limit = limit.min(MAX_RESULTS);
        let path = path.to_owned();
        self.entries(FileOperation::List { path, limit }, limit).await
    }

    /// Reads a file or a part of it.
    pub async fn download(&self, path: &str, range: Option<ByteRange>) -> Result<Download> {
        let path = path.to_owned();
        let (stream, reply) = self
            .send_request(&self.file_request(FileOperation::Read { path, range }))
            .await?;
        match reply {
            Reply::File { stat, start, end } if byte_bounds(range, stat.size_bytes) == Some((start, end)) => {
                Ok(Download::new(stat, start, end, stream))
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Writes a file atomically and creates its parent directories. If reading fails, the old file stays. Permission
    /// bits are those of the old file, or 0644.
    pub async fn upload(&self, path: &str, from: &mut (impl AsyncRead + Unpin + Send)) -> Result<FileStat> {
        let path = path.to_owned();
        let mut stream = self.connect().await?;
        let request = self.file_request(FileOperation::Write { path, mode: None });
        with_timeout("upload", ANSWER_TIMEOUT, wire::write_json(&mut stream, &request)).await?;
        // An answer before the last byte is a failure.
        match read_reply(&mut stream, ANSWER_TIMEOUT).await? {
            Reply::Done => {}
            other => return Err(unexpected_reply(&other)),
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = from.read(&mut chunk).await.map_err(Error::io("reading the upload"))?;
            let sent = if count == 0 {
                with_timeout(
                    "upload",
                    STALL_TIMEOUT,
                    wire::write_frame(&mut stream, FrameKind::End, [&[], &[]]),
                )
                .await
            } else {
                with_timeout(
                    "upload",
                    STALL_TIMEOUT,
                    wire::write_frame(&mut stream, FrameKind::Data, [&chunk[..count], &[]]),
                )
                .await
            };
            if let Err(error) = sent {
                // The box may have said why before it closed the connection.
                let said = with_timeout("answer", ANSWER_TIMEOUT, wire::read_frame(&mut stream)).await;
                return Err(match said.ok().flatten().map(|frame| frame.parse_json()) {
                    Some(Ok(Reply::Failed { failure })) => failure.into_error(),
                    _ => error,
                });
            }
            if count == 0 {
                break;
            }
        }
        match read_reply(&mut stream, STALL_TIMEOUT).await? {
            Reply::Stat { stat } => Ok(stat),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Files by a pattern.
    pub async fn glob(&self, search: &GlobRequest) -> Result<Page<Entry>> {
        let mut search = search.clone();
        search.limit = search.limit.min(MAX_RESULTS);
        let limit = search.limit;
        self.entries(FileOperation::Glob { search }, limit).await
    }

    /// Lines that contain a text.
    pub async fn grep(&self, search: &GrepRequest) -> Result<Page<GrepMatch>> {
        let mut search = search.clone();
        search.limit = search.limit.min(MAX_RESULTS);
        let limit = search.limit;
        let take = |reply| match reply {
            Reply::Lines { matches } => Ok(matches),
            other => Err(other),
        };
        self.results(FileOperation::Grep { search }, limit, take).await
    }

    /// Connects to a port of the box's loopback interface.
    pub async fn connect_port(&self, port: u16) -> Result<PortConnection> {
        match self.send_request(&Request::Dial { port }).await? {
            (stream, Reply::Done) => Ok(PortConnection::new(stream)),
            (_, other) => Err(unexpected_reply(&other)),
        }
    }

    fn file_request(&self, call: FileOperation) -> Request {
        let user = self.user.as_deref().map(str::to_owned);
        Request::File { user, call }
    }

    async fn entries(&self, call: FileOperation, limit: usize) -> Result<Page<Entry>> {
        let take = |reply| match reply {
            Reply::Entries { matches } => Ok(matches),
            other => Err(other),
        };
        self.results(call, limit, take).await
    }

    async fn results<T>(
        &self,
        call: FileOperation,
        limit: usize,
        take: impl Fn(Reply) -> std::result::Result<Vec<T>, Reply>,
    ) -> Result<Page<T>> {
        let mut stream = self.connect().await?;
        with_timeout(
            "search",
            ANSWER_TIMEOUT,
            wire::write_json(&mut stream, &self.file_request(call)),
        )
        .await?;
        let collect = async {
            let (mut found, mut left) = (Vec::new(), RESULT_BYTES);
            loop {
                let (reply, bytes) = sized_reply(&mut stream, SEARCH_TIMEOUT).await?;
                let Some(rest) = left.checked_sub(bytes) else {
                    return Err(Error::Agent("its answer exceeds the size limit of results".to_owned()));
                };
                left = rest;
                match take(reply) {
                    Ok(matches) if found.len() + matches.len() <= limit => found.extend(matches),
                    Ok(_) => return Err(Error::Agent("it returned more results than requested".to_owned())),
                    Err(Reply::Last { truncated }) => {
                        return Ok(Page {
                            matches: found,
                            truncated,
                        });
                    }
                    Err(other) => return Err(unexpected_reply(&other)),
                }
            }
        };
        timeout(SEARCH_TIMEOUT, collect)
            .await
            .map_err(|_| Error::TimedOut("search"))?
    }

    async fn request_done(&self, request: &Request) -> Result<()> {
        match self.send_request(request).await?.1 {
            Reply::Done => Ok(()),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn open_execution(&self, request: &Request) -> Result<Execution> {
        let (stream, reply) = self.send_request(request).await?;
        let Reply::Started { command_id, pid } = reply else {
            return Err(unexpected_reply(&reply));
        };
        Ok(Execution::new(command_id, pid, stream))
    }

    async fn send_request(&self, request: &Request) -> Result<(AgentStream, Reply)> {
        let mut stream = self.connect().await?;
        with_timeout("request", ANSWER_TIMEOUT, wire::write_json(&mut stream, request)).await?;
        let reply = read_reply(&mut stream, ANSWER_TIMEOUT).await?;
        Ok((stream, reply))
    }

    async fn connect(&self) -> Result<AgentStream> {
        let folder = match &self.location {
            AgentLocation::Folder(folder) => folder,
            AgentLocation::Node(dialer) => return dialer.dial().await.map(AgentStream::Remote),
        };
        let socket = SocketPath::in_folder(folder).map_err(|_| Error::NotRunning)?;
        match timeout(ANSWER_TIMEOUT, UnixStream::connect(&socket.path)).await {
            Ok(Ok(stream)) => Ok(AgentStream::Local(stream)),
            Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Err(Error::NotRunning)
            }
            Ok(Err(error)) => Err(Error::io("connecting to the agent of the sandbox")(error)),
            Err(_) => Err(Error::TimedOut("connecting to the agent of the sandbox")),
        }
    }
}

/// A path to the socket that is short enough for the kernel's limit of 107 bytes.
struct SocketPath {
    path: PathBuf,
    /// The path leads through it.
    _folder: Option<File>,
}

impl SocketPath {
    fn in_folder(folder: &Path) -> io::Result<Self> {
        let path = folder.join(SOCKET);
        if path.as_os_str().len() < 100 {
            return Ok(Self { path, _folder: None });
        }
        let folder = OpenOptions::new().read(true).open(folder)?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
        Ok(Self {
            path: format!("/proc/self/fd/{number}/{SOCKET}").into(),
            _folder: Some(folder),
        })
    }
}

async fn with_timeout<T>(what: &'static str, limit: Duration, work: impl Future<Output = io::Result<T>>) -> Result<T> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| Error::Agent(error.to_string())),
        Err(_) => Err(Error::TimedOut(what)),
    }
}

/// One reply, and nothing behind it.
async fn read_reply(stream: &mut AgentStream, limit: Duration) -> Result<Reply> {
    Ok(sized_reply(stream, limit).await?.0)
}

/// The same, and the bytes that it took.
async fn sized_reply(stream: &mut AgentStream, limit: Duration) -> Result<(Reply, usize)> {
    let frame = with_timeout("answer", limit, wire::read_frame(stream)).await?;
    let frame = frame.ok_or_else(|| Error::Agent("it closed the connection".to_owned()))?;
    match parse_reply(&frame)? {
        Reply::Failed { failure } => Err(failure.into_error()),
        other => Ok((other, frame.body.len())),
    }
}

fn parse_reply<T: DeserializeOwned>(frame: &Frame) -> Result<T> {
    frame.parse_json().map_err(|error| Error::Agent(error.to_string()))
}

fn unexpected_reply(_: &Reply) -> Error {
    Error::Agent("it sent an unexpected answer".to_owned())
}
