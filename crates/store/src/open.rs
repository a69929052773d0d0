//! Opening a store, reading and writing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use towpath_domain::Clock;

use crate::error::{Error, Result};
use crate::metric;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::tx::{Dialect, Hints, Shared, Tx};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The process's clock.
    pub clock: Clock,
    /// Most connections of this process: to PostgreSQL in all, to SQLite for reading (one more writes).
    pub connections: u32,
    /// How long a call waits for a free connection before it fails as unavailable.
    pub acquire_timeout: Duration,
    /// The lease of the workers. PostgreSQL waits for a statement, a lock or a silent transaction for parts of it only.
    pub lease: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            connections: 8,
            acquire_timeout: Duration::from_secs(5),
            lease: Duration::from_secs(15),
        }
    }
}

/// A database, opened. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    uri: String,
    options: Options,
    back: Back,
    shared: Arc<Shared>,
}

/// Open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// In use.
    pub busy: u32,
    /// Free.
    pub idle: u32,
}

enum Back {
    Sqlite(Box<Sqlite>),
    Postgres(Box<Postgres>),
}

impl Store {
    /// Opens `sqlite:///absolute/path.db`, `sqlite://relative.db`, or `postgres://…`.
    ///
    /// # Errors
    /// [`Error::Open`] with a sentence for the operator: unknown scheme, unreadable file, a second process on the
    /// same SQLite file, a network file system.
    pub async fn open(uri: &str, options: Options) -> Result<Self> {
        let shared = Arc::new(Shared {
            clock: options.clock.clone(),
            ..Shared::default()
        });
        let back = if let Some(path) = uri.strip_prefix("sqlite://") {
            let path = PathBuf::from(path.split('?').next().unwrap_or_default());
            Back::Sqlite(Box::new(Sqlite::open(&path, &options, shared.clone()).await?))
        } else if uri.starts_with("postgres://") || uri.starts_with("postgresql://") {
            Back::Postgres(Box::new(Postgres::open(uri, &options, shared.clone())?))
        } else {
            return Err(Error::Open(
                "DATABASE_URI must begin with sqlite:// or postgres://".to_owned(),
            ));
        };
        Ok(Self(Arc::new(Inner {
            uri: uri.to_owned(),
            options,
            back,
            shared,
        })))
    }

    /// A store on the same PostgreSQL database with `connections` of its own, opened on the calling runtime, so that
    /// a busy pool elsewhere cannot keep it waiting. On SQLite it is this store itself: its file has one writer.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn apart(&self, connections: u32) -> Result<Self> {
        match &self.0.back {
            Back::Sqlite(_) => Ok(self.clone()),
            Back::Postgres(_) => {
                let options = Options {
                    connections,
                    ..self.0.options.clone()
                };
                let back = Back::Postgres(Box::new(Postgres::open(&self.0.uri, &options, self.0.shared.clone())?));
                Ok(Self(Arc::new(Inner {
                    uri: self.0.uri.clone(),
                    options,
                    back,
                    shared: self.0.shared.clone(),
                })))
            }
        }
    }

    /// Says where hints go after each commit. The first caller wins.
    pub fn on_hints(&self, sink: impl Fn(Hints) + Send + Sync + 'static) {
        let _ = self.0.shared.sink.set(Box::new(sink));
    }

    /// Gives every transaction of this store something a room above wants to find there
    /// ([`Tx::attached`]): the engine's registry of ends, so that whoever ends a job can call them. The first caller
    /// wins.
    pub fn attach<T: std::any::Any + Send + Sync>(&self, value: Arc<T>) {
        let _ = self.0.shared.attached.set(value);
    }

    /// Brings the schema up to date. Safe when several processes do it at once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the database does not answer, [`Error::OlderBuild`] and [`Error::NewerBuild`] when
    /// this build cannot work with its schema, [`Error::Open`] when a migration fails.
    pub async fn migrate(&self) -> Result<()> {
        match &self.0.back {
            Back::Sqlite(back) => back.migrate().await,
            Back::Postgres(back) => back.migrate().await,
        }
    }

    /// Makes the indexes that migrations leave to be made beside the work, as far as they are missing. Answers how many statements
    /// that still takes. Making one takes as long as its table is large. On SQLite none is left to be made.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the database does not answer, [`Error::Driver`] when it refuses.
    pub async fn make_indexes(&self) -> Result<i64> {
        match &self.0.back {
            Back::Sqlite(_) => Ok(0),
            Back::Postgres(back) => back.make_indexes().await,
        }
    }

    /// Runs `f` on a connection for reading. Not a transaction: statements each see what is committed when they run.
    ///
    /// # Errors
    /// What `f` answers, and [`Error::Unavailable`] when no connection was to be had.
    pub async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = match &self.0.back {
            Back::Sqlite(back) => back.read(f).await,
            Back::Postgres(back) => back.read(f).await,
        };
        metric::called("read", began.elapsed(), &result);
        result
    }

    /// Runs `f` as one transaction and returns after it is committed and on disk. An error rolls all of it back.
    /// The closure does nothing but SQL: on SQLite everybody waits for it.
    ///
    /// # Errors
    /// What `f` answers, and [`Error::Unavailable`] or [`Error::Full`] when the commit failed.
    pub async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = match &self.0.back {
            Back::Sqlite(back) => back.write(f).await,
            Back::Postgres(back) => back.write(f).await,
        };
        metric::called("write", began.elapsed(), &result);
        result
    }

    /// As [`Store::write`], for a closure that is one statement (on SQLite: one call to the library that writes). That is a
    /// transaction by itself, which saves the two round trips of BEGIN and COMMIT: the hot path of claiming, renewing and
    /// completing. An error the closure makes up after its statement undoes nothing.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn write_one<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = match &self.0.back {
            Back::Sqlite(back) => back.write_one(f).await,
            Back::Postgres(back) => back.write_one(f).await,
        };
        metric::called("write_one", began.elapsed(), &result);
        result
    }

    /// Asks whether the database can do its part: it answers, and took the latest write.
    ///
    /// # Errors
    /// Why not; see [`Error::told`].
    pub async fn check(&self) -> Result<()> {
        self.read(async |tx| crate::jobs::db_now(tx).await).await?;
        match &self.0.back {
            Back::Sqlite(back) => back.check(),
            Back::Postgres(_) => Ok(()),
        }
    }

    /// The clock this store was opened with.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.shared.clock
    }

    /// How many statements this store has sent: for tests of what must not grow with the rows it is about.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.shared.statements.load(Ordering::Relaxed)
    }

    /// What messages call the database: its file, or its name and server.
    pub(crate) fn name(&self) -> String {
        match &self.0.back {
            Back::Sqlite(back) => back.name(),
            Back::Postgres(back) => back.name(),
        }
    }

    /// Which database this is.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match &self.0.back {
            Back::Sqlite(_) => Dialect::Sqlite,
            Back::Postgres(_) => Dialect::Postgres,
        }
    }

    /// The connections of this store that are open now; on SQLite those for reading.
    #[must_use]
    pub fn connections(&self) -> Connections {
        let (open, idle) = match &self.0.back {
            Back::Sqlite(back) => back.connections(),
            Back::Postgres(back) => back.connections(),
        };
        let idle = u32::try_from(idle).unwrap_or(u32::MAX).min(open);
        Connections {
            busy: open - idle,
            idle,
        }
    }

    /// Closes the connections; calls after it fail as unavailable.
    pub async fn close(&self) {
        match &self.0.back {
            Back::Sqlite(back) => back.close().await,
            Back::Postgres(back) => back.close().await,
        }
    }
}
