//! One attempt of one job, from claim to the row that says how it ended.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::OptionFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use towpath_domain::job::RetryPolicy;
use towpath_store::jobs::{self, Claimed};
use towpath_store::{self as store};
use tracing::{Instrument, Span};

use crate::ctx::Ctx;
use crate::engine::{Ending, Engine};
use crate::failure::{Cause, End, Failure, Outcome};
use crate::metric::Meters;
use crate::outcome;
use crate::trace;
use crate::workflow::Registry;

/// What the worker tells a job that is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Go on.
    Run,
    /// Somebody asked it to stop; it has its grace.
    Cancel,
    /// The worker leaves; the job is given back where it stands.
    HandBack,
    /// The lease is gone or about to be: stop at once, nothing more can be written.
    Lost,
}

/// What is left to do after an attempt.
#[must_use = "a bare job's row is still to be written"]
pub enum Performed {
    /// Nothing: its row is written, or is no longer this worker's to write.
    Written,
    /// The job ended well and has nothing to write but its own row and what goes along with it, which is written together
    /// with those of others.
    Bare(Box<Bare>),
}

/// A job that ended well, its row not yet written.
pub struct Bare {
    ending: Ending,
    meters: Arc<Meters>,
    policy: RetryPolicy,
    started: std::time::Instant,
    signal: watch::Receiver<Signal>,
    span: Span,
}

impl Bare {
    /// What is to be written.
    #[must_use]
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Its row is written.
    pub fn completed(self) {
        self.meters.ok();
        self.meters.succeeded();
        self.meters.took(self.started);
    }

    /// Writes the row, with whatever others are at it. Returns as [`perform`] does.
    pub async fn complete(mut self, engine: &Engine) {
        let mut pause = FIRST_PAUSE;
        loop {
            match engine.complete(self.ending.clone()).await {
                Ok(true) => return self.completed(),
                Ok(false) => return self.missed(engine).await,
                // The job ended well: it is not performed again because its row is not free or the database is away.
                Err(error) if error.is_transient() => {
                    self.span.in_scope(
                        || tracing::warn!(error = %error, "cannot write down that the job ended; trying again"),
                    );
                    if rest(&mut pause, &mut self.signal).await.is_lost() {
                        self.meters.failed(word(&Failure::Lost));
                        return self.meters.took(self.started);
                    }
                }
                Err(error) => return self.failed(engine, crate::ctx::failure(error)).await,
            }
        }
    }

    /// The row could not be written: the job was asked to stop, or is somebody else's. The row decides which.
    pub async fn missed(self, engine: &Engine) {
        self.failed(engine, Failure::Cancelled).await;
    }

    async fn failed(mut self, engine: &Engine, failure: Failure) {
        self.meters.failed(word(&failure));
        write_down(engine, self.ending.job, &failure, self.policy, &mut self.signal)
            .instrument(self.span)
            .await;
        self.meters.took(self.started);
    }
}

/// Performs a claimed job and writes down how the attempt ended. Returns when the row is written, or when it no
/// longer is this worker's to write.
pub async fn perform<World: Send + Sync + 'static>(
    engine: &Engine,
    registry: &Registry<World>,
    world: &World,
    job: Claimed,
    signal: watch::Receiver<Signal>,
) {
    match attempt(engine, registry, world, job, signal).await {
        Performed::Written => {}
        Performed::Bare(bare) => bare.complete(engine).await,
    }
}

/// As [`perform`], but for a row that has nothing beside it to be written: that is left to the caller.
///
/// One of these is moved several times per job, so it is in a box; what is seldom awaited has one of its own.
pub fn attempt<World: Send + Sync + 'static>(
    engine: &Engine,
    registry: &Registry<World>,
    world: &World,
    job: Claimed,
    signal: watch::Receiver<Signal>,
) -> impl Future<Output = Performed> + Send {
    let (span, place) = trace::attempt(&job);
    trace::scope(place, Box::pin(run(engine, registry, world, job, signal))).instrument(span)
}

