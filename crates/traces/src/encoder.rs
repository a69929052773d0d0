//! Encodes Parquet files: row groups from columns, or copied from a segment.
//!
//! Output is uploaded column by column, so that little more than the current row group is in memory.

use std::io::{Repeat, Write};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, ArrowWriterOptions, compute_leaves,
};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::writer::SerializedFileWriter;
use towpath_domain::export::FormatVersion;

use crate::columnar::{Error, Result};
use crate::row_source::WholeRowGroup;
use crate::scan::Scan;
use crate::schema::position::START_TIME;
use crate::schema::{Selection, convert, differs_in_v2};
use crate::segment::Batches;
use crate::upload::{Blocks, Upload};

/// A file in progress.
pub(crate) struct Encoder {
    file: SerializedFileWriter<Blocks>,
    factory: ArrowRowGroupWriterFactory,
    properties: WriterProperties,
    schema: SchemaRef,
    sink: Blocks,
    /// One for each leaf column, while a row group is being encoded.
    open: Vec<ArrowColumnWriter>,
    open_rows: usize,
}

impl Encoder {
    /// Begins a file of these columns.
    pub(crate) fn new(schema: SchemaRef, properties: WriterProperties) -> Result<Self> {
        let sink = Blocks::default();
        let (file, factory) = writer(sink.clone(), Arc::clone(&schema), properties.clone())?;
        Ok(Self {
            file,
            factory,
            properties,
            schema,
            sink,
            open: Vec::new(),
            open_rows: 0,
        })
    }

    /// Adds rows to the row group in progress.
    pub(crate) fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        if self.open.is_empty() {
            self.open = self.column_writers()?;
        }
        let mut writers = self.open.iter_mut();
        for (field, column) in self.schema.fields().iter().zip(rows.columns()) {
            for leaf in compute_leaves(field, column)? {
                let writer = writers.next().ok_or_else(missing_chunk)?;
                writer.write(&leaf)?;
            }
        }
        self.open_rows += rows.num_rows();
        Ok(())
    }

    /// Rows of the row group in progress.
    pub(crate) const fn open_rows(&self) -> usize {
        self.open_rows
    }

    /// Estimated final size of the current row group.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open.iter().map(ArrowColumnWriter::get_estimated_total_bytes).sum()
    }

    /// Size of the file, with an estimate for the current row group.
    pub(crate) fn bytes(&self) -> u64 {
        (self.file.bytes_written() + self.open_bytes()) as u64
    }

    /// Row groups that are complete.
    pub(crate) fn row_groups(&self) -> usize {
        self.file.flushed_row_groups().len()
    }

    /// Finishes and uploads the current row group, if any.
    pub(crate) async fn flush(&mut self, upload: &mut Upload) -> Result<()> {
        self.open_rows = 0;
        if self.open.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for writer in self.open.drain(..) {
            writer.close()?.append_to_row_group(&mut group)?;
            self.sink.send(upload).await?;
        }
        group.close()?;
        self.sink.send(upload).await
    }

    /// Copies the compressed column chunks of a row group from its segment. Columns that have another type in
    /// `version`, that late rows changed, or whose stored values are not the shown ones, are encoded again. The current
    /// row group is finished first.
    pub(crate) async fn splice(
        &mut self,
        group: &WholeRowGroup,
        selection: &Selection,
        version: FormatVersion,
        upload: &mut Upload,
    ) -> Result<()> {
        self.flush(upload).await?;
        let anew = |at: usize| {
            let late = group.rewritten.as_ref().is_some_and(|late| late.contains(at));
            let sent = at == START_TIME && !group.segment.starts_are_derived();
            late || sent || version == FormatVersion::V2Beta && differs_in_v2(at)
        };
        let columns = selection.positions().iter().copied().filter(|at| anew(*at)).collect();
        let mut encoded = encode_columns(self.properties.clone(), group, Selection::at(columns), version)
            .await?
            .into_iter();
        let mut at = self.file.bytes_written() as u64;
        let mut writer = self.file.next_row_group()?;
        for leaf in selection.positions() {
            if anew(*leaf) {
                let chunk: ArrowColumnChunk = encoded.next().ok_or_else(missing_chunk)?;
                at += u64::try_from(chunk.close().metadata.compressed_size()).unwrap_or_default();
                chunk.append_to_row_group(&mut writer)?;
            } else {
                let chunk = group.segment.chunk(group.row_group, *leaf)?;
                let from = at;
                at += chunk.range.end - chunk.range.start;
                self.sink.copy(from, group.segment.copied(chunk.range));
                writer.append_column(&ZeroReader, chunk.close)?;
            }
        }
        writer.close()?;
        self.sink.send(upload).await
    }

    /// Adds an entry to the footer.
    pub(crate) fn note(&mut self, entry: KeyValue) {
        self.file.append_key_value_metadata(entry);
    }

    /// Ends the file and sends what is left of it.
    pub(crate) async fn finish(&mut self, upload: &mut Upload) -> Result<()> {
        self.flush(upload).await?;
        self.file.finish()?;
        self.sink.send(upload).await
    }

    fn column_writers(&self) -> Result<Vec<ArrowColumnWriter>> {
        Ok(self.factory.create_column_writers(self.row_groups())?)
    }
}

