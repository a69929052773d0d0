//! A connection to a child: frames in both directions, multiplexed by stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::sync::CancellationToken;

use super::frame::{self, Frame, FrameError, FrameType};
use super::logs;
use super::message::{self, Log, Ping, Pong};

/// Longest frame of a child.
pub const MAX_FRAME_BYTES: usize = 256 << 20;
/// Size limit of a frame to a child: data saved in pieces are read at once.
pub const MAX_SENT_BYTES: usize = 1 << 30;
/// While this much is queued for writing, no more data are read for sending.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// What is longer is not copied to be written with others.
const LONG_BYTES: usize = 64 << 10;
/// What is read at once.
const READ_BYTES: usize = 64 << 10;

/// A connection; cheap to clone.
#[derive(Clone)]
pub struct Connection(Arc<ConnectionState>);

struct ConnectionState {
    out: UnboundedSender<Bytes>,
    queue: Queue,
    streams: Mutex<Streams>,
    health: Mutex<Health>,
    pinged: AtomicU64,
    closed: CancellationToken,
}

/// What waits to be written.
#[derive(Default)]
struct Queue {
    bytes: AtomicUsize,
    written: Notify,
}

/// Why a stream cannot be opened.
#[derive(Clone, Copy, Debug)]
pub enum OpenError {
    /// The connection is over.
    Closed,
    /// Its first frame is too long.
    TooLong(FrameError),
}

#[derive(Default)]
struct Streams {
    last: u32,
    open: HashMap<u32, UnboundedSender<Frame>>,
    closed: bool,
}

/// What is known of a child from its answers to pings.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// When it was heard last.
    pub last_pong: Instant,
    /// How long its event loop has been blocked, as it said then.
    pub loop_lag: Duration,
    /// Its memory.
    pub rss_bytes: u64,
    /// Threads at work for what is over.
    pub stray_threads: u64,
}

impl Connection {
    /// Starts reading and writing. Frames of stream 0 other than health and logs go to the receiver.
    pub fn start(socket: UnixStream) -> (Self, UnboundedReceiver<Frame>) {
        let (read, write) = socket.into_split();
        let (out, outgoing) = mpsc::unbounded_channel();
        let (control, controls) = mpsc::unbounded_channel();
        let inner = Arc::new(ConnectionState {
            out,
            queue: Queue::default(),
            streams: Mutex::default(),
            health: Mutex::new(Health {
                last_pong: Instant::now(),
                loop_lag: Duration::ZERO,
                rss_bytes: 0,
                stray_threads: 0,
            }),
            pinged: AtomicU64::new(0),
            closed: CancellationToken::new(),
        });
        tokio::spawn(write_all(write, outgoing, inner.clone()));
        tokio::spawn({
            let inner = inner.clone();
            async move {
                if let Err(why) = inner.read(read, &control).await {
                    tracing::debug!(error = %why, "a connection to a graph host ended");
                }
                inner.end();
            }
        });
        (Self(inner), controls)
    }

