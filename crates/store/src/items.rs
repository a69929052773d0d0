//! The long-term store of the agent server: JSON objects under a namespace and a key.
//!
//! An index of PostgreSQL takes 2704 bytes of a row. Where a namespace and a key are longer than that allows, the
//! columns that are found by index have their beginnings and a hash of both, and the texts themselves stand beside
//! them:
//!
//! ```text
//! namespace        key                whole_namespace   whole_key
//! users.ann        mood
//! users.…..<hash>  the first of it…   users.…           …
//! ```
//! No label is empty, so two dots in a row mark a name that was cut.

mod filter;
mod names;
mod namespaces;

use std::borrow::Cow;
use std::ops::ControlFlow;

use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::{AssertSqlSafe, FromRow};
use towpath_domain::agent::namespace::{Namespace, split};
use towpath_domain::{TenantId, Timestamp};

use self::names::{IndexedName, UNCUT};
use crate::item_vectors::ItemVector;
use crate::query::{Arg, Query};
use crate::{Result, Tx, bulk};

pub use self::namespaces::namespaces;

/// The columns of an item.
const READ: &str = "SELECT coalesce(whole_namespace, namespace) AS namespace, coalesce(whole_key, key) AS key, value,
                           ttl_minutes, expires_at, created_at, updated_at FROM store_item";

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
    /// When it expires.
    pub expires_at: Option<Timestamp>,
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

    /// Its namespace and key as indexes have them: cut if they are too long.
    #[must_use]
    pub fn indexed_name(&self) -> (String, String) {
        let names = IndexedName::of(&self.namespace, &self.key);
        (names.namespace.into_owned(), names.key.into_owned())
    }
}

/// Namespace and key of an item as indexes have them: cut if they are too long.
pub(crate) fn indexed(namespace: &Namespace, key: &str) -> (String, String) {
    let dotted = namespace.dotted();
    let names = IndexedName::of(&dotted, key);
    (names.namespace.into_owned(), names.key.into_owned())
}

/// When something that lives `minutes` from `now` ends.
fn end(now: Timestamp, minutes: Option<f64>) -> Option<Timestamp> {
    let minutes = minutes.filter(|minutes| minutes.is_finite() && *minutes > 0.0)?;
    // A year of the clock's range is out of anyone's reach.
    let span = std::time::Duration::try_from_secs_f64((minutes * 60.0).min(1e11)).ok()?;
    Some(now.plus(span))
}

