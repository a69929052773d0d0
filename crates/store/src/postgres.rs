//! PostgreSQL: a closure is its own transaction.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection as _, Executor, PgPool};

use crate::error::{Error, Result};
use crate::metric;
use crate::open::Options;
use crate::tx::{Conn, Shared, Tx};

/// What every session begins with.
///
/// A statement's plan is cached after a few uses, made for the table as it was then: nearly empty, where reading all
/// of it is cheapest. It is kept while the table grows, until the next ANALYZE a minute or more later; a claim was
/// seen to read 200,000 rows for 2 and to take from 80 ms to 5 s. Every statement here has an index, so sessions are
/// told to use it. (Joins have plans that read a whole index in order; hence `= ANY` where many jobs are meant.)
///
/// A process that is stopped in the middle of a transaction must not keep its locks: lanes and jobs would stand still
/// until it goes on. So it may be silent in one for as long as a lease.
const SESSION: &str =
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_mergejoin = off; SET jit = off;
SET idle_in_transaction_session_timeout = '15s'";

pub(crate) struct Postgres {
    pool: PgPool,
    shared: Arc<Shared>,
}

impl Postgres {
    /// Does not connect yet, so that a process may start while its database is still on the way up.
    pub(crate) fn open(uri: &str, options: &Options, shared: Arc<Shared>) -> Result<Self> {
        let connect: PgConnectOptions = uri
            .parse()
            // The parser's own text can hold the URI, and that the password.
            .map_err(|_| Error::Open("DATABASE_URI is not a valid postgres:// address".to_owned()))?;
        let connect = connect
            .application_name("towpath")
            .statement_cache_capacity(256)
            .disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(options.connections.max(1))
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .idle_timeout(Duration::from_secs(300))
            .after_connect(|conn, _| Box::pin(async move { conn.execute(SESSION).await.map(drop) }))
            .connect_lazy_with(connect);
        Ok(Self { pool, shared })
    }

    pub(crate) async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut conn = self.acquire().await?;
        f(&mut Tx::new(Conn::Postgres(&mut conn), &self.shared)).await
    }

    pub(crate) async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut conn = self.acquire().await?;
        let mut transaction = conn.begin().await?;
        let mut tx = Tx::new(Conn::Postgres(&mut transaction), &self.shared);
        let result = f(&mut tx).await;
        let hints = tx.into_hints();
        match result {
            Ok(value) => {
                transaction.commit().await?;
                self.shared.tell(hints);
                Ok(value)
            }
            Err(error) => {
                // A connection that broke rolls back by itself.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn write_one<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut conn = self.acquire().await?;
        let mut tx = Tx::new(Conn::Postgres(&mut conn), &self.shared);
        let value = f(&mut tx).await?;
        self.shared.tell(tx.into_hints());
        Ok(value)
    }

    pub(crate) async fn migrate(&self) -> Result<()> {
        sqlx::migrate!("migrations/postgres")
            .run(&self.pool)
            .await
            .map_err(|error| match error {
                sqlx::migrate::MigrateError::Execute(error) => error.into(),
                other => Error::Open(format!("cannot migrate the database: {other}")),
            })
    }

    async fn acquire(&self) -> Result<PoolConnection<sqlx::Postgres>> {
        let asked = std::time::Instant::now();
        let conn = self.pool.acquire().await?;
        metrics::histogram!(metric::ACQUIRE, "of" => "pool").record(asked.elapsed());
        Ok(conn)
    }

    pub(crate) fn connections(&self) -> (u32, usize) {
        (self.pool.size(), self.pool.num_idle())
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}
