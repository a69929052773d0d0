//! Writes that a run replaced, as they were before it.

use towpath_domain::{RunId, ThreadId};

use super::Write;
use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::Tx;

/// Saves existing writes of other runs that `run` is about to replace.
pub(super) async fn save_replaced(tx: &mut Tx<'_>, thread: &str, run: &str, rows: &[&(String, Write)]) -> Result<()> {
    let mut query = Query::new(
        tx,
        "INSERT INTO replaced_write (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path,
                                     run_id, replaced_by)
         SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path, run_id, ",
    );
    query.bind(Arg::Text(run.to_owned()));
    query.push(" FROM checkpoint_writes WHERE thread_id = ");
    query.bind(Arg::Text(thread.to_owned()));
    query.push(" AND (run_id IS NULL OR run_id <> ");
    query.bind(Arg::Text(run.to_owned())).push(") AND (");
    for (index, (ns, row)) in rows.iter().enumerate() {
        query.push(if index == 0 {
            "(checkpoint_ns = "
        } else {
            " OR (checkpoint_ns = "
        });
        query.bind(Arg::Text(ns.clone())).push(" AND checkpoint_id = ");
        query.bind(Arg::Text(row.checkpoint_id.clone())).push(" AND task_id = ");
        query.bind(Arg::Text(row.task_id.clone())).push(" AND idx = ");
        query.bind(Arg::Int4(row.idx)).push(")");
    }
    query.push(") ON CONFLICT DO NOTHING");
    query.execute(tx).await.map(drop)
}

/// Brings back what `run` replaced, once its own writes are gone.
pub(super) async fn restore_replaced(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> Result<()> {
    let (thread, run) = (thread.to_string(), run.to_string());
    for text in [
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob,
                                        task_path, run_id)
         SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path, run_id
         FROM replaced_write WHERE thread_id = $1 AND replaced_by = $2
         ON CONFLICT DO NOTHING",
        // A later run replaced a write of this one: restoring that run must yield the write from before this one.
        "UPDATE replaced_write SET (channel, type, blob, task_path, run_id) = (
             SELECT older.channel, older.type, older.blob, older.task_path, older.run_id FROM replaced_write AS older
             WHERE older.thread_id = $1 AND older.replaced_by = $2
             AND older.checkpoint_ns = replaced_write.checkpoint_ns
             AND older.checkpoint_id = replaced_write.checkpoint_id
             AND older.task_id = replaced_write.task_id AND older.idx = replaced_write.idx)
         WHERE thread_id = $1 AND run_id = $2 AND EXISTS (
             SELECT 1 FROM replaced_write AS older
             WHERE older.thread_id = $1 AND older.replaced_by = $2
             AND older.checkpoint_ns = replaced_write.checkpoint_ns
             AND older.checkpoint_id = replaced_write.checkpoint_id
             AND older.task_id = replaced_write.task_id AND older.idx = replaced_write.idx)",
        "DELETE FROM replaced_write WHERE thread_id = $1 AND (replaced_by = $2 OR run_id = $2)",
    ] {
        on!(tx, |conn| sqlx::query(text)
            .bind(&thread)
            .bind(&run)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}
