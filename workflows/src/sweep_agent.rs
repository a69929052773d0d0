//! Periodic cleanup of an agent server: expired items, threads and kept events, and surplus checkpoints. It is a chain
//! like a cron's, so one sweep runs at a time. Each task runs until it has caught up or its time budget is used; while
//! one is behind, the next sweep follows at once.

mod orphans;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::agent::{ThreadStatus, TtlStrategy};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{ScheduleId, TenantId, ThreadId, Timestamp};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Workflow};
use towpath_runtime::first_checkpoint_at;
use towpath_store::checkpoints::{self, Retention};
use towpath_store::{self as store, Store, Tx, items, jobs, run_events, schedules, threads};

use self::orphans::BATCH;
use crate::agent_services::AgentServices;
use crate::sweep_traces::SOON;
use crate::sweep_traces::sweep_task::SweepTask;
use crate::{job_chain, run_agent};

/// Pause between two sweeps, unless something is behind.
const EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
pub struct SweepAgent {
    pub tenant: TenantId,
    /// Position of the previous sweep, if its time budget was used.
    #[serde(default)]
    behind: SweepBacklog,
}

/// Position of a walk through threads, in the order of their changes.
type Position = (Timestamp, ThreadId);

/// Positions of the walks through recently changed threads, and through idle ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SweepBacklog {
    #[serde(default)]
    changed: Option<Position>,
    #[serde(default)]
    rested: Option<Position>,
}

impl SweepBacklog {
    const fn is_pending(self) -> bool {
        self.changed.is_some() || self.rested.is_some()
    }
}

/// The chain of a workspace. Its id is the workspace's, so that concurrent processes create one only.
const fn chain(tenant: TenantId) -> ScheduleId {
    ScheduleId(tenant.0)
}

/// Ensures that a workspace is swept. Every process may call it at its start.
pub async fn ensure(store: &Store, tenant: TenantId) -> store::Result<()> {
    let sweep = SweepAgent {
        tenant,
        behind: SweepBacklog::default(),
    };
    job_chain::ensure(store, chain(tenant), tenant, &sweep, EVERY).await
}

impl Workflow for SweepAgent {
    const KIND: &'static str = "sweep_agent";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = AgentServices;

    async fn run(&self, ctx: &mut Ctx, world: &AgentServices) -> Outcome {
        let &Self { tenant, behind } = self;
        let read = world
            .store
            .read(async |tx| schedules::get(tx, chain(tenant)).await)
            .await;
        let Some(schedule) = read.retry()?.filter(|schedule| schedule.spawn_job == Some(ctx.job())) else {
            // Another job sweeps.
            return ctx.complete();
        };
        let (expired, left_items) = rounds(ctx, "expired items", async |tx| items::sweep(tx, BATCH).await).await?;
        let (forgotten, left_events) =
            rounds(ctx, "kept events", async |tx| run_events::prune(tx, BATCH).await).await?;
        let (over, left_threads) = end_threads(ctx, world, tenant).await?;
        let (cut, behind) = cut_histories(ctx, world, tenant, schedule.next_at, behind).await?;
        let orphans = orphans::end_orphans(ctx, world, tenant).await?;
        // Items whose embedder refused them earlier, and those whose job failed or ended just before they were written.
        world.items.resume(tenant).await.retry()?;
        let is_behind = left_items || left_events || left_threads || behind.is_pending();
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
        let rest = if is_behind { SOON } else { EVERY };
        let next_sweep = Self { tenant, behind };
        ctx.settle(async |tx| {
            let next = jobs::db_now(tx).await?.plus(rest);
            job_chain::advance(tx, &schedule, &next_sweep, next).await
        })
        .await
    }

    /// The scheduler continues the chain.
    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}

