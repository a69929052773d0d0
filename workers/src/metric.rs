//! Metrics of workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Gauge;
use tokio::sync::OwnedSemaphorePermit;

towpath_domain::metric_table! {
    pub fn describe;

    histogram WAIT = "towpath_job_wait_seconds",
        "Time from the due time of a job to its claim, including backlog and lane";
    histogram CLAIM_SECONDS = "towpath_claim_seconds",
        "Duration of a claim with the take of ids from Redis, with or without a result";
    counter CLAIMED = "towpath_jobs_claimed_total", "Jobs claimed by this process";
    counter CLAIMED_BY_ID = "towpath_dispatch_claimed_total", "Jobs claimed by an id from the queues in Redis";
    counter STALE = "towpath_dispatch_stale_total",
        "Ids from the queues in Redis whose job was not ready any more, or locked";
    counter REFILLS = "towpath_dispatch_refills_total",
        "Scans of the database for the queues in Redis, by reason: window (few ids left) or check (ids may be lost)";
    counter RENEWALS = "towpath_lease_renewals_total", "Lease renewals of this process, by result: ok or failed";
    histogram RENEWAL_SECONDS = "towpath_lease_renewal_seconds", "Duration of one renewal of the lease of this process";
    counter GIVEN_UP = "towpath_leases_given_up_total",
        "Jobs stopped in this process because its lease could not be renewed in time", from_start;
    counter LOST = "towpath_leases_lost_total",
        "Jobs held in this process that another worker had taken over", from_start;
    counter STRAYS = "towpath_stray_jobs_total",
        "Jobs of this process without a handler, returned to their pool", from_start;
    gauge SLOTS = "towpath_worker_slots", "Slots of this process per pool: busy and free";
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
