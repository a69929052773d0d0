//! Connections that only read.
//!
//! The library's own pool asks a connection whether it still lives before it lends it and after it comes back. A file does
//! not go away, and each question costs as much as the statement it is asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::Result;
use crate::metric;

pub(super) struct Readers {
    connect: SqliteConnectOptions,
    /// How long a call waits for a connection.
    patience: Duration,
    size: usize,
    places: Arc<Semaphore>,
    free: Arc<Mutex<Vec<SqliteConnection>>>,
}

impl Readers {
    /// At most `size` connections, opened when they are needed.
    pub(super) fn new(connect: SqliteConnectOptions, size: u32, patience: Duration) -> Self {
        let size = usize::try_from(size.max(1)).unwrap_or(1);
        Self {
            connect,
            patience,
            size,
            places: Arc::new(Semaphore::new(size)),
            free: Arc::default(),
        }
    }

    /// One that is free, or a new one.
    pub(super) async fn reader(&self) -> Result<Reader> {
        let asked = Instant::now();
        let place = timeout(self.patience, self.places.clone().acquire_owned()).await;
        let place = place.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        let kept = lock(&self.free).pop();
        let conn = match kept {
            Some(conn) => conn,
            None => SqliteConnection::connect_with(&self.connect).await?,
        };
        metrics::histogram!(metric::ACQUIRE, "of" => "pool").record(asked.elapsed());
        Ok(Reader {
            conn,
            free: Arc::clone(&self.free),
            place,
        })
    }

    /// Connections that are open, and how many of those are free.
    pub(super) fn connections(&self) -> (u32, usize) {
        let free = lock(&self.free).len();
        let busy = self.size.saturating_sub(self.places.available_permits());
        (u32::try_from(busy + free).unwrap_or(u32::MAX), free)
    }

    /// Closes what is free, and refuses whoever comes.
    pub(super) async fn close(&self) {
        self.places.close();
        let free = std::mem::take(&mut *lock(&self.free));
        for conn in free {
            let _ = conn.close().await;
        }
    }
}

/// A connection in use. Dropped in the middle of a statement it is closed.
pub(super) struct Reader {
    conn: SqliteConnection,
    free: Arc<Mutex<Vec<SqliteConnection>>>,
    place: OwnedSemaphorePermit,
}

impl Reader {
    pub(super) fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.conn
    }

    /// Gives it back: no statement is under way on it.
    pub(super) fn keep(self) {
        // Before the place, so that whoever gets that finds it.
        lock(&self.free).push(self.conn);
        drop(self.place);
    }
}

fn lock(free: &Mutex<Vec<SqliteConnection>>) -> MutexGuard<'_, Vec<SqliteConnection>> {
    // A push or a pop does not panic half way.
    free.lock().unwrap_or_else(PoisonError::into_inner)
}
