//! A database of its own for each test, with one small table.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use towpath_store::{Conn, Options, Result, Store, Tx, on};

/// The longest a test waits for another session. Shorter than the store lets a transaction be silent.
const PATIENCE: Duration = Duration::from_secs(4);

pub struct Database {
    pub store: Store,
    pub uri: String,
    _whole: towpath_testing::Database,
}

impl Database {
    pub async fn sqlite() -> Self {
        Self::open(towpath_testing::Database::empty_sqlite()).await
    }

    /// In the server that `TOWPATH_TEST_POSTGRES` names.
    pub async fn postgres() -> Option<Self> {
        Some(Self::open(towpath_testing::Database::empty_postgres().await?).await)
    }

    async fn open(whole: towpath_testing::Database) -> Self {
        let store = Store::open(&whole.uri, Options::default()).await.unwrap();
        store
            .write(async |tx| run(tx, "CREATE TABLE note (text TEXT NOT NULL UNIQUE)").await)
            .await
            .unwrap();
        Self {
            store,
            uri: whole.uri.clone(),
            _whole: whole,
        }
    }

    /// The notes, in order.
    pub async fn notes(&self) -> Vec<String> {
        self.store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_scalar(
                    "SELECT text FROM note ORDER BY text"
                )
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap()
    }
}

pub async fn run(tx: &mut Tx<'_>, text: &'static str) -> Result<()> {
    Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?)
}

pub async fn note(tx: &mut Tx<'_>, text: &str) -> Result<()> {
    Ok(on!(tx, |conn| sqlx::query("INSERT INTO note (text) VALUES ($1)")
        .bind(text)
        .execute(conn)
        .await
        .map(drop))?)
}

/// Rows of a table that this transaction has read so far. SQLite does not count them.
pub async fn rows_read(tx: &mut Tx<'_>, table: &str) -> Result<i64> {
    let Conn::Postgres(conn) = tx.conn() else { return Ok(0) };
    Ok(sqlx::query_scalar(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = $1",
    )
    .bind(table)
    .fetch_one(conn)
    .await?)
}

/// Waits until so many sessions of this database wait for a lock, or `over` says that there is nothing to wait for.
/// Only on PostgreSQL.
pub async fn waiting(store: &Store, sessions: i64, over: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen: i64 = store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_scalar(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'"
                )
                .fetch_one(conn)
                .await)?)
            })
            .await
            .unwrap();
        if seen >= sessions || over() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{seen} sessions wait for a lock, not {sessions}"
        );
    }
}

/// Polls a future so many times and no more: where it is then is where its caller was dropped.
pub struct Polls<F> {
    pub future: Pin<Box<F>>,
    pub left: usize,
}

impl<F: Future> Polls<F> {
    pub fn new(future: F, left: usize) -> Self {
        Self {
            future: Box::pin(future),
            left,
        }
    }
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Not once more: dropped right here, with whatever it waits for still under way.
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
