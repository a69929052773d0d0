//! Frames between the host and the agent of a box: length of the body (4 bytes, big endian), kind (1 byte), body.
//!
//! A connection carries one [`Request`] and its data. Neither side trusts lengths, which are bounded by
//! [`MAX_FRAME_BYTES`].

use std::io::{self, Read, Write};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::error::Error;
use crate::exec::{CommandStatus, ExecRequest, OutputTail, PtySize};
use crate::file::{ByteRange, Entry, FileStat, GlobRequest, GrepMatch, GrepRequest};

/// A longer body breaks the connection.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
/// Bytes of a file or of output in a frame.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of each stream in a [`Reply::Tail`]. JSON may need six bytes for one, so that two streams just fit into a
/// frame.
pub(crate) const TAIL_BYTES: usize = 64 << 10;
/// The answer to [`Request::Hello`]: an agent of another version may outlive an upgrade.
pub(crate) const VERSION: u32 = 1;
const HEADER_BYTES: usize = 5;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// A request, a reply or a control of a command, as JSON.
    Json = 0,
    /// Offset (8 bytes, big endian) and output.
    Stdout = 1,
    /// The same of standard error.
    Stderr = 2,
    /// Bytes of a file or of standard input.
    Data = 3,
    /// No more bytes follow.
    End = 4,
}

impl FrameKind {
    fn from_byte(byte: u8) -> io::Result<Self> {
        Ok(match byte {
            0 => Self::Json,
            1 => Self::Stdout,
            2 => Self::Stderr,
            3 => Self::Data,
            4 => Self::End,
            _ => return Err(invalid_data("a frame of an unknown kind")),
        })
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) body: Bytes,
}

impl Frame {
    pub(crate) fn parse_json<T: DeserializeOwned>(&self) -> io::Result<T> {
        if self.kind != FrameKind::Json {
            return Err(invalid_data("bytes instead of a message"));
        }
        serde_json::from_slice(&self.body).map_err(|error| invalid_data(&error.to_string()))
    }
}

/// The first frame of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    Hello,
    Execute {
        command: ExecRequest,
    },
    Attach {
        command_id: String,
        stdout_offset: u64,
        stderr_offset: u64,
    },
    Kill {
        command_id: String,
    },
    Commands,
    /// Read the end of a command's output without attaching to it.
    Tail {
        command_id: String,
        most: usize,
    },
    Dial {
        port: u16,
    },
    /// Hand out the listening socket of the proxy, behind [`Reply::Done`].
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "the only driver needs Linux"))]
    Proxy,
    File {
        user: Option<String>,
        call: FileOperation,
    },
    /// SIGTERM to every command.
    Terminate,
}

/// An operation on files, performed by a process of the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(crate) enum FileOperation {
    Stat { path: String },
    List { path: String, limit: usize },
    Read { path: String, range: Option<ByteRange> },
    Write { path: String, mode: Option<u32> },
    Glob { search: GlobRequest },
    Grep { search: GrepRequest },
}

/// What a client sends to its command, besides bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "control", rename_all = "snake_case")]
pub(crate) enum CommandControl {
    Resize { size: PtySize },
}

/// What the agent answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    Hello {
        version: u32,
    },
    Done,
    Started {
        command_id: String,
        pid: i32,
    },
    Exit {
        exit_code: i32,
        timed_out: bool,
    },
    Commands {
        commands: Vec<CommandStatus>,
    },
    Tail {
        tail: OutputTail,
    },
    Stat {
        stat: FileStat,
    },
    /// The bytes from `start` up to `end` follow.
    File {
        stat: FileStat,
        start: u64,
        end: u64,
    },
    /// Some results; more may follow.
    Entries {
        matches: Vec<Entry>,
    },
    Lines {
        matches: Vec<GrepMatch>,
    },
    /// The end of the results.
    Last {
        truncated: bool,
    },
    Failed {
        failure: Failure,
    },
}

