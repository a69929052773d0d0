//! Opening a store, reading and writing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use towpath_domain::Clock;

use crate::connections::Connections;
use crate::error::{Error, Result};
use crate::metric;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::tx::{Dialect, Hints, StoreContext, Tx};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The process's clock.
    pub clock: Clock,
    /// Maximum connections of this process: all of them to PostgreSQL; on SQLite only readers (plus one writer).
    pub connections: u32,
    /// How long a call waits for a free connection before it fails as unavailable.
    pub acquire_timeout: Duration,
    /// The lease of the workers. PostgreSQL's timeouts for statements, locks and idle transactions are fractions of it.
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
pub struct Store(Arc<StoreState>);

struct StoreState {
    uri: String,
    options: Options,
    database: Database,
    shared: Arc<StoreContext>,
}

enum Database {
    Sqlite(Box<Sqlite>),
    Postgres(Box<Postgres>),
}

impl Store {
    /// Opens `sqlite:///absolute/path.db`, `sqlite://relative.db`, or `postgres://…`.
    ///
    /// # Errors
    /// [`Error::Open`] with a message for the operator: unknown scheme, unreadable file, a second process on the same
    /// SQLite file, or a network file system.
    pub async fn open(uri: &str, options: Options) -> Result<Self> {
        let shared = Arc::new(StoreContext {
            clock: options.clock.clone(),
            ..StoreContext::default()
        });
        let back = if let Some(path) = uri.strip_prefix("sqlite://") {
            let path = PathBuf::from(path.split('?').next().unwrap_or_default());
            Database::Sqlite(Box::new(Sqlite::open(&path, &options, shared.clone()).await?))
        } else if uri.starts_with("postgres://") || uri.starts_with("postgresql://") {
            Database::Postgres(Box::new(Postgres::open(uri, &options, shared.clone())?))
        } else {
            return Err(Error::Open(
                "DATABASE_URI must begin with sqlite:// or postgres://".to_owned(),
            ));
        };
        Ok(Self(Arc::new(StoreState {
            uri: uri.to_owned(),
            options,
            database: back,
            shared,
        })))
    }

    /// A store on the same PostgreSQL database with its own `connections`, opened on the calling runtime, so that a
    /// busy pool cannot delay it. On SQLite it is this store, since the file has one writer.
    pub fn with_own_pool(&self, connections: u32) -> Result<Self> {
        match &self.0.database {
            Database::Sqlite(_) => Ok(self.clone()),
            Database::Postgres(_) => {
                let options = Options {
                    connections,
                    ..self.0.options.clone()
                };
                let back = Database::Postgres(Box::new(Postgres::open(&self.0.uri, &options, self.0.shared.clone())?));
                Ok(Self(Arc::new(StoreState {
                    uri: self.0.uri.clone(),
                    options,
                    database: back,
                    shared: self.0.shared.clone(),
                })))
            }
        }
    }

    /// Says where hints go after each commit. The first caller wins.
    pub fn on_hints(&self, sink: impl Fn(Hints) + Send + Sync + 'static) {
        let _ = self.0.shared.sink.set(Box::new(sink));
    }

    /// Attaches a value to every transaction of this store ([`Tx::attached`]): the engine's end handlers, so that a
    /// caller that ends a job can call them. The first caller wins.
    pub fn attach<T: std::any::Any + Send + Sync>(&self, value: Arc<T>) {
        let _ = self.0.shared.attached.set(value);
    }

    /// Applies pending migrations. Safe to call from several processes at once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database does not answer, [`Error::OlderBuild`] or [`Error::NewerBuild`] if this
    /// build does not support its schema, [`Error::Open`] if a migration fails.
    pub async fn migrate(&self) -> Result<()> {
        match &self.0.database {
            Database::Sqlite(back) => back.migrate().await,
            Database::Postgres(back) => back.migrate().await,
        }
    }

    /// Creates missing indexes that migrations leave to be built concurrently. Returns how many statements remain. The
    /// time depends on the size of the table. SQLite has none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database does not answer, [`Error::Driver`] if it refuses.
    pub async fn make_indexes(&self) -> Result<i64> {
        match &self.0.database {
            Database::Sqlite(_) => Ok(0),
            Database::Postgres(back) => back.make_indexes().await,
        }
    }

    /// Runs `f` on a read connection. Not a transaction: each statement sees what is committed when it runs.
    ///
    /// # Errors
    /// The error of `f`, or [`Error::Unavailable`] if no connection was available.
    pub async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = match &self.0.database {
            Database::Sqlite(back) => back.read(f).await,
            Database::Postgres(back) => back.read(f).await,
        };
        metric::called("read", began.elapsed(), &result);
        result
    }

    /// Runs `f` as one transaction and returns after it is committed and on disk. An error rolls it back. The closure
    /// must do nothing but SQL: on SQLite all writers wait for it.
    ///
    /// # Errors
    /// The error of `f`, or [`Error::Unavailable`] or [`Error::Full`] if the commit failed.
    pub async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = match &self.0.database {
            Database::Sqlite(back) => back.write(f).await,
            Database::Postgres(back) => back.write(f).await,
        };
        metric::called("write", began.elapsed(), &result);
        result
    }

    /// As [`Store::write`], for a closure with a single statement (on SQLite: a single writing library call). That is a
    /// transaction by itself and saves the round trips of BEGIN and COMMIT on the hot path of claims, renewals and
    /// completions. An error returned after the statement does not undo it.
    pub async fn write_one<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = match &self.0.database {
            Database::Sqlite(back) => back.write_one(f).await,
            Database::Postgres(back) => back.write_one(f).await,
        };
        metric::called("write_one", began.elapsed(), &result);
        result
    }

    /// Asks whether the database can do its part: it answers, and took the latest write.
    pub async fn check(&self) -> Result<()> {
        self.read(async |tx| crate::jobs::db_now(tx).await).await?;
        match &self.0.database {
            Database::Sqlite(back) => back.check(),
            Database::Postgres(_) => Ok(()),
        }
    }

    /// The clock this store was opened with.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.shared.clock
    }

    /// The number of statements sent by this store, for tests that bound it.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.shared.statements.load(Ordering::Relaxed)
    }

    /// What messages call the database: its file, or its name and server.
    pub(crate) fn name(&self) -> String {
        match &self.0.database {
            Database::Sqlite(back) => back.name(),
            Database::Postgres(back) => back.name(),
        }
    }

    /// Which database this is.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match &self.0.database {
            Database::Sqlite(_) => Dialect::Sqlite,
            Database::Postgres(_) => Dialect::Postgres,
        }
    }

    /// The connections of this store; on SQLite those for reading.
    #[must_use]
    pub fn connections(&self) -> Connections {
        match &self.0.database {
            Database::Sqlite(back) => back.connections(),
            Database::Postgres(back) => back.connections(),
        }
    }

    /// Closes the connections; calls after it fail as unavailable.
    pub async fn close(&self) {
        match &self.0.database {
            Database::Sqlite(back) => back.close().await,
            Database::Postgres(back) => back.close().await,
        }
    }
}