    /// Opens a stream with its first frame.
    pub fn open(&self, r#type: FrameType, payload: &impl Serialize) -> Result<Stream, OpenError> {
        let (to, frames) = mpsc::unbounded_channel();
        let id = {
            let mut streams = self.0.streams.lock();
            if streams.closed {
                return Err(OpenError::Closed);
            }
            loop {
                streams.last = streams.last.checked_add(1).unwrap_or(1);
                if !streams.open.contains_key(&streams.last) {
                    break;
                }
            }
            let id = streams.last;
            streams.open.insert(id, to);
            id
        };
        let stream = Stream {
            connection: self.clone(),
            id,
            frames,
        };
        stream.try_send(r#type, payload).map_err(OpenError::TooLong)?;
        Ok(stream)
    }

    /// Sends on stream 0.
    pub fn send(&self, r#type: FrameType, payload: &impl Serialize) {
        self.0.send(r#type, 0, payload);
    }

    /// Asks the child whether it lives.
    pub fn ping(&self) {
        let t = self.0.pinged.fetch_add(1, Ordering::Relaxed);
        self.send(FrameType::PING, &Ping { t });
    }

    /// What is known of the child.
    pub fn health(&self) -> Health {
        *self.0.health.lock()
    }

    /// Cancelled when the connection is over.
    pub fn closed(&self) -> CancellationToken {
        self.0.closed.clone()
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.0.end();
    }

    /// How many streams are open.
    pub fn streams(&self) -> usize {
        self.0.streams.lock().open.len()
    }
}

impl ConnectionState {
    fn send(&self, r#type: FrameType, stream: u32, payload: &impl Serialize) {
        if let Err(error) = self.try_send(r#type, stream, payload) {
            tracing::error!(%error, r#type = r#type.0, "a frame could not be sent to a graph host");
        }
    }

    fn try_send(&self, r#type: FrameType, stream: u32, payload: &impl Serialize) -> Result<(), FrameError> {
        let frame = frame::encode_map(r#type, stream, payload, MAX_SENT_BYTES)?;
        self.queue.bytes.fetch_add(frame.len(), Ordering::Relaxed);
        // A connection that is over is seen by who waits for an answer.
        let _ = self.out.send(frame);
        Ok(())
    }

    /// Every open stream ends.
    fn end(&self) {
        let mut streams = self.streams.lock();
        streams.closed = true;
        streams.open.clear();
        drop(streams);
        self.closed.cancel();
    }

    async fn read(&self, mut socket: OwnedReadHalf, control: &UnboundedSender<Frame>) -> Result<(), String> {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            buffer.reserve(READ_BYTES);
            let read = tokio::select! {
                read = socket.read_buf(&mut buffer) => read,
                () = self.closed.cancelled() => return Ok(()),
            };
            if read.map_err(|error| error.to_string())? == 0 {
                return Ok(());
            }
            while let Some(frame) =
                frame::parse_frame(&mut buffer, MAX_FRAME_BYTES).map_err(|error| error.to_string())?
            {
                self.route(frame, control);
            }
        }
    }

    fn route(&self, frame: Frame, control: &UnboundedSender<Frame>) {
        if frame.stream != 0 {
            let mut streams = self.streams.lock();
            let over = matches!(frame.r#type, FrameType::DONE | FrameType::ANSWER);
            let stream = frame.stream;
            if let Some(to) = streams.open.get(&stream) {
                // Who does not listen any more has dropped the stream.
                let _ = to.send(frame);
                if over {
                    streams.open.remove(&stream);
                }
            }
            return;
        }
        match frame.r#type {
            FrameType::PONG => {
                if let Ok(pong) = message::read::<Pong>(&frame.payload) {
                    *self.health.lock() = Health {
                        last_pong: Instant::now(),
                        loop_lag: Duration::from_millis(pong.loop_lag_ms),
                        rss_bytes: pong.rss_bytes,
                        stray_threads: pong.stray_threads,
                    };
                }
            }
            FrameType::LOG => match message::read::<Log>(&frame.payload) {
                Ok(line) => logs::forward_log(&line),
                Err(error) => tracing::debug!(%error, "a log line of a graph host cannot be read"),
            },
            _ => {
                let _ = control.send(frame);
            }
        }
    }
}

async fn write_all(mut socket: OwnedWriteHalf, mut frames: UnboundedReceiver<Bytes>, inner: Arc<ConnectionState>) {
    let closed = inner.closed.clone();
    let mut batch = Vec::new();
    loop {
        let count = tokio::select! {
            count = frames.recv_many(&mut batch, 64) => count,
            () = closed.cancelled() => break,
        };
        if count == 0 {
            break;
        }
        let bytes: usize = batch.iter().map(Bytes::len).sum();
        let written = tokio::select! {
            written = write(&mut socket, &batch, bytes) => written,
            () = closed.cancelled() => break,
        };
        batch.clear();
        inner.queue.bytes.fetch_sub(bytes, Ordering::Relaxed);
        inner.queue.written.notify_waiters();
        if written.is_err() {
            closed.cancel();
            break;
        }
    }
}

/// One write for what came together, unless that is long.
async fn write(socket: &mut OwnedWriteHalf, batch: &[Bytes], bytes: usize) -> std::io::Result<()> {
    if batch.len() > 1 && bytes <= LONG_BYTES {
        return socket.write_all(&batch.concat()).await;
    }
    for frame in batch {
        socket.write_all(frame).await?;
    }
    Ok(())
}

/// One stream of a connection. Once it is dropped, later frames for it are discarded.
pub struct Stream {
    connection: Connection,
    id: u32,
    frames: UnboundedReceiver<Frame>,
}

impl Stream {
    pub fn send(&self, r#type: FrameType, payload: &impl Serialize) {
        self.connection.0.send(r#type, self.id, payload);
    }

    /// As [`Stream::send`], of what may be long.
    pub fn try_send(&self, r#type: FrameType, payload: &impl Serialize) -> Result<(), FrameError> {
        self.connection.0.try_send(r#type, self.id, payload)
    }

    /// Backpressure: waits while too much is queued for the child, on any stream.
    pub async fn wait_writable(&self) {
        let ConnectionState { queue, closed, .. } = &*self.connection.0;
        loop {
            let written = queue.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            if queue.bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES || closed.is_cancelled() {
                return;
            }
            tokio::select! {
                () = written => {}
                () = closed.cancelled() => return,
            }
        }
    }

    /// Fills `frames` with the available frames, at least one; zero when the connection or the stream is over.
    pub async fn next(&mut self, frames: &mut Vec<Frame>) -> usize {
        self.frames.recv_many(frames, 256).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.0.streams.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::super::message::Bin;
    use super::*;

    #[tokio::test]
    async fn nothing_more_is_looked_up_for_a_child_that_does_not_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (connection, _control) = Connection::start(ours);
        let stream = connection.open(FrameType::RUN, &Bin::default()).unwrap();
        assert!(stream.wait_writable().now_or_never().is_some());
        let long = Bin(vec![0; MAX_QUEUED_BYTES + 1].into());
        stream.try_send(FrameType::REPLY, &long).unwrap();
        assert!(stream.wait_writable().now_or_never().is_none(), "so much waits");
        let reading = tokio::spawn(async move {
            let mut bytes = vec![0; 1 << 20];
            while theirs.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
        });
        stream.wait_writable().await;
        connection.close();
        assert!(stream.wait_writable().now_or_never().is_some());
        reading.await.unwrap();
    }
}
