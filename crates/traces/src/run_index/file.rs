//! Index files back to entries.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, RowFilter, RowSelection,
};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::page_index::column_index::{ByteArrayColumnIndex, ColumnIndexMetaData};
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use uuid::Uuid;

use super::{Entry, PAGE_ENTRIES, SCHEMA, position};
use crate::columnar::{Error, Result};
use crate::flush::RunLocation;
use crate::segment::Object;

/// An open index file: its footer and page index were read.
#[derive(Debug)]
pub struct IndexFile {
    object: Object,
    footer: ArrowReaderMetadata,
    /// The smallest and the largest id of each row group.
    groups: Vec<(TraceRunId, TraceRunId)>,
}

impl IndexFile {
    /// Reads footer and page index.
    pub async fn open(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self> {
        let mut object = Object::new(store, path).caching_whole();
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let footer = ArrowReaderMetadata::load_async(&mut object, options)
            .await
            .map_err(|error| Error::reading(&object.path, error))?;
        let same = footer
            .schema()
            .fields()
            .iter()
            .map(|field| (field.name(), field.data_type()));
        if !same.eq(SCHEMA.fields().iter().map(|field| (field.name(), field.data_type()))) {
            return Err(Error::corrupt(
                &object.path,
                "its columns are not those of an index file",
            ));
        }
        let groups = ranges(footer.metadata());
        let groups = groups.ok_or_else(|| Error::corrupt(&object.path, "a row group has no id range"))?;
        Ok(Self { object, footer, groups })
    }

    /// Its key.
    pub const fn path(&self) -> &Path {
        &self.object.path
    }

    /// The smallest and the largest id of each row group, in order.
    pub fn groups(&self) -> &[(TraceRunId, TraceRunId)] {
        &self.groups
    }

    /// About how many bytes it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.footer.metadata().memory_size()
            + self.object.kept_bytes()
            + self.groups.len() * size_of::<(TraceRunId, TraceRunId)>()
    }

    /// The bloom filter of a row group.
    pub async fn filter(&self, group: usize) -> Result<Sbbf> {
        let filter = self
            .builder()
            .get_row_group_column_bloom_filter(group, position::ID)
            .await
            .map_err(|error| Error::reading(&self.object.path, error))?;
        filter.ok_or_else(|| Error::corrupt(&self.object.path, format!("row group {group} has no bloom filter")))
    }

    /// The entries of `ids`, which must be sorted, in a row group. Reads only the pages where they would be, and other
    /// columns only where they are.
    pub async fn find(&self, group: usize, ids: Vec<TraceRunId>) -> Result<Vec<Entry>> {
        let pages = self.pages(group, &ids);
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let schema = self.metadata().file_metadata().schema_descr_ptr();
        let is_wanted = ArrowPredicateFn::new(ProjectionMask::roots(&schema, [position::ID]), move |batch| {
            let column = batch.column(0).as_fixed_size_binary_opt();
            let column = column.ok_or_else(|| ArrowError::SchemaError("`id` is of another type".to_owned()))?;
            let is_wanted = |id: &[u8]| ids.binary_search_by(|one| one.0.as_bytes().as_slice().cmp(id)).is_ok();
            Ok(column
                .iter()
                .map(|id| Some(id.is_some_and(is_wanted)))
                .collect::<BooleanArray>())
        });
        let builder = self.selected(group, &pages)?;
        self.read(builder.with_row_filter(RowFilter::new(vec![Box::new(is_wanted)])))
            .await
    }

    /// Entries number `range` of a row group.
    pub async fn entries(&self, group: usize, range: Range<usize>) -> Result<Vec<Entry>> {
        self.read(self.selected(group, &[range])?).await
    }

    /// How many entries a row group has.
    pub fn group_entries(&self, group: usize) -> usize {
        usize::try_from(self.metadata().row_group(group).num_rows()).unwrap_or_default()
    }

    async fn read(&self, builder: ParquetRecordBatchStreamBuilder<Object>) -> Result<Vec<Entry>> {
        let reading = |error| Error::reading(&self.object.path, error);
        let mut batches = builder.build().map_err(reading)?;
        let mut found = Vec::new();
        while let Some(batch) = batches.try_next().await.map_err(reading)? {
            entries(&batch, &mut found)?;
        }
        Ok(found)
    }

