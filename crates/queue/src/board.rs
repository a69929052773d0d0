//! Who listens in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::{Notify, broadcast};
use towpath_domain::JobId;

use crate::Signal;
use crate::events::Hub;
use crate::wakes::Wake;

/// Signals a slow receiver may fall behind before it is told to look at the rows.
const SIGNALS_KEPT: usize = 1024;

/// The listeners of one process. Both kinds of queue wake through it.
pub struct Board {
    /// By pool. Sorted, so that the reader takes pools in the order in which a publisher sends them.
    listeners: RwLock<BTreeMap<Arc<str>, Vec<Listener>>>,
    signals: broadcast::Sender<Signal>,
    /// Who reads the events of threads.
    pub events: Hub,
}

/// One listener of a pool.
struct Listener {
    slot: Arc<Slot>,
    /// Where the pool stands in the listener's own list.
    place: usize,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            listeners: RwLock::default(),
            signals: broadcast::Sender::new(SIGNALS_KEPT),
            events: Hub::default(),
        }
    }
}

impl Board {
    /// Marks the pool for every listener that has it.
    pub fn wake(&self, pool: &str) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for listener in listeners.get(pool).into_iter().flatten() {
            listener.slot.mark(listener.place);
        }
    }

    /// Tells every listener and every receiver to look for itself: hints may have been lost.
    pub fn look(&self) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for listener in listeners.values().flatten() {
            listener.slot.mark_all();
        }
        drop(listeners);
        self.signal(Signal::Lagged);
        self.events.missed();
    }

    /// Signals the jobs to every receiver.
    pub fn cancel(&self, jobs: &[JobId]) {
        for job in jobs {
            self.signal(Signal::Job(*job));
        }
    }

    /// Hands one signal to every receiver.
    pub fn signal(&self, signal: Signal) {
        // An error means that nobody listens, which is fine for a hint.
        let _ = self.signals.send(signal);
    }

    /// A receiver of the signals from now on.
    pub fn signals(&self) -> broadcast::Receiver<Signal> {
        self.signals.subscribe()
    }

    /// The pools that somebody listens to, sorted.
    pub fn pools(&self) -> Vec<Arc<str>> {
        self.listeners
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .cloned()
            .collect()
    }

    /// Enters a listener.
    pub fn enter(&self, slot: &Arc<Slot>) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        for (place, pool) in slot.pools.iter().enumerate() {
            listeners.entry(pool.clone()).or_default().push(Listener {
                slot: slot.clone(),
                place,
            });
        }
    }

    /// Takes a listener out, and with the last one the pool.
    pub fn leave(&self, slot: &Arc<Slot>) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        for pool in &slot.pools {
            if let Some(others) = listeners.get_mut(pool) {
                others.retain(|other| !Arc::ptr_eq(&other.slot, slot));
                if others.is_empty() {
                    listeners.remove(pool);
                }
            }
        }
    }
}

/// What waits for one listener: a mark per pool and one for all, so it cannot grow however slow the listener is.
pub struct Slot {
    pools: Box<[Arc<str>]>,
    marks: Mutex<Marks>,
    ready: Notify,
}

struct Marks {
    all: bool,
    pools: Box<[bool]>,
    /// Where the next look begins, so that a busy pool does not hide the others.
    next: usize,
}

impl Slot {
    /// A slot that begins with the mark for all.
    pub fn new(mut pools: Vec<Arc<str>>) -> Self {
        pools.sort_unstable();
        pools.dedup();
        let marks = Marks {
            all: true,
            pools: vec![false; pools.len()].into(),
            next: 0,
        };
        Self {
            pools: pools.into(),
            marks: Mutex::new(marks),
            ready: Notify::new(),
        }
    }

    fn mark(&self, place: usize) {
        let mut marks = self.marks();
        if !marks.all && !marks.pools[place] {
            marks.pools[place] = true;
            drop(marks);
            // Kept as a permit when the listener is elsewhere, so no wake falls between its look and its wait.
            self.ready.notify_one();
        }
    }

    fn mark_all(&self) {
        self.marks().all = true;
        self.ready.notify_one();
    }

    /// The next mark, taken off.
    pub fn take(&self) -> Option<Wake> {
        let mut marks = self.marks();
        if marks.all {
            marks.all = false;
            marks.pools.fill(false);
            return Some(Wake::All);
        }
        let count = self.pools.len();
        let place = (0..count)
            .map(|step| (marks.next + step) % count)
            .find(|place| marks.pools[*place])?;
        marks.pools[place] = false;
        marks.next = place + 1;
        Some(Wake::Pool(self.pools[place].clone()))
    }

    /// Returns when there may be a mark.
    pub async fn ready(&self) {
        self.ready.notified().await;
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
