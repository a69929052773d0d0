//! A value of SQLite as the one of PostgreSQL.
//!
//! Both sides are compared as [`Cell`]s: ids as their 16 bytes, times as microseconds, booleans as 0 and 1, and JSON as
//! PostgreSQL prints it.

use chrono::{DateTime, NaiveDate, Utc};
use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::sqlite::SqliteRow;
use sqlx::{Postgres, Row as _};
use towpath_domain::Timestamp;
use uuid::Uuid;

/// What a column holds, by its types in both databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Uuid,
    Bytes,
    Text,
    Json,
    Date,
    Time,
    Bool,
    Int2,
    Int4,
    Int8,
    Double,
}

/// The earliest time of a `timestamptz`, in microseconds.
const EARLIEST: i64 = -210_866_803_200_000_000;

impl Kind {
    pub(super) fn of(sqlite: &str, postgres: &str) -> Option<Self> {
        Some(match (sqlite, postgres) {
            ("BLOB", "uuid") => Self::Uuid,
            ("BLOB", "bytea") => Self::Bytes,
            ("TEXT", "text") => Self::Text,
            ("TEXT", "jsonb") => Self::Json,
            ("TEXT", "date") => Self::Date,
            ("INTEGER", "timestamptz") => Self::Time,
            ("INTEGER", "bool") => Self::Bool,
            ("INTEGER", "int2") => Self::Int2,
            ("INTEGER", "int4") => Self::Int4,
            ("INTEGER", "int8") => Self::Int8,
            ("REAL", "float8") => Self::Double,
            _ => return None,
        })
    }

    /// The type of the parameter that carries a column of many rows.
    pub(super) const fn array(self) -> &'static str {
        match self {
            Self::Uuid => "uuid[]",
            Self::Bytes => "bytea[]",
            Self::Text | Self::Json | Self::Date => "text[]",
            Self::Time => "timestamptz[]",
            Self::Bool => "boolean[]",
            Self::Int2 | Self::Int4 | Self::Int8 => "bigint[]",
            Self::Double => "double precision[]",
        }
    }

    /// What makes an element of that parameter a value of the column.
    pub(super) const fn cast(self) -> &'static str {
        match self {
            Self::Json => "::jsonb",
            Self::Date => "::date",
            Self::Int2 => "::smallint",
            Self::Int4 => "::integer",
            _ => "",
        }
    }

    /// The column of the target as [`read_postgres`] expects it.
    pub(super) fn shown(self, column: &str) -> String {
        match self {
            Self::Json => format!("{column}::text"),
            Self::Date => format!("to_char({column}, 'YYYY-MM-DD')"),
            Self::Int2 | Self::Int4 => format!("{column}::bigint"),
            _ => column.to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Cell {
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Null | Self::Int(_) | Self::Real(_) => 8,
        }
    }

    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn int(self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(number),
            _ => None,
        }
    }

    fn add_to(&self, digest: &mut Sha256) {
        let mut add = |tag: u8, bytes: &[u8]| {
            digest.update([tag]);
            digest.update((bytes.len() as u64).to_be_bytes());
            digest.update(bytes);
        };
        match self {
            Self::Null => add(0, &[]),
            Self::Int(number) => add(1, &number.to_be_bytes()),
            Self::Real(number) => add(2, &number.to_bits().to_be_bytes()),
            Self::Text(text) => add(3, text.as_bytes()),
            Self::Bytes(bytes) => add(4, bytes),
        }
    }
}

pub(super) fn digest(cells: &[Cell]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for cell in cells {
        cell.add_to(&mut digest);
    }
    digest.finalize().into()
}

