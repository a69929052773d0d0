//! Reading the source.

use futures::TryStreamExt as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection};

use super::catalog::Table;
use super::problems::KeyedMisfit;
use super::values::{self, Cell};
use super::{MoveOptions, MoveResult};

/// Rows of the source in the order of their keys.
#[derive(Default)]
pub(super) struct RowBatch {
    /// Only rows whose values all fit.
    pub(super) rows: Vec<Vec<Cell>>,
    pub(super) misfits: Vec<KeyedMisfit>,
    /// Rows with a value that does not fit.
    unfit_rows: i64,
    /// The key of the last row.
    pub(super) end: Option<Vec<Cell>>,
    pub(super) is_last: bool,
}

impl RowBatch {
    pub(super) fn len(&self) -> i64 {
        i64::try_from(self.rows.len()).unwrap_or(i64::MAX) + self.unfit_rows
    }
}

pub(super) async fn read_batch(
    source: &mut SqliteConnection,
    table: &Table,
    after: Option<&[Cell]>,
    options: MoveOptions,
) -> MoveResult<RowBatch> {
    let text = format!("{} LIMIT {}", table.select_sqlite(after.is_some()), options.rows);
    let mut query = sqlx::query::<Sqlite>(AssertSqlSafe(text));
    for cell in after.into_iter().flatten() {
        query = match cell.clone() {
            Cell::Null => query.bind(None::<i64>),
            Cell::Int(number) => query.bind(number),
            Cell::Real(number) => query.bind(number),
            Cell::Text(text) => query.bind(text),
            Cell::Bytes(bytes) => query.bind(bytes),
        };
    }
    let mut batch = RowBatch::default();
    let (mut count, mut bytes) = (0, 0);
    let mut stream = query.fetch(source);
    while let Some(row) = stream.try_next().await? {
        let key = raw_key(&row, table)?;
        let mut cells = Vec::with_capacity(row.len());
        let mut fits = true;
        for (place, column) in table.columns.iter().enumerate() {
            match values::read_sqlite(&row, place, column.kind, options.replace_nul)? {
                Ok(cell) => {
                    bytes += cell.size();
                    cells.push(cell);
                }
                Err(misfit) => {
                    fits = false;
                    batch.misfits.push((key.clone(), column.name.clone(), misfit));
                }
            }
        }
        if fits {
            batch.rows.push(cells);
        } else {
            batch.unfit_rows += 1;
        }
        batch.end = Some(key);
        count += 1;
        if bytes >= options.bytes {
            return Ok(batch);
        }
    }
    batch.is_last = count < options.rows;
    Ok(batch)
}

fn raw_key(row: &SqliteRow, table: &Table) -> sqlx::Result<Vec<Cell>> {
    let places = table.key.iter();
    places
        .map(|&place| values::read_raw(row, place, table.columns[place].kind))
        .collect()
}

/// Columns of rows.
pub(super) fn columns(rows: Vec<Vec<Cell>>, count: usize) -> Vec<Vec<Cell>> {
    let mut columns: Vec<Vec<Cell>> = (0..count).map(|_| Vec::with_capacity(rows.len())).collect();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.push(cell);
        }
    }
    columns
}
