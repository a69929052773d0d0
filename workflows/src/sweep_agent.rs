//! Tidies up an agent server, again and again: items, threads and kept events whose time is over, and checkpoints
//! beyond what is kept. A chain like a cron's, so one sweep goes on at a time.

mod orphans;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::agent::{ThreadStatus, TtlStrategy};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ScheduleId, TenantId, ThreadId, Timestamp};
use towpath_durable::{Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_runtime::first_checkpoint_at;
use towpath_store::checkpoints::{self, Cut};
use towpath_store::schedules::{self, Schedule};
use towpath_store::{self as store, Store, Tx, items, jobs, run_events, threads};

use crate::agent::AgentWorld;
use crate::run_agent;

/// Between the end of one sweep and the beginning of the next.
const EVERY: Duration = Duration::from_secs(60);
/// Rows of one statement, threads of one look.
const BATCH: i64 = 500;
/// Batches of one kind in one sweep: the rest is for the next, so that every kind gets its turn.
const ROUNDS: usize = 200;

/// Sweeps once.
#[derive(Debug, Serialize, Deserialize)]
pub struct SweepAgent {
    /// The workspace.
    pub tenant: TenantId,
}

/// The chain of a workspace. Its id is the workspace's, so that processes which start together make one.
const fn chain(tenant: TenantId) -> ScheduleId {
    ScheduleId(tenant.0)
}

/// Makes sure that a workspace is swept. Any number of processes may call it at every start.
///
/// # Errors
/// Those of the database.
pub async fn ensure(store: &Store, tenant: TenantId) -> store::Result<()> {
    let sweep = SweepAgent { tenant };
    let made = store
        .write(async |tx| {
            if schedules::get(tx, chain(tenant)).await?.is_some() {
                return Ok(());
            }
            let at = jobs::db_now(tx).await?.plus(EVERY);
            let job = towpath_durable::start(tx, &sweep, Start::new(tenant).at(at)).await?;
            let input = serde_json::to_string(&sweep).map_err(|_| store::Error::corrupt("job", "input", job))?;
            let schedule = Schedule {
                id: chain(tenant),
                tenant_id: tenant,
                kind: SweepAgent::KIND.to_owned(),
                pool: SweepAgent::POOL.to_owned(),
                input,
                next_at: at,
                paused: false,
                spawn_job: Some(job),
                created_at: tx.now(),
                ended_at: None,
            };
            schedules::insert(tx, &schedule).await
        })
        .await;
    match made {
        // Another process was faster.
        Err(store::Error::Conflict { .. }) => Ok(()),
        made => made,
    }
}

impl Workflow for SweepAgent {
    const KIND: &'static str = "sweep_agent";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = AgentWorld;

    async fn run(&self, ctx: &mut Ctx, world: &AgentWorld) -> Outcome {
        let &Self { tenant } = self;
        let read = world
            .store
            .read(async |tx| schedules::get(tx, chain(tenant)).await)
            .await;
        let Some(schedule) = read.retry()?.filter(|schedule| schedule.spawn_job == Some(ctx.job())) else {
            // Somebody else sweeps.
            return ctx.done();
        };
        let expired = rounds(ctx, async |tx| items::sweep(tx, BATCH).await).await?;
        let forgotten = rounds(ctx, async |tx| run_events::prune(tx, BATCH).await).await?;
        let over = end_threads(ctx, world, tenant).await?;
        let cut = cut_histories(ctx, world, tenant, schedule.next_at).await?;
        let orphans = orphans::end_orphans(ctx, world, tenant).await?;
        if expired + forgotten + over + cut + orphans > 0 {
            tracing::info!(
                sweep.items = expired,
                sweep.event_batches = forgotten,
                sweep.threads = over,
                sweep.checkpoints = cut,
                sweep.orphaned_runs = orphans,
                "swept"
            );
        }
        ctx.settle(async |tx| {
            let next = jobs::db_now(tx).await?.plus(EVERY);
            let job = towpath_durable::start(tx, self, Start::new(tenant).at(next)).await?;
            if schedules::advance(tx, schedule.id, schedule.next_at, next, Some(job)).await? {
                Ok(())
            } else {
                Err(store::Error::Stale)
            }
        })
        .await
    }

    /// The scheduler takes the chain up again.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }
}

/// Repeats a statement until nothing is left to do, or enough was done.
async fn rounds(ctx: &mut Ctx, mut sweep: impl AsyncFnMut(&mut Tx<'_>) -> store::Result<u64>) -> Result<u64, Failure> {
    let mut gone = 0;
    for _ in 0..ROUNDS {
        let batch = ctx.commit(async |tx| sweep(tx).await).await?;
        gone += batch;
        if i64::try_from(batch).unwrap_or(i64::MAX) < BATCH {
            break;
        }
    }
    Ok(gone)
}

/// Deletes threads whose time is over, or cuts them down to their latest state.
async fn end_threads(ctx: &mut Ctx, world: &AgentWorld, tenant: TenantId) -> Result<u64, Failure> {
    let mut over = 0;
    for _ in 0..ROUNDS {
        let found = world
            .store
            .read(async |tx| threads::expired(tx, tenant, BATCH).await)
            .await
            .retry()?;
        let last = found.len() < usize::try_from(BATCH).unwrap_or(usize::MAX);
        for (thread, strategy) in found {
            over += u64::from(
                ctx.commit(async |tx| end_thread(tx, tenant, thread, strategy).await)
                    .await?,
            );
        }
        if last {
            break;
        }
    }
    Ok(over)
}

/// Looks again under the thread's lock: a run may have begun meanwhile, and has moved the end on.
async fn end_thread(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, strategy: TtlStrategy) -> store::Result<bool> {
    let row = match threads::lock(tx, tenant, thread).await {
        Err(store::Error::NotFound) => return Ok(false),
        row => row?,
    };
    let now = tx.now();
    if row.status == ThreadStatus::Busy || row.expires_at.is_none_or(|end| end >= now) {
        return Ok(false);
    }
    match strategy {
        TtlStrategy::Delete => {
            threads::delete(tx, tenant, thread).await?;
            run_agent::tell_gone(tx, thread);
        }
        TtlStrategy::KeepLatest => {
            checkpoints::keep_latest(tx, thread).await?;
            threads::rest(tx, tenant, thread).await?;
        }
    }
    Ok(true)
}

/// Cuts the history of threads that have more than is kept: those that changed lately, and those whose checkpoints have
/// lately grown too old, the thread resting. Lately is since the sweep before this one, which was due at `due`, and a
/// little more: one that failed leaves nothing uncut.
async fn cut_histories(ctx: &mut Ctx, world: &AgentWorld, tenant: TenantId, due: Timestamp) -> Result<u64, Failure> {
    let now = world.store.clock().now();
    let since = due.min(now).minus(EVERY * 3);
    let count = Some(i64::from(world.settings.keep_checkpoints)).filter(|&count| count > 0);
    let age = Some(world.settings.checkpoints_kept).filter(|age| !age.is_zero());
    let cut = Cut {
        count,
        from: age.map(|age| first_checkpoint_at(now.minus(age))),
    };
    if count.is_none() && age.is_none() {
        return Ok(0);
    }
    let mut gone = cut_threads(ctx, world, tenant, (since, now), &cut).await?;
    if let Some(age) = age {
        let rested = (since.minus(age), now.minus(age));
        gone += cut_threads(ctx, world, tenant, rested, &cut).await?;
    }
    Ok(gone)
}

/// Cuts the histories of threads that changed last in `span`.
async fn cut_threads(
    ctx: &mut Ctx,
    world: &AgentWorld,
    tenant: TenantId,
    span: (Timestamp, Timestamp),
    cut: &Cut,
) -> Result<u64, Failure> {
    let mut seen = (span.0, ThreadId::nil());
    let mut gone = 0;
    for _ in 0..ROUNDS {
        let found = world
            .store
            .read(async |tx| threads::changed(tx, tenant, seen, BATCH).await)
            .await
            .retry()?;
        let Some(&(thread, at)) = found.last() else { break };
        seen = (at, thread);
        let found: Vec<ThreadId> = found
            .into_iter()
            .filter(|(_, at)| *at <= span.1)
            .map(|(thread, _)| thread)
            .collect();
        let long = world
            .store
            .read(async |tx| checkpoints::overgrown(tx, &found, cut).await)
            .await;
        for thread in long.retry()? {
            gone += ctx
                .commit(async |tx| match threads::lock(tx, tenant, thread).await {
                    Err(store::Error::NotFound) => Ok(0),
                    Ok(row) if row.status == ThreadStatus::Busy => Ok(0),
                    Ok(_) => checkpoints::apply(tx, thread, cut).await,
                    Err(error) => Err(error),
                })
                .await?;
        }
        if at > span.1 {
            break;
        }
    }
    Ok(gone)
}
