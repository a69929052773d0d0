//! The one writer of the SQLite file.
//!
//! A caller takes the lock over the write connection, runs its closure inside a SAVEPOINT, lets go, and waits. The
//! committer task asks for the same lock; it gets it after the callers that were already waiting (tokio's mutex is
//! first come, first served), so one COMMIT, and one fsync, serves all of them. There is no timer: while one commit is
//! being written, the next group gathers behind the lock.
//!
//! Each call to the library goes to a thread and back, which takes longer than most statements do. So what belongs
//! together is one call: BEGIN with the first SAVEPOINT, and the RELEASE of one caller with the SAVEPOINT of the next.
//! COMMIT releases the last one. These are prepared once ([`sqlx::query`] keeps a statement, a bare text is prepared
//! again). A caller that makes one call anyway ([`Sqlite::write_one`]) needs none of it while no other caller writes:
//! its call is the transaction.
//!
//! A caller may be dropped wherever it waits. [`WriterState`] says how far it had come; the caller that takes the lock
//! next puts that right before doing anything else, and may be dropped while doing so.
//!
//! When there is no room, SQLite may roll back the whole transaction by itself, and with it what earlier callers of the
//! group did. They are told; nothing is answered that is not on disk.

mod readers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection};
use tokio::sync::{Mutex, MutexGuard, Notify, oneshot};

use crate::connections::Connections;
use crate::error::{Error, Result};
use crate::jobs::SQLITE_PICKED;
use crate::metric;
use crate::migrations;
use crate::move_store;
use crate::open::Options;
use crate::tx::{Conn, Hints, StoreContext, Tx};
use readers::ReaderPool;

pub(crate) struct Sqlite {
    writer: Arc<Mutex<Writer>>,
    /// Callers that ask for the writer and do not have it yet.
    waiting_callers: AtomicUsize,
    commit_signal: Arc<Notify>,
    readers: ReaderPool,
    shared: Arc<StoreContext>,
    path: std::path::PathBuf,
    health: Arc<Health>,
    /// Held for the life of the store: a second process on the same file would rescue our leases.
    _lock: Option<std::fs::File>,
}

/// The result of the latest write: reads continue when the disk is full, and so does a transaction that changes
/// nothing, like an empty claim.
#[derive(Default)]
struct Health(AtomicU8);

impl Health {
    const WELL: u8 = 0;
    const FULL: u8 = 1;
    const FAILING: u8 = 2;

    fn is_well(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::WELL
    }

    fn recovered(&self) {
        self.0.store(Self::WELL, Ordering::Relaxed);
    }

    /// What a closure itself refuses says nothing of the disk.
    fn failed(&self, error: &Error) {
        let health = match error {
            Error::Full => Self::FULL,
            Error::Unavailable(_) => Self::FAILING,
            _ => return,
        };
        self.0.store(health, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            Self::WELL => Ok(()),
            Self::FULL => Err(Error::Full),
            _ => Err(Error::Unavailable(Arc::new(sqlx::Error::WorkerCrashed))),
        }
    }
}

/// How many COMMITs in a row serve one caller before no other caller is expected.
const GROUP_EXPECTATION: u8 = 8;

struct Writer {
    conn: SqliteConnection,
    health: Arc<Health>,
    /// The number of changed rows of this connection when the open transaction began after a failure.
    changed: Option<i64>,
    /// BEGIN was issued and not yet committed.
    open: bool,
    /// The latest caller's SAVEPOINT is not released yet; it has done its work.
    savepoint_open: bool,
    /// The number of further COMMITs for which concurrent writers are expected, after one arrived during a write or
    /// shared its COMMIT.
    group_expectation: u8,
    state: WriterState,
    pending_commits: Vec<PendingCommit>,
}

/// The state of the lock holder, or of one that was dropped. Each is set before its statement is issued, so an
/// unfinished statement may or may not have been executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterState {
    /// No one is on the way.
    Idle,
    /// BEGIN and the first SAVEPOINT are under way, or a call that is a transaction by itself.
    Beginning,
    /// The SAVEPOINT is under way, after the RELEASE of the caller before.
    OpeningSavepoint,
    InClosure,
    /// It is being found out whether there still is a transaction.
    CheckingTransaction,
}

struct PendingCommit {
    done: oneshot::Sender<Result<(), CommitFailure>>,
    hints: Hints,
}

/// Why a group was not committed.
#[derive(Clone)]
enum CommitFailure {
    Full,
    Unavailable(Arc<sqlx::Error>),
}

impl From<sqlx::Error> for CommitFailure {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refusal) if refusal.code().as_deref() == Some("13") => Self::Full,
            _ => Self::Unavailable(error.into()),
        }
    }
}

