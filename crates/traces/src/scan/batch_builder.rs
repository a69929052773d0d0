//! Assembles output batches from slices of batches and merged rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::SchemaRef;

use super::row_group_cursor::RowGroupCursor;
use super::{Request, ScanBatch};
use crate::columnar::Result;
use crate::parquet_file::bytes;
use crate::prices::Pricer;
use crate::row::{self, Key, Row, RowsBuilder};
use crate::schema::{Selection, position};

/// Limits of an output batch in rows and bytes of values. A larger row gets its own batch, so that no batch exceeds
/// what a column can hold.
const ROWS: usize = 4096;
const BYTES: usize = 2 << 20;

/// Average slice length from which copying slices is faster than picking rows.
const LONG_SLICES: usize = 16;

/// An output batch in progress.
pub struct BatchBuilder {
    selection: Selection,
    /// Everything is handed out as it is stored.
    stored: bool,
    schema: SchemaRef,
    merged: RowsBuilder,
    merged_rows: Vec<Row>,
    /// Batches that slices point into, of selected columns only.
    sources: Vec<RecordBatch>,
    /// By head: which of the sources is its current batch.
    current: Vec<Option<usize>>,
    pieces: Vec<OutputPiece>,
    keys: Vec<Key>,
    bytes: usize,
    /// Bytes of sources that are no longer the batch of a head, and their limit.
    detached_bytes: usize,
    max_detached_bytes: usize,
    most_bytes: usize,
    /// What comes next does not fit in any more.
    full: bool,
    /// A row that was merged and did not fit in.
    pending_row: Option<(Key, Row)>,
}

enum OutputPiece {
    Slice { source: usize, start: usize, rows: usize },
    Merged,
}

impl BatchBuilder {
    pub fn new(request: &Request, may_leave: usize) -> Self {
        let selection = &request.selection;
        let pricer = Pricer::new(Arc::clone(&request.prices));
        Self {
            selection: selection.clone(),
            stored: selection.positions().contains(&position::PROVENANCE),
            schema: selection.schema(),
            merged: RowsBuilder::new(request.tenant, request.project).with_pricer(pricer),
            merged_rows: Vec::new(),
            sources: Vec::new(),
            current: Vec::new(),
            pieces: Vec::new(),
            keys: Vec::new(),
            bytes: 0,
            detached_bytes: 0,
            max_detached_bytes: may_leave,
            most_bytes: BYTES,
            full: false,
            pending_row: None,
        }
    }

    pub const fn set_most_bytes(&mut self, bytes: usize) {
        self.most_bytes = bytes;
    }

    /// Whether it is time to hand the batch out.
    pub const fn is_full(&self) -> bool {
        let crowded = self.detached_bytes > 0 && self.detached_bytes >= self.max_detached_bytes;
        self.full || self.keys.len() >= ROWS || self.bytes >= self.most_bytes || crowded
    }

    /// Limits the bytes of batches that no head uses any more.
    pub const fn detach(&mut self, bytes: usize) {
        self.max_detached_bytes = bytes;
    }

    /// How many it keeps.
    pub const fn detached_bytes(&self) -> usize {
        self.detached_bytes
    }

    /// How many more rows fit in.
    pub const fn room(&self) -> usize {
        ROWS.saturating_sub(self.keys.len())
    }

    /// Adds the next `rows` rows of a head, or as many as fit, and returns how many. At least one, unless there are
    /// others already.
    pub fn slice(&mut self, at: usize, head: &RowGroupCursor, rows: usize) -> Result<usize> {
        if self.current.len() <= at {
            self.current.resize(at + 1, None);
        }
        let (batch, start) = head.batch();
        let source = match self.current[at] {
            Some(source) => source,
            None => {
                self.sources.push(self.selected(batch)?);
                self.sources.len() - 1
            }
        };
        self.current[at] = Some(source);
        let (rows, bytes) = self.fitting(source, start, rows);
        if rows == 0 {
            self.full = true;
            return Ok(0);
        }
        self.keys.extend_from_slice(head.keys(rows));
        self.bytes += bytes;
        match self.pieces.last_mut() {
            Some(OutputPiece::Slice {
                source: last,
                start: from,
                rows: so_far,
            }) if *last == source && *from + *so_far == start => {
                *so_far += rows;
            }
            _ => self.pieces.push(OutputPiece::Slice { source, start, rows }),
        }
        Ok(rows)
    }

