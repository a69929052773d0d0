//! Tracks uses of sandboxes, so that used ones do not stop as idle.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_domain::{BoxId, Timestamp};

use super::SandboxHost;
use crate::metric;

/// Uses since they were last written.
#[derive(Debug, Default)]
pub(super) struct BoxUsage(HashMap<BoxId, BoxUse>);

#[derive(Debug)]
struct BoxUse {
    /// Open connections.
    open: usize,
    last: Timestamp,
}

/// A connection to a sandbox, which is in use until this is dropped.
#[derive(Debug)]
pub struct UseGuard {
    boxes: Arc<SandboxHost>,
    id: BoxId,
}

impl SandboxHost {
    /// Opens a connection to a sandbox.
    #[must_use]
    pub fn begin_use(self: &Arc<Self>, id: BoxId) -> UseGuard {
        let now = self.clock.now();
        let mut used = self.usage.lock();
        let entry = used.0.entry(id).or_insert(BoxUse { open: 0, last: now });
        entry.open += 1;
        metrics::gauge!(metric::BOX_CONNECTIONS).increment(1.0);
        entry.last = now;
        UseGuard {
            boxes: Arc::clone(self),
            id,
        }
    }

    /// Number of open connections of a sandbox.
    #[must_use]
    pub fn connections(&self, id: BoxId) -> usize {
        self.usage.lock().0.get(&id).map_or(0, |entry| entry.open)
    }

    /// The last use since the last [`Self::take_used`]; now, if a connection is open.
    pub(crate) fn last_use(&self, id: BoxId) -> Option<Timestamp> {
        let now = self.clock.now();
        let used = self.usage.lock();
        used.0
            .get(&id)
            .map(|entry| if entry.open > 0 { now } else { entry.last })
    }

    /// Restores uses that could not be written.
    pub(crate) fn restore_used(&self, unwritten: &[(BoxId, Timestamp)]) {
        let mut used = self.usage.lock();
        for (id, last) in unwritten {
            let entry = used.0.entry(*id).or_insert(BoxUse { open: 0, last: *last });
            entry.last = entry.last.max(*last);
        }
    }

    /// Last uses since the last call.
    pub(crate) fn take_used(&self) -> Vec<(BoxId, Timestamp)> {
        let now = self.clock.now();
        let mut used = self.usage.lock();
        let times = used.0.iter();
        let times = times.map(|(id, entry)| (*id, if entry.open > 0 { now } else { entry.last }));
        let times = times.collect();
        used.0.retain(|_, entry| entry.open > 0);
        times
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        metrics::gauge!(metric::BOX_CONNECTIONS).decrement(1.0);
        let now = self.boxes.clock.now();
        if let Some(entry) = self.boxes.usage.lock().0.get_mut(&self.id) {
            entry.open = entry.open.saturating_sub(1);
            entry.last = now;
        }
    }
}
