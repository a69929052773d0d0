//! A cache for lookups: footers, bloom filters, and ids of unindexed segments. Objects never change, so nothing becomes
//! stale; least recently used entries are evicted first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use object_store::path::Path;
use parking_lot::Mutex;
use parquet::bloom_filter::Sbbf;

use super::file::IndexFile;
use super::unindexed::{OpenSegment, Rows};

/// Default size: the filters of a hundred million trace runs, and room for unindexed data.
pub const BYTES: usize = 256 << 20;

/// What an entry takes besides its value.
const OVERHEAD_BYTES: usize = 256;

/// Something read from an object.
#[derive(Clone, Debug)]
pub enum CacheValue {
    /// The footer of an index file.
    File(Arc<IndexFile>),
    /// The footer of a segment.
    Segment(Arc<OpenSegment>),
    /// The bloom filter of a row group; `None` where it has none.
    Filter(Option<Arc<Sbbf>>),
    /// Rows of a segment.
    Rows(Arc<Rows>),
}

impl CacheValue {
    fn bytes(&self) -> usize {
        let value = match self {
            Self::File(file) => file.memory_bytes(),
            Self::Segment(segment) => segment.memory_bytes(),
            Self::Filter(filter) => filter.as_deref().map_or(0, filter_bytes),
            Self::Rows(rows) => rows.memory_bytes(),
        };
        value + OVERHEAD_BYTES
    }
}

/// Bytes of a bloom filter in memory.
pub fn filter_bytes(filter: &Sbbf) -> usize {
    const BLOCK_BYTES: usize = 32;
    filter.num_blocks() * BLOCK_BYTES
}

/// Which part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CachePart {
    Footer,
    /// The bloom filter of a row group.
    Filter(usize),
    /// The rows of the chunk that begins with this row group.
    Rows(usize),
}

type Key = (Path, CachePart);

/// Values up to a number of bytes.
#[derive(Debug)]
pub struct Cache {
    most_bytes: usize,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    values: HashMap<Key, CacheEntry>,
    /// By when they were last used.
    order: BTreeMap<u64, Key>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct CacheEntry {
    cached: CacheValue,
    bytes: usize,
    used: u64,
}

impl Cache {
    /// Keeps at most so many bytes.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            most_bytes,
            state: Mutex::default(),
        }
    }

    /// Bytes kept now.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// What was kept of an object.
    pub fn get(&self, path: &Path, part: CachePart) -> Option<CacheValue> {
        let key = (path.clone(), part);
        let mut kept = self.state.lock();
        kept.uses += 1;
        let now = kept.uses;
        let value = kept.values.get_mut(&key)?;
        let before = std::mem::replace(&mut value.used, now);
        let cached = value.cached.clone();
        kept.order.remove(&before);
        kept.order.insert(now, key);
        Some(cached)
    }

    /// Keeps it, and lets go of as much as that takes.
    pub fn put(&self, path: &Path, part: CachePart, cached: CacheValue) {
        let bytes = cached.bytes();
        if bytes > self.most_bytes {
            return;
        }
        let key = (path.clone(), part);
        let mut kept = self.state.lock();
        kept.uses += 1;
        let used = kept.uses;
        kept.order.insert(used, key.clone());
        kept.bytes += bytes;
        if let Some(before) = kept.values.insert(key, CacheEntry { cached, bytes, used }) {
            kept.order.remove(&before.used);
            kept.bytes -= before.bytes;
        }
        while kept.bytes > self.most_bytes
            && let Some((_, oldest)) = kept.order.pop_first()
        {
            if let Some(value) = kept.values.remove(&oldest) {
                kept.bytes -= value.bytes;
            }
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::new(BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> CacheValue {
        CacheValue::Filter(Some(Arc::new(Sbbf::new_with_num_of_bytes(count))))
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first_and_the_bound_holds() {
        let path = |name: &str| Path::from(name);
        let each = rows(100).bytes();
        let cache = Cache::new(3 * each);
        for name in ["a", "b", "c"] {
            cache.put(&path(name), CachePart::Rows(0), rows(100));
        }
        assert!(cache.get(&path("a"), CachePart::Rows(0)).is_some());
        assert!(cache.get(&path("a"), CachePart::Rows(1)).is_none());
        cache.put(&path("d"), CachePart::Rows(0), rows(100));
        assert!(
            cache.get(&path("b"), CachePart::Rows(0)).is_none(),
            "it was not used since"
        );
        for name in ["a", "c", "d"] {
            assert!(cache.get(&path(name), CachePart::Rows(0)).is_some(), "{name}");
        }
        // Again under its name, it counts once.
        cache.put(&path("d"), CachePart::Rows(0), rows(100));
        assert_eq!(cache.bytes(), 3 * each);
        // An entry larger than the cache is not stored, and evicts nothing.
        cache.put(&path("e"), CachePart::Rows(0), rows(1000));
        assert_eq!(cache.bytes(), 3 * each);
        for number in 0..100 {
            cache.put(&path("f"), CachePart::Filter(number), rows(number));
            assert!(cache.bytes() <= 3 * each);
        }
    }
}
