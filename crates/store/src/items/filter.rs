//! Filters of items: equality by key, objects recursively, or operators.

use serde_json::{Map, Value};
use towpath_domain::Rejection;

use crate::containment::MOST_CONDITIONS;
use crate::query::{Arg, Query, brackets};
use crate::tx::Dialect;
use crate::{Error, Result};

/// Objects inside one another. On SQLite each is a subquery.
const MOST_LEVELS: usize = 10;

/// Adds ` AND …` for what a filter wants; nothing for one that is empty.
pub(super) fn push(query: &mut Query, filter: &Map<String, Value>) -> Result<()> {
    if filter.is_empty() {
        return Ok(());
    }
    let (conditions, levels) = size(filter);
    if conditions > MOST_CONDITIONS {
        let message = format!("expected a filter of at most {MOST_CONDITIONS} conditions, not {conditions}");
        return Err(Rejection::invalid("filter", message).into());
    }
    if levels > MOST_LEVELS {
        let message = format!("expected a filter of at most {MOST_LEVELS} levels, not {levels}");
        return Err(Rejection::invalid("filter", message).into());
    }
    query.push(" AND ");
    let mut matcher = ConditionWriter { query, aliases: 0 };
    matcher.all(&ValueLocation::Column, filter, "")
}

/// Conditions, and objects inside one another.
fn size(filter: &Map<String, Value>) -> (usize, usize) {
    let inner = filter.values().filter_map(Value::as_object).map(size);
    let (conditions, levels) = inner.fold((0, 0), |(conditions, levels), inner| {
        (conditions + inner.0, levels.max(inner.1))
    });
    (filter.len() + conditions, 1 + levels)
}

/// Writes the conditions of a filter: equality by key, objects recursively, or operators (`$eq $ne $gt $gte $lt $lte`),
/// which compare values of one type only. Keys and values are always bound and need no quoting; on SQLite members are
/// found through `json_each`, because JSON paths cannot express every key.
struct ConditionWriter<'q> {
    query: &'q mut Query,
    aliases: usize,
}

/// Where an object is.
#[derive(Clone)]
enum ValueLocation {
    /// The item's value.
    Column,
    /// SQLite: a row of `json_each`.
    Row(String),
    /// PostgreSQL: members from the value down.
    Path(Vec<String>),
}

