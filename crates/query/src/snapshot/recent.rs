//! Open units that were folded into memory a moment ago: whoever reads page after page does not fold them for each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::{TenantId, UnitId};
use towpath_traces::fold::Unfolded;

/// After this they are folded anew: a project may have been deleted, or made under the name of another.
const AGE: Duration = Duration::from_secs(5);

/// What was folded, the latest last.
pub struct Recent {
    entries: VecDeque<Entry>,
    /// Most bytes of memory that the entries take.
    bytes: usize,
}

/// A unit, its place in the order of acceptance, which changes when a fold takes it, and how many of its frames are done
/// with.
pub type Placed = (UnitId, i64, i64);

struct Entry {
    tenant: TenantId,
    units: Vec<Placed>,
    made: Instant,
    open: Arc<Unfolded>,
}

impl Recent {
    /// Keeps at most so many bytes.
    pub const fn new(bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes,
        }
    }

    /// What exactly these units of a workspace came to. One more or one less may change it: a patch in one unit finds
    /// its trace run in another.
    pub fn find(&mut self, tenant: TenantId, units: &[Placed]) -> Option<Arc<Unfolded>> {
        self.entries.retain(|entry| entry.made.elapsed() < AGE);
        let found = self
            .entries
            .iter()
            .find(|entry| entry.tenant == tenant && entry.units == units)?;
        Some(Arc::clone(&found.open))
    }

    /// Keeps what units came to, and lets go of as many others as that takes.
    pub fn keep(&mut self, tenant: TenantId, units: Vec<Placed>, open: Arc<Unfolded>) {
        // The units of a workspace only become more, until they are folded: what there was of it is of no use now.
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
