//! A connection of either database, and the two macros that let one body serve both.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sqlx::{PgConnection, SqliteConnection};
use towpath_domain::job::ReadyJob;
use towpath_domain::{Clock, JobId, ThreadId, Timestamp};

use crate::postgres::StatementClock;

/// Which database is behind a [`Tx`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Embedded.
    Sqlite,
    /// Cluster.
    Postgres,
}

/// What the outside should be told once the transaction is committed. Hints: they may be lost.
#[derive(Debug, Default, Clone)]
pub struct Hints {
    /// Pools that may have ready jobs other than those in [`Hints::ready`].
    pub wakes: Vec<String>,
    /// Jobs that became ready.
    pub ready: Vec<ReadyJob>,
    /// Running jobs that were asked to stop.
    pub cancels: Vec<JobId>,
    /// Events for the caller that listens to a thread, in their order.
    pub events: Vec<(ThreadId, Arc<str>)>,
}

impl Hints {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.ready.is_empty() && self.cancels.is_empty() && self.events.is_empty()
    }
}

/// Ready jobs that one transaction names. Of more, only the pool is told.
const READY_NAMED: usize = 10_000;

/// Where hints go after a commit. Must return at once.
pub(crate) type HintSink = Box<dyn Fn(Hints) + Send + Sync>;

/// What every transaction of one store knows.
#[derive(Default)]
pub(crate) struct StoreContext {
    pub(crate) clock: Clock,
    pub(crate) sink: OnceLock<HintSink>,
    pub(crate) attached: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// How many statements were sent.
    pub(crate) statements: AtomicU64,
}

impl StoreContext {
    /// Tells the outside what a transaction that is now committed left to tell.
    pub(crate) fn tell(&self, hints: Hints) {
        if !hints.is_empty()
            && let Some(sink) = self.sink.get()
        {
            sink(hints);
        }
    }
}

/// The database handle of store functions: inside [`Store::write`](crate::Store::write) a transaction, inside
/// [`Store::write_one`](crate::Store::write_one) a transaction or a connection for one statement, inside
/// [`Store::read`](crate::Store::read) a connection.
pub struct Tx<'c> {
    conn: Conn<'c>,
    shared: &'c StoreContext,
    hints: Hints,
    /// Children of these jobs were recorded.
    parents: Vec<JobId>,
    /// Notified of each statement, to enforce time limits.
    statement_clock: Option<&'c StatementClock>,
    /// No transaction is open on SQLite.
    is_single_statement: bool,
}

/// The connection behind a [`Tx`]; use it through [`on!`](crate::on).
pub enum Conn<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl<'c> Tx<'c> {
    pub(crate) fn new(conn: Conn<'c>, shared: &'c StoreContext) -> Self {
        Self {
            conn,
            shared,
            hints: Hints::default(),
            parents: Vec::new(),
            statement_clock: None,
            is_single_statement: false,
        }
    }

    pub(crate) const fn single_statement(mut self) -> Self {
        self.is_single_statement = true;
        self
    }

    /// Whether the next call on SQLite is its own transaction; several statements must bring their own BEGIN and
    /// COMMIT.
    pub(crate) const fn is_single_statement(&self) -> bool {
        self.is_single_statement
    }

    pub(crate) fn with_statement_clock(mut self, beat: &'c StatementClock) -> Self {
        self.statement_clock = Some(beat);
        self
    }

    /// The connection, for [`on!`](crate::on).
    pub fn conn(&mut self) -> Conn<'_> {
        if let Some(beat) = self.statement_clock {
            beat.touch();
        }
        self.shared.statements.fetch_add(1, Ordering::Relaxed);
        match &mut self.conn {
            Conn::Sqlite(conn) => Conn::Sqlite(conn),
            Conn::Postgres(conn) => Conn::Postgres(conn),
        }
    }

    /// Which database this is.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        match self.conn {
            Conn::Sqlite(_) => Dialect::Sqlite,
            Conn::Postgres(_) => Dialect::Postgres,
        }
    }

    /// The process's clock, for values no one compares across hosts (`created_at`, `updated_at`).
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// The parameter for statements that compare due times, leases and deadlines: the process's clock on SQLite, which
    /// has a single process, and NULL on PostgreSQL, where `towpath_now($n)` then uses the database's clock.
    #[must_use]
    pub fn now_param(&self) -> Option<Timestamp> {
        match self.conn {
            Conn::Sqlite(_) => Some(self.shared.clock.now()),
            Conn::Postgres(_) => None,
        }
    }

    /// Tells workers, after the commit, that this job is ready.
    pub fn ready(&mut self, job: ReadyJob) {
        if self.hints.ready.len() < READY_NAMED {
            self.hints.ready.push(job);
        } else {
            self.wake(&job.pool);
        }
    }

    /// Tells workers of `pool`, after the commit, that there is work, if the jobs are not known by their ids.
    pub fn wake(&mut self, pool: &str) {
        if !self.hints.wakes.iter().any(|known| known == pool) {
            self.hints.wakes.push(pool.to_owned());
        }
    }

    /// Tells the worker of a running job, after the commit, that it was asked to stop.
    pub fn signal_cancel(&mut self, job: JobId) {
        self.hints.cancels.push(job);
    }

    /// Publishes a frame to listeners of a thread after the commit: the text of a [`towpath_domain::agent::Frame`].
    pub fn publish(&mut self, thread: ThreadId, frame: impl Into<Arc<str>>) {
        self.hints.events.push((thread, frame.into()));
    }

    /// Records that a child of `parent` is recorded in this transaction.
    pub fn note_child(&mut self, parent: JobId) {
        if !self.parents.contains(&parent) {
            self.parents.push(parent);
        }
    }

    /// Whether a child of `parent` was noted.
    #[must_use]
    pub fn noted_child(&self, parent: JobId) -> bool {
        self.parents.contains(&parent)
    }

    /// The value attached to the store, see [`Store::attach`](crate::Store::attach).
    #[must_use]
    pub fn attached<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.shared.attached.get()?.clone().downcast().ok()
    }

    pub(crate) fn into_hints(self) -> Hints {
        self.hints
    }
}

/// Runs one body on whichever database is behind the [`Tx`].
///
/// ```ignore
/// let rows = on!(tx, |conn| sqlx::query_as("SELECT id, status FROM export WHERE id = $1").bind(id).fetch_all(conn).await)?;
/// let changed = on!(tx, |conn| sqlx::query("…").execute(conn).await.map(|done| done.rows_affected()))?;
/// ```
#[macro_export]
macro_rules! on {
    ($tx:expr, |$conn:ident| $body:expr) => {
        match $tx.conn() {
            $crate::Conn::Sqlite($conn) => $body,
            $crate::Conn::Postgres($conn) => $body,
        }
    };
}

/// Selects the text if the two databases must differ. State the reason next to it.
#[macro_export]
macro_rules! sql {
    ($tx:expr, sqlite: $sqlite:expr, postgres: $postgres:expr $(,)?) => {
        match $tx.dialect() {
            $crate::Dialect::Sqlite => $sqlite,
            $crate::Dialect::Postgres => $postgres,
        }
    };
}
