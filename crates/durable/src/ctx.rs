//! The context of a running workflow.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Rejection, TenantId, Timestamp, failpoint};
use towpath_store::jobs::{self, ClaimedJob, JobFence, JobTransition};
use towpath_store::steps::{self, NewStep};
use towpath_store::{self as store, Tx};
use tracing::Instrument as _;

use crate::batched_write::BatchedWrite;
use crate::engine::Engine;
use crate::failure::{Cause, Failure, Outcome, Success, SuccessKind};
use crate::lane::Lane;
use crate::locked_jobs::LockedJobs;
use crate::metric;
use crate::settlement::{OnCancel, Settlement};

/// A running job, as its workflow sees it. All writes are fenced: once another worker holds the job, every call returns
/// [`Failure::Lost`] and writes nothing.
pub struct Ctx {
    engine: Engine,
    job: ClaimedJob,
    cancelled: CancellationToken,
    /// Finished steps of earlier attempts, read at the first step of a job that was claimed before.
    journal: Option<HashMap<String, String>>,
    used_step_names: HashSet<String>,
    cursor: Option<String>,
    /// Number of failed children known to this attempt.
    bad_children: i64,
    /// Start of the attempt.
    started_at: Instant,
}

#[derive(Clone, Debug)]
pub struct Child {
    pub id: JobId,
    pub kind: String,
    pub state: JobState,
    pub error: Option<String>,
}

impl Ctx {
    pub(crate) fn new(engine: Engine, job: ClaimedJob, cancelled: CancellationToken) -> Self {
        let cursor = job.cursor.clone();
        // A fence of 1 is the first claim: there cannot be a finished step.
        let journal = (job.fence == 1).then(HashMap::new);
        let bad_children = job.bad_children;
        Self {
            engine,
            job,
            cancelled,
            journal,
            used_step_names: HashSet::new(),
            cursor,
            bad_children,
            started_at: Instant::now(),
        }
    }

    #[must_use]
    pub fn job(&self) -> JobId {
        self.job.id
    }

