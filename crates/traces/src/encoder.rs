//! Row groups of a Parquet file, each encoded from columns or copied from a segment.
//!
//! What is written goes to an upload column by column, so that beside the row group in the making hardly anything lies
//! in memory.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use futures::{StreamExt, TryStreamExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, ArrowWriterOptions, compute_leaves,
};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::writer::SerializedFileWriter;
use towpath_domain::export::FormatVersion;

use crate::columnar::Result;
use crate::schema::{Selection, convert, differs_in_v2};
use crate::segment::Segment;
use crate::upload::{Blocks, Upload};

/// Copied column chunks that lie together are read together, up to about so many bytes.
const READ_BYTES: u64 = 4 << 20;
/// Reads under way at once: one travels while the other is written.
const READS: usize = 2;

/// A file in the making.
pub(crate) struct Encoder {
    file: SerializedFileWriter<Blocks>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    sink: Blocks,
    /// One for each leaf column, while a row group is being encoded.
    open: Vec<ArrowColumnWriter>,
    open_rows: usize,
}

impl Encoder {
    /// Begins a file of these columns.
    pub(crate) fn new(schema: SchemaRef, properties: WriterProperties) -> Result<Self> {
        // Plain Parquet types only; an embedded Arrow schema would say nothing more.
        let how = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let sink = Blocks::default();
        let writer = ArrowWriter::try_new_with_options(sink.clone(), Arc::clone(&schema), how)?;
        let (file, factory) = writer.into_serialized_writer()?;
        Ok(Self {
            file,
            factory,
            schema,
            sink,
            open: Vec::new(),
            open_rows: 0,
        })
    }

