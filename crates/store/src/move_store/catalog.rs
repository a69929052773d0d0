//! The tables of both databases, read from their schemas, so that a new table is moved without any change here.

use std::collections::BTreeMap;

use sqlx::{PgConnection, SqliteConnection};

use super::MoveError;
use super::values::Kind;
use crate::error::Result;

/// Tables of the target that belong to the move itself or to its schema.
const OWN: [&str; 4] = ["_sqlx_migrations", "store_move", "store_move_table", "store_move_key"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Whether PostgreSQL numbers its rows.
    pub(super) is_identity: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    /// Places of the key's columns, in the order of the key.
    pub(super) key: Vec<usize>,
}

impl Table {
    pub(super) fn key_kinds(&self) -> Vec<Kind> {
        self.key.iter().map(|&place| self.columns[place].kind).collect()
    }

    fn key_names(&self) -> impl Iterator<Item = String> {
        self.key.iter().map(|&place| quoted(&self.columns[place].name))
    }

    /// Rows of the source in the order of the key, after one if `after`.
    pub(super) fn select_sqlite(&self, after: bool) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| quoted(&column.name)).collect();
        let key: Vec<String> = self.key_names().collect();
        let (columns, key, table) = (columns.join(", "), key.join(", "), quoted(&self.name));
        let places: Vec<String> = (1..=self.key.len()).map(|number| format!("${number}")).collect();
        let begin = if after {
            format!(" WHERE ({key}) > ({})", places.join(", "))
        } else {
            String::new()
        };
        format!("SELECT {columns} FROM {table}{begin} ORDER BY {key}")
    }

    /// One array per column.
    pub(super) fn insert_postgres(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| quoted(&column.name)).collect();
        let kinds: Vec<Kind> = self.columns.iter().map(|column| column.kind).collect();
        format!(
            "INSERT INTO {} ({}) SELECT {} FROM {}",
            quoted(&self.name),
            columns.join(", "),
            elements(&kinds).join(", "),
            unnested(&kinds)
        )
    }

    /// The rows of the target whose keys are given, one array per column of the key.
    pub(super) fn select_postgres(&self) -> String {
        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.kind.shown(&format!("found.{}", quoted(&column.name))))
            .collect();
        let kinds = self.key_kinds();
        let same: Vec<String> = self
            .key_names()
            .zip(elements(&kinds))
            .map(|(name, element)| format!("found.{name} = {element}"))
            .collect();
        format!(
            "SELECT {} FROM {} JOIN {} AS found ON {}",
            columns.join(", "),
            unnested(&kinds),
            quoted(&self.name),
            same.join(" AND ")
        )
    }
}

fn elements(kinds: &[Kind]) -> Vec<String> {
    let elements = kinds.iter().enumerate();
    elements
        .map(|(place, kind)| format!("batch.v{place}{}", kind.cast()))
        .collect()
}

fn unnested(kinds: &[Kind]) -> String {
    let arrays: Vec<String> = kinds
        .iter()
        .enumerate()
        .map(|(place, kind)| format!("${}::{}", place + 1, kind.array()))
        .collect();
    let names: Vec<String> = (0..kinds.len()).map(|place| format!("v{place}")).collect();
    format!("unnest({}) AS batch ({})", arrays.join(", "), names.join(", "))
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Name, declared type, and place in the key, from 1.
type SqliteColumn = (String, String, i64);

/// Types of columns, and whether PostgreSQL numbers their rows, by name.
type PostgresColumns = BTreeMap<String, (String, bool)>;

async fn sqlite_columns(conn: &mut SqliteConnection) -> Result<BTreeMap<String, Vec<SqliteColumn>>> {
    let found: Vec<(String, String, String, i64)> = sqlx::query_as(
        "SELECT t.name, c.name, c.type, c.pk FROM sqlite_master t, pragma_table_xinfo(t.name) c
         WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~' AND t.name <> '_sqlx_migrations'
         ORDER BY t.name, c.cid",
    )
    .fetch_all(conn)
    .await?;
    let mut tables: BTreeMap<String, Vec<SqliteColumn>> = BTreeMap::new();
    for (table, column, declared, place) in found {
        tables.entry(table).or_default().push((column, declared, place));
    }
    Ok(tables)
}

async fn postgres_columns(conn: &mut PgConnection) -> Result<BTreeMap<String, PostgresColumns>> {
    let found: Vec<(String, String, String, bool)> = sqlx::query_as(
        "SELECT c.relname::text, a.attname::text, t.typname::text, a.attidentity <> ''
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
           AND a.attnum > 0 AND NOT a.attisdropped
           AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')",
    )
    .fetch_all(conn)
    .await?;
    let mut tables: BTreeMap<String, PostgresColumns> = BTreeMap::new();
    for (table, column, kind, is_identity) in found {
        if !OWN.contains(&table.as_str()) {
            tables.entry(table).or_default().insert(column, (kind, is_identity));
        }
    }
    Ok(tables)
}

/// The tables to move, by name.
///
/// # Errors
/// [`MoveError::Refused`] if a table or column is only in one of the databases, or has types that this build cannot
/// convert.
pub(super) async fn tables(
    source: &mut SqliteConnection,
    target: &mut PgConnection,
) -> std::result::Result<Vec<Table>, MoveError> {
    let from = sqlite_columns(source).await?;
    let to = postgres_columns(target).await?;
    let mut problems: Vec<String> = to
        .keys()
        .filter(|name| !from.contains_key(*name))
        .map(|name| format!("{name} is missing in SQLite"))
        .collect();
    let mut tables = Vec::new();
    for (name, columns) in from {
        match to.get(&name) {
            None => problems.push(format!("{name} is missing in PostgreSQL")),
            Some(targets) => match table(name, &columns, targets) {
                Ok(table) => tables.push(table),
                Err(found) => problems.extend(found),
            },
        }
    }
    if problems.is_empty() {
        return Ok(tables);
    }
    Err(MoveError::Refused(format!(
        "the schemas of the two databases differ, so this build cannot move the rows: {}",
        problems.join("; ")
    )))
}

fn table(name: String, columns: &[SqliteColumn], targets: &PostgresColumns) -> std::result::Result<Table, Vec<String>> {
    let mut problems: Vec<String> = targets
        .keys()
        .filter(|column| !columns.iter().any(|(known, ..)| known == *column))
        .map(|column| format!("{name}.{column} is missing in SQLite"))
        .collect();
    let mut found = Vec::new();
    let mut key: Vec<(i64, usize)> = Vec::new();
    for (column, declared, place) in columns {
        let Some((target, is_identity)) = targets.get(column) else {
            problems.push(format!("{name}.{column} is missing in PostgreSQL"));
            continue;
        };
        let Some(kind) = Kind::of(declared, target) else {
            problems.push(format!(
                "{name}.{column} is {declared} in SQLite and {target} in PostgreSQL"
            ));
            continue;
        };
        if *place > 0 {
            key.push((*place, found.len()));
        }
        found.push(Column {
            name: column.clone(),
            kind,
            is_identity: *is_identity,
        });
    }
    if key.is_empty() {
        problems.push(format!("{name} has no primary key"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    key.sort_unstable();
    Ok(Table {
        name,
        columns: found,
        key: key.into_iter().map(|(_, place)| place).collect(),
    })
}

/// Tables, views and sequences of the target, without those of extensions.
pub(super) async fn relations(conn: &mut PgConnection) -> Result<Vec<String>> {
    let found = sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_class c
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
           AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
         ORDER BY c.relname",
    );
    Ok(found.fetch_all(conn).await?)
}
