//! Ends a run without its worker: cancelled while it waited, attempts spent, or no worker left.

use serde::Deserialize;
use serde_json::json;
use towpath_domain::agent::a2a::Outcome;
use towpath_domain::agent::frame::{Frame, RunEnd};
use towpath_domain::agent::{CancelAction, EventId, RunStatus, ThreadStatus};
use towpath_domain::job::EndReason;
use towpath_domain::{TenantId, ThreadId};
use towpath_store::runs::{self, Run};
use towpath_store::{self as store, Tx, checkpoints, run_events, threads};

use super::job::RunAgent;
use super::stream::end_frame;
use crate::{a2a, send_webhook};

pub async fn end(tx: &mut Tx<'_>, job: &RunAgent, ended: EndReason) -> store::Result<()> {
    let &RunAgent {
        tenant, thread, run, ..
    } = job;
    let row = match runs::get(tx, tenant, run).await {
        // Rolled back; its thread, if it still exists, must not stay busy.
        Err(store::Error::NotFound) => {
            checkpoints::delete_run(tx, thread, run).await?;
            a2a::roll_back_run(tx, tenant, run).await?;
            threads::settle_untouched(tx, tenant, thread).await?;
            notify_readers(tx, job, LogScope::Others, None, None).await?;
            return delete_orphaned_log(tx, tenant, thread).await;
        }
        row => row?,
    };
    if row.status.is_final() {
        return Ok(());
    }
    let wishes = EndOptions::of(&row);
    let log = if wishes.resumable {
        LogScope::Own
    } else {
        LogScope::Others
    };
    let (status, error) = match ended {
        EndReason::Cancelled => (RunStatus::Interrupted, None),
        EndReason::Failed(error) => {
            tracing::warn!(run.id = %run, error, "a run failed without its worker");
            let text = "The run was given up: its workers were lost, or failed for reasons of the server";
            (
                RunStatus::Error,
                Some(json!({"error": "RuntimeError", "message": text})),
            )
        }
        EndReason::TimedOut => {
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
        a2a::roll_back_run(tx, tenant, run).await?;
        if job.temporary {
            release_thread(tx, job, ThreadStatus::Idle, None).await?;
        } else {
            threads::settle_untouched(tx, tenant, thread).await?;
        }
        return notify_readers(tx, job, log, None, None).await;
    }
    if let Some(url) = wishes.webhook.as_deref() {
        let body = send_webhook::body(&row, status, tx.now(), None, error.as_ref());
        send_webhook::start(tx, tenant, url, body).await?;
    }
    runs::finish(tx, tenant, run, status).await?;
    a2a::finish_run(tx, tenant, &row, status, || error.as_ref().map(Outcome::from_error)).await?;
    if error.is_some() {
        release_thread(tx, job, ThreadStatus::Error, error.as_ref()).await?;
    } else if row.started_at.is_some() || job.temporary {
        release_thread(tx, job, ThreadStatus::Idle, None).await?;
    } else {
        // It never started, so its thread keeps its state and may be waiting for input.
        threads::settle_untouched(tx, tenant, thread).await?;
    }
    notify_readers(tx, job, log, Some(status), error).await
}

/// Deletes the log of a thread that was deleted under its run, which kept logging until its worker stopped.
pub(super) async fn delete_orphaned_log(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> store::Result<()> {
    if threads::exists(tx, tenant, thread).await? {
        return Ok(());
    }
    run_events::delete_thread_log(tx, tenant, thread).await
}

/// Whose events the log of the thread contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogScope {
    /// Those of the run: readers find its end there, even if nothing else was logged.
    Own,
    /// Possibly those of other runs, or of every run.
    Others,
}

async fn release_thread(
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
    let left = threads::ThreadOutcome {
        state: None,
        error: error.as_deref(),
    };
    threads::settle(tx, tenant, thread, stands, &left).await
}

/// Reports the end to readers, and to the log if there is one.
async fn notify_readers(
    tx: &mut Tx<'_>,
    job: &RunAgent,
    log: LogScope,
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
    // Its worker may have logged more than readers have seen.
    let (attempt, number) = match last {
        Some(_) => run_events::last_frame(tx, tenant, thread, run)
            .await?
            .unwrap_or_default(),
        None => (0, 0),
    };
    let end = RunEnd {
        status,
        attempt,
        last: number,
        values: None,
        error: error.filter(|_| job.temporary),
    };
    frames.push(end_frame(run, 0, id, &end));
    if log == LogScope::Own || last.is_some() {
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

/// The arguments of a run that matter for its end.
#[derive(Default, Deserialize)]
#[serde(default)]
struct EndOptions {
    webhook: Option<String>,
    resumable: bool,
}

impl EndOptions {
    /// Works even if the other arguments cannot be read.
    fn of(run: &Run) -> Self {
        serde_json::from_str(&run.kwargs).unwrap_or_default()
    }
}
