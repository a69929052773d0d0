//! Numbers of a connection pool.

use std::sync::atomic::{AtomicU64, Ordering};

/// Connections of a store, and the calls for them since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Maximum number.
    pub limit: u32,
    /// In use.
    pub busy: u32,
    /// Free.
    pub idle: u32,
    /// Calls that found all connections in use.
    pub waits: u64,
    /// Calls that got no connection.
    pub failures: u64,
}

/// Counts of calls for a connection.
#[derive(Debug, Default)]
pub(crate) struct AcquireCounts {
    waits: AtomicU64,
    failures: AtomicU64,
}

impl AcquireCounts {
    pub(crate) fn add_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts with the connections of their pool.
    pub(crate) fn connections(&self, limit: usize, busy: usize, idle: usize) -> Connections {
        let [limit, busy, idle] = [limit, busy, idle].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Connections {
            limit,
            busy,
            idle,
            waits: self.waits.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}
