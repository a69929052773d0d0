//! Reading checkpoints.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use towpath_domain::{RunId, ThreadId};

use super::{Blob, Checkpoint, Write};
use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::{Conn, Dialect, Tx};

#[derive(Clone, Copy, Debug)]
pub struct ThreadNamespace<'a> {
    pub thread: ThreadId,
    /// The namespace.
    pub ns: &'a str,
}

/// Blobs by channel and version.
pub type Blobs = HashMap<(String, String), Blob>;

const SQLITE: &str = "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata
                      FROM checkpoints WHERE thread_id = ";
// Handed over as text: what it holds is parsed once, above.
const POSTGRES: &str = "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint::text AS checkpoint,
                        metadata::text AS metadata FROM checkpoints WHERE thread_id = ";

fn select(tx: &Tx<'_>, place: ThreadNamespace<'_>) -> Query {
    let text = match tx.dialect() {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    };
    let mut query = Query::new(tx, text);
    query.bind(Arg::Text(place.thread.to_string()));
    query.push(" AND checkpoint_ns = ").bind(Arg::Text(place.ns.to_owned()));
    query
}

/// The checkpoint of this id.
pub async fn get(tx: &mut Tx<'_>, place: ThreadNamespace<'_>, id: &str) -> Result<Option<Checkpoint>> {
    let mut query = select(tx, place);
    query.push(" AND checkpoint_id = ").bind(Arg::Text(id.to_owned()));
    Ok(query.fetch_all(tx).await?.pop())
}

/// The latest checkpoint.
pub async fn latest(tx: &mut Tx<'_>, place: ThreadNamespace<'_>) -> Result<Option<Checkpoint>> {
    Ok(list(tx, place, None, None, 1).await?.pop())
}

/// Checkpoints, newest first: before an id, with metadata that contain an object.
pub async fn list(
    tx: &mut Tx<'_>,
    place: ThreadNamespace<'_>,
    before: Option<&str>,
    metadata: Option<&Value>,
    limit: i64,
) -> Result<Vec<Checkpoint>> {
    let mut query = select(tx, place);
    if let Some(before) = before {
        query.push(" AND checkpoint_id < ").bind(Arg::Text(before.to_owned()));
    }
    if let Some(metadata) = metadata.filter(|filter| filter.as_object().is_some_and(|filter| !filter.is_empty())) {
        query.push(" AND ");
        query.contains("metadata", "metadata", metadata)?;
    }
    query.push(" ORDER BY checkpoint_id DESC").limit(limit);
    query.fetch_all(tx).await
}

/// Blobs of these channels at these versions, in one statement even if many checkpoints share them.
pub async fn blobs(tx: &mut Tx<'_>, place: ThreadNamespace<'_>, wanted: &BTreeSet<(String, String)>) -> Result<Blobs> {
    if wanted.is_empty() {
        return Ok(Blobs::new());
    }
    let thread = place.thread.to_string();
    let found: Vec<Blob> = match tx.conn() {
        Conn::Sqlite(conn) => {
            let pairs: Vec<_> = wanted.iter().map(|(channel, version)| [channel, version]).collect();
            let pairs = serde_json::to_string(&pairs)
                .map_err(|_| crate::Error::corrupt("checkpoint_blobs", "channel", place.thread))?;
            sqlx::query_as(
                "SELECT b.channel, b.version, b.type, b.blob FROM json_each($3) AS pair CROSS JOIN checkpoint_blobs AS b
                 WHERE b.thread_id = $1 AND b.checkpoint_ns = $2 AND b.channel = pair.value ->> 0
                 AND b.version = pair.value ->> 1",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(pairs)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            let (channels, versions): (Vec<&str>, Vec<&str>) = wanted
                .iter()
                .map(|(channel, version)| (channel.as_str(), version.as_str()))
                .unzip();
            // LATERAL: one primary key lookup per pair, regardless of the estimated size of the table.
            sqlx::query_as(
                "SELECT blob.channel, blob.version, blob.type, blob.blob
                 FROM unnest($3::text[], $4::text[]) AS pair (channel, version), LATERAL
                 (SELECT channel, version, type, blob FROM checkpoint_blobs AS b WHERE b.thread_id = $1
                  AND b.checkpoint_ns = $2 AND b.channel = pair.channel AND b.version = pair.version) AS blob",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(channels)
            .bind(versions)
            .fetch_all(conn)
            .await?
        }
    };
    Ok(found
        .into_iter()
        .map(|blob| ((blob.channel.clone(), blob.version.clone()), blob))
        .collect())
}

/// Writes of tasks on these checkpoints, ordered by task and index.
pub async fn writes(tx: &mut Tx<'_>, place: ThreadNamespace<'_>, ids: &[&str]) -> Result<Vec<Write>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let thread = place.thread.to_string();
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_as(
                "SELECT w.checkpoint_id, w.task_id, w.task_path, w.idx, w.channel, w.type, w.blob
                 FROM json_each($3) AS named CROSS JOIN checkpoint_writes AS w
                 WHERE w.thread_id = $1 AND w.checkpoint_ns = $2 AND w.checkpoint_id = named.value
                 ORDER BY w.checkpoint_id, w.task_path, w.task_id, w.idx",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(list_of(ids))
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            // LATERAL and OFFSET: one primary key lookup per id, regardless of the estimated size of the table.
            sqlx::query_as(
                "SELECT written.checkpoint_id, written.task_id, written.task_path, written.idx, written.channel, written.type,
                        written.blob
                 FROM unnest($3::text[]) AS named (id), LATERAL
                 (SELECT checkpoint_id, task_id, task_path, idx, channel, type, blob FROM checkpoint_writes AS w
                  WHERE w.thread_id = $1 AND w.checkpoint_ns = $2 AND w.checkpoint_id = named.id OFFSET 0) AS written
                 ORDER BY checkpoint_id, task_path, task_id, idx",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(ids)
            .fetch_all(conn)
            .await?
        }
    })
}

