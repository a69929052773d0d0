//! Checkpoints of threads, in the layout of the PostgreSQL saver that graph libraries bring along.
//!
//! These tables know no workspace: callers look the thread up by its workspace first. JSON of checkpoint and metadata
//! is `jsonb` on PostgreSQL. Scalars of a checkpoint's channels stand in the checkpoint itself, larger values in
//! `checkpoint_blobs`, once for each version of a channel.

mod read;
mod retain;

use sqlx::FromRow;
use towpath_domain::ThreadId;

use crate::error::Result;
use crate::tx::{Conn, Tx};

pub use read::{Blobs, Place, blobs, get, latest, list, writes};
pub use retain::{Storage, copy, delete_all, delete_run, keep_last, keep_latest, storage};

/// A checkpoint as it is stored.
#[derive(Clone, Debug, FromRow)]
pub struct Checkpoint {
    /// Namespace: empty for the graph itself, `node:task` for subgraphs, joined by `|`.
    pub checkpoint_ns: String,
    /// Id, sortable.
    pub checkpoint_id: String,
    /// The one before it.
    pub parent_checkpoint_id: Option<String>,
    /// JSON object.
    pub checkpoint: String,
    /// JSON object.
    pub metadata: String,
}

/// The value of a channel at a version, encoded.
#[derive(Clone, Debug, FromRow)]
pub struct Blob {
    /// Channel.
    pub channel: String,
    /// Version.
    pub version: String,
    /// Encoding: `json`, `msgpack`, `empty`, …
    pub r#type: String,
    /// The bytes; none of an empty channel.
    pub blob: Option<Vec<u8>>,
}

/// What a task wrote before its step was over.
#[derive(Clone, Debug, FromRow)]
pub struct Write {
    /// The checkpoint it belongs to.
    pub checkpoint_id: String,
    /// Task.
    pub task_id: String,
    /// Where the task stands in its graph.
    pub task_path: String,
    /// Which of its writes; negative for the special channels.
    pub idx: i32,
    /// Channel.
    pub channel: String,
    /// Encoding.
    pub r#type: Option<String>,
    /// The bytes.
    pub blob: Vec<u8>,
}

/// Saves a checkpoint with the blobs that are new with it. Doing it again changes nothing.
///
/// # Errors
/// As every statement.
pub async fn put(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: &Checkpoint, blobs: &[Blob]) -> Result<()> {
    let thread = thread.to_string();
    let ns = checkpoint.checkpoint_ns.as_str();
    match tx.conn() {
        // The writer is in this process: a statement is cheap, one text for any number of rows is cached.
        Conn::Sqlite(conn) => {
            for blob in blobs {
                sqlx::query(
                    "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
                     VALUES ($1, $2, $3, $4, $5, $6)
                     ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING",
                )
                .bind(&thread)
                .bind(ns)
                .bind(&blob.channel)
                .bind(&blob.version)
                .bind(&blob.r#type)
                .bind(&blob.blob)
                .execute(&mut *conn)
                .await?;
            }
        }
        Conn::Postgres(conn) => {
            if !blobs.is_empty() {
                sqlx::query(
                    "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
                     SELECT $1, $2, * FROM unnest($3::text[], $4::text[], $5::text[], $6::bytea[])
                     ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING",
                )
                .bind(&thread)
                .bind(ns)
                .bind(blobs.iter().map(|blob| blob.channel.as_str()).collect::<Vec<_>>())
                .bind(blobs.iter().map(|blob| blob.version.as_str()).collect::<Vec<_>>())
                .bind(blobs.iter().map(|blob| blob.r#type.as_str()).collect::<Vec<_>>())
                .bind(blobs.iter().map(|blob| blob.blob.as_deref()).collect::<Vec<_>>())
                .execute(conn)
                .await?;
            }
        }
    }
    let text = sql!(tx,
        sqlite: "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint,
                                          metadata)
                 VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
                 DO UPDATE SET checkpoint = excluded.checkpoint, metadata = excluded.metadata",
        // The texts become jsonb.
        postgres: "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint,
                                            metadata)
                   VALUES ($1, $2, $3, $4, $5::jsonb, $6::jsonb)
                   ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
                   DO UPDATE SET checkpoint = excluded.checkpoint, metadata = excluded.metadata");
    on!(tx, |conn| sqlx::query(text)
        .bind(&thread)
        .bind(ns)
        .bind(&checkpoint.checkpoint_id)
        .bind(&checkpoint.parent_checkpoint_id)
        .bind(&checkpoint.checkpoint)
        .bind(&checkpoint.metadata)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Saves what tasks wrote. The writes of the special channels (negative `idx`) replace earlier ones; others are kept
/// as they were first.
///
/// # Errors
/// As every statement.
pub async fn put_writes(tx: &mut Tx<'_>, thread: ThreadId, ns: &str, writes: &[Write]) -> Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    let thread = thread.to_string();
    match tx.conn() {
        Conn::Sqlite(conn) => {
            for write in writes {
                sqlx::query(
                    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx,
                                                    channel, type, blob)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                     ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
                     DO UPDATE SET channel = excluded.channel, type = excluded.type, blob = excluded.blob
                     WHERE checkpoint_writes.idx < 0",
                )
                .bind(&thread)
                .bind(ns)
                .bind(&write.checkpoint_id)
                .bind(&write.task_id)
                .bind(&write.task_path)
                .bind(write.idx)
                .bind(&write.channel)
                .bind(&write.r#type)
                .bind(&write.blob)
                .execute(&mut *conn)
                .await?;
            }
        }
        Conn::Postgres(conn) => {
            sqlx::query(
                "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx,
                                                channel, type, blob)
                 SELECT $1, $2, * FROM unnest($3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::text[],
                                              $9::bytea[])
                 ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
                 DO UPDATE SET channel = excluded.channel, type = excluded.type, blob = excluded.blob
                 WHERE checkpoint_writes.idx < 0",
            )
            .bind(&thread)
            .bind(ns)
            .bind(
                writes
                    .iter()
                    .map(|write| write.checkpoint_id.as_str())
                    .collect::<Vec<_>>(),
            )
            .bind(writes.iter().map(|write| write.task_id.as_str()).collect::<Vec<_>>())
            .bind(writes.iter().map(|write| write.task_path.as_str()).collect::<Vec<_>>())
            .bind(writes.iter().map(|write| write.idx).collect::<Vec<_>>())
            .bind(writes.iter().map(|write| write.channel.as_str()).collect::<Vec<_>>())
            .bind(writes.iter().map(|write| write.r#type.as_deref()).collect::<Vec<_>>())
            .bind(writes.iter().map(|write| write.blob.as_slice()).collect::<Vec<_>>())
            .execute(conn)
            .await?;
        }
    }
    Ok(())
}
