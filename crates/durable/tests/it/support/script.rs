//! A workflow that performs the operations in its input and records them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use towpath_domain::JobId;
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_durable::{BatchedWrite, Ctx, Failure, Lane, Outcome, RetryDecision, Start, Workflow};
use towpath_store::{self as store, Tx};

use super::{Shared, write_effect};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    pub name: String,
    pub ops: Vec<Op>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Op {
    /// A journalled step; records `name/step`.
    Step(String),
    /// Commits an effect row.
    Effect(String),
    /// Saves this cursor.
    Checkpoint(u32),
    /// Records its arrival, then waits until the gate is opened. Records it if it is dropped there.
    Gate(String),
    /// Like `Gate`, but blocks its thread until the gate opens.
    Block(String),
    /// Lasts this long. It simulates load: a handler that runs while leases, which expire by the database's clock, must
    /// be renewed.
    Lasts(Duration),
    /// Fails the first times it is reached, over all attempts.
    Fail(u32),
    /// Fails permanently.
    Fatal,
    /// Fails permanently the first times.
    FatalFirst(u32),
    /// Panics the first times.
    Panic(u32),
    /// Snoozes the first times, for this many milliseconds.
    Snooze(u32, u64),
    /// Starts children and waits; continues when entered again.
    Children(Vec<Script>, Option<(String, u32)>),
    /// Starts a child without waiting for it, and then one of each of these other jobs, which is refused.
    Stray(Box<Script>, Vec<JobId>),
    /// Fails permanently if a child failed.
    CheckChildren,
    /// Ends without writing anything else.
    Done,
    /// Ends with this effect, which is written with those of others. The effect [`Script::REFUSED`] is refused.
    Along(String),
}

/// An effect that is written with the end of its job.
#[derive(Debug)]
struct Effect {
    job: JobId,
    fence: i64,
    name: String,
}

impl BatchedWrite for Effect {
    fn write<'a, 'c: 'a>(
        &'a self,
        tx: &'a mut Tx<'c>,
        all: &'a [Arc<dyn BatchedWrite>],
    ) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async move {
            for Self { job, fence, name } in towpath_durable::of_type(all) {
                if name == Script::REFUSED {
                    return Err(store::Error::NotFound);
                }
                write_effect(tx, *job, name, *fence).await?;
            }
            Ok(())
        })
    }
}

impl Script {
    pub const POOL_NAME: &'static str = "scripts";
    /// Time limit of one attempt: that of an export run.
    pub const LIMIT: Duration = Duration::from_secs(4 * 3600);
    /// The `end` of a script with this name fails, as that of a defect or of another version would.
    pub const ENDLESS: &'static str = "endless";
    /// No effect has this name.
    pub const REFUSED: &'static str = "refused";
    /// A script of this name may not be retried.
    pub const FINAL: &'static str = "final";
    /// A script of this name belongs to the lane `thread:1`, with one slot.
    pub const IN_LANE: &'static str = "in lane";
    /// A script of this name may be retried, but its business rows refuse.
    pub const STUBBORN: &'static str = "stubborn";

    pub fn new(name: &str, ops: impl Into<Vec<Op>>) -> Self {
        Self {
            name: name.to_owned(),
            ops: ops.into(),
        }
    }
}

struct NoteWhenDropped<'a>(&'a Shared, String);

impl Drop for NoteWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.note(&*self.1);
    }
}

impl Workflow for Script {
    const KIND: &'static str = "script";
    const POOL: &'static str = Self::POOL_NAME;
    const RETRY: RetryPolicy = RetryPolicy::fixed(20, Duration::from_millis(30));
    const ATTEMPT_LIMIT: Option<Duration> = Some(Self::LIMIT);
    type World = Shared;

