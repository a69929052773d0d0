//! Performs one attempt of a job, from its claim to the row with its result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::OptionFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use towpath_domain::job::RetryPolicy;
use towpath_store::jobs::{self, ClaimedJob};
use towpath_store::{self as store};
use tracing::{Instrument, Span};

use crate::ctx::Ctx;
use crate::engine::{Completion, Engine};
use crate::failure::{Cause, Failure, Outcome, SuccessKind};
use crate::metric::Meters;
use crate::outcome;
use crate::trace;
use crate::workflow::Registry;

/// Signal of the worker to a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Keep running.
    Run,
    /// The job was asked to stop; it has its grace time.
    Cancel,
    /// The worker stops; the job is returned.
    HandBack,
    /// The lease is lost or about to be: stop at once, nothing more can be written.
    Lost,
}

/// What remains to be done after an attempt.
#[must_use = "the row of a completion remains to be written"]
pub enum AttemptResult {
    /// Nothing: the row is written, or another worker holds the job.
    Settled,
    /// The job succeeded, and its own row and batched rows are written together with those of other jobs.
    CompletionPending(Box<PendingCompletion>),
}

/// A succeeded job whose row is not written yet.
pub struct PendingCompletion {
    completion: Completion,
    meters: Arc<Meters>,
    policy: RetryPolicy,
    started: std::time::Instant,
    signal: watch::Receiver<Signal>,
    span: Span,
}

impl PendingCompletion {
    /// The rows to write.
    #[must_use]
    pub fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Called after the row is written.
    pub fn finish(self) {
        self.meters.ok();
        self.meters.succeeded();
        self.meters.took(self.started);
    }

    /// Writes the row, grouped with concurrent ones. Returns when [`perform`] would.
    pub async fn complete(mut self, engine: &Engine) {
        let mut pause = FIRST_PAUSE;
        loop {
            match engine.complete(self.completion.clone()).await {
                Ok(true) => return self.finish(),
                Ok(false) => return self.record_missed(engine).await,
                // The job succeeded: it must not run again because its row is locked or the database is unavailable.
                Err(error) if error.is_transient() => {
                    self.span
                        .in_scope(|| tracing::warn!(error = %error, "cannot record the end of the job; retrying"));
                    if pause_unless_lost(&mut pause, &mut self.signal).await.is_lost() {
                        self.meters.failed(failure_label(&Failure::Lost));
                        return self.meters.took(self.started);
                    }
                }
                Err(error) => return self.record_failed(engine, crate::ctx::failure(error)).await,
            }
        }
    }

    /// Handles a row that could not be written: the job was asked to stop, or another worker holds it. The row decides
    /// which.
    pub async fn record_missed(self, engine: &Engine) {
        self.record_failed(engine, Failure::Cancelled).await;
    }

    async fn record_failed(mut self, engine: &Engine, failure: Failure) {
        self.meters.failed(failure_label(&failure));
        record_failure(engine, self.completion.job, &failure, self.policy, &mut self.signal)
            .instrument(self.span)
            .await;
        self.meters.took(self.started);
    }
}

/// Performs a claimed job and records the result. Returns when the row is written, or when another worker holds the
/// job.
pub async fn perform<World: Send + Sync + 'static>(
    engine: &Engine,
    registry: &Registry<World>,
    world: &World,
    job: ClaimedJob,
    signal: watch::Receiver<Signal>,
) {
    match attempt(engine, registry, world, job, signal).await {
        AttemptResult::Settled => {}
        AttemptResult::CompletionPending(bare) => bare.complete(engine).await,
    }
}

/// Like [`perform`], but leaves a completion to the caller.
///
/// The future is boxed because it is moved several times per job; parts that are rarely awaited have their own boxes.
pub fn attempt<World: Send + Sync + 'static>(
    engine: &Engine,
    registry: &Registry<World>,
    world: &World,
    job: ClaimedJob,
    signal: watch::Receiver<Signal>,
) -> impl Future<Output = AttemptResult> + Send {
    let (span, place) = trace::attempt(&job);
    trace::scope(place, Box::pin(run(engine, registry, world, job, signal))).instrument(span)
}

