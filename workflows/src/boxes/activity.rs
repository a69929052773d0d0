//! Which boxes are in use, so that they do not stop as idle.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_domain::{BoxId, Timestamp};

use super::{Boxes, lock};

/// Uses since the last time they were written.
#[derive(Debug, Default)]
pub(super) struct Used(HashMap<BoxId, Use>);

#[derive(Debug)]
struct Use {
    /// Connections that are open.
    open: usize,
    last: Timestamp,
}

/// A connection to a box. The box is in use until it is dropped.
#[derive(Debug)]
pub struct InUse {
    boxes: Arc<Boxes>,
    id: BoxId,
}

impl Boxes {
    /// A connection to a box begins.
    #[must_use]
    pub fn begin_use(self: &Arc<Self>, id: BoxId) -> InUse {
        let now = self.clock.now();
        let mut used = lock(&self.used);
        let entry = used.0.entry(id).or_insert(Use { open: 0, last: now });
        entry.open += 1;
        entry.last = now;
        InUse {
            boxes: Arc::clone(self),
            id,
        }
    }

    /// Connections of a box that are open.
    #[must_use]
    pub fn connections(&self, id: BoxId) -> usize {
        lock(&self.used).0.get(&id).map_or(0, |entry| entry.open)
    }

    /// When boxes were used last, for those that were since the last call.
    pub(crate) fn take_used(&self) -> Vec<(BoxId, Timestamp)> {
        let now = self.clock.now();
        let mut used = lock(&self.used);
        let times = used.0.iter();
        let times = times.map(|(id, entry)| (*id, if entry.open > 0 { now } else { entry.last }));
        let times = times.collect();
        used.0.retain(|_, entry| entry.open > 0);
        times
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let now = self.boxes.clock.now();
        if let Some(entry) = lock(&self.boxes.used).0.get_mut(&self.id) {
            entry.open = entry.open.saturating_sub(1);
            entry.last = now;
        }
    }
}
