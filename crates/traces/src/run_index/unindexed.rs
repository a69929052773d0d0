//! Segments without index files.
//!
//! There are few, and every lookup reads them until they are indexed. Their bloom filters pass one in a hundred unknown
//! ids per row group, which nearly always happens with a few thousand ids; so the locations of all rows of a segment
//! are read once.

use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use parquet::bloom_filter::Sbbf;
use towpath_domain::TraceRunId;

use super::Entry;
use super::cache::{CachePart, CacheValue, filter_bytes};
use crate::columnar::Result;
use crate::flush::RunLocation;
use crate::objects::Objects;
use crate::schema::position;
use crate::segment::Segment;

/// Rows of a chunk: row groups of a segment that are read together. A row group may have more.
const CHUNK_ROWS: u64 = 128 << 10;
/// The filters of the segment are only checked for at most this many ids…
const FEW_IDS: usize = 16;
/// … and only if its row groups have this many rows. For smaller ones, reading the rows is cheaper.
const LARGE_GROUP_ROWS: u64 = 8 << 10;
/// How many unknown ids the filter of a chunk lets through.
const FPP: f64 = 0.001;

/// An open segment, cut into chunks.
#[derive(Debug)]
pub struct OpenSegment {
    segment: Segment,
    chunks: Vec<Chunk>,
}

/// Row groups that follow one another.
#[derive(Clone, Debug)]
pub struct Chunk {
    row_groups: Range<usize>,
    rows: u64,
    /// The smallest and the largest id; `None` if unknown.
    ids: Option<(TraceRunId, TraceRunId)>,
}

impl Chunk {
    /// The smallest and the largest id; `None` if unknown.
    pub const fn ids(&self) -> Option<(TraceRunId, TraceRunId)> {
        self.ids
    }

    fn add(&mut self, other: &Self) {
        self.row_groups.end = other.row_groups.end;
        self.rows += other.rows;
        self.ids = self
            .ids
            .zip(other.ids)
            .map(|((first, last), (low, high))| (first.min(low), last.max(high)));
    }
}

/// Where the rows of a chunk are.
#[derive(Debug)]
pub struct Rows {
    /// In their order.
    entries: Vec<Entry>,
    filter: Sbbf,
}

impl Rows {
    /// About how many bytes it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + filter_bytes(&self.filter)
    }

    fn of(mut entries: Vec<Entry>) -> Result<Self> {
        entries.sort_unstable();
        let mut filter = Sbbf::new_with_ndv_fpp(entries.len() as u64, FPP)?;
        for entry in &entries {
            filter.insert(entry.id.0.as_bytes().as_slice());
        }
        Ok(Self { entries, filter })
    }

    fn find(&self, ids: &[TraceRunId]) -> Vec<Entry> {
        let perhaps = ids.iter().filter(|id| self.filter.check(id.0.as_bytes().as_slice()));
        let found = perhaps.flat_map(|id| {
            let first = self.entries.partition_point(|entry| entry.id < *id);
            self.entries[first..].iter().take_while(move |entry| entry.id == *id)
        });
        found.copied().collect()
    }
}

impl OpenSegment {
    /// Opens a segment, or finds it among those that are open.
    pub async fn of(objects: &Objects, path: &Path) -> Result<Arc<Self>> {
        if let Some(CacheValue::Segment(open)) = objects.cache().get(path, CachePart::Footer) {
            return Ok(open);
        }
        let segment = Segment::open_keeping(objects.store().clone(), path.clone()).await?;
        let chunks = chunks(&segment)?;
        let open = Arc::new(Self { segment, chunks });
        objects
            .cache()
            .put(path, CachePart::Footer, CacheValue::Segment(Arc::clone(&open)));
        Ok(open)
    }

    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// About how many bytes it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        self.segment.memory_bytes() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Where those of `ids` are that are in a chunk.
    pub async fn find(&self, objects: &Objects, chunk: &Chunk, ids: &[TraceRunId]) -> Result<Vec<Entry>> {
        let (path, part) = (self.segment.path(), CachePart::Rows(chunk.row_groups.start));
        if let Some(CacheValue::Rows(rows)) = objects.cache().get(path, part) {
            return Ok(rows.find(ids));
        }
        let large = chunk.rows >= LARGE_GROUP_ROWS * chunk.row_groups.len() as u64;
        if large && ids.len() <= FEW_IDS && self.rules_out(objects, chunk, ids).await? {
            return Ok(Vec::new());
        }
        let rows = Arc::new(self.rows(chunk).await?);
        objects.cache().put(path, part, CacheValue::Rows(Arc::clone(&rows)));
        Ok(rows.find(ids))
    }

    /// Whether the filters of the row groups exclude all of `ids`.
    async fn rules_out(&self, objects: &Objects, chunk: &Chunk, ids: &[TraceRunId]) -> Result<bool> {
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        for row_group in chunk.row_groups.clone() {
            let filter = self.filter(objects, row_group).await?;
            let perhaps = |text: &String| filter.as_ref().is_none_or(|filter| filter.check(text.as_str()));
            if texts.iter().any(perhaps) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn filter(&self, objects: &Objects, row_group: usize) -> Result<Option<Arc<Sbbf>>> {
        let (path, part) = (self.segment.path(), CachePart::Filter(row_group));
        if let Some(CacheValue::Filter(filter)) = objects.cache().get(path, part) {
            return Ok(filter);
        }
        let filter = self.segment.id_filter(row_group).await?.map(Arc::new);
        objects.cache().put(path, part, CacheValue::Filter(filter.clone()));
        Ok(filter)
    }

    async fn rows(&self, chunk: &Chunk) -> Result<Rows> {
        let columns = [position::ID, position::SORT_TIME];
        let segment = self.segment.with_columns(chunk.row_groups.clone(), &columns).await?;
        let mut entries = Vec::with_capacity(usize::try_from(chunk.rows).unwrap_or_default());
        for row_group in chunk.row_groups.clone() {
            let project = segment.project(row_group)?;
            let keys = segment.keys(row_group).await?;
            entries.extend(keys.into_iter().map(|key| Entry {
                id: key.id,
                location: RunLocation {
                    sort_time: key.sort_time,
                    project,
                },
            }));
        }
        Rows::of(entries)
    }
}

fn chunks(segment: &Segment) -> Result<Vec<Chunk>> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for row_group in 0..segment.row_groups() {
        let next = Chunk {
            row_groups: row_group..row_group + 1,
            rows: segment.group_rows(row_group)?,
            ids: segment.id_range(row_group),
        };
        match chunks.last_mut() {
            Some(last) if last.rows + next.rows <= CHUNK_ROWS => last.add(&next),
            _ => chunks.push(next),
        }
    }
    Ok(chunks)
}
