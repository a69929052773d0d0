//! Rows to segments.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use chrono::NaiveDate;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{BloomFilterPosition, WriterProperties};
use parquet::schema::types::ColumnPath;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use towpath_domain::{ProjectId, TenantId};

use super::{GROUP_BYTES, GROUP_ROWS, Part, Written, ZSTD, common_properties, starts_derived};
use crate::columnar::{Error, Result};
use crate::prices::{PriceTable, Pricer};
use crate::row::{Key, Row, RowsBuilder};
use crate::schema::segment_schema;
use crate::upload::{Blocks, Upload};

/// Rows of a page at most. Pages of long values are smaller.
const PAGE_ROWS: usize = 4096;

/// Rows per encoded batch. Small, since a batch doubles the memory of its rows.
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;

/// Writes rows as one segment, each into its (project, day), merged per id within a project. `None` for no rows.
pub async fn write(
    store: Arc<dyn ObjectStore>,
    path: Path,
    tenant: TenantId,
    rows: impl IntoIterator<Item = (ProjectId, Row)>,
) -> Result<Option<Written>> {
    let mut groups: BTreeMap<(ProjectId, NaiveDate), Vec<Row>> = BTreeMap::new();
    for (project, row) in rows {
        let day = row.day().ok_or(Error::NoLocation(row.id()))?;
        groups.entry((project, day)).or_default().push(row);
    }
    if groups.is_empty() {
        return Ok(None);
    }
    let mut writer = SegmentWriter::new(store, path, tenant)?;
    while let Some(((project, _), rows)) = groups.pop_first() {
        writer.write_group(project, rows.into_iter().map(Box::new)).await?;
    }
    writer.finish().await.map(Some)
}

/// Columns that wait to be encoded.
const BATCHES_AHEAD: usize = 1;

/// Writes a segment group by group, so that only one group is in memory. A separate task encodes and compresses columns
/// while the next ones are prepared.
pub struct SegmentWriter {
    tenant: TenantId,
    prices: Arc<PriceTable>,
    path: Path,
    encode: mpsc::Sender<EncodeCommand>,
    encoder: JoinHandle<Result<u64>>,
    parts: Vec<Part>,
}

/// Commands for the encoding task. If it receives no more, it abandons the segment.
enum EncodeCommand {
    Rows(RecordBatch),
    EndGroup,
    Finish,
}

async fn encode(
    mut file: ArrowWriter<Blocks>,
    mut upload: Upload,
    mut told: mpsc::Receiver<EncodeCommand>,
) -> Result<u64> {
    loop {
        match told.recv().await {
            Some(EncodeCommand::Rows(rows)) => file.write(&rows)?,
            Some(EncodeCommand::EndGroup) => {
                file.flush()?;
                file.inner_mut().send(&mut upload).await?;
            }
            Some(EncodeCommand::Finish) => {
                file.finish()?;
                file.inner_mut().send(&mut upload).await?;
                return upload.complete().await;
            }
            None => {
                upload.abort().await;
                return Ok(0);
            }
        }
    }
}

impl SegmentWriter {
    /// Begins a segment at `path`.
    pub fn new(store: Arc<dyn ObjectStore>, path: Path, tenant: TenantId) -> Result<Self> {
        let mut file = ArrowWriter::try_new(Blocks::default(), segment_schema(), Some(properties()))?;
        file.append_key_value_metadata(starts_derived());
        let (tell, told) = mpsc::channel(BATCHES_AHEAD);
        Ok(Self {
            tenant,
            prices: Arc::default(),
            path: path.clone(),
            encode: tell,
            encoder: tokio::spawn(encode(file, Upload::new(store, path), told)),
            parts: Vec::new(),
        })
    }

    /// Computes costs that were not sent by these prices.
    #[must_use]
    pub fn with_prices(mut self, prices: Arc<PriceTable>) -> Self {
        self.prices = prices;
        self
    }

