//! Comparing source and target.

use std::collections::HashMap;

use futures::TryStreamExt as _;
use sqlx::AssertSqlSafe;
use towpath_domain::failpoint;

use super::batch::{columns, read_batch};
use super::catalog::{Table, quoted};
use super::problems::LISTED;
use super::values::{self, Cell, Kind};
use super::{MoveError, MoveResult, Stage, StoreMove, marker};

impl StoreMove<'_> {
    /// Compares every row of both sides, found by its key.
    pub(super) async fn verify(&mut self, table: &Table) -> MoveResult<()> {
        let mut progress = self
            .progress(
                "SELECT verified, rows, verify_cursor, is_verified FROM store_move_table WHERE name = $1",
                table,
            )
            .await?;
        if progress.is_complete {
            return Ok(());
        }
        while !progress.is_complete {
            let mut batch = read_batch(&mut self.source, table, progress.cursor.as_deref(), self.options).await?;
            progress.done += batch.len();
            progress.is_complete = batch.is_last;
            self.as_postgres_prints(table, &mut batch.rows).await?;
            let different = self.differences(table, &batch.rows).await?;
            if !different.is_empty() {
                return Err(self.different(table, &different));
            }
            if batch.end.is_some() {
                progress.cursor = batch.end;
            }
            if progress.is_complete {
                self.compare_counts(table, progress.done).await?;
            }
            sqlx::query(
                "UPDATE store_move_table SET verified = $2, verify_cursor = $3, is_verified = $4 WHERE name = $1",
            )
            .bind(&table.name)
            .bind(progress.done)
            .bind(progress.cursor.as_deref().map(values::cursor_text))
            .bind(progress.is_complete)
            .execute(&mut self.target)
            .await?;
            failpoint::hit("move.verified");
            self.tell(Stage::Verifying, table, &progress);
        }
        Ok(())
    }

    fn different(&self, table: &Table, keys: &[String]) -> MoveError {
        MoveError::Different {
            table: table.name.clone(),
            count: keys.len() as u64,
            keys: keys.iter().take(LISTED).cloned().collect(),
            marker: marker::marker_file(&self.file).display().to_string(),
        }
    }

    /// JSON has another form in PostgreSQL: sorted keys, one of equal keys, other numbers.
    async fn as_postgres_prints(&mut self, table: &Table, rows: &mut [Vec<Cell>]) -> MoveResult<()> {
        for (place, column) in table.columns.iter().enumerate() {
            if column.kind != Kind::Json || rows.is_empty() {
                continue;
            }
            let texts: Vec<Option<String>> = rows
                .iter()
                .map(|row| match &row[place] {
                    Cell::Text(text) => Some(text.clone()),
                    _ => None,
                })
                .collect();
            let printed: Vec<Option<String>> = sqlx::query_scalar(
                "SELECT given.value::jsonb::text FROM unnest($1::text[]) WITH ORDINALITY AS given (value, place)
                 ORDER BY given.place",
            )
            .bind(texts)
            .fetch_all(&mut self.target)
            .await?;
            for (row, text) in rows.iter_mut().zip(printed) {
                row[place] = text.map_or(Cell::Null, Cell::Text);
            }
        }
        Ok(())
    }

    /// The keys of rows that the target does not have, or has with other values.
    async fn differences(&mut self, table: &Table, rows: &[Vec<Cell>]) -> MoveResult<Vec<String>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let key_of = |row: &[Cell]| -> Vec<Cell> { table.key.iter().map(|&place| row[place].clone()).collect() };
        let kinds = table.key_kinds();
        let keys: Vec<Vec<Cell>> = rows.iter().map(|row| key_of(row)).collect();
        let mut query = sqlx::query(AssertSqlSafe(table.select_postgres()));
        for (kind, cells) in kinds.iter().zip(columns(keys, kinds.len())) {
            query = values::bind_array(query, *kind, cells);
        }
        let mut found: HashMap<[u8; 32], [u8; 32]> = HashMap::with_capacity(rows.len());
        let mut stream = query.fetch(&mut self.target);
        while let Some(row) = stream.try_next().await? {
            let mut cells = Vec::with_capacity(table.columns.len());
            for (place, column) in table.columns.iter().enumerate() {
                cells.push(values::read_postgres(&row, place, column.kind)?);
            }
            found.insert(values::digest(&key_of(&cells)), values::digest(&cells));
        }
        let different = rows.iter().filter_map(|row| {
            let key = key_of(row);
            let is_equal = found.get(&values::digest(&key)) == Some(&values::digest(row));
            (!is_equal).then(|| values::shown_key(&key, &kinds))
        });
        Ok(different.collect())
    }

    /// Every row of the source is in the target; with equal counts there is no other.
    async fn compare_counts(&mut self, table: &Table, rows: i64) -> MoveResult<()> {
        let text = format!("SELECT count(*) FROM {}", quoted(&table.name));
        let found: i64 = sqlx::query_scalar(AssertSqlSafe(text))
            .fetch_one(&mut self.target)
            .await?;
        if found == rows {
            return Ok(());
        }
        Err(self.different(table, &[format!("{found} rows in the target, {rows} in the source")]))
    }
}
