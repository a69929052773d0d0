//! Whether there is room for new work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What whoever watches a disk says of it; clones share it. Nobody said anything yet: there is room.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<AtomicBool>);

impl Disk {
    /// Whether new work has to wait, so that what is under way can be finished.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says whether it has to. What was said before.
    pub fn set_low(&self, low: bool) -> bool {
        self.0.swap(low, Ordering::Relaxed)
    }
}

/// The disks of a process. They may be one.
#[derive(Clone, Debug, Default)]
pub struct Disks {
    /// Of the data folder, and of objects where those lie in a folder.
    pub data: Disk,
    /// Of the folder of `file` destinations.
    pub exports: Disk,
}
