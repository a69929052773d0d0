//! The bytes of units, and what the names in them mean.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use bytes::Bytes;
use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, UnitId};
use towpath_store::units::Unit;
use towpath_store::{Store, units};

use crate::accept::Contents;
use crate::body::{self, BodyError, Limits};
use crate::objects::{Objects, ObjectsError};
use crate::wal::{self, Damage, Frame, unit};

/// Units are read together up to this.
const TOGETHER: u64 = 16 << 20;

/// The bytes of units, each asked for once. Units that lie behind each other in one object are read at once and wait for
/// their turn.
pub struct Source {
    objects: Objects,
    spans: Vec<Span>,
    /// The span of each unit.
    of: Vec<usize>,
    read: BTreeMap<usize, Bytes>,
}

struct Span {
    path: Path,
    range: Range<u64>,
    /// Units of it that are still to come.
    left: usize,
}

impl Source {
    pub fn new(objects: &Objects, units: &[Unit]) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        // The span that ends there.
        let mut open: HashMap<(&str, u64), usize> = HashMap::new();
        let mut of = Vec::with_capacity(units.len());
        for unit in units {
            let range = range(unit);
            let before = open.remove(&(unit.path.as_str(), range.start));
            let before = before.filter(|&at| range.end - spans[at].range.start <= TOGETHER);
            let at = before.unwrap_or_else(|| {
                spans.push(Span {
                    path: Path::from(unit.path.as_str()),
                    range: range.clone(),
                    left: 0,
                });
                spans.len() - 1
            });
            spans[at].range.end = range.end;
            spans[at].left += 1;
            open.insert((unit.path.as_str(), range.end), at);
            of.push(at);
        }
        Self {
            objects: objects.clone(),
            spans,
            of,
            read: BTreeMap::new(),
        }
    }

    /// The bytes of the `nth` unit, which is `unit`; fewer than it should have where its object was cut off.
    ///
    /// # Errors
    /// What the object store says, also that the object is not there.
    pub async fn bytes(&mut self, nth: usize, unit: &Unit) -> Result<Bytes, ObjectsError> {
        let at = self.of[nth];
        let span = &mut self.spans[at];
        span.left -= 1;
        let (start, last) = (span.range.start, span.left == 0);
        let read = match self.read.remove(&at) {
            Some(read) => read,
            None => self.objects.get_range(&span.path, span.range.clone()).await?,
        };
        if !last {
            self.read.insert(at, read.clone());
        }
        let range = range(unit);
        let within = |at: u64| usize::try_from(at - start).map_or(read.len(), |at| at.min(read.len()));
        Ok(read.slice(within(range.start)..within(range.end)))
    }
}

fn range(unit: &Unit) -> Range<u64> {
    let start = u64::try_from(unit.byte_offset).unwrap_or_default();
    start..start + u64::try_from(unit.bytes).unwrap_or_default()
}

/// A frame of a unit.
pub struct NumberedFrame {
    /// Its place in the unit, from 0.
    pub number: i64,
    /// The place of its first item in the order of acceptance.
    pub first: i64,
    /// The frame, if it can be read.
    pub frame: Result<Frame, Damage>,
}

/// The frames of a unit that are not done with yet. Frames of other workspaces count, and are left out.
pub fn frames(unit: &Unit, bytes: Bytes) -> impl Iterator<Item = NumberedFrame> {
    let (order, tenant, done) = (unit.order(), unit.tenant_id, unit.frames_done);
    let Range { start, end } = range(unit);
    let mut index = 0_u32;
    let numbered = unit::read_unit(bytes, start, end - start).zip(0_i64..);
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

/// Size of a frame's body after decoding; `None` where that is more than `most`. Earlier builds did not write it down, so
/// their bodies are decoded to learn it.
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

/// What the names of projects meant when units were registered.
#[derive(Default)]
pub struct Names(HashMap<UnitId, HashMap<String, ProjectId>>);

impl Names {
    /// Those in these units.
    ///
    /// # Errors
    /// What the database says.
    pub async fn of(store: &Store, units: &[Unit]) -> Result<Self, towpath_store::Error> {
        let ids: Vec<UnitId> = units.iter().map(|unit| unit.id).collect();
        let mut names = Self::default();
        for named in store.read(async |tx| units::names(tx, &ids).await).await? {
            let own = names.0.entry(named.unit_id).or_default();
            own.insert(named.name, named.project_id);
        }
        Ok(names)
    }

    /// What the names in a unit meant.
    pub fn of_unit(&self, unit: UnitId) -> BTreeMap<String, ProjectId> {
        let own = self.0.get(&unit).into_iter().flatten();
        own.map(|(name, project)| (name.clone(), *project)).collect()
    }

    /// Puts projects into the places of their names. A name that nothing is known of stays: the unit was registered by an
    /// earlier build, and its project was renamed since.
    pub fn resolve(&self, unit: UnitId, contents: &mut Contents) {
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
    use towpath_store::units::UnitState;

    use super::*;

    fn unit(path: &str, byte_offset: i64, bytes: i64) -> Unit {
        let tenant = TenantId::new();
        Unit {
            seq: 1,
            id: UnitId::new(),
            tenant_id: tenant,
            shard: Shard::of(tenant),
            path: path.to_owned(),
            byte_offset,
            bytes,
            decoded_bytes: bytes,
            operations: 1,
            ordinal: None,
            state: UnitState::Open,
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
        // Two flushes were registered at the same time; one unit was taken before; one object was cut off.
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
        let mut source = Source::new(&objects, &units);
        let ranges: Vec<_> = source.spans.iter().map(|span| span.range.clone()).collect();
        assert_eq!(ranges, [1..7, 1..5, 8..9, 8..19, 0..2]);
        for (nth, part) in ["12", "123", "3456", "4", "8", "89", ""].into_iter().enumerate() {
            assert_eq!(source.bytes(nth, &units[nth]).await.unwrap(), part, "unit {nth}");
        }
        assert!(source.read.is_empty());
        let missing = source.bytes(7, &units[7]).await;
        assert!(missing.unwrap_err().is_not_found());
    }

    #[test]
    fn what_is_read_at_once_is_bounded() {
        let size = i64::try_from(TOGETHER / 2).unwrap();
        let units: Vec<_> = (0..5).map(|nth| unit("a", nth * size, size)).collect();
        let source = Source::new(&Objects::memory(), &units);
        assert_eq!(source.of, [0, 0, 1, 1, 2]);
    }
}
