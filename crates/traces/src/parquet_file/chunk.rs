//! Splits rows into chunks whose boundaries depend on the rows alone.
//!
//! The page boundaries of a Parquet file depend on how rows are passed to the encoder. Passing whole chunks makes them
//! independent of the input batches.

use std::ops::Range;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};

use crate::columnar::Result;

/// A chunk is full with this many rows.
const ROWS: usize = 1024;
/// Or when its values have this many bytes.
const BYTES: usize = 2 << 20;

/// Rows that are encoded together.
pub struct Chunk {
    schema: SchemaRef,
    slices: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Chunk {
    pub const fn new(schema: SchemaRef) -> Self {
        Self {
            schema,
            slices: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// How many of the next rows, with these weights, fit into this chunk: at least one. They count as taken.
    pub fn take(&mut self, weights: &[usize]) -> usize {
        let before = self.rows;
        for weight in weights {
            self.rows += 1;
            self.bytes += weight;
            if self.is_full() {
                break;
            }
        }
        self.rows - before
    }

    /// Adds the rows that were taken.
    pub fn push(&mut self, rows: RecordBatch) {
        self.slices.push(rows);
    }

    pub const fn is_full(&self) -> bool {
        self.rows >= ROWS || self.bytes >= BYTES
    }

    /// The chunk's rows, `None` for none; it is empty again.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        let rows = match self.slices.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(concat_batches(&self.schema, several)?),
        };
        self.slices.clear();
        (self.rows, self.bytes) = (0, 0);
        Ok(rows)
    }
}

/// Bytes of values per row. Only texts count: the other columns weigh about the same in every row.
pub fn weights(rows: &RecordBatch) -> Vec<usize> {
    let mut weights = vec![0; rows.num_rows()];
    for column in rows.columns() {
        match column.data_type() {
            DataType::Utf8 => add(&mut weights, column.as_string::<i32>().value_offsets(), |end| end),
            DataType::List(_) => {
                let list = column.as_list::<i32>();
                if let Some(texts) = list.values().as_string_opt::<i32>() {
                    let ends = texts.value_offsets();
                    add(&mut weights, list.value_offsets(), |end| ends[end as usize]);
                }
            }
            _ => {}
        }
    }
    weights
}

/// Bytes of values in some rows, over all columns with texts or bytes.
pub fn bytes(rows: &RecordBatch, range: &Range<usize>) -> usize {
    let between = |start: i32, end: i32| usize::try_from(end - start).unwrap_or(0);
    let columns = rows.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8 => {
            let ends = column.as_string::<i32>().value_offsets();
            between(ends[range.start], ends[range.end])
        }
        DataType::Binary => {
            let ends = column.as_binary::<i32>().value_offsets();
            between(ends[range.start], ends[range.end])
        }
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            let (start, end) = (list.value_offsets()[range.start], list.value_offsets()[range.end]);
            let texts = list.values().as_string_opt::<i32>().map(StringArray::value_offsets);
            texts.map_or(0, |ends| between(ends[start as usize], ends[end as usize]))
        }
        _ => 0,
    });
    columns.sum()
}

fn add(weights: &mut [usize], offsets: &[i32], position: impl Fn(i32) -> i32) {
    for (weight, ends) in weights.iter_mut().zip(offsets.windows(2)) {
        *weight += usize::try_from(position(ends[1]) - position(ends[0])).unwrap_or(0);
    }
}
