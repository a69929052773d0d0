//! The end of a run whose worker does not end it: cancelled while it waited, attempts spent, no worker left.

use serde::Deserialize;
use serde_json::json;
use towpath_domain::agent::a2a::Outcome;
use towpath_domain::agent::frame::{End, Frame};
use towpath_domain::agent::{CancelAction, EventId, RunStatus, ThreadStatus};
use towpath_domain::job::Ended;
use towpath_domain::{TenantId, ThreadId};
use towpath_store::runs::{self, Run};
use towpath_store::{self as store, Tx, checkpoints, run_events, threads};

use super::RunAgent;
use super::stream::end_frame;
use crate::{a2a, send_webhook};

/// Settles run and thread.
///
/// # Errors
/// As every statement.
pub async fn end(tx: &mut Tx<'_>, job: &RunAgent, ended: Ended) -> store::Result<()> {
    let &RunAgent {
        tenant, thread, run, ..
    } = job;
    let row = match runs::get(tx, tenant, run).await {
        // Deleted with what it did; its thread, if it is still there, must not wait for it.
        Err(store::Error::NotFound) => {
            checkpoints::delete_run(tx, thread, run).await?;
            a2a::take_back(tx, tenant, run).await?;
            threads::settle_untouched(tx, tenant, thread).await?;
            tell(tx, job, Log::OfOthers, None, None).await?;
            return drop_log_without_thread(tx, tenant, thread).await;
        }
        row => row?,
    };
    if row.status.is_final() {
        return Ok(());
    }
    let wishes = Wishes::of(&row);
    let log = if wishes.resumable { Log::Own } else { Log::OfOthers };
    let (status, error) = match ended {
        Ended::Cancelled => (RunStatus::Interrupted, None),
        Ended::Failed(error) => {
            tracing::warn!(run.id = %run, error, "a run was given up");
            let text = "The run was given up: its workers were lost, or failed for reasons of the server";
            (
                RunStatus::Error,
                Some(json!({"error": "RuntimeError", "message": text})),
            )
        }
        Ended::TimedOut => {
            let text = "The run took longer than a run may";
            (
                RunStatus::Timeout,
                Some(json!({"error": "TimeoutError", "message": text})),
            )
        }
    };
    if status == RunStatus::Interrupted && row.cancel_action == Some(CancelAction::Rollback) {
        checkpoints::delete_run(tx, thread, run).await?;
        runs::delete(tx, tenant, run).await?;
        a2a::take_back(tx, tenant, run).await?;
        if job.temporary {
            leave(tx, job, ThreadStatus::Idle, None).await?;
        } else {
            threads::settle_untouched(tx, tenant, thread).await?;
        }
        return tell(tx, job, log, None, None).await;
    }
    if let Some(url) = wishes.webhook.as_deref() {
        let body = send_webhook::body(&row, status, tx.now(), None, error.as_ref());
        send_webhook::start(tx, tenant, url, body).await?;
    }
    runs::finish(tx, tenant, run, status).await?;
    a2a::settle(tx, tenant, &row, status, || error.as_ref().map(Outcome::failure)).await?;
    if error.is_some() {
        leave(tx, job, ThreadStatus::Error, error.as_ref()).await?;
    } else if row.started_at.is_some() || job.temporary {
        leave(tx, job, ThreadStatus::Idle, None).await?;
    } else {
        // It never began, so its thread stands where it stood: perhaps it waits for an answer.
        threads::settle_untouched(tx, tenant, thread).await?;
    }
    tell(tx, job, log, Some(status), error).await
}

/// Deletes the log of a thread that was deleted under its run: until its worker had stopped, the run went on logging.
pub(super) async fn drop_log_without_thread(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> store::Result<()> {
    if threads::exists(tx, tenant, thread).await? {
        return Ok(());
    }
    run_events::delete_all(tx, tenant, thread).await
}

/// Whose events the log of the thread holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    /// Those of the run: whoever reads it finds its end there, even if nothing else was logged.
    Own,
    /// Perhaps those of others, or of every run.
    OfOthers,
}

async fn leave(
    tx: &mut Tx<'_>,
    job: &RunAgent,
    stands: ThreadStatus,
    error: Option<&serde_json::Value>,
) -> store::Result<()> {
    let &RunAgent { tenant, thread, .. } = job;
    if job.temporary {
        threads::delete_bare(tx, tenant, thread).await?;
        return checkpoints::delete_all(tx, thread).await;
    }
    let error = error.map(ToString::to_string);
    let left = threads::Left {
        state: None,
        error: error.as_deref(),
    };
    threads::settle(tx, tenant, thread, stands, &left).await
}

/// Tells readers, and the log where there is one.
async fn tell(
    tx: &mut Tx<'_>,
    job: &RunAgent,
    log: Log,
    status: Option<RunStatus>,
    error: Option<serde_json::Value>,
) -> store::Result<()> {
    let &RunAgent {
        tenant, thread, run, ..
    } = job;
    let last = run_events::last_id(tx, tenant, thread).await?;
    let mut id = last.unwrap_or_default().next(tx.now().micros() / 1000);
    let mut frames = Vec::new();
    if let Some(error) = &error {
        frames.push(
            Frame {
                run: Some(run),
                attempt: 0,
                number: 0,
                id,
                event: "error",
                data: &error.to_string(),
            }
            .encode(),
        );
        id = EventId { seq: id.seq + 1, ..id };
    }
    // Its worker may have logged more than a reader has come to.
    let (attempt, number) = match last {
        Some(_) => run_events::last_frame(tx, tenant, thread, run)
            .await?
            .unwrap_or_default(),
        None => (0, 0),
    };
    let end = End {
        status,
        attempt,
        last: number,
        values: None,
        error: error.filter(|_| job.temporary),
    };
    frames.push(end_frame(run, 0, id, &end));
    if log == Log::Own || last.is_some() {
        let mut log = String::new();
        for frame in &frames {
            towpath_domain::agent::frame::append(&mut log, frame);
        }
        let batch = run_events::NewBatch {
            run: Some(run),
            attempt: 0,
            first: 0,
            last: 0,
            last_id: id,
            frames: &log,
            expires_at: None,
        };
        run_events::append(tx, tenant, thread, &batch).await?;
        let kept = std::time::Duration::from_secs(job.events_kept_s);
        let until = tx.now().plus(kept);
        run_events::expire(tx, tenant, thread, run, until).await?;
    }
    for frame in frames {
        tx.publish(thread, frame);
    }
    Ok(())
}

/// What was asked for the end of a run.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wishes {
    webhook: Option<String>,
    resumable: bool,
}

impl Wishes {
    /// Also where the rest of the arguments cannot be read.
    fn of(run: &Run) -> Self {
        serde_json::from_str(&run.kwargs).unwrap_or_default()
    }
}
