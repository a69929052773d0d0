//! A connection whose other side must keep reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::idle_timer::IdleTimer;

/// A client that does not take a byte of its answer for so long is let go.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Breaks a connection off when a write makes no progress for so long, or hardly any: a client that asks and does not read
/// would hold the answer, and its place among the connections, for ever.
pub(super) struct WriteTimeout<S> {
    stream: S,
    timer: IdleTimer,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            timer: IdleTimer::new(patience),
        }
    }

    /// Passes on what a write said, unless it has been saying "not yet" for too long.
    fn check_progress<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = &written {
            self.timer.record_progress(done.as_ref().map_or(0, bytes));
            return written;
        }
        ready!(self.timer.poll_expired(context));
        let text = "the client does not read its answer";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, from);
        self.check_progress(written, |bytes| *bytes, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        self.check_progress(written, |bytes| *bytes, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check_progress(flushed, |()| 0, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_progress(shut, |()| 0, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_is_let_go_and_a_slow_one_is_not() {
        let (mut theirs, ours) = tokio::io::duplex(16 << 10);
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(60));
        let slow = async {
            let mut bytes = [0; 8 << 10];
            for _ in 0..16 {
                tokio::time::sleep(Duration::from_secs(6)).await;
                theirs.read_exact(&mut bytes).await.unwrap();
            }
            theirs
        };
        let answer = vec![1; 128 << 10];
        let (written, theirs) = tokio::join!(ours.write_all(&answer), slow);
        written.unwrap();

        let stopped = ours.write_all(&answer).await.unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_of_a_byte_now_and_then_is_let_go() {
        let (mut theirs, ours) = tokio::io::duplex(16);
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(60));
        let trickle = async {
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                theirs.read_u8().await.unwrap();
            }
        };
        let answer = [1; 1000];
        tokio::select! {
            written = ours.write_all(&answer) => {
                assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
            }
            () = trickle => panic!("the connection is held for more than an hour"),
        }
    }
}
