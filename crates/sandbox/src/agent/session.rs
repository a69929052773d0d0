//! A command, its output, and who listens.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::AgentSetup;
use super::ring::OutputBuffer;
use super::spawn::{self, SpawnedCommand};
use super::utf8_text::Utf8Decoder;
use crate::exec::{CommandStatus, ExecRequest, OutputTail, PtySize};
use crate::wire::Failure;

/// How long a command without clients is blocked by a full buffer. After that, the oldest output is dropped.
const MAX_HOLD: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 64 << 10;
/// Limit of data read from a pipe after the command has ended: more than a pipe holds, but not the endless output of a
/// child.
const MAX_DRAIN_BYTES: usize = 1 << 20;
/// Inputs that wait for the command.
const INPUT_QUEUE_CAPACITY: usize = 16;

type Descriptor = Arc<AsyncFd<OwnedFd>>;

/// A command.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) request: ExecRequest,
    pid: i32,
    pub(super) state: Mutex<SessionState>,
    /// Raised at every change of the state.
    pub(super) version: watch::Sender<u64>,
    /// A client came or went, or the command ended.
    pub(super) lifecycle_change: Notify,
    input: Mutex<Option<mpsc::Sender<Bytes>>>,
    terminal: Option<Descriptor>,
    started_at: Instant,
}

#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) output: [OutputBuffer; 2],
    /// Streams that may still bring output.
    pub(super) open_streams: usize,
    pub(super) exit_code: Option<i32>,
    pub(super) timed_out: bool,
    pub(super) ended_at: Option<Instant>,
    pub(super) clients: usize,
    pub(super) next_client: u64,
    /// What each client was sent.
    pub(super) sent: HashMap<u64, [u64; 2]>,
    /// The most that any client was sent.
    pub(super) max_sent: [u64; 2],
    pub(super) detached_at: Instant,
    pub(super) is_forgotten: bool,
}

