//! Removal of checkpoints, their writes, and the blobs that no other checkpoint refers to.
//!
//! The cost is linear in the number of checkpoints of the affected namespaces: references of removed and of remaining
//! checkpoints are compared as sets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sqlx::FromRow;
use towpath_domain::ThreadId;

use crate::error::Result;
use crate::tx::{Conn, Tx};

/// Rows named by one statement.
const ROWS: usize = 1000;

/// A checkpoint of a thread.
#[derive(Clone, Debug, FromRow)]
pub(super) struct CheckpointKey {
    checkpoint_ns: String,
    checkpoint_id: String,
}

/// The value of a channel: namespace, channel, version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, FromRow)]
struct BlobKey {
    ns: String,
    channel: String,
    version: String,
}

#[derive(FromRow)]
struct RemovedCheckpoint {
    checkpoint_ns: String,
    /// JSON: channel to version.
    versions: Option<String>,
}

/// Removes checkpoints of a thread, and those of subgraph calls whose root checkpoint is gone. Returns how many.
pub(super) async fn remove(tx: &mut Tx<'_>, thread: ThreadId, doomed: &[CheckpointKey]) -> Result<u64> {
    let thread = thread.to_string();
    let mut named = BTreeSet::new();
    let mut gone = remove_rows(tx, &thread, doomed, &mut named).await?;
    let left = without_root(tx, &thread).await?;
    gone += remove_rows(tx, &thread, &left, &mut named).await?;
    remove_blobs(tx, &thread, named).await?;
    Ok(gone)
}

/// Removes rows of checkpoints and of what was written on them; notes which blobs they named.
async fn remove_rows(
    tx: &mut Tx<'_>,
    thread: &str,
    doomed: &[CheckpointKey],
    named: &mut BTreeSet<BlobKey>,
) -> Result<u64> {
    let mut gone = 0;
    for part in doomed.chunks(ROWS) {
        let removed: Vec<RemovedCheckpoint> = match tx.conn() {
            Conn::Sqlite(conn) => {
                sqlx::query_as(
                    "DELETE FROM checkpoints WHERE thread_id = $1 AND (checkpoint_ns, checkpoint_id) IN (
                         SELECT value ->> 0, value ->> 1 FROM json_each($2))
                     RETURNING checkpoint_ns, checkpoint -> 'channel_versions' AS versions",
                )
                .bind(thread)
                .bind(pairs(part))
                .fetch_all(conn)
                .await?
            }
            Conn::Postgres(conn) => {
                let (namespaces, ids) = columns(part);
                // LATERAL, and places of rows: see `bulk.rs`.
                sqlx::query_as(
                    "DELETE FROM checkpoints WHERE ctid = ANY (ARRAY (
                         SELECT found.ctid FROM unnest($2::text[], $3::text[]) AS doomed (ns, id), LATERAL (
                             SELECT c.ctid FROM checkpoints AS c WHERE c.thread_id = $1
                             AND c.checkpoint_ns = doomed.ns AND c.checkpoint_id = doomed.id LIMIT 1) AS found))
                     RETURNING checkpoint_ns, (checkpoint -> 'channel_versions')::text AS versions",
                )
                .bind(thread)
                .bind(namespaces)
                .bind(ids)
                .fetch_all(conn)
                .await?
            }
        };
        gone += removed.len() as u64;
        for row in &removed {
            note(row, named);
        }
        remove_writes(tx, thread, part).await?;
    }
    Ok(gone)
}

fn note(row: &RemovedCheckpoint, named: &mut BTreeSet<BlobKey>) {
    // Without versions that can be read it names no blob.
    let versions = row.versions.as_deref().unwrap_or("{}");
    let versions: BTreeMap<String, Value> = serde_json::from_str(versions).unwrap_or_default();
    named.extend(versions.into_iter().map(|(channel, version)| BlobKey {
        ns: row.checkpoint_ns.clone(),
        channel,
        // Versions of old checkpoints are numbers.
        version: version.as_str().map_or_else(|| version.to_string(), str::to_owned),
    }));
}

