//! Hints over Redis streams.
//!
//! Keys in Redis, with the default prefix. All of them may disappear at any time.
//!
//! ```text
//! towpath:wake:<pool>   stream, about 1000 entries     one entry = "check this pool"
//!     by    the queue that sent it, so that it skips its own
//!     ids   present if the jobs are in the queues of the pool, see [`crate::dispatch`]; else look in the database
//! towpath:cancel        stream, about 1000 entries     one entry = "stop these jobs"
//!     by    as above
//!     jobs  ids joined by commas, or * for "too many to name, check the rows";
//!           absent in an entry that only unblocks the reader of its sender
//! ```
//!
//! Every process has three connections, and with directed dispatch a fourth. One reads with `XREAD BLOCK` from the
//! cancel stream and the streams of all its pools, without consumer groups, because a half-open member would swallow
//! hints for others. The second one sends. The third one is for events of threads, see [`thread_follower`]. A session of
//! these three connects, takes its positions in the streams, tells every listener to check everything, and ends with the
//! first error.
//!
//! A half-open connection shows no error. So a read blocks for [`BLOCK`] at most and must return within [`DEADLINE`];
//! the sender has the same deadline and pings when idle.

mod publisher;
mod reader;
mod send_queue;
mod thread_follower;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use towpath_domain::{Clock, ThreadId, WorkerId};

use self::send_queue::SendQueue;
use crate::dispatch::JobQueues;
use crate::listener_registry::ListenerRegistry;
use crate::wakes::WakeKind;
use crate::{Connections, Health, State, metric};

const BLOCK: Duration = Duration::from_secs(1);
/// A connection without an answer for this long is dead. Longer than [`BLOCK`], with a margin for slow networks.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long a start waits for the first attempt.
const FIRST_ATTEMPT: Duration = Duration::from_millis(500);
/// After a session of this length, the pauses start from the beginning. Otherwise a server that accepts and disconnects
/// would cause rapid reconnects.
const GOOD_SESSION: Duration = Duration::from_secs(5);
/// Pauses between attempts; jitter up to the same length keeps processes from reconnecting at the same moment.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(200))
    .with_max_delay(Duration::from_secs(1))
    .without_max_times()
    .with_jitter();
/// They open and end together.
const SESSION_CONNECTIONS: u32 = 3;
/// Approximate number of entries in a stream. Readers further behind have been told to check everything.
const KEPT: usize = 1000;

#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of all keys. Processes with the same prefix share the queue.
    pub prefix: String,
    /// Dates an outage in [`Health`].
    pub clock: Clock,
    /// Certificates (PEM) to trust for `rediss://` instead of the machine's.
    pub tls_ca: Option<Vec<u8>>,
    /// How workers learn of ready jobs.
    pub dispatch: DispatchMode,
    /// Time limit of a call that somebody waits for: a request that is counted, a worker that takes ids. After it, the
    /// caller goes on without Redis, and the connection is replaced.
    pub patience: Duration,
}

/// How workers learn of ready jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DispatchMode {
    /// A wake names the pool, and each worker scans the database.
    #[default]
    Scan,
    /// Ids of ready jobs are in queues in Redis, and each worker takes its own; a scan finds what was missed.
    Directed,
}

impl DispatchMode {
    /// Connections of a process to Redis.
    #[must_use]
    pub const fn connections(self) -> u32 {
        match self {
            Self::Scan => SESSION_CONNECTIONS,
            Self::Directed => SESSION_CONNECTIONS + 1,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "towpath:".to_owned(),
            clock: Clock::system(),
            tls_ca: None,
            dispatch: DispatchMode::default(),
            patience: Duration::from_millis(100),
        }
    }
}

/// Why a queue over Redis cannot be created. An unavailable Redis is not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URI is invalid. The text contains no credentials.
    #[error("invalid redis uri: {0}")]
    Uri(String),
    /// The certificates in [`Options::tls_ca`] cannot be read.
    #[error("invalid redis certificate: {0}")]
    Certificate(String),
}

/// The Redis side of a queue; disconnects when the last clone is dropped.
pub struct Streams {
    shared: Arc<Shared>,
    /// With directed dispatch.
    job_queues: Option<JobQueues>,
    /// Aborted on drop.
    _sessions: JoinSet<()>,
}

