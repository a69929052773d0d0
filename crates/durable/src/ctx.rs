//! What a workflow may ask for while it runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Rejection, TenantId, Timestamp, failpoint};
use towpath_store::jobs::{self, Claimed, Fenced, Move};
use towpath_store::steps::{self, NewStep};
use towpath_store::{self as store, Tx};
use tracing::Instrument as _;

use crate::along::Along;
use crate::engine::Engine;
use crate::failure::{Cause, Done, End, Failure, Outcome};
use crate::hold::Hold;
use crate::lane::Lane;
use crate::metric;

/// A running job, as its workflow sees it. Everything it writes is fenced: once another worker holds the job, every
/// call answers [`Failure::Lost`] and nothing of it is kept.
pub struct Ctx {
    engine: Engine,
    job: Claimed,
    cancelled: CancellationToken,
    /// Finished steps of earlier attempts; read at the first step of a job that was claimed before.
    journal: Option<HashMap<String, String>>,
    used: HashSet<String>,
    cursor: Option<String>,
    /// Children known to have ended badly.
    bad_children: i64,
    /// When the attempt began here.
    began: Instant,
}

/// A child of a waiting parent.
#[derive(Clone, Debug)]
pub struct Child {
    /// The child.
    pub id: JobId,
    /// Its kind.
    pub kind: String,
    /// Where it stands.
    pub state: JobState,
    /// Its last error.
    pub error: Option<String>,
}

impl Ctx {
    pub(crate) fn new(engine: Engine, job: Claimed, cancelled: CancellationToken) -> Self {
        let cursor = job.cursor.clone();
        // A fence of 1 is the first claim ever: there can be no finished step, so none is looked for.
        let journal = (job.fence == 1).then(HashMap::new);
        let bad_children = job.bad_children;
        Self {
            engine,
            job,
            cancelled,
            journal,
            used: HashSet::new(),
            cursor,
            bad_children,
            began: Instant::now(),
        }
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job.id
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.job.tenant_id
    }

