//! How many requests are worked on at once, and when one who is refused may come back.
//!
//! Whoever finds no place is refused at once: nothing waits in memory, no body is read, and the answer says how long
//! it takes to work off what is under way at the pace of the last moments. Whose body is on its way has no place:
//! [`turn`](crate::turn).
//!
//! Once it is known whose a request is, its place counts as a part of that [`Owner`]'s share. A share is bounded by what is
//! free: one owner alone may take most of a gate, and the more others come, the less it may take.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use towpath_domain::{DeploymentId, TenantId};

/// The pace is measured over spans of at least this length.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);
/// Nobody is sent away for longer: the pace may be another one by then.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Counts what gets done, and from that says how long something takes.
pub(crate) struct Throughput(Mutex<ThroughputState>);

struct ThroughputState {
    since: Instant,
    done: f64,
    /// Of the spans before, younger ones counting more. None before the first is over.
    per_second: Option<f64>,
}

impl Default for Throughput {
    fn default() -> Self {
        Self(Mutex::new(ThroughputState {
            since: Instant::now(),
            done: 0.0,
            per_second: None,
        }))
    }
}

impl Throughput {
    /// So much is done.
    pub(crate) fn record(&self, n: usize) {
        let mut measured = self.0.lock();
        measured.done += n as f64;
        let span = measured.since.elapsed();
        if span >= MEASURE_INTERVAL {
            let now = measured.done / span.as_secs_f64();
            *measured = ThroughputState {
                since: Instant::now(),
                done: 0.0,
                per_second: Some(measured.per_second.map_or(now, |before| (before + now) / 2.0)),
            };
        }
    }

    /// How long it takes until `waiting` is done, at the pace of the last moments; at most half a minute.
    pub(crate) fn time_to_finish(&self, waiting: usize) -> Duration {
        let measured = self.0.lock();
        let span = measured.since.elapsed();
        let current = measured.done / span.as_secs_f64().max(0.001);
        let per_second = match measured.per_second {
            // Hardly anything got done for a while: that is the pace now, whatever was before.
            Some(before) if span > MEASURE_INTERVAL * 2 => before.min(current),
            Some(before) => before,
            None => current,
        };
        let seconds = waiting as f64 / per_second.max(0.001);
        Duration::from_secs_f64(seconds.min(MAX_RETRY_AFTER.as_secs_f64()))
    }
}

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Workspace(TenantId),
    /// On the way to a deployment: one that hangs must leave room for others of its workspace.
    Deployment(DeploymentId),
}

impl Owner {
    /// Who holds so many times the places that are free gets no more: newcomers find some, however many there are.
    const fn share_factor(self) -> usize {
        match self {
            Self::Workspace(_) => 7,
            Self::Deployment(_) => 5,
        }
    }
}

/// How many places each owner has; who has none is forgotten.
#[derive(Default)]
struct OwnerShares(Mutex<HashMap<Owner, usize>>);

impl OwnerShares {
    /// Counts one more place of `owner` where `free` are left, itself included.
    ///
    /// # Errors
    /// It has its share: of how many places.
    fn add(&self, owner: Owner, free: usize) -> Result<(), usize> {
        let mut held = self.0.lock();
        let count = held.get(&owner).copied().unwrap_or_default();
        if count >= free.saturating_mul(owner.share_factor()) {
            return Err(count);
        }
        held.insert(owner, count + 1);
        Ok(())
    }

    fn remove(&self, owner: Owner) {
        let mut held = self.0.lock();
        if let Some(count) = held.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                held.remove(&owner);
            }
        }
    }
}

/// So many places.
pub(crate) struct ConcurrencyLimit {
    permits: Arc<Semaphore>,
    size: usize,
    throughput: Arc<Throughput>,
    shares: Arc<OwnerShares>,
}

/// A place in a gate, given back when dropped.
pub(crate) struct ConcurrencyPermit {
    throughput: Option<Arc<Throughput>>,
    owners: Vec<Owner>,
    shares: Arc<OwnerShares>,
    permit: OwnedSemaphorePermit,
}

