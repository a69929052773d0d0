//! Vectors of items, and what is still to be embedded.
//!
//! ```text
//! item_index      one row for each workspace with a setting: its embedder, its space, the walk after a change
//! item_embedding  items to embed; a put adds a row, and writing the vectors removes it
//! item_vector     the vectors, numbered in the order in which they were written
//! ```
//! One job of a workspace writes vectors, and each batch locks the row of `item_index`: whoever has read up to a number
//! has everything that was written before it.

pub mod pgvector;

use std::ops::ControlFlow;

use sqlx::FromRow;
use towpath_domain::agent::namespace::Namespace;
use towpath_domain::{JobId, TenantId, Timestamp};

use crate::items::indexed;
use crate::query::{Arg, Query};
use crate::{Result, Tx, bulk};

/// Vectors of one INSERT. A row has seven values, and SQLite takes 32,766 in a statement.
const ROWS: usize = 500;
/// How far apart the clocks of two machines may be: what is put is due at once for either.
const SKEW: std::time::Duration = std::time::Duration::from_secs(60);

/// The setting by which the items of a workspace are embedded.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct ItemIndex {
    /// Vectors of different spaces cannot be compared.
    pub space: i64,
    /// JSON; empty once the setting is gone, until the vectors are.
    pub embedder: String,
    /// A JSON list of paths.
    pub fields: String,
    /// Whether items are still being queued after a change of the setting.
    pub walking: bool,
    /// The highest number of a vector.
    pub last_seq: i64,
    /// The job that embeds.
    pub job_id: Option<JobId>,
}

/// An item to embed. Namespace and key are as indexes have them.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct PendingItem {
    pub namespace: String,
    pub key: String,
    /// A JSON object.
    pub value: String,
    /// A JSON list of paths; by default those of the setting.
    pub index_paths: Option<String>,
    /// Attempts that failed because of this item.
    pub attempts: i64,
}

/// A vector of an item. Namespace and key are as indexes have them.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct ItemVector {
    pub namespace: String,
    pub key: String,
    /// 32-bit floats, little-endian.
    pub vector: Vec<u8>,
}

/// A vector with its number.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct NumberedVector {
    pub namespace: String,
    pub key: String,
    /// Counts the vectors of an item from 0.
    pub part: i64,
    pub seq: i64,
    /// 32-bit floats, little-endian.
    pub vector: Vec<u8>,
}

/// An item and its new vectors.
#[derive(Clone, Debug)]
pub struct EmbeddedItem {
    /// As it was when it was embedded.
    pub item: PendingItem,
    /// 32-bit floats, little-endian.
    pub vectors: Vec<Vec<u8>>,
}

/// What `towpath doctor` reports about a workspace.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct IndexSummary {
    pub tenant_id: TenantId,
    /// JSON; empty once the setting is gone.
    pub embedder: String,
    pub walking: bool,
    /// Items to embed, up to 10,000.
    pub waiting: i64,
    /// Those of them that failed before.
    pub failing: i64,
}

/// The setting of a workspace.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<ItemIndex>> {
    let text = "SELECT space, embedder, fields, walking, last_seq, job_id FROM item_index WHERE tenant_id = $1";
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .fetch_optional(conn)
        .await)?)
}

/// Every workspace with a setting.
pub async fn summaries(tx: &mut Tx<'_>) -> Result<Vec<IndexSummary>> {
    let text = "SELECT x.tenant_id, x.embedder, x.walking,
                       (SELECT count(*) FROM (SELECT e.key FROM item_embedding e WHERE e.tenant_id = x.tenant_id
                                              LIMIT 10000) AS w) AS waiting,
                       (SELECT count(*) FROM (SELECT e.attempts FROM item_embedding e WHERE e.tenant_id = x.tenant_id
                                              LIMIT 10000) AS f WHERE f.attempts > 0) AS failing
                FROM item_index x ORDER BY x.tenant_id LIMIT 100";
    Ok(on!(tx, |conn| sqlx::query_as(text).fetch_all(conn).await)?)
}

