//! A connection pool for PostgreSQL.
//!
//! The library's own pool pings each returned connection without a timeout. If the peer vanished silently (a lost host,
//! a firewall that dropped its state), the answer never comes and the slot is lost for good; a process with a single
//! connection for its leases could never renew again. Here only connections of successful calls are reused; all others
//! are closed. That also saves a round trip per call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::connections::{AcquireCounts, Connections};
use crate::error::{Error, Result};
use crate::metric;

/// A connection that no one needs for so long is closed.
const IDLE: Duration = Duration::from_secs(300);
/// Sessions grow caches; after this they begin again.
const AGE: Duration = Duration::from_secs(30 * 60);
/// While a server starts it refuses: it is asked again after a little, then after more.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// Where another connection was answered so lately, the database is there.
const RECENT: Duration = Duration::from_secs(3);
/// Time limit for closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    connect: PgConnectOptions,
    /// The initial statement of each session.
    session: String,
    /// How long a call waits for a connection.
    acquire_timeout: Duration,
    size: usize,
    /// One permit per connection in use; a connection is opened when none is idle.
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<IdleConnections>>,
    counts: AcquireCounts,
}

#[derive(Default)]
struct IdleConnections {
    /// Last in, first out: what is not needed stays below and grows old.
    free: Vec<IdleConnection>,
    /// Rises when a line broke: what is older must not be trusted.
    generation: u64,
    /// When a line last came back well.
    last_returned: Option<Instant>,
    closed: bool,
}

struct IdleConnection {
    conn: PgConnection,
    opened_at: Instant,
    idle_since: Instant,
}

impl Pool {
    pub(super) fn new(connect: PgConnectOptions, session: String, size: u32, patience: Duration) -> Self {
        let size = usize::try_from(size.max(1)).unwrap_or(1);
        Self {
            connect,
            session,
            acquire_timeout: patience,
            size,
            permits: Arc::new(Semaphore::new(size)),
            idle: Arc::default(),
            counts: AcquireCounts::default(),
        }
    }

    /// A connection: one that is free, or a new one.
    pub(super) async fn acquire(&self) -> Result<PooledConnection> {
        if self.permits.available_permits() == 0 {
            self.counts.add_wait();
        }
        let acquired = self.acquire_in_time().await;
        if acquired.is_err() {
            self.counts.add_failure();
        }
        acquired
    }

    async fn acquire_in_time(&self) -> Result<PooledConnection> {
        let asked = Instant::now();
        let deadline = asked + self.acquire_timeout;
        let place = timeout_at(deadline, self.permits.clone().acquire_owned());
        let place = place.await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        let (kept, generation) = {
            let mut shelf = self.idle.lock();
            (shelf.free.pop(), shelf.generation)
        };
        let kept = match kept {
            Some(kept) => kept,
            None => self.open(deadline).await?,
        };
        metrics::histogram!(metric::ACQUIRE, "of" => "pool").record(asked.elapsed());
        Ok(PooledConnection {
            connection: kept,
            generation,
            idle: Arc::clone(&self.idle),
            _permit: place,
        })
    }

