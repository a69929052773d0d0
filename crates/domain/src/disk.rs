//! Whether the disks have room for new work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of a disk, as its monitor reports it; clones share it. Initially there is room.
#[derive(Clone, Debug, Default)]
pub struct DiskStatus(Arc<AtomicBool>);

impl DiskStatus {
    /// Whether new work has to wait, so that running work can finish.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the state and returns the previous one.
    pub fn set_low(&self, low: bool) -> bool {
        self.0.swap(low, Ordering::Relaxed)
    }
}

/// The disks of a process. Both may be the same disk.
#[derive(Clone, Debug, Default)]
pub struct DiskStatuses {
    /// The disk of the data folder, and of objects in a folder.
    pub data: DiskStatus,
    /// Of the folder of `file` destinations.
    pub exports: DiskStatus,
}
