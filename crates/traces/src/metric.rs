//! What ingest, flushing and the object store count.

use std::future::Future;
use std::time::Instant;

use metrics::Unit;

pub(crate) const WAL_FLUSH: &str = "towpath_wal_flush_seconds";
pub(crate) const WAL_WAITING: &str = "towpath_wal_waiting_bytes";
pub(crate) const WAL_BYTES: &str = "towpath_wal_bytes_total";
pub(crate) const WAL_UNITS: &str = "towpath_wal_segments_total";
pub(crate) const WAL_FAILED: &str = "towpath_wal_failed_flushes_total";
pub(crate) const WAL_MISSING: &str = "towpath_wal_missing_segments_total";
pub(crate) const WAL_DAMAGED: &str = "towpath_wal_damaged_frames_total";
pub(crate) const FOLDED_OPERATIONS: &str = "towpath_flushed_operations_total";
pub(crate) const FOLDED_UNITS: &str = "towpath_flushed_wal_segments_total";
pub(crate) const DROPPED_OPERATIONS: &str = "towpath_dropped_operations_total";
pub(crate) const SEGMENTS: &str = "towpath_segments_written_total";
pub(crate) const SEGMENT_ROWS: &str = "towpath_segment_rows_total";
pub(crate) const SEGMENT_BYTES: &str = "towpath_segment_bytes_total";
pub(crate) const COMPACTED_SEGMENTS: &str = "towpath_compacted_segments_total";
pub(crate) const COMPACTED_ROWS: &str = "towpath_compacted_rows_total";
pub(crate) const COMPACTED_BYTES: &str = "towpath_compacted_bytes_total";
pub(crate) const REPRICED_ROWS: &str = "towpath_repriced_rows_total";
pub(crate) const INDEX_FILES: &str = "towpath_run_index_files_written_total";
pub(crate) const INDEX_ENTRIES: &str = "towpath_run_index_entries_written_total";
const OBJECT_SECONDS: &str = "towpath_object_store_seconds";
const OBJECT_ERRORS: &str = "towpath_object_store_errors_total";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_histogram!(
        WAL_FLUSH,
        Unit::Seconds,
        "Duration of writing and registering one batch of the write-ahead log"
    );
    metrics::describe_gauge!(WAL_WAITING, Unit::Bytes, "Trace data waiting to be written");
    metrics::describe_counter!(WAL_BYTES, Unit::Bytes, "Trace data written to the write-ahead log");
    metrics::describe_counter!(WAL_UNITS, Unit::Count, "Written WAL segments");
    metrics::describe_counter!(
        WAL_FAILED,
        Unit::Count,
        "Failed writes of the write-ahead log; their senders must retry"
    );
    metrics::describe_counter!(
        WAL_MISSING,
        Unit::Count,
        "Accepted WAL segments that were missing in the object store at their flush"
    );
    metrics::describe_counter!(
        WAL_DAMAGED,
        Unit::Count,
        "Parts of accepted WAL segments that could not be read; kept under quarantine/"
    );
    metrics::describe_counter!(FOLDED_OPERATIONS, Unit::Count, "Operations flushed into segments");
    metrics::describe_counter!(
        DROPPED_OPERATIONS,
        Unit::Count,
        "Operations whose project was deleted between their 202 and their flush"
    );
    metrics::describe_counter!(FOLDED_UNITS, Unit::Count, "WAL segments flushed into trace segments");
    metrics::describe_counter!(SEGMENTS, Unit::Count, "Segments written");
    metrics::describe_counter!(SEGMENT_ROWS, Unit::Count, "Rows of segments written");
    metrics::describe_counter!(SEGMENT_BYTES, Unit::Bytes, "Bytes of segments written");
    metrics::describe_counter!(COMPACTED_SEGMENTS, Unit::Count, "Segments written by compaction");
    metrics::describe_counter!(COMPACTED_ROWS, Unit::Count, "Rows of segments written by compaction");
    metrics::describe_counter!(COMPACTED_BYTES, Unit::Bytes, "Bytes of segments written by compaction");
    metrics::describe_counter!(
        REPRICED_ROWS,
        Unit::Count,
        "Rows whose costs were computed again after a change of model prices"
    );
    metrics::describe_counter!(
        INDEX_FILES,
        Unit::Count,
        "Written files of the index of trace runs, including merged ones"
    );
    metrics::describe_counter!(
        INDEX_ENTRIES,
        Unit::Count,
        "Entries written to files of the index of trace runs"
    );
    metrics::describe_histogram!(
        OBJECT_SECONDS,
        Unit::Seconds,
        "Duration of a call of the object store of WAL segments and trace segments, with its retries"
    );
    metrics::describe_counter!(
        OBJECT_ERRORS,
        Unit::Count,
        "Failed calls of the object store; a missing object is not a failure"
    );
    // Counters that exist from the first scrape let an alert tell zero from unknown.
    for name in [
        WAL_BYTES,
        WAL_UNITS,
        WAL_FAILED,
        WAL_MISSING,
        WAL_DAMAGED,
        FOLDED_OPERATIONS,
        DROPPED_OPERATIONS,
        FOLDED_UNITS,
        COMPACTED_SEGMENTS,
        COMPACTED_ROWS,
        COMPACTED_BYTES,
        REPRICED_ROWS,
        INDEX_FILES,
        INDEX_ENTRIES,
    ] {
        metrics::counter!(name).absolute(0);
    }
}

/// Times a call of the object store.
pub(crate) async fn object_call<T, E>(
    op: &'static str,
    call: impl Future<Output = Result<T, E>>,
    missing: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let began = Instant::now();
    let result = call.await;
    metrics::histogram!(OBJECT_SECONDS, "op" => op).record(began.elapsed());
    if result.as_ref().is_err_and(|error| !missing(error)) {
        metrics::counter!(OBJECT_ERRORS, "op" => op).increment(1);
    }
    result
}
