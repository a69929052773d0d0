//! PostgreSQL: a closure is its own transaction.

mod pool;

use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection as _};

use crate::error::{Error, Result};
use crate::migrations;
use crate::open::Options;
use crate::tx::{Conn, Hints, Shared, Tx};
pub(crate) use pool::Beat;
use pool::{Line, Pool};

/// Reading waits for no lock, and whoever waits for an answer gives up after ten seconds.
const READ_SILENCE: Duration = Duration::from_secs(9);

/// No statement of ours takes so long: one that does has lost its line. Longer than a stopped process may sit on a
/// lock that others wait for, see [`SESSION`].
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
///
/// A process that is stopped in the middle of a transaction must not keep its locks: lanes and jobs would stand still
/// until it goes on. So it may be silent in one for as long as a lease.
const SESSION: &str =
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_mergejoin = off; SET jit = off;
SET plan_cache_mode = force_generic_plan;
SET idle_in_transaction_session_timeout = '15s'";

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
        let pool = Pool::new(connect, SESSION, options.connections, options.acquire_timeout);
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
                    line.broke();
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
        let mut line = self.pool.line().await?;
        match migrations::POSTGRES.run(line.conn()).await {
            Ok(()) => {
                line.keep();
                Ok(())
            }
            Err(MigrateError::Execute(error)) => Err(error.into()),
            // The connection is not kept: the lock of the runner goes with it.
            Err(error) => {
                let mut tx = Tx::new(Conn::Postgres(line.conn()), &self.shared);
                Err(migrations::refused(&mut tx, self.name(), error).await)
            }
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
        Err(error) if pool::broken(error) => line.broke(),
        _ => line.keep(),
    }
}
