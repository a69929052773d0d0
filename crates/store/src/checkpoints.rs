//! Checkpoints of threads, in the layout of the PostgreSQL saver of the graph libraries.
//!
//! These tables have no workspace: callers look the thread up by its workspace first. Checkpoint and metadata are
//! `jsonb` on PostgreSQL. Scalar channel values are part of the checkpoint; larger values are in `checkpoint_blobs`,
//! once per version of a channel.

mod command;
mod read;
mod removal;
mod replaced;
mod retain;

use sqlx::FromRow;
use towpath_domain::{RunId, ThreadId};

use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::Tx;

pub use command::has_saved_command;
pub use read::{
    BlobSizes, Blobs, ThreadNamespace, blob_sizes, blobs, get, has_written, latest, list, write_sizes, writes,
};
pub use retain::{
    Retention, Storage, StoredRows, apply, copy, delete_all, delete_run, keep_latest, storage, threads_over_limit,
};

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
    pub channel: String,
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
    pub task_id: String,
    /// Where the task is in its graph.
    pub task_path: String,
    /// Which of its writes; negative for the special channels.
    pub idx: i32,
    pub channel: String,
    /// Encoding.
    pub r#type: Option<String>,
    pub blob: Vec<u8>,
}

/// What is saved at once.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The run that saves them, if it is one.
    pub run: Option<RunId>,
    pub checkpoints: Vec<Checkpoint>,
    /// Blobs that are new with them, each with its namespace.
    pub blobs: Vec<(String, Blob)>,
    /// Writes of tasks, each with its namespace.
    pub writes: Vec<(String, Write)>,
}

/// Rows of one statement. Each number of rows is a text of its own, and texts are cached.
const ROWS: usize = 16;

/// Saves checkpoints, blobs and writes in few statements; idempotent. Writes to the special channels (negative `idx`)
/// replace earlier ones; if another run had written those, they are kept until the checkpoint is deleted. Other writes
/// are never replaced.
pub async fn save(tx: &mut Tx<'_>, thread: ThreadId, batch: &Batch) -> Result<()> {
    let (thread, run) = (thread.to_string(), batch.run.map(|run| run.to_string()));
    for rows in batch.blobs.chunks(ROWS) {
        let mut query = Query::new(
            tx,
            "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) VALUES ",
        );
        for (index, (ns, blob)) in rows.iter().enumerate() {
            query.push(if index == 0 { "(" } else { ", (" });
            query
                .bind(Arg::Text(thread.clone()))
                .push(", ")
                .bind(Arg::Text(ns.clone()));
            query.push(", ").bind(Arg::Text(blob.channel.clone()));
            query.push(", ").bind(Arg::Text(blob.version.clone()));
            query.push(", ").bind(Arg::Text(blob.r#type.clone()));
            query.push(", ").bind(Arg::Bytes(blob.blob.clone())).push(")");
        }
        query.push(" ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING");
        query.execute(tx).await?;
    }
    let checkpoints = last_of_each(&batch.checkpoints, |row| (&row.checkpoint_ns, &row.checkpoint_id));
    for rows in checkpoints.chunks(ROWS) {
        let mut query = Query::new(
            tx,
            "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
             VALUES ",
        );
        // The texts become jsonb.
        let json = sql!(tx, sqlite: "", postgres: "::jsonb");
        for (index, row) in rows.iter().enumerate() {
            query.push(if index == 0 { "(" } else { ", (" });
            query.bind(Arg::Text(thread.clone())).push(", ");
            query.bind(Arg::Text(row.checkpoint_ns.clone())).push(", ");
            query.bind(Arg::Text(row.checkpoint_id.clone())).push(", ");
            query.bind(Arg::MaybeText(row.parent_checkpoint_id.clone())).push(", ");
            query.bind(Arg::Text(row.checkpoint.clone())).push(json).push(", ");
            query.bind(Arg::Text(row.metadata.clone())).push(json).push(")");
        }
        query.push(
            " ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
             DO UPDATE SET checkpoint = excluded.checkpoint, metadata = excluded.metadata",
        );
        query.execute(tx).await?;
    }
    let writes = last_of_each(&batch.writes, |(ns, row)| {
        // Only those of the special channels come twice, and of them the last counts.
        (ns, &row.checkpoint_id, &row.task_id, row.idx)
    });
    if let Some(run) = &run {
        let marks: Vec<_> = writes.iter().copied().filter(|(_, row)| row.idx < 0).collect();
        for rows in marks.chunks(ROWS) {
            replaced::save_replaced(tx, &thread, run, rows).await?;
        }
    }
    for rows in writes.chunks(ROWS) {
        let mut query = Query::new(
            tx,
            "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel,
                                            type, blob, run_id)
             VALUES ",
        );
        for (index, (ns, row)) in rows.iter().enumerate() {
            query.push(if index == 0 { "(" } else { ", (" });
            query
                .bind(Arg::Text(thread.clone()))
                .push(", ")
                .bind(Arg::Text(ns.clone()));
            query.push(", ").bind(Arg::Text(row.checkpoint_id.clone()));
            query.push(", ").bind(Arg::Text(row.task_id.clone()));
            query.push(", ").bind(Arg::Text(row.task_path.clone()));
            query.push(", ").bind(Arg::Int4(row.idx));
            query.push(", ").bind(Arg::Text(row.channel.clone()));
            query.push(", ").bind(Arg::MaybeText(row.r#type.clone()));
            query.push(", ").bind(Arg::Bytes(Some(row.blob.clone())));
            query.push(", ").bind(Arg::MaybeText(run.clone())).push(")");
        }
        query.push(
            " ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
             DO UPDATE SET channel = excluded.channel, type = excluded.type, blob = excluded.blob,
                           run_id = excluded.run_id
             WHERE checkpoint_writes.idx < 0",
        );
        query.execute(tx).await?;
    }
    Ok(())
}

/// The last row of each key, in the order of first occurrence: a statement must not meet a row twice.
fn last_of_each<'r, T, K: Eq + std::hash::Hash>(rows: &'r [T], key: impl Fn(&'r T) -> K) -> Vec<&'r T> {
    let mut places = std::collections::HashMap::with_capacity(rows.len());
    let mut kept: Vec<&T> = Vec::with_capacity(rows.len());
    for row in rows {
        match places.entry(key(row)) {
            std::collections::hash_map::Entry::Occupied(place) => kept[*place.get()] = row,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(kept.len());
                kept.push(row);
            }
        }
    }
    kept
}