async fn run<World: Send + Sync + 'static>(
    engine: &Engine,
    registry: &Registry<World>,
    world: &World,
    mut job: ClaimedJob,
    mut signal: watch::Receiver<Signal>,
) -> AttemptResult {
    let started = std::time::Instant::now();
    let token = CancellationToken::new();
    let meters = engine.meters(&job.pool, &job.kind);
    let input = std::mem::take(&mut job.input);
    let runner = registry.runner(&job.kind);
    let limit = runner.as_ref().and_then(|runner| runner.attempt_limit());
    let policy = runner.as_ref().map_or(RetryPolicy::fixed(0, Duration::ZERO), |runner| {
        runner.retry_policy(world)
    });
    // Only its own row and its lane change. (It records children only by waiting for them, which ends the attempt.)
    let bare = job.parent_id.is_none() && job.open_children == 0;
    let lane = job.lane.clone();
    // Both times are the database's, because the clock of this host may be wrong.
    let remaining = job.deadline_at.map(|deadline| deadline.since(job.claimed_at));
    if job.cancel_at.is_some() {
        token.cancel();
    }
    let mut ctx = Ctx::new(engine.clone(), job, token.clone());
    let fenced = ctx.fenced_job();
    let outcome = match runner {
        None => {
            // A newer version recorded it, and another worker may know the kind. Return it with a delay.
            tracing::warn!("this version has no workflow of this kind");
            Err(Failure::Snooze(Duration::from_secs(30)))
        }
        Some(runner) => {
            let run = AssertUnwindSafe(runner.run(&mut ctx, &input, world)).catch_unwind();
            supervise(engine, run, &mut signal, &token, limit, remaining).await
        }
    };
    let failure = match outcome {
        Ok(SuccessKind::CompletionPending(along)) if bare => {
            return AttemptResult::CompletionPending(Box::new(PendingCompletion {
                completion: Completion {
                    job: fenced,
                    lane,
                    batched_write: along,
                },
                meters,
                policy,
                started,
                signal,
                span: Span::current(),
            }));
        }
        Ok(SuccessKind::CompletionPending(along)) => {
            let settled =
                ctx.settle(async |tx| crate::batched_write::write_batched(tx, along.into_iter().collect()).await);
            Box::pin(settled).await.err()
        }
        Ok(SuccessKind::Settled) => None,
        Err(failure) => Some(failure),
    };
    match failure {
        None => meters.ok(),
        Some(failure) => {
            meters.failed(failure_label(&failure));
            Box::pin(record_failure(engine, fenced, &failure, policy, &mut signal)).await;
        }
    }
    meters.took(started);
    AttemptResult::Settled
}

const fn failure_label(failure: &Failure) -> &'static str {
    match failure {
        Failure::Retry(_) => "retry",
        Failure::Fatal(_) => "fatal",
        Failure::TimedOut(_) => "timed_out",
        Failure::Snooze(_) => "snoozed",
        Failure::Cancelled => "cancelled",
        Failure::Lost => "lost",
    }
}

/// Runs the workflow until it ends, its time is over, or the worker signals otherwise.
async fn supervise(
    engine: &Engine,
    run: impl Future<Output = std::thread::Result<Outcome>>,
    signal: &mut watch::Receiver<Signal>,
    token: &CancellationToken,
    limit: Option<Duration>,
    remaining: Option<Duration>,
) -> Result<SuccessKind, Failure> {
    tokio::pin!(run);
    let timer = |span: Option<Duration>| OptionFuture::from(span.map(tokio::time::sleep));
    let grace = Some(engine.settings().cancel_grace);
    let attempt_over = timer(limit);
    let deadline_over = timer(remaining);
    let grace_over = timer(grace.filter(|_| token.is_cancelled()));
    tokio::pin!(attempt_over, deadline_over, grace_over);
    loop {
        tokio::select! {
            biased;
            changed = signal.changed() => {
                let now = if changed.is_ok() { *signal.borrow_and_update() } else { Signal::Lost };
                match now {
                    Signal::Run => {}
                    Signal::Cancel if token.is_cancelled() => {}
                    Signal::Cancel => {
                        token.cancel();
                        grace_over.set(timer(grace));
                    }
                    Signal::HandBack => return Err(Failure::Snooze(Duration::ZERO)),
                    Signal::Lost => return Err(Failure::Lost),
                }
            }
            ended = &mut run => return match ended {
                Ok(Ok(done)) => Ok(done.0),
                Ok(Err(failure)) => Err(failure),
                Err(panic) => Err(Failure::Retry(Cause::new(format!("panicked: {}", panic_text(&*panic))))),
            },
            Some(()) = &mut grace_over => return Err(Failure::Cancelled),
            Some(()) = &mut attempt_over => {
                let limit = limit.unwrap_or_default();
                return Err(Failure::TimedOut(Cause::new(format!("the attempt took longer than {limit:?}"))));
            }
            Some(()) = &mut deadline_over => return Err(Failure::Fatal(Cause::new(DEADLINE))),
        }
    }
}