    async fn open(&self, deadline: Instant) -> Result<IdleConnection> {
        let mut pause = PAUSES.0;
        loop {
            let opened = timeout_at(deadline, async {
                let mut conn = PgConnection::connect_with(&self.connect).await?;
                conn.execute(AssertSqlSafe(self.session.clone())).await?;
                Ok(conn)
            });
            match opened.await {
                Ok(Ok(conn)) => {
                    let born = Instant::now();
                    return Ok(IdleConnection {
                        conn,
                        opened_at: born,
                        idle_since: born,
                    });
                }
                Ok(Err(error)) if is_starting(&error) && Instant::now() + pause < deadline => sleep(pause).await,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(timeout_error("timed out waiting for a database connection")),
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    pub(super) fn connections(&self) -> Connections {
        let idle = self.idle.lock().free.len();
        let busy = self.size.saturating_sub(self.permits.available_permits());
        self.counts.connections(self.size, busy, idle)
    }

    /// Closes what is free; what is in use is closed when it comes back.
    pub(super) async fn close(&self) {
        self.permits.close();
        let free = {
            let mut shelf = self.idle.lock();
            shelf.closed = true;
            std::mem::take(&mut shelf.free)
        };
        let farewells = free.into_iter().map(|kept| kept.conn.close());
        let _ = timeout(CLOSE_TIMEOUT, futures::future::join_all(farewells)).await;
    }
}

/// A connection in use. Dropped without being returned, it is closed: its state is unknown.
pub(super) struct PooledConnection {
    connection: IdleConnection,
    generation: u64,
    idle: Arc<Mutex<IdleConnections>>,
    _permit: OwnedSemaphorePermit,
}

impl PooledConnection {
    pub(super) fn conn(&mut self) -> &mut PgConnection {
        &mut self.connection.conn
    }

    /// Releases it: nothing is under way on it.
    pub(super) fn release(mut self) {
        let now = Instant::now();
        let mut shelf = self.idle.lock();
        shelf.last_returned = Some(now);
        shelf.free.retain(|kept| now < kept.idle_since + IDLE);
        if !shelf.closed && self.generation == shelf.generation && now < self.connection.opened_at + AGE {
            self.connection.idle_since = now;
            shelf.free.push(self.connection);
        }
    }

    /// Closes it, and says so to the server: what it holds is free at once.
    pub(super) async fn close(self) {
        let _ = timeout(CLOSE_TIMEOUT, self.connection.conn.close()).await;
    }

    /// Discards all idle connections: whatever broke this one has probably broken the others, and finding out one by
    /// one would cost as many calls. Only for a timeout shortly after another connection answered, this statement alone
    /// is slow.
    pub(super) fn invalidate_pool(self, error: &Error) {
        let mut shelf = self.idle.lock();
        // A transaction that was silent for too long says nothing of other lines.
        let is_alone =
            is_own_silence(error) || (is_silence(error) && shelf.last_returned.is_some_and(|at| at.elapsed() < RECENT));
        if !is_alone && self.generation == shelf.generation {
            shelf.generation += 1;
            shelf.free.clear();
        }
    }
}

/// When something was last said to the database.
pub(crate) struct StatementClock {
    started: Instant,
    /// In microseconds since then.
    last: AtomicU64,
}

impl StatementClock {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn touch(&self) {
        let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(micros, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.started + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }

    /// Waits for `work`, as long as no single statement of it takes longer than `silence`.
    pub(super) async fn watch<T>(&self, silence: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::pin!(work);
        loop {
            let until = self.last() + silence;
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep_until(until) => {
                    if self.last() + silence <= Instant::now() {
                        return Err(timeout_error("the database did not answer in time"));
                    }
                }
            }
        }
    }
}

/// Whether the connection is unusable after this error: it is gone, it leads to a server that has become read-only, or
/// it has cached statements from before a migration.
pub(super) fn is_broken(error: &Error) -> bool {
    let Error::Unavailable(source) = error else {
        return false;
    };
    match source.as_ref() {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(refusal) => refusal.code().is_some_and(|code| {
            code.starts_with("08") || code.starts_with("57P") || matches!(&*code, "25006" | "25P03" | "0A000")
        }),
        _ => false,
    }
}

/// Whether the server ended a transaction in which this side was silent.
fn is_own_silence(error: &Error) -> bool {
    let Error::Unavailable(source) = error else {
        return false;
    };
    let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.as_deref() == Some("25P03")
}

/// Whether no answer came in time.
fn is_silence(error: &Error) -> bool {
    matches!(error, Error::Unavailable(source)
        if matches!(source.as_ref(), sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut))
}

/// Whether a server may be on its way up, or has no place for one more at this moment.
fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        sqlx::Error::Database(refusal) => matches!(refusal.code().as_deref(), Some("57P03" | "53300")),
        _ => false,
    }
}

fn timeout_error(why: &str) -> Error {
    let error = io::Error::new(io::ErrorKind::TimedOut, why);
    Error::Unavailable(Arc::new(sqlx::Error::Io(error)))
}
