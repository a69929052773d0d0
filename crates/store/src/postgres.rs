//! PostgreSQL: a closure is its own transaction.

mod indexes;
mod pool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection as _, Executor as _};

use crate::connections::Connections;
use crate::error::{Error, Result};
use crate::migrations;
use crate::move_store;
use crate::open::Options;
use crate::tx::{Conn, Hints, StoreContext, Tx};
pub(crate) use indexes::make as make_indexes;
pub(crate) use pool::StatementClock;
use pool::{Pool, PooledConnection};

/// Reading waits for no lock, and the caller that waits for an answer gives up after ten seconds.
const READ_SILENCE: Duration = Duration::from_secs(9);

/// Longer than any statement may take, see [`limits`]: a connection that is silent for so long is lost.
const SILENCE: Duration = Duration::from_secs(20);

/// Settings of every session.
///
/// A cached plan reflects the statistics of its creation: on a nearly empty table a scan is cheapest. It stays until
/// the next ANALYZE a minute or more later; a claim was seen to read 200,000 rows and to take up to 5 s. Every
/// statement here has an index, so sessions are told to use it. (Joins have plans that read a whole index in order;
/// hence `= ANY` for many jobs.)
///
/// For the same reason custom plans gain nothing and would cost planning time on each connection: 0.5 ms for a claim,
/// half as long as the claim itself.
const SESSION: &str =
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_mergejoin = off; SET jit = off;
SET plan_cache_mode = force_generic_plan";

/// A migration has no statement timeout. But while it waits for a table, everyone else waits behind it, so it gives up
/// soon and retries.
const MIGRATING: &str =
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '2s'";

/// How long a migration is retried while tables are locked or another process migrates, and the longest pause between
/// attempts.
const MIGRATION: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(5));

/// Timeouts as fractions of a lease, so that all of them expire before it.
///
/// A process that is suspended in a transaction must not keep its locks, or lanes and jobs would stand still. So a
/// transaction may be idle for a third of a lease, also while a result is sent. Lock waits may take longer than that,
/// and statements longer than lock waits. All are shorter than [`READ_SILENCE`], after which the whole pool is
/// discarded: a slow statement is not a lost connection.
fn limits(lease: Duration) -> String {
    let lease = lease.clamp(Duration::from_millis(7500), Duration::from_secs(15));
    let [idle, lock, statement] = [lease / 3, lease / 2, lease * 8 / 15].map(|limit| limit.as_millis());
    format!(
        "SET idle_in_transaction_session_timeout = {idle}; SET tcp_user_timeout = {idle}; SET lock_timeout = {lock};
         SET statement_timeout = {statement}"
    )
}

pub(crate) struct Postgres {
    pool: Pool,
    shared: Arc<StoreContext>,
    name: String,
}

impl Postgres {
    /// Does not connect yet, so that a process may start while its database is still on the way up.
    pub(crate) fn open(uri: &str, options: &Options, shared: Arc<StoreContext>) -> Result<Self> {
        let connect: PgConnectOptions = uri
            .parse()
            // The parser's own text can hold the URI, and that the password.
            .map_err(|_| Error::Open("DATABASE_URI is not a valid postgres:// address".to_owned()))?;
        let connect = connect
            .application_name("towpath")
            .statement_cache_capacity(256)
            .disable_statement_logging();
        let name = migrations::postgres_name(&connect);
        let session = format!("{SESSION};\n{}", limits(options.lease));
        let pool = Pool::new(connect, session, options.connections, options.acquire_timeout);
        Ok(Self { pool, shared, name })
    }

    pub(crate) async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut line = self.pool.acquire().await?;
        let beat = StatementClock::new();
        let mut tx = Tx::new(Conn::Postgres(line.conn()), &self.shared).with_statement_clock(&beat);
        let result = beat.watch(READ_SILENCE, f(&mut tx)).await;
        release(line, &result);
        result
    }

    pub(crate) async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut line = self.pool.acquire().await?;
        let beat = StatementClock::new();
        let done = beat.watch(SILENCE, transaction(line.conn(), &self.shared, &beat, f));
        match done.await {
            Ok(Ok((value, hints))) => {
                line.release();
                self.shared.tell(hints);
                Ok(value)
            }
            // Refused, and rolled back.
            Ok(Err(error)) => {
                line.release();
                Err(error)
            }
            Err(error) => {
                // A broken connection cannot be rolled back; after a failed COMMIT its state is unknown.
                if pool::is_broken(&error) {
                    line.invalidate_pool(&error);
                }
                Err(error)
            }
        }
    }

    pub(crate) async fn write_one<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut line = self.pool.acquire().await?;
        let beat = StatementClock::new();
        let mut tx = Tx::new(Conn::Postgres(line.conn()), &self.shared).with_statement_clock(&beat);
        let result = beat.watch(SILENCE, f(&mut tx)).await;
        let hints = tx.into_hints();
        release(line, &result);
        if result.is_ok() {
            self.shared.tell(hints);
        }
        result
    }

    pub(crate) async fn migrate(&self) -> Result<()> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            let mut line = self.pool.acquire().await?;
            line.conn().execute(MIGRATING).await?;
            move_store::check_complete(line.conn(), &self.name).await?;
            let error = match migrations::POSTGRES.run(line.conn()).await {
                Ok(()) => {
                    // Nothing depends on them but speed.
                    if let Err(error) = indexes::make(line.conn()).await {
                        tracing::warn!(error = %error, "cannot create the indexes; the scheduler will retry");
                    }
                    line.close().await;
                    return Ok(());
                }
                Err(error) => error,
            };
            // The connection is not kept in any case: the lock of the runner goes with it.
            if record_wait(&error) && began.elapsed() < MIGRATION.0 {
                tracing::info!(error = %error, "a migration is waiting for table locks");
                line.close().await;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MIGRATION.1);
                continue;
            }
            if let MigrateError::Execute(error) = error {
                return Err(error.into());
            }
            let mut tx = Tx::new(Conn::Postgres(line.conn()), &self.shared);
            return Err(migrations::refused(&mut tx, self.name(), error).await);
        }
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    pub(crate) fn connections(&self) -> Connections {
        self.pool.connections()
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Whether a migration was not applied because others held what it needs. Nothing of it was kept.
fn record_wait(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return false;
    };
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

/// The result of a closure that is rolled back on failure. The outer error means that the state of the connection is
/// unknown.
type TransactionResult<T> = Result<T>;

/// Runs `f` between BEGIN and COMMIT.
async fn transaction<T>(
    conn: &mut PgConnection,
    shared: &StoreContext,
    beat: &StatementClock,
    f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>,
) -> Result<TransactionResult<(T, Hints)>> {
    let mut transaction = conn.begin().await?;
    let mut tx = Tx::new(Conn::Postgres(&mut transaction), shared).with_statement_clock(beat);
    let result = f(&mut tx).await;
    let hints = tx.into_hints();
    beat.touch();
    match result {
        Ok(value) => {
            transaction.commit().await?;
            Ok(Ok((value, hints)))
        }
        // What broke needs no rollback.
        Err(error) if pool::is_broken(&error) => Err(error),
        Err(error) => match transaction.rollback().await {
            Ok(()) => Ok(Err(error)),
            Err(_) => Err(error),
        },
    }
}

/// Outside of a transaction nothing is left of a call that was answered, however it was.
fn release<T>(line: PooledConnection, result: &Result<T>) {
    match result {
        Err(error) if pool::is_broken(error) => line.invalidate_pool(error),
        _ => line.release(),
    }
}
