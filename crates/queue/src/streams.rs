//! Hints over Redis streams.
//!
//! What stands in Redis, with the default prefix. All of it may vanish at any moment.
//!
//! ```text
//! towpath:wake:<pool>   stream, about 1000 entries     one entry = "look at this pool"
//!     by    the queue that sent it, so that it skips its own
//! towpath:cancel        stream, about 1000 entries     one entry = "these jobs are to stop"
//!     by    as above
//!     jobs  ids joined by commas, or * for "too many to name, look at the rows";
//!           absent in an entry that only unblocks the reader of its sender
//! ```
//!
//! Every process has three connections, the third for events of threads: see [`feed`]. One sits in `XREAD BLOCK` over the cancel stream and the streams of all pools
//! it listens to; no consumer groups, because a half-open member would swallow hints that are meant for others. The
//! second sends. All live and die together: a session connects, takes its positions in the streams, tells every
//! listener to look, and ends with the first error of any of them.
//!
//! A half-open connection shows no error by itself. So a read blocks for [`BLOCK`] at most and has to answer within
//! [`DEADLINE`]; the sender has the same deadline and pings when it has nothing to send.

mod feed;
mod outbox;
mod publisher;
mod reader;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use towpath_domain::{Clock, ThreadId, WorkerId};

use self::outbox::Outbox;
use crate::board::Board;
use crate::{Health, State, metric};

/// How long one read blocks.
const BLOCK: Duration = Duration::from_secs(1);
/// A connection that did not answer for so long is dead. Longer than [`BLOCK`], with room for a slow network.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long a start waits for the first attempt.
const FIRST_ATTEMPT: Duration = Duration::from_millis(500);
/// A session that held so long was a good one: the next loss begins with a short pause again. Without it a server
/// that accepts and hangs up would be called as fast as it answers.
const GOOD_SESSION: Duration = Duration::from_secs(5);
/// Pauses between attempts; jitter adds up to as much again, so that a fleet does not return in one moment.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(200))
    .with_max_delay(Duration::from_secs(1))
    .without_max_times()
    .with_jitter();
/// Entries kept in a stream, about. A reader that is further behind has been told to look for itself.
const KEPT: usize = 1000;

/// Settings of a queue over Redis.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stands before the name of every key. Processes with the same prefix are one queue.
    pub prefix: String,
    /// Dates an outage in [`Health`].
    pub clock: Clock,
    /// Certificates (PEM) to trust for `rediss://` instead of the machine's.
    pub tls_ca: Option<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "towpath:".to_owned(),
            clock: Clock::system(),
            tls_ca: None,
        }
    }
}

/// Why a queue over Redis cannot be set up. A Redis that is away is not among the reasons.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URI is not one of Redis. The text carries no credentials.
    #[error("invalid redis uri: {0}")]
    Uri(String),
    /// The certificates in [`Options::tls_ca`] cannot be read.
    #[error("invalid redis certificate: {0}")]
    Certificate(String),
}

/// The Redis side of a queue: dropped with the last clone, it hangs up.
pub struct Streams {
    shared: Arc<Shared>,
    /// Aborted on drop.
    _sessions: JoinSet<()>,
}

/// What sessions and callers share.
struct Shared {
    client: redis::Client,
    password: Option<String>,
    prefix: String,
    clock: Clock,
    /// Names this queue in the entries it writes.
    origin: String,
    board: Arc<Board>,
    outbox: Outbox,
    wishes: feed::Wishes,
    status: Mutex<Status>,
}

struct Status {
    state: State,
    connected_before: bool,
    reconnects: u64,
}

impl Streams {
    /// Begins to connect. See [`crate::Queue::redis`].
    pub async fn start(uri: &str, options: Options) -> Result<Arc<Self>, Error> {
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
            board: Arc::default(),
            outbox: Outbox::default(),
            wishes: feed::Wishes::default(),
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
        // Late is fine: the attempt goes on in the background.
        let _ = tokio::time::timeout(FIRST_ATTEMPT, outcome).await;
        Ok(Arc::new(Self {
            shared,
            _sessions: sessions,
        }))
    }

    /// Who listens in this process.
    pub fn board(&self) -> &Arc<Board> {
        &self.shared.board
    }

    /// Follows the events of a thread, and returns when it does; at once while Redis is away.
    pub async fn follow(&self, thread: ThreadId) {
        if let Some(followed) = self.shared.wishes.follow(thread) {
            // As long as the session may take to answer or to be given up: what is said to a thread that is not followed yet
            // is lost to its readers, where no log is kept.
            let _ = tokio::time::timeout(DEADLINE * 2, followed).await;
        }
    }

