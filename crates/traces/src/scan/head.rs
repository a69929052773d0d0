//! One row group on its way through the merge.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use futures::TryStreamExt;
use towpath_domain::Timestamp;

use super::PartRef;
use crate::columnar::Result;
use crate::row::{self, Key, Row, RowReader};
use crate::segment::{Batches, Segment};

/// Which rows are wanted.
pub struct Window {
    pub range: Range<Timestamp>,
    pub after: Option<Key>,
}

impl Window {
    /// Whether every row of the part is wanted, going by the catalog.
    fn covers(&self, part: &PartRef) -> bool {
        self.range.start <= part.min_sort_time
            && part.max_sort_time < self.range.end
            && self.after.is_none_or(|after| after.sort_time < part.min_sort_time)
    }

    /// Positions of the wanted rows among sorted keys.
    fn within(&self, keys: &[Key]) -> Range<usize> {
        let start = keys
            .partition_point(|key| key.sort_time < self.range.start || self.after.is_some_and(|after| *key <= after));
        let end = keys.partition_point(|key| key.sort_time < self.range.end);
        start..end.max(start)
    }
}

/// The batch of a row group at which the merge stands.
pub struct Head {
    batches: Batches,
    batch: RecordBatch,
    keys: Vec<Key>,
    next: usize,
}

impl Head {
    /// Opens a row group at its first wanted row; `None` when it has none.
    pub async fn open(segment: &Segment, part: &PartRef, columns: &[usize], window: &Window) -> Result<Option<Self>> {
        let wanted = if window.covers(part) {
            None
        } else {
            // The keys are small; knowing them, the other columns are fetched and decoded only where wanted.
            let wanted = window.within(&segment.keys(part.row_group).await?);
            if wanted.is_empty() {
                return Ok(None);
            }
            Some(wanted)
        };
        let batches = segment.batches(part.row_group, columns, wanted)?;
        let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let mut head = Self {
            batches,
            batch,
            keys: Vec::new(),
            next: 0,
        };
        head.refill().await?;
        Ok(head.key().is_some().then_some(head))
    }

    /// Where it stands; `None` when it is exhausted.
    pub fn key(&self) -> Option<Key> {
        self.keys.get(self.next).copied()
    }

    /// How many rows from here on lie before `limit`, as far as the batch reaches.
    pub fn run(&self, limit: Option<Key>) -> usize {
        let rest = &self.keys[self.next..];
        match limit {
            None => rest.len(),
            // Mostly either the whole batch or a few rows.
            Some(limit) if rest.last().is_some_and(|last| *last < limit) => rest.len(),
            Some(limit) => {
                let mut reach = 1;
                while rest.get(reach).is_some_and(|key| *key < limit) {
                    reach *= 2;
                }
                let from = reach / 2;
                from + rest[from..reach.min(rest.len())].partition_point(|key| *key < limit)
            }
        }
    }

    /// The row at which it stands.
    pub fn row(&self) -> Result<Row> {
        RowReader::new(&self.batch)?.row(self.next)
    }

    /// The batch, and the position in it.
    pub const fn batch(&self) -> (&RecordBatch, usize) {
        (&self.batch, self.next)
    }

    /// Keys of the next `rows` rows.
    pub fn keys(&self, rows: usize) -> &[Key] {
        &self.keys[self.next..self.next + rows]
    }

    /// Moves on. True when that led to another batch, or to the end.
    pub async fn advance(&mut self, rows: usize) -> Result<bool> {
        self.next += rows;
        if self.next < self.keys.len() {
            return Ok(false);
        }
        self.refill().await?;
        Ok(true)
    }

    async fn refill(&mut self) -> Result<()> {
        self.keys.clear();
        self.next = 0;
        while let Some(batch) = self.batches.try_next().await? {
            if batch.num_rows() > 0 {
                self.keys = row::keys(&batch)?;
                self.batch = batch;
                return Ok(());
            }
        }
        Ok(())
    }
}
