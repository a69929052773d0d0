//! Moving every row of a SQLite database into an empty PostgreSQL database.
//!
//! The tables come from the schemas of both databases. Rows are copied in batches in the order of their keys; a batch
//! and the key it ends with are one transaction of the target, so a move that was killed continues without doubles.
//! Afterwards each row is read again on both sides and compared.
//!
//! ```text
//! preparing   the target gets the schema, without foreign keys and triggers
//! checking    every value of the source is one that PostgreSQL can hold
//! copying     from here on, a file beside the source keeps servers from starting on it
//! verifying
//! finished    foreign keys, triggers and identity columns are as the schema has them
//! ```
//!
//! The target keeps its progress in `store_move` and `store_move_table`. Until it is finished, no server starts on it.

mod catalog;
mod marker;
mod values;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use futures::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, Postgres, Row as _, Sqlite, SqliteConnection,
    Transaction,
};
use towpath_domain::{TenantId, failpoint};
use uuid::Uuid;

use self::catalog::{Table, quoted};
use self::marker::Marker;
use self::values::{Cell, Kind, Misfit};
use crate::error::{Error, Result};
use crate::tx::Dialect;
use crate::{backup, migrations, postgres, sqlite};

pub(crate) use self::marker::check_not_moved;

/// Bounds of a batch, and what happens to text that PostgreSQL refuses.
#[derive(Clone, Copy, Debug)]
pub struct MoveOptions {
    pub rows: u32,
    /// A batch ends with the row that exceeds it.
    pub bytes: usize,
    /// Whether to store U+FFFD instead of NUL, as the store does with text from outside.
    pub replace_nul: bool,
}

impl Default for MoveOptions {
    fn default() -> Self {
        Self {
            rows: 1000,
            bytes: 8 * 1024 * 1024,
            replace_nul: false,
        }
    }
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Stage {
    Preparing,
    Checking,
    Copying,
    Verifying,
    Finished,
}

/// What has just happened.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    Begun(Stage),
    /// Rows of a table that this stage has done, and all of them. While the source is checked, the latter is unknown.
    Table {
        stage: Stage,
        name: &'a str,
        done: i64,
        rows: Option<i64>,
        is_complete: bool,
    },
}

/// A table of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedTable {
    pub name: String,
    /// Equal on both sides.
    pub rows: i64,
}

/// A finished move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// The target, without user and password.
    pub target: String,
    pub tables: Vec<MovedTable>,
    /// Whether an earlier call had finished it.
    pub was_finished: bool,
    /// Workspaces that have assistants, at most ten. The database of an agent server may name no other place for them.
    pub assistant_workspaces: Vec<TenantId>,
}

/// A value of the source, or a row, that PostgreSQL cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub table: String,
    /// Absent for a row that refers to a missing one.
    pub column: Option<String>,
    /// Absent as well.
    pub key: Option<String>,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.column, &self.key) {
            (Some(column), Some(key)) => write!(f, "{}.{column} of ({key}) {}", self.table, self.reason),
            _ => write!(f, "{}: {}", self.table, self.reason),
        }
    }
}

/// A move that did not finish.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// Source or target is not one of this move.
    #[error("{0}")]
    Refused(String),
    /// Nothing was copied.
    #[error(
        "{count} values or rows cannot be stored in PostgreSQL, and nothing was copied:\n{}",
        lines(.found)
    )]
    Unfit {
        /// The first of them.
        found: Vec<Unfit>,
        count: u64,
    },
    /// Rows of the target are not those of the source. The keys are the first of them.
    #[error(
        "{count} rows of {table} differ in the target, such as ({}); create a new target database, remove {marker}, and \
         repeat the move",
        .keys.join("), (")
    )]
    Different {
        table: String,
        keys: Vec<String>,
        count: u64,
        marker: String,
    },
    #[error("table {table}")]
    Table {
        table: String,
        #[source]
        source: Error,
    },
    #[error("moving the database")]
    Store(#[from] Error),
}

impl From<sqlx::Error> for MoveError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

type MoveResult<T> = std::result::Result<T, MoveError>;

