//! One row group on its way through the merge.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use towpath_domain::Timestamp;

use super::PartRef;
use crate::columnar::{Error, Result};
use crate::row::{self, Key, Row, RowReader};
use crate::schema::position;
use crate::segment::{Batches, Segment};

/// Which rows are wanted.
pub struct RowWindow {
    pub range: Range<Timestamp>,
    pub after: Option<Key>,
}

impl RowWindow {
    /// Whether every row of the part is wanted, according to the catalog.
    fn covers(&self, part: &PartRef) -> bool {
        self.range.start <= part.min_sort_time
            && part.max_sort_time < self.range.end
            && self.after.is_none_or(|after| after.sort_time < part.min_sort_time)
    }

    /// Positions of the wanted rows among sorted keys.
    fn within(&self, keys: &[Key]) -> Range<usize> {
        let start = keys
            .partition_point(|key| key.sort_time < self.range.start || self.after.is_some_and(|after| *key <= after));
        let end = keys.partition_point(|key| key.sort_time < self.range.end);
        start..end.max(start)
    }
}

/// What a head of the other kind may hold at the moment.
#[derive(Clone, Copy)]
pub struct MemoryShare {
    /// Bytes of rows.
    pub bytes: usize,
    pub keys: usize,
}

/// A row group at which the merge is.
pub struct RowGroupCursor {
    source: CursorSource,
    /// Keys of the next rows.
    keys: Vec<Key>,
    /// The one at which the merge is.
    next: usize,
    /// Rows of the keys from `first` on, as far as they are in memory.
    batch: RecordBatch,
    first: usize,
    row_bytes: usize,
}

enum CursorSource {
    /// The row group was fetched in one request and is decoded batch by batch.
    Stream { batches: Batches, weight: usize },
    /// Rows are fetched when the merge reaches them, some at a time.
    Ranges(RangeReader),
}

struct RangeReader {
    group: RowGroupHandle,
    columns: Arc<[usize]>,
    /// Position of the first of the keys in the row group.
    position: usize,
    /// Where the wanted rows end.
    end: usize,
}

/// A row group, which is number 0 of what is read of its segment.
enum RowGroupHandle {
    Open(Segment),
    /// There was no room for its footer.
    Closed {
        store: Arc<dyn ObjectStore>,
        path: Path,
        row_group: usize,
    },
}

impl RowGroupHandle {
    async fn open(&self) -> Result<Segment> {
        match self {
            Self::Open(segment) => Ok(segment.clone()),
            Self::Closed { store, path, row_group } => {
                Segment::open(store.clone(), path.clone()).await?.only(*row_group)
            }
        }
    }
}

/// A row group that is about to be merged.
pub struct PendingCursor {
    segment: Segment,
    row_group: usize,
    columns: Arc<[usize]>,
    row_range: Option<Range<usize>>,
    rows: usize,
}

impl PendingCursor {
    /// Looks which rows are wanted; `None` if there are none.
    pub async fn of(
        segment: &Segment,
        part: &PartRef,
        columns: Arc<[usize]>,
        window: &RowWindow,
    ) -> Result<Option<Self>> {
        let wanted = if window.covers(part) {
            None
        } else {
            // Keys are small; with them, the other columns are only fetched and decoded where needed.
            let wanted = window.within(&segment.keys(part.row_group).await?);
            if wanted.is_empty() {
                return Ok(None);
            }
            Some(wanted)
        };
        // Its footer may speak of very many others.
        let segment = segment.only(part.row_group)?;
        Ok(Some(Self {
            rows: segment.rows_of(0)?,
            row_group: part.row_group,
            segment,
            columns,
            row_range: wanted,
        }))
    }

    /// Estimated memory while all of it is streamed.
    pub fn weight(&self) -> usize {
        let wanted = self.row_range.as_ref().map_or(self.rows, ExactSizeIterator::len);
        self.segment.stream_bytes(0, &self.columns, wanted) + self.footer_bytes()
    }

    pub fn footer_bytes(&self) -> usize {
        self.segment.footer_bytes()
    }

    /// Fetches it in one go.
    pub async fn stream(self) -> Result<Option<RowGroupCursor>> {
        let weight = self.weight();
        let batches = self.segment.batches(0, &self.columns, self.row_range)?;
        let mut head = RowGroupCursor::of(CursorSource::Stream { batches, weight }, 0);
        head.refill().await?;
        Ok(head.key().is_some().then_some(head))
    }

    /// Fetches it by ranges, from a store if there is no room for its footer.
    pub async fn ranges(
        self,
        share: MemoryShare,
        closed: Option<&Arc<dyn ObjectStore>>,
    ) -> Result<Option<RowGroupCursor>> {
        let wanted = self.row_range.unwrap_or(0..self.rows);
        let row_bytes = self.segment.row_bytes(0, &self.columns);
        let group = match closed {
            None => RowGroupHandle::Open(self.segment),
            Some(store) => RowGroupHandle::Closed {
                store: Arc::clone(store),
                path: self.segment.path().clone(),
                row_group: self.row_group,
            },
        };
        let ranges = RangeReader {
            group,
            columns: self.columns,
            position: wanted.start,
            end: wanted.end,
        };
        let mut head = RowGroupCursor::of(CursorSource::Ranges(ranges), row_bytes);
        head.read_keys(share).await?;
        Ok(head.key().is_some().then_some(head))
    }
}

impl RowGroupCursor {
    fn of(source: CursorSource, row_bytes: usize) -> Self {
        Self {
            source,
            keys: Vec::new(),
            next: 0,
            batch: RecordBatch::new_empty(Arc::new(Schema::empty())),
            first: 0,
            row_bytes,
        }
    }

