//! Retention, copies and deletion of checkpoints, including blobs that no checkpoint refers to.

use std::collections::BTreeMap;

use sqlx::FromRow;
use towpath_domain::{RunId, ThreadId};

use super::removal::{self, CheckpointKey};
use super::replaced;
use crate::error::{Error, Result};
use crate::tx::Tx;

/// What is left of the history of a thread.
#[derive(Clone, Debug, Default)]
pub struct Retention {
    /// So many checkpoints of each namespace.
    pub count: Option<i64>,
    /// Those with this id or a later one, and the latest of each namespace.
    pub from: Option<String>,
}

impl Retention {
    /// Checkpoints that stay of each namespace: its latest state always does.
    fn kept(&self) -> i64 {
        self.count.map_or(i64::MAX, |count| count.max(1))
    }

    /// Ids before this go. Nothing sorts before the empty text.
    fn since(&self) -> &str {
        self.from.as_deref().unwrap_or_default()
    }
}

/// The threads that exceed `cut`. Locks nothing, as most threads do not.
pub async fn threads_over_limit(tx: &mut Tx<'_>, threads: &[ThreadId], cut: &Retention) -> Result<Vec<ThreadId>> {
    // Names of threads need no escapes.
    let threads = format!("{:?}", threads.iter().map(ToString::to_string).collect::<Vec<_>>());
    let text = sql!(tx,
        sqlite: "SELECT DISTINCT thread_id FROM (
                     SELECT thread_id FROM checkpoints WHERE thread_id IN (SELECT value FROM json_each($1))
                     GROUP BY thread_id, checkpoint_ns
                     HAVING count(*) > $2 OR (count(*) > 1 AND min(checkpoint_id) < $3))",
        postgres: "SELECT DISTINCT thread_id FROM (
                       SELECT thread_id FROM checkpoints
                       WHERE thread_id IN (SELECT json_array_elements_text($1::json))
                       GROUP BY thread_id, checkpoint_ns
                       HAVING count(*) > $2 OR (count(*) > 1 AND min(checkpoint_id) < $3)) AS long");
    let found: Vec<String> = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(threads)
        .bind(cut.kept())
        .bind(cut.since())
        .fetch_all(conn)
        .await)?;
    found
        .iter()
        .map(|id| id.parse().map_err(|_| Error::corrupt("checkpoints", "thread_id", id)))
        .collect()
}

/// Deletes what exceeds `cut`, and leftovers of subgraph calls whose root checkpoint is gone; returns the number of
/// deleted checkpoints.
pub async fn apply(tx: &mut Tx<'_>, thread: ThreadId, cut: &Retention) -> Result<u64> {
    // One pass over the primary key: no checkpoint is read.
    let beyond: Vec<CheckpointKey> = on!(tx, |conn| sqlx::query_as(
        "SELECT checkpoint_ns, checkpoint_id FROM (
             SELECT checkpoint_ns, checkpoint_id,
                    row_number() OVER (PARTITION BY checkpoint_ns ORDER BY checkpoint_id DESC) AS nth
             FROM checkpoints WHERE thread_id = $1) AS ranked
         WHERE nth > $2 OR (nth > 1 AND checkpoint_id < $3)"
    )
    .bind(thread.to_string())
    .bind(cut.kept())
    .bind(cut.since())
    .fetch_all(conn)
    .await)?;
    removal::remove(tx, thread, &beyond).await
}

/// Deletes all checkpoints of a thread.
pub async fn delete_all(tx: &mut Tx<'_>, thread: ThreadId) -> Result<()> {
    let thread = thread.to_string();
    for text in [
        "DELETE FROM checkpoints WHERE thread_id = $1",
        "DELETE FROM checkpoint_blobs WHERE thread_id = $1",
        "DELETE FROM checkpoint_writes WHERE thread_id = $1",
        "DELETE FROM replaced_write WHERE thread_id = $1",
    ] {
        on!(tx, |conn| sqlx::query(text).bind(&thread).execute(conn).await.map(drop))?;
    }
    Ok(())
}