    fn selected(&self, group: usize, rows: &[Range<usize>]) -> Result<ParquetRecordBatchStreamBuilder<Object>> {
        if group >= self.groups.len() {
            return Err(Error::corrupt(
                &self.object.path,
                format!("it has no row group {group}"),
            ));
        }
        let selection = RowSelection::from_consecutive_ranges(rows.iter().cloned(), self.group_entries(group));
        Ok(self
            .builder()
            .with_row_groups(vec![group])
            .with_batch_size(PAGE_ENTRIES)
            .with_row_selection(selection))
    }

    /// The rows of the pages in which sorted ids would be, in order.
    fn pages(&self, group: usize, ids: &[TraceRunId]) -> Vec<Range<usize>> {
        let rows = self.group_entries(group);
        let (Some(values), Some(pages)) = (self.page_ids(group), self.page_starts(group)) else {
            // Without an index of pages any of them may have them.
            return std::iter::once(0..rows).collect();
        };
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut page = 0;
        for id in ids {
            let id = id.0.as_bytes().as_slice();
            while page < pages.len() && values.max_value(page).is_none_or(|max| max < id) {
                page += 1;
            }
            if page == pages.len() {
                break;
            }
            if values.min_value(page).is_some_and(|min| min > id) {
                continue;
            }
            let end = pages.get(page + 1).copied().unwrap_or(rows);
            match found.last_mut() {
                Some(last) if last.end >= pages[page] => last.end = end,
                _ => found.push(pages[page]..end),
            }
        }
        found
    }

    fn page_ids(&self, group: usize) -> Option<&ByteArrayColumnIndex> {
        match self.metadata().column_index()?.get(group)?.get(position::ID)? {
            ColumnIndexMetaData::FIXED_LEN_BYTE_ARRAY(index) => Some(index),
            _ => None,
        }
    }

    /// The first row of each page of ids.
    fn page_starts(&self, group: usize) -> Option<Vec<usize>> {
        let pages = self
            .metadata()
            .offset_index()?
            .get(group)?
            .get(position::ID)?
            .page_locations();
        let starts = pages.iter().map(|page| usize::try_from(page.first_row_index).ok());
        starts.collect()
    }

    fn builder(&self) -> ParquetRecordBatchStreamBuilder<Object> {
        ParquetRecordBatchStreamBuilder::new_with_metadata(self.object.clone(), self.footer.clone())
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.footer.metadata()
    }
}

fn ranges(metadata: &ParquetMetaData) -> Option<Vec<(TraceRunId, TraceRunId)>> {
    let ranges = metadata.row_groups().iter().map(|group| {
        let statistics = group.column(position::ID).statistics()?;
        Some((id(statistics.min_bytes_opt()?)?, id(statistics.max_bytes_opt()?)?))
    });
    ranges.collect()
}

fn id(bytes: &[u8]) -> Option<TraceRunId> {
    Uuid::from_slice(bytes).ok().map(TraceRunId)
}

fn entries(batch: &RecordBatch, into: &mut Vec<Entry>) -> Result<()> {
    let ids = batch.column(position::ID).as_fixed_size_binary_opt();
    let times = batch.column(position::SORT_TIME).as_primitive_opt::<Int64Type>();
    let projects = batch.column(position::PROJECT).as_fixed_size_binary_opt();
    let (Some(ids), Some(times), Some(projects)) = (ids, times, projects) else {
        return Err(Error::Columns("those of an index file have other types".to_owned()));
    };
    into.reserve(batch.num_rows());
    for row in 0..batch.num_rows() {
        let project = Uuid::from_slice(projects.value(row)).ok();
        let (Some(id), Some(project)) = (id(ids.value(row)), project) else {
            return Err(Error::Columns("an index file has ids of another length".to_owned()));
        };
        let sort_time = Timestamp::from_micros(times.value(row));
        let project = ProjectId(project);
        into.push(Entry {
            id,
            location: RunLocation { sort_time, project },
        });
    }
    Ok(())
}
