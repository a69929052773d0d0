//! The long-term store of the agent server: JSON objects under a namespace and a key.
//!
//! An index of PostgreSQL takes 2704 bytes of a row. Where a namespace and a key are longer than that allows, the columns
//! that are found by index have their beginnings and a hash of both, and the texts themselves stand beside them:
//!
//! ```text
//! namespace        key                whole_namespace   whole_key
//! users.ann        mood
//! users.…..<hash>  the first of it…   users.…           …
//! ```
//! No label is empty, so two dots in a row mark a name that was cut.

mod names;

use serde_json::{Map, Value};
use sqlx::{AssertSqlSafe, FromRow};
use towpath_domain::agent::namespace::{Namespace, split};
use towpath_domain::{Rejection, TenantId, Timestamp};

use self::names::{Names, UNCUT};
use crate::query::{Arg, Query};
use crate::tx::Dialect;
use crate::{Error, Result, Tx};

/// What is read of an item.
const READ: &str = "SELECT coalesce(whole_namespace, namespace) AS namespace, coalesce(whole_key, key) AS key, value,
                           ttl_minutes, expires_at, created_at, updated_at FROM store_item";

/// An item.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Item {
    /// Labels joined by dots.
    pub namespace: String,
    /// Its key there.
    pub key: String,
    /// A JSON object.
    pub value: String,
    /// Minutes it lives after it was written, or read where reading refreshes.
    pub ttl_minutes: Option<f64>,
    /// When it is gone.
    pub expires_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was written last.
    pub updated_at: Timestamp,
}

impl Item {
    /// The labels of its namespace.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        split(&self.namespace)
    }
}

/// When something that lives `minutes` from `now` ends.
fn end(now: Timestamp, minutes: Option<f64>) -> Option<Timestamp> {
    let minutes = minutes.filter(|minutes| minutes.is_finite() && *minutes > 0.0)?;
    // A year of the clock's range is out of anybody's reach.
    let span = std::time::Duration::try_from_secs_f64((minutes * 60.0).min(1e11)).ok()?;
    Some(now.plus(span))
}

/// Writes an item, replacing the one that is there.
///
/// # Errors
/// As every statement.
pub async fn put(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    namespace: &Namespace,
    key: &str,
    value: &str,
    ttl_minutes: Option<f64>,
) -> Result<()> {
    let now = tx.now();
    let dotted = namespace.dotted();
    let names = Names::of(&dotted, key);
    on!(tx, |conn| sqlx::query(
        "INSERT INTO store_item (tenant_id, namespace, key, value, ttl_minutes, expires_at, created_at, updated_at,
                                 whole_namespace, whole_key)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9)
         ON CONFLICT (tenant_id, namespace, key) DO UPDATE
         SET value = excluded.value, ttl_minutes = excluded.ttl_minutes, expires_at = excluded.expires_at,
             -- What had expired is a new item, though nobody has swept the old one yet.
             created_at = CASE WHEN store_item.expires_at <= excluded.updated_at THEN excluded.created_at
                               ELSE store_item.created_at END,
             updated_at = excluded.updated_at",
    )
    .bind(tenant)
    .bind(&names.namespace)
    .bind(&names.key)
    .bind(value)
    .bind(ttl_minutes)
    .bind(end(now, ttl_minutes))
    .bind(now)
    .bind(names.cut.then_some(&dotted))
    .bind(names.cut.then_some(key))
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Reads an item that has not expired.
///
/// # Errors
/// As every statement.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
    if key.contains('\0') {
        return Ok(None); // PostgreSQL refuses the parameter itself.
    }
    let now = tx.now();
    let dotted = namespace.dotted();
    let names = Names::of(&dotted, key);
    let text = format!(
        "{READ} WHERE tenant_id = $1 AND namespace = $2 AND key = $3 AND (expires_at IS NULL OR expires_at > $4)"
    );
    Ok(on!(tx, |conn| sqlx::query_as(AssertSqlSafe(text))
        .bind(tenant)
        .bind(&names.namespace)
        .bind(&names.key)
        .bind(now)
        .fetch_optional(conn)
        .await)?)
}