/// A key for people: ids as UUIDs, other bytes in hexadecimal digits.
pub(super) fn shown_key(cells: &[Cell], kinds: &[Kind]) -> String {
    let shown = cells.iter().zip(kinds).map(|(cell, kind)| match (cell, kind) {
        (Cell::Bytes(bytes), Kind::Uuid) => match Uuid::from_slice(bytes) {
            Ok(id) => id.to_string(),
            Err(_) => hex::encode(bytes),
        },
        (Cell::Bytes(bytes), _) => hex::encode(bytes),
        (Cell::Text(text), _) => format!("{text:?}"),
        (Cell::Int(number), _) => number.to_string(),
        (Cell::Real(number), _) => number.to_string(),
        (Cell::Null, _) => "null".to_owned(),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Why PostgreSQL cannot hold a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    Nul,
    Encoding,
    Id,
    Json,
    Date,
    Time,
    Bool,
    Number,
}

impl Misfit {
    /// What is wrong with the value, and what to do.
    pub(super) fn message(self) -> String {
        let reason = match self {
            Self::Nul => return "contains NUL: repeat with --replace-nul, or change the row with sqlite3".to_owned(),
            Self::Encoding => "is not valid UTF-8",
            Self::Id => "is not an id of 16 bytes",
            Self::Json => "is not JSON that PostgreSQL accepts",
            Self::Date => "is not a date",
            Self::Time => "is earlier than the times of PostgreSQL",
            Self::Bool => "is neither 0 nor 1",
            Self::Number => "is too large for its column",
        };
        format!("{reason}: change or delete the row with sqlite3, then repeat")
    }
}

/// A value as it is in the source, without any check; for keys.
pub(super) fn read_raw(row: &SqliteRow, index: usize, kind: Kind) -> sqlx::Result<Cell> {
    Ok(match kind {
        Kind::Uuid | Kind::Bytes => blob(row, index)?.map_or(Cell::Null, Cell::Bytes),
        Kind::Text | Kind::Json | Kind::Date => match blob(row, index)?.map(String::from_utf8) {
            None => Cell::Null,
            Some(Ok(text)) => Cell::Text(text),
            // As bytes it sorts behind every text.
            Some(Err(error)) => Cell::Bytes(error.into_bytes()),
        },
        Kind::Time | Kind::Bool | Kind::Int2 | Kind::Int4 | Kind::Int8 => row
            .try_get_unchecked::<Option<i64>, _>(index)?
            .map_or(Cell::Null, Cell::Int),
        Kind::Double => row
            .try_get_unchecked::<Option<f64>, _>(index)?
            .map_or(Cell::Null, Cell::Real),
    })
}

/// A text is read as its bytes, too, because it need not be UTF-8.
fn blob(row: &SqliteRow, index: usize) -> sqlx::Result<Option<Vec<u8>>> {
    row.try_get_unchecked(index)
}

/// A value of the source as PostgreSQL will hold it. JSON is not in PostgreSQL's form yet.
pub(super) fn read_sqlite(
    row: &SqliteRow,
    index: usize,
    kind: Kind,
    replace_nul: bool,
) -> sqlx::Result<Result<Cell, Misfit>> {
    if matches!(kind, Kind::Text | Kind::Json | Kind::Date) {
        let Some(bytes) = blob(row, index)? else {
            return Ok(Ok(Cell::Null));
        };
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(Err(Misfit::Encoding));
        };
        return Ok(match kind {
            Kind::Json => json(text, replace_nul),
            Kind::Date => date(text),
            _ => plain(text, replace_nul),
        }
        .map(Cell::Text));
    }
    let cell = read_raw(row, index, kind)?;
    Ok(match (&cell, kind) {
        (Cell::Bytes(bytes), Kind::Uuid) if bytes.len() != 16 => Err(Misfit::Id),
        (Cell::Int(number), Kind::Bool) if !matches!(number, 0 | 1) => Err(Misfit::Bool),
        (Cell::Int(number), Kind::Int2) if i16::try_from(*number).is_err() => Err(Misfit::Number),
        (Cell::Int(number), Kind::Int4) if i32::try_from(*number).is_err() => Err(Misfit::Number),
        (Cell::Int(micros), Kind::Time) if *micros < EARLIEST => Err(Misfit::Time),
        // Later times than PostgreSQL's are clamped, as in every statement of the store.
        (Cell::Int(micros), Kind::Time) => Ok(Cell::Int(Timestamp::from_micros(*micros).to_utc().timestamp_micros())),
        _ => Ok(cell),
    })
}

fn plain(text: String, replace_nul: bool) -> Result<String, Misfit> {
    match text.contains('\0') {
        false => Ok(text),
        true if replace_nul => Ok(crate::bulk::storable(&text).into_owned()),
        true => Err(Misfit::Nul),
    }
}

fn date(text: String) -> Result<String, Misfit> {
    match NaiveDate::parse_from_str(&text, "%Y-%m-%d") {
        Ok(day) if day.to_string() == text => Ok(text),
        _ => Err(Misfit::Date),
    }
}

/// `jsonb` accepts neither NUL nor half a surrogate pair, and the latter is not JSON for the parser either.
fn json(text: String, replace_nul: bool) -> Result<String, Misfit> {
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| Misfit::Json)?;
    match has_nul(&value) {
        false => Ok(text),
        true if replace_nul => Ok(without_nul(value).to_string()),
        true => Err(Misfit::Nul),
    }
}