/// Records a setting. Items are queued again if it differs from the one before. Returns whether it does.
pub async fn configure(tx: &mut Tx<'_>, tenant: TenantId, embedder: &str, fields: &str) -> Result<bool> {
    let changed = on!(tx, |conn| sqlx::query(
        "INSERT INTO item_index (tenant_id, space, embedder, fields, walking, walk_namespace, walk_key, last_seq)
         VALUES ($1, 1, $2, $3, TRUE, '', '', 0)
         ON CONFLICT (tenant_id) DO UPDATE
         SET space = CASE WHEN item_index.embedder = excluded.embedder THEN item_index.space
                          ELSE item_index.space + 1 END,
             embedder = excluded.embedder, fields = excluded.fields, walking = TRUE, walk_namespace = '', walk_key = ''
         WHERE item_index.embedder <> excluded.embedder OR item_index.fields <> excluded.fields",
    )
    .bind(tenant)
    .bind(embedder)
    .bind(fields)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed > 0)
}

/// Records that a workspace has no setting any more. Returns whether it had one.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId) -> Result<bool> {
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE item_index SET embedder = '', fields = '', walking = FALSE WHERE tenant_id = $1 AND embedder <> ''"
    )
    .bind(tenant)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed > 0)
}

/// Names the job that embeds, unless there is one. Returns whether there was none.
pub async fn set_job(tx: &mut Tx<'_>, tenant: TenantId, job: JobId) -> Result<bool> {
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE item_index SET job_id = $2 WHERE tenant_id = $1 AND job_id IS NULL"
    )
    .bind(tenant)
    .bind(job)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed > 0)
}

/// The job does not embed any more.
pub async fn clear_job(tx: &mut Tx<'_>, tenant: TenantId, job: JobId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE item_index SET job_id = NULL WHERE tenant_id = $1 AND job_id = $2"
    )
    .bind(tenant)
    .bind(job)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The job does not embed any more, if it has nothing left to do. Returns whether that is so.
pub async fn release_job(tx: &mut Tx<'_>, tenant: TenantId, job: JobId) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE item_index SET job_id = NULL
         WHERE tenant_id = $1 AND job_id = $2 AND embedder <> '' AND NOT walking
         AND NOT EXISTS (SELECT 1 FROM item_embedding e WHERE e.tenant_id = $1 AND e.due_at <= $3)",
    )
    .bind(tenant)
    .bind(job)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed > 0)
}

/// Whether items wait to be embedded.
pub async fn has_pending(tx: &mut Tx<'_>, tenant: TenantId) -> Result<bool> {
    let text = "SELECT attempts FROM item_embedding WHERE tenant_id = $1 LIMIT 1";
    let found: Option<(i64,)> = on!(tx, |conn| sqlx::query_as(text).bind(tenant).fetch_optional(conn).await)?;
    Ok(found.is_some())
}

/// Whether an item is due to be embedded.
pub async fn has_due(tx: &mut Tx<'_>, tenant: TenantId) -> Result<bool> {
    let now = tx.now();
    let text = "SELECT attempts FROM item_embedding WHERE tenant_id = $1 AND due_at <= $2 LIMIT 1";
    let found: Option<(i64,)> = on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(now)
        .fetch_optional(conn)
        .await)?;
    Ok(found.is_some())
}

