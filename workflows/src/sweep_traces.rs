//! Periodic cleanup of trace data: hides rows of deleted projects and expired days, compacts days, indexes remaining
//! segments, removes unread objects, and maintains the quarantine. It is a chain, so one sweep runs at a time. Each
//! task runs until it has caught up or its time budget is used; while one is behind, the next sweep follows soon.

mod attachments;
mod compaction;
pub(crate) mod pending;
mod quarantine;
mod related_data;
pub(crate) mod sweep_task;

use std::time::{Duration, Instant};

use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{ScheduleId, TenantId, Timestamp, failpoint};
use towpath_durable::{Cause, Ctx, Failure, IntoFailure, Outcome, Workflow};
use towpath_store::segments::Segment;
use towpath_store::segments::replace::{self, CompactionCandidate};
use towpath_store::segments::waste;
use towpath_store::{self as store, Store, Tx, jobs, run_index, schedules, segments};

use self::sweep_task::SweepTask;
use crate::Services;
use crate::index_runs;
use crate::job_chain;
use crate::metric;
use crate::reprice_days;

/// Pause between two sweeps,
const EVERY: Duration = Duration::from_secs(60);
/// and while something is behind.
pub(crate) const SOON: Duration = Duration::from_secs(1);
/// Rows per statement,
const BATCH: i64 = 200;
/// and objects whose rows are read at once.
const OBJECTS: i64 = 2000;
/// Workspaces whose segments one sweep indexes.
const WORKSPACES: i64 = 100;
/// Older than any write in progress: a process that died left the intent.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
/// First delay before a failed removal is retried; it doubles each time,
const REMOVE_AGAIN: Duration = Duration::from_secs(60);
/// up to this.
const REMOVE_AGAIN_AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// Time budget for removing objects of a kind,
const REMOVAL_BUDGET: Duration = Duration::from_secs(120);
/// and the part of it that failed removals may use: an unavailable store must not block everything else.
const FAILURE_BUDGET: Duration = Duration::from_secs(60);
/// How long a patch or a file waits for its trace run.
const PENDING_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The single chain, which belongs to no workspace.
const CHAIN: ScheduleId = ScheduleId::nil();

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SweepTraces {
    /// Position of the checks for missing objects.
    #[serde(default)]
    look: quarantine::ScanPosition,
    /// Position of the search for days to compact, if one sweep does not cover all.
    #[serde(default)]
    days: Option<CompactionCandidate>,
}

/// Ensures that trace data is swept. Every process may call it at its start.
pub async fn ensure(store: &Store) -> store::Result<()> {
    job_chain::ensure(store, CHAIN, TenantId::nil(), &SweepTraces::default(), EVERY).await
}