    async fn run(&self, ctx: &mut Ctx, shared: &Shared) -> Outcome {
        let name = &self.name;
        shared.note(format!("{name} starts"));
        for (nth, op) in self.ops.iter().enumerate() {
            match op {
                Op::Step(step) => {
                    ctx.step(step, async || {
                        shared.note(format!("{name}/{step}"));
                        Ok(())
                    })
                    .await?;
                }
                Op::Effect(effect) => {
                    let (job, fence) = (ctx.job(), ctx.fence());
                    ctx.commit(async |tx| write_effect(tx, job, effect, fence).await)
                        .await?;
                    shared.note(format!("{name}!{effect}"));
                }
                Op::Checkpoint(cursor) => {
                    if ctx.cursor::<u32>()?.is_none_or(|reached| reached < *cursor) {
                        ctx.checkpoint(cursor, async |_| Ok(())).await?;
                        shared.note(format!("{name}@{cursor}"));
                    }
                }
                Op::Gate(gate) => {
                    shared.note(format!("{name} at {gate}"));
                    let waits = NoteWhenDropped(shared, format!("{name} dropped at {gate}"));
                    shared.gate(gate).acquire().await.unwrap().forget();
                    std::mem::forget(waits);
                }
                Op::Block(gate) => {
                    shared.note(format!("{name} blocks at {gate}"));
                    while shared
                        .gate(gate)
                        .try_acquire()
                        .map(tokio::sync::SemaphorePermit::forget)
                        .is_err()
                    {
                        // Held anyway; the core is for the others.
                        std::thread::park_timeout(Duration::from_millis(1));
                    }
                }
                Op::Lasts(span) => tokio::time::sleep(*span).await,
                Op::Fail(times) => {
                    if shared.nth(&format!("{name} {nth}")) <= *times {
                        return Err(Failure::retry(format!("{name} fails")));
                    }
                }
                Op::Fatal => return Err(Failure::fatal(format!("{name} cannot"))),
                Op::FatalFirst(times) => {
                    if shared.nth(&format!("{name} {nth}")) <= *times {
                        return Err(Failure::fatal(format!("{name} cannot yet")));
                    }
                }
                Op::Panic(times) => {
                    assert!(shared.nth(&format!("{name} {nth}")) > *times, "{name} panics");
                }
                Op::Snooze(times, millis) => {
                    if shared.nth(&format!("{name} {nth}")) <= *times {
                        return Err(Failure::Snooze(Duration::from_millis(*millis)));
                    }
                }
                Op::Children(children, lane) => {
                    if ctx.children().await?.is_empty() {
                        let lane = lane.as_ref().map(|(key, places)| Lane::new(key, *places));
                        let (job, tenant) = (ctx.job(), ctx.tenant());
                        let lanes: Vec<Lane> = lane.iter().cloned().collect();
                        return ctx
                            .wait(&lanes, async |tx| {
                                for child in children {
                                    let mut start = Start::new(tenant).child_of(job);
                                    if let Some(lane) = &lane {
                                        start = start.lane(lane.clone());
                                    }
                                    towpath_durable::start(tx, child, start).await?;
                                }
                                Ok(())
                            })
                            .await;
                    }
                }
                Op::Stray(child, others) => {
                    let (job, tenant) = (ctx.job(), ctx.tenant());
                    ctx.commit(async |tx| {
                        for parent in [&job].into_iter().chain(others) {
                            towpath_durable::start(tx, &**child, Start::new(tenant).child_of(*parent)).await?;
                        }
                        Ok(())
                    })
                    .await?;
                }
                Op::CheckChildren => {
                    let children = ctx.children().await?;
                    if let Some(bad) = children
                        .iter()
                        .find(|child| child.state.is_final() && child.state != towpath_domain::job::JobState::Succeeded)
                    {
                        return Err(Failure::fatal(format!("a child ended {}", bad.state.as_str())));
                    }
                }
                Op::Done => return ctx.complete(),
                Op::Along(name) => {
                    return ctx.complete_with(Effect {
                        job: ctx.job(),
                        fence: ctx.fence(),
                        name: name.clone(),
                    });
                }
            }
        }
        let job = ctx.job();
        let fence = ctx.fence();
        let settled = ctx
            .settle(async |tx| write_effect(tx, job, &format!("{name} settled"), fence).await)
            .await;
        if settled.is_ok() {
            shared.note(format!("{name} settled"));
        }
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        if input.name == Self::ENDLESS {
            return Err(store::Error::corrupt("effect", "name", &input.name));
        }
        let what = match ended {
            EndReason::Failed(_) => "failed",
            EndReason::Cancelled => "cancelled",
            EndReason::TimedOut => "timed out",
        };
        write_effect(tx, JobId::nil(), &format!("{} {what}", input.name), 0).await
    }

    fn retry_decision(&self) -> RetryDecision {
        match self.name.as_str() {
            Self::FINAL => RetryDecision::Refused("it was for once"),
            Self::IN_LANE => RetryDecision::Allowed(Some(Lane::new("thread:1", 1))),
            _ => RetryDecision::Allowed(None),
        }
    }

    async fn revive(tx: &mut Tx<'_>, input: &Self) -> store::Result<()> {
        write_effect(tx, JobId::nil(), &format!("{} revived", input.name), 0).await?;
        if input.name == Self::STUBBORN {
            return Err(towpath_domain::Rejection::conflict("", "its rows say no").into());
        }
        Ok(())
    }

    async fn attempt_failed(tx: &mut Tx<'_>, input: &Self, n: u32, error: &str) -> store::Result<()> {
        write_effect(tx, JobId::nil(), &format!("{} retry_{n}: {error}", input.name), 0).await
    }
}
