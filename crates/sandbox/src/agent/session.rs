//! A command, its output, and who listens.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::Setup;
use super::ring::Ring;
use super::spawn::{self, Spawned};
use super::text::Text;
use crate::exec::{CommandStatus, ExecRequest, PtySize};
use crate::wire::Failure;

/// How long a command without clients is held at a full buffer. Behind it, the oldest output gives way.
const HOLD: Duration = Duration::from_secs(60);
const READ: usize = 64 << 10;
/// What is read of a pipe after the command has ended: more than a pipe holds, and not what a child writes for ever.
const REST: usize = 1 << 20;
/// Inputs that wait for the command.
const INPUTS: usize = 16;

type Descriptor = Arc<AsyncFd<OwnedFd>>;

/// A command.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) request: ExecRequest,
    pid: i32,
    state: Mutex<State>,
    /// Raised at every change of the state.
    pub(super) version: watch::Sender<u64>,
    /// A client came or went, or the command ended.
    pub(super) life: Notify,
    input: Mutex<Option<mpsc::Sender<Bytes>>>,
    terminal: Option<Descriptor>,
    began: Instant,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) output: [Ring; 2],
    /// Streams that may still bring output.
    pub(super) open: usize,
    pub(super) exit_code: Option<i32>,
    pub(super) timed_out: bool,
    pub(super) ended_at: Option<Instant>,
    pub(super) clients: usize,
    pub(super) next_client: u64,
    /// What each client was sent.
    pub(super) sent: HashMap<u64, [u64; 2]>,
    /// The most that any client was sent.
    pub(super) most_sent: [u64; 2],
    pub(super) detached_at: Instant,
    pub(super) is_forgotten: bool,
}