/// Repeats a statement until nothing is left or the time budget is used. Returns the number of rows, and whether some
/// are left.
async fn rounds(
    ctx: &mut Ctx,
    name: &'static str,
    mut sweep: impl AsyncFnMut(&mut Tx<'_>) -> store::Result<u64>,
) -> Result<(u64, bool), Failure> {
    let chore = SweepTask::begin(name);
    let mut gone = 0;
    loop {
        let batch = ctx.commit(async |tx| sweep(tx).await).await?;
        gone += batch;
        let full = usize::try_from(batch).unwrap_or(usize::MAX);
        if full < batch_size() {
            return Ok((gone, chore.end(0)));
        }
        if chore.is_spent() {
            return Ok((gone, chore.end(full)));
        }
    }
}

fn batch_size() -> usize {
    usize::try_from(BATCH).unwrap_or(usize::MAX)
}

/// Deletes expired threads, or prunes them to their latest state. Returns their number, and whether some are left.
async fn end_threads(ctx: &mut Ctx, world: &AgentServices, tenant: TenantId) -> Result<(u64, bool), Failure> {
    let chore = SweepTask::begin("expired threads");
    let mut over = 0;
    loop {
        let found = world
            .store
            .read(async |tx| threads::expired(tx, tenant, BATCH).await)
            .await
            .retry()?;
        let is_last = found.len() < batch_size();
        let (mut left, mut ended) = (found.len(), 0);
        for (thread, strategy) in found {
            if chore.is_spent() {
                break;
            }
            left -= 1;
            ended += u64::from(
                ctx.commit(async |tx| end_thread(tx, tenant, thread, strategy).await)
                    .await?,
            );
        }
        over += ended;
        // If none ended, other transactions have them locked; the next sweep finds them.
        if left > 0 || is_last || ended == 0 {
            return Ok((over, chore.end(left)));
        }
    }
}

/// Checks again under the thread's lock: a run may have started meanwhile and extended the time.
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
            run_agent::notify_deleted(tx, thread);
        }
        TtlStrategy::KeepLatest => {
            checkpoints::keep_latest(tx, thread).await?;
            threads::clear_expiry(tx, tenant, thread).await?;
        }
    }
    Ok(true)
}

/// Prunes the history of threads with surplus checkpoints: recently changed ones, and idle ones whose checkpoints have
/// expired recently. "Recently" is since the previous sweep, which was due at `due`, plus a margin in case one failed.
/// If the previous sweep used its time budget, this continues there. Returns the number of deleted checkpoints and the
/// position of the next sweep.
async fn cut_histories(
    ctx: &mut Ctx,
    world: &AgentServices,
    tenant: TenantId,
    due: Timestamp,
    behind: SweepBacklog,
) -> Result<(u64, SweepBacklog), Failure> {
    let now = world.store.clock().now();
    let since = due.min(now).minus(EVERY * 3);
    let count = Some(i64::from(world.settings.keep_checkpoints)).filter(|&count| count > 0);
    let age = Some(world.settings.checkpoint_retention).filter(|age| !age.is_zero());
    let cut = Retention {
        count,
        from: age.map(|age| first_checkpoint_at(now.minus(age))),
    };
    let mut left = SweepBacklog::default();
    if count.is_none() && age.is_none() {
        return Ok((0, left));
    }
    let begin = |at: Timestamp| (at, ThreadId::nil());
    let chore = SweepTask::begin("changed threads");
    let from = behind.changed.unwrap_or(begin(since));
    let (mut gone, stopped) = cut_threads(ctx, world, tenant, (from, now), &cut, &chore).await?;
    left.changed = stopped;
    chore.end(usize::from(stopped.is_some()));
    if let Some(age) = age {
        let chore = SweepTask::begin("resting threads");
        let from = behind.rested.unwrap_or(begin(since.minus(age)));
        let (more, stopped) = cut_threads(ctx, world, tenant, (from, now.minus(age)), &cut, &chore).await?;
        gone += more;
        left.rested = stopped;
        chore.end(usize::from(stopped.is_some()));
    }
    Ok((gone, left))
}

/// Prunes the histories of threads after a position, up to this time of change. Returns the number of deleted
/// checkpoints, and the position if the time budget was used.
async fn cut_threads(
    ctx: &mut Ctx,
    world: &AgentServices,
    tenant: TenantId,
    (mut seen, until): (Position, Timestamp),
    cut: &Retention,
    chore: &SweepTask,
) -> Result<(u64, Option<Position>), Failure> {
    let mut gone = 0;
    loop {
        let found = world
            .store
            .read(async |tx| threads::changed(tx, tenant, seen, BATCH).await)
            .await
            .retry()?;
        let Some(&(thread, at)) = found.last() else {
            return Ok((gone, None));
        };
        if chore.is_spent() {
            return Ok((gone, Some(seen)));
        }
        seen = (at, thread);
        let found: Vec<ThreadId> = found
            .into_iter()
            .filter(|(_, at)| *at <= until)
            .map(|(thread, _)| thread)
            .collect();
        let long = world
            .store
            .read(async |tx| checkpoints::threads_over_limit(tx, &found, cut).await)
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
        if at > until {
            return Ok((gone, None));
        }
    }
}