    /// Adds rows of one project and one day in any order; rows of one id are merged. The next call begins a new row
    /// group.
    pub async fn write_group(&mut self, project: ProjectId, rows: impl IntoIterator<Item = Box<Row>>) -> Result<()> {
        let rows = sorted(rows)?;
        let mut group = Group::default();
        let pricer = Pricer::new(Arc::clone(&self.prices));
        let mut batch = RowsBuilder::new(self.tenant, project).with_pricer(pricer);
        let mut batch_bytes = 0;
        for (key, row) in rows {
            let weight = row.weight();
            if group.day.is_some_and(|day| day != key.sort_time.day()) {
                return Err(Error::Columns(format!(
                    "trace run {} belongs to another day than its group",
                    key.id
                )));
            }
            if group.rows > 0 && (group.rows >= GROUP_ROWS || group.bytes + weight > GROUP_BYTES) {
                self.tell(EncodeCommand::Rows(batch.finish()?)).await?;
                batch_bytes = 0;
                self.close_group(project, std::mem::take(&mut group)).await?;
            }
            // A row that is larger than a batch has one of its own.
            if batch.len() >= BATCH_ROWS || !batch.is_empty() && batch_bytes + weight > BATCH_BYTES {
                self.tell(EncodeCommand::Rows(batch.finish()?)).await?;
                batch_bytes = 0;
            }
            batch.push(&row)?;
            batch_bytes += weight;
            group.add(key, &row, weight);
        }
        self.tell(EncodeCommand::Rows(batch.finish()?)).await?;
        self.close_group(project, group).await
    }

    /// Row groups written so far.
    #[must_use]
    pub const fn row_groups(&self) -> usize {
        self.parts.len()
    }

    /// Finishes the segment and makes it visible.
    pub async fn finish(mut self) -> Result<Written> {
        self.tell(EncodeCommand::Finish).await?;
        let bytes = joined(&mut self.encoder).await?;
        Ok(Written {
            path: self.path,
            bytes,
            rows: self.parts.iter().map(|part| part.rows).sum(),
            parts: self.parts,
            price_version: self.prices.version(),
        })
    }

    async fn close_group(&mut self, project: ProjectId, group: Group) -> Result<()> {
        let (Some(day), Some((first, last))) = (group.day, group.keys) else {
            return Ok(());
        };
        self.tell(EncodeCommand::EndGroup).await?;
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

    async fn tell(&mut self, what: EncodeCommand) -> Result<()> {
        if self.encode.send(what).await.is_err() {
            // It ended before its time, and says why.
            joined(&mut self.encoder).await?;
        }
        Ok(())
    }
}

/// What a task answers; its panic is this one's.
async fn joined<T>(task: &mut JoinHandle<Result<T>>) -> Result<T> {
    match task.await.map_err(JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down, and the caller with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// A row group in progress.
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
fn sorted(rows: impl IntoIterator<Item = Box<Row>>) -> Result<Vec<(Key, Box<Row>)>> {
    let mut keyed = rows
        .into_iter()
        .map(|row| Ok((row.key().ok_or(Error::NoLocation(row.id()))?, row)))
        .collect::<Result<Vec<_>>>()?;
    // By id first: operations on one id with different starts still become one row.
    keyed.sort_by_key(|(key, _)| (key.id, key.sort_time));
    let mut merged: Vec<(Key, Box<Row>)> = Vec::with_capacity(keyed.len());
    for (key, row) in keyed {
        match merged.pop() {
            Some((first, earlier)) if first.id == key.id => merged.push((first, Box::new(earlier.merge(*row)))),
            Some(other) => merged.extend([other, (key, row)]),
            None => merged.push((key, row)),
        }
    }
    merged.sort_unstable_by_key(|(key, _)| *key);
    Ok(merged)
}

pub(crate) fn properties() -> WriterProperties {
    let mut properties = common_properties()
        .set_compression(*ZSTD)
        // `close_group` decides where row groups end, not their number of rows.
        .set_max_row_group_row_count(None)
        // Some rows can be read without decoding a whole id column.
        .set_data_page_row_count_limit(PAGE_ROWS)
        // One request then fetches those of all row groups.
        .set_bloom_filter_position(BloomFilterPosition::End);
    for column in ["id", "trace_id"] {
        let column = ColumnPath::from(column);
        properties = properties
            .set_column_bloom_filter_enabled(column.clone(), true)
            .set_column_bloom_filter_fpp(column.clone(), 0.01)
            // Sized for the largest group; for a small group the filter is folded to fit.
            .set_column_bloom_filter_max_ndv(column, GROUP_ROWS as u64);
    }
    properties.build()
}