fn has_nul(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn without_nul(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(crate::bulk::storable(&text).into_owned()),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nul).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            Value::Object(
                fields
                    .map(|(name, value)| (crate::bulk::storable(&name).into_owned(), without_nul(value)))
                    .collect(),
            )
        }
        other => other,
    }
}

/// A value of the target, selected as [`Kind::shown`].
pub(super) fn read_postgres(row: &PgRow, index: usize, kind: Kind) -> sqlx::Result<Cell> {
    Ok(match kind {
        Kind::Uuid => {
            let id: Option<Uuid> = row.try_get(index)?;
            id.map_or(Cell::Null, |id| Cell::Bytes(id.as_bytes().to_vec()))
        }
        Kind::Bytes => row
            .try_get::<Option<Vec<u8>>, _>(index)?
            .map_or(Cell::Null, Cell::Bytes),
        Kind::Text | Kind::Json | Kind::Date => row.try_get::<Option<String>, _>(index)?.map_or(Cell::Null, Cell::Text),
        Kind::Time => {
            let time: Option<DateTime<Utc>> = row.try_get(index)?;
            time.map_or(Cell::Null, |time| Cell::Int(time.timestamp_micros()))
        }
        Kind::Bool => {
            let flag: Option<bool> = row.try_get(index)?;
            flag.map_or(Cell::Null, |flag| Cell::Int(i64::from(flag)))
        }
        Kind::Int2 | Kind::Int4 | Kind::Int8 => row.try_get::<Option<i64>, _>(index)?.map_or(Cell::Null, Cell::Int),
        Kind::Double => row.try_get::<Option<f64>, _>(index)?.map_or(Cell::Null, Cell::Real),
    })
}

/// Binds a column of many rows as one array.
pub(super) fn bind_array(
    query: Query<'static, Postgres, PgArguments>,
    kind: Kind,
    cells: Vec<Cell>,
) -> Query<'static, Postgres, PgArguments> {
    let cells = cells.into_iter();
    match kind {
        Kind::Uuid => {
            let ids: Vec<Option<Uuid>> = cells
                .map(|cell| cell.bytes().and_then(|bytes| Uuid::from_slice(&bytes).ok()))
                .collect();
            query.bind(ids)
        }
        Kind::Bytes => query.bind(cells.map(Cell::bytes).collect::<Vec<Option<Vec<u8>>>>()),
        Kind::Text | Kind::Json | Kind::Date => query.bind(cells.map(Cell::text).collect::<Vec<Option<String>>>()),
        Kind::Time => {
            let times: Vec<Option<DateTime<Utc>>> = cells
                .map(|cell| cell.int().map(|micros| Timestamp::from_micros(micros).to_utc()))
                .collect();
            query.bind(times)
        }
        Kind::Bool => {
            let flags: Vec<Option<bool>> = cells.map(|cell| cell.int().map(|flag| flag == 1)).collect();
            query.bind(flags)
        }
        Kind::Int2 | Kind::Int4 | Kind::Int8 => query.bind(cells.map(Cell::int).collect::<Vec<Option<i64>>>()),
        Kind::Double => {
            let numbers: Vec<Option<f64>> = cells
                .map(|cell| match cell {
                    Cell::Real(number) => Some(number),
                    _ => None,
                })
                .collect();
            query.bind(numbers)
        }
    }
}

