//! The rows of an export in order: overlapping row groups are merged row by row, while row groups that no other
//! overlaps are offered as a whole, so that they can be copied. So are those of which others only patch some columns.

mod window;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use object_store::path::Path;
use towpath_domain::Timestamp;

pub(crate) use self::window::RewrittenColumns;
use self::window::Window;
use crate::columnar::{Error, Result};
use crate::row::Key;
use crate::scan::{PartRef, Request, Scan, ScanBatch};
use crate::schema::Selection;
use crate::segment::Segment;

/// Smaller row groups are not worth copying: the file would have as small ones.
pub const SPLICE_ROWS: u64 = 8192;

/// What comes next.
pub(crate) enum RowSourceItem {
    Rows(ScanBatch),
    /// A row group of which every row is wanted and that nothing overlaps.
    Group(Box<WholeRowGroup>),
}

/// A row group to be copied.
pub(crate) struct WholeRowGroup {
    pub(crate) segment: Segment,
    /// But for these columns.
    pub(crate) rewritten: Option<RewrittenColumns>,
    pub(crate) row_group: usize,
    pub(crate) rows: u64,
    pub(crate) last: Key,
    /// The same rows, read one by one.
    row_request: Request,
    /// Segments of that request that are open.
    open: Arc<HashMap<Path, Segment>>,
}

/// Chooses among rows, batch by batch.
pub trait RowFilter: Send + Sync {
    /// The exported columns it looks at.
    fn columns(&self) -> Vec<&'static str>;

    /// The rows of a batch that match; the batch has at least [`Self::columns`].
    fn matching_rows<'a>(&'a self, batch: &'a ScanBatch) -> BoxFuture<'a, Result<BooleanArray>>;
}

/// Related data that are not part of segments. They are filled into batches; a row group with such data is not copied.
pub trait Enrichment: Send + Sync {
    /// Whether it has something for any of these.
    fn applies_to(&self, keys: &[Key]) -> bool;

    /// Fills related data into the first rows of a batch: as many as one batch can hold, and at least one.
    fn enrich(&self, batch: ScanBatch) -> BoxFuture<'_, Result<ScanBatch>>;
}

/// Lets only some rows through.
struct Filtered {
    filter: Arc<dyn RowFilter>,
    selection: Selection,
}

impl Filtered {
    async fn batch(&self, batch: ScanBatch) -> Result<ScanBatch> {
        let keep = self.filter.matching_rows(&batch).await?;
        let schema = batch.rows.schema();
        let wanted = self.selection.names().map(|name| schema.index_of(name));
        let rows = batch.rows.project(&wanted.collect::<Result<Vec<_>, _>>()?)?;
        let keys = batch.keys.iter().zip(keep.iter());
        Ok(ScanBatch {
            keys: keys
                .filter(|(_, keep)| *keep == Some(true))
                .map(|(key, _)| *key)
                .collect(),
            rows: filter_record_batch(&rows, &keep)?,
        })
    }
}

/// Rows that can be partially returned, so that the next file begins where this one ended.
pub struct RowSource {
    source: Option<PendingRowGroups>,
    scan: Option<Scan>,
    filtered: Option<Filtered>,
    enrichment: Option<Arc<dyn Enrichment>>,
    /// Rows of a batch that did not fit in with what is beside them.
    unenriched: Option<ScanBatch>,
    pushed_back: Option<RowSourceItem>,
}

/// Row groups that are not begun yet.
struct PendingRowGroups {
    store: Arc<dyn ObjectStore>,
    request: Request,
    least_rows: u64,
    overlap_groups: VecDeque<OverlapGroup>,
    /// What the unit at hand was cut into.
    windows: VecDeque<Window>,
    /// Open segments, with the number of their row groups still to come.
    segments: HashMap<Path, (Segment, usize)>,
}

/// Row groups that are read together. The keys of one overlap group precede those of the next.
#[derive(Debug, PartialEq, Eq)]
enum OverlapGroup {
    /// One whose time no other caller shares.
    Single(PartRef),
    Merged(Vec<PartRef>),
}

