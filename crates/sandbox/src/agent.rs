//! The agent, the first process of a box: runs commands, buffers their output, and reaps orphans.
//!
//! Single-threaded. Commands and file operations are processes of their user, so that the kernel enforces permissions.
//! The socket is inherited from outside and cannot be reached from within the box.

mod client;
mod connection;
pub(crate) mod file;
mod path_pattern;
mod ring;
mod search;
mod session;
mod spawn;
pub(crate) mod terminal;
mod users;
mod utf8_text;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{WaitOptions, wait};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::exec::{CommandStatus, ExecRequest};
use crate::launch::SETUP_PATH;
use crate::proxy::PROXY_PORT;
use crate::wire::{Failure, FailureKind};
use session::Session;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 512;
/// Commands that are known at a time.
const MAX_COMMANDS: usize = 256;
/// After an accept that failed for want of something.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What the agent is told at its start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AgentSetup {
    pub(crate) user: Option<String>,
    pub(crate) work_dir: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Whether the box has no user but root.
    pub(crate) is_single_user: bool,
    /// Whether its processes reach a proxy.
    #[serde(default)]
    pub(crate) has_proxy: bool,
}

/// `box-agent`. Its standard input is the socket.
pub(crate) fn run() -> io::Result<()> {
    // Root of the box may not look into it.
    nix::sys::prctl::set_dumpable(false)?;
    let setup = serde_json::from_slice(&fs::read(SETUP_PATH)?)?;
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Agent::serve(setup, StdListener::from(listener)))
}

/// What it knows.
#[derive(Debug)]
pub(super) struct Agent {
    setup: AgentSetup,
    /// Where processes of the box reach the proxy, which accepts the connections outside.
    proxy: Option<StdTcpListener>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
}

impl Agent {
    async fn serve(setup: AgentSetup, listener: StdListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        // Before the first command, which could take the port.
        let proxy = setup.has_proxy.then(|| StdTcpListener::bind(("127.0.0.1", PROXY_PORT)));
        let agent = Arc::new(Self {
            setup,
            proxy: proxy.transpose()?,
            sessions: Mutex::default(),
        });
        // Before the first command.
        let mut ended = signal(SignalKind::child())?;
        let reaper = agent.clone();
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                reaper.reap_processes();
            }
        });
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            // A further connection is closed immediately; its client treats the agent as busy.
            if let Ok(permit) = connections.clone().try_acquire_owned() {
                let agent = agent.clone();
                tokio::spawn(async move {
                    // The client has gone, or said nothing that can be answered.
                    let _ = connection::serve_connection(&agent, stream).await;
                    drop(permit);
                });
            }
        }
    }

    /// Reaps all ended processes: commands, and orphans.
    fn reap_processes(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let killed = status.terminating_signal().map(|signal| 128 + signal);
            let code = status.exit_status().or(killed).unwrap_or(-1);
            let pid = pid.as_raw_pid();
            let session = self.all().into_iter().find(|session| session.has_pid(pid));
            if let Some(session) = session {
                session.mark_ended(code);
            }
        }
    }

    /// The command with this id, begun now if there is none.
    pub(super) fn execute(self: &Arc<Self>, request: &ExecRequest) -> Result<Arc<Session>, Failure> {
        check_request(request)?;
        if let Some(session) = self.find(&request.command_id) {
            return Ok(session);
        }
        self.evict_finished()?;
        // No await in between: a process that exits immediately is reaped after it was registered.
        let session = Session::start(&self.setup, request)?;
        self.sessions.lock().insert(request.command_id.clone(), session.clone());
        let (agent, watched) = (self.clone(), session.clone());
        tokio::spawn(async move {
            watched.enforce_limits().await;
            agent.forget(&watched);
        });
        Ok(session)
    }

    pub(super) fn find(&self, command_id: &str) -> Option<Arc<Session>> {
        self.sessions.lock().get(command_id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    pub(super) fn statuses(&self) -> Vec<CommandStatus> {
        self.all().iter().map(|session| session.status()).collect()
    }

    pub(super) const fn setup(&self) -> &AgentSetup {
        &self.setup
    }

    pub(super) const fn proxy(&self) -> Option<&StdTcpListener> {
        self.proxy.as_ref()
    }

    /// Forgets the command that ended first if there are too many.
    fn evict_finished(&self) -> Result<(), Failure> {
        let mut sessions = self.sessions.lock();
        if sessions.len() < MAX_COMMANDS {
            return Ok(());
        }
        let ended = sessions
            .values()
            .filter_map(|session| Some((session.ended_at()?, session.id())));
        let first = ended.min().map(|(_, id)| id.to_owned());
        let Some(first) = first else {
            let text = format!("{MAX_COMMANDS} commands are running in the sandbox; end one first");
            return Err(Failure::new(FailureKind::Busy, text));
        };
        if let Some(session) = sessions.remove(&first) {
            session.mark_forgotten();
        }
        Ok(())
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock();
        // Another one may have its id since it gave way.
        if sessions
            .get(session.id())
            .is_some_and(|known| Arc::ptr_eq(known, session))
        {
            sessions.remove(session.id());
        }
    }
}

fn check_request(request: &ExecRequest) -> Result<(), Failure> {
    let invalid = |text: &str| Err(Failure::new(FailureKind::Invalid, text));
    let id = request.command_id.as_str();
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if id.is_empty() || id.len() > 128 || !id.bytes().all(is_letter) {
        return invalid("command_id must be 1 to 128 letters, digits, '-' and '_'");
    }
    if request.command.contains('\0') || request.shell.contains('\0') || request.shell.is_empty() {
        return invalid("command and shell must not contain NUL, and shell must not be empty");
    }
    let is_variable =
        |name: &str, value: &str| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    if !request.env.iter().all(|(name, value)| is_variable(name, value)) {
        return invalid("env must not have a name that is empty or contains '=', or a value that contains NUL");
    }
    Ok(())
}