impl Session {
    pub(super) fn start(setup: &AgentSetup, request: &ExecRequest) -> Result<Arc<Self>, Failure> {
        let spawned = spawn::spawn_command(setup, request)?;
        let pid = spawned.pid;
        Self::from_spawned(spawned, request).map_err(|error| {
            // Without its streams no one would hear of it.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            Failure::new(
                crate::wire::FailureKind::Other,
                format!("streams of the command: {error}"),
            )
        })
    }

    fn from_spawned(spawned: SpawnedCommand, request: &ExecRequest) -> io::Result<Arc<Self>> {
        let terminal = spawned.terminal.map(async_descriptor).transpose()?;
        let input = spawned
            .input
            .map(async_descriptor)
            .transpose()?
            .or_else(|| terminal.clone());
        let output = match &terminal {
            Some(terminal) => vec![terminal.clone()],
            None => spawned
                .output
                .into_iter()
                .map(async_descriptor)
                .collect::<io::Result<_>>()?,
        };
        let (send, receive) = mpsc::channel(INPUT_QUEUE_CAPACITY);
        let now = Instant::now();
        let session = Arc::new(Self {
            request: ExecRequest {
                // Known to the process alone.
                env: std::collections::BTreeMap::new(),
                command: String::new(),
                ..request.clone()
            },
            pid: spawned.pid,
            state: Mutex::new(SessionState {
                output: [OutputBuffer::default(), OutputBuffer::default()],
                open_streams: output.len(),
                exit_code: None,
                timed_out: false,
                ended_at: None,
                clients: 0,
                next_client: 0,
                sent: HashMap::new(),
                max_sent: [0, 0],
                detached_at: now,
                is_forgotten: false,
            }),
            version: watch::Sender::new(0),
            lifecycle_change: Notify::new(),
            input: Mutex::new(input.is_some().then_some(send)),
            terminal,
            started_at: now,
        });
        if let Some(input) = input {
            tokio::spawn(write_inputs(input, receive));
        }
        for (stream, descriptor) in output.into_iter().enumerate() {
            tokio::spawn(session.clone().copy_output(stream, descriptor));
        }
        Ok(session)
    }

    pub(super) fn id(&self) -> &str {
        &self.request.command_id
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it is this process, which has not been reaped before.
    pub(super) fn has_pid(&self, pid: i32) -> bool {
        self.pid == pid && self.state.lock().exit_code.is_none()
    }

    pub(super) fn ended_at(&self) -> Option<Instant> {
        self.state.lock().ended_at
    }

    pub(super) fn status(&self) -> CommandStatus {
        CommandStatus {
            command_id: self.request.command_id.clone(),
            pid: self.pid,
            exit_code: self.state.lock().exit_code,
            age_seconds: self.started_at.elapsed().as_secs(),
        }
    }

    /// What it said last.
    pub(super) fn tail(&self, most: usize) -> OutputTail {
        let state = self.state.lock();
        let [(stdout_offset, stdout), (stderr_offset, stderr)] = [0_usize, 1].map(|stream| {
            let ring: &OutputBuffer = &state.output[stream];
            let (place, bytes) = ring.last(most);
            (place, String::from_utf8_lossy(&bytes).into_owned())
        });
        OutputTail {
            stdout_offset,
            stdout,
            stderr_offset,
            stderr,
            exit_code: state.exit_code.filter(|_| state.open_streams == 0),
            timed_out: state.timed_out,
        }
    }

    /// Its process has ended.
    pub(super) fn mark_ended(&self, exit_code: i32) {
        let mut state = self.state.lock();
        state.exit_code = Some(exit_code);
        state.ended_at = Some(Instant::now());
        drop(state);
        *self.input.lock() = None;
        self.notify_change();
        self.lifecycle_change.notify_one();
    }

    /// Sends a signal to its group; not after its end, when the number may be reused.
    pub(super) fn send_signal(&self, signal: Signal) {
        if self.state.lock().exit_code.is_none() {
            let pid = Pid::from_raw(self.pid);
            // In a terminal it makes its group only after it has begun.
            let _ = killpg(pid, signal).or_else(|_| kill(pid, signal));
        }
    }

    /// Gives it input. Waits while it reads nothing.
    pub(super) async fn write(&self, bytes: Bytes) {
        let input = self.input.lock().clone();
        if let Some(input) = input {
            // It has ended, or closed its input.
            let _ = input.send(bytes).await;
        }
    }

    /// Ends its input. A terminal has none that could end.
    pub(super) fn close_input(&self) {
        if self.terminal.is_none() {
            *self.input.lock() = None;
        }
    }

    pub(super) fn resize(&self, size: PtySize) {
        if let Some(terminal) = &self.terminal {
            let _ = spawn::resize_terminal(terminal.get_ref(), size);
        }
    }

    /// Kills it at its time limit, and returns when its record may be dropped.
    pub(super) async fn enforce_limits(&self) {
        loop {
            let deadline = self.deadline();
            tokio::select! {
                () = self.lifecycle_change.notified() => {
                    if self.state.lock().is_forgotten {
                        return;
                    }
                    continue;
                }
                () = wait_until(deadline) => {}
            }
            if self.state.lock().ended_at.is_some() {
                return;
            }
            let is_over = self.time_limit().is_some_and(|limit| Instant::now() >= limit);
            if is_over {
                self.state.lock().timed_out = true;
            }
            self.send_signal(Signal::SIGKILL);
            // The end comes from the reaper.
            self.lifecycle_change.notified().await;
        }
    }

    /// It is known no more.
    pub(super) fn mark_forgotten(&self) {
        self.state.lock().is_forgotten = true;
        self.lifecycle_change.notify_one();
    }

    fn time_limit(&self) -> Option<Instant> {
        deadline_after(self.started_at, self.request.timeout_seconds)
    }

    fn deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        if let Some(ended) = state.ended_at {
            let kept = u64::try_from(self.request.ttl_seconds).ok()?;
            return ended.checked_add(Duration::from_secs(kept));
        }
        let idle = if state.clients == 0 {
            deadline_after(state.detached_at, self.request.idle_timeout_seconds)
        } else {
            None
        };
        [self.time_limit(), idle].into_iter().flatten().min()
    }

    /// Carries a stream into the buffer.
    async fn copy_output(self: Arc<Self>, stream: usize, descriptor: Descriptor) {
        let (mut text, mut buffer) = (Utf8Decoder::default(), vec![0; READ_BYTES]);
        let mut version = self.version.subscribe();
        let mut rest = None;
        let is_at_end = loop {
            self.wait_for_room(stream).await;
            let read = match &mut rest {
                Some(0) => break false,
                Some(left) => {
                    let most = READ_BYTES.min(*left);
                    let read = rustix::io::read(descriptor.get_ref(), &mut buffer[..most]);
                    *left -= *read.as_ref().unwrap_or(&0);
                    match read {
                        Err(rustix::io::Errno::AGAIN) => break false,
                        other => other.unwrap_or(0),
                    }
                }
                None => {
                    let read = descriptor.async_io(Interest::READABLE, |descriptor| {
                        Ok(rustix::io::read(descriptor, &mut buffer[..])?)
                    });
                    tokio::select! {
                        biased;
                        () = self.wait_exit(&mut version) => {
                            rest = Some(MAX_DRAIN_BYTES);
                            continue;
                        }
                        // A terminal that no one has open is an error.
                        read = read => read.unwrap_or(0),
                    }
                }
            };
            if read == 0 {
                break true;
            }
            let text = text.decode(&buffer[..read]);
            self.state.lock().output[stream].push(&text);
            self.notify_change();
        };
        {
            let mut state = self.state.lock();
            state.output[stream].push(&text.finish());
            state.open_streams -= 1;
        }
        self.notify_change();
        // Children that outlive the command write into nothing, and are not killed for it.
        let mut is_at_end = is_at_end;
        while !is_at_end {
            let read = descriptor.async_io(Interest::READABLE, |descriptor| {
                Ok(rustix::io::read(descriptor, &mut buffer[..])?)
            });
            is_at_end = read.await.unwrap_or(0) == 0;
        }
    }

    async fn wait_exit(&self, version: &mut watch::Receiver<u64>) {
        loop {
            version.borrow_and_update();
            if self.state.lock().exit_code.is_some() {
                return;
            }
            // The sender is our own.
            let _ = version.changed().await;
        }
    }

    /// Waits until output can be added without loss, or nothing waits for it any more.
    async fn wait_for_room(&self, stream: usize) {
        let mut version = self.version.subscribe();
        loop {
            version.borrow_and_update();
            {
                let state = self.state.lock();
                // Replacements take three bytes for one.
                if state.output[stream].has_room(3 * READ_BYTES, state.max_sent[stream]) {
                    return;
                }
                if state.clients == 0 && state.detached_at.elapsed() >= MAX_HOLD {
                    return;
                }
            }
            let _ = timeout(MAX_HOLD, version.changed()).await;
        }
    }

    pub(super) fn notify_change(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

/// Carries input into a command until either ends.
async fn write_inputs(descriptor: Descriptor, mut inputs: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = inputs.recv().await {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = descriptor.async_io(Interest::WRITABLE, |descriptor| {
                Ok(rustix::io::write(descriptor, rest)?)
            });
            let written = written.await;
            match written {
                Ok(0) | Err(_) => return,
                Ok(count) => rest = &rest[count..],
            }
        }
    }
}

fn async_descriptor(file: OwnedFd) -> io::Result<Descriptor> {
    rustix::io::ioctl_fionbio(&file, true)?;
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe, and an owned descriptor meets what it asks"
    )]
    let descriptor = AsyncFd::new(file)?;
    Ok(Arc::new(descriptor))
}

fn deadline_after(begin: Instant, seconds: u64) -> Option<Instant> {
    if seconds == 0 {
        return None;
    }
    begin.checked_add(Duration::from_secs(seconds))
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