/// An [`Error`] on its way to the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    /// A port or a size, by the kind.
    #[serde(default)]
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    Invalid,
    Unsupported,
    NotFound,
    IsDirectory,
    Denied,
    Range,
    Refused,
    Busy,
    Other,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            number: 0,
        }
    }

    /// The error, with a bounded text: the box wrote it.
    pub(crate) fn into_error(self) -> Error {
        let message: String = self.message.chars().take(2000).collect();
        match self.kind {
            FailureKind::Invalid => Error::Invalid(message),
            FailureKind::Unsupported => Error::Unsupported(message),
            FailureKind::NotFound => Error::NotFound(message),
            FailureKind::IsDirectory => Error::IsDirectory(message),
            FailureKind::Denied => Error::Denied(message),
            FailureKind::Range => Error::Range { size: self.number },
            FailureKind::Refused => Error::Refused(u16::try_from(self.number).unwrap_or_default()),
            FailureKind::Busy => Error::Busy(message),
            FailureKind::Other => Error::Agent(message),
        }
    }
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn encode_header(kind: FrameKind, length: usize) -> io::Result<[u8; HEADER_BYTES]> {
    if length > MAX_FRAME_BYTES {
        return Err(invalid_data("a message exceeds the frame size limit"));
    }
    let length = u32::try_from(length).map_err(|_| invalid_data("a message exceeds the frame size limit"))?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok([a, b, c, d, kind as u8])
}

fn decode_header(header: [u8; HEADER_BYTES]) -> io::Result<(FrameKind, usize)> {
    let [a, b, c, d, kind] = header;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MAX_FRAME_BYTES {
        return Err(invalid_data("a frame exceeds the size limit"));
    }
    Ok((FrameKind::from_byte(kind)?, length))
}

pub(crate) async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    parts: [&[u8]; 2],
) -> io::Result<()> {
    let [first, second] = parts;
    let mut head = BytesMut::with_capacity(HEADER_BYTES + first.len());
    head.put_slice(&encode_header(kind, first.len() + second.len())?);
    head.put_slice(first);
    to.write_all(&head).await?;
    to.write_all(second).await
}

/// Writes a message.
pub(crate) async fn write_json(to: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    write_frame(to, FrameKind::Json, [&body, &[]]).await
}

/// Reads exactly one frame. `None` at the end of the stream.
pub(crate) async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER_BYTES];
    match from.read_exact(&mut header).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    let (kind, length) = decode_header(header)?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(Some(Frame {
        kind,
        body: body.into(),
    }))
}

/// Writes a frame; for processes without a runtime.
pub(crate) fn write_frame_blocking(to: &mut impl Write, kind: FrameKind, body: &[u8]) -> io::Result<()> {
    to.write_all(&encode_header(kind, body.len())?)?;
    to.write_all(body)
}

/// Writes a message; for processes without a runtime.
pub(crate) fn write_json_blocking(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    write_frame_blocking(to, FrameKind::Json, &serde_json::to_vec(message)?)
}

/// Reads exactly one frame; for processes without a runtime.
pub(crate) fn read_frame_blocking(from: &mut impl Read) -> io::Result<Frame> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    let (kind, length) = decode_header(header)?;
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Frame {
        kind,
        body: body.into(),
    })
}

/// Frames of a connection. [`next`](Self::next) is cancel-safe.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    from: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            buffer: BytesMut::new(),
        }
    }

    /// The next frame. None at the end of the stream.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(CHUNK_BYTES);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                let is_whole = self.buffer.is_empty();
                return if is_whole {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    fn take_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (kind, length) = decode_header(*header)?;
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let body = self.buffer.split_to(length).freeze();
        Ok(Some(Frame { kind, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_arrive_as_they_were_sent() {
        let (mut to, from) = tokio::io::duplex(64);
        let sender = tokio::spawn(async move {
            write_frame(&mut to, FrameKind::Stdout, [&7_u64.to_be_bytes(), b"text"])
                .await
                .unwrap();
            write_json(&mut to, &Reply::Done).await.unwrap();
            write_frame(&mut to, FrameKind::Data, [&vec![1; CHUNK_BYTES], &[]])
                .await
                .unwrap();
        });
        let mut frames = Frames::new(from);
        let output = frames.next().await.unwrap().unwrap();
        assert_eq!((output.kind, &output.body[8..]), (FrameKind::Stdout, &b"text"[..]));
        let reply: Reply = frames.next().await.unwrap().unwrap().parse_json().unwrap();
        assert!(matches!(reply, Reply::Done));
        assert_eq!(frames.next().await.unwrap().unwrap().body.len(), CHUNK_BYTES);
        assert_eq!(frames.next().await.unwrap(), None);
        sender.await.unwrap();
    }

    #[tokio::test]
    async fn lengths_and_kinds_are_not_believed() {
        for bytes in [&[255, 255, 255, 255, 0][..], &[0, 0, 0, 0, 9], &[0, 0, 0, 2, 0, 1]] {
            let mut frames = Frames::new(bytes);
            assert!(frames.next().await.is_err(), "{bytes:?}");
        }
        assert!(encode_header(FrameKind::Data, MAX_FRAME_BYTES + 1).is_err());
    }
}
