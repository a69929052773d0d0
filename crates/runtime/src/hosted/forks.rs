//! A process that has loaded the graphs and forks children that need not.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::child::{Launch, StartError};
use super::connection::Connection;
use super::frame::{Frame, Type};
use super::message::{self, Exited, Fork, Forked, Ready};
use super::process::{Begun, Running, expect, greet, in_time};

/// What a program says of itself that can do this.
const CAPABILITY: &str = "fork";

/// The process. Its children end with it, so each of them holds it.
pub struct Forks {
    connection: Connection,
    state: Mutex<State>,
    _running: Running,
}

#[derive(Default)]
struct State {
    /// Those that were asked for, by the path of their socket.
    asked: HashMap<String, oneshot::Sender<(i32, oneshot::Receiver<ExitStatus>)>>,
    /// Those that live, by their process id.
    living: HashMap<i32, oneshot::Sender<ExitStatus>>,
    over: bool,
}

impl Forks {
    /// Starts one and has it load the graphs. `None` where that cannot be forked: what it loaded has threads, or holds
    /// connections.
    ///
    /// # Errors
    /// It cannot be started, or cannot load its graphs.
    pub async fn start(launch: &Launch) -> Result<Option<Arc<Self>>, StartError> {
        let Some(argument) = &launch.fork_argument else {
            return Ok(None);
        };
        let Begun {
            socket,
            mut running,
            words,
        } = Begun::spawn(launch, Some(argument))?;
        let begun = async |running: &mut Running| {
            let (connection, mut control) = Connection::start(socket);
            let hello = greet(launch, None, &connection, &mut control, running, &words).await?;
            let ready: Ready = expect(&mut control, Type::READY, running, &words).await?;
            let can = ready.fork_safe && hello.capabilities.iter().any(|known| known == CAPABILITY);
            Ok((connection, control, can))
        };
        let (connection, control, can) = in_time(launch, &mut running, &words, begun).await?;
        if !can {
            tracing::info!("what the graphs loaded has threads or connections: their processes are started one by one");
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
    pub fn lives(&self) -> bool {
        !self.state().over
    }

    /// Has a child forked.
    ///
    /// # Errors
    /// It is gone, or the child did not come.
    pub async fn fork(self: &Arc<Self>, launch: &Launch, number: u64) -> Result<Begun, StartError> {
        let gone = || StartError::Process("the process that forks graph hosts is gone".to_owned());
        let (control, output) = (
            Listening::new(launch.sockets.join(format!("{number}.fork.sock")))?,
            Listening::new(launch.sockets.join(format!("{number}.out.sock")))?,
        );
        let (tell, told) = oneshot::channel();
        {
            let mut state = self.state();
            if state.over {
                return Err(gone());
            }
            state.asked.insert(text(&control.path), tell);
        }
        let fork = Fork {
            socket: text(&control.path),
            output: Some(text(&output.path)),
        };
        self.connection.send(Type::FORK, &fork);
        let (pid, ended) = told.await.map_err(|_| gone())?;
        // From here on it is ended when this is given up.
        let running = Running::forked(pid, ended, self.clone());
        let words = super::process::Words::default();
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
        Ok(Begun { socket, running, words })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between two fields can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, frame: &Frame) {
        match frame.r#type {
            Type::FORKED => {
                let Ok(forked) = message::read::<Forked>(&frame.payload) else {
                    return;
                };
                let (over, ended) = oneshot::channel();
                let mut state = self.state();
                state.living.insert(forked.pid, over);
                if let Some(asked) = state.asked.remove(&forked.socket) {
                    // Nobody waits for it any more: it sees that nobody answers it.
                    let _ = asked.send((forked.pid, ended));
                }
            }
            Type::EXITED => {
                let Ok(exited) = message::read::<Exited>(&frame.payload) else {
                    return;
                };
                // As `wait` packs them.
                let status = match (exited.status, exited.signal) {
                    (Some(status), _) => status << 8,
                    (None, signal) => signal.unwrap_or_default(),
                };
                if let Some(over) = self.state().living.remove(&exited.pid) {
                    let _ = over.send(ExitStatus::from_raw(status));
                }
            }
            _ => {}
        }
    }
}

async fn listen(forks: Weak<Forks>, mut control: mpsc::UnboundedReceiver<Frame>) {
    while let Some(frame) = control.recv().await {
        let Some(forks) = forks.upgrade() else { return };
        forks.take(&frame);
    }
    if let Some(forks) = forks.upgrade() {
        tracing::warn!("the process that forks graph hosts ended; others are started one by one");
        // Who waits hears that it is gone.
        *forks.state() = State {
            over: true,
            ..State::default()
        };
    }
}

/// A socket with a path, which goes with it.
struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

impl Listening {
    fn new(path: PathBuf) -> Result<Self, StartError> {
        // Of an earlier life of the server.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path);
        let listener = listener.map_err(|error| StartError::Process(format!("a socket: {error}")))?;
        Ok(Self { listener, path })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
