//! Which uploads in parts are open. An upload nobody finishes is invisible and costs space until it is given up, which
//! takes an id that only the process knows that began it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An upload in parts that was begun.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Begun {
    /// The key it will have.
    pub path: String,
    /// What the destination calls it.
    pub id: String,
}

/// Uploads that were begun and are not over.
#[derive(Clone, Debug, Default)]
pub(super) struct Uploads(Arc<State>);

#[derive(Debug, Default)]
struct State {
    open: Mutex<BTreeSet<Begun>>,
    /// Whether there ever was one.
    any: AtomicBool,
}

impl Uploads {
    pub(super) fn add(&self, upload: Begun) {
        self.0.any.store(true, Ordering::Relaxed);
        self.open().insert(upload);
    }

    pub(super) fn remove(&self, upload: &Begun) {
        self.open().remove(upload);
    }

    pub(super) fn list(&self) -> Vec<Begun> {
        self.open().iter().cloned().collect()
    }

    pub(super) fn any(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<Begun>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