    /// The tenant that owns the job.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.job.tenant_id
    }

    /// Number of this attempt, from 1. Returns, snoozes and waits do not count.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.job.attempt).unwrap_or(u32::MAX)
    }

    #[must_use]
    pub fn failures(&self) -> u32 {
        u32::try_from(self.job.failures).unwrap_or(u32::MAX)
    }

    /// Rises with every claim; targets can compare it to reject writes of former holders.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.job.fence
    }

    /// How long a silent worker keeps its jobs.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.engine.settings().lease
    }

    /// Time by the clock that all hosts share: the database's time at the claim, advanced by this host's monotonic
    /// clock. For deadlines, independent of this host's wall clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.job.claimed_at.plus(self.started_at.elapsed())
    }

    /// The trace context of the request that recorded this job.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.job.traceparent.as_deref()
    }

    /// An idempotency key that is the same for every attempt of the step `step`. External effects need it, because they
    /// may happen twice.
    #[must_use]
    pub fn idempotency_token(&self, step: &str) -> String {
        format!("{}/{step}", self.job.id)
    }

    /// Cancelled once the job is asked to stop. After its grace, the job is dropped at its next await.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.cancelled.clone()
    }

    /// Performs `f` unless an earlier attempt has, and records its result. `f` may run twice, because its worker can
    /// die before the result is recorded; the result is recorded once.
    ///
    /// A name can be used once per attempt, or the call fails with [`Failure::Fatal`]: in a loop, include the cursor in
    /// the name.
    pub async fn step<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        f: impl AsyncFnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if !self.used_step_names.insert(name.to_owned()) {
            return Err(Failure::fatal(format!(
                "the step {name:?} was used twice in one attempt"
            )));
        }
        if self.journal.is_none() {
            let steps = self
                .engine
                .store()
                .read(async |tx| steps::list(tx, self.job.id).await)
                .await
                .map_err(failure)?;
            self.journal = Some(steps.into_iter().map(|step| (step.name, step.output)).collect());
        }
        if let Some(output) = self.journal.as_ref().and_then(|journal| journal.get(name)) {
            metrics::counter!(metric::STEPS, "kind" => self.job.kind.clone(), "from" => "journal").increment(1);
            return serde_json::from_str(output).map_err(|error| {
                Failure::fatal(format!(
                    "the recorded result of the step {name:?} cannot be read: {error}"
                ))
            });
        }
        let span = tracing::debug_span!("step", step.name = name);
        let answer = f().instrument(span.clone()).await?;
        let output = serde_json::to_string(&answer)
            .map_err(|error| Failure::fatal(format!("the result of the step {name:?} cannot be recorded: {error}")))?;
        failpoint::hit("step.before_record");
        let step = NewStep {
            job: self.fenced_job(),
            name: name.to_owned(),
            output,
        };
        let recorded = self.engine.record_step(step).instrument(span).await;
        if !recorded.map_err(failure)? {
            metrics::counter!(metric::STALE).increment(1);
            return Err(Failure::Lost);
        }
        metrics::counter!(metric::STEPS, "kind" => self.job.kind.clone(), "from" => "run").increment(1);
        failpoint::hit("step.after_record");
        Ok(answer)
    }

    /// The last saved cursor of this job.
    pub fn cursor<C: DeserializeOwned>(&self) -> Result<Option<C>, Failure> {
        self.cursor
            .as_deref()
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| Failure::fatal(format!("the checkpoint cannot be read: {error}")))
    }

    /// Saves the cursor together with the rows that it describes.
    pub async fn checkpoint<C: Serialize>(
        &mut self,
        cursor: &C,
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
    ) -> Result<(), Failure> {
        let cursor = serde_json::to_string(cursor)
            .map_err(|error| Failure::fatal(format!("the checkpoint cannot be recorded: {error}")))?;
        let id = self.job.id;
        failpoint::hit("checkpoint.before");
        self.commit(async |tx| {
            f(tx).await?;
            jobs::save_cursor(tx, id, &cursor).await
        })
        .instrument(tracing::debug_span!("checkpoint"))
        .await?;
        metrics::counter!(metric::CHECKPOINTS, "kind" => self.job.kind.clone()).increment(1);
        failpoint::hit("checkpoint.after");
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Writes business rows. The job row is locked and its fence checked before `f` starts.
    ///
    /// [`Failure::Lost`] if another worker holds the job, [`Failure::Cancelled`] if it was asked to stop,
    /// [`Failure::Retry`] if the database was unavailable, [`Failure::Fatal`] if a rule was violated.
    pub async fn commit<T>(&mut self, f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<T>) -> Result<T, Failure> {
        self.commit_in(&[], f).await
    }

    /// Like [`Ctx::commit`], for a closure that starts jobs in these lanes: they are locked before the job row.
    pub async fn commit_in<T>(
        &mut self,
        lanes: &[Lane],
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<T>,
    ) -> Result<T, Failure> {
        let id = self.job.id;
        self.lock_held(Settlement::starting_in(lanes), LockScope::Job, async |tx, _| {
            let answer = f(tx).await?;
            refuse_unawaited_children(tx, id)?;
            Ok(answer)
        })
        .await
    }

    /// Ends the attempt and waits for child jobs, which `f` starts with [`Start::child_of`](crate::Start::child_of)
    /// this job. The job keeps its lane slot and its deadline, but no worker. `run` is called again, with its journal,
    /// when the last child has ended or one has failed. Without an open child it is called again at once; the same
    /// applies if a child failed that is not yet among the [children](Self::children) of this attempt.
    pub async fn wait(&mut self, lanes: &[Lane], f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>) -> Outcome {
        let (id, known) = (self.job.id, self.bad_children);
        failpoint::hit("wait.before");
        self.lock_held(Settlement::starting_in(lanes), LockScope::Job, async |tx, hold| {
            f(tx).await?;
            let open = jobs::count_children(tx, id).await?;
            let row = hold.job(id);
            let goes_on = open == 0 || row.bad_children > known;
            let mut to = JobTransition::of(row, if goes_on { JobState::Ready } else { JobState::Waiting });
            // Waiting does not count as an attempt.
            to.attempt -= 1;
            to.lost_leases = 0;
            hold.move_to(tx, id, to).await
        })
        .instrument(tracing::debug_span!("wait"))
        .await?;
        failpoint::hit("wait.after");
        Ok(Success(SuccessKind::Settled))
    }

    /// The children of this job.
    pub async fn children(&mut self) -> Result<Vec<Child>, Failure> {
        let id = self.job.id;
        let children = self
            .engine
            .store()
            .read(async |tx| jobs::children(tx, id, i64::MAX).await)
            .await
            .map_err(failure)?;
        let ended_badly = |job: &&jobs::Job| job.state.is_final() && job.state != JobState::Succeeded;
        let bad = children.iter().filter(ended_badly).count();
        self.bad_children = self.bad_children.max(i64::try_from(bad).unwrap_or(i64::MAX));
        Ok(children
            .into_iter()
            .map(|job| Child {
                id: job.id,
                kind: job.kind,
                state: job.state,
                error: job.error,
            })
            .collect())
    }

    /// Sets the deadline of the job, unless it has one.
    pub async fn deadline(&mut self, time: Timestamp) -> Result<(), Failure> {
        let id = self.job.id;
        self.commit(async |tx| jobs::set_deadline(tx, id, time).await).await
    }

    /// Ends the job as succeeded; `f` writes the final business rows in the same transaction. Open children are
    /// cancelled.
    ///
    /// [`Failure::Cancelled`] if the job was asked to stop before; see [`Settlement::irrevocable`]. Otherwise like
    /// [`Ctx::commit`].
    pub async fn settle(&mut self, f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>) -> Outcome {
        self.settle_as(Settlement::default(), f).await
    }

    /// Like [`Ctx::settle`], on other terms.
    pub async fn settle_as(
        &mut self,
        how: Settlement<'_>,
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
    ) -> Outcome {
        failpoint::hit("settle.before");
        self.settle_locked(how, f)
            .instrument(tracing::debug_span!("settle"))
            .await?;
        failpoint::hit("settle.after");
        Ok(Success(SuccessKind::Settled))
    }

    /// Ends the job as succeeded, writing only its own row; many such rows are written together.
    pub fn complete(&self) -> Outcome {
        Ok(Success(SuccessKind::CompletionPending(None)))
    }

    /// Like [`Ctx::complete`], with business rows that are written together with those of other jobs. A job that was
    /// asked to stop before that ends as cancelled, and the rows are not written.
    pub fn complete_with(&self, along: impl BatchedWrite) -> Outcome {
        Ok(Success(SuccessKind::CompletionPending(Some(Arc::new(along)))))
    }

    pub(crate) fn fenced_job(&self) -> JobFence {
        JobFence {
            id: self.job.id,
            fence: self.job.fence,
        }
    }

    async fn settle_locked(
        &mut self,
        how: Settlement<'_>,
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
    ) -> Result<(), Failure> {
        let id = self.job.id;
        let mut f = Some(f);
        // If nothing else changes with the job, one statement locks it, checks its fence and ends it.
        let alone = self.job.lane.is_none() && self.job.parent_id.is_none() && self.job.open_children == 0;
        if alone && how.lanes.is_empty() && how.on_cancel == OnCancel::Refuse {
            let written = self
                .engine
                .store()
                .write(async |tx| {
                    if !jobs::succeed(tx, self.fenced_job()).await? {
                        return Err(store::Error::Stale);
                    }
                    if let Some(f) = f.take() {
                        f(tx).await?;
                    }
                    refuse_unawaited_children(tx, id)
                })
                .await;
            if f.is_none() {
                written.map_err(failure)?;
                metrics::counter!(metric::FINISHED, "pool" => self.job.pool.clone(), "kind" => self.job.kind.clone(),
                                  "outcome" => "succeeded")
                .increment(1);
                return Ok(());
            }
            // The job moved on, was asked to stop, or the database is unavailable; the code below finds out which.
        }
        self.lock_held(how, LockScope::Family, async |tx, hold| {
            if let Some(f) = f {
                f(tx).await?;
            }
            refuse_unawaited_children(tx, id)?;
            hold.finish(tx, id, None, false).await
        })
        .await
    }

    /// One transaction as the holder of the job.
    async fn lock_held<T>(
        &mut self,
        how: Settlement<'_>,
        scope: LockScope,
        f: impl AsyncFnOnce(&mut Tx<'_>, &mut LockedJobs) -> store::Result<T>,
    ) -> Result<T, Failure> {
        let id = self.job.id;
        // Children are only recorded by waiting for them, which ends the attempt, so the claim knew all of them.
        let family = scope == LockScope::Family && self.job.open_children > 0;
        // Distinguishes a refused job row from a stale business row, which the workflow must handle.
        let mut refused = None;
        let written = self
            .engine
            .store()
            .write(async |tx| {
                let taken = if family {
                    LockedJobs::lock_fenced(tx, self.fenced_job(), how.lanes, true).await
                } else {
                    LockedJobs::lock_claimed(tx, &self.job, how.lanes).await
                };
                let mut hold = match taken {
                    Err(store::Error::Stale) => {
                        metrics::counter!(metric::STALE).increment(1);
                        refused = Some(Failure::Lost);
                        return Err(store::Error::Stale);
                    }
                    hold => hold?,
                };
                if hold.job(id).cancel_at.is_some() && how.on_cancel == OnCancel::Refuse {
                    refused = Some(Failure::Cancelled);
                    return Err(store::Error::Stale);
                }
                f(tx, &mut hold).await
            })
            .await;
        written.map_err(|error| refused.unwrap_or_else(|| failure(error)))
    }
}

/// What a transaction of the holder locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockScope {
    Job,
    /// The job and its open descendants.
    Family,
}

/// A child recorded in another way would not be counted, and would outlive its parent.
fn refuse_unawaited_children(tx: &Tx<'_>, id: JobId) -> store::Result<()> {
    if tx.noted_child(id) {
        return Err(Rejection::rule("", "record children with `ctx.wait`").into());
    }
    Ok(())
}

/// Snooze of a job whose rows are locked.
const LOCKED: Duration = Duration::from_secs(1);

/// The default mapping of store errors to failures.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err as it is")]
pub(crate) fn failure(error: store::Error) -> Failure {
    let cause = Cause::of(&error);
    match &error {
        store::Error::NotFound | store::Error::Rejected(_) | store::Error::Corrupt { .. } => Failure::Fatal(cause),
        // Other transactions lock its rows: not a fault of the job, so no attempt is spent.
        _ if error.is_locked() => Failure::Snooze(LOCKED),
        _ => Failure::Retry(cause),
    }
}
