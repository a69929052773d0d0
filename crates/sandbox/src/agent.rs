//! The agent: the first process of a box. Runs commands, keeps their output, and reaps what they leave.
//!
//! One thread. Commands and file operations are processes of their user, so that the kernel decides what they may do. The
//! socket came from outside and nothing in the box can connect to it.

mod client;
pub(crate) mod file;
mod pattern;
mod ring;
mod search;
mod serve;
mod session;
mod spawn;
pub(crate) mod terminal;
mod text;
mod users;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{WaitOptions, wait};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::exec::{CommandStatus, ExecRequest};
use crate::launch::SETUP;
use crate::wire::{Failure, FailureKind};
use session::Session;

/// Connections at a time.
const CONNECTIONS: usize = 512;
/// Commands that are known at a time.
const COMMANDS: usize = 256;
/// After an accept that failed for want of something.
const PAUSE: Duration = Duration::from_millis(100);

/// What the agent is told at its start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) user: Option<String>,
    pub(crate) work_dir: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Whether the box has no user but root.
    pub(crate) is_single_user: bool,
}

/// `box-agent`. Its standard input is the socket.
pub(crate) fn run() -> io::Result<()> {
    // Root of the box may not look into it.
    nix::sys::prctl::set_dumpable(false)?;
    let setup = serde_json::from_slice(&fs::read(SETUP)?)?;
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Agent::serve(setup, StdListener::from(listener)))
}

/// What it knows.
#[derive(Debug)]
pub(super) struct Agent {
    setup: Setup,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
}

impl Agent {
    async fn serve(setup: Setup, listener: StdListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let agent = Arc::new(Self {
            setup,
            sessions: Mutex::default(),
        });
        // Before the first command.
        let mut ended = signal(SignalKind::child())?;
        let reaper = agent.clone();
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                reaper.reap();
            }
        });
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // One more is closed at once, which its client takes for an agent that is busy.
            if let Ok(permit) = connections.clone().try_acquire_owned() {
                let agent = agent.clone();
                tokio::spawn(async move {
                    // The client has gone, or said nothing that can be answered.
                    let _ = serve::connection(&agent, stream).await;
                    drop(permit);
                });
            }
        }
    }

    /// Takes every process that has ended: commands, and what lost its parent.
    fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let killed = status.terminating_signal().map(|signal| 128 + signal);
            let code = status.exit_status().or(killed).unwrap_or(-1);
            let pid = pid.as_raw_pid();
            let session = self.all().into_iter().find(|session| session.runs_as(pid));
            if let Some(session) = session {
                session.ended(code);
            }
        }
    }

    /// The command with this id, begun now where there is none.
    pub(super) fn execute(self: &Arc<Self>, request: &ExecRequest) -> Result<Arc<Session>, Failure> {
        check(request)?;
        if let Some(session) = self.find(&request.command_id) {
            return Ok(session);
        }
        self.make_room()?;
        // Nothing is waited for in between: a process that ends at once is reaped after it has its place.
        let session = Session::start(&self.setup, request)?;
        self.sessions().insert(request.command_id.clone(), session.clone());
        let (agent, watched) = (self.clone(), session.clone());
        tokio::spawn(async move {
            watched.watch().await;
            agent.forget(&watched);
        });
        Ok(session)
    }

    pub(super) fn find(&self, command_id: &str) -> Option<Arc<Session>> {
        self.sessions().get(command_id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions().values().cloned().collect()
    }

    pub(super) fn statuses(&self) -> Vec<CommandStatus> {
        self.all().iter().map(|session| session.status()).collect()
    }

    pub(super) const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Forgets the command that ended first where there are too many.
    fn make_room(&self) -> Result<(), Failure> {
        let mut sessions = self.sessions();
        if sessions.len() < COMMANDS {
            return Ok(());
        }
        let ended = sessions
            .values()
            .filter_map(|session| Some((session.ended_at()?, session.id())));
        let first = ended.min().map(|(_, id)| id.to_owned());
        let Some(first) = first else {
            let text = format!("{COMMANDS} commands run in the box: end one first");
            return Err(Failure::new(FailureKind::Busy, text));
        };
        if let Some(session) = sessions.remove(&first) {
            session.forget();
        }
        Ok(())
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        // Another one may have its id since it gave way.
        if sessions
            .get(session.id())
            .is_some_and(|known| Arc::ptr_eq(known, session))
        {
            sessions.remove(session.id());
        }
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(request: &ExecRequest) -> Result<(), Failure> {
    let invalid = |text: &str| Err(Failure::new(FailureKind::Invalid, text));
    let id = request.command_id.as_str();
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if id.is_empty() || id.len() > 128 || !id.bytes().all(is_letter) {
        return invalid("command_id has to be 1 to 128 letters, digits, '-' and '_'");
    }
    if request.command.contains('\0') || request.shell.contains('\0') || request.shell.is_empty() {
        return invalid("command and shell may not hold NUL, and shell may not be empty");
    }
    let is_variable =
        |name: &str, value: &str| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    if !request.env.iter().all(|(name, value)| is_variable(name, value)) {
        return invalid("env has a name that is empty or holds '=', or a value that holds NUL");
    }
    Ok(())
}
