//! The last transaction of a run that came to an end by itself, or was stopped while it ran.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use towpath_domain::agent::a2a::Outcome as TaskOutcome;
use towpath_domain::agent::frame::End;
use towpath_domain::agent::{CancelAction, Kwargs, RunStatus, StreamMode, ThreadStatus};
use towpath_domain::{TenantId, ThreadId};
use towpath_durable::{Along, Ctx, Failure, Outcome};
use towpath_runtime::Shared;
use towpath_store::runs::{self, Run, temporary};
use towpath_store::threads;
use towpath_store::{self as store, Tx, attempts, checkpoints, run_events};

use super::RunAgent;
use super::end::drop_log_without_thread;
use super::host::Rest;
use super::saver::without_nul;
use super::saver::write_all;
use super::stream::Log;
use crate::{a2a, send_webhook};

/// How a run ended.
pub enum Ending {
    /// The graph ended, or stopped at an interrupt.
    Done(Left),
    /// The graph raised, or could not be run at all.
    Failed {
        /// As callers see it: `{error, message}`.
        error: Value,
        /// All of it, for the operator.
        told: Option<String>,
        /// Where the thread stands, if that can be told.
        left: Option<Left>,
    },
    /// It took too long.
    TimedOut {
        /// As callers see it.
        error: Value,
        /// Where the thread stands.
        left: Option<Left>,
    },
    /// Somebody cancelled it.
    Cancelled {
        /// Where the thread stands.
        left: Option<Left>,
    },
}

/// Where a run leaves its thread.
pub struct Left {
    /// The state.
    pub values: Shared,
    /// Task id to its waiting interrupts.
    pub interrupts: Value,
    /// Whether steps are left to do.
    pub steps_left: bool,
}

impl Ending {
    const fn status(&self) -> RunStatus {
        match self {
            Self::Done(_) => RunStatus::Success,
            Self::Failed { .. } => RunStatus::Error,
            Self::TimedOut { .. } => RunStatus::Timeout,
            Self::Cancelled { .. } => RunStatus::Interrupted,
        }
    }

    const fn left(&self) -> Option<&Left> {
        match self {
            Self::Done(left) => Some(left),
            Self::Failed { left, .. } | Self::TimedOut { left, .. } | Self::Cancelled { left } => left.as_ref(),
        }
    }

    const fn error(&self) -> Option<&Value> {
        match self {
            Self::Failed { error, .. } | Self::TimedOut { error, .. } => Some(error),
            Self::Done(_) | Self::Cancelled { .. } => None,
        }
    }

    /// A strict run refused its resume before anything was done.
    fn is_refused_resume(&self) -> bool {
        matches!(self, Self::Failed { error, .. } if error["error"] == "UnknownInterruptError")
    }

    fn thread_status(&self) -> ThreadStatus {
        match self {
            Self::Failed { left: Some(left), .. } if self.is_refused_resume() => ThreadStatus::after(left.steps_left),
            Self::Failed { .. } | Self::TimedOut { .. } => ThreadStatus::Error,
            Self::Done(_) | Self::Cancelled { .. } => {
                ThreadStatus::after(self.left().is_some_and(|left| left.steps_left))
            }
        }
    }

    /// The same end, seen as a cancel that came before it was written.
    fn cancelled(self) -> Self {
        let left = match self {
            Self::Done(left) => Some(left),
            Self::Failed { left, .. } | Self::TimedOut { left, .. } | Self::Cancelled { left } => left,
        };
        Self::Cancelled { left }
    }
}

/// A run at its end.
pub struct Conclusion<'a> {
    /// Its job.
    pub job: &'a RunAgent,
    /// The run as it was at the start of the attempt.
    pub run: &'a Run,
    /// Its arguments.
    pub kwargs: &'a Kwargs,
    /// How it ended.
    pub ending: Ending,
    /// What is still to be written.
    pub rest: Rest,
}

