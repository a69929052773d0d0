//! Streams of the agent: a command, a file, a port.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::transport::{AgentReader, AgentStream, AgentWriter};
use super::{STALL_TIMEOUT, parse_reply, unexpected_reply, with_timeout};
use crate::error::{Error, Result};
use crate::exec::{ExecEvent, PtySize};
use crate::file::FileStat;
use crate::wire::{self, CHUNK_BYTES, CommandControl, Frame, FrameKind, Frames, Reply};

/// A command and its streams. Dropped, it detaches.
#[derive(Debug)]
pub struct Execution {
    pub command_id: String,
    /// Its process id in the box.
    pub pid: i32,
    /// What it does.
    pub events: ExecEvents,
    /// What it reads. Detaching drops both.
    pub input: ExecInput,
}

impl Execution {
    pub(super) fn new(command_id: String, pid: i32, stream: AgentStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            command_id,
            pid,
            events: ExecEvents {
                frames: Frames::new(read),
                is_finished: false,
            },
            input: ExecInput(write),
        }
    }
}

/// What a command does.
#[derive(Debug)]
pub struct ExecEvents {
    frames: Frames<AgentReader>,
    is_finished: bool,
}

impl ExecEvents {
    /// The next event; `None` after [`ExecEvent::Exit`]. Cancel-safe. An error means that the connection broke: attach
    /// again at the reached offsets.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>> {
        if self.is_finished {
            return Ok(None);
        }
        let frame = self.frames.next().await;
        let frame = frame.map_err(|error| Error::Agent(error.to_string()))?;
        let frame = frame.ok_or_else(|| Error::Agent("it closed the connection".to_owned()))?;
        match frame.kind {
            FrameKind::Stdout | FrameKind::Stderr => output_event(frame).map(Some),
            FrameKind::Json => match parse_reply(&frame)? {
                Reply::Exit { exit_code, timed_out } => {
                    self.is_finished = true;
                    Ok(Some(ExecEvent::Exit { exit_code, timed_out }))
                }
                Reply::Failed { failure } => Err(failure.into_error()),
                other => Err(unexpected_reply(&other)),
            },
            FrameKind::Data | FrameKind::End => Err(Error::Agent("bytes instead of an event".to_owned())),
        }
    }
}

fn output_event(frame: Frame) -> Result<ExecEvent> {
    let Frame { kind, body: mut data } = frame;
    if data.len() < 8 {
        return Err(Error::Agent("output without its offset".to_owned()));
    }
    let offset = data.get_u64();
    Ok(if kind == FrameKind::Stdout {
        ExecEvent::Stdout { offset, data }
    } else {
        ExecEvent::Stderr { offset, data }
    })
}

/// What a command reads.
#[derive(Debug)]
pub struct ExecInput(AgentWriter);

impl ExecInput {
    /// Sends bytes. Waits while the command reads nothing.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            self.send_frame(FrameKind::Data, chunk).await?;
        }
        Ok(())
    }

    /// Ends standard input.
    pub async fn close(&mut self) -> Result<()> {
        self.send_frame(FrameKind::End, &[]).await
    }

    /// Changes the size of its terminal.
    pub async fn resize(&mut self, size: PtySize) -> Result<()> {
        let sent = wire::write_json(&mut self.0, &CommandControl::Resize { size }).await;
        sent.map_err(|error| Error::Agent(error.to_string()))
    }

    async fn send_frame(&mut self, kind: FrameKind, body: &[u8]) -> Result<()> {
        let sent = wire::write_frame(&mut self.0, kind, [body, &[]]).await;
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
    /// The byte after the last one.
    pub end: u64,
    remaining: u64,
    frames: Frames<AgentStream>,
}

impl Download {
    pub(super) fn new(stat: FileStat, start: u64, end: u64, stream: AgentStream) -> Self {
        Self {
            stat,
            start,
            end,
            remaining: end - start,
            frames: Frames::new(stream),
        }
    }

    /// The next bytes; `None` after the last ones. A file that shrinks meanwhile is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let frame = with_timeout("download", STALL_TIMEOUT, self.frames.next()).await?;
        let frame = frame.ok_or_else(|| Error::Agent("the file ended before its last byte".to_owned()))?;
        let length = frame.body.len() as u64;
        if frame.kind != FrameKind::Data || length == 0 || length > self.remaining {
            return Err(Error::Agent("the file changed while it was read".to_owned()));
        }
        self.remaining -= length;
        Ok(Some(frame.body))
    }

    /// The rest at once; for files that are known to be small.
    pub async fn read_to_end(mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

/// A connection to a port in the box.
#[derive(Debug)]
pub struct PortConnection(AgentStream);

impl PortConnection {
    pub(super) const fn new(stream: AgentStream) -> Self {
        Self(stream)
    }
}

impl AsyncRead for PortConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PortConnection {
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