async fn remove_writes(tx: &mut Tx<'_>, thread: &str, of: &[CheckpointKey]) -> Result<()> {
    match tx.conn() {
        Conn::Sqlite(conn) => {
            for text in [
                "DELETE FROM checkpoint_writes WHERE thread_id = $1 AND (checkpoint_ns, checkpoint_id) IN (
                     SELECT value ->> 0, value ->> 1 FROM json_each($2))",
                "DELETE FROM replaced_write WHERE thread_id = $1 AND (checkpoint_ns, checkpoint_id) IN (
                     SELECT value ->> 0, value ->> 1 FROM json_each($2))",
            ] {
                sqlx::query(text)
                    .bind(thread)
                    .bind(pairs(of))
                    .execute(&mut *conn)
                    .await?;
            }
        }
        Conn::Postgres(conn) => {
            let (namespaces, ids) = columns(of);
            // OFFSET keeps the subquery from becoming a plain join: see `bulk.rs`.
            for text in [
                "DELETE FROM checkpoint_writes WHERE ctid = ANY (ARRAY (
                     SELECT found.ctid FROM unnest($2::text[], $3::text[]) AS doomed (ns, id), LATERAL (
                         SELECT w.ctid FROM checkpoint_writes AS w WHERE w.thread_id = $1
                         AND w.checkpoint_ns = doomed.ns AND w.checkpoint_id = doomed.id OFFSET 0) AS found))",
                "DELETE FROM replaced_write WHERE ctid = ANY (ARRAY (
                     SELECT found.ctid FROM unnest($2::text[], $3::text[]) AS doomed (ns, id), LATERAL (
                         SELECT w.ctid FROM replaced_write AS w WHERE w.thread_id = $1
                         AND w.checkpoint_ns = doomed.ns AND w.checkpoint_id = doomed.id OFFSET 0) AS found))",
            ] {
                sqlx::query(text)
                    .bind(thread)
                    .bind(&namespaces)
                    .bind(&ids)
                    .execute(&mut *conn)
                    .await?;
            }
        }
    }
    Ok(())
}

/// Checkpoints of subgraph calls (`node:task`) whose root checkpoint is gone: nothing can resume or show such a call. A
/// subgraph that keeps its state between calls has a namespace without tasks, and stays.
async fn without_root(tx: &mut Tx<'_>, thread: &str) -> Result<Vec<CheckpointKey>> {
    // SQLite takes no empty key to the right of an arrow.
    let text = sql!(tx,
        sqlite: "SELECT checkpoint_ns, checkpoint_id FROM checkpoints AS call
                 WHERE thread_id = $1 AND checkpoint_ns LIKE '%:%'
                 AND json_extract(metadata, '$.parents.\"\"') IS NOT NULL
                 AND NOT EXISTS (
                     SELECT 1 FROM checkpoints AS root WHERE root.thread_id = $1 AND root.checkpoint_ns = ''
                     AND root.checkpoint_id = json_extract(call.metadata, '$.parents.\"\"'))",
        postgres: "SELECT checkpoint_ns, checkpoint_id FROM checkpoints AS call
                   WHERE thread_id = $1 AND checkpoint_ns LIKE '%:%'
                   AND (metadata -> 'parents' ->> '') IS NOT NULL
                   AND NOT EXISTS (
                       SELECT 1 FROM checkpoints AS root WHERE root.thread_id = $1 AND root.checkpoint_ns = ''
                       AND root.checkpoint_id = (call.metadata -> 'parents' ->> ''))");
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(thread).fetch_all(conn).await)?)
}