/// How many bytes blobs have, by channel and version.
pub type BlobSizes = HashMap<(String, String), u64>;

/// How many bytes these blobs have. Nothing of them is read.
pub async fn blob_sizes(
    tx: &mut Tx<'_>,
    place: ThreadNamespace<'_>,
    wanted: &BTreeSet<(String, String)>,
) -> Result<BlobSizes> {
    if wanted.is_empty() {
        return Ok(BlobSizes::new());
    }
    let thread = place.thread.to_string();
    let found: Vec<(String, String, i64)> = match tx.conn() {
        Conn::Sqlite(conn) => {
            let pairs = serde_json::to_string(wanted).expect("texts are always JSON");
            sqlx::query_as(
                "SELECT b.channel, b.version, coalesce(length(b.blob), 0) AS bytes
                 FROM json_each($3) AS pair CROSS JOIN checkpoint_blobs AS b
                 WHERE b.thread_id = $1 AND b.checkpoint_ns = $2 AND b.channel = pair.value ->> 0
                 AND b.version = pair.value ->> 1",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(pairs)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            let (channels, versions): (Vec<&str>, Vec<&str>) = wanted
                .iter()
                .map(|(channel, version)| (channel.as_str(), version.as_str()))
                .unzip();
            sqlx::query_as(
                "SELECT size.channel, size.version, size.bytes FROM unnest($3::text[], $4::text[]) AS pair (channel, version), LATERAL
                 (SELECT b.channel, b.version, coalesce(octet_length(b.blob), 0)::bigint AS bytes
                  FROM checkpoint_blobs AS b WHERE b.thread_id = $1 AND b.checkpoint_ns = $2
                  AND b.channel = pair.channel AND b.version = pair.version LIMIT 1) AS size",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(channels)
            .bind(versions)
            .fetch_all(conn)
            .await?
        }
    };
    Ok(found
        .into_iter()
        .map(|(channel, version, bytes)| ((channel, version), bytes.unsigned_abs()))
        .collect())
}

/// How many bytes tasks wrote after these checkpoints, by checkpoint.
pub async fn write_sizes(tx: &mut Tx<'_>, place: ThreadNamespace<'_>, ids: &[&str]) -> Result<HashMap<String, u64>> {
    let thread = place.thread.to_string();
    let found: Vec<(String, i64)> = match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_as(
                "SELECT w.checkpoint_id, sum(length(w.blob)) AS bytes
                 FROM json_each($3) AS named CROSS JOIN checkpoint_writes AS w
                 WHERE w.thread_id = $1 AND w.checkpoint_ns = $2 AND w.checkpoint_id = named.value
                 GROUP BY w.checkpoint_id",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(list_of(ids))
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_as(
                "SELECT named.id, written.bytes FROM unnest($3::text[]) AS named (id), LATERAL
                 (SELECT coalesce(sum(octet_length(w.blob)), 0)::bigint AS bytes FROM checkpoint_writes AS w
                  WHERE w.thread_id = $1 AND w.checkpoint_ns = $2 AND w.checkpoint_id = named.id) AS written",
            )
            .bind(thread)
            .bind(place.ns)
            .bind(ids)
            .fetch_all(conn)
            .await?
        }
    };
    Ok(found
        .into_iter()
        .map(|(id, bytes)| (id, bytes.unsigned_abs()))
        .collect())
}

fn list_of(ids: &[&str]) -> String {
    serde_json::to_string(ids).expect("texts are always JSON")
}

/// Whether a run has saved writes of tasks, or of no one, on a checkpoint that is there.
pub async fn has_written(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> Result<bool> {
    let found: Option<(i32,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT 1 FROM checkpoint_writes WHERE thread_id = $1 AND run_id = $2 LIMIT 1"
    )
    .bind(thread.to_string())
    .bind(run.to_string())
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}
