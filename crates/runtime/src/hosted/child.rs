//! A child process: start, output, and end.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::connection::Connection;
use super::fork_server::ForkServer;
use super::frame::{Frame, FrameType};
use super::launch::{Launch, StartError, TERM_TO_KILL};
use super::message::{Hello, Ready, Shutdown};
use super::process::{HostProcess, OutputTail, StartedProcess, expect_frame, handshake, within_start_timeout};

/// A child that serves.
pub struct Child {
    /// Number in its pool, for logs.
    pub number: u64,
    pub connection: Connection,
    /// What it loaded.
    pub ready: Ready,
    /// Versions of its libraries.
    pub hello: Hello,
    /// Where the user's own routes are served.
    pub http_socket: Option<PathBuf>,
    /// Runs it has now.
    pub active_runs: Arc<AtomicUsize>,
    /// Of those, the ones that were given up and do not stop.
    pub abandoned: AtomicUsize,
    /// The maximum number of suspect runs that may share it now; 0 if it is not reserved for suspects.
    pub shared_limit: AtomicUsize,
    /// Runs it ever had.
    pub served: AtomicU64,
    /// It takes no more runs.
    pub draining: AtomicBool,
    /// When it began to serve.
    pub started_at: Instant,
    /// When it had a run last.
    pub last_used: Mutex<Instant>,
    stop_requests: mpsc::UnboundedSender<StopRequest>,
    exit: watch::Receiver<Option<ChildExit>>,
    _socket_file: SocketFile,
}

/// How a child ended.
#[derive(Clone, Debug)]
pub struct ChildExit {
    /// With its last words.
    pub how: String,
    /// The runs that were in it.
    pub runs: usize,
}

enum StopRequest {
    /// TERM to its group, then KILL.
    Now,
    /// When it has not ended by itself after this long.
    After(Duration),
}

/// Removes a socket's path.
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Child {
    /// Starts a child and waits until it serves.
    pub async fn start(launch: &Launch, forks: Option<&Arc<ForkServer>>, number: u64) -> Result<Self, StartError> {
        let http_path = launch.http.then(|| launch.sockets.join(format!("{number}.http.sock")));
        if let Some(path) = &http_path {
            // Of an earlier life of the server.
            let _ = std::fs::remove_file(path);
        }
        let StartedProcess {
            socket,
            mut running,
            output: words,
        } = match forks {
            Some(forks) => forks.fork(launch, number).await?,
            None => StartedProcess::spawn(launch, None)?,
        };
        let begun = async |running: &mut HostProcess| {
            let (connection, mut control) = Connection::start(socket);
            let hello = handshake(launch, http_path.as_deref(), &connection, &mut control, running, &words).await?;
            let ready: Ready = expect_frame(&mut control, FrameType::READY, running, &words).await?;
            Ok((connection, hello, ready, control))
        };
        let (connection, hello, ready, control) = within_start_timeout(launch, &mut running, &words, begun).await?;
        let http_socket = http_path.filter(|_| ready.http);
        let (ending, endings) = mpsc::unbounded_channel();
        let (tell, ended) = watch::channel(None);
        let open = Arc::new(AtomicUsize::new(0));
        let watched = SupervisedChild {
            running,
            words,
            connection: connection.clone(),
            open: open.clone(),
        };
        tokio::spawn(supervise(watched, control, endings, tell));
        Ok(Self {
            number,
            connection,
            ready,
            hello,
            active_runs: open,
            abandoned: AtomicUsize::new(0),
            shared_limit: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            started_at: Instant::now(),
            last_used: Mutex::new(Instant::now()),
            stop_requests: ending,
            exit: ended,
            _socket_file: SocketFile(http_socket.clone()),
            http_socket,
        })
    }

    /// Whether it still serves.
    pub fn is_alive(&self) -> bool {
        !self.connection.closed().is_cancelled() && self.exit.borrow().is_none()
    }

    /// Ends it: TERM to its whole group, then KILL.
    pub fn kill(&self) {
        self.drain();
        let _ = self.stop_requests.send(StopRequest::Now);
    }

    /// Asks it to end once its runs are over, at the latest after `grace`.
    pub fn stop_after(&self, grace: Duration) {
        self.drain();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.connection.send(FrameType::SHUTDOWN, &Shutdown { grace_ms });
        let _ = self.stop_requests.send(StopRequest::After(grace + TERM_TO_KILL));
    }

    /// Waits until the process is gone; how it ended.
    pub async fn wait_exit(&self) -> ChildExit {
        let mut ended = self.exit.clone();
        let found = match ended.wait_for(Option::is_some).await {
            Ok(found) => found.clone(),
            Err(_) => None,
        };
        found.unwrap_or_else(|| ChildExit {
            how: "the graph host exited".to_owned(),
            runs: self.runs(),
        })
    }

    /// How many runs it has.
    pub fn runs(&self) -> usize {
        self.active_runs.load(Ordering::Relaxed)
    }

    /// See [`Child::company`].
    pub fn shared_limit(&self) -> usize {
        self.shared_limit.load(Ordering::Relaxed)
    }

    /// It takes no more runs.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Marks that it was used now.
    pub fn touch(&self) {
        *self.last_used.lock() = Instant::now();
    }
}

/// A child, for who stays with it.
struct SupervisedChild {
    running: HostProcess,
    words: OutputTail,
    connection: Connection,
    open: Arc<AtomicUsize>,
}

/// Stays with a child until it is gone.
async fn supervise(
    watched: SupervisedChild,
    mut control: mpsc::UnboundedReceiver<Frame>,
    mut endings: mpsc::UnboundedReceiver<StopRequest>,
    tell: watch::Sender<Option<ChildExit>>,
) {
    let SupervisedChild {
        mut running,
        words,
        connection,
        open: runs,
    } = watched;
    let mut deadline = None;
    let mut open = true;
    let closed = connection.closed();
    let status = loop {
        let wait = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = running.wait() => break status,
            ending = endings.recv(), if open => match ending {
                // It is no longer held; it may have been asked to end by a deadline.
                None if deadline.is_some() => open = false,
                Some(StopRequest::Now) | None => {
                    open = ending.is_some();
                    running.signal(Signal::SIGTERM);
                    deadline = Some(earlier_deadline(deadline, TERM_TO_KILL));
                }
                Some(StopRequest::After(grace)) => deadline = Some(earlier_deadline(deadline, grace)),
            },
            // Without its connection it is of no use.
            () = closed.cancelled(), if deadline.is_none() => {
                deadline = Some(tokio::time::Instant::now() + TERM_TO_KILL);
            }
            () = wait => {
                running.signal(Signal::SIGKILL);
                deadline = None;
                if let Ok(status) = timeout(TERM_TO_KILL, running.wait()).await {
                    break status;
                }
            }
            // Nothing is expected there; reading keeps it from growing.
            Some(_) = control.recv() => {}
        }
    };
    // What it had started goes with it.
    running.signal(Signal::SIGKILL);
    let how = words.exit_message(status).await;
    // Each of them keeps its place until it has heard of this.
    let runs = runs.load(Ordering::Relaxed);
    tell.send_replace(Some(ChildExit { how, runs }));
    connection.close();
}

/// Asking again gives no more time.
fn earlier_deadline(deadline: Option<tokio::time::Instant>, grace: Duration) -> tokio::time::Instant {
    let at = tokio::time::Instant::now() + grace;
    deadline.map_or(at, |deadline| deadline.min(at))
}