    /// Nobody in this process reads the thread any more.
    pub fn unfollow(&self, thread: ThreadId) {
        self.shared.wishes.unfollow(thread);
    }

    /// What waits to be sent.
    pub fn outbox(&self) -> &Outbox {
        &self.shared.outbox
    }

    /// How the connections do.
    pub fn health(&self) -> Health {
        let status = self.shared.status();
        Health {
            state: status.state.clone(),
            reconnects: status.reconnects,
            dropped: self.shared.outbox.dropped(),
        }
    }
}

impl Shared {
    /// One session after the other, for ever. `first` hears of the first one's outcome.
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
            self.down(error);
            first.take();
            if up_since.is_some_and(|start| start.elapsed() >= GOOD_SESSION) {
                pauses = PAUSES.build();
            }
            tokio::time::sleep(pauses.next().unwrap_or(BLOCK)).await;
        }
    }

    /// Connects, then reads and sends until one of both fails. Dropping the connections closes their sockets, also
    /// under a read that still blocks.
    async fn session(&self, connected: impl FnOnce()) -> redis::RedisResult<Infallible> {
        let mut reader = reader::Reader::start(self, self.connect().await?).await?;
        let mut publisher = publisher::Publisher::start(self, self.connect().await?).await?;
        let mut feed = feed::Feed::start(self).await?;
        self.up();
        connected();
        tokio::select! {
            ended = reader.run() => ended,
            ended = feed.run() => ended,
            ended = publisher.run() => ended,
        }
    }

    async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        // Both limits are ours: the default of 500 ms for an answer would also end every blocking read.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(DEADLINE))
            .set_response_timeout(Some(DEADLINE));
        within_deadline(self.client.get_multiplexed_async_connection_with_config(&config)).await
    }

    fn up(&self) {
        // Before the state says so: whoever sees `Up` may rely on a wake being sent.
        self.outbox.open();
        let mut status = self.status();
        let was = std::mem::replace(&mut status.state, State::Up);
        if std::mem::replace(&mut status.connected_before, true) {
            status.reconnects += 1;
            metrics::counter!(metric::RECONNECTS).increment(1);
        }
        drop(status);
        metrics::gauge!(metric::UP).set(1.0);
        // After the reader took its positions: what came before them is found by this look, what comes after by
        // reading on.
        self.board.look();
        if let State::Down { since, .. } = was {
            let down_ms = self.clock.now().since(since).as_millis();
            tracing::info!(redis.down_ms = %down_ms, "redis is connected, hints reach other processes");
        }
    }

    fn down(&self, error: redis::RedisError) {
        self.outbox.close();
        metrics::gauge!(metric::UP).set(0.0);
        let mut text = plain(error);
        if let Some(password) = self.password.as_deref().filter(|password| !password.is_empty()) {
            text = text.replace(password, "***");
        }
        let mut status = self.status();
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
        // Once per outage and per new reason, not once per attempt.
        if !matches!(before, State::Down { error, .. } if error == text) {
            tracing::warn!(error = text, "redis is away, other processes find work by scanning");
        }
    }

    /// The stream that carries the wakes of `pool`.
    fn wake_key(&self, pool: &str) -> String {
        format!("{}wake:{pool}", self.prefix)
    }

    /// The stream that carries cancel signals.
    fn cancel_key(&self) -> String {
        format!("{}cancel", self.prefix)
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Our own limit around every exchange, whatever the client library's defaults become.
pub async fn within_deadline<T>(exchange: impl Future<Output = redis::RedisResult<T>>) -> redis::RedisResult<T> {
    let late = || redis::RedisError::from((redis::ErrorKind::Io, "no answer within the deadline"));
    tokio::time::timeout(DEADLINE, exchange).await.map_err(|_| late())?
}

/// What the server said where it said something (`READONLY You can't write …`), else what the client says.
pub fn plain(error: redis::RedisError) -> String {
    let text = error.to_string();
    let said = error
        .into_server_errors()
        .and_then(|errors| Some(errors.first()?.1.clone()));
    said.map_or(text, |said| {
        format!("{} {}", said.code(), said.details().unwrap_or_default())
    })
}

/// Reads the URI. No connection is made.
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
            // The binary installs a provider first thing; this is for whoever uses the crate without it. An error
            // means that there is one already.
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
