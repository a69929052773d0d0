//! Segments back to columns and rows.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::basic::Compression;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataBuilder};
use towpath_domain::{ProjectId, TenantId};

use super::object::Object;
use crate::columnar::{Error, Result};
use crate::encoder::Chunk;
use crate::row::{self, Key, Row, RowReader};
use crate::schema::{position, segment_schema};
use crate::upload::CopiedRange;

/// Limits of a decoded batch: rows, and approximate bytes of values.
const BATCH_ROWS: usize = 4096;
const BATCH_BYTES: usize = 2 << 20;

/// About what the decoder's view of the columns takes.
const SCHEMA_BYTES: usize = 16 << 10;

/// A row group with this many bytes of values is worth copying regardless of its rows.
const LARGE_BYTES: i64 = 16 << 20;

/// Decoded batches of one row group, in order.
pub type Batches = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// What was read of a segment to open it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Footer(ArrowReaderMetadata);

impl Footer {
    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.0.metadata().memory_size() + SCHEMA_BYTES
    }
}

/// An open segment: its footer was read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Segment {
    object: Object,
    footer: ArrowReaderMetadata,
}

impl Segment {
    /// Reads the footer.
    pub async fn open(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self> {
        Self::of(Object::new(store, path)).await
    }

    /// As [`Segment::open`]. Keeps what was fetched along with the footer: in a small segment, the bloom filters.
    pub(crate) async fn open_with_end(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self> {
        Self::of(Object::new(store, path).caching_tail()).await
    }

    /// As [`Segment::open`], for repeated reads: a small one stays in memory.
    pub(crate) async fn open_keeping(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self> {
        Self::of(Object::new(store, path).caching_whole()).await
    }

    async fn of(mut object: Object) -> Result<Self> {
        // With page offsets, so that skipped rows are not even fetched.
        let options = ArrowReaderOptions::new().with_offset_index_policy(PageIndexPolicy::Optional);
        let footer = ArrowReaderMetadata::load_async(&mut object, options)
            .await
            .map_err(|error| Error::reading(&object.path, error))?;
        let expected = segment_schema();
        let same = footer
            .schema()
            .fields()
            .iter()
            .map(|field| (field.name(), field.data_type()));
        if !same.eq(expected.fields().iter().map(|field| (field.name(), field.data_type()))) {
            return Err(Error::corrupt(&object.path, "its columns are not those of a segment"));
        }
        Ok(Self { object, footer })
    }

    /// As [`Segment::open`], of one whose footer was read before.
    pub(crate) fn with_footer(store: Arc<dyn ObjectStore>, path: Path, footer: &Footer) -> Self {
        Self {
            object: Object::new(store, path),
            footer: footer.0.clone(),
        }
    }

    /// What was read of it.
    pub(crate) fn footer(&self) -> Footer {
        Footer(self.footer.clone())
    }

    /// Its key.
    #[must_use]
    pub const fn path(&self) -> &Path {
        &self.object.path
    }

    /// About how many bytes it holds in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.metadata().memory_size() + self.object.kept_bytes()
    }

    /// How many row groups it has.
    #[must_use]
    pub fn row_groups(&self) -> usize {
        self.metadata().num_row_groups()
    }

    /// Checks by the statistics of a row group that all of its rows belong to this tenant and project, so that a wrong
    /// catalog row cannot show one tenant's rows to another.
    pub fn check_owner(&self, row_group: usize, tenant: TenantId, project: ProjectId) -> Result<()> {
        let owned = |column: usize, owner: String| {
            let statistics = self
                .metadata()
                .row_groups()
                .get(row_group)?
                .column(column)
                .statistics()?;
            Some(statistics.min_bytes_opt()? == owner.as_bytes() && statistics.max_bytes_opt()? == owner.as_bytes())
        };
        let tenants = owned(position::TENANT_ID, tenant.to_string());
        if tenants == Some(true) && owned(position::SESSION_ID, project.to_string()) == Some(true) {
            return Ok(());
        }
        Err(Error::corrupt(
            self.path(),
            format!("row group {row_group} does not belong to tenant {tenant}, project {project}"),
        ))
    }

    /// Decodes rows `range` of a row group, the columns at `columns` (positions in [`segment_schema`]), in batches of
    /// bounded size. One request fetches all needed columns, so the compressed row group is in memory while it is read.
    pub fn batches(&self, row_group: usize, columns: &[usize], range: Option<Range<usize>>) -> Result<Batches> {
        let one = range.map(|range| [range]);
        self.selected(row_group, columns, one.as_ref().map(<[_; 1]>::as_slice))
    }

    /// The same for consecutive ranges: a page that several of them touch is decoded once.
    pub fn pieces(&self, row_group: usize, columns: &[usize], ranges: &[Range<usize>]) -> Result<Batches> {
        self.selected(row_group, columns, Some(ranges))
    }

    fn selected(&self, row_group: usize, columns: &[usize], ranges: Option<&[Range<usize>]>) -> Result<Batches> {
        let rows = self.rows_of(row_group)?;
        let mask = ProjectionMask::roots(self.footer.parquet_schema(), columns.iter().copied());
        let mut builder = self
            .builder()
            .with_row_groups(vec![row_group])
            .with_batch_size(self.batch_rows(row_group, &mask))
            .with_projection(mask);
        if let Some(ranges) = ranges {
            let selection = RowSelection::from_consecutive_ranges(ranges.iter().cloned(), rows);
            builder = builder.with_row_selection(selection);
        }
        let path = self.path().clone();
        let stream = builder.build().map_err(|error| Error::reading(&path, error))?;
        Ok(stream
            .map(move |batch| batch.map_err(|error| Error::reading(&path, error)))
            .boxed())
    }

    /// As [`Segment::batches`] for whole rows, with the shown `start_time`.
    pub(crate) fn shown(&self, row_group: usize, columns: &[usize]) -> Result<Batches> {
        let Some(start) = columns.iter().position(|column| *column == position::START_TIME) else {
            return self.batches(row_group, columns, None);
        };
        if self.starts_are_derived() {
            return self.batches(row_group, columns, None);
        }
        let mut read = columns.to_vec();
        read.push(position::SORT_TIME);
        read.sort_unstable();
        read.dedup();
        let positions: Vec<usize> = columns
            .iter()
            .map(|column| read.binary_search(column).expect("every column is read"))
            .collect();
        let shown = move |batch: RecordBatch| -> Result<RecordBatch> {
            let wanted = batch.project(&positions)?;
            let mut columns = wanted.columns().to_vec();
            columns[start] = row::starts(&batch)?;
            Ok(RecordBatch::try_new(wanted.schema(), columns)?)
        };
        Ok(self
            .batches(row_group, &read, None)?
            .map(move |batch| batch.and_then(&shown))
            .boxed())
    }

    /// Whether the column `start_time` holds where each row is.
    pub(crate) fn starts_are_derived(&self) -> bool {
        let said = self.metadata().file_metadata().key_value_metadata();
        said.is_some_and(|said| said.contains(&super::starts_derived()))
    }

    /// All rows of a row group, one after another.
    pub fn rows(&self, row_group: usize) -> Result<impl Stream<Item = Result<Row>> + Send> {
        let all: Vec<usize> = (0..segment_schema().fields().len()).collect();
        let rows = |batch: RecordBatch| {
            let rows = RowReader::new(&batch).and_then(|reader| {
                (0..batch.num_rows())
                    .map(|index| reader.row(index))
                    .collect::<Result<Vec<_>>>()
            });
            rows.map(|rows| futures::stream::iter(rows.into_iter().map(Ok)))
        };
        Ok(self
            .batches(row_group, &all, None)?
            .map(move |batch| batch.and_then(rows))
            .try_flatten())
    }

    /// The keys of a row group, in order. Reads two small columns.
    pub async fn keys(&self, row_group: usize) -> Result<Vec<Key>> {
        let mut batches = self.batches(row_group, &[position::ID, position::SORT_TIME], None)?;
        let mut keys = Vec::with_capacity(self.rows_of(row_group)?);
        while let Some(batch) = batches.try_next().await? {
            keys.extend(row::keys(&batch)?);
        }
        Ok(keys)
    }

    /// The same segment with these columns of some row groups in memory.
    pub(crate) async fn with_columns(&self, row_groups: Range<usize>, columns: &[usize]) -> Result<Self> {
        let groups = self.metadata().row_groups().get(row_groups.clone());
        let groups =
            groups.ok_or_else(|| Error::corrupt(self.path(), format!("it has no row groups {row_groups:?}")))?;
        let ranges = groups.iter().flat_map(|group| {
            columns.iter().map(|column| {
                let (start, length) = group.column(*column).byte_range();
                start..start + length
            })
        });
        let mut object = self.object.clone();
        object
            .fetch(&ranges.collect::<Vec<_>>())
            .await
            .map_err(|error| Error::reading(self.path(), error))?;
        Ok(Self {
            object,
            footer: self.footer.clone(),
        })
    }

    /// The last key of a row group. Reads the last page of two small columns.
    pub(crate) async fn last_key(&self, row_group: usize) -> Result<Key> {
        let rows = self.rows_of(row_group)?;
        let mut batches = self.batches(
            row_group,
            &[position::ID, position::SORT_TIME],
            Some(rows.saturating_sub(1)..rows),
        )?;
        let mut last = None;
        while let Some(batch) = batches.try_next().await? {
            last = row::keys(&batch)?.pop().or(last);
        }
        last.ok_or_else(|| Error::corrupt(self.path(), format!("row group {row_group} has no rows")))
    }

    /// Whether the columns of a row group can be copied into a file with the compression of segments, and are worth it:
    /// small row groups are better merged.
    pub(crate) fn can_be_copied(&self, row_group: usize, columns: &[usize], least_rows: u64) -> bool {
        let Some(group) = self.metadata().row_groups().get(row_group) else {
            return false;
        };
        let large = u64::try_from(group.num_rows()).is_ok_and(|rows| rows >= least_rows)
            || group.total_byte_size() >= LARGE_BYTES;
        large
            && columns
                .iter()
                .all(|leaf| matches!(group.column(*leaf).compression(), Compression::ZSTD(_)))
    }

    /// How many rows a row group has.
    pub(crate) fn group_rows(&self, row_group: usize) -> Result<u64> {
        self.rows_of(row_group).map(|rows| rows as u64)
    }

    /// A column chunk as stored. Every column has one leaf, so leaves are numbered like columns.
    pub(crate) fn chunk(&self, row_group: usize, leaf: usize) -> Result<Chunk> {
        let rows = self.rows_of(row_group)? as u64;
        let pages = self
            .metadata()
            .offset_index()
            .and_then(|index| index.get(row_group)?.get(leaf))
            .cloned();
        Ok(Chunk::new(
            self.metadata().row_group(row_group).column(leaf),
            rows,
            pages,
        ))
    }

    /// Bytes of the object, to be copied as they are.
    pub(crate) fn copied(&self, range: Range<u64>) -> CopiedRange {
        CopiedRange {
            store: self.object.store.clone(),
            path: self.object.path.clone(),
            range,
        }
    }

    pub(super) fn object(&self) -> Object {
        self.object.clone()
    }

    pub(super) fn builder(&self) -> ParquetRecordBatchStreamBuilder<Object> {
        ParquetRecordBatchStreamBuilder::new_with_metadata(self.object.clone(), self.footer.clone())
    }

    pub(super) fn metadata(&self) -> &ParquetMetaData {
        self.footer.metadata()
    }

    /// The segment reduced to this row group, as number 0, to save memory while many are read at once.
    pub(crate) fn only(&self, row_group: usize) -> Result<Self> {
        self.rows_of(row_group)?;
        let whole = self.metadata();
        let pages = whole.offset_index().and_then(|index| index.get(row_group));
        let metadata = ParquetMetaDataBuilder::new(whole.file_metadata().clone())
            .add_row_group(whole.row_group(row_group).clone())
            .set_offset_index(pages.map(|pages| vec![pages.clone()]))
            .build();
        let footer = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
            .map_err(|error| Error::reading(self.path(), error))?;
        let mut object = self.object.clone();
        object.drop_cache();
        Ok(Self { object, footer })
    }

    /// Bytes of the footer in memory.
    pub(crate) fn footer_bytes(&self) -> usize {
        self.metadata().memory_size() + SCHEMA_BYTES + self.object.kept_bytes()
    }

    /// Estimated memory while `wanted` rows of these columns are streamed: the fetched data, a page of each, and a
    /// batch.
    pub(crate) fn stream_bytes(&self, row_group: usize, columns: &[usize], wanted: usize) -> usize {
        let group = self.metadata().row_group(row_group);
        let index = self.metadata().offset_index().and_then(|index| index.get(row_group));
        let share = wanted as f64 / group.num_rows().max(1) as f64;
        let bytes: f64 = columns
            .iter()
            .map(|leaf| {
                let column = group.column(*leaf);
                let pages = index.and_then(|index| index.get(*leaf));
                let pages = pages.map_or(1, |pages| pages.page_locations().len().max(1));
                column.compressed_size() as f64 * share + column.uncompressed_size() as f64 / pages as f64
            })
            .sum();
        bytes as usize + BATCH_BYTES
    }

    /// Bytes of values that a row has in these columns on average.
    pub(crate) fn row_bytes(&self, row_group: usize, columns: &[usize]) -> usize {
        let group = self.metadata().row_group(row_group);
        let bytes: i64 = columns.iter().map(|leaf| group.column(*leaf).uncompressed_size()).sum();
        usize::try_from(bytes / group.num_rows().max(1)).unwrap_or(usize::MAX)
    }

    pub(crate) fn rows_of(&self, row_group: usize) -> Result<usize> {
        let group = self.metadata().row_groups().get(row_group);
        let rows = group.and_then(|group| usize::try_from(group.num_rows()).ok());
        rows.ok_or_else(|| Error::corrupt(self.path(), format!("it has no row group {row_group}")))
    }

    /// Rows per batch so that it stays within its bytes, by the average row.
    fn batch_rows(&self, row_group: usize, mask: &ProjectionMask) -> usize {
        let group = self.metadata().row_group(row_group);
        let leaves = group
            .columns()
            .iter()
            .enumerate()
            .filter(|(leaf, _)| mask.leaf_included(*leaf));
        let bytes: i64 = leaves.map(|(_, column)| column.uncompressed_size()).sum();
        let average = bytes / group.num_rows().max(1);
        (BATCH_BYTES / usize::try_from(average).unwrap_or(1).max(1)).clamp(1, BATCH_ROWS)
    }
}
