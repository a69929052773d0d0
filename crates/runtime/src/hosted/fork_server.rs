//! The fork server: a process that has loaded the graphs and forks children without loading them again.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::connection::Connection;
use super::frame::{Frame, FrameType};
use super::launch::{Launch, StartError};
use super::message::{self, Exited, Fork, Forked, Ready};
use super::process::{HostProcess, StartedProcess, expect_frame, handshake, within_start_timeout};

/// What a program says of itself that can do this.
const CAPABILITY: &str = "fork";

/// The process. Its children end with it, so each of them holds it.
pub struct ForkServer {
    connection: Connection,
    state: Mutex<ForkState>,
    _running: HostProcess,
}

#[derive(Default)]
struct ForkState {
    /// Those that were asked for, by the path of their socket.
    pending: HashMap<String, oneshot::Sender<(i32, oneshot::Receiver<ExitStatus>)>>,
    /// Those that live, by their process id.
    living: HashMap<i32, oneshot::Sender<ExitStatus>>,
    closed: bool,
}

impl ForkServer {
    /// Starts one and loads the graphs. `None` if it cannot be forked: the loaded code has threads or connections.
    pub async fn start(launch: &Launch) -> Result<Option<Arc<Self>>, StartError> {
        let Some(argument) = &launch.fork_argument else {
            return Ok(None);
        };
        let StartedProcess {
            socket,
            mut running,
            output: words,
        } = StartedProcess::spawn(launch, Some(argument))?;
        let begun = async |running: &mut HostProcess| {
            let (connection, mut control) = Connection::start(socket);
            let hello = handshake(launch, None, &connection, &mut control, running, &words).await?;
            let ready: Ready = expect_frame(&mut control, FrameType::READY, running, &words).await?;
            let can = ready.fork_safe && hello.capabilities.iter().any(|known| known == CAPABILITY);
            Ok((connection, control, can))
        };
        let (connection, control, can) = within_start_timeout(launch, &mut running, &words, begun).await?;
        if !can {
            tracing::info!("the loaded graphs have threads or connections; each process is started separately");
            running.kill().await;
            return Ok(None);
        }
        let this = Arc::new(Self {
            connection,
            state: Mutex::default(),
            _running: running,
        });
        tokio::spawn(listen(Arc::downgrade(&this), control));
        Ok(Some(this))
    }

    /// Whether it can still fork.
    pub fn is_alive(&self) -> bool {
        !self.state.lock().closed
    }

    /// Has a child forked.
    pub async fn fork(self: &Arc<Self>, launch: &Launch, number: u64) -> Result<StartedProcess, StartError> {
        let gone = || StartError::Process("the fork server of graph hosts is gone".to_owned());
        let (control, output) = (
            ListeningSocket::new(launch.sockets.join(format!("{number}.fork.sock")))?,
            ListeningSocket::new(launch.sockets.join(format!("{number}.out.sock")))?,
        );
        let (tell, told) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if state.closed {
                return Err(gone());
            }
            state.pending.insert(text(&control.path), tell);
        }
        let fork = Fork {
            socket: text(&control.path),
            output: Some(text(&output.path)),
        };
        self.connection.send(FrameType::FORK, &fork);
        let (pid, ended) = told.await.map_err(|_| gone())?;
        // From here on it is ended when this is given up.
        let running = HostProcess::forked(pid, ended, self.clone());
        let words = super::process::OutputTail::default();
        let came = async {
            let (socket, _) = control.listener.accept().await?;
            let (said, _) = output.listener.accept().await?;
            Ok((socket, said))
        };
        let came = timeout(launch.start_timeout, came).await;
        let came = came.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let (socket, said) =
            came.map_err(|error: std::io::Error| StartError::Process(format!("a forked graph host: {error}")))?;
        tokio::spawn(words.clone().listen(said));
        Ok(StartedProcess {
            socket,
            running,
            output: words,
        })
    }

    fn take(&self, frame: &Frame) {
        match frame.r#type {
            FrameType::FORKED => {
                let Ok(forked) = message::read::<Forked>(&frame.payload) else {
                    return;
                };
                let (over, ended) = oneshot::channel();
                let mut state = self.state.lock();
                state.living.insert(forked.pid, over);
                if let Some(asked) = state.pending.remove(&forked.socket) {
                    // No one waits for it any more: it sees that no one answers it.
                    let _ = asked.send((forked.pid, ended));
                }
            }
            FrameType::EXITED => {
                let Ok(exited) = message::read::<Exited>(&frame.payload) else {
                    return;
                };
                // As `wait` packs them.
                let status = match (exited.status, exited.signal) {
                    (Some(status), _) => status << 8,
                    (None, signal) => signal.unwrap_or_default(),
                };
                if let Some(over) = self.state.lock().living.remove(&exited.pid) {
                    let _ = over.send(ExitStatus::from_raw(status));
                }
            }
            _ => {}
        }
    }
}

async fn listen(forks: Weak<ForkServer>, mut control: mpsc::UnboundedReceiver<Frame>) {
    while let Some(frame) = control.recv().await {
        let Some(forks) = forks.upgrade() else { return };
        forks.take(&frame);
    }
    if let Some(forks) = forks.upgrade() {
        tracing::warn!("the fork server of graph hosts exited; each process is started separately");
        // Who waits hears that it is gone.
        *forks.state.lock() = ForkState {
            closed: true,
            ..ForkState::default()
        };
    }
}

/// A socket with a path, which goes with it.
struct ListeningSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ListeningSocket {
    fn new(path: PathBuf) -> Result<Self, StartError> {
        // Of an earlier life of the server.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path);
        let listener = listener.map_err(|error| StartError::Process(format!("a socket: {error}")))?;
        Ok(Self { listener, path })
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
