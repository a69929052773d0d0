//! Statements built at run time, for searches with many optional conditions. Values are always bound.

use std::ops::ControlFlow;

use chrono::NaiveDate;
use futures::TryStreamExt as _;
use sqlx::{AssertSqlSafe, FromRow};
use towpath_domain::{Rejection, Timestamp};
use uuid::Uuid;

use crate::caseless;
use crate::error::Result;
use crate::tx::{Dialect, Tx};

/// A value to bind.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Text, also JSON.
    Text(String),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Real(f64),
    Uuid(Uuid),
    /// A UUID or nothing.
    MaybeUuid(Option<Uuid>),
    /// A point in time.
    Time(Timestamp),
    /// A point in time or nothing.
    MaybeTime(Option<Timestamp>),
    /// A UTC day.
    Date(NaiveDate),
    /// Text or nothing.
    MaybeText(Option<String>),
    /// Bytes or nothing.
    Bytes(Option<Vec<u8>>),
    /// A whole number of 32 bits.
    Int4(i32),
}

/// Binds every value; the query's type is one per database and kind.
macro_rules! bind_all {
    ($query:ident, $args:ident) => {{
        let mut query = $query;
        for arg in $args {
            query = match arg {
                Arg::Text(value) => query.bind(value),
                Arg::Int(value) => query.bind(value),
                Arg::Real(value) => query.bind(value),
                Arg::Uuid(value) => query.bind(value),
                Arg::MaybeUuid(value) => query.bind(value),
                Arg::Time(value) => query.bind(value),
                Arg::MaybeTime(value) => query.bind(value),
                Arg::Date(value) => query.bind(value),
                Arg::MaybeText(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
                Arg::Int4(value) => query.bind(value),
            };
        }
        query
    }};
}

/// Refuses a filter that [`Query::contains`] would refuse: for callers that hand it on to others.
pub fn check_filter(field: &str, filter: &serde_json::Value) -> Result<(), Rejection> {
    crate::containment::check(field, filter)
}

/// The brackets before and after each of this many conditions: joined by `AND` they form a balanced tree. A chain would
/// be as deep as it is long, and SQLite limits the depth of expressions to 1000.
pub(crate) fn brackets(conditions: usize) -> Vec<(usize, usize)> {
    let mut brackets = vec![(0, 0); conditions];
    let mut spans = vec![(0, conditions)];
    while let Some((from, to)) = spans.pop() {
        if to - from > 1 {
            brackets[from].0 += 1;
            brackets[to - 1].1 += 1;
            let middle = from + (to - from) / 2;
            spans.push((from, middle));
            spans.push((middle, to));
        }
    }
    brackets
}

/// A statement under construction. Text comes from this crate only.
pub struct Query {
    text: String,
    args: Vec<Arg>,
    dialect: Dialect,
    /// Worth a place among the prepared statements.
    kept: bool,
}

impl Query {
    /// Begins with `text`.
    pub fn new(tx: &Tx<'_>, text: &str) -> Self {
        Self {
            text: text.to_owned(),
            args: Vec::new(),
            dialect: tx.dialect(),
            kept: true,
        }
    }

    /// Which database it is for.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Adds a place for a value, and the value.
    pub fn bind(&mut self, arg: Arg) -> &mut Self {
        self.args.push(arg);
        let number = self.args.len();
        self.text.push('$');
        self.text.push_str(&number.to_string());
        self
    }

    /// Adds a limit.
    ///
    /// SQLite plans for the value of a bare LIMIT parameter, and prepares the statement again whenever it is bound,
    /// which doubles the cost of a claim. For a sum it does not.
    pub fn limit(&mut self, rows: i64) -> &mut Self {
        self.push(" LIMIT ").bind(Arg::Int(rows)).push(" + 0")
    }

    /// Adds the most rows there may be, and how many are passed over before them.
    pub fn page(&mut self, rows: i64, skipped: i64) -> &mut Self {
        self.limit(rows).push(" OFFSET ").bind(Arg::Int(skipped))
    }

    /// Adds `expression IN (values)`; never true when there are none.
    pub fn any_of(&mut self, expression: &str, values: impl IntoIterator<Item = Arg>) -> &mut Self {
        self.push(expression).push(" IN (");
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            self.bind(value);
        }
        if self.text.ends_with('(') {
            self.push("NULL");
        }
        self.push(")")
    }

    /// Adds ` IN …` for any number of ids with a constant text, so that it is prepared once.
    pub fn among(&mut self, ids: impl IntoIterator<Item = Uuid>) -> &mut Self {
        let ids: Vec<String> = ids.into_iter().map(|id| format!("\"{}\"", id.simple())).collect();
        let ids = Arg::Text(format!("[{}]", ids.join(",")));
        match self.dialect {
            Dialect::Sqlite => self
                .push(" IN (SELECT unhex(value) FROM json_each(")
                .bind(ids)
                .push("))"),
            // An array, because plans for joins read the table.
            Dialect::Postgres => self
                .push(" = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text(")
                .bind(ids)
                .push("::text::json)))"),
        }
    }

    /// Adds `(value, …), …`, the rows of an INSERT.
    pub fn rows(&mut self, rows: impl IntoIterator<Item = impl IntoIterator<Item = Arg>>) -> &mut Self {
        // Every number of rows is a text of its own.
        self.kept = false;
        for (row, values) in rows.into_iter().enumerate() {
            self.push(if row == 0 { "(" } else { ", (" });
            for (column, value) in values.into_iter().enumerate() {
                if column > 0 {
                    self.push(", ");
                }
                self.bind(value);
            }
            self.push(")");
        }
        self
    }

    /// Adds the condition that `column`, JSON as text, contains `filter`: see [`crate::containment`]. `field` is the
    /// name of the filter for messages.
    ///
    /// # Errors
    /// `Rejected` for a filter that is too large.
    pub fn contains(&mut self, column: &str, field: &str, filter: &serde_json::Value) -> Result<&mut Self> {
        crate::containment::push(self, column, field, filter)?;
        Ok(self)
    }

    /// As [`Self::contains`], for a filter whose members `$and` and `$or` are lists of such filters.
    ///
    /// # Errors
    /// `Rejected` for a filter that is too large, and for lists of something other than filters.
    pub fn matches(&mut self, column: &str, field: &str, filter: &serde_json::Value) -> Result<&mut Self> {
        let serde_json::Value::Object(members) = filter else {
            return self.contains(column, field, filter);
        };
        if members.keys().any(|key| key.starts_with('$')) {
            // Every combination is a text of its own.
            self.kept = false;
        }
        crate::containment::push_combined(self, column, field, members)?;
        Ok(self)
    }

    /// Adds what holds when `column` has `part` in it, case-insensitive: see [`crate::caseless`].
    pub fn has_part(&mut self, column: &str, part: &str) -> &mut Self {
        let (operator, pattern) = (caseless::operator(self.dialect), caseless::pattern(self.dialect, part));
        self.push(column).push(operator).bind(Arg::Text(pattern))
    }

    /// Runs it and reads all rows.
    pub async fn fetch_all<T>(self, tx: &mut Tx<'_>) -> Result<Vec<T>>
    where
        T: for<'r> FromRow<'r, sqlx::sqlite::SqliteRow> + for<'r> FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        let Self { text, args, kept, .. } = self;
        Ok(on!(tx, |conn| {
            let query = sqlx::query_as(AssertSqlSafe(text)).persistent(kept);
            bind_all!(query, args).fetch_all(conn).await
        })?)
    }

    /// Streams the rows to `take` until it breaks. They are never in memory together.
    pub async fn each<T>(self, tx: &mut Tx<'_>, mut take: impl FnMut(T) -> ControlFlow<()>) -> Result<()>
    where
        T: for<'r> FromRow<'r, sqlx::sqlite::SqliteRow> + for<'r> FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        let Self { text, args, kept, .. } = self;
        on!(tx, |conn| {
            let query = sqlx::query_as(AssertSqlSafe(text)).persistent(kept);
            let mut rows = bind_all!(query, args).fetch(conn);
            while let Some(row) = rows.try_next().await? {
                if take(row).is_break() {
                    break;
                }
            }
        });
        Ok(())
    }

    /// Runs it and returns how many rows it changed.
    pub async fn execute(self, tx: &mut Tx<'_>) -> Result<u64> {
        let Self { text, args, kept, .. } = self;
        Ok(on!(tx, |conn| {
            let query = sqlx::query(AssertSqlSafe(text)).persistent(kept);
            bind_all!(query, args)
                .execute(conn)
                .await
                .map(|done| done.rows_affected())
        })?)
    }

    /// Runs a statement that answers one number.
    pub async fn count(self, tx: &mut Tx<'_>) -> Result<i64> {
        let rows: Vec<(i64,)> = self.fetch_all(tx).await?;
        Ok(rows.first().map_or(0, |row| row.0))
    }
}
