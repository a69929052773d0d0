//! The target before and after the copy.

use sqlx::{AssertSqlSafe, Connection as _, Postgres, SqliteConnection, Transaction};
use towpath_domain::failpoint;
use uuid::Uuid;

use super::catalog::{self, Table, quoted};
use super::marker::{self, Marker};
use super::{MoveError, MoveResult, Stage, StoreMove};
use crate::error::Result;
use crate::migrations;
use crate::tx::Dialect;

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

impl StoreMove<'_> {
    /// Finds the move of this source and this target, or records a new one.
    pub(super) async fn begin(&mut self) -> MoveResult<(Uuid, Stage)> {
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

    /// Removes what would hinder the copy: rows of the migrations, triggers, and foreign keys, which are kept for the
    /// end.
    pub(super) async fn prepare(&mut self, tables: &[Table]) -> MoveResult<()> {
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

    /// Makes the target an ordinary database. Adding a foreign key checks every row.
    pub(super) async fn finish(&mut self, tables: &[Table]) -> MoveResult<()> {
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
        // Leases of deployments and sandboxes belong to processes of the source.
        execute(&mut tx, "DELETE FROM deployment_keeper".to_owned()).await?;
        execute(&mut tx, "DELETE FROM sandbox_host".to_owned()).await?;
        execute(&mut tx, "DELETE FROM sandbox_node".to_owned()).await?;
        execute(&mut tx, "DROP TABLE store_move_key".to_owned()).await?;
        execute(&mut tx, "UPDATE store_move SET finished_at = now()".to_owned()).await?;
        set_stage(&mut tx, Stage::Finished).await?;
        failpoint::hit("move.finishing");
        tx.commit().await?;
        Ok(())
    }
}

pub(super) async fn set_stage(tx: &mut Transaction<'_, Postgres>, stage: Stage) -> Result<()> {
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
