//! Rows to segments.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::NaiveDate;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use towpath_domain::{ProjectId, TenantId};

use super::{GROUP_BYTES, GROUP_ROWS, Part, Written, ZSTD, common_properties};
use crate::columnar::{Error, Result};
use crate::row::{Key, Row, RowsBuilder};
use crate::schema::segment_schema;
use crate::upload::{Blocks, Upload};

/// Rows turned into columns at once. Small, since a batch doubles what its rows hold.
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;

/// Writes rows as one segment, each to its (project, day), rows of one id in a project merged. `None` for no rows.
///
/// # Errors
/// A row has no place yet, or the store refused; then nothing is visible at `path`.
pub async fn write(
    store: Arc<dyn ObjectStore>,
    path: Path,
    tenant: TenantId,
    rows: impl IntoIterator<Item = (ProjectId, Row)>,
) -> Result<Option<Written>> {
    let mut groups: BTreeMap<(ProjectId, NaiveDate), Vec<Row>> = BTreeMap::new();
    for (project, row) in rows {
        let day = row.day().ok_or(Error::Unplaced(row.id()))?;
        groups.entry((project, day)).or_default().push(row);
    }
    if groups.is_empty() {
        return Ok(None);
    }
    let mut writer = SegmentWriter::new(store, path, tenant)?;
    while let Some(((project, _), rows)) = groups.pop_first() {
        writer.write_group(project, rows).await?;
    }
    writer.finish().await.map(Some)
}

/// Writes a segment group by group, so that only one group has to lie in memory.
pub struct SegmentWriter {
    tenant: TenantId,
    file: ArrowWriter<Blocks>,
    upload: Upload,
    parts: Vec<Part>,
}

impl SegmentWriter {
    /// Begins a segment at `path`.
    ///
    /// # Errors
    /// Never in practice: the schema is fixed.
    pub fn new(store: Arc<dyn ObjectStore>, path: Path, tenant: TenantId) -> Result<Self> {
        let file = ArrowWriter::try_new(Blocks::default(), segment_schema(), Some(properties()))?;
        Ok(Self {
            tenant,
            file,
            upload: Upload::new(store, path),
            parts: Vec::new(),
        })
    }

    /// Adds rows of one project and one day in any order; rows of one id are merged. The next call begins a new row
    /// group.
    ///
    /// # Errors
    /// A row has no place yet or is of another day, or the store refused.
    pub async fn write_group(&mut self, project: ProjectId, rows: Vec<Row>) -> Result<()> {
        let rows = sorted(rows)?;
        let mut group = Group::default();
        let mut batch = RowsBuilder::new(self.tenant, project);
        let mut batch_bytes = 0;
        for (key, row) in rows {
            let weight = row.weight();
            if group.day.is_some_and(|day| day != key.sort_time.day()) {
                return Err(Error::Columns(format!(
                    "trace run {} is of another day than its group",
                    key.id
                )));
            }
            if group.rows > 0 && (group.rows >= GROUP_ROWS || group.bytes + weight > GROUP_BYTES) {
                self.file.write(&batch.finish()?)?;
                batch_bytes = 0;
                self.close_group(project, std::mem::take(&mut group)).await?;
            }
            batch.push(&row)?;
            batch_bytes += weight;
            group.add(key, &row, weight);
            if batch.len() >= BATCH_ROWS || batch_bytes >= BATCH_BYTES {
                self.file.write(&batch.finish()?)?;
                batch_bytes = 0;
            }
        }
        self.file.write(&batch.finish()?)?;
        self.close_group(project, group).await
    }

    /// Ends the segment and makes it visible.
    ///
    /// # Errors
    /// The store refused; then nothing is visible.
    pub async fn finish(mut self) -> Result<Written> {
        self.file.finish()?;
        self.file.inner_mut().send(&mut self.upload).await?;
        let path = self.upload.path().clone();
        let bytes = self.upload.complete().await?;
        Ok(Written {
            path,
            bytes,
            rows: self.parts.iter().map(|part| part.rows).sum(),
            parts: self.parts,
        })
    }

    async fn close_group(&mut self, project: ProjectId, group: Group) -> Result<()> {
        let (Some(day), Some((first, last))) = (group.day, group.keys) else {
            return Ok(());
        };
        self.file.flush()?;
        self.file.inner_mut().send(&mut self.upload).await?;
        self.parts.push(Part {
            row_group: self.parts.len(),
            project,
            day,
            rows: group.rows as u64,
            min_sort_time: first.sort_time,
            max_sort_time: last.sort_time,
            min_seq: group.seqs.0,
            max_seq: group.seqs.1,
        });
        Ok(())
    }
}

/// A row group in the making.
#[derive(Default)]
struct Group {
    day: Option<NaiveDate>,
    rows: usize,
    bytes: usize,
    keys: Option<(Key, Key)>,
    seqs: (i64, i64),
}

impl Group {
    fn add(&mut self, key: Key, row: &Row, weight: usize) {
        let (low, high) = row.seqs();
        self.seqs = if self.rows == 0 {
            (low, high)
        } else {
            (self.seqs.0.min(low), self.seqs.1.max(high))
        };
        self.keys = Some((self.keys.map_or(key, |(first, _)| first), key));
        self.day.get_or_insert(key.sort_time.day());
        self.rows += 1;
        self.bytes += weight;
    }
}

/// By key, each id once.
fn sorted(rows: Vec<Row>) -> Result<Vec<(Key, Row)>> {
    let mut keyed = rows
        .into_iter()
        .map(|row| Ok((row.key().ok_or(Error::Unplaced(row.id()))?, row)))
        .collect::<Result<Vec<_>>>()?;
    // By id first: operations of one id whose senders disagree about its start still become one row.
    keyed.sort_by_key(|(key, _)| (key.id, key.sort_time));
    let mut merged: Vec<(Key, Row)> = Vec::with_capacity(keyed.len());
    for (key, row) in keyed {
        match merged.pop() {
            Some((first, earlier)) if first.id == key.id => merged.push((first, earlier.merge(row))),
            Some(other) => merged.extend([other, (key, row)]),
            None => merged.push((key, row)),
        }
    }
    merged.sort_unstable_by_key(|(key, _)| *key);
    Ok(merged)
}

pub(crate) fn properties() -> WriterProperties {
    let id = ColumnPath::from("id");
    common_properties()
        .set_compression(*ZSTD)
        // Row groups end where `close_group` says, at whatever number of rows.
        .set_max_row_group_row_count(None)
        .set_column_bloom_filter_enabled(id.clone(), true)
        .set_column_bloom_filter_fpp(id.clone(), 0.01)
        // Sized for the largest group; what a small group doesn't need is folded away.
        .set_column_bloom_filter_max_ndv(id, GROUP_ROWS as u64)
        .build()
}
