//! Metrics of the engine. Labels are pools, kinds and fixed words, never a tenant, a job or a lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use metrics::{Counter, Histogram, Unit};
use parking_lot::Mutex;

pub(crate) const ENQUEUED: &str = "towpath_jobs_enqueued_total";
pub(crate) const FINISHED: &str = "towpath_jobs_finished_total";
pub(crate) const RUN: &str = "towpath_job_run_seconds";
pub(crate) const ATTEMPTS: &str = "towpath_job_attempts_total";
pub(crate) const STEPS: &str = "towpath_steps_total";
pub(crate) const CHECKPOINTS: &str = "towpath_checkpoints_total";
pub(crate) const STALE: &str = "towpath_stale_writes_refused_total";
pub(crate) const BLOCKED: &str = "towpath_lane_waits_total";
pub(crate) const DEAD: &str = "towpath_dead_letters_total";
pub(crate) const EXPIRED: &str = "towpath_leases_expired_total";
pub(crate) const MOVES: &str = "towpath_sweep_moves_total";

pub fn describe() {
    metrics::describe_counter!(ENQUEUED, Unit::Count, "Jobs recorded by this process");
    metrics::describe_counter!(FINISHED, Unit::Count, "Jobs ended by this process, by outcome");
    metrics::describe_histogram!(RUN, Unit::Seconds, "Duration of an attempt of a job");
    metrics::describe_counter!(
        ATTEMPTS,
        Unit::Count,
        "Attempts that ended in this process: ok (settled, or waits for children), retry, fatal, timed_out, \
         cancelled, snoozed, lost"
    );
    metrics::describe_counter!(
        STEPS,
        Unit::Count,
        "Steps performed (run), and steps skipped because an earlier attempt had finished them (journal)"
    );
    metrics::describe_counter!(CHECKPOINTS, Unit::Count, "Checkpoints saved");
    metrics::describe_counter!(
        STALE,
        Unit::Count,
        "Writes of workers whose job was taken over, refused by the fence"
    );
    metrics::describe_counter!(
        BLOCKED,
        Unit::Count,
        "Jobs that found their lane full and had to wait for a slot"
    );
    metrics::describe_counter!(DEAD, Unit::Count, "Jobs that became dead letters");
    metrics::describe_counter!(EXPIRED, Unit::Count, "Jobs taken back because their lease had ended");
    metrics::describe_counter!(
        MOVES,
        Unit::Count,
        "Jobs moved by the scheduler: due, rescued, restarted, overdue, respawned"
    );
    // Registered from the first scrape, so that an alert can distinguish zero from unknown.
    metrics::counter!(STALE).absolute(0);
    metrics::counter!(EXPIRED).absolute(0);
}

/// Metric handles for the attempts of one kind in one pool. They are cached, because a lookup by labels copies the
/// labels for every job.
pub(crate) struct Meters {
    kind: String,
    ok: Counter,
    succeeded: Counter,
    took: Histogram,
}

impl Meters {
    fn new(pool: &str, kind: &str) -> Self {
        let (pool, kind) = (pool.to_owned(), kind.to_owned());
        Self {
            ok: metrics::counter!(ATTEMPTS, "kind" => kind.clone(), "outcome" => "ok"),
            succeeded: metrics::counter!(FINISHED, "pool" => pool.clone(), "kind" => kind.clone(),
                                         "outcome" => "succeeded"),
            took: metrics::histogram!(RUN, "pool" => pool, "kind" => kind.clone()),
            kind,
        }
    }

    /// Counts a successful attempt.
    pub(crate) fn ok(&self) {
        self.ok.increment(1);
    }

    /// Counts an attempt that did not succeed.
    pub(crate) fn failed(&self, outcome: &'static str) {
        metrics::counter!(ATTEMPTS, "kind" => self.kind.clone(), "outcome" => outcome).increment(1);
    }

    /// Counts a succeeded job.
    pub(crate) fn succeeded(&self) {
        self.succeeded.increment(1);
    }

    /// Records the duration of an attempt.
    pub(crate) fn took(&self, started: Instant) {
        self.took.record(started.elapsed());
    }
}

/// The meters of one process, by pool and kind.
#[derive(Default)]
pub(crate) struct AllMeters(Mutex<HashMap<String, HashMap<String, Arc<Meters>>>>);

impl AllMeters {
    pub(crate) fn of(&self, pool: &str, kind: &str) -> Arc<Meters> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(pool).and_then(|kinds| kinds.get(kind)) {
            return Arc::clone(known);
        }
        let new = Arc::new(Meters::new(pool, kind));
        let kinds = all.entry(pool.to_owned()).or_default();
        kinds.insert(kind.to_owned(), Arc::clone(&new));
        new
    }
}
