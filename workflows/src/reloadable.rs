//! Settings that change while the server runs.

use std::sync::Arc;

use parking_lot::RwLock;

/// A value that can be replaced while others read it; clones share it.
#[derive(Debug, Default)]
pub struct Reloadable<T>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Reloadable<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(value))))
    }

    #[must_use]
    pub fn current(&self) -> Arc<T> {
        self.0.read().clone()
    }

    /// Replaces the value for all readers.
    pub fn replace(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}
