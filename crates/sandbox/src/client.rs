//! The host's side of the agent in a box.
//!
//! What it answers was written by the box: lengths, counts and times are bounded, and texts are data.

mod stream;

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
use crate::exec::{CommandStatus, ExecRequest};
use crate::file::{ByteRange, Entry, FileStat, GlobRequest, GrepMatch, GrepRequest, Page};
use crate::wire::{self, CHUNK, FileCall, Frame, Kind, Reply, Request};
pub use stream::{Connection, Download, Events, Execution, Input};

/// The socket in the folder of a box's life.
pub(crate) const SOCKET: &str = "agent.sock";
/// Connecting and the first answer.
const ANSWER: Duration = Duration::from_secs(30);
/// A search over many files.
const SEARCH: Duration = Duration::from_secs(120);
/// A file that makes no progress.
const STALL: Duration = Duration::from_secs(60);
/// Results of one call.
const MOST: usize = 10_000;

/// The agent of a box. Cheap to clone; each call is a connection of its own.
#[derive(Clone, Debug)]
pub struct BoxAgent {
    folder: Arc<Path>,
    user: Option<Arc<str>>,
}

impl BoxAgent {
    /// The agent whose life has this folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            user: None,
        }
    }

    /// The same, whose file operations are those of another user of the box.
    #[must_use]
    pub fn as_user(self, user: &str) -> Self {
        Self {
            user: Some(user.into()),
            ..self
        }
    }

    /// Asks whether it answers.
    pub async fn hello(&self) -> Result<()> {
        match self.ask(&Request::Hello).await?.1 {
            Reply::Hello { version: wire::VERSION } => Ok(()),
            Reply::Hello { version } => Err(Error::Agent(format!(
                "it speaks version {version} of its protocol: stop the box and start it again"
            ))),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a command, or attaches to the one with this id from offset 0.
    pub async fn execute(&self, request: &ExecRequest) -> Result<Execution> {
        let command = request.clone();
        self.execution(&Request::Execute { command }).await
    }

    /// Attaches to a command that was started before.
    pub async fn attach(&self, command_id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Execution> {
        let request = Request::Attach {
            command_id: command_id.to_owned(),
            stdout_offset,
            stderr_offset,
        };
        self.execution(&request).await
    }

    /// Kills a command with all processes of its group and session. Does nothing to one that has ended.
    pub async fn kill(&self, command_id: &str) -> Result<()> {
        let command_id = command_id.to_owned();
        self.done(&Request::Kill { command_id }).await
    }

    /// Sends SIGTERM to every command.
    pub async fn terminate(&self) -> Result<()> {
        self.done(&Request::Terminate).await
    }

    /// The commands it knows.
    pub async fn commands(&self) -> Result<Vec<CommandStatus>> {
        match self.ask(&Request::Commands).await?.1 {
            Reply::Commands { commands } => Ok(commands),
            other => Err(unexpected(&other)),
        }
    }

    /// What is known of a file. Links are followed.
    pub async fn stat(&self, path: &str) -> Result<FileStat> {
        let call = FileCall::Stat { path: path.to_owned() };
        match self.ask(&self.file(call)).await?.1 {
            Reply::Stat { stat } => Ok(stat),
            other => Err(unexpected(&other)),
        }
    }

    /// What a directory holds, by name.
    pub async fn list(&self, path: &str, limit: usize) -> Result<Page<Entry>> {
        let limit = limit.min(MOST);
        let path = path.to_owned();
        self.entries(FileCall::List { path, limit }, limit).await
    }

    /// Reads a file or a part of it.
    pub async fn download(&self, path: &str, range: Option<ByteRange>) -> Result<Download> {
        let path = path.to_owned();
        let (stream, reply) = self.ask(&self.file(FileCall::Read { path, range })).await?;
        match reply {
            Reply::File { stat, start, end } if start <= end && end <= stat.size_bytes => {
                Ok(Download::of(stat, start, end, stream))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Writes a file as a whole, with the directories above it: readers see the old one or the new one. A reader that
    /// fails leaves the old one. Permission bits are those of the old file, or 0644.
    pub async fn upload(&self, path: &str, from: &mut (impl AsyncRead + Unpin + Send)) -> Result<FileStat> {
        let path = path.to_owned();
        let mut stream = self.connect().await?;
        let request = self.file(FileCall::Write { path, mode: None });
        bounded("upload", ANSWER, wire::write_json(&mut stream, &request)).await?;
        // An answer before the last byte is a failure.
        match reply(&mut stream, ANSWER).await? {
            Reply::Done => {}
            other => return Err(unexpected(&other)),
        }
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = from.read(&mut chunk).await.map_err(Error::io("reading the upload"))?;
            let sent = if count == 0 {
                bounded("upload", STALL, wire::write(&mut stream, Kind::End, [&[], &[]])).await
            } else {
                bounded(
                    "upload",
                    STALL,
                    wire::write(&mut stream, Kind::Data, [&chunk[..count], &[]]),
                )
                .await
            };
            if let Err(error) = sent {
                // The box may have said why before it closed the connection.
                return Err(match reply(&mut stream, ANSWER).await {
                    Err(said @ (Error::Denied(_) | Error::Invalid(_) | Error::NotFound(_))) => said,
                    _ => error,
                });
            }
            if count == 0 {
                break;
            }
        }
        match reply(&mut stream, STALL).await? {
            Reply::Stat { stat } => Ok(stat),
            other => Err(unexpected(&other)),
        }
    }

    /// Files by a pattern.
    pub async fn glob(&self, search: &GlobRequest) -> Result<Page<Entry>> {
        let mut search = search.clone();
        search.limit = search.limit.min(MOST);
        let limit = search.limit;
        self.entries(FileCall::Glob { search }, limit).await
    }

    /// Lines that contain a text.
    pub async fn grep(&self, search: &GrepRequest) -> Result<Page<GrepMatch>> {
        let mut search = search.clone();
        search.limit = search.limit.min(MOST);
        let limit = search.limit;
        let take = |reply| match reply {
            Reply::Lines { matches } => Ok(matches),
            other => Err(other),
        };
        self.results(FileCall::Grep { search }, limit, take).await
    }

    /// Connects to a port of the box's loopback interface.
    pub async fn dial(&self, port: u16) -> Result<Connection> {
        match self.ask(&Request::Dial { port }).await? {
            (stream, Reply::Done) => Ok(Connection::of(stream)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    fn file(&self, call: FileCall) -> Request {
        let user = self.user.as_deref().map(str::to_owned);
        Request::File { user, call }
    }

    async fn entries(&self, call: FileCall, limit: usize) -> Result<Page<Entry>> {
        let take = |reply| match reply {
            Reply::Entries { matches } => Ok(matches),
            other => Err(other),
        };
        self.results(call, limit, take).await
    }

    async fn results<T>(
        &self,
        call: FileCall,
        limit: usize,
        take: impl Fn(Reply) -> std::result::Result<Vec<T>, Reply>,
    ) -> Result<Page<T>> {
        let mut stream = self.connect().await?;
        bounded("search", ANSWER, wire::write_json(&mut stream, &self.file(call))).await?;
        let collect = async {
            let mut found = Vec::new();
            loop {
                match take(reply(&mut stream, SEARCH).await?) {
                    Ok(matches) if found.len() + matches.len() <= limit => found.extend(matches),
                    Ok(_) => return Err(Error::Agent("it answered more results than were asked for".to_owned())),
                    Err(Reply::Last { truncated }) => {
                        return Ok(Page {
                            matches: found,
                            truncated,
                        });
                    }
                    Err(other) => return Err(unexpected(&other)),
                }
            }
        };
        timeout(SEARCH, collect).await.map_err(|_| Error::TimedOut("search"))?
    }

    async fn done(&self, request: &Request) -> Result<()> {
        match self.ask(request).await?.1 {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn execution(&self, request: &Request) -> Result<Execution> {
        let (stream, reply) = self.ask(request).await?;
        let Reply::Started { command_id, pid } = reply else {
            return Err(unexpected(&reply));
        };
        Ok(Execution::of(command_id, pid, stream))
    }

    async fn ask(&self, request: &Request) -> Result<(UnixStream, Reply)> {
        let mut stream = self.connect().await?;
        bounded("request", ANSWER, wire::write_json(&mut stream, request)).await?;
        let reply = reply(&mut stream, ANSWER).await?;
        Ok((stream, reply))
    }

    async fn connect(&self) -> Result<UnixStream> {
        let socket = Socket::of(&self.folder).map_err(|_| Error::NotRunning)?;
        match timeout(ANSWER, UnixStream::connect(&socket.path)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Err(Error::NotRunning)
            }
            Ok(Err(error)) => Err(Error::io("connecting to the agent of the box")(error)),
            Err(_) => Err(Error::TimedOut("connecting to the agent of the box")),
        }
    }
}

/// A path to the socket that is short enough for the kernel, which takes 107 bytes.
struct Socket {
    path: PathBuf,
    /// The path leads through it.
    _folder: Option<File>,
}

impl Socket {
    fn of(folder: &Path) -> io::Result<Self> {
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

async fn bounded<T>(what: &'static str, limit: Duration, work: impl Future<Output = io::Result<T>>) -> Result<T> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| Error::Agent(error.to_string())),
        Err(_) => Err(Error::TimedOut(what)),
    }
}

/// One reply, and nothing behind it.
async fn reply(stream: &mut UnixStream, limit: Duration) -> Result<Reply> {
    let frame = bounded("answer", limit, wire::read(stream)).await?;
    let frame = frame.ok_or_else(|| Error::Agent("it closed the connection".to_owned()))?;
    match message(&frame)? {
        Reply::Failed { failure } => Err(failure.into_error()),
        other => Ok(other),
    }
}

fn message<T: DeserializeOwned>(frame: &Frame) -> Result<T> {
    frame.json().map_err(|error| Error::Agent(error.to_string()))
}

fn unexpected(_: &Reply) -> Error {
    Error::Agent("it gave an answer that does not belong to the question".to_owned())
}
