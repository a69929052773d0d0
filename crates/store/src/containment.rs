//! JSON containment as of PostgreSQL's `@>`: objects contain objects key by key, lists contain each element of a list
//! in any order, scalars are equal.
//!
//! PostgreSQL evaluates it natively. For SQLite the filter becomes one condition per leaf.

use serde_json::{Map, Value};
use towpath_domain::Rejection;

use crate::error::Result;
use crate::query::{Arg, Query, brackets};
use crate::tx::Dialect;

/// Conditions of a filter: keys of its objects, elements of its lists.
pub(crate) const MOST_CONDITIONS: usize = 1000;
/// Nesting limit of a filter, multiplied by the number of nested lists plus one. Each list is a subquery, and SQLite
/// adds up the depth of nested subqueries.
const MOST_LEVELS: usize = 64;

/// Adds the condition to a statement.
pub(crate) fn push(query: &mut Query, column: &str, field: &str, filter: &Value) -> Result<()> {
    // For both databases, so that a filter means the same on each.
    check(field, filter)?;
    match query.dialect() {
        Dialect::Postgres => {
            query.push("(").push(column).push(")::jsonb @> ");
            query.bind(Arg::Text(filter.to_string())).push("::jsonb");
        }
        Dialect::Sqlite => {
            let root = JsonLocation::Path {
                json: column.to_owned(),
                path: "$".to_owned(),
            };
            query.push("(");
            root.contains(query, filter, 0);
            query.push(")");
        }
    }
    Ok(())
}

/// Most filters that one `$and` or `$or` combines. SQLite limits the depth of expressions to 1000, and a chain of
/// conditions is as deep as it is long.
const MOST_COMBINED: usize = 100;
/// Nesting limit of `$and` and `$or`.
const MOST_COMBINED_LEVELS: usize = 4;

/// As [`push`], for a filter whose members `$and` and `$or` are lists of such filters.
pub(crate) fn push_combined(query: &mut Query, column: &str, field: &str, filter: &Map<String, Value>) -> Result<()> {
    let conditions: usize = filter.values().map(|value| 1 + Size::of(value).conditions).sum();
    if conditions > MOST_CONDITIONS {
        let message = format!("expected a filter of at most {MOST_CONDITIONS} keys and elements, not {conditions}");
        return Err(Rejection::invalid(field, message).into());
    }
    push_filters(query, column, field, filter, 0)
}

fn push_filters(query: &mut Query, column: &str, field: &str, filter: &Map<String, Value>, level: usize) -> Result<()> {
    let combines = |(key, value): &(&String, &Value)| matches!(key.as_str(), "$and" | "$or") && value.is_array();
    let (combined, plain): (Vec<_>, Vec<_>) = filter.iter().partition(combines);
    let plain: Map<String, Value> = plain
        .into_iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    query.push("(");
    if plain.is_empty() {
        query.push("1 = 1");
    } else {
        push(query, column, field, &Value::Object(plain))?;
    }
    for (operator, filters) in combined {
        let filters = filters.as_array().map(Vec::as_slice).unwrap_or_default();
        if level == MOST_COMBINED_LEVELS || filters.len() > MOST_COMBINED {
            let message = format!(
                "{operator}: expected at most {MOST_COMBINED} filters, and at most {MOST_COMBINED_LEVELS} levels"
            );
            return Err(Rejection::invalid(field, message).into());
        }
        // No filter at all: each holds, and none does.
        let (join, none) = match operator.as_str() {
            "$and" => (" AND ", "1 = 1"),
            _ => (" OR ", "1 = 0"),
        };
        query.push(" AND (");
        if filters.is_empty() {
            query.push(none);
        }
        for (nth, filter) in filters.iter().enumerate() {
            let Some(filter) = filter.as_object() else {
                return Err(Rejection::invalid(field, format!("{operator}: expected a list of objects")).into());
            };
            query.push(if nth == 0 { "" } else { join });
            push_filters(query, column, field, filter, level + 1)?;
        }
        query.push(")");
    }
    query.push(")");
    Ok(())
}

/// Refuses a filter that is too large, or that PostgreSQL cannot take.
pub(crate) fn check(field: &str, filter: &Value) -> Result<(), Rejection> {
    if has_nul(filter) {
        return Err(Rejection::invalid(field, "expected keys and texts without NUL"));
    }
    let Size {
        conditions,
        levels,
        lists,
    } = Size::of(filter);
    if conditions > MOST_CONDITIONS {
        let message = format!("expected a filter of at most {MOST_CONDITIONS} keys and elements, not {conditions}");
        return Err(Rejection::invalid(field, message));
    }
    if levels * (lists + 1) > MOST_LEVELS {
        let message = format!("expected a filter of at most {MOST_LEVELS} levels, or fewer with nested lists");
        return Err(Rejection::invalid(field, message));
    }
    Ok(())
}

/// Whether a key or a text has a NUL, which PostgreSQL's `jsonb` does not take.
fn has_nul(filter: &Value) -> bool {
    match filter {
        Value::String(text) => text.contains('\0'),
        Value::Array(elements) => elements.iter().any(has_nul),
        Value::Object(members) => members.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}

/// How large a filter is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    conditions: usize,
    levels: usize,
    /// Lists inside one another; also keys that are found as elements of lists are.
    lists: usize,
}