    /// Where it is; `None` when it is exhausted.
    pub fn key(&self) -> Option<Key> {
        self.keys.get(self.next).copied()
    }

    /// How many rows from here on are before `limit` and in memory.
    pub fn run(&self, limit: Option<Key>) -> usize {
        let rest = &self.keys[self.next..self.first + self.batch.num_rows()];
        match limit {
            None => rest.len(),
            // Mostly either the whole batch or a few rows.
            Some(limit) if rest.last().is_some_and(|last| *last < limit) => rest.len(),
            Some(limit) => {
                let mut reach = 1;
                while rest.get(reach).is_some_and(|key| *key < limit) {
                    reach *= 2;
                }
                let from = reach / 2;
                from + rest[from..reach.min(rest.len())].partition_point(|key| *key < limit)
            }
        }
    }

    /// The row at which it is.
    pub fn row(&self) -> Result<Row> {
        RowReader::new(&self.batch)?.row(self.next - self.first)
    }

    /// The batch, and the position in it.
    pub const fn batch(&self) -> (&RecordBatch, usize) {
        (&self.batch, self.next - self.first)
    }

    /// Keys of the next `rows` rows.
    pub fn keys(&self, rows: usize) -> &[Key] {
        &self.keys[self.next..self.next + rows]
    }

    /// Bytes of the keys that are kept apart from rows.
    pub fn key_bytes(&self) -> usize {
        match self.source {
            CursorSource::Stream { .. } => 0,
            CursorSource::Ranges(_) => self.keys.capacity() * size_of::<Key>(),
        }
    }

    /// Its share of the memory for streams; `None` if it is fetched by ranges.
    pub const fn stream_weight(&self) -> Option<usize> {
        match self.source {
            CursorSource::Stream { weight, .. } => Some(weight),
            CursorSource::Ranges(_) => None,
        }
    }

    /// Bytes of the footer that it keeps apart from that.
    pub fn footer_bytes(&self) -> usize {
        match &self.source {
            CursorSource::Ranges(RangeReader {
                group: RowGroupHandle::Open(segment),
                ..
            }) => segment.footer_bytes(),
            _ => 0,
        }
    }

    /// Bytes of rows fetched by ranges that are in memory.
    pub fn loaded(&self) -> usize {
        match self.source {
            CursorSource::Stream { .. } => 0,
            CursorSource::Ranges(_) => self.batch.get_array_memory_size(),
        }
    }

    /// Lets go of rows that can be fetched again.
    pub fn unload(&mut self) {
        if matches!(self.source, CursorSource::Ranges(_)) {
            self.drop_batch();
        }
    }

    fn drop_batch(&mut self) {
        self.batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        self.first = self.next;
    }

    /// Loads the row at its position. True if that changed the batch.
    pub async fn load(&mut self, share: MemoryShare) -> Result<bool> {
        let CursorSource::Ranges(ranges) = &self.source else {
            return Ok(false);
        };
        if self.next < self.first + self.batch.num_rows() {
            return Ok(false);
        }
        let rows = (share.bytes / self.row_bytes.max(1)).clamp(1, self.keys.len() - self.next);
        let start = ranges.position + self.next;
        let segment = ranges.group.open().await?;
        let mut batches = segment.batches(0, &ranges.columns, Some(start..start + rows))?;
        self.drop_batch();
        while let Some(batch) = batches.try_next().await? {
            if batch.num_rows() == 0 {
                continue;
            }
            let keys = row::keys(&batch)?;
            if self.keys.get(self.next..self.next + keys.len()) != Some(keys.as_slice()) {
                return Err(Error::corrupt(segment.path(), "two reads of it gave different rows"));
            }
            self.row_bytes = batch.get_array_memory_size() / batch.num_rows();
            self.batch = batch;
            return Ok(true);
        }
        Err(Error::corrupt(segment.path(), "it has fewer rows than its footer says"))
    }

    /// Moves on. True when that led to another batch, or to the end.
    pub async fn advance(&mut self, rows: usize, share: MemoryShare) -> Result<bool> {
        self.next += rows;
        if self.next < self.keys.len() {
            return Ok(false);
        }
        match self.source {
            CursorSource::Stream { .. } => self.refill().await?,
            CursorSource::Ranges(_) => self.read_keys(share).await?,
        }
        Ok(true)
    }

    async fn refill(&mut self) -> Result<()> {
        self.keys.clear();
        (self.next, self.first) = (0, 0);
        let CursorSource::Stream { batches, .. } = &mut self.source else {
            return Ok(());
        };
        while let Some(batch) = batches.try_next().await? {
            if batch.num_rows() > 0 {
                self.keys = row::keys(&batch)?;
                self.batch = batch;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads where the rows behind the known ones stand.
    async fn read_keys(&mut self, share: MemoryShare) -> Result<()> {
        let CursorSource::Ranges(ranges) = &mut self.source else {
            return Ok(());
        };
        ranges.position += self.keys.len();
        self.keys = Vec::new();
        if ranges.position < ranges.end {
            let range = ranges.position..(ranges.position + share.keys).min(ranges.end);
            let segment = ranges.group.open().await?;
            let mut batches = segment.batches(0, &[position::ID, position::SORT_TIME], Some(range.clone()))?;
            self.keys.reserve_exact(range.len());
            while let Some(batch) = batches.try_next().await? {
                self.keys.extend(row::keys(&batch)?);
            }
        }
        self.next = 0;
        self.drop_batch();
        Ok(())
    }
}