async fn run<World: Send + Sync + 'static>(
    engine: &Engine,
    registry: &Registry<World>,
    world: &World,
    mut job: Claimed,
    mut signal: watch::Receiver<Signal>,
) -> Performed {
    let started = std::time::Instant::now();
    let token = CancellationToken::new();
    let meters = engine.meters(&job.pool, &job.kind);
    let input = std::mem::take(&mut job.input);
    let runner = registry.runner(&job.kind);
    let limit = runner.as_ref().and_then(|runner| runner.attempt_limit());
    let policy = runner.as_ref().map_or(RetryPolicy::fixed(0, Duration::ZERO), |runner| {
        runner.retry_policy(world)
    });
    // Nothing but its own row and its lane changes. (It records children only by waiting for them, which ends the attempt.)
    let bare = job.parent_id.is_none() && job.open_children == 0;
    let lane = job.lane.clone();
    // Both by the database's clock: this host's own may be anywhere.
    let remaining = job.deadline_at.map(|deadline| deadline.since(job.claimed_at));
    if job.cancel_at.is_some() {
        token.cancel();
    }
    let mut ctx = Ctx::new(engine.clone(), job, token.clone());
    let fenced = ctx.fenced();
    let outcome = match runner {
        None => {
            // A newer version recorded it; another worker may know it. Give it back, slowly.
            tracing::warn!("no workflow of this kind in this version");
            Err(Failure::Snooze(Duration::from_secs(30)))
        }
        Some(runner) => {
            let run = AssertUnwindSafe(runner.run(&mut ctx, &input, world)).catch_unwind();
            supervise(engine, run, &mut signal, &token, limit, remaining).await
        }
    };
    let failure = match outcome {
        Ok(End::Bare(along)) if bare => {
            return Performed::Bare(Box::new(Bare {
                ending: Ending {
                    job: fenced,
                    lane,
                    along,
                },
                meters,
                policy,
                started,
                signal,
                span: Span::current(),
            }));
        }
        Ok(End::Bare(along)) => {
            let settled = ctx.settle(async |tx| crate::along::write(tx, along.into_iter().collect()).await);
            Box::pin(settled).await.err()
        }
        Ok(End::Written) => None,
        Err(failure) => Some(failure),
    };
    match failure {
        None => meters.ok(),
        Some(failure) => {
            meters.failed(word(&failure));
            Box::pin(write_down(engine, fenced, &failure, policy, &mut signal)).await;
        }
    }
    meters.took(started);
    Performed::Written
}

const fn word(failure: &Failure) -> &'static str {
    match failure {
        Failure::Retry(_) => "retry",
        Failure::Fatal(_) => "fatal",
        Failure::TimedOut(_) => "timed_out",
        Failure::Snooze(_) => "snoozed",
        Failure::Cancelled => "cancelled",
        Failure::Lost => "lost",
    }
}

/// Lets the workflow run until it ends, its time is up, or the worker says otherwise.
async fn supervise(
    engine: &Engine,
    run: impl Future<Output = std::thread::Result<Outcome>>,
    signal: &mut watch::Receiver<Signal>,
    token: &CancellationToken,
    limit: Option<Duration>,
    remaining: Option<Duration>,
) -> Result<End, Failure> {
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

/// The pause before an end is written again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Whether a job is still this worker's after a pause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Held,
    Lost,
}

impl Standing {
    const fn is_lost(self) -> bool {
        matches!(self, Self::Lost)
    }
}

/// Pauses, unless the lease is lost meanwhile. The next pause is twice as long, up to a second.
async fn rest(pause: &mut Duration, signal: &mut watch::Receiver<Signal>) -> Standing {
    tokio::select! {
        () = tokio::time::sleep(*pause) => {
            *pause = (*pause * 2).min(Duration::from_secs(1));
            Standing::Held
        }
        _ = signal.wait_for(|signal| *signal == Signal::Lost) => Standing::Lost,
    }
}

/// Marks the failure that is really a deadline; the row is ended as timed out.
const DEADLINE: &str = "the deadline has passed";

async fn write_down(
    engine: &Engine,
    job: jobs::Fenced,
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
                tracing::info!("the job moved on before its attempt was written down");
                return;
            }
            Err(error) if error.is_transient() => {
                // The database is away. The lease still runs; if it ends first, whoever takes the job back writes instead.
                tracing::warn!(error = %error, "cannot write down how the attempt ended; trying again");
                if rest(&mut pause, signal).await.is_lost() {
                    return;
                }
            }
            Err(error) => {
                let error = Cause::of(&error);
                tracing::error!(error = %error, "cannot write down how the attempt ended; the job is put off");
                let text = format!("cannot write down how the attempt ended: {error}");
                let put_off = engine
                    .store()
                    .write(async |tx| outcome::put_off(tx, job, outcome::PUT_OFF, &text).await)
                    .await;
                if let Err(error) = put_off {
                    tracing::error!(error = %Cause::of(&error), "cannot put the job off either; its worker will give it up");
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
        Failure::Snooze(_) => tracing::debug!("job given back"),
        Failure::Cancelled => tracing::info!("job cancelled"),
        Failure::Lost => tracing::warn!("lease lost; nothing of this attempt can be written any more"),
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

    type Told = watch::Receiver<Signal>;

    /// Of what a function answers, without a call.
    const fn size<F>(_: &impl Fn(&'static Engine, &'static Registry<()>, &'static (), Claimed, Told) -> F) -> usize {
        size_of::<F>()
    }

    /// Each job at work has one. It was 27 KB once.
    #[test]
    fn an_attempt_is_a_small_future() {
        let bytes = size(&run::<()>);
        println!("{bytes} bytes");
        assert!(bytes <= 4096, "{bytes} bytes");
    }
}