impl Conclusion<'_> {
    /// Writes everything there is to write, with the end of the job.
    pub async fn settle(mut self, ctx: &mut Ctx) -> Outcome {
        if self.leaves_nothing() {
            return ctx.done_along(Leaves {
                tenant: self.job.tenant,
                thread: self.job.thread,
                end: self.last_frame(Some(RunStatus::Success)).0.into(),
            });
        }
        if !matches!(self.ending, Ending::Cancelled { .. }) {
            match ctx.settle(async |tx| self.write(tx).await).await {
                // Asked to stop before this was written: what was answered to that must hold.
                Err(Failure::Cancelled) => self.ending = self.ending.cancelled(),
                settled => return settled,
            }
        }
        // Stopping in good order is the effect here, and its rows say that the run was cancelled.
        ctx.settle_final(async |tx| self.write(tx).await).await
    }

    /// Whether all it takes to end it is to delete its thread: it did well, and nothing of it was ever kept.
    fn leaves_nothing(&self) -> bool {
        self.job.temporary
            && matches!(self.ending, Ending::Done(_))
            && !self.rest.stream.logged()
            && !self.rest.wrote
            && self.rest.fence == 1
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
            a2a::take_back(tx, tenant, run).await?;
            if self.job.temporary {
                self.drop_thread(tx).await?;
                return self.tell(tx, None).await;
            }
            threads::settle_untouched(tx, tenant, thread).await?;
            self.tell(tx, None).await?;
            return drop_log_without_thread(tx, tenant, thread).await;
        }
        if let Ending::Failed { told: Some(told), .. } = &self.ending {
            // The job did what it had to, so its attempt would tell nothing of what the graph raised.
            let attempt = attempts::Attempt {
                fence: self.rest.fence,
                outcome: "failed".to_owned(),
                failure: None,
                error: told.clone(),
                worker_id: None,
                at: tx.now(),
            };
            attempts::record(tx, self.run.job_id, &attempt).await?;
        }
        if let Some(url) = &self.kwargs.webhook {
            let values = self.ending.left().map(|left| left.values.raw());
            let body = send_webhook::body(self.run, status, tx.now(), values, self.ending.error());
            send_webhook::start(tx, tenant, url, body).await?;
        }
        if self.job.temporary {
            self.drop_thread(tx).await?;
        } else {
            runs::finish(tx, tenant, run, status).await?;
            write_all(tx, thread, Some(run), &self.rest.saves).await?;
            let texts = self
                .ending
                .left()
                .map(|left| (without_nul(left.values.json().to_owned()), text(&left.interrupts)));
            let error = self.ending.error().map(text);
            let left = threads::Left {
                state: texts
                    .as_ref()
                    .map(|(values, interrupts)| (values.as_str(), interrupts.as_str())),
                error: error.as_deref(),
            };
            threads::settle(tx, tenant, thread, self.ending.thread_status(), &left).await?;
            a2a::settle(tx, tenant, self.run, status, || self.outcome()).await?;
        }
        self.tell(tx, Some(status)).await
    }

    /// A run whose row is gone was deleted while it ran, which takes back what it did.
    async fn rolls_back(&self, tx: &mut Tx<'_>) -> store::Result<bool> {
        match runs::get(tx, self.job.tenant, self.job.run).await {
            Err(store::Error::NotFound) => Ok(true),
            run => Ok(run?.cancel_action == Some(CancelAction::Rollback)),
        }
    }

    /// The thread of a stateless run goes with it.
    async fn drop_thread(&self, tx: &mut Tx<'_>) -> store::Result<()> {
        let &RunAgent { tenant, thread, .. } = self.job;
        threads::delete_bare(tx, tenant, thread).await?;
        // All that waits was never written; what was, was written by this attempt or an earlier one.
        if self.rest.wrote || self.rest.fence > 1 {
            checkpoints::delete_all(tx, thread).await?;
        }
        Ok(())
    }

    /// Tells readers, and the log, that the run is over.
    async fn tell(&self, tx: &mut Tx<'_>, status: Option<RunStatus>) -> store::Result<()> {
        let &RunAgent {
            tenant, thread, run, ..
        } = self.job;
        let (frame, log) = self.last_frame(status);
        if self.rest.stream.logged() {
            run_events::append_all(tx, tenant, thread, &log.batches(run, self.rest.fence)).await?;
            let kept = std::time::Duration::from_secs(self.job.events_kept_s);
            let until = tx.now().plus(kept);
            run_events::expire(tx, tenant, thread, run, until).await?;
        }
        tx.publish(thread, frame);
        Ok(())
    }

    /// The frame that ends the run, and the rest of its log.
    fn last_frame(&self, status: Option<RunStatus>) -> (String, Log) {
        let orphan = self.job.temporary && status.is_some();
        // The last state of a run that did well was streamed just now. Of one that was stopped it may be long ago.
        let streamed = status != Some(RunStatus::Interrupted) && self.kwargs.stream_mode.contains(&StreamMode::Values);
        self.rest.stream.end(&End {
            status,
            attempt: 0,
            last: 0,
            // Who waits for a thread that is gone cannot read its state there.
            values: (orphan && !streamed).then(|| self.values().cloned()).flatten(),
            error: self.ending.error().filter(|_| orphan).cloned(),
        })
    }

    fn values(&self) -> Option<&Value> {
        self.ending.left().map(|left| left.values.value())
    }

    /// What is left to a task.
    fn outcome(&self) -> Option<TaskOutcome> {
        match &self.ending {
            Ending::Done(left) if left.steps_left => Some(TaskOutcome::question(&left.interrupts)),
            Ending::Done(left) => Some(TaskOutcome::answer(left.values.value())),
            Ending::Failed { error, .. } | Ending::TimedOut { error, .. } => Some(TaskOutcome::failure(error)),
            Ending::Cancelled { .. } => None,
        }
    }
}

/// The end of a run that leaves nothing.
#[derive(Debug)]
struct Leaves {
    tenant: TenantId,
    thread: ThreadId,
    /// Its last frame.
    end: Arc<str>,
}

impl Along for Leaves {
    fn write<'a, 'c: 'a>(&'a self, tx: &'a mut Tx<'c>, all: &'a [Arc<dyn Along>]) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async move {
            let all: Vec<&Self> = towpath_durable::each(all).collect();
            for of_tenant in all.chunk_by(|one, next| one.tenant == next.tenant) {
                let threads: Vec<ThreadId> = of_tenant.iter().map(|one| one.thread).collect();
                temporary::delete(tx, of_tenant[0].tenant, &threads).await?;
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
