//! Metrics of the store.

use std::time::Duration;

use metrics::Unit;

use crate::error::{Error, Result};

pub(crate) const COMMIT_SECONDS: &str = "towpath_store_commit_seconds";
pub(crate) const COMMIT_GROUP: &str = "towpath_store_commit_group";
const SECONDS: &str = "towpath_store_seconds";
const ERRORS: &str = "towpath_store_errors_total";
pub(crate) const ACQUIRE: &str = "towpath_store_acquire_seconds";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "Duration of a whole call of the store: read, write (until it is committed), write_one (one statement)"
    );
    metrics::describe_counter!(
        ERRORS,
        Unit::Count,
        "Calls of the store that failed in the database: unavailable, full, driver, corrupt"
    );
    metrics::describe_histogram!(
        ACQUIRE,
        Unit::Seconds,
        "Time a call waited for a connection (pool) or for its turn to write (writer, on SQLite)"
    );
    metrics::describe_histogram!(
        COMMIT_SECONDS,
        Unit::Seconds,
        "Duration of a COMMIT of the SQLite file, on disk at its end; excludes a write_one without concurrent writers"
    );
    metrics::describe_histogram!(
        COMMIT_GROUP,
        Unit::Count,
        "Callers that one COMMIT of the SQLite file served"
    );
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
