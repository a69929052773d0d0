//! Streams the trace runs of one project in order, each once, from any number of segments.
//!
//! Row groups are merged by [`Key`]. Rows of a single row group pass through as column slices and are never converted
//! into [`Row`]s. If several row groups have parts of a trace run (its post here, a patch there), those rows are
//! decoded, merged and derived again. A row group is opened when the merge reaches its first key and dropped after its
//! last.
//!
//! Memory is bounded regardless of the range and the number of overlapping row groups. While there is room, a row group
//! is fetched in one request and decoded as the merge proceeds. For row groups opened without room, only keys are kept,
//! and rows are fetched by ranges when the merge reaches them: the more such row groups, the fewer rows at a time. If
//! even those are too many, the rows needed last are dropped and fetched again.
//!
//! The same request over the same segments yields the same rows in the same order, from the start or from any [`Key`].
//! Batches may differ.
//!
//! `start_time` is derived from the key; only a scan of everything that is stored returns the stored value.

mod batch_builder;
mod row_group_cursor;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::ObjectStore;
use object_store::path::Path;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};

use self::batch_builder::BatchBuilder;
use self::row_group_cursor::{MemoryShare, PendingCursor, RowGroupCursor, RowWindow};
use crate::columnar::Result;
use crate::prices::PriceTable;
use crate::row::{Key, Row};
use crate::schema::{Selection, position};
use crate::segment::Segment;

/// A row group to read, as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRef {
    /// Key of the segment.
    pub path: Path,
    /// Position in the segment.
    pub row_group: usize,
    /// Sort time of its first row.
    pub min_sort_time: Timestamp,
    /// Sort time of its last row.
    pub max_sort_time: Timestamp,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct Request {
    /// Workspace of all rows.
    pub tenant: TenantId,
    /// Project of all rows.
    pub project: ProjectId,
    /// Row groups of that project, in any order. Those outside the range are not opened.
    pub parts: Vec<PartRef>,
    /// Start inclusive, end exclusive, of when trace runs started.
    pub range: Range<Timestamp>,
    /// Only rows after this key: the end of an earlier scan.
    pub after: Option<Key>,
    /// Columns wanted.
    pub selection: Selection,
    /// For costs of rows that are merged.
    pub prices: Arc<PriceTable>,
}

/// Memory limit of a scan in bytes, besides single larger rows.
pub const MEMORY: usize = 256 << 20;

/// How the memory of a scan is divided. The rest is for requests in flight and the current batch.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// For row groups that are fetched in one request.
    streams: usize,
    /// For rows that are fetched by ranges.
    rows: usize,
    /// For keys of row groups whose rows are fetched by ranges.
    keys: usize,
    /// For footers of segments with row groups still to come, and of row groups that are fetched by ranges.
    footers: usize,
    /// For batches with unreturned rows that no head uses any more.
    left_behind: usize,
}

impl Memory {
    const fn of(bytes: usize) -> Self {
        Self {
            streams: bytes / 2,
            rows: bytes / 4,
            keys: bytes / 32,
            footers: bytes / 16,
            left_behind: bytes / 16,
        }
    }
}

/// Rows of one request by ranges, and keys.
const MOST_KEYS: usize = 4096;
const LEAST_KEYS: usize = 64;

/// Rows in order.
#[derive(Clone, Debug)]
pub struct ScanBatch {
    /// The selected columns.
    pub rows: RecordBatch,
    /// Where each of the rows is; as long as `rows`.
    pub keys: Vec<Key>,
}

impl ScanBatch {
    /// Without its first `used` rows.
    pub(crate) fn after(mut self, used: usize) -> Self {
        Self {
            rows: self.rows.slice(used, self.keys.len() - used),
            keys: self.keys.split_off(used),
        }
    }
}

