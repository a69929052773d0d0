//! PostgreSQL: a closure is its own transaction.

mod indexes;
mod pool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection as _, Executor as _};

use crate::error::{Error, Result};
use crate::migrations;
use crate::open::Options;
use crate::tx::{Conn, Hints, Shared, Tx};
pub(crate) use pool::Beat;
use pool::{Line, Pool};

/// Reading waits for no lock, and whoever waits for an answer gives up after ten seconds.
const READ_SILENCE: Duration = Duration::from_secs(9);

/// No statement of ours takes so long: one that does has lost its line. Longer than the database works on one, see [`limits`].
const SILENCE: Duration = Duration::from_secs(20);

/// What every session begins with.
///
/// A statement's plan is cached after a few uses, made for the table as it was then: nearly empty, where reading all
/// of it is cheapest. It is kept while the table grows, until the next ANALYZE a minute or more later; a claim was
/// seen to read 200,000 rows for 2 and to take from 80 ms to 5 s. Every statement here has an index, so sessions are
/// told to use it. (Joins have plans that read a whole index in order; hence `= ANY` where many jobs are meant.)
///
/// For the same reason nothing is gained by planning a statement anew for its parameters, which the first uses of
/// each statement on each connection would do, and some for ever: 0.5 ms for a claim, half as long as the claim itself.
const SESSION: &str =
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_mergejoin = off; SET jit = off;
SET plan_cache_mode = force_generic_plan";

/// For a migration: it takes as long as it takes. But while it waits for a table everybody else waits behind it, so it gives up
/// soon and tries again.
const MIGRATING: &str =
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '2s'";

/// How long a migration is tried while tables are not free or another process migrates, and the longest pause between two tries.
const MIGRATION: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(5));

/// How long the database waits for us, in parts of a lease, so that all of it is over before a lease is.
///
/// A process that is stopped in the middle of a transaction must not keep its locks: lanes and jobs would stand still until it
/// goes on. So it may be silent for a third of a lease, also while a result is sent to it. A lock is waited for longer than that, and
/// a statement may take longer than its locks. All of it is shorter than [`READ_SILENCE`], after which a connection is given up with
/// all others: a slow statement is not a lost connection.
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
    shared: Arc<Shared>,
    name: String,
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
        let name = migrations::postgres_name(&connect);
        let session = format!("{SESSION};\n{}", limits(options.lease));
        let pool = Pool::new(connect, session, options.connections, options.acquire_timeout);
        Ok(Self { pool, shared, name })
    }

    pub(crate) async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut line = self.pool.line().await?;
        let beat = Beat::new();
        let mut tx = Tx::new(Conn::Postgres(line.conn()), &self.shared).beating(&beat);
        let result = beat.watch(READ_SILENCE, f(&mut tx)).await;
        give_back(line, &result);
        result
    }

    pub(crate) async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut line = self.pool.line().await?;
        let beat = Beat::new();
        let done = beat.watch(SILENCE, transaction(line.conn(), &self.shared, &beat, f));
        match done.await {
            Ok(Ok((value, hints))) => {
                line.keep();
                self.shared.tell(hints);
                Ok(value)
            }
            // Refused, and rolled back.
            Ok(Err(error)) => {
                line.keep();
                Err(error)
            }
            Err(error) => {
                // Where it broke the line is of no use; after a COMMIT that was refused nobody knows what it is in.
                if pool::broken(&error) {
                    line.broke(&error);
                }
                Err(error)
            }
        }
    }

    pub(crate) async fn write_one<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut line = self.pool.line().await?;
        let beat = Beat::new();
        let mut tx = Tx::new(Conn::Postgres(line.conn()), &self.shared).beating(&beat);
        let result = beat.watch(SILENCE, f(&mut tx)).await;
        let hints = tx.into_hints();
        give_back(line, &result);
        if result.is_ok() {
            self.shared.tell(hints);
        }
        result
    }

    pub(crate) async fn migrate(&self) -> Result<()> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            let mut line = self.pool.line().await?;
            line.conn().execute(MIGRATING).await?;
            let error = match migrations::POSTGRES.run(line.conn()).await {
                Ok(()) => {
                    // Nothing depends on them but speed.
                    if let Err(error) = indexes::make(line.conn()).await {
                        tracing::warn!(error = %error, "cannot make the indexes now; the scheduler tries again");
                    }
                    line.close().await;
                    return Ok(());
                }
                Err(error) => error,
            };
            // The connection is not kept in any case: the lock of the runner goes with it.
            if waited(&error) && began.elapsed() < MIGRATION.0 {
                tracing::info!(error = %error, "a migration waits until its tables are free");
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

    /// What messages call it.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    pub(crate) fn connections(&self) -> (u32, usize) {
        self.pool.connections()
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Whether a migration was not applied because others held what it needs. Nothing of it was kept.
fn waited(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return false;
    };
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

/// What a closure came to that was rolled back when it failed. The outer error is one that leaves the connection in an
/// unknown state.
type Ended<T> = Result<T>;

/// Runs `f` between BEGIN and COMMIT.
async fn transaction<T>(
    conn: &mut PgConnection,
    shared: &Shared,
    beat: &Beat,
    f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>,
) -> Result<Ended<(T, Hints)>> {
    let mut transaction = conn.begin().await?;
    let mut tx = Tx::new(Conn::Postgres(&mut transaction), shared).beating(beat);
    let result = f(&mut tx).await;
    let hints = tx.into_hints();
    beat.beat();
    match result {
        Ok(value) => {
            transaction.commit().await?;
            Ok(Ok((value, hints)))
        }
        // What broke needs no rollback.
        Err(error) if pool::broken(&error) => Err(error),
        Err(error) => match transaction.rollback().await {
            Ok(()) => Ok(Err(error)),
            Err(_) => Err(error),
        },
    }
}

/// Outside of a transaction nothing is left of a call that was answered, however it was.
fn give_back<T>(line: Line, result: &Result<T>) {
    match result {
        Err(error) if pool::broken(error) => line.broke(error),
        _ => line.keep(),
    }
}
