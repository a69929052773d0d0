//! What ingest, flushing and the object store count.

use std::future::Future;
use std::time::Instant;

towpath_domain::metric_table! {
    pub fn describe;

    histogram WAL_FLUSH = "towpath_wal_flush_seconds",
        "Duration of writing and registering one batch of the write-ahead log";
    gauge WAL_WAITING = "towpath_wal_waiting_bytes", "Trace data waiting to be written";
    counter WAL_BYTES = "towpath_wal_bytes_total", "Trace data written to the write-ahead log", from_start;
    counter WAL_UNITS = "towpath_wal_segments_total", "Written WAL segments", from_start;
    counter WAL_FAILED = "towpath_wal_failed_flushes_total",
        "Failed writes of the write-ahead log; their senders must retry", from_start;
    counter WAL_MISSING = "towpath_wal_missing_segments_total",
        "Accepted WAL segments that were missing in the object store at their flush", from_start;
    counter WAL_DAMAGED = "towpath_wal_damaged_frames_total",
        "Parts of accepted WAL segments that could not be read; kept under quarantine/", from_start;
    counter FOLDED_OPERATIONS = "towpath_flushed_operations_total", "Operations flushed into segments", from_start;
    counter FOLDED_UNITS = "towpath_flushed_wal_segments_total", "WAL segments flushed into trace segments", from_start;
    counter DROPPED_OPERATIONS = "towpath_dropped_operations_total",
        "Operations whose project was deleted between their 202 and their flush", from_start;
    counter SEGMENTS = "towpath_segments_written_total", "Segments written";
    counter SEGMENT_ROWS = "towpath_segment_rows_total", "Rows of segments written";
    counter SEGMENT_BYTES = "towpath_segment_bytes_total", "Bytes of segments written";
    counter COMPACTED_SEGMENTS = "towpath_compacted_segments_total", "Segments written by compaction", from_start;
    counter COMPACTED_ROWS = "towpath_compacted_rows_total", "Rows of segments written by compaction", from_start;
    counter COMPACTED_BYTES = "towpath_compacted_bytes_total", "Bytes of segments written by compaction", from_start;
    counter REPRICED_ROWS = "towpath_repriced_rows_total",
        "Rows whose costs were computed again after a change of model prices", from_start;
    counter INDEX_FILES = "towpath_run_index_files_written_total",
        "Written files of the index of trace runs, including merged ones", from_start;
    counter INDEX_ENTRIES = "towpath_run_index_entries_written_total",
        "Entries written to files of the index of trace runs", from_start;
    histogram OBJECT_SECONDS = "towpath_object_store_seconds",
        "Duration of a call of the object store of WAL segments and trace segments, with its retries";
    counter OBJECT_ERRORS = "towpath_object_store_errors_total",
        "Failed calls of the object store; a missing object is not a failure";
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
