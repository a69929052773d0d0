//! A database that is in use goes from the first schema to the newest, and loses nothing.

use std::collections::BTreeMap;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use towpath_store::Dialect;

use super::raw::{EmptyDatabase, RawConnection};
use super::{POSTGRES, SQLITE};

pub const ROWS: &str = include_str!("filled.sql");

/// Tables (`table`) and columns (`table.column`) of the first schema that a later pair drops on purpose, when no build
/// that uses them can still be running.
const DROPPED: [&str; 0] = [];

fn migrator(dialect: Dialect) -> &'static Migrator {
    match dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
    }
}

/// Rows such as [`ROWS`] as one of the databases writes them.
pub fn rows(text: &str, dialect: Dialect) -> String {
    let mut parts = text.split('@');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| c.is_ascii_digit()).unwrap();
        let (kind, rest) = part.split_at(digits);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
        let (number, rest) = rest.split_at(end);
        let number: usize = number.parse().unwrap();
        let literal = match (kind, dialect) {
            ("id", Dialect::Sqlite) => format!("x'{number:032}'"),
            ("id", Dialect::Postgres) => format!("uuid '{number:032}'"),
            ("at", Dialect::Sqlite) => format!("{}123456", 1_772_323_200 + number),
            ("at", Dialect::Postgres) => format!("timestamptz '2026-03-01 00:00:{number:02}.123456+00'"),
            ("bytes", dialect) => bytes("a5", number, dialect),
            ("other", dialect) => bytes("5a", number, dialect),
            _ => panic!("filled.sql says @{kind}"),
        };
        text.push_str(&literal);
        text.push_str(rest);
    }
    text
}

fn bytes(one: &str, number: usize, dialect: Dialect) -> String {
    let all = one.repeat(number);
    match dialect {
        Dialect::Sqlite => format!("x'{all}'"),
        Dialect::Postgres => format!("bytea '\\x{all}'"),
    }
}

/// What a table holds.
struct Contents {
    columns: Vec<String>,
    rows: Vec<String>,
}

impl Contents {
    async fn of(raw: &mut RawConnection, table: &str, columns: Vec<String>) -> sqlx::Result<Self> {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| match raw {
                RawConnection::Sqlite(_) => format!("quote(\"{column}\")"),
                RawConnection::Postgres(_) => format!("quote_nullable(\"{column}\"::text)"),
            })
            .collect();
        let cells = cells.join(" || ', ' || ");
        let rows = raw.texts(format!("SELECT {cells} FROM \"{table}\" ORDER BY 1")).await?;
        Ok(Self { columns, rows })
    }
}

/// The rows of the first schema, in the columns that are meant to stay.
async fn contents(raw: &mut RawConnection) -> BTreeMap<String, Contents> {
    let mut all = BTreeMap::new();
    for table in raw.tables().await {
        if DROPPED.contains(&table.as_str()) {
            continue;
        }
        let mut columns = raw.columns(&table).await;
        columns.retain(|column| !DROPPED.contains(&format!("{table}.{column}").as_str()));
        let contents = Contents::of(raw, &table, columns).await.unwrap();
        all.insert(table, contents);
    }
    all
}

/// Tables without a row and columns without a value.
pub async fn empty(raw: &mut RawConnection) -> Vec<String> {
    let mut empty = Vec::new();
    for table in raw.tables().await {
        let columns = raw.columns(&table).await.into_iter();
        let questions: Vec<String> = columns
            .map(|column| {
                format!(
                    "SELECT '{table}.{column}' WHERE NOT EXISTS (SELECT 1 FROM \"{table}\" WHERE \"{column}\" IS NOT NULL)"
                )
            })
            .collect();
        empty.extend(raw.texts(questions.join(" UNION ALL ")).await.unwrap());
    }
    empty
}

/// Constraints that the rows break, and indexes that are not whole.
async fn broken(raw: &mut RawConnection) -> Vec<String> {
    raw.ask(
        "SELECT \"table\" || ': a row names none of ' || parent FROM pragma_foreign_key_check
         UNION ALL SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
        "SELECT conrelid::regclass || ': ' || conname || ' is not validated' FROM pg_constraint WHERE NOT convalidated
         UNION ALL SELECT indrelid::regclass || ': ' || indexrelid::regclass || ' is not valid' FROM pg_index
         WHERE NOT indisvalid",
    )
    .await
}