/// Deletes the checkpoints of a run and its writes on the checkpoint it began at; restores the writes it replaced
/// there. That checkpoint is then the latest of the thread.
///
/// No other run may be active on the thread, since it could hold what this deletes.
pub async fn delete_run(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> Result<u64> {
    let made: Vec<CheckpointKey> = on!(tx, |conn| sqlx::query_as(
        "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = $1 AND metadata ->> 'run_id' = $2"
    )
    .bind(thread.to_string())
    .bind(run.to_string())
    .fetch_all(conn)
    .await)?;
    on!(tx, |conn| sqlx::query(
        "DELETE FROM checkpoint_writes WHERE thread_id = $1 AND run_id = $2"
    )
    .bind(thread.to_string())
    .bind(run.to_string())
    .execute(conn)
    .await
    .map(drop))?;
    replaced::restore_replaced(tx, thread, run).await?;
    if made.is_empty() {
        return Ok(0);
    }
    removal::remove(tx, thread, &made).await
}

/// Deletes all but the latest checkpoint of each namespace; of subgraph calls, all but those that the latest root
/// checkpoint waits for.
pub async fn keep_latest(tx: &mut Tx<'_>, thread: ThreadId) -> Result<u64> {
    let cut = Retention {
        count: Some(1),
        from: None,
    };
    apply(tx, thread, &cut).await
}

/// Copies all checkpoints of a thread to another, which has none.
pub async fn copy(tx: &mut Tx<'_>, from: ThreadId, to: ThreadId) -> Result<()> {
    let (from, to) = (from.to_string(), to.to_string());
    let checkpoints = sql!(tx,
        sqlite: "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,
                                          checkpoint, metadata)
                 SELECT $2, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
                        CASE WHEN metadata ->> 'thread_id' IS NULL THEN metadata
                             ELSE json_set(metadata, '$.thread_id', $2) END
                 FROM checkpoints WHERE thread_id = $1",
        postgres: "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,
                                            checkpoint, metadata)
                   SELECT $2, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
                          CASE WHEN metadata ->> 'thread_id' IS NULL THEN metadata
                               ELSE jsonb_set(metadata, '{thread_id}', to_jsonb($2::text)) END
                   FROM checkpoints WHERE thread_id = $1");
    for text in [
        checkpoints,
        "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
         SELECT $2, checkpoint_ns, channel, version, type, blob FROM checkpoint_blobs WHERE thread_id = $1",
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type,
                                        blob)
         SELECT $2, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob
         FROM checkpoint_writes WHERE thread_id = $1",
    ] {
        on!(tx, |conn| sqlx::query(text)
            .bind(&from)
            .bind(&to)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// What the checkpoints of a thread take, in bytes as they were handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Checkpoints and their metadata.
    pub checkpoints: StoredRows,
    /// Values by channel; a row for each version.
    pub channels: BTreeMap<String, StoredRows>,
    /// What tasks wrote.
    pub pending_writes: StoredRows,
}

/// Rows of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow)]
pub struct StoredRows {
    pub count: i64,
    pub bytes: i64,
}

/// What the checkpoints of a thread take.
pub async fn storage(tx: &mut Tx<'_>, thread: ThreadId) -> Result<Storage> {
    let thread = thread.to_string();
    let checkpoints = sql!(tx,
        sqlite: "SELECT count(*) AS count,
                        coalesce(sum(length(CAST(checkpoint AS BLOB)) + length(CAST(metadata AS BLOB))), 0) AS bytes
                 FROM checkpoints WHERE thread_id = $1",
        postgres: "SELECT count(*) AS count,
                          coalesce(sum(octet_length(checkpoint::text) + octet_length(metadata::text)), 0)::bigint AS bytes
                   FROM checkpoints WHERE thread_id = $1");
    let channels = "SELECT channel, count(*) AS count, CAST(coalesce(sum(octet_length(blob)), 0) AS bigint) AS bytes
                    FROM checkpoint_blobs WHERE thread_id = $1 GROUP BY channel";
    let writes = "SELECT count(*) AS count, CAST(coalesce(sum(octet_length(blob)), 0) AS bigint) AS bytes
                  FROM checkpoint_writes WHERE thread_id = $1";
    let checkpoints: StoredRows = on!(tx, |conn| sqlx::query_as(checkpoints)
        .bind(&thread)
        .fetch_one(conn)
        .await)?;
    let channels: Vec<(String, i64, i64)> =
        on!(tx, |conn| sqlx::query_as(channels).bind(&thread).fetch_all(conn).await)?;
    let pending_writes: StoredRows = on!(tx, |conn| sqlx::query_as(writes).bind(&thread).fetch_one(conn).await)?;
    let channels = channels
        .into_iter()
        .map(|(channel, count, bytes)| (channel, StoredRows { count, bytes }));
    Ok(Storage {
        checkpoints,
        channels: channels.collect(),
        pending_writes,
    })
}
