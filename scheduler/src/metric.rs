//! Metrics of the scheduler. Every scheduler sets the gauges about the whole system, so aggregate them with the
//! maximum, not the sum.

use std::time::Duration;

towpath_domain::metric_table! {
    pub fn describe;

    gauge JOBS = "towpath_jobs", "Open jobs of the whole system, by pool and state; counted up to 10000";
    gauge DEPTH = "towpath_queue_depth", "Jobs that a worker could claim now; 10000 for that many or more";
    gauge OLDEST = "towpath_queue_oldest_ready_age_seconds",
        "Waiting time of the oldest job that a worker could claim; 0 when there is none";
    gauge PAUSED = "towpath_queue_paused", "1 while the pool is paused";
    gauge WORKERS = "towpath_workers", "Recently seen worker processes: working and draining";
    gauge LANES = "towpath_lanes", "Lanes: open, and full (every slot taken), among the first 10000";
    gauge SCHEDULES = "towpath_schedules", "Schedules: active, paused";
    gauge SCHEDULE_LAG = "towpath_schedule_lag_seconds", "Delay of the most overdue active schedule";
    gauge OPEN_UNITS = "towpath_wal_open_segments",
        "WAL segments that wait for their flush; 10000 for that many or more";
    gauge OPEN_UNITS_AGE = "towpath_wal_oldest_open_segment_age_seconds",
        "Age of the oldest WAL segment that waits for its flush; 0 when there is none";
    gauge QUARANTINE_ENTRIES = "towpath_quarantine_entries",
        "Entries of accepted trace data that could not be flushed", from_start;
    gauge QUARANTINE_ITEMS = "towpath_quarantine_items",
        "Operations, feedback and attachments in quarantine", from_start;
    gauge QUARANTINE_BYTES = "towpath_quarantine_bytes", "Accepted trace data in quarantine", from_start;
    histogram SWEEP_SECONDS = "towpath_sweep_seconds", "Duration of one run of a scheduler sweep";
    counter SWEEP_ERRORS = "towpath_sweep_errors_total", "Failed runs of a sweep; each is retried";
    gauge SWEEP_LEFT = "towpath_sweep_left",
        "Rows that the last run of a cleanup sweep left for the next; 0 once it has caught up, 10000 for that many or \
         more";
}

/// Records one run of a sweep: its duration and what it left for the next; `None` if it failed.
pub fn swept(sweep: &'static str, took: Duration, left: Option<i64>) {
    metrics::histogram!(SWEEP_SECONDS, "sweep" => sweep).record(took);
    match left {
        Some(left) => metrics::gauge!(SWEEP_LEFT, "sweep" => sweep).set(left as f64),
        None => metrics::counter!(SWEEP_ERRORS, "sweep" => sweep).increment(1),
    }
}