/// A running scan.
pub struct Scan {
    store: Arc<dyn ObjectStore>,
    request: Request,
    memory: Memory,
    /// Row groups not opened yet, by first sort time.
    queued: VecDeque<QueuedRowGroup>,
    /// Open segments, with the number of row groups still to be opened.
    segments: HashMap<Path, (Segment, usize)>,
    /// Bytes of footers.
    footers: usize,
    cursors: Vec<Option<RowGroupCursor>>,
    /// Bytes that heads were given which are fetched in one request.
    streams: usize,
    /// Heads whose rows are fetched by ranges, and the bytes of their rows in memory.
    ranged: usize,
    loaded: usize,
    /// First key of each head, smallest on top.
    order: BinaryHeap<Reverse<(Key, usize)>>,
    builder: BatchBuilder,
    merged: u64,
    starts_are_derived: bool,
}

struct QueuedRowGroup {
    part: PartRef,
    /// Whether another row group overlaps: then rows may have to be merged, which needs more columns than requested.
    overlaps: bool,
}

impl Scan {
    /// Prepares a scan; nothing is read yet.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, request: Request) -> Self {
        let waiting = plan(&request);
        let memory = Memory::of(MEMORY);
        let gather = BatchBuilder::new(&request, memory.left_behind);
        Self {
            store,
            request,
            memory,
            queued: waiting,
            segments: HashMap::new(),
            footers: 0,
            cursors: Vec::new(),
            streams: 0,
            ranged: 0,
            loaded: 0,
            order: BinaryHeap::new(),
            builder: gather,
            merged: 0,
            starts_are_derived: true,
        }
    }

    /// With another bound of its memory than [`MEMORY`].
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = Memory::of(bytes);
        self.builder.detach(self.memory.left_behind);
        self
    }

    /// With segments that are open already.
    pub(crate) fn with_open<'a>(mut self, open: impl IntoIterator<Item = &'a Segment>) -> Self {
        for segment in open {
            let path = segment.path();
            let left = self.queued.iter().filter(|waiting| waiting.part.path == *path).count();
            if left > 0 {
                self.footers += segment.footer_bytes();
                self.segments.insert(path.clone(), (segment.clone(), left));
            }
        }
        self
    }

    /// Batches of at most so many bytes of values, or of one row.
    #[must_use]
    pub const fn with_batch_bytes(mut self, bytes: usize) -> Self {
        self.builder.set_most_bytes(bytes);
        self
    }

    /// The next rows, at most some thousand; `None` at the end. Not cancel-safe: after a dropped call create a new scan
    /// from the last key.
    pub async fn next(&mut self) -> Result<Option<ScanBatch>> {
        while !self.builder.is_full() {
            self.open_due().await?;
            let Some(Reverse((key, at))) = self.order.pop() else {
                break;
            };
            if self.order.peek().is_some_and(|Reverse((next, _))| *next == key) {
                self.merge_equal(key, at).await?;
            } else {
                self.pass_through(at).await?;
            }
        }
        self.builder.finish()
    }

    /// Trace runs so far that were merged from several row groups.
    #[must_use]
    pub const fn merged(&self) -> u64 {
        self.merged
    }

    /// Whether the stored `start_time` is the sort time in all row groups so far.
    pub(crate) const fn starts_are_derived(&self) -> bool {
        self.starts_are_derived
    }

    /// Opens every waiting row group that may hold the next key.
    async fn open_due(&mut self) -> Result<()> {
        while let Some(next) = self.queued.front() {
            let due = self
                .order
                .peek()
                .is_none_or(|Reverse((key, _))| next.part.min_sort_time <= key.sort_time);
            if !due {
                break;
            }
            let Some(waiting) = self.queued.pop_front() else { break };
            let segment = self.segment(&waiting.part.path).await?;
            let window = RowWindow {
                range: self.request.range.clone(),
                after: self.request.after,
            };
            segment.check_owner(waiting.part.row_group, self.request.tenant, self.request.project)?;
            self.starts_are_derived &= segment.starts_are_derived();
            let columns = columns(&self.request.selection, waiting.overlaps);
            let opening = PendingCursor::of(&segment, &waiting.part, columns.into(), &window).await?;
            let Some(opening) = opening else { continue };
            let head = if self.streams + opening.weight() <= self.memory.streams {
                opening.stream().await?
            } else {
                let room = self.footers + opening.footer_bytes() <= self.memory.footers;
                let closed = (!room).then_some(&self.store);
                opening.ranges(self.share(1), closed).await?
            };
            if let Some(head) = head {
                self.push(head);
            }
        }
        Ok(())
    }

    /// The memory share of each head whose rows are fetched by ranges, with `more` additional ones.
    fn share(&self, more: usize) -> MemoryShare {
        let heads = (self.ranged + more).max(1);
        MemoryShare {
            bytes: self.memory.rows / heads,
            keys: (self.memory.keys / size_of::<Key>() / heads).clamp(LEAST_KEYS, MOST_KEYS),
        }
    }

    /// Estimated memory in use, for tests.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let keys: usize = self.cursors.iter().flatten().map(RowGroupCursor::key_bytes).sum();
        self.streams + self.loaded + self.footers + keys + self.builder.detached_bytes()
    }

    /// Loads the row at the position of a head, at the cost of rows needed last.
    async fn load(&mut self, at: usize) -> Result<()> {
        let share = self.share(0);
        let head = self.cursors[at].as_mut().expect("a head in the order is open");
        let before = head.loaded();
        if !head.load(share).await? {
            return Ok(());
        }
        self.loaded = self.loaded - before + head.loaded();
        self.builder.forget(at);
        while self.loaded > self.memory.rows {
            let others = self.cursors.iter().enumerate().filter(|(other, _)| *other != at);
            let loaded = others.filter_map(|(other, head)| {
                let head = head.as_ref()?;
                (head.loaded() > 0).then_some((head.key()?, other))
            });
            let Some((_, last)) = loaded.max() else { break };
            if let Some(head) = &mut self.cursors[last] {
                self.loaded -= head.loaded();
                head.unload();
            }
            self.builder.forget(last);
        }
        Ok(())
    }

    /// The segment at `path`, which stays open until its last row group was taken from it.
    async fn segment(&mut self, path: &Path) -> Result<Segment> {
        if let Some((segment, left)) = self.segments.get_mut(path) {
            *left -= 1;
            let segment = segment.clone();
            if *left == 0 {
                self.segments.remove(path);
                self.footers = self.footers.saturating_sub(segment.footer_bytes());
            }
            return Ok(segment);
        }
        let segment = Segment::open(self.store.clone(), path.clone()).await?;
        let left = self.queued.iter().filter(|waiting| waiting.part.path == *path).count();
        let bytes = segment.footer_bytes();
        // One that finds no room is read again for its next row group.
        if left > 0 && (self.segments.is_empty() || self.footers + bytes <= self.memory.footers) {
            self.footers += bytes;
            self.segments.insert(path.clone(), (segment.clone(), left));
        }
        Ok(segment)
    }

    /// Takes the rows of the head at `at` up to the first key that another head may have.
    async fn pass_through(&mut self, at: usize) -> Result<()> {
        self.load(at).await?;
        let others = self.order.peek().map(|Reverse((key, _))| *key);
        let unopened = self.queued.front().map(|next| Key {
            sort_time: next.part.min_sort_time,
            id: TraceRunId::nil(),
        });
        let limit = others.into_iter().chain(unopened).min();
        let head = self.cursors[at].as_mut().expect("a head in the order is open");
        let run = head.run(limit).min(self.builder.room());
        let taken = self.builder.slice(at, head, run.max(1))?;
        self.step(at, taken).await
    }

    /// Merges the rows that several heads have under one key.
    async fn merge_equal(&mut self, key: Key, first: usize) -> Result<()> {
        self.load(first).await?;
        let mut row = self.decode(first)?;
        self.step(first, 1).await?;
        while let Some(Reverse((next, at))) = self.order.peek().copied() {
            if next != key {
                break;
            }
            self.order.pop();
            self.load(at).await?;
            row = Row::merge(row, self.decode(at)?);
            self.step(at, 1).await?;
        }
        self.merged += 1;
        self.builder.row(key, row);
        Ok(())
    }

    fn decode(&self, at: usize) -> Result<Row> {
        self.cursors[at].as_ref().expect("a head in the order is open").row()
    }

    /// Advances a head, reads its next batch if needed, and puts it back into the order unless it is exhausted.
    async fn step(&mut self, at: usize, rows: usize) -> Result<()> {
        let share = self.share(0);
        let head = self.cursors[at].as_mut().expect("a head in the order is open");
        let before = head.loaded();
        if head.advance(rows, share).await? {
            self.builder.forget(at);
        }
        self.loaded = self.loaded - before + head.loaded();
        match head.key() {
            Some(key) => self.order.push(Reverse((key, at))),
            None => self.close(at),
        }
        Ok(())
    }

    fn close(&mut self, at: usize) {
        let Some(head) = self.cursors[at].take() else { return };
        self.loaded -= head.loaded();
        self.footers = self.footers.saturating_sub(head.footer_bytes());
        match head.stream_weight() {
            Some(weight) => self.streams -= weight,
            None => self.ranged -= 1,
        }
    }

    fn push(&mut self, head: RowGroupCursor) {
        let Some(key) = head.key() else { return };
        self.footers += head.footer_bytes();
        match head.stream_weight() {
            Some(weight) => self.streams += weight,
            None => self.ranged += 1,
        }
        let at = self
            .cursors
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.cursors.len());
        if at == self.cursors.len() {
            self.cursors.push(None);
        }
        self.builder.forget(at);
        self.cursors[at] = Some(head);
        self.order.push(Reverse((key, at)));
    }
}

