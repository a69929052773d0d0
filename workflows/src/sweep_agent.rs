//! Tidies up an agent server, again and again: items, threads and kept events whose time is over, and checkpoints
//! beyond what is kept. A chain like a cron's, so one sweep goes on at a time. Each chore goes on until it has caught up or its
//! time is up; while one is behind, the next sweep comes at once.

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
use crate::sweep_traces::SOON;
use crate::sweep_traces::chore::Chore;

/// Between the end of one sweep and the beginning of the next, unless something is behind.
const EVERY: Duration = Duration::from_secs(60);
/// Rows of one statement, threads of one look.
const BATCH: i64 = 500;

/// Sweeps once.
#[derive(Debug, Serialize, Deserialize)]
pub struct SweepAgent {
    /// The workspace.
    pub tenant: TenantId,
    /// How far the sweep before has come where its time was up.
    #[serde(default)]
    behind: Behind,
}

/// Where a walk through threads has come to, in the order in which they changed.
type Position = (Timestamp, ThreadId);

/// Walks through threads that are to go on: those that changed lately, and those that have rested for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Behind {
    #[serde(default)]
    changed: Option<Position>,
    #[serde(default)]
    rested: Option<Position>,
}

impl Behind {
    const fn is_anything(self) -> bool {
        self.changed.is_some() || self.rested.is_some()
    }
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
    let sweep = SweepAgent {
        tenant,
        behind: Behind::default(),
    };
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
        let &Self { tenant, behind } = self;
        let read = world
            .store
            .read(async |tx| schedules::get(tx, chain(tenant)).await)
            .await;
        let Some(schedule) = read.retry()?.filter(|schedule| schedule.spawn_job == Some(ctx.job())) else {
            // Somebody else sweeps.
            return ctx.done();
        };
        let (expired, left_items) = rounds(ctx, "expired items", async |tx| items::sweep(tx, BATCH).await).await?;
        let (forgotten, left_events) =
            rounds(ctx, "kept events", async |tx| run_events::prune(tx, BATCH).await).await?;
        let (over, left_threads) = end_threads(ctx, world, tenant).await?;
        let (cut, behind) = cut_histories(ctx, world, tenant, schedule.next_at, behind).await?;
        let orphans = orphans::end_orphans(ctx, world, tenant).await?;
        let is_behind = left_items || left_events || left_threads || behind.is_anything();
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
            let job = towpath_durable::start(tx, &next_sweep, Start::new(tenant).at(next)).await?;
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

/// Repeats a statement until nothing is left to do, or its time is up. Answers how many rows that were, and whether some are left.
async fn rounds(
    ctx: &mut Ctx,
    name: &'static str,
    mut sweep: impl AsyncFnMut(&mut Tx<'_>) -> store::Result<u64>,
) -> Result<(u64, bool), Failure> {
    let chore = Chore::begin(name);
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

/// Deletes threads whose time is over, or cuts them down to their latest state. Answers how many, and whether some are left.
async fn end_threads(ctx: &mut Ctx, world: &AgentWorld, tenant: TenantId) -> Result<(u64, bool), Failure> {
    let chore = Chore::begin("expired threads");
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
        // Where none ended, others have been at them, and are found as they are the next time.
        if left > 0 || is_last || ended == 0 {
            return Ok((over, chore.end(left)));
        }
    }
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
/// little more: one that failed leaves nothing uncut. Where the time of the sweep before was up, it goes on from there. Answers how
/// many checkpoints went, and where the next sweep goes on.
async fn cut_histories(
    ctx: &mut Ctx,
    world: &AgentWorld,
    tenant: TenantId,
    due: Timestamp,
    behind: Behind,
) -> Result<(u64, Behind), Failure> {
    let now = world.store.clock().now();
    let since = due.min(now).minus(EVERY * 3);
    let count = Some(i64::from(world.settings.keep_checkpoints)).filter(|&count| count > 0);
    let age = Some(world.settings.checkpoints_kept).filter(|age| !age.is_zero());
    let cut = Cut {
        count,
        from: age.map(|age| first_checkpoint_at(now.minus(age))),
    };
    let mut left = Behind::default();
    if count.is_none() && age.is_none() {
        return Ok((0, left));
    }
    let begin = |at: Timestamp| (at, ThreadId::nil());
    let chore = Chore::begin("changed threads");
    let from = behind.changed.unwrap_or(begin(since));
    let (mut gone, stopped) = cut_threads(ctx, world, tenant, (from, now), &cut, &chore).await?;
    left.changed = stopped;
    chore.end(usize::from(stopped.is_some()));
    if let Some(age) = age {
        let chore = Chore::begin("resting threads");
        let from = behind.rested.unwrap_or(begin(since.minus(age)));
        let (more, stopped) = cut_threads(ctx, world, tenant, (from, now.minus(age)), &cut, &chore).await?;
        gone += more;
        left.rested = stopped;
        chore.end(usize::from(stopped.is_some()));
    }
    Ok((gone, left))
}

/// Cuts the histories of threads behind a position that changed last at this time at the latest. Answers how many checkpoints went,
/// and where it stopped if its time was up before the end.
async fn cut_threads(
    ctx: &mut Ctx,
    world: &AgentWorld,
    tenant: TenantId,
    (mut seen, until): (Position, Timestamp),
    cut: &Cut,
    chore: &Chore,
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
        if at > until {
            return Ok((gone, None));
        }
    }
}
