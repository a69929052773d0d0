//! What a run's command left on the checkpoint the run began at.

use towpath_domain::{RunId, ThreadId};

use crate::error::Result;
use crate::tx::Tx;

/// The task in whose name graph libraries save what a command writes.
const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";

/// Whether a run has saved the channel writes of its command on an existing checkpoint of the root graph. Answers to
/// interrupts do not count; they have their own slot.
pub async fn has_saved_command(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> Result<bool> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT 1 FROM checkpoint_writes AS w JOIN checkpoints AS c
             ON c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
             WHERE w.thread_id = $1 AND w.checkpoint_ns = '' AND w.run_id = $2 AND w.task_id = $3 AND w.idx >= 0)"
    )
    .bind(thread.to_string())
    .bind(run.to_string())
    .bind(NULL_TASK)
    .fetch_one(conn)
    .await)?)
}
