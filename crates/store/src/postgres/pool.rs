//! Connections to PostgreSQL, kept between calls.
//!
//! The library's own pool asks each connection that comes back whether it still lives, and waits for the answer
//! without a bound. On a line that lost its other end without a word (a host that vanished, a firewall that forgot)
//! that answer never comes, so one bad minute took a place of the pool for good, and a process that has one
//! connection for its leases never renewed one again. Here a connection comes back only from a call that went well;
//! any other is closed. That also saves a round trip per call.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::error::{Error, Result};
use crate::metric;

/// A connection that nobody needs for so long is closed.
const IDLE: Duration = Duration::from_secs(300);
/// Sessions grow caches; after this they begin anew.
const AGE: Duration = Duration::from_secs(30 * 60);
/// While a server starts it refuses: it is asked again after a little, then after more.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// Where another connection was answered so lately, the database is there.
const LATELY: Duration = Duration::from_secs(3);
/// What saying goodbye may take.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    connect: PgConnectOptions,
    /// What every session begins with.
    session: String,
    /// How long a call waits for a connection.
    patience: Duration,
    size: usize,
    /// One per connection in use. There are never more connections than places: one is opened when none is free.
    places: Arc<Semaphore>,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Default)]
struct Shelf {
    /// Last in, first out: what is not needed stays below and grows old.
    free: Vec<Kept>,
    /// Rises when a line broke: what is older is not to be trusted.
    generation: u64,
    /// When a line last came back well.
    answered: Option<Instant>,
    closed: bool,
}

struct Kept {
    conn: PgConnection,
    born: Instant,
    since: Instant,
}

impl Pool {
    pub(super) fn new(connect: PgConnectOptions, session: String, size: u32, patience: Duration) -> Self {
        let size = usize::try_from(size.max(1)).unwrap_or(1);
        Self {
            connect,
            session,
            patience,
            size,
            places: Arc::new(Semaphore::new(size)),
            shelf: Arc::default(),
        }
    }

    /// A connection: one that is free, or a new one.
    pub(super) async fn line(&self) -> Result<Line> {
        let asked = Instant::now();
        let deadline = asked + self.patience;
        let place = timeout_at(deadline, self.places.clone().acquire_owned());
        let place = place.await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        let (kept, generation) = {
            let mut shelf = lock(&self.shelf);
            (shelf.free.pop(), shelf.generation)
        };
        let kept = match kept {
            Some(kept) => kept,
            None => self.open(deadline).await?,
        };
        metrics::histogram!(metric::ACQUIRE, "of" => "pool").record(asked.elapsed());
        Ok(Line {
            kept,
            generation,
            shelf: Arc::clone(&self.shelf),
            _place: place,
        })
    }

    async fn open(&self, deadline: Instant) -> Result<Kept> {
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
                    return Ok(Kept {
                        conn,
                        born,
                        since: born,
                    });
                }
                Ok(Err(error)) if starting(&error) && Instant::now() + pause < deadline => sleep(pause).await,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(silent("no connection to the database in time")),
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Connections that are open, and how many of those are free.
    pub(super) fn connections(&self) -> (u32, usize) {
        let free = lock(&self.shelf).free.len();
        let busy = self.size.saturating_sub(self.places.available_permits());
        (u32::try_from(busy + free).unwrap_or(u32::MAX), free)
    }

    /// Closes what is free; what is in use is closed when it comes back.
    pub(super) async fn close(&self) {
        self.places.close();
        let free = {
            let mut shelf = lock(&self.shelf);
            shelf.closed = true;
            std::mem::take(&mut shelf.free)
        };
        let farewells = free.into_iter().map(|kept| kept.conn.close());
        let _ = timeout(FAREWELL, futures::future::join_all(farewells)).await;
    }
}

/// A connection in use. Dropped without a word it is closed: nobody knows what is still under way on it.
pub(super) struct Line {
    kept: Kept,
    generation: u64,
    shelf: Arc<Mutex<Shelf>>,
    _place: OwnedSemaphorePermit,
}

impl Line {
    pub(super) fn conn(&mut self) -> &mut PgConnection {
        &mut self.kept.conn
    }

    /// Gives it back: nothing is under way on it.
    pub(super) fn keep(mut self) {
        let now = Instant::now();
        let mut shelf = lock(&self.shelf);
        shelf.answered = Some(now);
        shelf.free.retain(|kept| now < kept.since + IDLE);
        if !shelf.closed && self.generation == shelf.generation && now < self.kept.born + AGE {
            self.kept.since = now;
            shelf.free.push(self.kept);
        }
    }

    /// Closes it, and says so to the server: what it holds is free at once.
    pub(super) async fn close(self) {
        let _ = timeout(FAREWELL, self.kept.conn.close()).await;
    }

    /// It broke. Whatever broke it will have broken the others as well, and finding that out one by one would cost as
    /// many callers. Only where it was not answered in time, and another was a moment ago, this statement alone is slow.
    pub(super) fn broke(self, error: &Error) {
        let mut shelf = lock(&self.shelf);
        // A transaction that was silent for too long says nothing of other lines.
        let is_alone =
            is_own_silence(error) || (is_silence(error) && shelf.answered.is_some_and(|at| at.elapsed() < LATELY));
        if !is_alone && self.generation == shelf.generation {
            shelf.generation += 1;
            shelf.free.clear();
        }
    }
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    // Nothing in here panics half way through a change.
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When something was last said to the database.
pub(crate) struct Beat {
    begun: Instant,
    /// In microseconds since then.
    last: AtomicU64,
}

impl Beat {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn beat(&self) {
        let micros = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(micros, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.begun + Duration::from_micros(self.last.load(Ordering::Relaxed))
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
                        return Err(silent("the database did not answer in time"));
                    }
                }
            }
        }
    }
}

/// Whether an error means that the connection is of no use any more: it is gone, it leads to a server that may not write any
/// more, which a new connection may not, or it has cached statements from before a migration.
pub(super) fn broken(error: &Error) -> bool {
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
fn starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        sqlx::Error::Database(refusal) => matches!(refusal.code().as_deref(), Some("57P03" | "53300")),
        _ => false,
    }
}

fn silent(why: &str) -> Error {
    let error = io::Error::new(io::ErrorKind::TimedOut, why);
    Error::Unavailable(Arc::new(sqlx::Error::Io(error)))
}