impl Session {
    pub(super) fn start(setup: &Setup, request: &ExecRequest) -> Result<Arc<Self>, Failure> {
        let spawned = spawn::command(setup, request)?;
        let pid = spawned.pid;
        Self::of(spawned, request).map_err(|error| {
            // Without its streams nobody would hear of it.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            Failure::new(
                crate::wire::FailureKind::Other,
                format!("streams of the command: {error}"),
            )
        })
    }

    fn of(spawned: Spawned, request: &ExecRequest) -> io::Result<Arc<Self>> {
        let terminal = spawned.terminal.map(descriptor).transpose()?;
        let input = spawned.input.map(descriptor).transpose()?.or_else(|| terminal.clone());
        let output = match &terminal {
            Some(terminal) => vec![terminal.clone()],
            None => spawned.output.into_iter().map(descriptor).collect::<io::Result<_>>()?,
        };
        let (send, receive) = mpsc::channel(INPUTS);
        let now = Instant::now();
        let session = Arc::new(Self {
            request: ExecRequest {
                // Known to the process alone.
                env: std::collections::BTreeMap::new(),
                command: String::new(),
                ..request.clone()
            },
            pid: spawned.pid,
            state: Mutex::new(State {
                output: [Ring::default(), Ring::default()],
                open: output.len(),
                exit_code: None,
                timed_out: false,
                ended_at: None,
                clients: 0,
                next_client: 0,
                sent: HashMap::new(),
                most_sent: [0, 0],
                detached_at: now,
                is_forgotten: false,
            }),
            version: watch::Sender::new(0),
            life: Notify::new(),
            input: Mutex::new(input.is_some().then_some(send)),
            terminal,
            began: now,
        });
        if let Some(input) = input {
            tokio::spawn(write(input, receive));
        }
        for (stream, descriptor) in output.into_iter().enumerate() {
            tokio::spawn(session.clone().pump(stream, descriptor));
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
    pub(super) fn runs_as(&self, pid: i32) -> bool {
        self.pid == pid && self.state().exit_code.is_none()
    }

    pub(super) fn ended_at(&self) -> Option<Instant> {
        self.state().ended_at
    }

    pub(super) fn status(&self) -> CommandStatus {
        CommandStatus {
            command_id: self.request.command_id.clone(),
            pid: self.pid,
            exit_code: self.state().exit_code,
        }
    }

    /// Its process has ended.
    pub(super) fn ended(&self, exit_code: i32) {
        let mut state = self.state();
        state.exit_code = Some(exit_code);
        state.ended_at = Some(Instant::now());
        drop(state);
        *self.input() = None;
        self.changed();
        self.life.notify_one();
    }

    /// Sends a signal to its group; to none that has ended, whose number another may have.
    pub(super) fn signal(&self, signal: Signal) {
        if self.state().exit_code.is_none() {
            let _ = killpg(Pid::from_raw(self.pid), signal);
        }
    }

    /// Gives it input. Waits while it reads nothing.
    pub(super) async fn write(&self, bytes: Bytes) {
        let input = self.input().clone();
        if let Some(input) = input {
            // It has ended, or closed its input.
            let _ = input.send(bytes).await;
        }
    }

    /// Ends its input. A terminal has none that could end.
    pub(super) fn close_input(&self) {
        if self.terminal.is_none() {
            *self.input() = None;
        }
    }

    pub(super) fn resize(&self, size: PtySize) {
        if let Some(terminal) = &self.terminal {
            let _ = spawn::resize(terminal.get_ref(), size);
        }
    }

    /// Kills it when its time is up, and returns when it may be forgotten.
    pub(super) async fn watch(&self) {
        loop {
            let deadline = self.deadline();
            tokio::select! {
                () = self.life.notified() => {
                    if self.state().is_forgotten {
                        return;
                    }
                    continue;
                }
                () = until(deadline) => {}
            }
            if self.state().ended_at.is_some() {
                return;
            }
            let is_over = self.limit().is_some_and(|limit| Instant::now() >= limit);
            if is_over {
                self.state().timed_out = true;
            }
            self.signal(Signal::SIGKILL);
            // The end comes from the reaper.
            self.life.notified().await;
        }
    }

    /// It is known no more.
    pub(super) fn forget(&self) {
        self.state().is_forgotten = true;
        self.life.notify_one();
    }

    fn limit(&self) -> Option<Instant> {
        after(self.began, self.request.timeout_seconds)
    }

    fn deadline(&self) -> Option<Instant> {
        let state = self.state();
        if let Some(ended) = state.ended_at {
            let kept = u64::try_from(self.request.ttl_seconds).ok()?;
            return ended.checked_add(Duration::from_secs(kept));
        }
        let idle = if state.clients == 0 {
            after(state.detached_at, self.request.idle_timeout_seconds)
        } else {
            None
        };
        [self.limit(), idle].into_iter().flatten().min()
    }

    /// Carries a stream into the buffer.
    async fn pump(self: Arc<Self>, stream: usize, descriptor: Descriptor) {
        let (mut text, mut buffer) = (Text::default(), vec![0; READ]);
        let mut version = self.version.subscribe();
        let mut rest = None;
        let is_at_end = loop {
            self.room(stream).await;
            let read = match &mut rest {
                Some(0) => break false,
                Some(left) => {
                    let most = READ.min(*left);
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
                        () = self.exited(&mut version) => {
                            rest = Some(REST);
                            continue;
                        }
                        // A terminal that nobody has open is an error.
                        read = read => read.unwrap_or(0),
                    }
                }
            };
            if read == 0 {
                break true;
            }
            let text = text.feed(&buffer[..read]);
            self.state().output[stream].push(&text);
            self.changed();
        };
        {
            let mut state = self.state();
            state.output[stream].push(&text.finish());
            state.open -= 1;
        }
        self.changed();
        // What the command left behind writes into nothing, and is not killed for it.
        let mut is_at_end = is_at_end;
        while !is_at_end {
            let read = descriptor.async_io(Interest::READABLE, |descriptor| {
                Ok(rustix::io::read(descriptor, &mut buffer[..])?)
            });
            is_at_end = read.await.unwrap_or(0) == 0;
        }
    }

    async fn exited(&self, version: &mut watch::Receiver<u64>) {
        loop {
            version.borrow_and_update();
            if self.state().exit_code.is_some() {
                return;
            }
            // The sender is our own.
            let _ = version.changed().await;
        }
    }

    /// Waits until output can be taken without loss, or nobody waits for it any more.
    async fn room(&self, stream: usize) {
        let mut version = self.version.subscribe();
        loop {
            version.borrow_and_update();
            {
                let state = self.state();
                // Replacements take three bytes for one.
                if state.output[stream].has_room(3 * READ, state.most_sent[stream]) {
                    return;
                }
                if state.clients == 0 && state.detached_at.elapsed() >= HOLD {
                    return;
                }
            }
            let _ = timeout(HOLD, version.changed()).await;
        }
    }

    pub(super) fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> MutexGuard<'_, Option<mpsc::Sender<Bytes>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries input into a command until either ends.
async fn write(descriptor: Descriptor, mut inputs: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = inputs.recv().await {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = descriptor.async_io(Interest::WRITABLE, |descriptor| {
                Ok(rustix::io::write(descriptor, rest)?)
            });
            let written = written.await;
            match written {
                Ok(count) => rest = &rest[count..],
                Err(_) => return,
            }
        }
    }
}

fn descriptor(file: OwnedFd) -> io::Result<Descriptor> {
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(Arc::new(AsyncFd::new(file)?))
}

fn after(begin: Instant, seconds: u64) -> Option<Instant> {
    if seconds == 0 {
        return None;
    }
    begin.checked_add(Duration::from_secs(seconds))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
