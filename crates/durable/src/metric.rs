//! Metrics of the engine. Labels are pools, kinds and fixed words, never a tenant, a job or a lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use metrics::{Counter, Histogram};
use parking_lot::Mutex;

towpath_domain::metric_table! {
    pub fn describe;

    counter ENQUEUED = "towpath_jobs_enqueued_total", "Jobs recorded by this process";
    counter FINISHED = "towpath_jobs_finished_total", "Jobs ended by this process, by outcome";
    histogram RUN = "towpath_job_run_seconds", "Duration of an attempt of a job";
    counter ATTEMPTS = "towpath_job_attempts_total",
        "Attempts that ended in this process: ok (settled, or waits for children), retry, fatal, timed_out, \
         cancelled, snoozed, lost";
    counter STEPS = "towpath_steps_total",
        "Steps performed (run), and steps skipped because an earlier attempt had finished them (journal)";
    counter CHECKPOINTS = "towpath_checkpoints_total", "Checkpoints saved";
    counter STALE = "towpath_stale_writes_refused_total",
        "Writes of workers whose job was taken over, refused by the fence", from_start;
    counter BLOCKED = "towpath_lane_waits_total", "Jobs that found their lane full and had to wait for a slot";
    counter DEAD = "towpath_dead_letters_total", "Jobs that became dead letters";
    counter EXPIRED = "towpath_leases_expired_total", "Jobs taken back because their lease had ended", from_start;
    counter MOVES = "towpath_sweep_moves_total",
        "Jobs moved by the scheduler: due, rescued, restarted, overdue, respawned";
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