/// Fills a database of the first schema, lets `upgrade` bring it to the newest, and says what is not as it was.
async fn losses(fresh: &EmptyDatabase, upgrade: impl AsyncFnOnce()) -> Vec<String> {
    let mut raw = fresh.raw().await;
    raw.migrate(migrator(fresh.dialect), 1).await.unwrap();
    raw.execute(rows(ROWS, fresh.dialect)).await;
    assert_eq!(
        empty(&mut raw).await,
        Vec::<String>::new(),
        "filled.sql has no values for these"
    );
    assert_eq!(broken(&mut raw).await, Vec::<String>::new());
    let before = contents(&mut raw).await;
    upgrade().await;
    let mut raw = fresh.raw().await;
    let mut losses = broken(&mut raw).await;
    for (table, before) in before {
        match Contents::of(&mut raw, &table, before.columns).await {
            Ok(after) if after.rows == before.rows => (),
            Ok(after) => losses.push(format!("{table}: {:?} became {:?}", before.rows, after.rows)),
            Err(error) => losses.push(format!("{table}: {error}")),
        }
    }
    losses
}

async fn keeps_its_rows(fresh: EmptyDatabase) {
    let upgrade = async || {
        let store = fresh.store().await;
        store.migrate().await.unwrap();
        store.close().await;
    };
    let losses = losses(&fresh, upgrade).await;
    let hint = "a migration keeps every row; what it drops on purpose is named in DROPPED";
    assert!(losses.is_empty(), "{hint}:\n{}", losses.join("\n"));
}

#[tokio::test]
async fn a_filled_database_keeps_its_rows_on_sqlite() {
    keeps_its_rows(EmptyDatabase::sqlite()).await;
}

#[tokio::test]
async fn a_filled_database_keeps_its_rows_on_postgres() {
    if let Some(fresh) = EmptyDatabase::postgres().await {
        keeps_its_rows(fresh).await;
    }
}

/// The test above would see a pair that loses something.
async fn losses_are_seen(fresh: EmptyDatabase, rule: &'static str) {
    let text = format!(
        "ALTER TABLE job ADD COLUMN note TEXT; DELETE FROM step; UPDATE feedback SET key = 'x';
         ALTER TABLE worker DROP COLUMN finished; DROP TABLE pool; {rule}"
    );
    let second = Migration::new(
        2,
        "second".into(),
        MigrationType::Simple,
        sqlx::AssertSqlSafe(text).into_sql_str(),
        false,
    );
    let first = migrator(fresh.dialect).iter().next().unwrap().clone();
    let two = Migrator::with_migrations(vec![first, second]);
    let upgrade = async || fresh.raw().await.migrate(&two, 2).await.unwrap();
    let losses = losses(&fresh, upgrade).await;
    for table in ["extra", "feedback", "pool", "step", "worker"] {
        let names = |loss: &&String| loss.starts_with(table) || loss.ends_with(table);
        assert_eq!(losses.iter().filter(names).count(), 1, "{table}: {losses:#?}");
    }
    assert_eq!(losses.len(), 5, "{losses:#?}");
}

#[tokio::test]
async fn losses_of_a_migration_are_seen_on_sqlite() {
    let rule = "CREATE TABLE extra (n INTEGER CHECK (n > 0)) STRICT; PRAGMA ignore_check_constraints = ON;
                INSERT INTO extra VALUES (-1); PRAGMA ignore_check_constraints = OFF";
    losses_are_seen(EmptyDatabase::sqlite(), rule).await;
}

#[tokio::test]
async fn losses_of_a_migration_are_seen_on_postgres() {
    let rule = "CREATE TABLE extra (n integer); INSERT INTO extra VALUES (-1);
                ALTER TABLE extra ADD CHECK (n > 0) NOT VALID";
    if let Some(fresh) = EmptyDatabase::postgres().await {
        losses_are_seen(fresh, rule).await;
    }
}