    /// Which attempt this is, from 1. Hand-backs, snoozes and waits do not count.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.job.attempt).unwrap_or(u32::MAX)
    }

    /// Failed attempts so far.
    #[must_use]
    pub fn failures(&self) -> u32 {
        u32::try_from(self.job.failures).unwrap_or(u32::MAX)
    }

    /// Rises each time the job changes hands: for targets that can compare it.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.job.fence
    }

    /// How long a worker that falls silent keeps its jobs.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.engine.settings().lease
    }

    /// What the clock says that times of several hosts are compared by, as it was at the claim and went on here: for what has to
    /// be over in time, whatever this host's own clock says.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.job.claimed_at.plus(self.began.elapsed())
    }

    /// The trace context of the request that asked for this job.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.job.traceparent.as_deref()
    }

    /// The same for every attempt of the step called `step`: what an external effect should be keyed by, because it
    /// may happen twice.
    #[must_use]
    pub fn idempotency_token(&self, step: &str) -> String {
        format!("{}/{step}", self.job.id)
    }

    /// Cancelled once somebody asked the job to stop. After a grace the job is dropped where it stands.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.cancelled.clone()
    }

    /// Performs `f` unless an earlier attempt has, and keeps what it answers. `f` may run twice (its worker can die
    /// before the answer is recorded), its answer is recorded once.
    ///
    /// # Errors
    /// What `f` answers; [`Failure::Fatal`] when the name was used before in this attempt, which would make the
    /// second use answer the first one's result: inside a loop the name carries the cursor.
    pub async fn step<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        f: impl AsyncFnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if !self.used.insert(name.to_owned()) {
            return Err(Failure::fatal(format!(
                "the step {name:?} was performed twice in one attempt"
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
                    "the recorded answer of the step {name:?} cannot be read: {error}"
                ))
            });
        }
        let span = tracing::debug_span!("step", step.name = name);
        let answer = f().instrument(span.clone()).await?;
        let output = serde_json::to_string(&answer)
            .map_err(|error| Failure::fatal(format!("the answer of the step {name:?} cannot be recorded: {error}")))?;
        failpoint::hit("step.before_record");
        let step = NewStep {
            job: self.fenced(),
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

    /// How far an earlier attempt, or this one, has come.
    ///
    /// # Errors
    /// [`Failure::Fatal`] when the checkpoint is not a `C`.
    pub fn cursor<C: DeserializeOwned>(&self) -> Result<Option<C>, Failure> {
        self.cursor
            .as_deref()
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| Failure::fatal(format!("the checkpoint cannot be read: {error}")))
    }

    /// Saves how far the job has come, together with the rows that describe it.
    ///
    /// # Errors
    /// [`Failure::Lost`] when another worker holds the job, else as [`Ctx::commit`].
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

    /// Writes business rows. The job row is locked and its fence checked before `f` begins.
    ///
    /// # Errors
    /// [`Failure::Lost`] when another worker holds the job, [`Failure::Cancelled`] when it was asked to stop,
    /// [`Failure::Retry`] when the database was not available, [`Failure::Fatal`] when a rule said no.
    pub async fn commit<T>(&mut self, f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<T>) -> Result<T, Failure> {
        self.commit_in(&[], f).await
    }

    /// As [`Ctx::commit`], for a closure that starts jobs in these lanes: they are locked before the job row.
    ///
    /// # Errors
    /// As [`Ctx::commit`].
    pub async fn commit_in<T>(
        &mut self,
        lanes: &[Lane],
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<T>,
    ) -> Result<T, Failure> {
        let id = self.job.id;
        self.held(lanes, false, false, async |tx, _| {
            let answer = f(tx).await?;
            no_children(tx, id)?;
            Ok(answer)
        })
        .await
    }

    /// Ends the attempt by waiting for child jobs, which `f` starts with [`Start::child_of`](crate::Start::child_of)
    /// this job. The job keeps its lane place and its deadline, but no worker. `run` is entered anew, with its
    /// journal, when the last child is over or one ended badly. With no open child it is entered at once, and also when a child
    /// ended badly that this attempt has not seen among its [children](Self::children).
    ///
    /// # Errors
    /// As [`Ctx::commit`].
    pub async fn wait(&mut self, lanes: &[Lane], f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>) -> Outcome {
        let (id, known) = (self.job.id, self.bad_children);
        failpoint::hit("wait.before");
        self.held(lanes, false, false, async |tx, hold| {
            f(tx).await?;
            let open = jobs::count_children(tx, id).await?;
            let row = hold.job(id);
            let goes_on = open == 0 || row.bad_children > known;
            let mut to = Move::of(row, if goes_on { JobState::Ready } else { JobState::Waiting });
            // Waiting is no attempt.
            to.attempt -= 1;
            to.lost_leases = 0;
            hold.move_to(tx, id, to).await
        })
        .instrument(tracing::debug_span!("wait"))
        .await?;
        failpoint::hit("wait.after");
        Ok(Done(End::Written))
    }

    /// The children of this job.
    ///
    /// # Errors
    /// [`Failure::Retry`] when the database was not available.
    pub async fn children(&mut self) -> Result<Vec<Child>, Failure> {
        let id = self.job.id;
        let children = self
            .engine
            .store()
            .read(async |tx| jobs::children(tx, id, false, i64::MAX).await)
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

    /// Sets the job's deadline, if it has none yet.
    ///
    /// # Errors
    /// As [`Ctx::commit`].
    pub async fn deadline(&mut self, time: Timestamp) -> Result<(), Failure> {
        let id = self.job.id;
        self.commit(async |tx| jobs::set_deadline(tx, id, time).await).await
    }

    /// Ends the job well: `f` writes the final business rows in the same transaction. Children still open are
    /// cancelled.
    ///
    /// # Errors
    /// [`Failure::Cancelled`] when the job was asked to stop before this; see [`Ctx::settle_final`]. Else as
    /// [`Ctx::commit`].
    pub async fn settle(&mut self, f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>) -> Outcome {
        self.settle_in(&[], false, f).await
    }

    /// As [`Ctx::settle`], for a closure that starts jobs in these lanes.
    ///
    /// # Errors
    /// As [`Ctx::settle`].
    pub async fn settle_with(
        &mut self,
        lanes: &[Lane],
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
    ) -> Outcome {
        self.settle_in(lanes, false, f).await
    }

    /// As [`Ctx::settle`], also when the job was asked to stop: the effect has happened and cannot be taken back.
    ///
    /// # Errors
    /// As [`Ctx::settle`], without `Cancelled`.
    pub async fn settle_final(&mut self, f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>) -> Outcome {
        self.settle_in(&[], true, f).await
    }

    /// Ends the job well with nothing to write but its own row; many such are written together.
    ///
    /// # Errors
    /// None; it answers an outcome to return.
    pub fn done(&self) -> Outcome {
        Ok(Done(End::Bare(None)))
    }

    /// As [`Ctx::done`], with business rows that are written with those of other jobs. A job that was asked to stop
    /// before that ends as cancelled, and they are not written.
    ///
    /// # Errors
    /// None; it answers an outcome to return.
    pub fn done_along(&self, along: impl Along) -> Outcome {
        Ok(Done(End::Bare(Some(Arc::new(along)))))
    }

    pub(crate) fn fenced(&self) -> Fenced {
        Fenced {
            id: self.job.id,
            fence: self.job.fence,
        }
    }

    pub(crate) async fn settle_in(
        &mut self,
        lanes: &[Lane],
        even_cancelled: bool,
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
    ) -> Outcome {
        failpoint::hit("settle.before");
        self.settled(lanes, even_cancelled, f)
            .instrument(tracing::debug_span!("settle"))
            .await?;
        failpoint::hit("settle.after");
        Ok(Done(End::Written))
    }

    async fn settled(
        &mut self,
        lanes: &[Lane],
        even_cancelled: bool,
        f: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
    ) -> Result<(), Failure> {
        let id = self.job.id;
        let mut f = Some(f);
        // Where nothing else changes with the job, one statement locks it, looks at its fence and ends it.
        let alone = self.job.lane.is_none() && self.job.parent_id.is_none() && self.job.open_children == 0;
        if alone && lanes.is_empty() && !even_cancelled {
            let written = self
                .engine
                .store()
                .write(async |tx| {
                    if !jobs::succeed(tx, self.fenced()).await? {
                        return Err(store::Error::Stale);
                    }
                    if let Some(f) = f.take() {
                        f(tx).await?;
                    }
                    no_children(tx, id)
                })
                .await;
            if f.is_none() {
                written.map_err(failure)?;
                metrics::counter!(metric::FINISHED, "pool" => self.job.pool.clone(), "kind" => self.job.kind.clone(),
                                  "outcome" => "succeeded")
                .increment(1);
                return Ok(());
            }
            // It moved on, or was asked to stop, or the database is away: below it turns out which.
        }
        self.held(lanes, even_cancelled, true, async |tx, hold| {
            if let Some(f) = f {
                f(tx).await?;
            }
            no_children(tx, id)?;
            hold.finish(tx, id, None, false).await
        })
        .await
    }

    /// One transaction as the job's holder; with `family` its open descendants are locked too, if it has any.
    async fn held<T>(
        &mut self,
        lanes: &[Lane],
        even_cancelled: bool,
        family: bool,
        f: impl AsyncFnOnce(&mut Tx<'_>, &mut Hold) -> store::Result<T>,
    ) -> Result<T, Failure> {
        let id = self.job.id;
        // Children are recorded by waiting for them, which ends the attempt; so the claim knew of them all.
        let family = family && self.job.open_children > 0;
        // Told apart from a stale business row, which is the workflow's own affair.
        let mut refused = None;
        let written = self
            .engine
            .store()
            .write(async |tx| {
                let taken = if family {
                    Hold::fenced(tx, self.fenced(), lanes, true).await
                } else {
                    Hold::claimed(tx, &self.job, lanes).await
                };
                let mut hold = match taken {
                    Err(store::Error::Stale) => {
                        metrics::counter!(metric::STALE).increment(1);
                        refused = Some(Failure::Lost);
                        return Err(store::Error::Stale);
                    }
                    hold => hold?,
                };
                if hold.job(id).cancel_at.is_some() && !even_cancelled {
                    refused = Some(Failure::Cancelled);
                    return Err(store::Error::Stale);
                }
                f(tx, &mut hold).await
            })
            .await;
        written.map_err(|error| refused.unwrap_or_else(|| failure(error)))
    }
}

/// A child recorded otherwise than by waiting for it would be counted by nobody, and go on when its parent is over.
fn no_children(tx: &Tx<'_>, id: JobId) -> store::Result<()> {
    if tx.noted_child(id) {
        return Err(Rejection::rule("", "children are recorded by waiting for them, with `ctx.wait`").into());
    }
    Ok(())
}

/// How long a job rests whose rows others hold.
const LOCKED: Duration = Duration::from_secs(1);

/// What a failed store call means to a workflow that says nothing else.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err as it is")]
pub(crate) fn failure(error: store::Error) -> Failure {
    let cause = Cause::of(&error);
    match &error {
        store::Error::NotFound | store::Error::Rejected(_) | store::Error::Corrupt { .. } => Failure::Fatal(cause),
        // Others hold its rows: no fault of the job, so no attempt is spent.
        _ if error.is_locked() => Failure::Snooze(LOCKED),
        _ => Failure::Retry(cause),
    }
}
