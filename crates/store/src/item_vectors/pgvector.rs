//! Vectors in an index of the extension pgvector, where an operator has installed it in the database.
//!
//! The tables are created on demand, one for each number of dimensions, and follow `item_vector`: a job copies what is
//! newer than the newest vector there. They can be dropped at any time.

use std::ops::ControlFlow;

use serde::Serialize;
use sqlx::AssertSqlSafe;
use towpath_domain::TenantId;

use super::NumberedVector;
use crate::query::{Arg, Query};
use crate::{Dialect, Result, Tx, bulk};

/// The maximum number of dimensions that the index takes.
pub const MAX_DIMS: usize = 2000;
/// The maximum number of names that [`nearest`] returns.
pub const MAX_NEAREST: usize = 200;

/// What is missing in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The extension is not installed, or does not take so many dimensions.
    Unavailable,
    Nothing,
    Vectors(Vec<NumberedVector>),
}

fn table(dims: usize) -> String {
    format!("item_vector_hnsw_{dims}")
}

/// Whether the extension is installed in this database.
pub async fn is_installed(tx: &mut Tx<'_>) -> Result<bool> {
    if tx.dialect() == Dialect::Sqlite {
        return Ok(false);
    }
    let text = "SELECT extname::text FROM pg_extension WHERE extname = 'vector'";
    let found: Option<(String,)> = on!(tx, |conn| sqlx::query_as(text).fetch_optional(conn).await)?;
    Ok(found.is_some())
}

/// The oldest vectors of a space that are missing in the index, at most `limit`.
pub async fn missing(tx: &mut Tx<'_>, tenant: TenantId, space: i64, dims: usize, limit: i64) -> Result<Missing> {
    if dims > MAX_DIMS || !is_installed(tx).await? {
        return Ok(Missing::Unavailable);
    }
    let after = newest(tx, tenant, space, dims).await?.unwrap_or_default();
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
    let mut found = Vec::new();
    query
        .each(tx, |vector: NumberedVector| {
            found.push(vector);
            ControlFlow::Continue(())
        })
        .await?;
    Ok(if found.is_empty() {
        Missing::Nothing
    } else {
        Missing::Vectors(found)
    })
}

/// The number of the newest vector in the index; `None` without a table.
async fn newest(tx: &mut Tx<'_>, tenant: TenantId, space: i64, dims: usize) -> Result<Option<i64>> {
    let table = table(dims);
    let there: (Option<String>,) = on!(tx, |conn| sqlx::query_as("SELECT to_regclass($1)::text")
        .bind(&table)
        .fetch_one(conn)
        .await)?;
    if there.0.is_none() {
        return Ok(None);
    }
    let text = format!("SELECT coalesce(max(seq), 0) FROM {table} WHERE tenant_id = $1 AND space = $2");
    let newest: (i64,) = on!(tx, |conn| sqlx::query_as(AssertSqlSafe(text))
        .bind(tenant)
        .bind(space)
        .fetch_one(conn)
        .await)?;
    Ok(Some(newest.0))
}

/// A row of the index, as JSON.
#[derive(Serialize)]
struct IndexedVector<'a>(&'a str, &'a str, i64, i64, String);

/// A vector as the extension reads it.
fn literal(numbers: impl Iterator<Item = f32>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    format!("[{}]", numbers.join(","))
}

/// Adds vectors to the index, and creates it first if there is none.
pub async fn add(tx: &mut Tx<'_>, tenant: TenantId, space: i64, dims: usize, vectors: &[NumberedVector]) -> Result<()> {
    let table = table(dims);
    if newest(tx, tenant, space, dims).await?.is_none() {
        let texts = [
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (
                     tenant_id uuid NOT NULL, namespace text NOT NULL, key text NOT NULL, part bigint NOT NULL,
                     space bigint NOT NULL, seq bigint NOT NULL, embedding vector({dims}) NOT NULL,
                     PRIMARY KEY (tenant_id, namespace, key, part),
                     FOREIGN KEY (tenant_id, namespace, key, part)
                         REFERENCES item_vector (tenant_id, namespace, key, part) ON DELETE CASCADE)"
            ),
            format!("CREATE INDEX IF NOT EXISTS {table}_listing ON {table} (tenant_id, space, seq)"),
            format!("CREATE INDEX IF NOT EXISTS {table}_nearest ON {table} USING hnsw (embedding vector_cosine_ops)"),
        ];
        for text in texts {
            on!(tx, |conn| sqlx::query(AssertSqlSafe(text))
                .execute(conn)
                .await
                .map(drop))?;
        }
    }
    let rows: Vec<IndexedVector<'_>> = vectors
        .iter()
        .map(|one| {
            let numbers = one.vector.chunks_exact(4);
            let numbers = numbers.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            IndexedVector(&one.namespace, &one.key, one.part, one.seq, literal(numbers))
        })
        .collect();
    // An item may be deleted meanwhile, and its vectors replaced.
    let text = format!(
        "INSERT INTO {table} (tenant_id, namespace, key, part, space, seq, embedding)
         SELECT $1, found.namespace, found.key, found.part, $3, found.seq, (read ->> 4)::vector
         FROM json_array_elements($2::text::json) AS read, LATERAL (
             SELECT v.namespace, v.key, v.part, v.seq FROM item_vector AS v
             WHERE v.tenant_id = $1 AND v.namespace = read ->> 0 AND v.key = read ->> 1
             AND v.part = (read ->> 2)::bigint AND v.seq = (read ->> 3)::bigint LIMIT 1 FOR KEY SHARE) AS found
         ON CONFLICT (tenant_id, namespace, key, part) DO UPDATE
         SET space = excluded.space, seq = excluded.seq, embedding = excluded.embedding"
    );
    for list in bulk::lists(rows) {
        let text = text.clone();
        on!(tx, |conn| sqlx::query(AssertSqlSafe(text))
            .bind(tenant)
            .bind(list)
            .bind(space)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Names of items near a vector, the nearest first, at most [`MAX_NEAREST`]; `None` if the index is not there or lacks
/// vectors.
pub async fn nearest(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    space: i64,
    query: &[f32],
) -> Result<Option<Vec<(String, String)>>> {
    let dims = query.len();
    if missing(tx, tenant, space, dims, 1).await? != Missing::Nothing {
        return Ok(None);
    }
    if newest(tx, tenant, space, dims).await?.is_none() {
        return Ok(Some(Vec::new()));
    }
    // For the connection: only searches of this index read it.
    let set: (String,) = on!(tx, |conn| sqlx::query_as(
        "SELECT set_config('hnsw.ef_search', $1, false)"
    )
    .bind(MAX_NEAREST.to_string())
    .fetch_one(conn)
    .await)?;
    tracing::trace!(ef_search = %set.0, "search in pgvector");
    let text = format!(
        "SELECT namespace, key FROM {} WHERE tenant_id = $1 AND space = $2 ORDER BY embedding <=> $3::text::vector
         LIMIT {MAX_NEAREST}",
        table(dims)
    );
    let found: Vec<(String, String)> = on!(tx, |conn| sqlx::query_as(AssertSqlSafe(text))
        .bind(tenant)
        .bind(space)
        .bind(literal(query.iter().copied()))
        .fetch_all(conn)
        .await)?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_written_as_the_extension_reads_them() {
        assert_eq!(literal([1.0, -0.5, 1e-7].into_iter()), "[1,-0.5,0.0000001]");
    }
}