/// Lets items that have a time to live begin it anew.
///
/// # Errors
/// As every statement.
pub async fn refresh(tx: &mut Tx<'_>, tenant: TenantId, items: &[Item]) -> Result<()> {
    let now = tx.now();
    for item in items {
        let Some(end) = end(now, item.ttl_minutes) else {
            continue;
        };
        let names = Names::of(&item.namespace, &item.key);
        on!(tx, |conn| sqlx::query(
            "UPDATE store_item SET expires_at = $4
             WHERE tenant_id = $1 AND namespace = $2 AND key = $3 AND expires_at IS NOT NULL",
        )
        .bind(tenant)
        .bind(&names.namespace)
        .bind(&names.key)
        .bind(end)
        .execute(conn)
        .await
        .map(drop))?;
    }
    Ok(())
}

/// Removes an item, if it is there.
///
/// # Errors
/// As every statement.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, namespace: &Namespace, key: &str) -> Result<()> {
    let dotted = namespace.dotted();
    let names = Names::of(&dotted, key);
    on!(tx, |conn| sqlx::query(
        "DELETE FROM store_item WHERE tenant_id = $1 AND namespace = $2 AND key = $3"
    )
    .bind(tenant)
    .bind(&names.namespace)
    .bind(&names.key)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Items at `prefix` and below it whose value matches `filter`, last written first.
///
/// # Errors
/// As every statement; `Rejected` for an operator that is not known.
pub async fn search(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    prefix: &Namespace,
    filter: &Map<String, Value>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Item>> {
    let mut query = alive(tx, READ, tenant, prefix.labels());
    for (key, wanted) in filter {
        query.push(" AND ");
        let mut matcher = Matcher {
            query: &mut query,
            aliases: 0,
        };
        matcher.field(&Place::Column, key, wanted, key)?;
    }
    query
        .push(" ORDER BY updated_at DESC, namespace, key")
        .page(limit, offset);
    query.fetch_all(tx).await
}

/// Namespaces that hold something: below `prefix`, ending in `suffix` (a `*` in either stands for any one label), cut
/// to `max_depth` labels, sorted.
///
/// # Errors
/// As every statement.
pub async fn namespaces(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    prefix: &Namespace,
    suffix: &Namespace,
    max_depth: Option<usize>,
    limit: usize,
    offset: usize,
) -> Result<Vec<Vec<String>>> {
    let known: Vec<String> = prefix
        .labels()
        .iter()
        .take_while(|label| *label != "*")
        .cloned()
        .collect();
    let text = "SELECT DISTINCT coalesce(whole_namespace, namespace) AS namespace FROM store_item";
    let mut query = alive(tx, text, tenant, &known);
    query.push(" ORDER BY namespace");
    let rows: Vec<(String,)> = query.fetch_all(tx).await?;
    let mut found: Vec<Vec<String>> = rows
        .iter()
        .map(|(namespace,)| split(namespace))
        .filter(|labels| matches(labels.iter(), prefix.labels().iter()))
        .filter(|labels| matches(labels.iter().rev(), suffix.labels().iter().rev()))
        .map(|mut labels| {
            labels.truncate(max_depth.unwrap_or(usize::MAX));
            labels
        })
        .collect();
    found.sort();
    found.dedup();
    Ok(found.into_iter().skip(offset).take(limit).collect())
}

fn matches<'a>(labels: impl Iterator<Item = &'a String>, wanted: impl Iterator<Item = &'a String>) -> bool {
    let mut labels = labels;
    let mut wanted = wanted;
    wanted.all(|want| labels.next().is_some_and(|label| want == "*" || want == label))
}

/// A statement about items at `prefix` and below it that have not expired.
fn alive(tx: &Tx<'_>, text: &'static str, tenant: TenantId, prefix: &[String]) -> Query {
    let now = tx.now();
    let mut query = Query::new(tx, text);
    query.push(" WHERE tenant_id = ").bind(Arg::Uuid(tenant.0));
    query
        .push(" AND (expires_at IS NULL OR expires_at > ")
        .bind(Arg::Time(now));
    query.push(")");
    if !prefix.is_empty() {
        let prefix = prefix.join(".");
        // The range below it: `/` follows `.`. On PostgreSQL texts compare by their locale, so it asks for the bytes.
        // What was cut begins as it did before, and goes on with dots.
        let (column, bytes) = if prefix.len() < UNCUT {
            let bytes = sql!(tx, sqlite: "namespace", postgres: "namespace COLLATE \"C\"");
            ("namespace", bytes)
        } else {
            let bytes = sql!(tx, sqlite: "coalesce(whole_namespace, namespace)",
                postgres: "coalesce(whole_namespace, namespace) COLLATE \"C\"");
            ("coalesce(whole_namespace, namespace)", bytes)
        };
        query
            .push(" AND (")
            .push(column)
            .push(" = ")
            .bind(Arg::Text(prefix.clone()));
        query
            .push(" OR (")
            .push(bytes)
            .push(" > ")
            .bind(Arg::Text(format!("{prefix}.")));
        query
            .push(" AND ")
            .push(bytes)
            .push(" < ")
            .bind(Arg::Text(format!("{prefix}/")));
        query.push("))");
    }
    query
}

/// Removes items that have expired, at most `limit`. Returns how many.
///
/// # Errors
/// As every statement.
pub async fn sweep(tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    let now = tx.now();
    // The rows' places, because SQLite's DELETE has no LIMIT of its own.
    let text = sql!(tx,
        sqlite: "DELETE FROM store_item WHERE rowid IN (
                     SELECT rowid FROM store_item WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0)",
        postgres: "DELETE FROM store_item WHERE ctid IN (
                     SELECT ctid FROM store_item WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0
                     FOR UPDATE SKIP LOCKED)");
    Ok(on!(tx, |conn| sqlx::query(text)
        .bind(now)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

/// Writes the conditions of a filter: equality by key, objects recursively, or operators (`$eq $ne $gt $gte $lt
/// $lte`), which compare values of one kind only. Keys and values are always bound, so whatever they hold needs no
/// quoting; on SQLite members are found through `json_each`, because its paths cannot name every key.
struct Matcher<'q> {
    query: &'q mut Query,
    aliases: usize,
}

/// Where an object is.
#[derive(Clone)]
enum Place {
    /// The item's value.
    Column,
    /// SQLite: a row of `json_each`.
    Row(String),
    /// PostgreSQL: members from the value down.
    Path(Vec<String>),
}

impl Matcher<'_> {
    /// `field` is how the caller knows the member.
    fn field(&mut self, of: &Place, key: &str, wanted: &Value, field: &str) -> Result<()> {
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
                Place::Row(row)
            }
            Dialect::Postgres => {
                let member = below(of, key);
                self.query.push("coalesce(jsonb_typeof(");
                self.push_path(&member);
                self.query.push(") = 'object'");
                Place::Path(member)
            }
        };
        for (name, wanted) in members {
            self.query.push(" AND ");
            self.field(&place, name, wanted, &format!("{field}.{name}"))?;
        }
        self.query.push(if matches!(place, Place::Row(_)) {
            ")"
        } else {
            ", false)"
        });
        Ok(())
    }

    fn compare(&mut self, of: &Place, key: &str, operator: &str, wanted: &Value, field: &str) -> Result<()> {
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

    fn push_path(&mut self, path: &[String]) {
        self.query.push("(value::jsonb");
        for key in path {
            self.query.push(" -> ").bind(Arg::Text(key.clone()));
            self.query.push("::text");
        }
        self.query.push(")");
    }

    fn compare_sqlite(&mut self, of: &Place, key: &str, sign: &str, wanted: &Value) {
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

    /// SQLite: opens `EXISTS (` over the member `key` and answers its alias; the caller adds a condition and the
    /// closing bracket.
    fn open_row(&mut self, of: &Place, key: &str) -> String {
        self.aliases += 1;
        let row = format!("m{}", self.aliases);
        self.query.push("EXISTS (SELECT 1 FROM json_each(");
        match of {
            Place::Row(outer) => self.query.push(outer).push(".value"),
            Place::Column | Place::Path(_) => self.query.push("store_item.value"),
        };
        self.query.push(") AS ").push(&row).push(" WHERE ");
        self.query.push(&row).push(".key = ").bind(Arg::Text(key.to_owned()));
        self.query.push(" AND ");
        row
    }
}

fn below(of: &Place, key: &str) -> Vec<String> {
    let mut path = match of {
        Place::Path(path) => path.clone(),
        Place::Column | Place::Row(_) => Vec::new(),
    };
    path.push(key.to_owned());
    path
}
