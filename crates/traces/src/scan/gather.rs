//! Puts slices of batches and merged rows together to output batches.

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::SchemaRef;
use towpath_domain::{ProjectId, TenantId};

use super::ScanBatch;
use super::head::Head;
use crate::columnar::Result;
use crate::parquet_file::bytes;
use crate::row::{self, Key, Row, RowsBuilder};
use crate::schema::{Selection, at};

/// Most rows of an output batch, and most bytes of values. A larger row has a batch of its own, so that no batch exceeds
/// what a column can hold.
const ROWS: usize = 4096;
const BYTES: usize = 2 << 20;

/// From this many rows a slice on average, copying slice by slice is quicker than picking row by row.
const LONG_SLICES: usize = 16;

/// An output batch in the making.
pub struct Gather {
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
    pieces: Vec<Piece>,
    keys: Vec<Key>,
    bytes: usize,
    /// Bytes of sources that are no head's batch any more, and how many there may be.
    left_behind: usize,
    may_leave: usize,
    most_bytes: usize,
    /// What comes next does not fit in any more.
    full: bool,
    /// A row that was merged and did not fit in.
    held: Option<(Key, Row)>,
}

enum Piece {
    Slice { source: usize, start: usize, rows: usize },
    Merged,
}

impl Gather {
    pub fn new(tenant: TenantId, project: ProjectId, selection: &Selection, may_leave: usize) -> Self {
        Self {
            selection: selection.clone(),
            stored: selection.positions().contains(&at::PROVENANCE),
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
            most_bytes: BYTES,
            full: false,
            held: None,
        }
    }

    pub const fn set_most_bytes(&mut self, bytes: usize) {
        self.most_bytes = bytes;
    }

    /// Whether it is time to hand the batch out.
    pub const fn is_full(&self) -> bool {
        let crowded = self.left_behind > 0 && self.left_behind >= self.may_leave;
        self.full || self.keys.len() >= ROWS || self.bytes >= self.most_bytes || crowded
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

    /// Takes the next `rows` rows of a head, or as many of them as fit in, and says how many. One at least, unless there
    /// are others already.
    pub fn slice(&mut self, at: usize, head: &Head, rows: usize) -> Result<usize> {
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
            Some(Piece::Slice {
                source: last,
                start: from,
                rows: so_far,
            }) if *last == source && *from + *so_far == start => {
                *so_far += rows;
            }
            _ => self.pieces.push(Piece::Slice { source, start, rows }),
        }
        Ok(rows)
    }

    /// How many of these rows of a source fit in, and the bytes of their values.
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
            self.held = Some((key, row));
            return;
        }
        self.keys.push(key);
        self.bytes = bytes;
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
        self.full = false;
        let keys = std::mem::take(&mut self.keys);
        if let Some((key, row)) = self.held.take() {
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
    fn selected(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.selection.positions().iter().zip(self.selection.names());
        let columns = columns.map(|(position, name)| {
            if *position == at::START_TIME && !self.stored {
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
