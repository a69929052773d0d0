//! Lists of rows as one parameter: JSON text, read with `json_each` on SQLite and `json_to_recordset` on PostgreSQL.
//!
//! On PostgreSQL such a list is joined to a table by a LATERAL subquery with a LIMIT, never by a plain join: a join
//! plan that was cached while the table was small reads all of a large one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

/// Rows of one statement.
const ROWS: usize = 1000;

/// Once a list has so many bytes, the next row begins another.
const BYTES: usize = 4 * 1024 * 1024;

/// Rows with larger texts are bound as values in separate statements: as JSON they would be copied several times, and a
/// list could exceed the size limit of a value.
pub(crate) const LARGE: usize = 1024 * 1024;

/// Lists of `rows`, each for one statement. A list is made when it is asked for.
pub(crate) fn lists<T: Serialize>(rows: Vec<T>) -> impl Iterator<Item = String> {
    let mut rows = rows.into_iter();
    std::iter::from_fn(move || {
        let mut text = String::from("[");
        for (nth, row) in rows.by_ref().take(ROWS).enumerate() {
            if nth > 0 {
                text.push(',');
            }
            text.push_str(&serde_json::to_string(&row).expect("ids, numbers and texts are always JSON"));
            if text.len() >= BYTES {
                break;
            }
        }
        text.push(']');
        (text.len() > 2).then_some(text)
    })
}

/// The row accepted last for each key, in the order of the keys: a statement must not meet a row twice, and statements
/// that lock rows in the same order do not deadlock.
pub(crate) fn latest<'r, T, K: Ord>(rows: &'r [T], key: impl Fn(&'r T) -> K, seq: impl Fn(&T) -> i64) -> Vec<&'r T> {
    let mut kept: BTreeMap<K, &'r T> = BTreeMap::new();
    for row in rows {
        let known = kept.entry(key(row)).or_insert(row);
        if seq(row) > seq(known) {
            *known = row;
        }
    }
    kept.into_values().collect()
}

/// Text that both databases can keep: PostgreSQL refuses NUL.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}").into()
    } else {
        text.into()
    }
}