    /// How many of these rows of a source fit, and the bytes of their values.
    fn fitting(&self, source: usize, start: usize, rows: usize) -> (usize, usize) {
        let of = |rows: usize| bytes(&self.sources[source], &(start..start + rows));
        let room = self.most_bytes.saturating_sub(self.bytes);
        let all = of(rows);
        if all <= room {
            return (rows, all);
        }
        let (mut fit, mut exceed) = (0, rows);
        while exceed - fit > 1 {
            let middle = fit.midpoint(exceed);
            if of(middle) <= room {
                fit = middle;
            } else {
                exceed = middle;
            }
        }
        // A batch of nothing would be the end.
        let fit = fit.max(usize::from(self.keys.is_empty()));
        (fit, of(fit))
    }

    /// Takes a row that was merged.
    pub fn row(&mut self, key: Key, row: Row) {
        let bytes = self.bytes.saturating_add(row.weight());
        if !self.keys.is_empty() && bytes > self.most_bytes {
            self.full = true;
            self.pending_row = Some((key, row));
            return;
        }
        self.keys.push(key);
        self.bytes = bytes;
        self.merged_rows.push(row);
        self.pieces.push(OutputPiece::Merged);
    }

    /// The head's batch is another one from now on.
    pub fn forget(&mut self, at: usize) {
        if let Some(source) = self.current.get_mut(at).and_then(Option::take) {
            self.detached_bytes += self.sources[source].get_array_memory_size();
        }
    }

    /// What was gathered, `None` for nothing.
    pub fn finish(&mut self) -> Result<Option<ScanBatch>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let merged = self.merged_batch()?;
        let rows = match self.pieces.as_slice() {
            [OutputPiece::Slice { source, start, rows }] => self.sources[*source].slice(*start, *rows),
            pieces if self.keys.len() / pieces.len() >= LONG_SLICES => self.joined(&merged)?,
            _ => self.interleaved(&merged)?,
        };
        self.sources.clear();
        self.current.fill(None);
        self.pieces.clear();
        self.bytes = 0;
        self.detached_bytes = 0;
        self.full = false;
        let keys = std::mem::take(&mut self.keys);
        if let Some((key, row)) = self.pending_row.take() {
            self.row(key, row);
        }
        Ok(Some(ScanBatch { rows, keys }))
    }

    fn merged_batch(&mut self) -> Result<RecordBatch> {
        if self.merged_rows.is_empty() {
            return Ok(RecordBatch::new_empty(self.schema.clone()));
        }
        for row in self.merged_rows.drain(..) {
            self.merged.push(&row)?;
        }
        let batch = self.merged.finish()?;
        self.selected(&batch)
    }

    /// Slice after slice.
    fn joined(&self, merged: &RecordBatch) -> Result<RecordBatch> {
        let mut next_merged = 0;
        let slices: Vec<RecordBatch> = self
            .pieces
            .iter()
            .map(|piece| match piece {
                OutputPiece::Slice { source, start, rows } => self.sources[*source].slice(*start, *rows),
                OutputPiece::Merged => {
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
                OutputPiece::Slice { source, start, rows } => {
                    picks.extend((*start..start + rows).map(|row| (*source, row)));
                }
                OutputPiece::Merged => {
                    picks.push((self.sources.len(), next_merged));
                    next_merged += 1;
                }
            }
        }
        let batches: Vec<&RecordBatch> = self.sources.iter().chain([merged]).collect();
        Ok(interleave_record_batch(&batches, &picks)?)
    }

    /// The selected columns of a batch that may have more.
    fn selected(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.selection.positions().iter().zip(self.selection.names());
        let columns = columns.map(|(position, name)| {
            if *position == position::START_TIME && !self.stored {
                return row::starts(batch);
            }
            let column = batch.column_by_name(name);
            Ok(column.expect("every selected column was read").clone())
        });
        Ok(RecordBatch::try_new(
            self.schema.clone(),
            columns.collect::<Result<_>>()?,
        )?)
    }
}