/// State shared by sessions and callers.
struct Shared {
    client: redis::Client,
    password: Option<String>,
    prefix: String,
    clock: Clock,
    /// Id of this queue in its entries.
    origin: String,
    listeners: Arc<ListenerRegistry>,
    send_queue: SendQueue,
    follow_requests: thread_follower::FollowRequests,
    status: Mutex<Status>,
}

struct Status {
    state: State,
    connected_before: bool,
    reconnects: u64,
}

impl Streams {
    /// Starts to connect. See [`crate::Queue::redis`].
    pub async fn start(uri: &str, options: Options) -> Result<Arc<Self>, Error> {
        let job_queues = match options.dispatch {
            DispatchMode::Scan => None,
            DispatchMode::Directed => Some(JobQueues::start(uri, options.clone()).await?),
        };
        let (client, password) = client(uri, options.tls_ca)?;
        let state = State::Down {
            since: options.clock.now(),
            error: "not connected yet".to_owned(),
        };
        let shared = Arc::new(Shared {
            client,
            password,
            prefix: options.prefix,
            clock: options.clock,
            origin: WorkerId::new().to_string(),
            listeners: Arc::default(),
            send_queue: SendQueue::default(),
            follow_requests: thread_follower::FollowRequests::default(),
            status: Mutex::new(Status {
                state,
                connected_before: false,
                reconnects: 0,
            }),
        });
        metrics::gauge!(metric::UP).set(0.0);
        let (first, outcome) = oneshot::channel();
        let mut sessions = JoinSet::new();
        sessions.spawn(shared.clone().keep_connected(first));
        // On a timeout the attempt continues in the background.
        let _ = tokio::time::timeout(FIRST_ATTEMPT, outcome).await;
        Ok(Arc::new(Self {
            shared,
            job_queues,
            _sessions: sessions,
        }))
    }

    pub fn job_queues(&self) -> Option<&JobQueues> {
        self.job_queues.as_ref()
    }

    pub fn listeners(&self) -> &Arc<ListenerRegistry> {
        &self.shared.listeners
    }

    /// Follows the events of a thread, and returns when the subscription is active; at once while Redis is unavailable.
    pub async fn follow(&self, thread: ThreadId) {
        if let Some(followed) = self.shared.follow_requests.follow(thread) {
            // As long as the session may take to answer or be given up: events published before the subscription are
            // lost, unless there is a log.
            let _ = tokio::time::timeout(DEADLINE * 2, followed).await;
        }
    }

    /// Called when the thread has no reader left.
    pub fn unfollow(&self, thread: ThreadId) {
        self.shared.follow_requests.unfollow(thread);
    }

    pub fn send_queue(&self) -> &SendQueue {
        &self.shared.send_queue
    }

    pub fn connections(&self) -> Connections {
        let session = match self.shared.status.lock().state {
            State::Up => SESSION_CONNECTIONS,
            State::Down { .. } | State::Local => 0,
        };
        let dispatch = if self.job_queues.is_some() {
            DispatchMode::Directed
        } else {
            DispatchMode::Scan
        };
        let takes = self.job_queues.as_ref().is_some_and(JobQueues::is_up);
        Connections {
            needed: dispatch.connections(),
            open: session + u32::from(takes),
        }
    }

    pub fn health(&self) -> Health {
        let status = self.shared.status.lock();
        Health {
            state: status.state.clone(),
            reconnects: status.reconnects,
            dropped: self.shared.send_queue.dropped(),
        }
    }
}

impl Shared {
    /// Runs sessions one after another. `first` receives the result of the first attempt.
    async fn keep_connected(self: Arc<Self>, first: oneshot::Sender<()>) {
        let mut first = Some(first);
        let mut pauses = PAUSES.build();
        loop {
            let mut up_since = None;
            let Err(error) = self
                .session(|| {
                    up_since = Some(Instant::now());
                    first.take();
                })
                .await;
            self.set_down(error);
            first.take();
            if up_since.is_some_and(|start| start.elapsed() >= GOOD_SESSION) {
                pauses = PAUSES.build();
            }
            tokio::time::sleep(pauses.next().unwrap_or(BLOCK)).await;
        }
    }