/// Row groups that may hold wanted rows, by first sort time.
fn plan(request: &Request) -> VecDeque<QueuedRowGroup> {
    let from = request
        .after
        .map_or(request.range.start, |after| after.sort_time.max(request.range.start));
    let mut parts: Vec<PartRef> = request
        .parts
        .iter()
        .filter(|part| part.max_sort_time >= from && part.min_sort_time < request.range.end)
        .cloned()
        .collect();
    parts.sort_by(|a, b| (a.min_sort_time, &a.path, a.row_group).cmp(&(b.min_sort_time, &b.path, b.row_group)));
    // A part named twice would only merge with itself.
    parts.dedup_by(|a, b| a.path == b.path && a.row_group == b.row_group);
    let mut reach: Option<Timestamp> = None;
    let starts: Vec<_> = parts.iter().map(|part| part.min_sort_time).collect();
    parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| {
            let before = reach.is_some_and(|reach| reach >= part.min_sort_time);
            let after = starts.get(index + 1).is_some_and(|next| *next <= part.max_sort_time);
            reach = reach.max(Some(part.max_sort_time));
            QueuedRowGroup {
                part,
                overlaps: before || after,
            }
        })
        .collect()
}

/// The columns from which the column at this position is derived, besides its own sent value.
pub(crate) const fn derived_from(column: usize) -> &'static [usize] {
    match column {
        position::TRACE_ID | position::PARENT_RUN_ID | position::PARENT_RUN_IDS | position::IS_ROOT => {
            &[position::DOTTED_ORDER, position::TRACE_ID, position::PARENT_RUN_ID]
        }
        position::STATUS => &[position::ERROR, position::END_TIME],
        position::TOTAL_TOKENS..=position::COMPLETION_TOKENS => &[position::OUTPUTS, position::EXTRA],
        position::TOTAL_COST..=position::COMPLETION_COST => &[position::RUN_TYPE, position::OUTPUTS, position::EXTRA],
        position::FIRST_TOKEN_TIME => &[position::EVENTS],
        _ => &[],
    }
}

/// Positions of the columns needed to merge rows with the selected ones.
#[must_use]
pub fn merged_columns(selection: &Selection) -> Vec<usize> {
    columns(selection, true)
}

/// Positions of the columns to read: the selected ones and the key; if rows may have to be merged, also the sources of
/// derived columns.
fn columns(selection: &Selection, overlaps: bool) -> Vec<usize> {
    let mut columns = selection.positions().to_vec();
    columns.extend([position::ID, position::SORT_TIME]);
    if overlaps {
        for column in selection.positions() {
            columns.extend(derived_from(*column));
        }
        columns.extend([position::SEQ, position::PROVENANCE]);
    }
    columns.sort_unstable();
    columns.dedup();
    debug_assert!(columns[0] == position::ID);
    columns
}