/// Queues an item that was written. Its old vectors stay until the new ones are there.
pub async fn enqueue(tx: &mut Tx<'_>, tenant: TenantId, namespace: &Namespace, key: &str) -> Result<()> {
    let due = tx.now().minus(SKEW);
    let (namespace, key) = indexed(namespace, key);
    on!(tx, |conn| sqlx::query(
        "INSERT INTO item_embedding (tenant_id, namespace, key, due_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (tenant_id, namespace, key) DO UPDATE SET attempts = 0, due_at = excluded.due_at",
    )
    .bind(tenant)
    .bind(namespace)
    .bind(key)
    .bind(due)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Removes the vectors of an item of which nothing is embedded.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, namespace: &Namespace, key: &str) -> Result<()> {
    let (namespace, key) = indexed(namespace, key);
    for text in [
        "DELETE FROM item_embedding WHERE tenant_id = $1 AND namespace = $2 AND key = $3",
        "DELETE FROM item_vector WHERE tenant_id = $1 AND namespace = $2 AND key = $3",
    ] {
        on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(&namespace)
            .bind(&key)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Queues the next `limit` items after a change of the setting.
pub async fn walk(tx: &mut Tx<'_>, tenant: TenantId, limit: i64) -> Result<()> {
    let text = "SELECT walk_namespace, walk_key FROM item_index WHERE tenant_id = $1 AND walking";
    let from: Option<(String, String)> = on!(tx, |conn| sqlx::query_as(text).bind(tenant).fetch_optional(conn).await)?;
    let Some(from) = from else { return Ok(()) };
    let text = "SELECT namespace, key, index_paths FROM store_item
                WHERE tenant_id = $1 AND (namespace, key) > ($2, $3) ORDER BY namespace, key LIMIT $4 + 0";
    let found: Vec<(String, String, Option<String>)> = on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(&from.0)
        .bind(&from.1)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let is_last = i64::try_from(found.len()).unwrap_or(i64::MAX) < limit;
    let last = found.last().map(|(namespace, key, _)| (namespace.clone(), key.clone()));
    let (namespace, key) = last.unwrap_or_else(|| from.clone());
    let embedded = found
        .iter()
        .filter(|(_, _, paths)| paths.as_deref() != Some("[]"))
        .map(|(namespace, key, _)| (namespace, key));
    let due = tx.now();
    // On PostgreSQL an item may be deleted meanwhile.
    let text = sql!(tx,
        sqlite: "INSERT INTO item_embedding (tenant_id, namespace, key, due_at)
                 SELECT $1, value ->> 0, value ->> 1, $3 FROM json_each($2) WHERE TRUE
                 ON CONFLICT (tenant_id, namespace, key) DO UPDATE SET attempts = 0, due_at = excluded.due_at",
        postgres: "INSERT INTO item_embedding (tenant_id, namespace, key, due_at)
                   SELECT $1, found.namespace, found.key, $3 FROM json_array_elements($2::json) AS read, LATERAL (
                       SELECT i.namespace, i.key FROM store_item AS i WHERE i.tenant_id = $1
                       AND i.namespace = read ->> 0 AND i.key = read ->> 1 LIMIT 1 FOR KEY SHARE) AS found
                   ON CONFLICT (tenant_id, namespace, key) DO UPDATE SET attempts = 0, due_at = excluded.due_at");
    for list in bulk::lists(embedded.collect()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(list)
            .bind(due)
            .execute(conn)
            .await
            .map(drop))?;
    }
    // Not if the setting was changed meanwhile.
    on!(tx, |conn| sqlx::query(
        "UPDATE item_index SET walking = $2, walk_namespace = $3, walk_key = $4
         WHERE tenant_id = $1 AND walking AND walk_namespace = $5 AND walk_key = $6",
    )
    .bind(tenant)
    .bind(!is_last)
    .bind(namespace)
    .bind(key)
    .bind(&from.0)
    .bind(&from.1)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The next items that are due, at most `limit` and about `bytes` of values, but at least one.
pub async fn pending(tx: &mut Tx<'_>, tenant: TenantId, limit: i64, bytes: usize) -> Result<Vec<PendingItem>> {
    let now = tx.now();
    let mut query = Query::new(
        tx,
        "SELECT e.namespace, e.key, i.value, i.index_paths, e.attempts FROM item_embedding e
         JOIN store_item i ON i.tenant_id = e.tenant_id AND i.namespace = e.namespace AND i.key = e.key
         WHERE e.tenant_id = ",
    );
    query
        .bind(Arg::Uuid(tenant.0))
        .push(" AND e.due_at <= ")
        .bind(Arg::Time(now))
        .push(" ORDER BY e.due_at")
        .limit(limit);
    let (mut found, mut read) = (Vec::new(), 0);
    query
        .each(tx, |item: PendingItem| {
            read += item.value.len();
            found.push(item);
            if read < bytes {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .await?;
    Ok(found)
}

/// Replaces the vectors of items that are still as they were when they were embedded; the others stay queued. Nothing is
/// written if the space is not the current one. Returns the number of items.
pub async fn save(tx: &mut Tx<'_>, tenant: TenantId, space: i64, embedded: &[EmbeddedItem]) -> Result<usize> {
    let count = embedded.iter().map(|item| item.vectors.len()).sum::<usize>();
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let text = "UPDATE item_index SET last_seq = last_seq + $3 WHERE tenant_id = $1 AND space = $2 RETURNING last_seq";
    let last: Option<(i64,)> = on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(space)
        .bind(count)
        .fetch_optional(conn)
        .await)?;
    let Some((last,)) = last else { return Ok(0) };
    let current = lock(tx, tenant, embedded).await?;
    let unchanged: Vec<&EmbeddedItem> = embedded
        .iter()
        .filter(|one| {
            current.iter().any(|now| {
                (&now.namespace, &now.key) == (&one.item.namespace, &one.item.key)
                    && now.value == one.item.value
                    && now.index_paths == one.item.index_paths
            })
        })
        .collect();
    delete_named(tx, tenant, ItemTable::Vectors, &unchanged).await?;
    let mut seq = last - count;
    let mut rows = Vec::new();
    for one in &unchanged {
        for (part, vector) in (0_i64..).zip(&one.vectors) {
            seq += 1;
            rows.push([
                Arg::Uuid(tenant.0),
                Arg::Text(one.item.namespace.clone()),
                Arg::Text(one.item.key.clone()),
                Arg::Int(part),
                Arg::Int(space),
                Arg::Int(seq),
                Arg::Bytes(Some(vector.clone())),
            ]);
        }
    }
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let mut query = Query::new(
            tx,
            "INSERT INTO item_vector (tenant_id, namespace, key, part, space, seq, vector) VALUES ",
        );
        query.rows(rows.by_ref().take(ROWS));
        query.execute(tx).await?;
    }
    delete_named(tx, tenant, ItemTable::Queue, &unchanged).await?;
    Ok(unchanged.len())
}

/// The queued items of these as they are now. On PostgreSQL they are locked; one that is being written is left out.
async fn lock(tx: &mut Tx<'_>, tenant: TenantId, embedded: &[EmbeddedItem]) -> Result<Vec<PendingItem>> {
    let text = sql!(tx,
        sqlite: "SELECT e.namespace, e.key, i.value, i.index_paths, e.attempts FROM item_embedding e
                 JOIN store_item i ON i.tenant_id = e.tenant_id AND i.namespace = e.namespace AND i.key = e.key
                 WHERE e.tenant_id = $1
                 AND (e.namespace, e.key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($2))",
        postgres: "SELECT found.namespace, found.key, found.value, found.index_paths, found.attempts
                   FROM json_array_elements($2::json) AS read, LATERAL (
                       SELECT e.namespace, e.key, i.value, i.index_paths, e.attempts FROM item_embedding e
                       JOIN store_item i ON i.tenant_id = e.tenant_id AND i.namespace = e.namespace AND i.key = e.key
                       WHERE e.tenant_id = $1 AND e.namespace = read ->> 0 AND e.key = read ->> 1
                       LIMIT 1 FOR KEY SHARE OF i SKIP LOCKED FOR UPDATE OF e SKIP LOCKED) AS found");
    let mut found: Vec<PendingItem> = Vec::with_capacity(embedded.len());
    for list in bulk::lists(
        embedded
            .iter()
            .map(|one| (&one.item.namespace, &one.item.key))
            .collect(),
    ) {
        let rows: Vec<PendingItem> = on!(tx, |conn| sqlx::query_as(text)
            .bind(tenant)
            .bind(list)
            .fetch_all(conn)
            .await)?;
        found.extend(rows);
    }
    Ok(found)
}

#[derive(Clone, Copy)]
enum ItemTable {
    Vectors,
    Queue,
}

async fn delete_named(tx: &mut Tx<'_>, tenant: TenantId, what: ItemTable, items: &[&EmbeddedItem]) -> Result<()> {
    let text = match what {
        ItemTable::Vectors => sql!(tx,
            sqlite: "DELETE FROM item_vector WHERE tenant_id = $1
                     AND (namespace, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($2))",
            postgres: "DELETE FROM item_vector WHERE ctid = ANY (ARRAY (
                           SELECT found.ctid FROM json_array_elements($2::json) AS read, LATERAL (
                               SELECT v.ctid FROM item_vector AS v WHERE v.tenant_id = $1
                               AND v.namespace = read ->> 0 AND v.key = read ->> 1 LIMIT 1000) AS found))"),
        ItemTable::Queue => sql!(tx,
            sqlite: "DELETE FROM item_embedding WHERE tenant_id = $1
                     AND (namespace, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($2))",
            postgres: "DELETE FROM item_embedding WHERE ctid = ANY (ARRAY (
                           SELECT found.ctid FROM json_array_elements($2::json) AS read, LATERAL (
                               SELECT e.ctid FROM item_embedding AS e WHERE e.tenant_id = $1
                               AND e.namespace = read ->> 0 AND e.key = read ->> 1 LIMIT 1) AS found))"),
    };
    for list in bulk::lists(items.iter().map(|one| (&one.item.namespace, &one.item.key)).collect()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(list)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Queues items again for `due` that could not be embedded.
pub async fn postpone(tx: &mut Tx<'_>, tenant: TenantId, items: &[PendingItem], due: Timestamp) -> Result<()> {
    let text = sql!(tx,
        sqlite: "UPDATE item_embedding SET attempts = attempts + 1, due_at = $3 WHERE tenant_id = $1
                 AND (namespace, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($2))",
        postgres: "UPDATE item_embedding SET attempts = attempts + 1, due_at = $3 WHERE ctid = ANY (ARRAY (
                       SELECT found.ctid FROM json_array_elements($2::json) AS read, LATERAL (
                           SELECT e.ctid FROM item_embedding AS e WHERE e.tenant_id = $1
                           AND e.namespace = read ->> 0 AND e.key = read ->> 1
                           LIMIT 1 FOR UPDATE SKIP LOCKED) AS found))");
    for list in bulk::lists(items.iter().map(|item| (&item.namespace, &item.key)).collect()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(list)
            .bind(due)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Reads the vectors of a space with numbers above `after`, in their order, at most `limit`.
pub async fn each_after(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    space: i64,
    after: i64,
    limit: i64,
    take: impl FnMut(NumberedVector) -> ControlFlow<()>,
) -> Result<()> {
    let mut query = Query::new(
        tx,
        "SELECT namespace, key, part, seq, vector FROM item_vector WHERE tenant_id = ",
    );
    query
        .bind(Arg::Uuid(tenant.0))
        .push(" AND space = ")
        .bind(Arg::Int(space))
        .push(" AND seq > ")
        .bind(Arg::Int(after))
        .push(" ORDER BY seq")
        .limit(limit);
    query.each(tx, take).await
}

/// The vectors that the named items have in a space, in any order.
pub async fn of_items(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    space: i64,
    names: &[(String, String)],
) -> Result<Vec<ItemVector>> {
    let text = sql!(tx,
        sqlite: "SELECT namespace, key, vector FROM item_vector WHERE tenant_id = $1 AND space = $3
                 AND (namespace, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($2))",
        postgres: "SELECT found.namespace, found.key, found.vector FROM json_array_elements($2::json) AS read, LATERAL (
                       SELECT v.namespace, v.key, v.vector FROM item_vector AS v WHERE v.tenant_id = $1 AND v.space = $3
                       AND v.namespace = read ->> 0 AND v.key = read ->> 1 LIMIT 1000) AS found");
    let mut found = Vec::new();
    for list in bulk::lists(names.iter().collect()) {
        let rows: Vec<ItemVector> = on!(tx, |conn| sqlx::query_as(text)
            .bind(tenant)
            .bind(list)
            .bind(space)
            .fetch_all(conn)
            .await)?;
        found.extend(rows);
    }
    Ok(found)
}

/// Removes vectors and queued items of a workspace without a setting, at most `limit` of each, and at last what is known
/// of the setting. Returns whether something is left.
pub async fn clear(tx: &mut Tx<'_>, tenant: TenantId, limit: i64) -> Result<bool> {
    let texts = sql!(tx,
        sqlite: ["DELETE FROM item_vector WHERE rowid IN (
                      SELECT rowid FROM item_vector WHERE tenant_id = $1 LIMIT $2 + 0)",
                 "DELETE FROM item_embedding WHERE rowid IN (
                      SELECT rowid FROM item_embedding WHERE tenant_id = $1 LIMIT $2 + 0)"],
        postgres: ["DELETE FROM item_vector WHERE ctid = ANY (ARRAY (
                        SELECT ctid FROM item_vector WHERE tenant_id = $1 LIMIT $2 + 0))",
                   "DELETE FROM item_embedding WHERE ctid = ANY (ARRAY (
                        SELECT ctid FROM item_embedding WHERE tenant_id = $1 LIMIT $2 + 0))"]);
    let mut gone = 0;
    for text in texts {
        gone += on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(limit)
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?;
    }
    if gone > 0 {
        return Ok(true);
    }
    on!(tx, |conn| sqlx::query(
        "DELETE FROM item_index WHERE tenant_id = $1 AND embedder = ''"
    )
    .bind(tenant)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(false)
}