impl Workflow for SweepTraces {
    const KIND: &'static str = "sweep_traces";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let read = world.store.read(async |tx| schedules::get(tx, CHAIN).await).await;
        let Some(schedule) = read.retry()?.filter(|schedule| schedule.spawn_job == Some(ctx.job())) else {
            // Another job sweeps.
            return ctx.complete();
        };
        let (next_sweep, is_behind) = sweep(ctx, world, self).await?;
        let rest = if is_behind { SOON } else { EVERY };
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

/// Sweeps. Returns the position of the next sweep, and whether anything is left for it.
async fn sweep(ctx: &mut Ctx, world: &Services, from: &SweepTraces) -> Result<(SweepTraces, bool), Failure> {
    // The earlier of two clocks: on a host whose clock is ahead, current writes would look old.
    let now = world.store.read(async |tx| jobs::db_now(tx).await).await;
    let now = now.retry()?.min(world.store.clock().now());
    let keep_from = world.retention.first_day(now);
    let mut is_behind = rounds(ctx, "deleted trace rows", async move |tx| {
        replace::retire_dead(tx, keep_from, BATCH).await
    })
    .await?;
    failpoint::hit("sweep.retired");
    let (days, left) = compaction::start_compactions(ctx, world, now, from.days).await?;
    is_behind |= left;
    index(ctx, world, now).await?;
    reprice_days::ensure_outdated(ctx, world).await?;
    let replaced = now.minus(world.retention.replaced_segments);
    is_behind |= rounds(ctx, "replaced segments", async move |tx| {
        waste::collect(tx, replaced, BATCH)
            .await
            .map(|taken| taken.len() as u64)
    })
    .await?;
    is_behind |= rounds(ctx, "replaced index files", async move |tx| {
        run_index::collect(tx, replaced, BATCH).await
    })
    .await?;
    let abandoned = now.minus(ABANDONED);
    is_behind |= rounds(ctx, "abandoned segments", async move |tx| {
        segments::abandon(tx, abandoned, BATCH)
            .await
            .map(|taken| taken.len() as u64)
    })
    .await?;
    is_behind |= rounds(ctx, "abandoned index files", async move |tx| {
        run_index::abandon(tx, abandoned, BATCH).await
    })
    .await?;
    failpoint::hit("sweep.collected");
    is_behind |= remove(ctx, world, abandoned, keep_from).await?;
    is_behind |= remove_index_files(ctx, world, abandoned).await?;
    is_behind |= pending::expire(ctx, world, now.minus(PENDING_RETENTION)).await?;
    is_behind |= pending::trim(ctx, world).await?;
    is_behind |= attachments::forget_orphans(ctx, world, now.minus(PENDING_RETENTION)).await?;
    is_behind |= attachments::remove_waste(ctx, world, replaced).await?;
    let look = quarantine::sweep(ctx, world, from.look, now).await?;
    Ok((SweepTraces { look, days }, is_behind))
}

/// Indexes waiting segments: their writer may have died before it recorded the job, or they are too few and have waited
/// long enough.
async fn index(ctx: &mut Ctx, world: &Services, now: Timestamp) -> Result<(), Failure> {
    let (least, overdue) = (world.sizes.index_segments, index_runs::overdue(now));
    let due = world
        .store
        .read(async |tx| run_index::due(tx, least, overdue, WORKSPACES).await)
        .await
        .retry()?;
    for tenant in due {
        index_runs::ensure(ctx, tenant).await?;
    }
    Ok(())
}

/// Removes the objects of segments to be deleted. A failed removal does not stop the others, and is retried later.
async fn remove(
    ctx: &mut Ctx,
    world: &Services,
    abandoned: Timestamp,
    keep_from: Option<NaiveDate>,
) -> Result<bool, Failure> {
    let chore = SweepTask::with_budget("objects of segments", REMOVAL_BUDGET);
    let mut failing = RemovalFailures::default();
    let left = loop {
        let deleting = world
            .store
            .read(async |tx| segments::deleting(tx, abandoned, OBJECTS).await)
            .await
            .retry()?;
        let is_last = is_short(&deleting);
        let mut left = deleting.len();
        for old in deleting {
            if chore.is_spent() || failing.is_too_much() {
                break;
            }
            let began = Instant::now();
            match remove_one(ctx, world, &old, keep_from).await {
                Ok(()) => metrics::counter!(metric::SEGMENTS_REMOVED).increment(1),
                Err(Failure::Retry(why) | Failure::Fatal(why)) => {
                    metrics::counter!(metric::REMOVALS_FAILED).increment(1);
                    // Later failures only count in the metric.
                    if old.removal_failures == 0 {
                        failing.record(&old.path, &why);
                    }
                    let again = world.store.clock().now().plus(pause(old.removal_failures));
                    ctx.commit(async |tx| segments::put_off_removal(tx, old.tenant_id, old.id, again).await)
                        .await?;
                    failing.took += began.elapsed();
                }
                Err(failure) => return Err(failure),
            }
            left -= 1;
        }
        if left > 0 || is_last {
            break left;
        }
    };
    failing.report("segments cannot be removed; retrying later");
    // An unavailable store is not called again at once.
    Ok(chore.end(left) && !failing.is_too_much())
}

/// Like [`remove`], for index files. Failed removals are retried by the next sweep.
async fn remove_index_files(ctx: &mut Ctx, world: &Services, abandoned: Timestamp) -> Result<bool, Failure> {
    let chore = SweepTask::with_budget("objects of index files", REMOVAL_BUDGET);
    let mut failing = RemovalFailures::default();
    let mut after = run_index::FIRST;
    let left = loop {
        let deleting = world
            .store
            .read(async |tx| run_index::deleting(tx, abandoned, after, OBJECTS).await)
            .await
            .retry()?;
        let is_last = is_short(&deleting);
        let mut left = deleting.len();
        for old in deleting {
            if chore.is_spent() || failing.is_too_much() {
                break;
            }
            after = (old.changed_at, old.id);
            left -= 1;
            let began = Instant::now();
            if let Err(error) = world.objects.delete(&Path::from(old.path.as_str())).await {
                failing.record(&old.path, &Cause::of(&error));
                failing.took += began.elapsed();
                continue;
            }
            ctx.commit(async |tx| run_index::forget(tx, old.tenant_id, old.id).await)
                .await?;
        }
        if left > 0 || is_last {
            break left;
        }
    };
    failing.report("index files cannot be removed; the next sweep retries");
    let is_behind = chore.end(left + failing.objects);
    Ok(is_behind && failing.objects == 0)
}

/// Whether no other page of objects follows this one.
fn is_short<T>(page: &[T]) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found < OBJECTS)
}