    /// Adds rows to the row group in the making.
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
                let writer = writers.next().ok_or_else(too_few)?;
                writer.write(&leaf)?;
            }
        }
        self.open_rows += rows.num_rows();
        Ok(())
    }

    /// Rows of the row group in the making.
    pub(crate) const fn open_rows(&self) -> usize {
        self.open_rows
    }

    /// About how many bytes the row group in the making is going to have.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open.iter().map(ArrowColumnWriter::get_estimated_total_bytes).sum()
    }

    /// Bytes of the file, those of the row group in the making estimated.
    pub(crate) fn bytes(&self) -> u64 {
        (self.file.bytes_written() + self.open_bytes()) as u64
    }

    /// Row groups that are complete.
    pub(crate) fn row_groups(&self) -> usize {
        self.file.flushed_row_groups().len()
    }

    /// Ends the row group in the making, if there is one, and sends it.
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

    /// Copies a row group: its column chunks as they lie compressed in the segment. Only columns that have another
    /// type in `version` are decoded and encoded anew. What was being made is ended before.
    pub(crate) async fn splice(
        &mut self,
        segment: &Segment,
        row_group: usize,
        selection: &Selection,
        version: FormatVersion,
        upload: &mut Upload,
    ) -> Result<()> {
        self.flush(upload).await?;
        let writers = self.column_writers()?;
        let mut anew = encoded(writers, segment, row_group, selection, version)
            .await?
            .into_iter();
        let mut copied = Vec::with_capacity(selection.positions().len());
        for leaf in selection.positions() {
            if version == FormatVersion::V1 || !differs_in_v2(*leaf) {
                copied.push(segment.chunk(row_group, *leaf)?);
            }
        }
        let reads = reads(&copied);
        let mut fetched = futures::stream::iter(reads.into_iter().map(|read| {
            let chunks = copied[read.clone()].to_vec();
            async move {
                let range = chunks[0].range.start..chunks[chunks.len() - 1].range.end;
                let bytes = segment.read(range).await?;
                Ok::<_, crate::columnar::Error>((chunks, bytes))
            }
        }))
        .buffered(READS);
        let mut ready = Vec::new().into_iter();
        let mut group = self.file.next_row_group()?;
        for leaf in selection.positions() {
            if version == FormatVersion::V2Beta && differs_in_v2(*leaf) {
                let chunk: ArrowColumnChunk = anew.next().ok_or_else(too_few)?;
                chunk.append_to_row_group(&mut group)?;
            } else {
                let next = match ready.next() {
                    Some(next) => Some(next),
                    None => {
                        let (chunks, bytes) = fetched.try_next().await?.ok_or_else(too_few)?;
                        let base = chunks[0].range.start;
                        let placed: Vec<_> = chunks
                            .into_iter()
                            .map(|chunk| Placed::cut(chunk, base, &bytes))
                            .collect();
                        ready = placed.into_iter();
                        ready.next()
                    }
                };
                let placed = next.ok_or_else(too_few)?;
                let close = placed.close.clone();
                group.append_column(&placed, close)?;
            }
            self.sink.send(upload).await?;
        }
        group.close()?;
        self.sink.send(upload).await
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

/// The columns of a row group that cannot be copied, encoded. `writers` are those of all columns: each has one leaf, so
/// that leaves are numbered like columns.
async fn encoded(
    writers: Vec<ArrowColumnWriter>,
    segment: &Segment,
    row_group: usize,
    selection: &Selection,
    version: FormatVersion,
) -> Result<Vec<ArrowColumnChunk>> {
    let differs = |at: usize| version == FormatVersion::V2Beta && differs_in_v2(at);
    let positions = selection.positions();
    let part = Selection::at(positions.iter().copied().filter(|at| differs(*at)).collect());
    if part.positions().is_empty() {
        return Ok(Vec::new());
    }
    let schema = part.schema_of(version);
    let mut writers: Vec<_> = positions
        .iter()
        .zip(writers)
        .filter(|(at, _)| differs(**at))
        .map(|(_, writer)| writer)
        .collect();
    let mut batches = segment.batches(row_group, part.positions(), None)?;
    while let Some(rows) = batches.try_next().await? {
        let rows = convert(rows, &schema, version)?;
        for ((field, column), writer) in schema.fields().iter().zip(rows.columns()).zip(&mut writers) {
            for leaf in compute_leaves(field, column)? {
                writer.write(&leaf)?;
            }
        }
    }
    let chunks: std::result::Result<_, ParquetError> = writers.into_iter().map(ArrowColumnWriter::close).collect();
    Ok(chunks?)
}

/// Never in practice: the columns of a file are those of its schema.
fn too_few() -> ParquetError {
    ParquetError::General("there are fewer column chunks than columns".to_owned())
}

/// A column chunk as it lies in a segment.
#[derive(Clone)]
pub(crate) struct Chunk {
    /// Where.
    pub(crate) range: Range<u64>,
    /// What its writer said of it.
    pub(crate) close: ColumnCloseResult,
}

impl Chunk {
    /// Of what the footer says. The bloom filter and the index of values stay behind: exported files have the one
    /// never, and of what was copied not the other.
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

/// Which chunks are read together: neighbours, as long as that stays small.
fn reads(chunks: &[Chunk]) -> Vec<Range<usize>> {
    let mut reads: Vec<Range<usize>> = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        match reads.last_mut() {
            Some(read)
                if chunks[at - 1].range.end == chunk.range.start
                    && chunk.range.end - chunks[read.start].range.start <= READ_BYTES =>
            {
                read.end = at + 1;
            }
            _ => reads.push(at..at + 1),
        }
    }
    reads
}

/// A chunk's bytes at the offset they had in the segment, which is what its footer speaks of.
struct Placed {
    start: u64,
    bytes: Bytes,
    close: ColumnCloseResult,
}

impl Placed {
    fn cut(chunk: Chunk, base: u64, bytes: &Bytes) -> Self {
        let at = |offset: u64| usize::try_from(offset - base).unwrap_or(usize::MAX).min(bytes.len());
        Self {
            start: chunk.range.start,
            bytes: bytes.slice(at(chunk.range.start)..at(chunk.range.end)),
            close: chunk.close,
        }
    }

    fn from(&self, start: u64) -> Bytes {
        let skip = usize::try_from(start.saturating_sub(self.start)).unwrap_or(usize::MAX);
        self.bytes.slice(skip.min(self.bytes.len())..)
    }
}

impl Length for Placed {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Placed {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(Box::new(self.from(start).reader()))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.from(start);
        let length = length.min(bytes.len());
        Ok(bytes.slice(..length))
    }
}
