//! A workflow on strings: it does one thing after another as it is told, and answers when each is done.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use towpath_domain::JobId;
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Start, Workflow};
use towpath_store::{self as store, Tx, on};

/// One tick of the model. So long that no timer of a handler goes off during a test.
pub const TICK: Duration = Duration::from_secs(3600);
pub const RETRIES: u32 = 2;
pub const POOL: &str = "puppets";

/// What a holder can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
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
    /// Starts so many children in a lane, or in none, and waits.
    Wait(u32, Option<(usize, u32)>),
    /// Its process dies.
    Vanish,
}

pub type Told = (Act, oneshot::Sender<()>);

/// The strings, by job and fence.
#[derive(Default)]
pub struct Strings {
    pub waiting: Mutex<HashMap<(JobId, i64), mpsc::UnboundedReceiver<Told>>>,
    /// How often the body of each step was performed.
    pub bodies: Mutex<HashMap<(JobId, u32), u32>>,
}

#[derive(Serialize, Deserialize)]
pub struct Puppet;

/// As `Puppet`, but keeps its place while it backs off.
#[derive(Serialize, Deserialize)]
pub struct Kept;

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
            Act::Step(nth) => {
                ctx.step(&format!("step {nth}"), async || {
                    *strings.bodies.lock().unwrap().entry((job, nth)).or_default() += 1;
                    Ok(nth)
                })
                .await?;
            }
            Act::Checkpoint(nth) => {
                ctx.checkpoint(&nth, async |tx| {
                    write(tx, job, &format!("checkpoint {nth}"), fence).await
                })
                .await?;
            }
            Act::Effect(nth) => {
                ctx.commit(async |tx| write(tx, job, &format!("effect {nth}"), fence).await)
                    .await?;
            }
            Act::Settle => return ctx.settle(async |tx| write(tx, job, "settled", fence).await).await,
            Act::Done => return ctx.done(),
            Act::Fail => return Err(Failure::retry("told to")),
            Act::Fatal => return Err(Failure::fatal("told to")),
            Act::Snooze => return Err(Failure::Snooze(TICK)),
            Act::Wait(children, lane) => {
                let lane = lane.map(|(lane, places)| Lane::new(lane_key(lane), places));
                let lanes: Vec<Lane> = lane.iter().cloned().collect();
                return ctx
                    .wait(&lanes, async |tx| {
                        for _ in 0..children {
                            let mut how = Start::new(tenant).child_of(job);
                            if let Some(lane) = &lane {
                                how = how.lane(lane.clone());
                            }
                            towpath_durable::start(tx, &Puppet, how).await?;
                        }
                        Ok(())
                    })
                    .await;
            }
            // Done to it, not by it.
            Act::Renew | Act::HandBack | Act::Vanish => unreachable!("{act:?}"),
        }
        let _ = done.send(());
    }
}

/// `end` does not hear of the job, so what it writes counts for all of them.
async fn ended(tx: &mut Tx<'_>, ended: &Ended) -> store::Result<()> {
    write(tx, JobId::nil(), ended.state().as_str(), 0).await
}

impl Workflow for Puppet {
    const KIND: &'static str = "puppet";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(RETRIES, TICK);
    type World = Strings;

    async fn run(&self, ctx: &mut Ctx, strings: &Strings) -> Outcome {
        dance(ctx, strings).await
    }

    async fn end(tx: &mut Tx<'_>, _: &Self, how: Ended) -> store::Result<()> {
        ended(tx, &how).await
    }
}

impl Workflow for Kept {
    const KIND: &'static str = "kept";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(RETRIES, TICK);
    const KEEP_PLACE: bool = true;
    type World = Strings;

    async fn run(&self, ctx: &mut Ctx, strings: &Strings) -> Outcome {
        dance(ctx, strings).await
    }

    async fn end(tx: &mut Tx<'_>, _: &Self, how: Ended) -> store::Result<()> {
        ended(tx, &how).await
    }
}
