//! Read-only connections.
//!
//! The library's own pool pings a connection before and after each use. A file does not go away, and each ping costs as
//! much as a statement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::connections::{AcquireCounts, Connections};
use crate::error::Result;
use crate::metric;

pub(super) struct ReaderPool {
    connect: SqliteConnectOptions,
    /// How long a call waits for a connection.
    acquire_timeout: Duration,
    size: usize,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<SqliteConnection>>>,
    counts: AcquireCounts,
}

impl ReaderPool {
    /// At most `size` connections, opened when they are needed.
    pub(super) fn new(connect: SqliteConnectOptions, size: u32, patience: Duration) -> Self {
        let size = usize::try_from(size.max(1)).unwrap_or(1);
        Self {
            connect,
            acquire_timeout: patience,
            size,
            permits: Arc::new(Semaphore::new(size)),
            idle: Arc::default(),
            counts: AcquireCounts::default(),
        }
    }

    /// One that is free, or a new one.
    pub(super) async fn reader(&self) -> Result<Reader> {
        if self.permits.available_permits() == 0 {
            self.counts.add_wait();
        }
        let acquired = self.acquire_in_time().await;
        if acquired.is_err() {
            self.counts.add_failure();
        }
        acquired
    }

    async fn acquire_in_time(&self) -> Result<Reader> {
        let asked = Instant::now();
        let place = timeout(self.acquire_timeout, self.permits.clone().acquire_owned()).await;
        let place = place.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        let kept = self.idle.lock().pop();
        let conn = match kept {
            Some(conn) => conn,
            None => SqliteConnection::connect_with(&self.connect).await?,
        };
        metrics::histogram!(metric::ACQUIRE, "of" => "pool").record(asked.elapsed());
        Ok(Reader {
            conn,
            idle: Arc::clone(&self.idle),
            permit: place,
        })
    }

    pub(super) fn connections(&self) -> Connections {
        let idle = self.idle.lock().len();
        let busy = self.size.saturating_sub(self.permits.available_permits());
        self.counts.connections(self.size, busy, idle)
    }

    /// Closes what is free, and refuses the caller that comes.
    pub(super) async fn close(&self) {
        self.permits.close();
        let free = std::mem::take(&mut *self.idle.lock());
        for conn in free {
            let _ = conn.close().await;
        }
    }
}

/// A connection in use. Dropped in the middle of a statement it is closed.
pub(super) struct Reader {
    conn: SqliteConnection,
    idle: Arc<Mutex<Vec<SqliteConnection>>>,
    permit: OwnedSemaphorePermit,
}

impl Reader {
    pub(super) fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.conn
    }

    /// Releases it: no statement is under way on it.
    pub(super) fn release(self) {
        // Before the place, so that the caller that gets that finds it.
        self.idle.lock().push(self.conn);
        drop(self.permit);
    }
}
