//! The bytes of WAL segments, and what the names in them mean.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use bytes::Bytes;
use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, WalSegmentId};
use towpath_store::wal_segments::WalSegment;
use towpath_store::{Store, wal_segments};

use crate::accept::Contents;
use crate::body::{self, BodyError, Limits};
use crate::objects::{Objects, ObjectsError};
use crate::wal::{self, DamagedFrame, Frame, frame};

/// WAL segments are read together up to this.
const MAX_SPAN_BYTES: u64 = 16 << 20;

/// Reads WAL segments, each once. Adjacent WAL segments of an object are read with one request.
pub struct WalSegmentReader {
    objects: Objects,
    spans: Vec<ReadSpan>,
    /// The span of each WAL segment.
    span_of_segment: Vec<usize>,
    fetched: BTreeMap<usize, Bytes>,
}

struct ReadSpan {
    path: Path,
    range: Range<u64>,
    /// WAL segments of it that are still to come.
    remaining: usize,
}

impl WalSegmentReader {
    pub fn new(objects: &Objects, units: &[WalSegment]) -> Self {
        let mut spans: Vec<ReadSpan> = Vec::new();
        // The span that ends there.
        let mut open: HashMap<(&str, u64), usize> = HashMap::new();
        let mut of = Vec::with_capacity(units.len());
        for unit in units {
            let range = range(unit);
            let before = open.remove(&(unit.path.as_str(), range.start));
            let before = before.filter(|&at| range.end - spans[at].range.start <= MAX_SPAN_BYTES);
            let at = before.unwrap_or_else(|| {
                spans.push(ReadSpan {
                    path: Path::from(unit.path.as_str()),
                    range: range.clone(),
                    remaining: 0,
                });
                spans.len() - 1
            });
            spans[at].range.end = range.end;
            spans[at].remaining += 1;
            open.insert((unit.path.as_str(), range.end), at);
            of.push(at);
        }
        Self {
            objects: objects.clone(),
            spans,
            span_of_segment: of,
            fetched: BTreeMap::new(),
        }
    }

    /// The bytes of the `nth` WAL segment, which is `unit`; fewer than expected if its object was truncated.
    pub async fn bytes(&mut self, nth: usize, unit: &WalSegment) -> Result<Bytes, ObjectsError> {
        let at = self.span_of_segment[nth];
        let span = &mut self.spans[at];
        span.remaining -= 1;
        let (start, last) = (span.range.start, span.remaining == 0);
        let read = match self.fetched.remove(&at) {
            Some(read) => read,
            None => self.objects.get_range(&span.path, span.range.clone()).await?,
        };
        if !last {
            self.fetched.insert(at, read.clone());
        }
        let range = range(unit);
        let within = |at: u64| usize::try_from(at - start).map_or(read.len(), |at| at.min(read.len()));
        Ok(read.slice(within(range.start)..within(range.end)))
    }
}

fn range(unit: &WalSegment) -> Range<u64> {
    let start = u64::try_from(unit.byte_offset).unwrap_or_default();
    start..start + u64::try_from(unit.bytes).unwrap_or_default()
}

/// A frame of a WAL segment.
pub struct NumberedFrame {
    /// Its place in the WAL segment, from 0.
    pub number: i64,
    /// The place of its first item in the order of acceptance.
    pub first: i64,
    /// The frame, if it can be read.
    pub frame: Result<Frame, DamagedFrame>,
}

/// The remaining frames of a WAL segment. Frames of other workspaces are counted but skipped.
pub fn frames(unit: &WalSegment, bytes: Bytes) -> impl Iterator<Item = NumberedFrame> {
    let (order, tenant, done) = (unit.order(), unit.tenant_id, unit.frames_done);
    let Range { start, end } = range(unit);
    let mut index = 0_u32;
    let numbered = frame::read_range(bytes, start, end - start).zip(0_i64..);
    numbered.filter_map(move |(frame, number)| {
        let first = wal::seq(order, index);
        let (items, own) = match &frame {
            Ok(frame) => (frame.head.items, frame.head.tenant == tenant),
            Err(damage) => (damage.items.unwrap_or(0), true),
        };
        index = index.saturating_add(items);
        (own && number >= done).then_some(NumberedFrame { number, first, frame })
    })
}

