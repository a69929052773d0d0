//! What the scheduler sees and counts. Gauges about the whole system are set by every scheduler alike: ask for their
//! maximum, not their sum.

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
pub(crate) const OPEN_UNITS: &str = "towpath_wal_open_units";
pub(crate) const OPEN_UNITS_AGE: &str = "towpath_wal_oldest_open_unit_age_seconds";
pub(crate) const QUARANTINE_ENTRIES: &str = "towpath_quarantine_entries";
pub(crate) const QUARANTINE_ITEMS: &str = "towpath_quarantine_items";
pub(crate) const QUARANTINE_BYTES: &str = "towpath_quarantine_bytes";
pub(crate) const SWEEP_SECONDS: &str = "towpath_sweep_seconds";
pub(crate) const SWEEP_ERRORS: &str = "towpath_sweep_errors_total";
const SWEEP_LEFT: &str = "towpath_sweep_left";

/// Notes one turn of a sweep: how long it took, and how much it left for the next; nothing where it failed.
pub fn swept(sweep: &'static str, took: Duration, left: Option<i64>) {
    metrics::histogram!(SWEEP_SECONDS, "sweep" => sweep).record(took);
    match left {
        Some(left) => metrics::gauge!(SWEEP_LEFT, "sweep" => sweep).set(left as f64),
        None => metrics::counter!(SWEEP_ERRORS, "sweep" => sweep).increment(1),
    }
}

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_gauge!(
        JOBS,
        Unit::Count,
        "Open jobs of the whole system, by pool and state; counted up to 10000"
    );
    metrics::describe_gauge!(
        DEPTH,
        Unit::Count,
        "Jobs that a worker could claim now; 10000 for so many or more"
    );
    metrics::describe_gauge!(
        OLDEST,
        Unit::Seconds,
        "How long the oldest job that a worker could claim has been waiting; 0 when there is none"
    );
    metrics::describe_gauge!(PAUSED, Unit::Count, "1 while the pool is paused");
    metrics::describe_gauge!(
        WORKERS,
        Unit::Count,
        "Worker processes seen lately: working, and draining"
    );
    metrics::describe_gauge!(
        LANES,
        Unit::Count,
        "Lanes: open, and full (every place taken), among the first 10000"
    );
    metrics::describe_gauge!(SCHEDULES, Unit::Count, "Schedules: active, paused");
    metrics::describe_gauge!(
        SCHEDULE_LAG,
        Unit::Seconds,
        "How long the most overdue active schedule has been due"
    );
    metrics::describe_gauge!(
        OPEN_UNITS,
        Unit::Count,
        "Units of the write-ahead log that wait to be folded; 10000 for so many or more"
    );
    metrics::describe_gauge!(
        OPEN_UNITS_AGE,
        Unit::Seconds,
        "Age of the oldest unit that waits to be folded; 0 when there is none"
    );
    metrics::describe_gauge!(
        QUARANTINE_ENTRIES,
        Unit::Count,
        "Entries of accepted trace data that could not be folded"
    );
    metrics::describe_gauge!(
        QUARANTINE_ITEMS,
        Unit::Count,
        "Operations, feedback and attachments in quarantine"
    );
    metrics::describe_gauge!(QUARANTINE_BYTES, Unit::Bytes, "Accepted trace data in quarantine");
    metrics::describe_histogram!(SWEEP_SECONDS, Unit::Seconds, "One turn of a sweep of the clock");
    metrics::describe_counter!(
        SWEEP_ERRORS,
        Unit::Count,
        "Turns of a sweep that failed; each is repeated"
    );
    metrics::describe_gauge!(
        SWEEP_LEFT,
        Unit::Count,
        "What the last turn of a sweep that tidies up left for the next; 0 once it has caught up, 10000 for so many or more"
    );
    for name in [QUARANTINE_ENTRIES, QUARANTINE_ITEMS, QUARANTINE_BYTES] {
        metrics::gauge!(name).set(0.0);
    }
}