/// Removes those of these blobs that no checkpoint names any more.
async fn remove_blobs(tx: &mut Tx<'_>, thread: &str, named: BTreeSet<BlobKey>) -> Result<()> {
    if named.is_empty() {
        return Ok(());
    }
    let named: Vec<BlobKey> = named.into_iter().collect();
    for part in unnamed(tx, thread, &named).await?.chunks(ROWS) {
        match tx.conn() {
            Conn::Sqlite(conn) => {
                sqlx::query(
                    "DELETE FROM checkpoint_blobs WHERE thread_id = $1 AND (checkpoint_ns, channel, version) IN (
                         SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each($2))",
                )
                .bind(thread)
                .bind(triples(part))
                .execute(conn)
                .await?;
            }
            Conn::Postgres(conn) => {
                let [namespaces, channels, versions] = parts(part);
                sqlx::query(
                    "DELETE FROM checkpoint_blobs WHERE ctid = ANY (ARRAY (
                         SELECT found.ctid FROM unnest($2::text[], $3::text[], $4::text[]) AS dead (ns, channel, version),
                         LATERAL (SELECT b.ctid FROM checkpoint_blobs AS b WHERE b.thread_id = $1
                                  AND b.checkpoint_ns = dead.ns AND b.channel = dead.channel
                                  AND b.version = dead.version LIMIT 1) AS found))",
                )
                .bind(thread)
                .bind(namespaces)
                .bind(channels)
                .bind(versions)
                .execute(conn)
                .await?;
            }
        }
    }
    Ok(())
}

/// The versions that no checkpoint refers to. EXCEPT compares two sets, regardless of their estimated sizes.
async fn unnamed(tx: &mut Tx<'_>, thread: &str, named: &[BlobKey]) -> Result<Vec<BlobKey>> {
    let namespaces: BTreeSet<&str> = named.iter().map(|one| one.ns.as_str()).collect();
    let namespaces: Vec<&str> = namespaces.into_iter().collect();
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_as(
                "SELECT value ->> 0 AS ns, value ->> 1 AS channel, value ->> 2 AS version FROM json_each($2)
                 EXCEPT
                 SELECT c.checkpoint_ns, kept.key, CAST(kept.value AS TEXT)
                 FROM checkpoints AS c, json_each(c.checkpoint, '$.channel_versions') AS kept
                 WHERE c.thread_id = $1 AND c.checkpoint_ns IN (SELECT value FROM json_each($3))",
            )
            .bind(thread)
            .bind(triples(named))
            .bind(json(&namespaces))
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            let [spaces, channels, versions] = parts(named);
            sqlx::query_as(
                "SELECT ns, channel, version FROM unnest($2::text[], $3::text[], $4::text[]) AS named (ns, channel, version)
                 EXCEPT
                 SELECT c.checkpoint_ns, kept.key, kept.value
                 FROM checkpoints AS c, jsonb_each_text(c.checkpoint -> 'channel_versions') AS kept
                 WHERE c.thread_id = $1 AND c.checkpoint_ns = ANY ($5)",
            )
            .bind(thread)
            .bind(spaces)
            .bind(channels)
            .bind(versions)
            .bind(namespaces)
            .fetch_all(conn)
            .await?
        }
    })
}

fn json<T: serde::Serialize>(rows: &T) -> String {
    serde_json::to_string(rows).expect("texts are always JSON")
}

fn pairs(names: &[CheckpointKey]) -> String {
    let rows: Vec<[&str; 2]> = names
        .iter()
        .map(|name| [name.checkpoint_ns.as_str(), name.checkpoint_id.as_str()])
        .collect();
    json(&rows)
}

fn columns(names: &[CheckpointKey]) -> (Vec<&str>, Vec<&str>) {
    names
        .iter()
        .map(|name| (name.checkpoint_ns.as_str(), name.checkpoint_id.as_str()))
        .unzip()
}

fn triples(versions: &[BlobKey]) -> String {
    let rows: Vec<[&str; 3]> = versions
        .iter()
        .map(|one| [one.ns.as_str(), one.channel.as_str(), one.version.as_str()])
        .collect();
    json(&rows)
}

fn parts(versions: &[BlobKey]) -> [Vec<&str>; 3] {
    [
        versions.iter().map(|one| one.ns.as_str()).collect(),
        versions.iter().map(|one| one.channel.as_str()).collect(),
        versions.iter().map(|one| one.version.as_str()).collect(),
    ]
}