/// Writes an item, replacing the one that is there. `index` are the paths to what is embedded, none for nothing; by
/// default those of the setting.
pub async fn put(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    namespace: &Namespace,
    key: &str,
    value: &str,
    ttl_minutes: Option<f64>,
    index: Option<&[String]>,
) -> Result<()> {
    let index = index.map(|paths| Value::from(paths.to_vec()).to_string());
    let now = tx.now();
    let dotted = namespace.dotted();
    let names = IndexedName::of(&dotted, key);
    on!(tx, |conn| sqlx::query(
        "INSERT INTO store_item (tenant_id, namespace, key, value, ttl_minutes, expires_at, created_at, updated_at,
                                 whole_namespace, whole_key, index_paths)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, $10)
         ON CONFLICT (tenant_id, namespace, key) DO UPDATE
         SET value = excluded.value, ttl_minutes = excluded.ttl_minutes, expires_at = excluded.expires_at,
             index_paths = excluded.index_paths,
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
    .bind(index)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Reads an item that has not expired.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
    if key.contains('\0') {
        return Ok(None); // PostgreSQL refuses the parameter itself.
    }
    let now = tx.now();
    let dotted = namespace.dotted();
    let names = IndexedName::of(&dotted, key);
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

/// An item, named as it is found by index.
#[derive(Serialize)]
struct FoundItem<'a>(Cow<'a, str>, Cow<'a, str>);

/// Restarts the time to live of items, with its current value: they may have been written since they were read. On
/// PostgreSQL a row that is being written is skipped, so that nothing waits here.
pub async fn refresh(tx: &mut Tx<'_>, tenant: TenantId, items: &[&Item]) -> Result<()> {
    let now = tx.now();
    // The longest span is that of `end`.
    let text = sql!(tx,
        sqlite: "UPDATE store_item
                 SET expires_at = max(expires_at, $3 + CAST(min(ttl_minutes, 1666666666) * 60000000 AS INTEGER))
                 WHERE tenant_id = $1 AND (namespace, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($2))
                 AND expires_at IS NOT NULL AND ttl_minutes IS NOT NULL",
        postgres: "UPDATE store_item
                   SET expires_at = greatest(expires_at, $3 + least(ttl_minutes, 1666666666) * interval '1 minute')
                   WHERE ctid = ANY (ARRAY (
                       SELECT found.ctid FROM json_array_elements($2::json) AS read, LATERAL (
                           SELECT i.ctid FROM store_item AS i WHERE i.tenant_id = $1 AND i.namespace = read ->> 0
                           AND i.key = read ->> 1 AND i.expires_at IS NOT NULL
                           LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS found))");
    let mortal = items.iter().filter(|item| item.expires_at.is_some()).map(|item| {
        let IndexedName { namespace, key, .. } = IndexedName::of(&item.namespace, &item.key);
        FoundItem(namespace, key)
    });
    for list in bulk::lists(mortal.collect()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(list)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Removes an item, if it is there.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, namespace: &Namespace, key: &str) -> Result<()> {
    let dotted = namespace.dotted();
    let names = IndexedName::of(&dotted, key);
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
/// `Rejected` for an unknown operator or a filter that is too large.
pub async fn search(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    prefix: &Namespace,
    filter: &Map<String, Value>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Item>> {
    let mut query = alive(tx, READ, tenant, prefix.labels());
    filter::push(&mut query, filter)?;
    query
        .push(" ORDER BY updated_at DESC, namespace, key")
        .page(limit, offset);
    query.fetch_all(tx).await
}

/// Those of the named items that are at `prefix` or below it and whose value matches `filter`, in any order. The names
/// are as [`Item::indexed_name`] has them.
///
/// # Errors
/// `Rejected` for an unknown operator or a filter that is too large.
pub async fn search_among(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    prefix: &Namespace,
    filter: &Map<String, Value>,
    names: &[(String, String)],
) -> Result<Vec<Item>> {
    let mut found = Vec::new();
    for list in bulk::lists(names.iter().collect()) {
        let mut query = alive(tx, READ, tenant, prefix.labels());
        filter::push(&mut query, filter)?;
        // `$1` is the tenant.
        let (before, after) = sql!(tx,
            sqlite: (" AND (namespace, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(", "))"),
            postgres: (" AND ctid = ANY (ARRAY (SELECT found.ctid FROM json_array_elements(",
                "::text::json) AS read, LATERAL (SELECT i.ctid FROM store_item AS i WHERE i.tenant_id = $1 \
                 AND i.namespace = read ->> 0 AND i.key = read ->> 1 LIMIT 1) AS found))"));
        query.push(before).bind(Arg::Text(list)).push(after);
        found.extend(query.fetch_all::<Item>(tx).await?);
    }
    Ok(found)
}

/// Items of one statement of [`each_vector`]: statements have a time limit.
const VECTOR_PAGE: i64 = 5000;

/// Reads the vectors of a space that belong to items at `prefix` and below it whose value matches `filter`.
///
/// # Errors
/// `Rejected` for an unknown operator or a filter that is too large.
pub async fn each_vector(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    prefix: &Namespace,
    filter: &Map<String, Value>,
    space: i64,
    mut take: impl FnMut(ItemVector),
) -> Result<()> {
    let text = "SELECT found.n, found.k, v.vector FROM (SELECT namespace AS n, key AS k FROM store_item";
    let mut last = (String::new(), String::new());
    loop {
        let mut query = alive(tx, text, tenant, prefix.labels());
        filter::push(&mut query, filter)?;
        query
            .push(" AND (namespace, key) > (")
            .bind(Arg::Text(last.0.clone()))
            .push(", ")
            .bind(Arg::Text(last.1.clone()))
            .push(") ORDER BY namespace, key")
            .limit(VECTOR_PAGE)
            .push(") AS found LEFT JOIN item_vector AS v ON v.tenant_id = $1 AND v.namespace = found.n AND v.key = found.k")
            .push(" AND v.space = ")
            .bind(Arg::Int(space))
            .push(" ORDER BY found.n, found.k");
        let mut items = 0;
        query
            .each(tx, |(namespace, key, vector): (String, String, Option<Vec<u8>>)| {
                if (&namespace, &key) != (&last.0, &last.1) {
                    last = (namespace.clone(), key.clone());
                    items += 1;
                }
                if let Some(vector) = vector {
                    take(ItemVector { namespace, key, vector });
                }
                ControlFlow::Continue(())
            })
            .await?;
        if items < VECTOR_PAGE {
            return Ok(());
        }
    }
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
        // The range below the prefix: `/` follows `.`. On PostgreSQL text compares by locale, so the bytes are
        // compared. A cut namespace keeps its beginning and continues with dots.
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