impl From<CommitFailure> for Error {
    fn from(refused: CommitFailure) -> Self {
        match refused {
            CommitFailure::Full => Self::Full,
            CommitFailure::Unavailable(error) => Self::Unavailable(error),
        }
    }
}

impl Sqlite {
    pub(crate) async fn open(path: &std::path::Path, options: &Options, shared: Arc<StoreContext>) -> Result<Self> {
        let lock = lock_file(path)?;
        move_store::check_not_moved(path)?;
        refuse_network_file_system(path)?;
        let base = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5))
            .pragma("temp_store", "memory")
            // A larger cache is slower: after a tree was rebalanced, the COMMIT scans the whole cache (SQLite 3.51).
            .pragma("cache_size", "-4096")
            .disable_statement_logging();
        let refused = |error| Error::Open(format!("cannot open the database file {}: {error}", path.display()));
        let mut conn = SqliteConnection::connect_with(&base).await.map_err(refused)?;
        conn.execute(SQLITE_PICKED).await.map_err(refused)?;
        // Readers seldom read a page again, and the system caches the file for all of them: with the writer's cache
        // size each would fill up over tens of thousands of jobs.
        let reading = base.read_only(true).pragma("cache_size", "-2048");
        let readers = ReaderPool::new(reading, options.connections, options.acquire_timeout);
        let health = Arc::new(Health::default());
        let writer = Arc::new(Mutex::new(Writer {
            conn,
            health: health.clone(),
            changed: None,
            open: false,
            savepoint_open: false,
            group_expectation: 0,
            state: WriterState::Idle,
            pending_commits: Vec::new(),
        }));
        let work = Arc::new(Notify::new());
        // The committer lives as long as a caller can still write.
        tokio::spawn(commit_loop(Arc::downgrade(&writer), work.clone(), shared.clone()));
        Ok(Self {
            writer,
            waiting_callers: AtomicUsize::new(0),
            commit_signal: work,
            readers,
            shared,
            path: path.to_owned(),
            health,
            _lock: Some(lock),
        })
    }

    pub(crate) async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut reader = self.readers.reader().await?;
        let result = f(&mut Tx::new(Conn::Sqlite(reader.conn()), &self.shared)).await;
        reader.release();
        result
    }

    /// Whether the latest write went well. There always is a next one: workers say that they live.
    pub(crate) fn check(&self) -> Result<()> {
        self.health.check()
    }

    /// The writer, when it is this caller's turn.
    async fn writer(&self) -> MutexGuard<'_, Writer> {
        struct Asks<'a>(&'a AtomicUsize);
        impl Drop for Asks<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let asked = std::time::Instant::now();
        self.waiting_callers.fetch_add(1, Ordering::Relaxed);
        let asks = Asks(&self.waiting_callers);
        let writer = self.writer.lock().await;
        drop(asks);
        metrics::histogram!(metric::ACQUIRE, "of" => "writer").record(asked.elapsed());
        writer
    }

    pub(crate) async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        self.write_in_group(self.writer().await, f).await
    }

    /// As [`Sqlite::write`], for a closure with a single writing library call. While no other caller writes, that call
    /// is its own transaction, see [`Tx::is_single_statement`], which saves a third of the round trips to the library's
    /// thread.
    pub(crate) async fn write_one<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut guard = self.writer().await;
        let writer = &mut *guard;
        writer.roll_back_unfinished(None).await;
        // Under contention one COMMIT serves all callers. Whether a failed disk is writable again is for `commit` to
        // find out.
        let company = writer.open || writer.group_expectation > 0 || self.waiting_callers.load(Ordering::Relaxed) > 0;
        if company || !self.health.is_well() {
            return self.write_in_group(guard, f).await;
        }
        writer.state = WriterState::Beginning;
        let mut tx = Tx::new(Conn::Sqlite(&mut writer.conn), &self.shared).single_statement();
        let result = f(&mut tx).await;
        let hints = tx.into_hints();
        match &result {
            Ok(_) => {
                writer.state = WriterState::Idle;
                if self.waiting_callers.load(Ordering::Relaxed) > 0 {
                    writer.group_expectation = GROUP_EXPECTATION;
                }
                metrics::histogram!(metric::COMMIT_GROUP).record(1.0);
                // Before anyone else commits: hints are told in the order of the commits.
                self.shared.tell(hints);
            }
            Err(error) => {
                self.health.failed(error);
                writer.roll_back_unfinished(None).await;
            }
        }
        result
    }

    async fn write_in_group<T>(
        &self,
        mut guard: MutexGuard<'_, Writer>,
        f: impl AsyncFnOnce(&mut Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        let writer = &mut *guard;
        if let Err(error) = writer.enter().await {
            self.health.failed(&error);
            return Err(error);
        }
        let mut tx = Tx::new(Conn::Sqlite(&mut writer.conn), &self.shared);
        let result = f(&mut tx).await;
        let hints = tx.into_hints();
        match result {
            Ok(value) => {
                let committed = writer.leave(hints);
                drop(guard);
                self.commit_signal.notify_one();
                match committed.await {
                    Ok(Ok(())) => Ok(value),
                    Ok(Err(refused)) => Err(refused.into()),
                    // The runtime is going down.
                    Err(_) => Err(Error::Unavailable(Arc::new(sqlx::Error::WorkerCrashed))),
                }
            }
            Err(error) => {
                self.health.failed(&error);
                // What it changed before counts as changed, and is undone.
                writer.changed = None;
                let no_room = matches!(error, Error::Full);
                writer
                    .roll_back_unfinished(if no_room { Some(CommitFailure::Full) } else { None })
                    .await;
                drop(guard);
                // No one may be waiting, but the transaction must not stay open.
                self.commit_signal.notify_one();
                Err(error)
            }
        }
    }

    pub(crate) async fn migrate(&self) -> Result<()> {
        let mut guard = self.writer.lock().await;
        let Err(error) = migrations::SQLITE.run(&mut guard.conn).await else {
            return Ok(());
        };
        let mut tx = Tx::new(Conn::Sqlite(&mut guard.conn), &self.shared);
        Err(migrations::refused(&mut tx, self.name(), error).await)
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> String {
        migrations::sqlite_name(&self.path)
    }

    pub(crate) fn connections(&self) -> Connections {
        self.readers.connections()
    }

    pub(crate) async fn close(&self) {
        self.readers.close().await;
        let mut guard = self.writer.lock().await;
        // Leaves a single file behind where it can; a WAL that stays is replayed at the next start.
        if !guard.open {
            let _ = guard.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
        }
    }
}

impl Writer {
    /// Opens a SAVEPOINT for a caller.
    async fn enter(&mut self) -> Result<()> {
        self.roll_back_unfinished(None).await;
        if self.open {
            self.state = WriterState::OpeningSavepoint;
            let text = if self.savepoint_open {
                "RELEASE caller; SAVEPOINT caller"
            } else {
                "SAVEPOINT caller"
            };
            if let Err(error) = sqlx::query(text).execute(&mut self.conn).await {
                self.roll_back_unfinished(None).await;
                if self.open {
                    return Err(error.into());
                }
                // The previous caller continued after SQLite had rolled everything back. Its group got the error; this
                // caller begins a new one.
            }
        }
        if !self.open {
            self.state = WriterState::Beginning;
            // IMMEDIATE: a deferred transaction that becomes a writer can fail with BUSY_SNAPSHOT, for which the busy
            // timeout does not apply.
            sqlx::query("BEGIN IMMEDIATE; SAVEPOINT caller")
                .execute(&mut self.conn)
                .await?;
            self.changed = if self.health.is_well() {
                None
            } else {
                self.changes().await
            };
            self.open = true;
        }
        self.state = WriterState::InClosure;
        self.savepoint_open = true;
        Ok(())
    }

    /// Puts a caller that has done its work among those who wait for the COMMIT.
    fn leave(&mut self, hints: Hints) -> oneshot::Receiver<Result<(), CommitFailure>> {
        let (done, committed) = oneshot::channel();
        self.pending_commits.push(PendingCommit { done, hints });
        self.state = WriterState::Idle;
        committed
    }

    /// Undoes the work of a failed closure or a dropped caller. It may be dropped as well and is idempotent. `why` is
    /// the error for a group that turns out to be lost.
    async fn roll_back_unfinished(&mut self, why: Option<CommitFailure>) {
        match self.state {
            WriterState::Idle => return,
            WriterState::Beginning => {
                // No one has joined yet.
                let _ = self.conn.execute("ROLLBACK").await;
                self.open = false;
            }
            // Of the caller before, or of one that has done nothing yet.
            WriterState::OpeningSavepoint => {
                let released = self.conn.execute("RELEASE caller").await;
                self.check_rollback(released.map(drop), why).await;
            }
            WriterState::InClosure => {
                let undone = self.conn.execute("ROLLBACK TO caller; RELEASE caller").await;
                self.check_rollback(undone.map(drop), why).await;
            }
            WriterState::CheckingTransaction => self.give_up_group(why.unwrap_or_else(lost_transaction)).await,
        }
        self.savepoint_open = false;
        self.state = WriterState::Idle;
    }

    /// A missing SAVEPOINT was never opened, was closed already, or was lost with the whole transaction.
    async fn check_rollback(&mut self, undone: Result<(), sqlx::Error>, why: Option<CommitFailure>) {
        let Err(error) = undone else { return };
        let missing =
            matches!(&error, sqlx::Error::Database(refusal) if refusal.message().starts_with("no such savepoint"));
        if !missing {
            return self.give_up_group(error.into()).await;
        }
        self.state = WriterState::CheckingTransaction;
        // Refused while there is a transaction.
        if self.conn.execute("BEGIN").await.is_ok() {
            self.give_up_group(why.unwrap_or_else(lost_transaction)).await;
        }
    }

    /// Rolls everything back and tells those who waited.
    async fn give_up_group(&mut self, why: CommitFailure) {
        let _ = self.conn.execute("ROLLBACK").await;
        self.open = false;
        self.health.failed(&why.clone().into());
        tracing::error!(
            callers = self.pending_commits.len(),
            "a group of writes was rolled back; its callers get the error"
        );
        for caller in self.pending_commits.drain(..) {
            let _ = caller.done.send(Err(why.clone()));
        }
    }

    async fn commit(&mut self) -> Result<(), CommitFailure> {
        let changes_anything = match self.changed.take() {
            None => false,
            Some(before) => self.changes().await.is_some_and(|now| now > before),
        };
        let started = std::time::Instant::now();
        let result = sqlx::query("COMMIT").execute(&mut self.conn).await;
        metrics::histogram!(metric::COMMIT_SECONDS).record(started.elapsed());
        metrics::histogram!(metric::COMMIT_GROUP).record(self.pending_commits.len() as f64);
        if let Err(error) = &result {
            tracing::error!(error = %error, "a commit failed; its callers get the error");
            // Disk full leaves the transaction open; without this every later write would fail too.
            let _ = self.conn.execute("ROLLBACK").await;
        }
        self.open = false;
        self.savepoint_open = false;
        self.group_expectation = match self.pending_commits.len() {
            0 | 1 => self.group_expectation.saturating_sub(1),
            _ => GROUP_EXPECTATION,
        };
        let result = result.map(drop).map_err(CommitFailure::from);
        match &result {
            Ok(()) if changes_anything => self.health.recovered(),
            Ok(()) => (),
            Err(refused) => self.health.failed(&refused.clone().into()),
        }
        result
    }

    /// Rows that this connection has changed in its life.
    async fn changes(&mut self) -> Option<i64> {
        let asked = sqlx::query_scalar("SELECT total_changes()").fetch_one(&mut self.conn);
        asked.await.ok()
    }
}

fn lost_transaction() -> CommitFailure {
    CommitFailure::Unavailable(Arc::new(sqlx::Error::Protocol(
        "the transaction was rolled back by the database".to_owned(),
    )))
}

async fn commit_loop(writer: std::sync::Weak<Mutex<Writer>>, work: Arc<Notify>, shared: Arc<StoreContext>) {
    loop {
        // A store that is gone sends no more work; look now and then so that the task ends with it.
        let _ = tokio::time::timeout(Duration::from_secs(5), work.notified()).await;
        let Some(writer) = writer.upgrade() else { return };
        let mut guard = writer.lock().await;
        guard.roll_back_unfinished(None).await;
        if !guard.open {
            continue;
        }
        let committed = guard.commit().await;
        let waiting = std::mem::take(&mut guard.pending_commits);
        drop(guard);
        for caller in waiting {
            if committed.is_ok() {
                shared.tell(caller.hints);
            }
            // A caller that no longer waits gave up on the answer, not on the work.
            let _ = caller.done.send(committed.clone());
        }
    }
}

/// Takes the process lock beside the database file.
pub(crate) fn lock_file(path: &std::path::Path) -> Result<std::fs::File> {
    let lock_path = path.with_extension("lock");
    let open = || -> std::io::Result<std::fs::File> {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)?;
        fs2::FileExt::try_lock_exclusive(&file)?;
        Ok(file)
    };
    open().map_err(|error| {
        if error.kind() == std::io::ErrorKind::WouldBlock {
            Error::Open(format!(
                "another process has {} open; stop it, or use another data folder",
                path.display()
            ))
        } else {
            Error::Open(format!("cannot lock {}: {error}", lock_path.display()))
        }
    })
}

/// WAL needs shared memory between readers, which network file systems do not provide; their locks are unreliable.
#[cfg(target_os = "linux")]
fn refuse_network_file_system(path: &std::path::Path) -> Result<()> {
    // NFS, SMB, SMB2, CIFS, 9p, AFS, Ceph, FUSE is left alone (many local ones are FUSE). From linux/magic.h.
    const REMOTE: [i64; 7] = [
        0x6969,
        0x517B,
        0xFE53_4D42,
        0xFF53_4D42,
        0x0102_1997,
        0x5346_414F,
        0x00C3_6400,
    ];
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(std::path::Path::new("."));
    match nix::sys::statfs::statfs(folder) {
        Ok(found) if REMOTE.contains(&found.filesystem_type().0) => Err(Error::Open(format!(
            "{} is on a network file system, where SQLite can lose data; use a local folder or PostgreSQL",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network_file_system(_: &std::path::Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests;
