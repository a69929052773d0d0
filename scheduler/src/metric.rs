//! Metrics of the scheduler. Every scheduler sets the gauges about the whole system, so aggregate them with the
//! maximum, not the sum.

use std::time::Duration;

use metrics::Unit;

pub(crate) const JOBS: &str = "towpath_jobs";
pub(crate) const DEPTH: &str = "towpath_queue_depth";
pub(crate) const OLDEST: &str = "towpath_queue_oldest_ready_age_seconds";
pub(crate) const PAUSED: &str = "towpath_queue_paused";
pub(crate) const WORKERS: &str = "towpath_workers";
pub(crate) const LANES: &str = "towpath_lanes";
pub(crate) const SCHEDULES: &str = "towpath_schedules";
pub(crate) const SCHEDULE_LAG: &str = "towpath_schedule_lag_seconds";
pub(crate) const OPEN_UNITS: &str = "towpath_wal_open_segments";
pub(crate) const OPEN_UNITS_AGE: &str = "towpath_wal_oldest_open_segment_age_seconds";
pub(crate) const QUARANTINE_ENTRIES: &str = "towpath_quarantine_entries";
pub(crate) const QUARANTINE_ITEMS: &str = "towpath_quarantine_items";
pub(crate) const QUARANTINE_BYTES: &str = "towpath_quarantine_bytes";
pub(crate) const SWEEP_SECONDS: &str = "towpath_sweep_seconds";
pub(crate) const SWEEP_ERRORS: &str = "towpath_sweep_errors_total";
const SWEEP_LEFT: &str = "towpath_sweep_left";

/// Records one run of a sweep: its duration and what it left for the next; `None` if it failed.
pub fn swept(sweep: &'static str, took: Duration, left: Option<i64>) {
    metrics::histogram!(SWEEP_SECONDS, "sweep" => sweep).record(took);
    match left {
        Some(left) => metrics::gauge!(SWEEP_LEFT, "sweep" => sweep).set(left as f64),
        None => metrics::counter!(SWEEP_ERRORS, "sweep" => sweep).increment(1),
    }
}

pub fn describe() {
    metrics::describe_gauge!(
        JOBS,
        Unit::Count,
        "Open jobs of the whole system, by pool and state; counted up to 10000"
    );
    metrics::describe_gauge!(
        DEPTH,
        Unit::Count,
        "Jobs that a worker could claim now; 10000 for that many or more"
    );
    metrics::describe_gauge!(
        OLDEST,
        Unit::Seconds,
        "Waiting time of the oldest job that a worker could claim; 0 when there is none"
    );
    metrics::describe_gauge!(PAUSED, Unit::Count, "1 while the pool is paused");
    metrics::describe_gauge!(
        WORKERS,
        Unit::Count,
        "Recently seen worker processes: working and draining"
    );
    metrics::describe_gauge!(
        LANES,
        Unit::Count,
        "Lanes: open, and full (every slot taken), among the first 10000"
    );
    metrics::describe_gauge!(SCHEDULES, Unit::Count, "Schedules: active, paused");
    metrics::describe_gauge!(SCHEDULE_LAG, Unit::Seconds, "Delay of the most overdue active schedule");
    metrics::describe_gauge!(
        OPEN_UNITS,
        Unit::Count,
        "WAL segments that wait for their flush; 10000 for that many or more"
    );
    metrics::describe_gauge!(
        OPEN_UNITS_AGE,
        Unit::Seconds,
        "Age of the oldest WAL segment that waits for its flush; 0 when there is none"
    );
    metrics::describe_gauge!(
        QUARANTINE_ENTRIES,
        Unit::Count,
        "Entries of accepted trace data that could not be flushed"
    );
    metrics::describe_gauge!(
        QUARANTINE_ITEMS,
        Unit::Count,
        "Operations, feedback and attachments in quarantine"
    );
    metrics::describe_gauge!(QUARANTINE_BYTES, Unit::Bytes, "Accepted trace data in quarantine");
    metrics::describe_histogram!(SWEEP_SECONDS, Unit::Seconds, "Duration of one run of a scheduler sweep");
    metrics::describe_counter!(SWEEP_ERRORS, Unit::Count, "Failed runs of a sweep; each is retried");
    metrics::describe_gauge!(
        SWEEP_LEFT,
        Unit::Count,
        "Rows that the last run of a cleanup sweep left for the next; 0 once it has caught up, 10000 for that many or \
         more"
    );
    for name in [QUARANTINE_ENTRIES, QUARANTINE_ITEMS, QUARANTINE_BYTES] {
        metrics::gauge!(name).set(0.0);
    }
}