/// Pause before the end is written again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Whether this worker still holds the job after a pause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobOwnership {
    Owned,
    Lost,
}

impl JobOwnership {
    const fn is_lost(self) -> bool {
        matches!(self, Self::Lost)
    }
}

/// Pauses unless the lease is lost meanwhile. The pause doubles each time, up to a second.
async fn pause_unless_lost(pause: &mut Duration, signal: &mut watch::Receiver<Signal>) -> JobOwnership {
    tokio::select! {
        () = tokio::time::sleep(*pause) => {
            *pause = (*pause * 2).min(Duration::from_secs(1));
            JobOwnership::Owned
        }
        _ = signal.wait_for(|signal| *signal == Signal::Lost) => JobOwnership::Lost,
    }
}

/// Marks a failure that is a deadline; the job ends as timed out.
const DEADLINE: &str = "the deadline has passed";

async fn record_failure(
    engine: &Engine,
    job: jobs::JobFence,
    failure: &Failure,
    policy: RetryPolicy,
    signal: &mut watch::Receiver<Signal>,
) {
    log(failure);
    if matches!(failure, Failure::Lost) {
        return;
    }
    let mut pause = FIRST_PAUSE;
    loop {
        let written = engine
            .store()
            .write(async |tx| match failure {
                Failure::Snooze(span) if span.is_zero() => outcome::hand_back(tx, job).await,
                Failure::Fatal(cause) if cause.text() == DEADLINE => outcome::deadline(tx, job).await,
                _ => outcome::record(tx, job, failure, policy).await,
            })
            .await;
        match written {
            Ok(()) => return,
            Err(store::Error::Stale) => {
                tracing::info!("the job moved on before its attempt was recorded");
                return;
            }
            Err(error) if error.is_transient() => {
                // The database is unavailable. The lease is still valid; if it ends first, the worker that takes the
                // job back records the attempt.
                tracing::warn!(error = %error, "cannot record how the attempt ended; retrying");
                if pause_unless_lost(&mut pause, signal).await.is_lost() {
                    return;
                }
            }
            Err(error) => {
                let error = Cause::of(&error);
                tracing::error!(error = %error, "cannot record how the attempt ended; the job is postponed");
                let text = format!("cannot record how the attempt ended: {error}");
                let put_off = engine
                    .store()
                    .write(async |tx| outcome::snooze(tx, job, outcome::PUT_OFF, &text).await)
                    .await;
                if let Err(error) = put_off {
                    tracing::error!(error = %Cause::of(&error), "cannot postpone the job either; its worker will give \
                                                                 it up");
                }
                return;
            }
        }
    }
}

fn log(failure: &Failure) {
    match failure {
        Failure::Retry(cause) | Failure::TimedOut(cause) => tracing::warn!(error = %cause, "attempt failed"),
        Failure::Fatal(cause) => tracing::error!(error = %cause, "job failed"),
        Failure::Snooze(_) => tracing::debug!("job returned"),
        Failure::Cancelled => tracing::info!("job cancelled"),
        Failure::Lost => tracing::warn!("the lease is lost; this attempt can no longer be recorded"),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    type SignalReceiver = watch::Receiver<Signal>;

    /// Size of the future of a function, without a call.
    const fn size<F>(
        _: &impl Fn(&'static Engine, &'static Registry<()>, &'static (), ClaimedJob, SignalReceiver) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Each running job has one such future.
    #[test]
    fn an_attempt_is_a_small_future() {
        let bytes = size(&run::<()>);
        println!("{bytes} bytes");
        assert!(bytes <= 4096, "{bytes} bytes");
    }
}
