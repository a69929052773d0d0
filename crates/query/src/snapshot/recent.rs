//! Open units that were folded into memory a moment ago: whoever reads page after page does not fold them for each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::{TenantId, UnitId};
use towpath_traces::fold::Unfolded;

/// Bytes of bodies after decoding of which the rows are kept.
const BYTES: i64 = 128 << 20;
/// After this they are folded anew: a project may have been deleted, or made under the name of another.
const AGE: Duration = Duration::from_secs(5);

/// What was folded, the latest last.
#[derive(Default)]
pub struct Recent(VecDeque<Entry>);

/// A unit and its place in the order of acceptance, which changes when a fold takes it.
type Placed = (UnitId, i64);

struct Entry {
    tenant: TenantId,
    units: Vec<Placed>,
    bytes: i64,
    made: Instant,
    open: Arc<Unfolded>,
}

impl Recent {
    /// What exactly these units of a workspace came to. One more or one less may change it: a patch in one unit finds
    /// its trace run in another.
    pub fn find(&mut self, tenant: TenantId, units: &[Placed]) -> Option<Arc<Unfolded>> {
        self.0.retain(|entry| entry.made.elapsed() < AGE);
        let found = self
            .0
            .iter()
            .find(|entry| entry.tenant == tenant && entry.units == units)?;
        Some(Arc::clone(&found.open))
    }

    /// Keeps what units came to, and lets go of as many others as that takes.
    pub fn keep(&mut self, tenant: TenantId, units: Vec<Placed>, bytes: i64, open: Arc<Unfolded>) {
        // The units of a workspace only become more, until they are folded: what there was of it is of no use now.
        self.0
            .retain(|entry| entry.tenant != tenant && entry.made.elapsed() < AGE);
        self.0.push_back(Entry {
            tenant,
            units,
            bytes,
            made: Instant::now(),
            open,
        });
        while self.0.iter().map(|entry| entry.bytes).sum::<i64>() > BYTES {
            self.0.pop_front();
        }
    }
}