/// A key as it is kept in the target between batches.
pub(super) fn cursor_text(cells: &[Cell]) -> String {
    let parts: Vec<serde_json::Value> = cells
        .iter()
        .map(|cell| match cell {
            Cell::Null => serde_json::Value::Null,
            Cell::Int(number) => serde_json::json!({ "int": number }),
            Cell::Real(number) => serde_json::json!({ "bits": number.to_bits() }),
            Cell::Text(text) => serde_json::json!({ "text": hex::encode(text) }),
            Cell::Bytes(bytes) => serde_json::json!({ "bytes": hex::encode(bytes) }),
        })
        .collect();
    serde_json::Value::Array(parts).to_string()
}

/// `None` if it was not written by [`cursor_text`].
pub(super) fn parse_cursor(text: &str) -> Option<Vec<Cell>> {
    let parts: Vec<serde_json::Value> = serde_json::from_str(text).ok()?;
    parts.iter().map(parse_part).collect()
}

fn parse_part(part: &serde_json::Value) -> Option<Cell> {
    if part.is_null() {
        return Some(Cell::Null);
    }
    let (name, value) = part.as_object()?.iter().next()?;
    Some(match name.as_str() {
        "int" => Cell::Int(value.as_i64()?),
        "bits" => Cell::Real(f64::from_bits(value.as_u64()?)),
        "text" => Cell::Text(String::from_utf8(hex::decode(value.as_str()?).ok()?).ok()?),
        "bytes" => Cell::Bytes(hex::decode(value.as_str()?).ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let key = vec![
            Cell::Bytes(vec![0, 255]),
            Cell::Text("é\0".to_owned()),
            Cell::Int(i64::MIN),
            Cell::Real(0.1),
            Cell::Null,
        ];
        assert_eq!(parse_cursor(&cursor_text(&key)), Some(key));
        assert_eq!(parse_cursor("[{\"other\": 1}]"), None);
    }

    #[test]
    fn values_that_postgres_refuses_are_seen() {
        assert_eq!(plain("a\0b".to_owned(), false), Err(Misfit::Nul));
        assert_eq!(plain("a\0b".to_owned(), true).as_deref(), Ok("a\u{fffd}b"));
        assert_eq!(json(r#"{"a": ["\u0000"]}"#.to_owned(), false), Err(Misfit::Nul));
        assert_eq!(
            json(r#"{"a\u0000": 1}"#.to_owned(), true).as_deref(),
            Ok("{\"a\u{fffd}\":1}")
        );
        // The characters of the escape, not NUL.
        assert!(json(r#"{"a": "\\u0000"}"#.to_owned(), false).is_ok());
        assert_eq!(json(r#""\ud800""#.to_owned(), true), Err(Misfit::Json));
        assert_eq!(date("2026-3-1".to_owned()), Err(Misfit::Date));
        assert_eq!(date("2026-03-01".to_owned()).as_deref(), Ok("2026-03-01"));
    }

    #[test]
    fn cells_next_to_each_other_have_digests_of_their_own() {
        let text = |text: &str| Cell::Text(text.to_owned());
        assert_ne!(digest(&[text("ab"), text("c")]), digest(&[text("a"), text("bc")]));
        assert_ne!(digest(&[Cell::Null]), digest(&[text("")]));
    }
}
