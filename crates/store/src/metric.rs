//! Metrics of the store.

use std::time::Duration;

use crate::error::{Error, Result};

towpath_domain::metric_table! {
    pub fn describe;

    histogram COMMIT_SECONDS = "towpath_store_commit_seconds",
        "Duration of a COMMIT of the SQLite file, on disk at its end; excludes a write_one without concurrent writers";
    histogram COMMIT_GROUP = "towpath_store_commit_group", "Callers that one COMMIT of the SQLite file served";
    histogram SECONDS = "towpath_store_seconds",
        "Duration of a whole call of the store: read, write (until it is committed), write_one (one statement)";
    counter ERRORS = "towpath_store_errors_total",
        "Calls of the store that failed in the database: unavailable, full, driver, corrupt";
    histogram ACQUIRE = "towpath_store_acquire_seconds",
        "Time a call waited for a connection (pool) or for its turn to write (writer, on SQLite)";
}

/// Notes a call that took `took`. What a caller's own rule refused is not an error of the store.
pub(crate) fn called<T>(op: &'static str, took: Duration, result: &Result<T>) {
    metrics::histogram!(SECONDS, "op" => op).record(took);
    let error = match result {
        Err(Error::Unavailable(_)) => "unavailable",
        Err(Error::Full) => "full",
        Err(Error::Driver(_)) => "driver",
        Err(Error::Corrupt { .. }) => "corrupt",
        _ => return,
    };
    metrics::counter!(ERRORS, "op" => op, "error" => error).increment(1);
}