/// Problems that an error lists.
const LISTED: usize = 20;

/// Names the lock of the target under which rows are moved.
const LOCK: i64 = 0x746f_7770_6d76;

/// A killed attempt keeps its lock until the server sees that its connection is gone.
const SESSION: &str =
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '60s';
SET jit = off";

/// Rows are looked up by their keys, also in tables without statistics.
const LOOKUPS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;
SET enable_mergejoin = off";

const SCANS: &str = "RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_hashjoin; RESET enable_mergejoin";

const PROGRESS_TABLES: &str = "
CREATE TABLE store_move (
    id          uuid PRIMARY KEY,
    state       text NOT NULL,
    schema      bigint NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE TABLE store_move_table (
    name          text PRIMARY KEY,
    rows          bigint NOT NULL DEFAULT 0,
    copied        bigint NOT NULL DEFAULT 0,
    copy_cursor   text,
    is_copied     boolean NOT NULL DEFAULT false,
    verified      bigint NOT NULL DEFAULT 0,
    verify_cursor text,
    is_verified   boolean NOT NULL DEFAULT false
);
CREATE TABLE store_move_key (
    table_name text NOT NULL,
    name       text NOT NULL,
    definition text NOT NULL,
    PRIMARY KEY (table_name, name)
)";

/// Moves the rows of a SQLite file, which no process may be using, into a PostgreSQL database without tables, or
/// continues doing so.
///
/// # Errors
/// [`MoveError`] says what to do. The call can be repeated after each of them.
pub async fn run(
    from: &Path,
    to: &str,
    options: MoveOptions,
    observe: &mut dyn FnMut(Progress<'_>),
) -> MoveResult<MoveReport> {
    if !from.is_file() {
        return Err(MoveError::Refused(format!("there is no database {}", from.display())));
    }
    let _lock = sqlite::lock_file(from).map_err(|error| MoveError::Refused(error.to_string()))?;
    let schema = migrations::of_sqlite(from).await?;
    schema.check()?;
    if !schema.pending.is_empty() {
        return Err(MoveError::Refused(format!(
            "{} has the schema of an earlier build: run towpath migrate or towpath dev once with this build, then \
             repeat",
            schema.database
        )));
    }
    let mut source = backup::connect_sqlite(from).await?;
    source.execute("PRAGMA query_only = ON").await?;
    let (mut target, name) = backup::connect_postgres(to).await?;
    lock_target(&mut target, &name).await?;
    let mut moving = StoreMove {
        file: from.to_owned(),
        source,
        target,
        name,
        options,
        observe,
    };
    let moved = moving.run().await;
    let _ = moving.source.close().await;
    let _ = moving.target.close().await;
    moved
}

async fn lock_target(target: &mut PgConnection, name: &str) -> MoveResult<()> {
    target.execute(SESSION).await?;
    let locked = sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(target)
        .await
        .map_err(Error::from);
    match locked {
        Ok(_) => Ok(()),
        Err(error) if error.is_locked() => Err(MoveError::Refused(format!(
            "another towpath migrate-store is writing to {name}; wait for its end"
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a target that does not have all rows yet.
pub(crate) async fn check_complete(conn: &mut PgConnection, name: &str) -> Result<()> {
    let is_target: bool = sqlx::query_scalar("SELECT to_regclass('store_move') IS NOT NULL")
        .fetch_one(&mut *conn)
        .await?;
    if !is_target {
        return Ok(());
    }
    let unfinished: Option<i64> = sqlx::query_scalar("SELECT 1::bigint FROM store_move WHERE state <> 'finished'")
        .fetch_optional(conn)
        .await?;
    if unfinished.is_some() {
        return Err(Error::Open(format!(
            "{name} does not have all rows yet: repeat towpath migrate-store until it has finished"
        )));
    }
    Ok(())
}

struct StoreMove<'o> {
    file: PathBuf,
    source: SqliteConnection,
    target: PgConnection,
    /// The target, without user and password.
    name: String,
    options: MoveOptions,
    observe: &'o mut dyn FnMut(Progress<'_>),
}

/// Progress of a table in one stage.
struct TableProgress {
    done: i64,
    rows: i64,
    cursor: Option<Vec<Cell>>,
    is_complete: bool,
}

impl StoreMove<'_> {
    async fn run(&mut self) -> MoveResult<MoveReport> {
        let (id, mut stage) = self.begin().await?;
        let was_finished = stage == Stage::Finished;
        if stage == Stage::Preparing {
            (self.observe)(Progress::Begun(stage));
            self.migrate().await?;
            failpoint::hit("move.migrated");
        }
        let tables = catalog::tables(&mut self.source, &mut self.target).await?;
        if stage == Stage::Preparing {
            self.prepare(&tables).await?;
            failpoint::hit("move.prepared");
            stage = Stage::Checking;
        }
        if stage == Stage::Checking {
            (self.observe)(Progress::Begun(stage));
            self.check(&tables).await?;
            let marker = Marker {
                id,
                target: self.name.clone(),
            };
            marker.write(&self.file)?;
            failpoint::hit("move.marked");
            stage = self.enter(Stage::Copying).await?;
        }
        if stage == Stage::Copying {
            (self.observe)(Progress::Begun(stage));
            for table in &tables {
                self.copy(table).await.map_err(|error| of_table(table, error))?;
            }
            stage = self.enter(Stage::Verifying).await?;
        }
        if stage == Stage::Verifying {
            (self.observe)(Progress::Begun(stage));
            self.target.execute(LOOKUPS).await?;
            for table in &tables {
                self.verify(table).await.map_err(|error| of_table(table, error))?;
            }
            self.target.execute(SCANS).await?;
            self.finish(&tables).await?;
            failpoint::hit("move.finished");
        }
        if !was_finished {
            (self.observe)(Progress::Begun(Stage::Finished));
        }
        // Nothing depends on these but speed. A repeated call makes those that are missing.
        postgres::make_indexes(&mut self.target).await?;
        self.target.execute("ANALYZE").await?;
        self.report(was_finished).await
    }

    /// Finds the move of this source and this target, or records a new one.
    async fn begin(&mut self) -> MoveResult<(Uuid, Stage)> {
        let marker = Marker::read(&self.file)?;
        let relations = catalog::relations(&mut self.target).await?;
        if !relations.iter().any(|name| name == "store_move") {
            if let Some(marker) = marker {
                return Err(self.moved_elsewhere(&marker));
            }
            if let Some(first) = relations.first() {
                return Err(MoveError::Refused(format!(
                    "{} is not empty, it has {first}: create a database for the move (createdb), and run no other towpath \
                     command on it before",
                    self.name
                )));
            }
            return self.record().await;
        }
        let (id, stage, schema): (Uuid, Stage, i64) = sqlx::query_as("SELECT id, state, schema FROM store_move")
            .fetch_one(&mut self.target)
            .await?;
        match marker {
            Some(marker) if marker.id != id => return Err(self.moved_elsewhere(&marker)),
            None if stage > Stage::Checking => {
                return Err(MoveError::Refused(format!(
                    "{} has rows of another move, or {} was removed since: create a new database for the move",
                    self.name,
                    marker::marker_file(&self.file).display()
                )));
            }
            Some(_) | None => {}
        }
        if stage != Stage::Finished && schema != migrations::newest(Dialect::Sqlite) {
            return Err(MoveError::Refused(format!(
                "the move into {} was begun by another build of towpath: finish it with that build",
                self.name
            )));
        }
        Ok((id, stage))
    }

    fn moved_elsewhere(&self, marker: &Marker) -> MoveError {
        MoveError::Refused(format!(
            "{} is being moved to {}, or was: repeat the move into that database; to move it elsewhere, remove {} first",
            self.file.display(),
            marker.target,
            marker::marker_file(&self.file).display()
        ))
    }

    async fn record(&mut self) -> MoveResult<(Uuid, Stage)> {
        let id = Uuid::now_v7();
        let mut tx = self.target.begin().await?;
        sqlx::raw_sql(PROGRESS_TABLES).execute(&mut *tx).await?;
        sqlx::query("INSERT INTO store_move (id, state, schema) VALUES ($1, $2, $3)")
            .bind(id)
            .bind(Stage::Preparing)
            .bind(migrations::newest(Dialect::Sqlite))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        failpoint::hit("move.recorded");
        Ok((id, Stage::Preparing))
    }

    async fn migrate(&mut self) -> MoveResult<()> {
        use sqlx::migrate::MigrateError;
        match migrations::POSTGRES.run(&mut self.target).await {
            Ok(()) => Ok(()),
            Err(MigrateError::Execute(error)) => Err(error.into()),
            Err(error) => Err(Error::Open(format!("cannot migrate {}: {error}", self.name)).into()),
        }
    }

    /// Removes what would hinder the copy: rows of the migrations, triggers, and foreign keys, which are kept for the
    /// end.
    async fn prepare(&mut self, tables: &[Table]) -> MoveResult<()> {
        let mut tx = self.target.begin().await?;
        let keys: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid) FROM pg_constraint
             WHERE contype = 'f' AND connamespace = current_schema()::regnamespace",
        )
        .fetch_all(&mut *tx)
        .await?;
        for (table, name, definition) in keys {
            execute(&mut tx, format!("ALTER TABLE {table} DROP CONSTRAINT {name}")).await?;
            sqlx::query("INSERT INTO store_move_key (table_name, name, definition) VALUES ($1, $2, $3)")
                .bind(table)
                .bind(name)
                .bind(definition)
                .execute(&mut *tx)
                .await?;
        }
        for table in tables {
            let name = quoted(&table.name);
            execute(&mut tx, format!("ALTER TABLE {name} DISABLE TRIGGER USER")).await?;
            execute(&mut tx, format!("DELETE FROM {name}")).await?;
            sqlx::query("INSERT INTO store_move_table (name) VALUES ($1)")
                .bind(&table.name)
                .execute(&mut *tx)
                .await?;
        }
        set_stage(&mut tx, Stage::Checking).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn enter(&mut self, stage: Stage) -> MoveResult<Stage> {
        let mut tx = self.target.begin().await?;
        set_stage(&mut tx, stage).await?;
        tx.commit().await?;
        Ok(stage)
    }

    /// Reads the whole source once, before anything is copied, and counts its rows.
    async fn check(&mut self, tables: &[Table]) -> MoveResult<()> {
        let mut problems = Problems::default();
        for table in tables {
            let mut cursor: Option<Vec<Cell>> = None;
            let mut rows = 0;
            loop {
                let batch = read_batch(&mut self.source, table, cursor.as_deref(), self.options).await?;
                rows += batch.len();
                problems.extend(table, batch.misfits);
                cursor = batch.end;
                let is_complete = batch.is_last;
                (self.observe)(Progress::Table {
                    stage: Stage::Checking,
                    name: &table.name,
                    done: rows,
                    rows: None,
                    is_complete,
                });
                if is_complete {
                    break;
                }
            }
            sqlx::query("UPDATE store_move_table SET rows = $2 WHERE name = $1")
                .bind(&table.name)
                .bind(rows)
                .execute(&mut self.target)
                .await?;
        }
        let orphans: Vec<(String, String, i64)> = sqlx::query_as(
            "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY \"table\", parent",
        )
        .fetch_all(&mut self.source)
        .await?;
        for (table, parent, count) in orphans {
            problems.add(Unfit {
                table,
                column: None,
                key: None,
                reason: format!(
                    "{count} rows refer to rows of {parent} that do not exist; delete those that PRAGMA \
                     foreign_key_check lists with sqlite3, then repeat"
                ),
            });
        }
        problems.into_result()
    }

    async fn copy(&mut self, table: &Table) -> MoveResult<()> {
        let mut progress = self
            .progress(
                "SELECT copied, rows, copy_cursor, is_copied FROM store_move_table WHERE name = $1",
                table,
            )
            .await?;
        let insert = table.insert_postgres();
        while !progress.is_complete {
            let batch = read_batch(&mut self.source, table, progress.cursor.as_deref(), self.options).await?;
            if !batch.misfits.is_empty() {
                // The file is marked since it was checked, so only another program can have changed it.
                let mut problems = Problems::default();
                problems.extend(table, batch.misfits);
                return problems.into_result();
            }
            progress.done += batch.len();
            progress.is_complete = batch.is_last;
            if batch.end.is_some() {
                progress.cursor = batch.end;
            }
            let mut tx = self.target.begin().await?;
            if !batch.rows.is_empty() {
                let mut query = sqlx::query(AssertSqlSafe(insert.clone()));
                for (column, cells) in table.columns.iter().zip(columns(batch.rows, table.columns.len())) {
                    query = values::bind_array(query, column.kind, cells);
                }
                query.execute(&mut *tx).await?;
            }
            sqlx::query("UPDATE store_move_table SET copied = $2, copy_cursor = $3, is_copied = $4 WHERE name = $1")
                .bind(&table.name)
                .bind(progress.done)
                .bind(progress.cursor.as_deref().map(values::cursor_text))
                .bind(progress.is_complete)
                .execute(&mut *tx)
                .await?;
            failpoint::hit("move.copying");
            tx.commit().await?;
            failpoint::hit("move.copied");
            self.tell(Stage::Copying, table, &progress);
        }
        Ok(())
    }

    /// Compares every row of both sides, found by its key.
    async fn verify(&mut self, table: &Table) -> MoveResult<()> {
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

    /// Makes the target an ordinary database. Adding a foreign key checks every row.
    async fn finish(&mut self, tables: &[Table]) -> MoveResult<()> {
        for table in tables {
            for column in table.columns.iter().filter(|column| column.is_identity) {
                let last = last_number(&mut self.source, table, &column.name).await?;
                let set = sqlx::query("SELECT setval(pg_get_serial_sequence($1, $2)::regclass, $3)");
                if let Some(last) = last.filter(|last| *last > 0) {
                    set.bind(quoted(&table.name))
                        .bind(&column.name)
                        .bind(last)
                        .execute(&mut self.target)
                        .await?;
                }
            }
        }
        let mut tx = self.target.begin().await?;
        let keys: Vec<(String, String, String)> =
            sqlx::query_as("SELECT table_name, name, definition FROM store_move_key ORDER BY table_name, name")
                .fetch_all(&mut *tx)
                .await?;
        for (table, name, definition) in keys {
            execute(
                &mut tx,
                format!("ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"),
            )
            .await
            .map_err(|source| MoveError::Table { table, source })?;
        }
        for table in tables {
            execute(
                &mut tx,
                format!("ALTER TABLE {} ENABLE TRIGGER USER", quoted(&table.name)),
            )
            .await?;
        }
        // The keeper lease belongs to processes of the source.
        execute(&mut tx, "DELETE FROM deployment_keeper".to_owned()).await?;
        execute(&mut tx, "DROP TABLE store_move_key".to_owned()).await?;
        execute(&mut tx, "UPDATE store_move SET finished_at = now()".to_owned()).await?;
        set_stage(&mut tx, Stage::Finished).await?;
        failpoint::hit("move.finishing");
        tx.commit().await?;
        Ok(())
    }

    async fn report(&mut self, was_finished: bool) -> MoveResult<MoveReport> {
        let tables: Vec<(String, i64)> = sqlx::query_as("SELECT name, verified FROM store_move_table ORDER BY name")
            .fetch_all(&mut self.target)
            .await?;
        let assistant_workspaces =
            sqlx::query_scalar("SELECT DISTINCT tenant_id FROM assistant ORDER BY tenant_id LIMIT 10")
                .fetch_all(&mut self.target)
                .await?;
        Ok(MoveReport {
            target: self.name.clone(),
            tables: tables
                .into_iter()
                .map(|(name, rows)| MovedTable { name, rows })
                .collect(),
            was_finished,
            assistant_workspaces,
        })
    }

    async fn progress(&mut self, statement: &'static str, table: &Table) -> MoveResult<TableProgress> {
        let (done, rows, cursor, is_complete): (i64, i64, Option<String>, bool) = sqlx::query_as(statement)
            .bind(&table.name)
            .fetch_one(&mut self.target)
            .await?;
        let cursor = match cursor {
            None => None,
            Some(text) => Some(
                values::parse_cursor(&text).ok_or_else(|| Error::corrupt("store_move_table", "cursor", &table.name))?,
            ),
        };
        Ok(TableProgress {
            done,
            rows,
            cursor,
            is_complete,
        })
    }

    fn tell(&mut self, stage: Stage, table: &Table, progress: &TableProgress) {
        (self.observe)(Progress::Table {
            stage,
            name: &table.name,
            done: progress.done,
            rows: Some(progress.rows),
            is_complete: progress.is_complete,
        });
    }
}

fn of_table(table: &Table, error: MoveError) -> MoveError {
    match error {
        MoveError::Store(source) => MoveError::Table {
            table: table.name.clone(),
            source,
        },
        other => other,
    }
}

async fn set_stage(tx: &mut Transaction<'_, Postgres>, stage: Stage) -> Result<()> {
    sqlx::query("UPDATE store_move SET state = $1")
        .bind(stage)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn execute(tx: &mut Transaction<'_, Postgres>, text: String) -> Result<()> {
    sqlx::query(AssertSqlSafe(text))
        .persistent(false)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// The last number that SQLite has given out, also to a row that is gone.
async fn last_number(source: &mut SqliteConnection, table: &Table, column: &str) -> Result<Option<i64>> {
    let text = format!(
        "SELECT max(number) FROM (SELECT seq AS number FROM sqlite_sequence WHERE name = $1
                                  UNION ALL SELECT max({}) FROM {})",
        quoted(column),
        quoted(&table.name)
    );
    let last = sqlx::query_scalar(AssertSqlSafe(text)).bind(&table.name);
    Ok(last.fetch_one(source).await?)
}

/// Rows of the source in the order of their keys.
#[derive(Default)]
struct RowBatch {
    /// Only rows whose values all fit.
    rows: Vec<Vec<Cell>>,
    misfits: Vec<(Vec<Cell>, String, Misfit)>,
    /// Rows with a value that does not fit.
    unfit_rows: i64,
    /// The key of the last row.
    end: Option<Vec<Cell>>,
    is_last: bool,
}

impl RowBatch {
    fn len(&self) -> i64 {
        i64::try_from(self.rows.len()).unwrap_or(i64::MAX) + self.unfit_rows
    }
}

async fn read_batch(
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

fn raw_key(row: &sqlx::sqlite::SqliteRow, table: &Table) -> sqlx::Result<Vec<Cell>> {
    let places = table.key.iter();
    places
        .map(|&place| values::read_raw(row, place, table.columns[place].kind))
        .collect()
}

/// Columns of rows.
fn columns(rows: Vec<Vec<Cell>>, count: usize) -> Vec<Vec<Cell>> {
    let mut columns: Vec<Vec<Cell>> = (0..count).map(|_| Vec::with_capacity(rows.len())).collect();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.push(cell);
        }
    }
    columns
}

/// The first problems of a source, and how many there are.
#[derive(Default)]
struct Problems {
    found: Vec<Unfit>,
    count: u64,
}

impl Problems {
    fn add(&mut self, unfit: Unfit) {
        self.count += 1;
        if self.found.len() < LISTED {
            self.found.push(unfit);
        }
    }

    fn extend(&mut self, table: &Table, misfits: Vec<(Vec<Cell>, String, Misfit)>) {
        let kinds = table.key_kinds();
        for (key, column, misfit) in misfits {
            self.add(Unfit {
                table: table.name.clone(),
                column: Some(column),
                key: Some(values::shown_key(&key, &kinds)),
                reason: misfit.message(),
            });
        }
    }

    fn into_result(self) -> MoveResult<()> {
        if self.count == 0 {
            return Ok(());
        }
        Err(MoveError::Unfit {
            found: self.found,
            count: self.count,
        })
    }
}

fn lines(found: &[Unfit]) -> String {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
