//! Recently loaded WAL segments, so that reading page after page does not load them each time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::{TenantId, WalSegmentId};
use towpath_traces::flush::UnflushedData;

/// Entries expire because a project may have been deleted, or created again under the same name.
const AGE: Duration = Duration::from_secs(5);

/// Loaded data, the latest last.
pub struct RecentCache {
    entries: VecDeque<Entry>,
    /// Maximum size of the entries.
    bytes: usize,
}

/// A WAL segment, its place in the order of acceptance, which a flush changes, and the number of its frames that are
/// done.
pub type SegmentPosition = (WalSegmentId, i64, i64);

struct Entry {
    tenant: TenantId,
    units: Vec<SegmentPosition>,
    made: Instant,
    open: Arc<UnflushedData>,
}

impl RecentCache {
    pub const fn new(bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes,
        }
    }

    /// The data of exactly these WAL segments. Another set may give another result: a patch in one segment finds its
    /// trace run in another.
    pub fn find(&mut self, tenant: TenantId, units: &[SegmentPosition]) -> Option<Arc<UnflushedData>> {
        self.entries.retain(|entry| entry.made.elapsed() < AGE);
        let found = self
            .entries
            .iter()
            .find(|entry| entry.tenant == tenant && entry.units == units)?;
        Some(Arc::clone(&found.open))
    }

    /// Stores loaded data, and evicts older entries as necessary.
    pub fn keep(&mut self, tenant: TenantId, units: Vec<SegmentPosition>, open: Arc<UnflushedData>) {
        // WAL segments are only added until they are flushed, so older entries of the workspace are useless.
        self.entries
            .retain(|entry| entry.tenant != tenant && entry.made.elapsed() < AGE);
        self.entries.push_back(Entry {
            tenant,
            units,
            made: Instant::now(),
            open,
        });
        while self.entries.iter().map(|entry| entry.open.bytes).sum::<usize>() > self.bytes {
            self.entries.pop_front();
        }
    }
}