impl ConcurrencyPermit {
    /// Counts it as one of `owner`'s.
    ///
    /// # Errors
    /// That has its share already: how long it takes to work it off.
    pub(crate) fn charge(&mut self, owner: Owner) -> Result<(), Duration> {
        let free = self.permit.semaphore().available_permits() + 1;
        match self.shares.add(owner, free) {
            Ok(()) => {
                self.owners.push(owner);
                Ok(())
            }
            // Refused, it says nothing about the pace.
            Err(count) => Err(self
                .throughput
                .take()
                .map_or(MAX_RETRY_AFTER, |pace| pace.time_to_finish(count))),
        }
    }

    /// Gives it back before what it was for is done, which says nothing about the pace.
    pub(crate) fn release_unused(mut self) {
        self.throughput = None;
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        if let Some(pace) = &self.throughput {
            pace.record(1);
        }
        for owner in self.owners.drain(..) {
            self.shares.remove(owner);
        }
    }
}

impl ConcurrencyLimit {
    /// A gate of `size` places, at least one.
    pub(crate) fn new(size: usize) -> Self {
        let size = size.max(1);
        Self {
            permits: Arc::new(Semaphore::new(size)),
            size,
            throughput: Arc::default(),
            shares: Arc::default(),
        }
    }

    /// A place, or how long it takes to work off those who have one.
    pub(crate) fn try_acquire(&self) -> Result<ConcurrencyPermit, Duration> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Ok(ConcurrencyPermit {
                throughput: Some(Arc::clone(&self.throughput)),
                owners: Vec::new(),
                shares: Arc::clone(&self.shares),
                permit,
            }),
            Err(_) => Err(self.throughput.time_to_finish(self.size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pace_is_what_was_done_of_late() {
        let pace = Throughput::default();
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(20)).await;
            pace.record(1);
        }
        let fifty = pace.time_to_finish(50).as_secs_f64();
        assert!(
            (0.9..1.1).contains(&fifty),
            "50 of 50 per second take a second, not {fifty}"
        );
        // Nothing gets done any more: what was measured before does not hold.
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(pace.time_to_finish(50), MAX_RETRY_AFTER);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_learns_when_there_will_be_one() {
        let gate = ConcurrencyLimit::new(2);
        let mut held = Vec::new();
        for _ in 0..20 {
            let place = gate.try_acquire().ok().unwrap();
            tokio::time::advance(Duration::from_millis(100)).await;
            drop(place);
        }
        held.push(gate.try_acquire().ok().unwrap());
        held.push(gate.try_acquire().ok().unwrap());
        let wait = gate.try_acquire().err().unwrap().as_secs_f64();
        assert!(
            (0.15..0.3).contains(&wait),
            "two places at ten per second take 0.2 s, not {wait}"
        );
        held.pop();
        assert!(gate.try_acquire().is_ok());
    }

    /// As many places as `owner` gets.
    fn fill(gate: &ConcurrencyLimit, owner: Owner) -> Vec<ConcurrencyPermit> {
        let place = || {
            let mut place = gate.try_acquire().ok()?;
            place.charge(owner).ok()?;
            Some(place)
        };
        std::iter::from_fn(place).collect()
    }

    #[test]
    fn whoever_comes_finds_a_place() {
        let gate = ConcurrencyLimit::new(256);
        let workspaces: Vec<_> = (0..3).map(|_| Owner::Workspace(TenantId::new())).collect();
        let mut held: Vec<_> = workspaces.iter().map(|owner| fill(&gate, *owner)).collect();
        let counts: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [224, 28, 4]);
        // Who gives places back makes room for the others.
        held[0].truncate(100);
        assert!(fill(&gate, workspaces[2]).len() > 50);
        held.clear();
        assert!(gate.shares.0.lock().is_empty(), "who has no place is forgotten");
        assert_eq!(fill(&gate, workspaces[1]).len(), 224);
        // A deployment leaves room for others of its workspace.
        assert_eq!(fill(&gate, Owner::Deployment(DeploymentId::new())).len(), 214);
    }

    #[test]
    fn a_small_gate_has_no_shares_to_speak_of() {
        for size in 1..8 {
            assert_eq!(
                fill(&ConcurrencyLimit::new(size), Owner::Workspace(TenantId::new())).len(),
                size
            );
        }
        assert_eq!(
            fill(&ConcurrencyLimit::new(8), Owner::Workspace(TenantId::new())).len(),
            7
        );
    }
}