impl RowSource {
    /// The rows of a scan, one by one.
    #[must_use]
    pub const fn new(scan: Scan) -> Self {
        Self {
            source: None,
            scan: Some(scan),
            filtered: None,
            enrichment: None,
            unenriched: None,
            pushed_back: None,
        }
    }

    /// The same with what is beside the rows.
    #[must_use]
    pub fn with_enrichment(self, beside: Arc<dyn Enrichment>) -> Self {
        Self {
            enrichment: Some(beside),
            ..self
        }
    }

    /// The rows of a request that match a row filter. They are merged first, so late data count. Nothing is read yet.
    pub fn filtered(store: Arc<dyn ObjectStore>, request: Request, sieve: Arc<dyn RowFilter>) -> Result<Self> {
        let wanted = request.selection.clone();
        let names: Vec<&str> = wanted.names().chain(sieve.columns()).collect();
        let selection = Selection::of(&names).map_err(|refused| Error::Columns(refused.message))?;
        let scan = Scan::new(store, Request { selection, ..request });
        Ok(Self {
            source: None,
            scan: Some(scan),
            filtered: Some(Filtered {
                filter: sieve,
                selection: wanted,
            }),
            enrichment: None,
            unenriched: None,
            pushed_back: None,
        })
    }

    /// The rows of a request; row groups of at least `least_rows` rows that can be copied are offered as a whole. For
    /// files that are compressed like segments. Nothing is read yet.
    #[must_use]
    pub fn splicing(store: Arc<dyn ObjectStore>, request: Request, least_rows: u64) -> Self {
        let units = overlap_groups(&request);
        Self {
            source: Some(PendingRowGroups {
                store,
                request,
                least_rows,
                overlap_groups: units,
                windows: VecDeque::new(),
                segments: HashMap::new(),
            }),
            scan: None,
            filtered: None,
            enrichment: None,
            unenriched: None,
            pushed_back: None,
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<RowSourceItem>> {
        if let Some(left) = self.pushed_back.take() {
            return Ok(Some(left));
        }
        if let Some(rest) = self.unenriched.take() {
            return self.enriched(rest).await.map(Some);
        }
        loop {
            if let Some(scan) = &mut self.scan {
                if let Some(batch) = scan.next().await? {
                    let batch = match &self.filtered {
                        None => batch,
                        Some(sifted) => sifted.batch(batch).await?,
                    };
                    if batch.keys.is_empty() {
                        continue;
                    }
                    return self.enriched(batch).await.map(Some);
                }
                self.scan = None;
            }
            let Some(source) = &mut self.source else {
                return Ok(None);
            };
            match source.next(self.enrichment.as_deref()).await? {
                None => return Ok(None),
                Some(NextStep::Group(group)) => return Ok(Some(RowSourceItem::Group(group))),
                Some(NextStep::Scan(scan)) => self.scan = Some(*scan),
            }
        }
    }

    /// Reads a row group that was offered as a whole row by row, because a file ends inside it.
    pub(crate) fn read_by_row(&mut self, group: WholeRowGroup) {
        // Only a source offers row groups.
        if let Some(source) = &self.source {
            let open = group.open.values().chain([&group.segment]);
            self.scan = Some(Scan::new(source.store.clone(), group.row_request).with_open(open));
        }
    }

    /// Rows with related data; those that do not fit come next.
    async fn enriched(&mut self, batch: ScanBatch) -> Result<RowSourceItem> {
        let batch = match &self.enrichment {
            Some(beside) if beside.applies_to(&batch.keys) => {
                let filled = beside.enrich(batch.clone()).await?;
                let rest = batch.after(filled.keys.len());
                self.unenriched = (!rest.keys.is_empty()).then_some(rest);
                filled
            }
            _ => batch,
        };
        Ok(RowSourceItem::Rows(batch))
    }

    /// Takes back what was not used.
    pub(crate) fn push_back(&mut self, piece: RowSourceItem) {
        let empty = matches!(&piece, RowSourceItem::Rows(batch) if batch.keys.is_empty());
        self.pushed_back = (!empty).then_some(piece);
    }
}

enum NextStep {
    Group(Box<WholeRowGroup>),
    Scan(Box<Scan>),
}

impl PendingRowGroups {
    async fn next(&mut self, beside: Option<&dyn Enrichment>) -> Result<Option<NextStep>> {
        loop {
            if let Some(window) = self.windows.pop_front() {
                match self.window(window, beside).await? {
                    Some(next) => return Ok(Some(next)),
                    None => continue,
                }
            }
            let Some(unit) = self.overlap_groups.pop_front() else {
                return Ok(None);
            };
            let after = self.request.after;
            let part = match unit {
                OverlapGroup::Merged(parts) => {
                    let read = |part: &PartRef| after.is_some_and(|after| part.max_sort_time < after.sort_time);
                    if !parts.iter().all(read) {
                        self.windows = window::split_into_windows(&self.store, parts, &self.request.range).await?;
                    }
                    continue;
                }
                OverlapGroup::Single(part) => part,
            };
            if after.is_some_and(|after| part.max_sort_time < after.sort_time) {
                self.passed(&part.path);
                continue;
            }
            let segment = self.segment(&part.path).await?;
            segment.check_owner(part.row_group, self.request.tenant, self.request.project)?;
            let columns = self.request.selection.positions();
            if !segment.can_be_copied(part.row_group, columns, self.least_rows) {
                return Ok(Some(NextStep::Scan(self.scan(part))));
            }
            if let Some(beside) = beside
                && beside.applies_to(&segment.keys(part.row_group).await?)
            {
                return Ok(Some(NextStep::Scan(self.scan(part))));
            }
            let last = segment.last_key(part.row_group).await?;
            if after.is_some_and(|after| last <= after) {
                continue;
            }
            // A file ends after a copied row group or within merged ones, so a cursor is never inside a copied one. If
            // it is, from an older version, the rest is read row by row.
            if let Some(after) = after.filter(|after| part.min_sort_time <= after.sort_time)
                && segment
                    .keys(part.row_group)
                    .await?
                    .first()
                    .is_none_or(|first| *first <= after)
            {
                return Ok(Some(NextStep::Scan(self.scan(part))));
            }
            return Ok(Some(NextStep::Group(Box::new(WholeRowGroup {
                rows: segment.group_rows(part.row_group)?,
                row_group: part.row_group,
                segment,
                rewritten: None,
                last,
                row_request: self.of(part),
                open: Arc::default(),
            }))));
        }
    }

    async fn window(&self, window: Window, beside: Option<&dyn Enrichment>) -> Result<Option<NextStep>> {
        let after = self.request.after;
        if window.is_before(after) {
            return Ok(None);
        }
        let patched = window.patched(&self.store, &self.request, self.least_rows).await?;
        let Some(patched) =
            patched.filter(|patched| after.is_none_or(|after| after < patched.first || patched.last <= after))
        else {
            return Ok(Some(NextStep::Scan(Box::new(window.scan(&self.store, &self.request)))));
        };
        if after.is_some_and(|after| patched.last <= after) {
            return Ok(None);
        }
        if let Some(beside) = beside
            && beside.applies_to(&patched.segment.keys(patched.row_group).await?)
        {
            return Ok(Some(NextStep::Scan(Box::new(window.scan(&self.store, &self.request)))));
        }
        let (by_row, open) = window.row_request(&self.request);
        Ok(Some(NextStep::Group(Box::new(WholeRowGroup {
            rows: patched.segment.group_rows(patched.row_group)?,
            row_group: patched.row_group,
            segment: patched.segment,
            rewritten: patched.rewritten,
            last: patched.last,
            row_request: by_row,
            open,
        }))))
    }

    fn scan(&self, part: PartRef) -> Box<Scan> {
        Box::new(Scan::new(self.store.clone(), self.of(part)))
    }

    /// The request for one row group of it.
    fn of(&self, part: PartRef) -> Request {
        let all = &self.request;
        Request {
            tenant: all.tenant,
            project: all.project,
            parts: vec![part],
            range: all.range.clone(),
            after: all.after,
            selection: all.selection.clone(),
            prices: Arc::clone(&all.prices),
        }
    }

    /// The segment at `path`, which stays open until the last of its separate row groups was taken from it.
    async fn segment(&mut self, path: &Path) -> Result<Segment> {
        if let Some((segment, _)) = self.segments.get(path) {
            let segment = segment.clone();
            self.passed(path);
            return Ok(segment);
        }
        let segment = Segment::open(self.store.clone(), path.clone()).await?;
        let alone = |unit: &&OverlapGroup| matches!(unit, OverlapGroup::Single(part) if part.path == *path);
        let left = self.overlap_groups.iter().filter(alone).count();
        if left > 0 {
            self.segments.insert(path.clone(), (segment.clone(), left));
        }
        Ok(segment)
    }

    fn passed(&mut self, path: &Path) {
        if let Some((_, left)) = self.segments.get_mut(path) {
            *left -= 1;
            if *left == 0 {
                self.segments.remove(path);
            }
        }
    }
}

/// Splits the row groups of a request into overlap groups, in order. They depend on the row groups and the range only,
/// not on where an earlier attempt stopped: a reproduced file must meet the same ones.
fn overlap_groups(request: &Request) -> VecDeque<OverlapGroup> {
    let range = &request.range;
    let mut parts: Vec<PartRef> = request
        .parts
        .iter()
        .filter(|part| part.max_sort_time >= range.start && part.min_sort_time < range.end)
        .cloned()
        .collect();
    parts.sort_by(|a, b| (a.min_sort_time, &a.path, a.row_group).cmp(&(b.min_sort_time, &b.path, b.row_group)));
    parts.dedup_by(|a, b| a.path == b.path && a.row_group == b.row_group);
    let shared = shared(&parts);
    let mut units = VecDeque::new();
    let mut merged = Vec::new();
    for (part, shared) in parts.into_iter().zip(shared) {
        if shared || part.min_sort_time < range.start || part.max_sort_time >= range.end {
            merged.push(part);
            continue;
        }
        if !merged.is_empty() {
            units.push_back(OverlapGroup::Merged(std::mem::take(&mut merged)));
        }
        units.push_back(OverlapGroup::Single(part));
    }
    if !merged.is_empty() {
        units.push_back(OverlapGroup::Merged(merged));
    }
    units
}

/// For each part, sorted by first time, whether a row group of another segment overlaps it. Row groups of one segment
/// are consecutive and have each id once, so adjacent ones need no merge.
fn shared(parts: &[PartRef]) -> Vec<bool> {
    // The latest time so far, and the latest of another segment.
    let mut reach: Option<(Timestamp, &Path)> = None;
    let mut other: Option<Timestamp> = None;
    let mut shared: Vec<bool> = parts
        .iter()
        .map(|part| {
            let before = match reach {
                Some((reach, path)) if *path != part.path => Some(reach),
                Some(_) => other,
                None => None,
            };
            match reach {
                Some((latest, path)) if part.max_sort_time >= latest => {
                    if *path != part.path {
                        other = Some(latest);
                    }
                    reach = Some((part.max_sort_time, &part.path));
                }
                Some((_, path)) if *path != part.path => other = other.max(Some(part.max_sort_time)),
                Some(_) => {}
                None => reach = Some((part.max_sort_time, &part.path)),
            }
            before.is_some_and(|before| before >= part.min_sort_time)
        })
        .collect();
    // The same in reverse: the next part of another segment.
    let mut next: Option<(Timestamp, &Path)> = None;
    let mut next_other: Option<Timestamp> = None;
    for (part, shared) in parts.iter().zip(&mut shared).rev() {
        let after = match next {
            Some((first, path)) if *path != part.path => Some(first),
            Some(_) => next_other,
            None => None,
        };
        *shared |= after.is_some_and(|after| after <= part.max_sort_time);
        if let Some((first, path)) = next
            && *path != part.path
        {
            next_other = Some(first);
        }
        next = Some((part.min_sort_time, &part.path));
    }
    shared
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use towpath_domain::{ProjectId, TenantId};

    use super::*;
    use crate::schema::Selection;

    fn part(segment: u8, row_group: usize, from: i64, to: i64) -> PartRef {
        PartRef {
            path: Path::from(format!("{segment}")),
            row_group,
            min_sort_time: Timestamp::from_micros(from),
            max_sort_time: Timestamp::from_micros(to),
        }
    }

    fn request(parts: Vec<PartRef>, from: i64, to: i64) -> Request {
        Request {
            tenant: TenantId::nil(),
            project: ProjectId::nil(),
            parts,
            range: Timestamp::from_micros(from)..Timestamp::from_micros(to),
            after: None,
            selection: Selection::all(),
            prices: Arc::default(),
        }
    }

    #[test]
    fn what_nobody_overlaps_stands_alone() {
        let [a, b, c] = [part(1, 0, 0, 10), part(1, 1, 10, 20), part(1, 2, 21, 30)];
        let late = part(2, 0, 25, 26);
        let alone = |part: &PartRef| OverlapGroup::Single(part.clone());
        let found = overlap_groups(&request(vec![late.clone(), c.clone(), b.clone(), a.clone()], 0, 100));
        let merged = OverlapGroup::Merged(vec![c.clone(), late.clone()]);
        assert_eq!(found, [alone(&a), alone(&b), merged]);
        // The range cuts the first and the last.
        let found = overlap_groups(&request(vec![c.clone(), b.clone(), a.clone()], 1, 30));
        assert_eq!(
            found,
            [
                OverlapGroup::Merged(vec![a.clone()]),
                alone(&b),
                OverlapGroup::Merged(vec![c])
            ]
        );
        // Two adjacent segments may both have a part of a run at the same instant.
        let touching = part(3, 0, 20, 20);
        let found = overlap_groups(&request(vec![a.clone(), b.clone(), touching.clone()], 0, 100));
        assert_eq!(found, [alone(&a), OverlapGroup::Merged(vec![b, touching])]);
    }

    proptest! {
        #[test]
        fn nobody_shares_the_time_of_what_stands_alone(
            spans in prop::collection::vec((0_u8..4, 0_i64..60, 0_i64..12), 1..14),
        ) {
            // Row groups of one segment follow one another.
            let mut last = [0_i64; 4];
            let mut count = [0_usize; 4];
            let parts: Vec<PartRef> = spans
                .into_iter()
                .map(|(segment, gap, length)| {
                    let at = usize::from(segment);
                    let from = last[at] + gap / 4;
                    last[at] = from + length;
                    count[at] += 1;
                    part(segment, count[at] - 1, from, last[at])
                })
                .collect();
            let found = overlap_groups(&request(parts.clone(), i64::MIN, i64::MAX));
            let mut seen = Vec::new();
            let mut reach = i64::MIN;
            for unit in found {
                let (members, alone) = match unit {
                    OverlapGroup::Single(part) => (vec![part], true),
                    OverlapGroup::Merged(parts) => (parts, false),
                };
                for member in &members {
                    let overlaps = parts.iter().any(|other| {
                        other.path != member.path
                            && other.min_sort_time <= member.max_sort_time
                            && other.max_sort_time >= member.min_sort_time
                    });
                    prop_assert_eq!(overlaps, !alone);
                    prop_assert!(member.min_sort_time.micros() >= reach.min(member.min_sort_time.micros()));
                }
                let first = members.iter().map(|part| part.min_sort_time.micros()).min().unwrap();
                prop_assert!(first >= reach, "units follow one another");
                reach = members.iter().map(|part| part.max_sort_time.micros()).max().unwrap();
                seen.extend(members);
            }
            let order = |part: &PartRef| (part.path.clone(), part.row_group);
            let mut parts = parts;
            parts.sort_by_key(order);
            seen.sort_by_key(order);
            prop_assert_eq!(seen, parts);
        }
    }
}
