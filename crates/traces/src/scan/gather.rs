//! Puts slices of batches and merged rows together to output batches.

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::SchemaRef;
use towpath_domain::{ProjectId, TenantId};

use super::ScanBatch;
use super::head::Head;
use crate::columnar::Result;
use crate::row::{Key, Row, RowsBuilder};
use crate::schema::Selection;

/// Most rows of an output batch, and about how many bytes of values it holds.
const ROWS: usize = 4096;
const BYTES: usize = 2 << 20;

/// From this many rows a slice on average, copying slice by slice is quicker than picking row by row.
const LONG_SLICES: usize = 16;

/// An output batch in the making.
pub struct Gather {
    selection: Selection,
    schema: SchemaRef,
    merged: RowsBuilder,
    merged_rows: Vec<Row>,
    /// Batches that slices point into, of selected columns only.
    sources: Vec<RecordBatch>,
    /// By head: which of the sources is its current batch.
    current: Vec<Option<usize>>,
    pieces: Vec<Piece>,
    keys: Vec<Key>,
    bytes: usize,
    /// Bytes of sources that are no head's batch any more, and how many there may be.
    left_behind: usize,
    may_leave: usize,
}

enum Piece {
    Slice { source: usize, start: usize, rows: usize },
    Merged,
}

impl Gather {
    pub fn new(tenant: TenantId, project: ProjectId, selection: &Selection, may_leave: usize) -> Self {
        Self {
            selection: selection.clone(),
            schema: selection.schema(),
            merged: RowsBuilder::new(tenant, project),
            merged_rows: Vec::new(),
            sources: Vec::new(),
            current: Vec::new(),
            pieces: Vec::new(),
            keys: Vec::new(),
            bytes: 0,
            left_behind: 0,
            may_leave,
        }
    }

    /// Whether it is time to hand the batch out.
    pub const fn is_full(&self) -> bool {
        let crowded = self.left_behind > 0 && self.left_behind >= self.may_leave;
        self.keys.len() >= ROWS || self.bytes >= BYTES || crowded
    }

    /// How many bytes of batches that are no head's any more it may keep.
    pub const fn leave_behind(&mut self, bytes: usize) {
        self.may_leave = bytes;
    }

    /// How many it keeps.
    pub const fn left_behind(&self) -> usize {
        self.left_behind
    }

    /// How many more rows fit in.
    pub const fn room(&self) -> usize {
        ROWS.saturating_sub(self.keys.len())
    }

    /// Takes the next `rows` rows of a head.
    pub fn slice(&mut self, at: usize, head: &Head, rows: usize) {
        if self.current.len() <= at {
            self.current.resize(at + 1, None);
        }
        let (batch, start) = head.batch();
        let source = self.current[at].unwrap_or_else(|| {
            self.sources.push(self.selected(batch));
            self.sources.len() - 1
        });
        self.current[at] = Some(source);
        self.keys.extend_from_slice(head.keys(rows));
        self.bytes += head.row_bytes() * rows;
        match self.pieces.last_mut() {
            Some(Piece::Slice {
                source: last,
                start: from,
                rows: so_far,
            }) if *last == source && *from + *so_far == start => {
                *so_far += rows;
            }
            _ => self.pieces.push(Piece::Slice { source, start, rows }),
        }
    }

    /// Takes a row that was merged.
    pub fn row(&mut self, key: Key, row: Row) {
        self.keys.push(key);
        self.bytes += row.weight();
        self.merged_rows.push(row);
        self.pieces.push(Piece::Merged);
    }

    /// The head's batch is another one from now on.
    pub fn forget(&mut self, at: usize) {
        if let Some(source) = self.current.get_mut(at).and_then(Option::take) {
            self.left_behind += self.sources[source].get_array_memory_size();
        }
    }

    /// What was gathered, `None` for nothing.
    pub fn finish(&mut self) -> Result<Option<ScanBatch>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let merged = self.merged_batch()?;
        let rows = match self.pieces.as_slice() {
            [Piece::Slice { source, start, rows }] => self.sources[*source].slice(*start, *rows),
            pieces if self.keys.len() / pieces.len() >= LONG_SLICES => self.joined(&merged)?,
            _ => self.interleaved(&merged)?,
        };
        self.sources.clear();
        self.current.fill(None);
        self.pieces.clear();
        self.bytes = 0;
        self.left_behind = 0;
        Ok(Some(ScanBatch {
            rows,
            keys: std::mem::take(&mut self.keys),
        }))
    }

    fn merged_batch(&mut self) -> Result<RecordBatch> {
        if self.merged_rows.is_empty() {
            return Ok(RecordBatch::new_empty(self.schema.clone()));
        }
        for row in self.merged_rows.drain(..) {
            self.merged.push(&row)?;
        }
        let batch = self.merged.finish()?;
        Ok(self.selected(&batch))
    }

    /// Slice after slice.
    fn joined(&self, merged: &RecordBatch) -> Result<RecordBatch> {
        let mut next_merged = 0;
        let slices: Vec<RecordBatch> = self
            .pieces
            .iter()
            .map(|piece| match piece {
                Piece::Slice { source, start, rows } => self.sources[*source].slice(*start, *rows),
                Piece::Merged => {
                    next_merged += 1;
                    merged.slice(next_merged - 1, 1)
                }
            })
            .collect();
        Ok(concat_batches(&self.schema, &slices)?)
    }

    /// Row by row.
    fn interleaved(&self, merged: &RecordBatch) -> Result<RecordBatch> {
        let mut next_merged = 0;
        let mut picks = Vec::with_capacity(self.keys.len());
        for piece in &self.pieces {
            match piece {
                Piece::Slice { source, start, rows } => picks.extend((*start..start + rows).map(|row| (*source, row))),
                Piece::Merged => {
                    picks.push((self.sources.len(), next_merged));
                    next_merged += 1;
                }
            }
        }
        let batches: Vec<&RecordBatch> = self.sources.iter().chain([merged]).collect();
        Ok(interleave_record_batch(&batches, &picks)?)
    }

    /// The selected columns of a batch that may have more.
    fn selected(&self, batch: &RecordBatch) -> RecordBatch {
        let columns = self
            .selection
            .names()
            .map(|name| {
                batch
                    .column_by_name(name)
                    .expect("every selected column was read")
                    .clone()
            })
            .collect();
        RecordBatch::try_new(self.schema.clone(), columns).expect("a segment has the columns of the export schema")
    }
}
