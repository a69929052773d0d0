//! A workflow controlled by the test: it performs one operation after another and reports each result.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use towpath_domain::JobId;
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Start, Workflow};
use towpath_store::{self as store, Tx, on};

/// One tick of the model; so long that no timer of a handler fires during a test.
pub const TICK: Duration = Duration::from_secs(3600);
pub const RETRIES: u32 = 2;
pub const POOL: &str = "puppets";

/// Operations of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Step(u32),
    Checkpoint(u32),
    Effect(u32),
    Renew,
    Settle,
    Done,
    Fail,
    Fatal,
    Snooze,
    HandBack,
    /// Starts children in a lane, or in none, and waits.
    Wait(u32, Option<(usize, u32)>),
    /// Its process dies.
    Vanish,
}

pub type OutcomeReceiver = (Action, oneshot::Sender<()>);

/// The controls, by job and fence.
#[derive(Default)]
pub struct Strings {
    pub waiting: Mutex<HashMap<(JobId, i64), mpsc::UnboundedReceiver<OutcomeReceiver>>>,
    /// How often the body of each step was performed.
    pub bodies: Mutex<HashMap<(JobId, u32), u32>>,
}

#[derive(Serialize, Deserialize)]
pub struct ScriptedJob;

/// Like `Puppet`, but keeps its slot while it backs off.
#[derive(Serialize, Deserialize)]
pub struct PlaceKeepingJob;

pub fn lane_key(lane: usize) -> String {
    format!("lane:{lane}")
}

pub async fn write(tx: &mut Tx<'_>, job: JobId, what: &str, fence: i64) -> store::Result<()> {
    Ok(on!(tx, |conn| sqlx::query(
        "INSERT INTO effect (job, what, fence) VALUES ($1, $2, $3)"
    )
    .bind(job)
    .bind(what)
    .bind(fence)
    .execute(conn)
    .await
    .map(drop))?)
}

async fn dance(ctx: &mut Ctx, strings: &Strings) -> Outcome {
    let (job, fence, tenant) = (ctx.job(), ctx.fence(), ctx.tenant());
    let mut told = strings
        .waiting
        .lock()
        .unwrap()
        .remove(&(job, fence))
        .expect("strings were attached");
    loop {
        let Some((act, done)) = told.recv().await else {
            return Err(Failure::Lost);
        };
        match act {
            Action::Step(nth) => {
                ctx.step(&format!("step {nth}"), async || {
                    *strings.bodies.lock().unwrap().entry((job, nth)).or_default() += 1;
                    Ok(nth)
                })
                .await?;
            }
            Action::Checkpoint(nth) => {
                ctx.checkpoint(&nth, async |tx| {
                    write(tx, job, &format!("checkpoint {nth}"), fence).await
                })
                .await?;
            }
            Action::Effect(nth) => {
                ctx.commit(async |tx| write(tx, job, &format!("effect {nth}"), fence).await)
                    .await?;
            }
            Action::Settle => return ctx.settle(async |tx| write(tx, job, "settled", fence).await).await,
            Action::Done => return ctx.complete(),
            Action::Fail => return Err(Failure::retry("told to")),
            Action::Fatal => return Err(Failure::fatal("told to")),
            Action::Snooze => return Err(Failure::Snooze(TICK)),
            Action::Wait(children, lane) => {
                let lane = lane.map(|(lane, places)| Lane::new(lane_key(lane), places));
                let lanes: Vec<Lane> = lane.iter().cloned().collect();
                return ctx
                    .wait(&lanes, async |tx| {
                        for _ in 0..children {
                            let mut how = Start::new(tenant).child_of(job);
                            if let Some(lane) = &lane {
                                how = how.lane(lane.clone());
                            }
                            towpath_durable::start(tx, &ScriptedJob, how).await?;
                        }
                        Ok(())
                    })
                    .await;
            }
            // Done by the test, not by the workflow.
            Action::Renew | Action::HandBack | Action::Vanish => unreachable!("{act:?}"),
        }
        let _ = done.send(());
    }
}

/// `end` does not get the job, so its writes count for all of them.
async fn ended(tx: &mut Tx<'_>, ended: &EndReason) -> store::Result<()> {
    write(tx, JobId::nil(), ended.state().as_str(), 0).await
}

impl Workflow for ScriptedJob {
    const KIND: &'static str = "puppet";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(RETRIES, TICK);
    type World = Strings;

    async fn run(&self, ctx: &mut Ctx, strings: &Strings) -> Outcome {
        dance(ctx, strings).await
    }

    async fn end(tx: &mut Tx<'_>, _: &Self, how: EndReason) -> store::Result<()> {
        ended(tx, &how).await
    }
}

impl Workflow for PlaceKeepingJob {
    const KIND: &'static str = "kept";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(RETRIES, TICK);
    const KEEP_PLACE: bool = true;
    type World = Strings;

    async fn run(&self, ctx: &mut Ctx, strings: &Strings) -> Outcome {
        dance(ctx, strings).await
    }

    async fn end(tx: &mut Tx<'_>, _: &Self, how: EndReason) -> store::Result<()> {
        ended(tx, &how).await
    }
}
