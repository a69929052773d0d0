//! Streams the trace runs of one project in order, each once, out of any number of segments.
//!
//! Row groups are merged by [`Key`]. Rows that only one of them has pass through as columns: whole slices, never
//! turned into [`Row`]s. Where several row groups hold a part of one trace run (its post here, a patch there), those
//! few rows are decoded, merged and derived anew. A row group is opened when the merge reaches its first key and
//! dropped after its last.
//!
//! Memory is bounded whatever the range and however many row groups overlap at one moment. As long as there is room, a
//! row group is fetched in one request and decoded as the merge goes on. Of those that are opened when there is none,
//! only keys are kept, and rows are fetched by ranges when the merge comes to them: the more of them there are, the
//! fewer rows at a time. Where even those are too many, rows of the ones that are needed last are dropped and fetched
//! again later.
//!
//! The same request over the same segments gives the same rows in the same order, from the start or from any
//! [`Key`] on. Batches may be cut differently.
//!
//! `start_time` is made from the key, whatever is stored; only a scan of everything that is stored gives it as it is.

mod gather;
mod head;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::ObjectStore;
use object_store::path::Path;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};

use self::gather::Gather;
use self::head::{Head, Opening, Share, Window};
use crate::columnar::Result;
use crate::row::{Key, Row};
use crate::schema::{Selection, at};
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
    /// Row groups of that project, in any order. Those outside of the range are not opened.
    pub parts: Vec<PartRef>,
    /// Start inclusive, end exclusive, of when trace runs started.
    pub range: Range<Timestamp>,
    /// Only what comes after this key: where an earlier scan was left.
    pub after: Option<Key>,
    /// Columns wanted.
    pub selection: Selection,
}

/// Bytes that a scan keeps in memory at most, beside single rows of that size.
pub const MEMORY: usize = 256 << 20;

/// How the memory of a scan is divided. What is left is for the requests under way and the batch in the making.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// For row groups that are fetched in one request.
    streams: usize,
    /// For rows that are fetched by ranges.
    rows: usize,
    /// For keys of row groups whose rows are fetched by ranges.
    keys: usize,
    /// For footers of segments of which further row groups are still to come, and of row groups that are fetched by
    /// ranges.
    footers: usize,
    /// For batches of which rows wait to be handed out, and that are no head's any more.
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
    /// Where each of the rows stands; as long as `rows`.
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
    waiting: VecDeque<Waiting>,
    /// Open segments, with how many of their row groups are still to be opened.
    segments: HashMap<Path, (Segment, usize)>,
    /// Bytes of footers.
    footers: usize,
    heads: Vec<Option<Head>>,
    /// Bytes that heads were given which are fetched in one request.
    streams: usize,
    /// Heads whose rows are fetched by ranges, and bytes of rows that they have in memory.
    ranged: usize,
    loaded: usize,
    /// First key of each head, smallest on top.
    order: BinaryHeap<Reverse<(Key, usize)>>,
    gather: Gather,
    merged: u64,
    starts_are_derived: bool,
}

struct Waiting {
    part: PartRef,
    /// Whether another row group covers some of the same time: then rows may have to be merged, which needs more
    /// columns than are asked for.
    overlaps: bool,
}