impl Size {
    fn of(filter: &Value) -> Self {
        let mut size = Self::default();
        match filter {
            Value::Object(members) => {
                for (key, value) in members {
                    size.add(Self::of(value), !in_path(key));
                }
            }
            Value::Array(elements) => {
                for element in elements {
                    size.add(Self::of(element), true);
                }
            }
            _ => {}
        }
        size
    }

    fn add(&mut self, inner: Self, in_list: bool) {
        self.conditions += 1 + inner.conditions;
        self.levels = self.levels.max(1 + inner.levels);
        self.lists = self.lists.max(usize::from(in_list) + inner.lists);
    }
}

/// Whether a path can name a key: it has no way to write a quote.
fn in_path(key: &str) -> bool {
    !key.contains(['"', '\\'])
}

/// Where a part of the stored JSON is found.
enum JsonLocation {
    /// Below a path of a JSON text.
    Path { json: String, path: String },
    /// A row of `json_each` with this alias.
    Element(String),
}

impl JsonLocation {
    fn push_type(&self, query: &mut Query) {
        match self {
            Self::Path { json, path } => {
                query.push("json_type(").push(json).push(", ");
                query.bind(Arg::Text(path.clone())).push(")");
            }
            Self::Element(alias) => {
                query.push(alias).push(".type");
            }
        }
    }

    fn push_value(&self, query: &mut Query) {
        match self {
            Self::Path { json, path } => {
                query.push("json_extract(").push(json).push(", ");
                query.bind(Arg::Text(path.clone())).push(")");
            }
            Self::Element(alias) => {
                query.push(alias).push(".value");
            }
        }
    }

    fn push_each(&self, query: &mut Query, alias: &str) {
        match self {
            Self::Path { json, path } => {
                query.push("json_each(").push(json).push(", ");
                query.bind(Arg::Text(path.clone())).push(") AS ").push(alias);
            }
            Self::Element(outer) => {
                query.push("json_each(").push(outer).push(".value) AS ").push(alias);
            }
        }
    }

    /// The member `key`, if a path can name it.
    fn member(&self, key: &str) -> Option<Self> {
        if !in_path(key) {
            return None;
        }
        let step = |path: &str| format!("{path}.\"{key}\"");
        Some(match self {
            Self::Path { json, path } => Self::Path {
                json: json.clone(),
                path: step(path),
            },
            Self::Element(alias) => Self::Path {
                json: format!("{alias}.value"),
                path: step("$"),
            },
        })
    }

    fn contains(&self, query: &mut Query, filter: &Value, depth: usize) {
        let is = |query: &mut Query, what: &str| {
            self.push_type(query);
            query.push(what);
        };
        match filter {
            Value::Null => is(query, " = 'null'"),
            Value::Bool(true) => is(query, " = 'true'"),
            Value::Bool(false) => is(query, " = 'false'"),
            Value::String(text) => {
                is(query, " = 'text' AND ");
                self.push_value(query);
                query.push(" = ").bind(Arg::Text(text.clone()));
            }
            Value::Number(number) => {
                is(query, " IN ('integer', 'real') AND ");
                self.push_value(query);
                let arg = number
                    .as_i64()
                    .map_or_else(|| Arg::Real(number.as_f64().unwrap_or(f64::NAN)), Arg::Int);
                query.push(" = ").bind(arg);
            }
            Value::Object(members) => {
                // Read from JSON text only if there is one: `json_each` of a scalar is an error.
                is(query, " = 'object'");
                for ((opening, closing), (key, value)) in brackets(members.len()).into_iter().zip(members) {
                    query.push(" AND ").push(&"(".repeat(opening));
                    if let Some(member) = self.member(key) {
                        query.push("CASE WHEN ");
                        self.push_type(query);
                        query.push(" = 'object' THEN (");
                        member.contains(query, value, depth + 1);
                        query.push(") ELSE 0 END");
                    } else {
                        self.some(query, depth, Some(key), value);
                    }
                    query.push(&")".repeat(closing));
                }
            }
            Value::Array(elements) => {
                is(query, " = 'array'");
                for ((opening, closing), element) in brackets(elements.len()).into_iter().zip(elements) {
                    query.push(" AND ").push(&"(".repeat(opening));
                    self.some(query, depth, None, element);
                    query.push(&")".repeat(closing));
                }
            }
        }
    }

    /// Some row of `json_each`, of this key if one is given, contains the filter.
    fn some(&self, query: &mut Query, depth: usize, key: Option<&str>, filter: &Value) {
        let alias = format!("j{depth}");
        query.push("CASE WHEN ");
        self.push_type(query);
        query.push(" IN ('object', 'array') THEN EXISTS (SELECT 1 FROM ");
        self.push_each(query, &alias);
        query.push(" WHERE ");
        if let Some(key) = key {
            query
                .push(&alias)
                .push(".key = ")
                .bind(Arg::Text(key.to_owned()))
                .push(" AND ");
        }
        query.push("(");
        Self::Element(alias).contains(query, filter, depth + 1);
        query.push(")) ELSE 0 END");
    }
}