/// Columns of a row group that are to be encoded.
enum Columns {
    Stored(Batches),
    Merged(Box<Scan>),
}

impl Columns {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self {
            Self::Stored(batches) => batches.try_next().await,
            Self::Merged(scan) => Ok(scan.next().await?.map(|batch| batch.rows)),
        }
    }
}

/// Decodes some columns of a row group, merges late data, and encodes them for `version`.
async fn encode_columns(
    properties: WriterProperties,
    group: &WholeRowGroup,
    selection: Selection,
    version: FormatVersion,
) -> Result<Vec<ArrowColumnChunk>> {
    if selection.positions().is_empty() {
        return Ok(Vec::new());
    }
    let schema = selection.schema_of(version);
    let (_, factory) = writer(std::io::sink(), Arc::clone(&schema), properties)?;
    let mut writers = factory.create_column_writers(0)?;
    let mut columns = match &group.rewritten {
        Some(anew) => Columns::Merged(Box::new(anew.scan(selection))),
        None => Columns::Stored(group.segment.shown(group.row_group, selection.positions())?),
    };
    let mut rows = 0;
    while let Some(batch) = columns.next().await? {
        rows += batch.num_rows() as u64;
        let batch = convert(batch, &schema, version)?;
        for ((field, column), writer) in schema.fields().iter().zip(batch.columns()).zip(&mut writers) {
            for leaf in compute_leaves(field, column)? {
                writer.write(&leaf)?;
            }
        }
        // Encoding does not yield; this lets a cancelled caller stop.
        tokio::task::yield_now().await;
    }
    if rows != group.rows {
        let what = format!(
            "{rows} merged rows replace {} of row group {}",
            group.rows, group.row_group
        );
        return Err(Error::corrupt(group.segment.path(), what));
    }
    let chunks: std::result::Result<_, ParquetError> = writers.into_iter().map(ArrowColumnWriter::close).collect();
    Ok(chunks?)
}

/// A writer for these columns, and the factory for writers of single ones.
fn writer<W: Write + Send>(
    sink: W,
    schema: SchemaRef,
    properties: WriterProperties,
) -> Result<(SerializedFileWriter<W>, ArrowRowGroupWriterFactory)> {
    // Plain Parquet types suffice; an embedded Arrow schema would add nothing.
    let how = ArrowWriterOptions::new()
        .with_properties(properties)
        .with_skip_arrow_metadata(true);
    Ok(ArrowWriter::try_new_with_options(sink, schema, how)?.into_serialized_writer()?)
}

/// Cannot happen: the columns of a file are those of its schema.
fn missing_chunk() -> ParquetError {
    ParquetError::General("there are fewer column chunks than columns".to_owned())
}

/// A column chunk as it is in a segment.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub(crate) range: Range<u64>,
    /// What its writer said of it.
    pub(crate) close: ColumnCloseResult,
}

impl Chunk {
    /// Metadata of a copied chunk from the footer. Bloom filter and column index are dropped: exported files have no
    /// bloom filters, and copied chunks no column index.
    pub(crate) fn new(
        metadata: &ColumnChunkMetaData,
        rows: u64,
        offset_index: Option<parquet::file::page_index::offset_index::OffsetIndexMetaData>,
    ) -> Self {
        let (start, length) = metadata.byte_range();
        Self {
            range: start..start + length,
            close: ColumnCloseResult {
                bytes_written: length,
                rows_written: rows,
                metadata: metadata.clone(),
                bloom_filter: None,
                column_index: None,
                offset_index,
            },
        }
    }
}

/// The dummy input for a copied column chunk: the right number of bytes with any content.
struct ZeroReader;

impl Length for ZeroReader {
    fn len(&self) -> u64 {
        u64::MAX
    }
}

impl ChunkReader for ZeroReader {
    type T = Repeat;

    fn get_read(&self, _: u64) -> parquet::errors::Result<Self::T> {
        Ok(std::io::repeat(0))
    }

    fn get_bytes(&self, _: u64, length: usize) -> parquet::errors::Result<Bytes> {
        Ok(Bytes::from(vec![0; length]))
    }
}
