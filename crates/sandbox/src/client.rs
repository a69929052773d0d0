//! The host's side of the agent in a box.
//!
//! What it answers was written by the box: lengths, counts and times are bounded, and texts are data.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::exec::{CommandStatus, ExecEvent, ExecRequest, PtySize};
use crate::file::{ByteRange, Entry, FileStat, GlobRequest, GrepMatch, GrepRequest, Page};
use crate::wire::{self, CHUNK, Control, FileCall, Frame, Frames, Kind, Reply, Request};

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
            Reply::File { stat, start, end } if start <= end && end <= stat.size_bytes => Ok(Download {
                stat,
                start,
                end,
                left: end - start,
                frames: Frames::new(stream),
            }),
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
            (stream, Reply::Done) => Ok(Connection(stream)),
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
        let (read, write) = stream.into_split();
        Ok(Execution {
            command_id,
            pid,
            events: Events {
                frames: Frames::new(read),
                is_over: false,
            },
            input: Input(write),
        })
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

/// A command and its streams. Dropped, it detaches.
#[derive(Debug)]
pub struct Execution {
    /// Its id.
    pub command_id: String,
    /// Its process id in the box.
    pub pid: i32,
    /// What it does.
    pub events: Events,
    /// What it reads. Detaching drops both.
    pub input: Input,
}

/// What a command does.
#[derive(Debug)]
pub struct Events {
    frames: Frames<OwnedReadHalf>,
    is_over: bool,
}

impl Events {
    /// The next event; None behind [`ExecEvent::Exit`]. May be dropped at any time and loses nothing. An error says that
    /// the connection broke: attach again at the offsets that were reached.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>> {
        if self.is_over {
            return Ok(None);
        }
        let frame = self.frames.next().await;
        let frame = frame.map_err(|error| Error::Agent(error.to_string()))?;
        let frame = frame.ok_or_else(|| Error::Agent("it closed the connection".to_owned()))?;
        match frame.kind {
            Kind::Stdout | Kind::Stderr => output(frame).map(Some),
            Kind::Json => match message(&frame)? {
                Reply::Exit { exit_code, timed_out } => {
                    self.is_over = true;
                    Ok(Some(ExecEvent::Exit { exit_code, timed_out }))
                }
                Reply::Failed { failure } => Err(failure.into_error()),
                other => Err(unexpected(&other)),
            },
            Kind::Data | Kind::End => Err(Error::Agent("bytes in place of an event".to_owned())),
        }
    }
}

fn output(frame: Frame) -> Result<ExecEvent> {
    let Frame { kind, body: mut data } = frame;
    if data.len() < 8 {
        return Err(Error::Agent("output without its offset".to_owned()));
    }
    let offset = data.get_u64();
    Ok(if kind == Kind::Stdout {
        ExecEvent::Stdout { offset, data }
    } else {
        ExecEvent::Stderr { offset, data }
    })
}

/// What a command reads.
#[derive(Debug)]
pub struct Input(OwnedWriteHalf);

impl Input {
    /// Sends bytes. Waits while the command reads nothing.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for chunk in bytes.chunks(CHUNK) {
            self.frame(Kind::Data, chunk).await?;
        }
        Ok(())
    }

    /// Ends standard input.
    pub async fn close(&mut self) -> Result<()> {
        self.frame(Kind::End, &[]).await
    }

    /// Changes the size of its terminal.
    pub async fn resize(&mut self, size: PtySize) -> Result<()> {
        let sent = wire::write_json(&mut self.0, &Control::Resize { size }).await;
        sent.map_err(|error| Error::Agent(error.to_string()))
    }

    async fn frame(&mut self, kind: Kind, body: &[u8]) -> Result<()> {
        let sent = wire::write(&mut self.0, kind, [body, &[]]).await;
        sent.map_err(|error| Error::Agent(error.to_string()))
    }
}

/// A file on its way out of the box.
#[derive(Debug)]
pub struct Download {
    /// The file, as it was when it was opened.
    pub stat: FileStat,
    /// The first byte.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
    left: u64,
    frames: Frames<UnixStream>,
}

impl Download {
    /// The next bytes; None behind the last one. A file that became shorter meanwhile is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let frame = bounded("download", STALL, self.frames.next()).await?;
        let frame = frame.ok_or_else(|| Error::Agent("the file ended before its last byte".to_owned()))?;
        let length = frame.body.len() as u64;
        if frame.kind != Kind::Data || length == 0 || length > self.left {
            return Err(Error::Agent("the file changed while it was read".to_owned()));
        }
        self.left -= length;
        Ok(Some(frame.body))
    }

    /// The rest at once; for files that are known to be small.
    pub async fn bytes(mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

/// A connection to a port in the box.
#[derive(Debug)]
pub struct Connection(UnixStream);

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
