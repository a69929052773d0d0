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

mod batch;
mod catalog;
mod marker;
mod problems;
mod target;
mod values;
mod verify;

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};
use towpath_domain::{TenantId, failpoint};

use self::batch::{columns, read_batch};
use self::catalog::Table;
use self::marker::Marker;
use self::problems::{Problems, lines};
use self::target::set_stage;
use self::values::Cell;
use crate::error::{Error, Result};
use crate::{backup, migrations, postgres, sqlite};

pub(crate) use self::marker::check_not_moved;
pub use self::problems::Unfit;

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
        // Servers have added tables of their own to a finished target, for vectors.
        let tables = if was_finished {
            Vec::new()
        } else {
            catalog::tables(&mut self.source, &mut self.target).await?
        };
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

    async fn migrate(&mut self) -> MoveResult<()> {
        use sqlx::migrate::MigrateError;
        match migrations::POSTGRES.run(&mut self.target).await {
            Ok(()) => Ok(()),
            Err(MigrateError::Execute(error)) => Err(error.into()),
            Err(error) => Err(Error::Open(format!("cannot migrate {}: {error}", self.name)).into()),
        }
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

    async fn report(&mut self, was_finished: bool) -> MoveResult<MoveReport> {
        let tables: Vec<(String, i64)> =
            sqlx::query_as("SELECT name, verified FROM store_move_table ORDER BY name COLLATE \"C\"")
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
