//! Which uploads in parts are open. An upload nobody finishes is invisible and costs space until it is given up, which
//! takes an id that only the process knows that began it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

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
pub(super) struct Uploads(Arc<Mutex<BTreeSet<Begun>>>);

impl Uploads {
    pub(super) fn add(&self, upload: Begun) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(upload);
    }

    pub(super) fn remove(&self, upload: &Begun) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(upload);
    }

    pub(super) fn list(&self) -> Vec<Begun> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }
}
