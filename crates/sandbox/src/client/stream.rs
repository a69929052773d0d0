//! Streams of the agent: a command, a file, a port.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{STALL, bounded, message, unexpected};
use crate::error::{Error, Result};
use crate::exec::{ExecEvent, PtySize};
use crate::file::FileStat;
use crate::wire::{self, CHUNK, Control, Frame, Frames, Kind, Reply};

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

impl Execution {
    pub(super) fn of(command_id: String, pid: i32, stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            command_id,
            pid,
            events: Events {
                frames: Frames::new(read),
                is_over: false,
            },
            input: Input(write),
        }
    }
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
    pub(super) fn of(stat: FileStat, start: u64, end: u64, stream: UnixStream) -> Self {
        Self {
            stat,
            start,
            end,
            left: end - start,
            frames: Frames::new(stream),
        }
    }

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

impl Connection {
    pub(super) const fn of(stream: UnixStream) -> Self {
        Self(stream)
    }
}

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
