//! The last transaction of a run that ended by itself or was stopped while it ran.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use towpath_domain::agent::a2a::Outcome as TaskOutcome;
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::agent::{CancelAction, Kwargs, RunStatus, StreamMode};
use towpath_domain::{TenantId, ThreadId};
use towpath_durable::{BatchedWrite, Ctx, Failure, Outcome, Settlement};
use towpath_store::runs::{self, Run, stateless};
use towpath_store::threads;
use towpath_store::{self as store, Tx, attempts, checkpoints, run_events};

use super::end::delete_orphaned_log;
use super::graph_end::Ending;
use super::host::PendingWrites;
use super::job::RunAgent;
use super::saver::without_nul;
use super::saver::write_all;
use super::stream::UnloggedFrames;
use crate::{a2a, send_webhook};

/// An ended run.
pub struct Conclusion<'a> {
    pub job: &'a RunAgent,
    /// The run as of the start of the attempt.
    pub run: &'a Run,
    pub kwargs: &'a Kwargs,
    pub ending: Ending,
    /// Data that remains to be written.
    pub pending: PendingWrites,
}

impl Conclusion<'_> {
    /// Writes everything, together with the end of the job.
    pub async fn settle(mut self, ctx: &mut Ctx) -> Outcome {
        if self.is_disposable() {
            return ctx.complete_with(StatelessCompletion {
                tenant: self.job.tenant,
                thread: self.job.thread,
                end: self.last_frame(Some(RunStatus::Success)).0.into(),
            });
        }
        if !matches!(self.ending, Ending::Cancelled { .. }) {
            match ctx.settle(async |tx| self.write(tx).await).await {
                // Cancelled before this was written: the cancel was acknowledged and must hold.
                Err(Failure::Cancelled) => self.ending = self.ending.into_cancelled(),
                settled => return settled,
            }
        }
        // An orderly stop is the effect here, and the rows record the cancel.
        ctx.settle_as(Settlement::irrevocable(), async |tx| self.write(tx).await)
            .await
    }

    /// Whether ending it only requires deleting its thread: it succeeded, and nothing of it was stored.
    fn is_disposable(&self) -> bool {
        self.job.temporary
            && matches!(self.ending, Ending::Done(_))
            && !self.pending.stream.logged()
            && !self.pending.wrote
            && self.pending.fence == 1
            && self.kwargs.webhook.is_none()
    }

    async fn write(&self, tx: &mut Tx<'_>) -> store::Result<()> {
        let &RunAgent {
            tenant, thread, run, ..
        } = self.job;
        let status = self.ending.status();
        if status == RunStatus::Interrupted && self.rolls_back(tx).await? {
            checkpoints::delete_run(tx, thread, run).await?;
            runs::delete(tx, tenant, run).await?;
            a2a::roll_back_run(tx, tenant, run).await?;
            if self.job.temporary {
                self.drop_thread(tx).await?;
                return self.notify_readers(tx, None).await;
            }
            threads::settle_untouched(tx, tenant, thread).await?;
            self.notify_readers(tx, None).await?;
            return delete_orphaned_log(tx, tenant, thread).await;
        }
        if let Ending::Failed {
            operator_error: Some(told),
            ..
        } = &self.ending
        {
            // The job itself succeeded, so its attempt would not contain the graph's error.
            let attempt = attempts::Attempt {
                fence: self.pending.fence,
                outcome: "failed".to_owned(),
                failure: None,
                error: told.clone(),
                worker_id: None,
                at: tx.now(),
            };
            attempts::record(tx, self.run.job_id, &attempt).await?;
        }
        if let Some(url) = &self.kwargs.webhook {
            let values = self.ending.final_state().map(|left| left.values.raw());
            let body = send_webhook::body(self.run, status, tx.now(), values, self.ending.error());
            send_webhook::start(tx, tenant, url, body).await?;
        }
        if self.job.temporary {
            self.drop_thread(tx).await?;
        } else {
            runs::finish(tx, tenant, run, status).await?;
            write_all(tx, thread, Some(run), &self.pending.saves).await?;
            let texts = self
                .ending
                .final_state()
                .map(|left| (without_nul(left.values.json().to_owned()), text(&left.interrupts)));
            let error = self.ending.error().map(text);
            let left = threads::ThreadOutcome {
                state: texts
                    .as_ref()
                    .map(|(values, interrupts)| (values.as_str(), interrupts.as_str())),
                error: error.as_deref(),
            };
            threads::settle(tx, tenant, thread, self.ending.thread_status(), &left).await?;
            a2a::finish_run(tx, tenant, self.run, status, || self.task_outcome()).await?;
        }
        self.notify_readers(tx, Some(status)).await
    }

    /// A run whose row is missing was deleted while it ran, so its changes are rolled back.
    async fn rolls_back(&self, tx: &mut Tx<'_>) -> store::Result<bool> {
        match runs::get(tx, self.job.tenant, self.job.run).await {
            Err(store::Error::NotFound) => Ok(true),
            run => Ok(run?.cancel_action == Some(CancelAction::Rollback)),
        }
    }

    /// Deletes the thread of a stateless run.
    async fn drop_thread(&self, tx: &mut Tx<'_>) -> store::Result<()> {
        let &RunAgent { tenant, thread, .. } = self.job;
        threads::delete_bare(tx, tenant, thread).await?;
        // Waiting data was never written; written data is from this attempt or an earlier one.
        if self.pending.wrote || self.pending.fence > 1 {
            checkpoints::delete_all(tx, thread).await?;
        }
        Ok(())
    }

    /// Reports the end of the run to readers and the log.
    async fn notify_readers(&self, tx: &mut Tx<'_>, status: Option<RunStatus>) -> store::Result<()> {
        let &RunAgent {
            tenant, thread, run, ..
        } = self.job;
        let (frame, log) = self.last_frame(status);
        if self.pending.stream.logged() {
            run_events::append_all(tx, tenant, thread, &log.batches(run, self.pending.fence)).await?;
            let kept = std::time::Duration::from_secs(self.job.events_kept_s);
            let until = tx.now().plus(kept);
            run_events::expire(tx, tenant, thread, run, until).await?;
        }
        tx.publish(thread, frame);
        Ok(())
    }

    /// The last frame of the run, and the rest of its log.
    fn last_frame(&self, status: Option<RunStatus>) -> (String, UnloggedFrames) {
        let orphan = self.job.temporary && status.is_some();
        // The final state of a successful run was just streamed. That of a stopped run may be outdated.
        let streamed = status != Some(RunStatus::Interrupted) && self.kwargs.stream_mode.contains(&StreamMode::Values);
        self.pending.stream.end(&RunEnd {
            status,
            attempt: 0,
            last: 0,
            // Waiting clients cannot read the state from a deleted thread.
            values: (orphan && !streamed).then(|| self.values().cloned()).flatten(),
            error: self.ending.error().filter(|_| orphan).cloned(),
        })
    }

    fn values(&self) -> Option<&Value> {
        self.ending.final_state().map(|left| left.values.value())
    }

    /// The outcome for an Agent2Agent task.
    fn task_outcome(&self) -> Option<TaskOutcome> {
        match &self.ending {
            Ending::Done(left) if left.has_next_steps => Some(TaskOutcome::from_interrupts(&left.interrupts)),
            Ending::Done(left) => Some(TaskOutcome::from_values(left.values.value())),
            Ending::Failed { error, .. } | Ending::TimedOut { error, .. } => Some(TaskOutcome::from_error(error)),
            Ending::Cancelled { .. } => None,
        }
    }
}

/// The end of a run that leaves no data.
#[derive(Debug)]
struct StatelessCompletion {
    tenant: TenantId,
    thread: ThreadId,
    end: Arc<str>,
}

impl BatchedWrite for StatelessCompletion {
    fn write<'a, 'c: 'a>(
        &'a self,
        tx: &'a mut Tx<'c>,
        all: &'a [Arc<dyn BatchedWrite>],
    ) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async move {
            let all: Vec<&Self> = towpath_durable::of_type(all).collect();
            for of_tenant in all.chunk_by(|one, next| one.tenant == next.tenant) {
                let threads: Vec<ThreadId> = of_tenant.iter().map(|one| one.thread).collect();
                stateless::delete(tx, of_tenant[0].tenant, &threads).await?;
            }
            for Self { thread, end, .. } in all {
                tx.publish(*thread, Arc::clone(end));
            }
            Ok(())
        })
    }
}

fn text(value: &Value) -> String {
    without_nul(value.to_string())
}