    /// Connects, then reads and sends until either fails. Dropping the connections closes their sockets, even during a
    /// blocking read.
    async fn session(&self, connected: impl FnOnce()) -> redis::RedisResult<Infallible> {
        let mut reader = reader::Reader::start(self, self.connect().await?).await?;
        let mut publisher = publisher::Publisher::start(self, self.connect().await?).await?;
        let mut feed = thread_follower::ThreadFollower::start(self).await?;
        self.set_up();
        connected();
        tokio::select! {
            ended = reader.run() => ended,
            ended = feed.run() => ended,
            ended = publisher.run() => ended,
        }
    }

    async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        // Own limits: the default response timeout of 500 ms would end every blocking read.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(DEADLINE))
            .set_response_timeout(Some(DEADLINE));
        within_deadline(self.client.get_multiplexed_async_connection_with_config(&config)).await
    }

    fn set_up(&self) {
        // Before the state changes, so that a caller who sees `Up` can rely on a wake being sent.
        self.send_queue.open();
        let mut status = self.status.lock();
        let was = std::mem::replace(&mut status.state, State::Up);
        if std::mem::replace(&mut status.connected_before, true) {
            status.reconnects += 1;
            metrics::counter!(metric::RECONNECTS).increment(1);
        }
        drop(status);
        metrics::gauge!(metric::UP).set(1.0);
        // After the reader took its positions: this check finds earlier hints, and later ones are read.
        self.listeners.rescan_all();
        if let State::Down { since, .. } = was {
            let down_ms = self.clock.now().since(since).as_millis();
            tracing::info!(redis.down_ms = %down_ms, "redis is connected; hints reach other processes");
        }
    }

    fn set_down(&self, error: redis::RedisError) {
        for pool in self.send_queue.close() {
            self.listeners.wake(&pool, WakeKind::Database);
        }
        metrics::gauge!(metric::UP).set(0.0);
        let mut text = without_password(error);
        if let Some(password) = self.password.as_deref().filter(|password| !password.is_empty()) {
            text = text.replace(password, "***");
        }
        let mut status = self.status.lock();
        let since = match status.state {
            State::Down { since, .. } => since,
            State::Up | State::Local => self.clock.now(),
        };
        let before = std::mem::replace(
            &mut status.state,
            State::Down {
                since,
                error: text.clone(),
            },
        );
        drop(status);
        // Once per outage and reason, not for each attempt.
        if !matches!(before, State::Down { error, .. } if error == text) {
            tracing::warn!(error = text, "redis is unavailable; other processes poll instead");
        }
    }

    fn wake_key(&self, pool: &str) -> String {
        format!("{}wake:{pool}", self.prefix)
    }

    fn cancel_key(&self) -> String {
        format!("{}cancel", self.prefix)
    }
}

/// An explicit limit for every exchange, independent of the client library's defaults.
pub async fn within_deadline<T>(exchange: impl Future<Output = redis::RedisResult<T>>) -> redis::RedisResult<T> {
    let late = || redis::RedisError::from((redis::ErrorKind::Io, "no answer within the deadline"));
    tokio::time::timeout(DEADLINE, exchange).await.map_err(|_| late())?
}

/// The server's message if there is one (`READONLY You can't write …`), else the client's.
pub fn without_password(error: redis::RedisError) -> String {
    let text = error.to_string();
    let said = error
        .into_server_errors()
        .and_then(|errors| Some(errors.first()?.1.clone()));
    said.map_or(text, |said| {
        format!("{} {}", said.code(), said.details().unwrap_or_default())
    })
}

/// Parses the URI without connecting.
pub fn client(uri: &str, tls_ca: Option<Vec<u8>>) -> Result<(redis::Client, Option<String>), Error> {
    let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(5));
    let info = uri
        .into_connection_info()
        .map_err(|error| Error::Uri(error.to_string()))?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive));
    let password = info.redis_settings().password().map(str::to_owned);
    let client = match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return Err(Error::Uri(
                "#insecure is not supported, name the certificate to trust".to_owned(),
            ));
        }
        ConnectionAddr::TcpTls { .. } => {
            // The binary installs a provider first; this is for other users of the crate. An error means that there
            // already is one.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let certificates = redis::TlsCertificates {
                client_tls: None,
                root_cert: tls_ca,
            };
            redis::Client::build_with_tls(info, certificates).map_err(|error| Error::Certificate(error.to_string()))?
        }
        _ => redis::Client::open(info).map_err(|error| Error::Uri(error.to_string()))?,
    };
    Ok((client, password))
}
