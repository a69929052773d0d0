//! Metrics of workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Gauge, Unit};
use tokio::sync::OwnedSemaphorePermit;

pub(crate) const WAIT: &str = "towpath_job_wait_seconds";
pub(crate) const CLAIM_SECONDS: &str = "towpath_claim_seconds";
pub(crate) const CLAIMED: &str = "towpath_jobs_claimed_total";
pub(crate) const CLAIMED_BY_ID: &str = "towpath_dispatch_claimed_total";
pub(crate) const STALE: &str = "towpath_dispatch_stale_total";
pub(crate) const REFILLS: &str = "towpath_dispatch_refills_total";
pub(crate) const RENEWALS: &str = "towpath_lease_renewals_total";
pub(crate) const RENEWAL_SECONDS: &str = "towpath_lease_renewal_seconds";
pub(crate) const GIVEN_UP: &str = "towpath_leases_given_up_total";
pub(crate) const LOST: &str = "towpath_leases_lost_total";
pub(crate) const STRAYS: &str = "towpath_stray_jobs_total";
const SLOTS: &str = "towpath_worker_slots";

pub fn describe() {
    metrics::describe_histogram!(
        WAIT,
        Unit::Seconds,
        "Time from the due time of a job to its claim, including backlog and lane"
    );
    metrics::describe_histogram!(
        CLAIM_SECONDS,
        Unit::Seconds,
        "Duration of a claim with the take of ids from Redis, with or without a result"
    );
    metrics::describe_counter!(CLAIMED, Unit::Count, "Jobs claimed by this process");
    metrics::describe_counter!(
        CLAIMED_BY_ID,
        Unit::Count,
        "Jobs claimed by an id from the queues in Redis"
    );
    metrics::describe_counter!(
        STALE,
        Unit::Count,
        "Ids from the queues in Redis whose job was not ready any more, or locked"
    );
    metrics::describe_counter!(
        REFILLS,
        Unit::Count,
        "Scans of the database for the queues in Redis, by reason: window (few ids left) or check (ids may be lost)"
    );
    metrics::describe_counter!(
        RENEWALS,
        Unit::Count,
        "Lease renewals of this process, by result: ok or failed"
    );
    metrics::describe_histogram!(
        RENEWAL_SECONDS,
        Unit::Seconds,
        "Duration of one renewal of the lease of this process"
    );
    metrics::describe_counter!(
        GIVEN_UP,
        Unit::Count,
        "Jobs stopped in this process because its lease could not be renewed in time"
    );
    metrics::describe_counter!(
        LOST,
        Unit::Count,
        "Jobs held in this process that another worker had taken over"
    );
    metrics::describe_counter!(
        STRAYS,
        Unit::Count,
        "Jobs of this process without a handler, returned to their pool"
    );
    metrics::describe_gauge!(SLOTS, Unit::Count, "Slots of this process per pool: busy and free");
    metrics::counter!(GIVEN_UP).absolute(0);
    metrics::counter!(LOST).absolute(0);
    metrics::counter!(STRAYS).absolute(0);
}

/// The slots of one pool; clones share them.
#[derive(Clone)]
pub(crate) struct Slots {
    busy: Gauge,
    free: Gauge,
    closed: Arc<AtomicBool>,
}

impl Slots {
    pub(crate) fn new(pool: &str, slots: usize) -> Self {
        let gauge = |state: &'static str| metrics::gauge!(SLOTS, "pool" => pool.to_owned(), "state" => state);
        let all = Self {
            busy: gauge("busy"),
            free: gauge("free"),
            closed: Arc::default(),
        };
        all.busy.set(0.0);
        all.free.set(slots as f64);
        all
    }

    /// Uses the slot of `permit` until the returned value is dropped.
    pub(crate) fn take(&self, permit: OwnedSemaphorePermit) -> Slot {
        self.busy.increment(1.0);
        self.free.decrement(1.0);
        Slot {
            _permit: permit,
            slots: self.clone(),
        }
    }

    /// Closes the free slots when the worker stops.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.free.set(0.0);
    }
}

/// A slot in use.
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    slots: Slots,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.busy.decrement(1.0);
        if !self.slots.closed.load(Ordering::Relaxed) {
            self.slots.free.increment(1.0);
        }
    }
}