/// Removes related data of a segment, its object, then its row; idempotent, so that it can be repeated after a crash.
async fn remove_one(
    ctx: &mut Ctx,
    world: &Services,
    old: &Segment,
    keep_from: Option<NaiveDate>,
) -> Result<(), Failure> {
    related_data::remove(ctx, world, old, keep_from).await?;
    world.objects.delete(&Path::from(old.path.as_str())).await.retry()?;
    failpoint::hit("sweep.object_removed");
    ctx.commit(async |tx| segments::forget(tx, old.tenant_id, old.id).await)
        .await?;
    failpoint::hit("sweep.row_removed");
    Ok(())
}

/// Delay before a removal that failed this many times is retried.
fn pause(failures: i64) -> Duration {
    let doubled = u32::try_from(failures).ok().and_then(|times| 2_u32.checked_pow(times));
    doubled.map_or(REMOVE_AGAIN_AT_MOST, |times| {
        REMOVE_AGAIN.saturating_mul(times).min(REMOVE_AGAIN_AT_MOST)
    })
}

/// Failed removals of one sweep.
#[derive(Default)]
struct RemovalFailures {
    took: Duration,
    /// Number of objects to report.
    objects: usize,
    /// One of them, with its error.
    example: Option<(String, Cause)>,
}

impl RemovalFailures {
    fn record(&mut self, path: &str, why: &Cause) {
        self.objects += 1;
        self.example.get_or_insert_with(|| (path.to_owned(), why.clone()));
    }

    fn is_too_much(&self) -> bool {
        self.took > FAILURE_BUDGET
    }

    fn report(&self, what: &str) {
        if let Some((path, why)) = &self.example {
            tracing::warn!(objects = self.objects, object.path = path, error = %why, "{what}");
        }
    }
}

/// Repeats a statement until nothing is left or the time budget is used. Returns whether something may be left.
async fn rounds(
    ctx: &mut Ctx,
    name: &'static str,
    mut sweep: impl AsyncFnMut(&mut Tx<'_>) -> store::Result<u64>,
) -> Result<bool, Failure> {
    let chore = SweepTask::begin(name);
    loop {
        let done = ctx.commit(async |tx| sweep(tx).await).await?;
        if done == 0 || chore.is_spent() {
            return Ok(chore.end(usize::try_from(done).unwrap_or(usize::MAX)));
        }
    }
}
