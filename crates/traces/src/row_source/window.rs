//! Overlapping segments, split where one has row groups that the others only patch.
//!
//! A trace run is posted once and patched later, so a day in few large row groups is followed by small ones with
//! patches. The rows of a large row group and their order stay; only some columns change. Those are merged and the
//! others copied.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use towpath_domain::Timestamp;

use crate::columnar::Result;
use crate::row::{self, Key};
use crate::scan::{PartRef, Request, Scan, derived_from};
use crate::schema::{Selection, position};
use crate::segment::Segment;

/// With late row groups of more segments than this, all are merged row by row: each is scanned once for every large
/// one.
const MOST_SEGMENTS: usize = 9;

/// A time, and the row groups that have rows in it.
pub(super) struct Window {
    /// Of the segment that has the most rows.
    base: Vec<PartRef>,
    /// Of the others.
    late: Vec<PartRef>,
    range: Range<Timestamp>,
    open: Arc<HashMap<Path, Segment>>,
}

/// A row group of whose columns some are put together again.
pub(super) struct PatchedRowGroup {
    pub(super) segment: Segment,
    pub(super) row_group: usize,
    pub(super) first: Key,
    pub(super) last: Key,
    pub(super) rewritten: Option<RewrittenColumns>,
}

/// Columns of a row group that are others by what came late.
pub(crate) struct RewrittenColumns {
    columns: Vec<usize>,
    store: Arc<dyn ObjectStore>,
    request: Request,
    open: Arc<HashMap<Path, Segment>>,
}

impl RewrittenColumns {
    /// Whether the column at this position is among them.
    pub(crate) fn contains(&self, column: usize) -> bool {
        self.columns.contains(&column)
    }

    /// Columns of the merged rows: those of the row group, in its order.
    pub(crate) fn scan(&self, selection: Selection) -> Scan {
        let request = Request {
            selection,
            ..self.request.clone()
        };
        Scan::new(self.store.clone(), request).with_open(self.open.values())
    }
}

/// Splits row groups, sorted by first time, into windows in order: one per row group of the segment with the most rows.
/// Every row is in one window. Depends on row groups and range only.
pub(super) async fn split_into_windows(
    store: &Arc<dyn ObjectStore>,
    parts: Vec<PartRef>,
    range: &Range<Timestamp>,
) -> Result<VecDeque<Window>> {
    let paths: BTreeSet<&Path> = parts.iter().map(|part| &part.path).collect();
    if paths.len() > MOST_SEGMENTS {
        let whole = Window {
            base: Vec::new(),
            late: parts,
            range: range.clone(),
            open: Arc::default(),
        };
        return Ok(VecDeque::from([whole]));
    }
    let mut open = HashMap::new();
    for path in paths {
        open.insert(path.clone(), Segment::open(store.clone(), path.clone()).await?);
    }
    let mut rows: HashMap<&Path, u64> = HashMap::new();
    for part in &parts {
        *rows.entry(&part.path).or_default() += open[&part.path].group_rows(part.row_group)?;
    }
    let most = rows.into_iter().max_by_key(|(path, rows)| (*rows, *path));
    let most = most.map(|(path, _)| path.clone());
    let (base, late): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| Some(&part.path) == most.as_ref());
    let open = Arc::new(open);
    let mut windows: VecDeque<Window> = VecDeque::new();
    for part in base {
        match windows.back_mut() {
            // Adjacent ones are ordered by id, which a time cannot express.
            Some(last)
                if last
                    .base
                    .iter()
                    .any(|before| before.max_sort_time >= part.min_sort_time) =>
            {
                last.base.push(part);
            }
            last => {
                let start = last.map_or(range.start, |last| {
                    last.range.end = part.min_sort_time;
                    part.min_sort_time
                });
                windows.push_back(Window {
                    base: vec![part],
                    late: Vec::new(),
                    range: start..range.end,
                    open: Arc::clone(&open),
                });
            }
        }
    }
    for window in &mut windows {
        let within =
            |part: &&PartRef| part.max_sort_time >= window.range.start && part.min_sort_time < window.range.end;
        window.late = late.iter().filter(within).cloned().collect();
    }
    Ok(windows)
}

impl Window {
    /// Whether all of it comes before what was read already.
    pub(super) fn is_before(&self, after: Option<Key>) -> bool {
        after.is_some_and(|after| self.range.end <= after.sort_time)
    }

    /// Its rows, merged one by one.
    pub(super) fn scan(self, store: &Arc<dyn ObjectStore>, request: &Request) -> Scan {
        Scan::new(store.clone(), self.request(request)).with_open(self.open.values())
    }

    /// The request for its rows, and the segments open for it.
    pub(super) fn row_request(self, request: &Request) -> (Request, Arc<HashMap<Path, Segment>>) {
        (self.request(request), self.open)
    }

    fn request(&self, of: &Request) -> Request {
        Request {
            tenant: of.tenant,
            project: of.project,
            parts: self.base.iter().chain(&self.late).cloned().collect(),
            range: self.range.clone(),
            after: of.after,
            selection: of.selection.clone(),
            prices: Arc::clone(&of.prices),
        }
    }

    /// Its single row group that can be copied except for some columns. `None` if late data contain new rows or posts.
    pub(super) async fn patched(
        &self,
        store: &Arc<dyn ObjectStore>,
        request: &Request,
        least_rows: u64,
    ) -> Result<Option<PatchedRowGroup>> {
        let [base] = self.base.as_slice() else { return Ok(None) };
        let whole = self.range.start <= base.min_sort_time && base.max_sort_time < self.range.end;
        let segment = &self.open[&base.path];
        if !whole || !segment.can_be_copied(base.row_group, request.selection.positions(), least_rows) {
            return Ok(None);
        }
        segment.check_owner(base.row_group, request.tenant, request.project)?;
        let keys = segment.keys(base.row_group).await?;
        let (Some(first), Some(last)) = (keys.first().copied(), keys.last().copied()) else {
            return Ok(None);
        };
        let mut said = BTreeSet::new();
        for part in &self.late {
            let segment = &self.open[&part.path];
            segment.check_owner(part.row_group, request.tenant, request.project)?;
            let columns = [
                position::ID,
                position::SORT_TIME,
                position::SEQ,
                position::HAS_POST,
                position::PROVENANCE,
            ];
            let mut batches = segment.batches(part.row_group, &columns, None)?;
            while let Some(batch) = batches.try_next().await? {
                let theirs = row::keys(&batch)?;
                let from = theirs.partition_point(|key| key.sort_time < self.range.start);
                let to = theirs.partition_point(|key| key.sort_time < self.range.end);
                if theirs[from..to].iter().any(|key| keys.binary_search(key).is_err()) {
                    return Ok(None);
                }
                let Some(columns) = row::patched(&batch.slice(from, to - from))? else {
                    return Ok(None);
                };
                said.extend(columns);
            }
        }
        let columns = request.selection.positions().iter().copied();
        let changed = |column: &usize| {
            // The location of a row is fixed; starts in patches are not shown.
            *column != position::START_TIME
                && (said.contains(column) || derived_from(*column).iter().any(|at| said.contains(at)))
        };
        let columns: Vec<usize> = columns.filter(changed).collect();
        let anew = (!columns.is_empty()).then(|| RewrittenColumns {
            columns,
            store: store.clone(),
            request: Request {
                after: None,
                ..self.request(request)
            },
            open: Arc::clone(&self.open),
        });
        Ok(Some(PatchedRowGroup {
            segment: segment.clone(),
            row_group: base.row_group,
            first,
            last,
            rewritten: anew,
        }))
    }
}