impl Scan {
    /// Prepares a scan; nothing is read yet.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, request: Request) -> Self {
        let waiting = plan(&request);
        let memory = Memory::of(MEMORY);
        let gather = Gather::new(request.tenant, request.project, &request.selection, memory.left_behind);
        Self {
            store,
            request,
            memory,
            waiting,
            segments: HashMap::new(),
            footers: 0,
            heads: Vec::new(),
            streams: 0,
            ranged: 0,
            loaded: 0,
            order: BinaryHeap::new(),
            gather,
            merged: 0,
            starts_are_derived: true,
        }
    }

    /// With another bound of its memory than [`MEMORY`].
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = Memory::of(bytes);
        self.gather.leave_behind(self.memory.left_behind);
        self
    }

    /// With segments that are open already.
    pub(crate) fn with_open<'a>(mut self, open: impl IntoIterator<Item = &'a Segment>) -> Self {
        for segment in open {
            let path = segment.path();
            let left = self.waiting.iter().filter(|waiting| waiting.part.path == *path).count();
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
        self.gather.set_most_bytes(bytes);
        self
    }

    /// The next rows, at most some thousand; `None` at the end. Not cancel-safe: after a dropped call make a new
    /// scan from the last key.
    ///
    /// # Errors
    /// A segment can't be read or isn't what the catalog says.
    pub async fn next(&mut self) -> Result<Option<ScanBatch>> {
        while !self.gather.is_full() {
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
        self.gather.finish()
    }

    /// Trace runs so far that had to be put together from several row groups.
    #[must_use]
    pub const fn merged(&self) -> u64 {
        self.merged
    }

    /// Whether in all row groups so far the stored `start_time` is where each row stands.
    pub(crate) const fn starts_are_derived(&self) -> bool {
        self.starts_are_derived
    }

    /// Opens every waiting row group that may hold the next key.
    async fn open_due(&mut self) -> Result<()> {
        while let Some(next) = self.waiting.front() {
            let due = self
                .order
                .peek()
                .is_none_or(|Reverse((key, _))| next.part.min_sort_time <= key.sort_time);
            if !due {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else { break };
            let segment = self.segment(&waiting.part.path).await?;
            let window = Window {
                range: self.request.range.clone(),
                after: self.request.after,
            };
            segment.check_owner(waiting.part.row_group, self.request.tenant, self.request.project)?;
            self.starts_are_derived &= segment.starts_are_derived();
            let columns = columns(&self.request.selection, waiting.overlaps);
            let opening = Opening::of(&segment, &waiting.part, columns.into(), &window).await?;
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

    /// What each head may hold whose rows are fetched by ranges, with so many more of them.
    fn share(&self, more: usize) -> Share {
        let heads = (self.ranged + more).max(1);
        Share {
            bytes: self.memory.rows / heads,
            keys: (self.memory.keys / size_of::<Key>() / heads).clamp(LEAST_KEYS, MOST_KEYS),
        }
    }

    /// Bytes that it keeps in memory at the moment, about: for tests.
    #[must_use]
    pub fn held(&self) -> usize {
        let keys: usize = self.heads.iter().flatten().map(Head::key_bytes).sum();
        self.streams + self.loaded + self.footers + keys + self.gather.left_behind()
    }

    /// Sees to it that the row at which a head stands lies in memory, at the cost of those that are needed last.
    async fn load(&mut self, at: usize) -> Result<()> {
        let share = self.share(0);
        let head = self.heads[at].as_mut().expect("a head in the order is open");
        let before = head.loaded();
        if !head.load(share).await? {
            return Ok(());
        }
        self.loaded = self.loaded - before + head.loaded();
        self.gather.forget(at);
        while self.loaded > self.memory.rows {
            let others = self.heads.iter().enumerate().filter(|(other, _)| *other != at);
            let loaded = others.filter_map(|(other, head)| {
                let head = head.as_ref()?;
                (head.loaded() > 0).then_some((head.key()?, other))
            });
            let Some((_, last)) = loaded.max() else { break };
            if let Some(head) = &mut self.heads[last] {
                self.loaded -= head.loaded();
                head.unload();
            }
            self.gather.forget(last);
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
        let left = self.waiting.iter().filter(|waiting| waiting.part.path == *path).count();
        let bytes = segment.footer_bytes();
        // One that finds no room is read again for its next row group.
        if left > 0 && (self.segments.is_empty() || self.footers + bytes <= self.memory.footers) {
            self.footers += bytes;
            self.segments.insert(path.clone(), (segment.clone(), left));
        }
        Ok(segment)
    }

    /// Takes the rows of the head at `at` up to the first key that anybody else may have.
    async fn pass_through(&mut self, at: usize) -> Result<()> {
        self.load(at).await?;
        let others = self.order.peek().map(|Reverse((key, _))| *key);
        let unopened = self.waiting.front().map(|next| Key {
            sort_time: next.part.min_sort_time,
            id: TraceRunId::nil(),
        });
        let limit = others.into_iter().chain(unopened).min();
        let head = self.heads[at].as_mut().expect("a head in the order is open");
        let run = head.run(limit).min(self.gather.room());
        let taken = self.gather.slice(at, head, run.max(1))?;
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
        self.gather.row(key, row);
        Ok(())
    }

    fn decode(&self, at: usize) -> Result<Row> {
        self.heads[at].as_ref().expect("a head in the order is open").row()
    }

    /// Moves a head on, reads its next batch where needed, and puts it back into the order unless it is exhausted.
    async fn step(&mut self, at: usize, rows: usize) -> Result<()> {
        let share = self.share(0);
        let head = self.heads[at].as_mut().expect("a head in the order is open");
        let before = head.loaded();
        if head.advance(rows, share).await? {
            self.gather.forget(at);
        }
        self.loaded = self.loaded - before + head.loaded();
        match head.key() {
            Some(key) => self.order.push(Reverse((key, at))),
            None => self.close(at),
        }
        Ok(())
    }

    fn close(&mut self, at: usize) {
        let Some(head) = self.heads[at].take() else { return };
        self.loaded -= head.loaded();
        self.footers = self.footers.saturating_sub(head.footer_bytes());
        match head.stream_weight() {
            Some(weight) => self.streams -= weight,
            None => self.ranged -= 1,
        }
    }

    fn push(&mut self, head: Head) {
        let Some(key) = head.key() else { return };
        self.footers += head.footer_bytes();
        match head.stream_weight() {
            Some(weight) => self.streams += weight,
            None => self.ranged += 1,
        }
        let at = self.heads.iter().position(Option::is_none).unwrap_or(self.heads.len());
        if at == self.heads.len() {
            self.heads.push(None);
        }
        self.gather.forget(at);
        self.heads[at] = Some(head);
        self.order.push(Reverse((key, at)));
    }
}

/// Row groups that may hold wanted rows, by first sort time.
fn plan(request: &Request) -> VecDeque<Waiting> {
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
            Waiting {
                part,
                overlaps: before || after,
            }
        })
        .collect()
}

/// The columns that the one at this position follows from, beside what was sent for it.
pub(crate) const fn derived_from(column: usize) -> &'static [usize] {
    match column {
        at::TRACE_ID | at::PARENT_RUN_ID | at::PARENT_RUN_IDS | at::IS_ROOT => {
            &[at::DOTTED_ORDER, at::TRACE_ID, at::PARENT_RUN_ID]
        }
        at::STATUS => &[at::ERROR, at::END_TIME],
        at::TOTAL_TOKENS..=at::COMPLETION_COST => &[at::OUTPUTS, at::EXTRA],
        at::FIRST_TOKEN_TIME => &[at::EVENTS],
        _ => &[],
    }
}

/// Positions of the columns that have to be read to merge rows of the selected ones.
#[must_use]
pub fn merged_columns(selection: &Selection) -> Vec<usize> {
    columns(selection, true)
}

/// Positions of the columns to read: the selected ones and the key, and where rows may have to be merged also what
/// the selected columns are derived from.
fn columns(selection: &Selection, overlaps: bool) -> Vec<usize> {
    let mut columns = selection.positions().to_vec();
    columns.extend([at::ID, at::SORT_TIME]);
    if overlaps {
        for column in selection.positions() {
            columns.extend(derived_from(*column));
        }
        columns.extend([at::SEQ, at::PROVENANCE]);
    }
    columns.sort_unstable();
    columns.dedup();
    debug_assert!(columns[0] == at::ID);
    columns
}
