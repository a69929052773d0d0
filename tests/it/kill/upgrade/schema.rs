//! The schema of a later build, made up: each table has one more column, and there are one more table and one more
//! index.

use sqlx::{AssertSqlSafe, Executor, PgConnection};
use towpath_tests::until;

use crate::load::PATIENCE;

/// What every migration begins with: while it waits for a table, everyone waits behind it.
const SHORT_WAITS: &str = "SET lock_timeout = '2s'";
/// An index is made beside the work, and waits as long as that takes.
const LONG_WAITS: &str = "SET lock_timeout = 0";
const TABLE: &str = "CREATE TABLE future_thing (id uuid PRIMARY KEY, note text)";
const INDEX: &str = "CREATE INDEX CONCURRENTLY future_job ON job (future_x) WHERE future_x IS NOT NULL";
/// A table that takes rows of another one as they are comes before that.
const TABLES: &str = "SELECT tablename::text FROM pg_tables
    WHERE schemaname = current_schema() AND tablename <> '_sqlx_migrations' ORDER BY tablename DESC";

/// Brings the schema further, a table at a time.
pub async fn widen(tables: &mut PgConnection) {
    let names: Result<Vec<String>, _> = sqlx::query_scalar(TABLES).fetch_all(&mut *tables).await;
    let names = names.expect("the tables are there");
    assert!(names.len() > 40, "there are only {} tables", names.len());
    run(tables, SHORT_WAITS).await;
    run(tables, TABLE).await;
    for name in names {
        let statement = format!("ALTER TABLE {name} ADD COLUMN future_x text");
        until(&statement, PATIENCE, async || {
            tried(tables, &statement).await.then_some(())
        })
        .await;
    }
    run(tables, LONG_WAITS).await;
    run(tables, INDEX).await;
}

async fn run(tables: &mut PgConnection, statement: &'static str) {
    let done = tables.execute(statement).await;
    done.unwrap_or_else(|error| panic!("{statement}: {error}"));
}

/// Whether the table was free.
async fn tried(tables: &mut PgConnection, statement: &str) -> bool {
    match tables.execute(AssertSqlSafe(statement.to_owned())).await {
        Ok(_) => true,
        Err(error) => {
            let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
            let is_locked = matches!(code.as_deref(), Some("55P03" | "40P01"));
            assert!(is_locked, "{statement}: {error}");
            false
        }
    }
}