impl ConditionWriter<'_> {
    /// All of these have to hold; `field` is how the caller knows the object, with a dot behind it.
    fn all(&mut self, of: &ValueLocation, members: &Map<String, Value>, field: &str) -> Result<()> {
        let each = brackets(members.len()).into_iter().zip(members);
        for (nth, ((opening, closing), (key, wanted))) in each.enumerate() {
            self.query.push(if nth > 0 { " AND " } else { "" });
            self.query.push(&"(".repeat(opening));
            self.field(of, key, wanted, &format!("{field}{key}"))?;
            self.query.push(&")".repeat(closing));
        }
        Ok(())
    }

    /// `field` is how the caller knows the member.
    fn field(&mut self, of: &ValueLocation, key: &str, wanted: &Value, field: &str) -> Result<()> {
        let Value::Object(members) = wanted else {
            return self.compare(of, key, "$eq", wanted, field);
        };
        if members.keys().any(|name| name.starts_with('$')) {
            for (index, (operator, wanted)) in members.iter().enumerate() {
                if index > 0 {
                    self.query.push(" AND ");
                }
                self.compare(of, key, operator, wanted, field)?;
            }
            return Ok(());
        }
        let place = match self.query.dialect() {
            Dialect::Sqlite => {
                let row = self.open_row(of, key);
                self.query.push(&row).push(".type = 'object'");
                ValueLocation::Row(row)
            }
            Dialect::Postgres => {
                let member = below(of, key);
                self.query.push("coalesce(jsonb_typeof(");
                self.push_path(&member);
                self.query.push(") = 'object'");
                ValueLocation::Path(member)
            }
        };
        if !members.is_empty() {
            self.query.push(" AND ");
            self.all(&place, members, &format!("{field}."))?;
        }
        self.query.push(if matches!(place, ValueLocation::Row(_)) {
            ")"
        } else {
            ", false)"
        });
        Ok(())
    }

    fn compare(&mut self, of: &ValueLocation, key: &str, operator: &str, wanted: &Value, field: &str) -> Result<()> {
        let sign = match operator {
            "$eq" | "$ne" => " = ",
            "$gt" => " > ",
            "$gte" => " >= ",
            "$lt" => " < ",
            "$lte" => " <= ",
            _ => {
                let message = format!("the operator {operator:?} is not one of $eq, $ne, $gt, $gte, $lt, $lte");
                return Err(Error::Rejected(Rejection::invalid(format!("filter.{field}"), message)));
            }
        };
        if operator == "$ne" {
            self.query.push("NOT ");
        }
        match self.query.dialect() {
            Dialect::Sqlite => self.compare_sqlite(of, key, sign, wanted),
            Dialect::Postgres => self.compare_postgres(&below(of, key), sign, wanted),
        }
        Ok(())
    }

    fn compare_postgres(&mut self, member: &[String], sign: &str, wanted: &Value) {
        if wanted.is_null() {
            // A key that is not there is as good as null.
            self.query.push("coalesce(");
            self.push_path(member);
            self.query.push(", 'null'::jsonb)").push(sign).push("'null'::jsonb");
            return;
        }
        self.query.push("coalesce(");
        if sign != " = " {
            // jsonb orders values of different kinds too, which means nothing here.
            self.query.push("jsonb_typeof(");
            self.push_path(member);
            self.query.push(") = jsonb_typeof(").bind(Arg::Text(wanted.to_string()));
            self.query.push("::jsonb) AND ");
        }
        self.push_path(member);
        self.query.push(sign).bind(Arg::Text(wanted.to_string()));
        self.query.push("::jsonb, false)");
    }

    /// One parameter for all of the path: a statement takes 65,535 of them.
    fn push_path(&mut self, path: &[String]) {
        let quoted = |key: &String| format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        let keys: Vec<String> = path.iter().map(quoted).collect();
        self.query.push("(value::jsonb #> ");
        self.query.bind(Arg::Text(format!("{{{}}}", keys.join(","))));
        self.query.push("::text[])");
    }

    fn compare_sqlite(&mut self, of: &ValueLocation, key: &str, sign: &str, wanted: &Value) {
        if wanted.is_null() {
            self.query.push("NOT ");
        }
        let row = self.open_row(of, key);
        match wanted {
            // A key that is not there is as good as null.
            Value::Null => self.query.push(&row).push(".type <> 'null'"),
            Value::Bool(yes) => self
                .query
                .push(&row)
                .push(".type IN ('true', 'false') AND ")
                .push(&row)
                .push(".value")
                .push(sign)
                .push(if *yes { "1" } else { "0" }),
            Value::Number(number) => {
                self.query.push(&row).push(".type IN ('integer', 'real') AND ");
                self.query.push(&row).push(".value").push(sign);
                self.query.push("json_extract(").bind(Arg::Text(number.to_string()));
                self.query.push(", '$')")
            }
            Value::String(text) => {
                self.query.push(&row).push(".type = 'text' AND ");
                self.query
                    .push(&row)
                    .push(".value")
                    .push(sign)
                    .bind(Arg::Text(text.clone()))
            }
            Value::Array(_) | Value::Object(_) => {
                let kind = if wanted.is_array() { "array" } else { "object" };
                self.query.push(&row).push(".type = '").push(kind).push("' AND json(");
                self.query.push(&row).push(".value)").push(sign);
                self.query.push("json(").bind(Arg::Text(wanted.to_string()));
                self.query.push(")")
            }
        };
        self.query.push(")");
    }

    /// SQLite: opens `EXISTS (` over the member `key` and returns its alias; the caller adds a condition and the
    /// closing bracket.
    fn open_row(&mut self, of: &ValueLocation, key: &str) -> String {
        self.aliases += 1;
        let row = format!("m{}", self.aliases);
        self.query.push("EXISTS (SELECT 1 FROM json_each(");
        match of {
            ValueLocation::Row(outer) => self.query.push(outer).push(".value"),
            ValueLocation::Column | ValueLocation::Path(_) => self.query.push("store_item.value"),
        };
        self.query.push(") AS ").push(&row).push(" WHERE ");
        self.query.push(&row).push(".key = ").bind(Arg::Text(key.to_owned()));
        self.query.push(" AND ");
        row
    }
}

fn below(of: &ValueLocation, key: &str) -> Vec<String> {
    let mut path = match of {
        ValueLocation::Path(path) => path.clone(),
        ValueLocation::Column | ValueLocation::Row(_) => Vec::new(),
    };
    path.push(key.to_owned());
    path
}