/// Decoded size of a frame's body; `None` if it exceeds `most`. Earlier builds did not store it, so their bodies are
/// decoded.
pub fn decoded_size(frame: &Frame, most: usize) -> Option<usize> {
    if frame.head.decoded_bytes > 0 {
        let known = usize::try_from(frame.head.decoded_bytes).unwrap_or(usize::MAX);
        return (known <= most).then_some(known);
    }
    let limits = Limits {
        decoded_bytes: most,
        ..Limits::NONE
    };
    match body::decode(frame.head.encoding, &frame.body, &limits) {
        Ok(plain) => Some(plain.len()),
        Err(BodyError::TooLarge { .. }) => None,
        // Nothing of it can be read.
        Err(_) => Some(0),
    }
}

/// The projects of names when WAL segments were registered.
#[derive(Default)]
pub struct Names(HashMap<WalSegmentId, HashMap<String, ProjectId>>);

impl Names {
    /// Those in these WAL segments.
    pub async fn of(store: &Store, units: &[WalSegment]) -> Result<Self, towpath_store::Error> {
        let ids: Vec<WalSegmentId> = units.iter().map(|unit| unit.id).collect();
        let mut names = Self::default();
        for named in store.read(async |tx| wal_segments::names(tx, &ids).await).await? {
            let own = names.0.entry(named.unit_id).or_default();
            own.insert(named.name, named.project_id);
        }
        Ok(names)
    }

    /// What the names in a WAL segment meant.
    pub fn of_segment(&self, unit: WalSegmentId) -> BTreeMap<String, ProjectId> {
        let own = self.0.get(&unit).into_iter().flatten();
        own.map(|(name, project)| (name.clone(), *project)).collect()
    }

    /// Resolves project names. An unknown name stays: the WAL segment was registered by an earlier build, and its
    /// project was renamed since.
    pub fn resolve(&self, unit: WalSegmentId, contents: &mut Contents) {
        let Some(own) = self.0.get(&unit) else { return };
        for operation in &mut contents.operations {
            let known = match &operation.project {
                Some(ProjectRef::Name(name)) => own.get(name),
                _ => None,
            };
            if let Some(project) = known {
                operation.project = Some(ProjectRef::Id(*project));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::{Shard, TenantId, Timestamp};
    use towpath_store::wal_segments::WalSegmentState;

    use super::*;

    fn unit(path: &str, byte_offset: i64, bytes: i64) -> WalSegment {
        let tenant = TenantId::new();
        WalSegment {
            seq: 1,
            id: WalSegmentId::new(),
            tenant_id: tenant,
            shard: Shard::of(tenant),
            path: path.to_owned(),
            byte_offset,
            bytes,
            decoded_bytes: bytes,
            operations: 1,
            ordinal: None,
            state: WalSegmentState::Open,
            fold_job: None,
            created_at: Timestamp::from_micros(0),
            folded_at: None,
            frames_done: 0,
        }
    }

    #[tokio::test]
    async fn units_behind_each_other_are_read_at_once() {
        let objects = Objects::memory();
        for path in ["a", "b"] {
            let bytes = Bytes::from_static(b"0123456789");
            objects.put(&Path::from(path), vec![bytes]).await.unwrap();
        }
        // Two flushes were registered at the same time; one WAL segment was taken before; one object was cut off.
        let units = [
            unit("a", 1, 2),
            unit("b", 1, 3),
            unit("a", 3, 4),
            unit("b", 4, 1),
            unit("a", 8, 1),
            unit("b", 8, 9),
            unit("b", 17, 2),
            unit("c", 0, 2),
        ];
        let mut source = WalSegmentReader::new(&objects, &units);
        let ranges: Vec<_> = source.spans.iter().map(|span| span.range.clone()).collect();
        assert_eq!(ranges, [1..7, 1..5, 8..9, 8..19, 0..2]);
        for (nth, part) in ["12", "123", "3456", "4", "8", "89", ""].into_iter().enumerate() {
            assert_eq!(source.bytes(nth, &units[nth]).await.unwrap(), part, "unit {nth}");
        }
        assert!(source.fetched.is_empty());
        let missing = source.bytes(7, &units[7]).await;
        assert!(missing.unwrap_err().is_not_found());
    }

    #[test]
    fn what_is_read_at_once_is_bounded() {
        let size = i64::try_from(MAX_SPAN_BYTES / 2).unwrap();
        let units: Vec<_> = (0..5).map(|nth| unit("a", nth * size, size)).collect();
        let source = WalSegmentReader::new(&Objects::memory(), &units);
        assert_eq!(source.span_of_segment, [0, 0, 1, 1, 2]);
    }
}
