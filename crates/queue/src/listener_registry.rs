//! Listeners of this process.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, broadcast};
use towpath_domain::JobId;

use crate::Signal;
use crate::events::EventSubscribers;
use crate::wakes::{Wake, WakeKind};

/// Signals that a receiver may be behind before it must check the rows.
const SIGNALS_KEPT: usize = 1024;

/// The listeners of one process. Both kinds of queue wake through it.
pub struct ListenerRegistry {
    /// By pool. Sorted, so that the reader sees pools in the order in which a publisher sends them.
    listeners: RwLock<BTreeMap<Arc<str>, Vec<PoolListener>>>,
    signals: broadcast::Sender<Signal>,
    pub events: EventSubscribers,
}

struct PoolListener {
    pending: Arc<PendingWakes>,
    /// Index of the pool in the listener's own list.
    pool_index: usize,
}

impl Default for ListenerRegistry {
    fn default() -> Self {
        Self {
            listeners: RwLock::default(),
            signals: broadcast::Sender::new(SIGNALS_KEPT),
            events: EventSubscribers::default(),
        }
    }
}

impl ListenerRegistry {
    /// Marks the pool for each of its listeners.
    pub fn wake(&self, pool: &str, kind: WakeKind) {
        let listeners = self.listeners.read();
        for listener in listeners.get(pool).into_iter().flatten() {
            listener.pending.set(listener.pool_index, kind);
        }
    }

    /// Tells all listeners and receivers to check everything: hints may have been lost.
    pub fn rescan_all(&self) {
        let listeners = self.listeners.read();
        for listener in listeners.values().flatten() {
            listener.pending.set_all();
        }
        drop(listeners);
        self.send_signal(Signal::Lagged);
        self.events.notify_missed();
    }

    /// Sends the signals to all receivers.
    pub fn cancel(&self, jobs: &[JobId]) {
        for job in jobs {
            self.send_signal(Signal::Job(*job));
        }
    }

    /// Sends one signal to all receivers.
    pub fn send_signal(&self, signal: Signal) {
        // An error means that there is no receiver, which is fine for a hint.
        let _ = self.signals.send(signal);
    }

    pub fn subscribe_signals(&self) -> broadcast::Receiver<Signal> {
        self.signals.subscribe()
    }

    /// Pools with listeners, sorted.
    pub fn pools(&self) -> Vec<Arc<str>> {
        self.listeners.read().keys().cloned().collect()
    }

    pub fn add(&self, slot: &Arc<PendingWakes>) {
        let mut listeners = self.listeners.write();
        for (place, pool) in slot.pools.iter().enumerate() {
            listeners.entry(pool.clone()).or_default().push(PoolListener {
                pending: slot.clone(),
                pool_index: place,
            });
        }
    }

    /// Removes a listener, and its pools if it was the last one.
    pub fn remove(&self, slot: &Arc<PendingWakes>) {
        let mut listeners = self.listeners.write();
        for pool in &slot.pools {
            if let Some(others) = listeners.get_mut(pool) {
                others.retain(|other| !Arc::ptr_eq(&other.pending, slot));
                if others.is_empty() {
                    listeners.remove(pool);
                }
            }
        }
    }
}

/// Pending wakes of one listener: one per pool and a flag for all, so its size does not depend on the listener's speed.
pub struct PendingWakes {
    pools: Box<[Arc<str>]>,
    flags: Mutex<WakeFlags>,
    ready: Notify,
}

struct WakeFlags {
    all: bool,
    pools: Box<[Option<WakeKind>]>,
    /// Where the next search begins, so that a busy pool does not hide the others.
    next: usize,
}

impl PendingWakes {
    /// Starts with the flag for all pools set.
    pub fn new(mut pools: Vec<Arc<str>>) -> Self {
        pools.sort_unstable();
        pools.dedup();
        let marks = WakeFlags {
            all: true,
            pools: vec![None; pools.len()].into(),
            next: 0,
        };
        Self {
            pools: pools.into(),
            flags: Mutex::new(marks),
            ready: Notify::new(),
        }
    }

    fn set(&self, place: usize, kind: WakeKind) {
        let mut marks = self.flags.lock();
        if !marks.all && marks.pools[place] < Some(kind) {
            marks.pools[place] = Some(kind);
            drop(marks);
            // Stored as a permit while the listener is busy, so that no wake is lost between its check and its wait.
            self.ready.notify_one();
        }
    }

    fn set_all(&self) {
        self.flags.lock().all = true;
        self.ready.notify_one();
    }

    /// Takes the next wake.
    pub fn take_next(&self) -> Option<Wake> {
        let mut marks = self.flags.lock();
        if marks.all {
            marks.all = false;
            marks.pools.fill(None);
            return Some(Wake::All);
        }
        let count = self.pools.len();
        let place = (0..count)
            .map(|step| (marks.next + step) % count)
            .find(|place| marks.pools[*place].is_some())?;
        let kind = marks.pools[place].take()?;
        marks.next = place + 1;
        let pool = self.pools[place].clone();
        Some(match kind {
            WakeKind::Queued => Wake::Queued(pool),
            WakeKind::Database => Wake::Pool(pool),
        })
    }

    /// Waits until there may be a wake.
    pub async fn ready(&self) {
        self.ready.notified().await;
    }
}
