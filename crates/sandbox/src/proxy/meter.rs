//! Counts what passes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a box did with its proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes from the box, those of TLS included.
    pub sent_bytes: u64,
    /// Bytes to the box.
    pub received_bytes: u64,
    /// Connections of the box.
    pub connections: u64,
    /// Requests and connections that were refused.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicU64,
    refused: AtomicU64,
}

impl Counters {
    pub(super) fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted since the last call.
    pub(super) fn take(&self) -> Traffic {
        Traffic {
            sent_bytes: self.sent.swap(0, Ordering::Relaxed),
            received_bytes: self.received.swap(0, Ordering::Relaxed),
            connections: self.connections.swap(0, Ordering::Relaxed),
            refused: self.refused.swap(0, Ordering::Relaxed),
        }
    }
}

/// Changes whenever bytes pass on a connection.
pub(super) type Activity = Arc<AtomicU64>;

/// Waits until no byte has passed for a whole `limit`.
pub(super) async fn until_idle(activity: &Activity, limit: Duration) {
    let mut seen = activity.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(limit).await;
        let now = activity.load(Ordering::Relaxed);
        if now == seen {
            return;
        }
        seen = now;
    }
}

/// The stream of a box.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    counters: Arc<Counters>,
    activity: Activity,
}

impl<S> Metered<S> {
    pub(super) const fn new(stream: S, counters: Arc<Counters>, activity: Activity) -> Self {
        Self {
            stream,
            counters,
            activity,
        }
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.activity.fetch_add(1, Ordering::Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.count(&self.counters.sent, bytes);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = &polled {
            self.count(&self.counters.received, *written);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
