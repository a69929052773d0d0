//! Connections to agents: the socket on this machine, or a connection through the node that has the box.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::error::Result;

/// Connects to the agent of a box on another machine.
#[async_trait]
pub trait AgentDialer: Send + Sync + std::fmt::Debug {
    /// A connection whose other end is the socket of the agent.
    async fn dial(&self) -> Result<TcpStream>;
}

#[derive(Debug)]
pub(crate) enum AgentStream {
    Local(UnixStream),
    Remote(TcpStream),
}

#[derive(Debug)]
pub(super) enum AgentReader {
    Local(unix::OwnedReadHalf),
    Remote(tcp::OwnedReadHalf),
}

/// Dropped, it ends the direction to the agent.
#[derive(Debug)]
pub(super) enum AgentWriter {
    Local(unix::OwnedWriteHalf),
    Remote(tcp::OwnedWriteHalf),
}

impl AgentStream {
    pub(super) fn into_split(self) -> (AgentReader, AgentWriter) {
        match self {
            Self::Local(stream) => {
                let (reader, writer) = stream.into_split();
                (AgentReader::Local(reader), AgentWriter::Local(writer))
            }
            Self::Remote(stream) => {
                let (reader, writer) = stream.into_split();
                (AgentReader::Remote(reader), AgentWriter::Remote(writer))
            }
        }
    }
}

macro_rules! read_both {
    ($name:ident) => {
        impl AsyncRead for $name {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Local(stream) => Pin::new(stream).poll_read(cx, buffer),
                    Self::Remote(stream) => Pin::new(stream).poll_read(cx, buffer),
                }
            }
        }
    };
}

macro_rules! write_both {
    ($name:ident) => {
        impl AsyncWrite for $name {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Local(stream) => Pin::new(stream).poll_write(cx, bytes),
                    Self::Remote(stream) => Pin::new(stream).poll_write(cx, bytes),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Local(stream) => Pin::new(stream).poll_flush(cx),
                    Self::Remote(stream) => Pin::new(stream).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Local(stream) => Pin::new(stream).poll_shutdown(cx),
                    Self::Remote(stream) => Pin::new(stream).poll_shutdown(cx),
                }
            }
        }
    };
}

read_both!(AgentStream);
read_both!(AgentReader);
write_both!(AgentStream);
write_both!(AgentWriter);
