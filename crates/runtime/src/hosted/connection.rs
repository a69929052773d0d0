//! One connection to a child: frames in both directions, told apart by their streams.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::sync::CancellationToken;

use super::frame::{self, Frame, Type};
use super::logs;
use super::message::{self, Log, Ping, Pong};

/// Longest frame of a child.
pub const MAX_FRAME_BYTES: usize = 256 << 20;
/// What is read at once.
const READ_BYTES: usize = 64 << 10;

/// A connection; cheap to clone.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    out: UnboundedSender<Bytes>,
    streams: Mutex<Streams>,
    health: Mutex<Health>,
    pinged: AtomicU64,
    closed: CancellationToken,
}

#[derive(Default)]
struct Streams {
    last: u32,
    open: HashMap<u32, UnboundedSender<Frame>>,
    over: bool,
}

/// What is known of a child from its answers to pings.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// When it was heard last.
    pub heard: Instant,
    /// How long its event loop has been blocked, as it said then.
    pub loop_lag: Duration,
    /// Its memory.
    pub rss_bytes: u64,
}

impl Connection {
    /// Starts reading and writing. Frames of stream 0 that are not about health or logs go to the receiver.
    pub fn start(socket: UnixStream) -> (Self, UnboundedReceiver<Frame>) {
        let (read, write) = socket.into_split();
        let (out, outgoing) = mpsc::unbounded_channel();
        let (control, controls) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            out,
            streams: Mutex::default(),
            health: Mutex::new(Health {
                heard: Instant::now(),
                loop_lag: Duration::ZERO,
                rss_bytes: 0,
            }),
            pinged: AtomicU64::new(0),
            closed: CancellationToken::new(),
        });
        tokio::spawn(write_all(write, outgoing, inner.closed.clone()));
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

    /// Opens a stream with its first frame; `None` when the connection is over.
    pub fn open(&self, r#type: Type, payload: &impl Serialize) -> Option<Stream> {
        let (to, frames) = mpsc::unbounded_channel();
        let id = {
            let mut streams = self.0.streams();
            if streams.over {
                return None;
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
        stream.send(r#type, payload);
        Some(stream)
    }

    /// Sends on stream 0.
    pub fn send(&self, r#type: Type, payload: &impl Serialize) {
        self.0.send(r#type, 0, payload);
    }

    /// Asks the child whether it lives.
    pub fn ping(&self) {
        let t = self.0.pinged.fetch_add(1, Ordering::Relaxed);
        self.send(Type::PING, &Ping { t });
    }

    /// What is known of the child.
    pub fn health(&self) -> Health {
        *self.0.health.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.0.streams().open.len()
    }
}

impl Inner {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        // Nothing between two fields can panic.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, r#type: Type, stream: u32, payload: &impl Serialize) {
        // A connection that is over is seen by who waits for an answer.
        let _ = self.out.send(frame::encode(r#type, stream, &message::write(payload)));
    }

    /// Every open stream ends.
    fn end(&self) {
        let mut streams = self.streams();
        streams.over = true;
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
            while let Some(frame) = frame::take(&mut buffer, MAX_FRAME_BYTES).map_err(|error| error.to_string())? {
                self.route(frame, control);
            }
        }
    }

    fn route(&self, frame: Frame, control: &UnboundedSender<Frame>) {
        if frame.stream != 0 {
            let mut streams = self.streams();
            let over = matches!(frame.r#type, Type::DONE | Type::ANSWER);
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
            Type::PONG => {
                if let Ok(pong) = message::read::<Pong>(&frame.payload) {
                    *self.health.lock().unwrap_or_else(PoisonError::into_inner) = Health {
                        heard: Instant::now(),
                        loop_lag: Duration::from_millis(pong.loop_lag_ms),
                        rss_bytes: pong.rss_bytes,
                    };
                }
            }
            Type::LOG => match message::read::<Log>(&frame.payload) {
                Ok(line) => logs::tell(&line),
                Err(error) => tracing::debug!(%error, "a log line of a graph host cannot be read"),
            },
            _ => {
                let _ = control.send(frame);
            }
        }
    }
}

async fn write_all(mut socket: OwnedWriteHalf, mut frames: UnboundedReceiver<Bytes>, closed: CancellationToken) {
    let mut batch = Vec::new();
    loop {
        let count = tokio::select! {
            count = frames.recv_many(&mut batch, 64) => count,
            () = closed.cancelled() => break,
        };
        if count == 0 {
            break;
        }
        // One write for what came together.
        let written = if let [one] = &batch[..] {
            socket.write_all(one).await
        } else {
            socket.write_all(&batch.concat()).await
        };
        batch.clear();
        if written.is_err() {
            closed.cancel();
            break;
        }
    }
}

/// One activity on a connection. Dropping it makes later frames of it be dropped.
pub struct Stream {
    connection: Connection,
    id: u32,
    frames: UnboundedReceiver<Frame>,
}

impl Stream {
    /// Sends on it.
    pub fn send(&self, r#type: Type, payload: &impl Serialize) {
        self.connection.0.send(r#type, self.id, payload);
    }

    /// Fills `frames` with what is there, at least one frame; zero when the connection is over, or the stream is.
    pub async fn next(&mut self, frames: &mut Vec<Frame>) -> usize {
        self.frames.recv_many(frames, 256).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.0.streams().open.remove(&self.id);
    }
}
