//! What the engine counts. Labels are pools, kinds and fixed words: never a tenant, a job or a lane.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use metrics::{Counter, Histogram, Unit};

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

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_counter!(ENQUEUED, Unit::Count, "Jobs recorded by this process");
    metrics::describe_counter!(FINISHED, Unit::Count, "Jobs ended by this process, by how they ended");
    metrics::describe_histogram!(RUN, Unit::Seconds, "How long an attempt of a job took");
    metrics::describe_counter!(
        ATTEMPTS,
        Unit::Count,
        "Attempts that ended here: ok (settled, or waits for children), retry, fatal, timed_out, cancelled, snoozed, lost"
    );
    metrics::describe_counter!(
        STEPS,
        Unit::Count,
        "Steps performed (run) and steps skipped because an earlier attempt had finished them (journal)"
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
        "Jobs that found their lane full and had to wait for a place"
    );
    metrics::describe_counter!(DEAD, Unit::Count, "Jobs that became dead letters");
    metrics::describe_counter!(EXPIRED, Unit::Count, "Jobs taken back because their lease had ended");
    metrics::describe_counter!(
        MOVES,
        Unit::Count,
        "Jobs moved by the clock: due, rescued, restarted, overdue, respawned"
    );
    // A counter that is there from the first scrape lets an alert tell zero from unknown.
    metrics::counter!(STALE).absolute(0);
    metrics::counter!(EXPIRED).absolute(0);
}

/// What is counted for every attempt of one kind in one pool: kept, since looking each up by its labels takes a copy of them
/// for every job.
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

    /// An attempt ended well.
    pub(crate) fn ok(&self) {
        self.ok.increment(1);
    }

    /// An attempt ended otherwise.
    pub(crate) fn failed(&self, outcome: &'static str) {
        metrics::counter!(ATTEMPTS, "kind" => self.kind.clone(), "outcome" => outcome).increment(1);
    }

    /// A job ended well.
    pub(crate) fn succeeded(&self) {
        self.succeeded.increment(1);
    }

    /// An attempt is over.
    pub(crate) fn took(&self, started: Instant) {
        self.took.record(started.elapsed());
    }
}

/// The meters of one process, by pool and kind.
#[derive(Default)]
pub(crate) struct AllMeters(Mutex<HashMap<String, HashMap<String, Arc<Meters>>>>);

impl AllMeters {
    pub(crate) fn of(&self, pool: &str, kind: &str) -> Arc<Meters> {
        // An insertion does not panic half way.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(pool).and_then(|kinds| kinds.get(kind)) {
            return Arc::clone(known);
        }
        let new = Arc::new(Meters::new(pool, kind));
        let kinds = all.entry(pool.to_owned()).or_default();
        kinds.insert(kind.to_owned(), Arc::clone(&new));
        new
    }
}
