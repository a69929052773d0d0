//! Tidies up trace data, again and again: rows of deleted projects and of days past their time go out of sight, days
//! worth it are compacted, segments that nobody else has brought into the index of trace runs are, objects that nobody
//! reads any more are removed, the quarantine is kept in order. A chain, so one sweep goes on at a time. Each chore goes on until
//! it has caught up or its time is up; while one is behind, the next sweep comes at once.

mod attachments;
mod beside;
pub(crate) mod chore;
mod days;
pub(crate) mod pending;
mod quarantine;

use std::time::{Duration, Instant};

use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ScheduleId, TenantId, Timestamp, failpoint};
use towpath_durable::{Cause, Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_store::schedules::{self, Schedule};
use towpath_store::segments::Segment;
use towpath_store::segments::replace::{self, Candidate};
use towpath_store::segments::waste;
use towpath_store::{self as store, Store, Tx, jobs, run_index, segments};

use self::chore::Chore;
use crate::World;
use crate::index_runs;
use crate::metric;

/// Between the end of one sweep and the beginning of the next…
const EVERY: Duration = Duration::from_secs(60);
/// … and while something is behind.
pub(crate) const SOON: Duration = Duration::from_secs(1);
/// Rows of one statement…
const BATCH: i64 = 200;
/// … and objects of which the rows are read at once.
const OBJECTS: i64 = 2000;
/// Workspaces of which one sweep has segments indexed.
const WORKSPACES: i64 = 100;
/// No writer takes this long: what it intended and did not finish was left by a process that died.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
/// Before an object that cannot be removed is tried again; each further time it is twice as long…
const REMOVE_AGAIN: Duration = Duration::from_secs(60);
/// … up to this.
const REMOVE_AGAIN_AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// How long one sweep goes on removing objects of a kind…
const REMOVING_TAKES: Duration = Duration::from_secs(120);
/// … and what removals that fail may take of that: a store that does not answer must not keep all else waiting.
const FAILURES_TAKE: Duration = Duration::from_secs(60);
/// A patch waits so long for the trace run it belongs to, and so does a file.
const RUN_COMES: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The chain there is. It belongs to no workspace.
const CHAIN: ScheduleId = ScheduleId::nil();

/// Sweeps once.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SweepTraces {
    /// How far the sweeps before have looked for objects that are missing.
    #[serde(default)]
    look: quarantine::Look,
    /// How far they have looked for days worth compacting, where there are more than one sweep looks at.
    #[serde(default)]
    days: Option<Candidate>,
}

/// Makes sure that trace data is swept. Any number of processes may call it at every start.
///
/// # Errors
/// Those of the database.
pub async fn ensure(store: &Store) -> store::Result<()> {
    let made = store
        .write(async |tx| {
            if schedules::get(tx, CHAIN).await?.is_some() {
                return Ok(());
            }
            let at = jobs::db_now(tx).await?.plus(EVERY);
            let job = towpath_durable::start(tx, &SweepTraces::default(), Start::new(TenantId::nil()).at(at)).await?;
            let schedule = Schedule {
                id: CHAIN,
                tenant_id: TenantId::nil(),
                kind: SweepTraces::KIND.to_owned(),
                pool: SweepTraces::POOL.to_owned(),
                input: "{}".to_owned(),
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

impl Workflow for SweepTraces {
    const KIND: &'static str = "sweep_traces";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let read = world.store.read(async |tx| schedules::get(tx, CHAIN).await).await;
        let Some(schedule) = read.retry()?.filter(|schedule| schedule.spawn_job == Some(ctx.job())) else {
            // Somebody else sweeps.
            return ctx.done();
        };
        let (next_sweep, is_behind) = sweep(ctx, world, self).await?;
        let rest = if is_behind { SOON } else { EVERY };
        ctx.settle(async |tx| {
            let next = jobs::db_now(tx).await?.plus(rest);
            let job = towpath_durable::start(tx, &next_sweep, Start::new(TenantId::nil()).at(next)).await?;
            if schedules::advance(tx, CHAIN, schedule.next_at, next, Some(job)).await? {
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

/// Sweeps, and says where the next sweep goes on, and whether anything is left for it.
async fn sweep(ctx: &mut Ctx, world: &World, from: &SweepTraces) -> Result<(SweepTraces, bool), Failure> {
    // The earlier of two clocks: on a host whose clock is ahead, what is being written at this moment would look old.
    let now = world.store.read(async |tx| jobs::db_now(tx).await).await;
    let now = now.retry()?.min(world.store.clock().now());
    let keep_from = world.keeping.first_day(now);
    let mut is_behind = rounds(ctx, "deleted trace rows", async move |tx| {
        replace::retire_dead(tx, keep_from, BATCH).await
    })
    .await?;
    failpoint::hit("sweep.retired");
    let (days, left) = days::compact(ctx, world, now, from.days).await?;
    is_behind |= left;
    index(ctx, world, now).await?;
    let replaced = now.minus(world.keeping.replaced);
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
    is_behind |= pending::expire(ctx, world, now.minus(RUN_COMES)).await?;
    is_behind |= pending::trim(ctx, world).await?;
    is_behind |= attachments::forget_orphans(ctx, world, now.minus(RUN_COMES)).await?;
    is_behind |= attachments::remove_waste(ctx, world, replaced).await?;
    let look = quarantine::sweep(ctx, world, from.look, now).await?;
    Ok((SweepTraces { look, days }, is_behind))
}

/// Has segments indexed that wait for it: whoever published them may have died before it could say so, or they are too
/// few and have waited long enough.
async fn index(ctx: &mut Ctx, world: &World, now: Timestamp) -> Result<(), Failure> {
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

/// Removes the objects of segments that are on their way out. One that cannot be removed keeps no other: it is tried again
/// later.
async fn remove(
    ctx: &mut Ctx,
    world: &World,
    abandoned: Timestamp,
    keep_from: Option<NaiveDate>,
) -> Result<bool, Failure> {
    let chore = Chore::lasting("objects of segments", REMOVING_TAKES);
    let mut failing = Failing::default();
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
                    // Later failures are in the metric alone.
                    if old.removal_failures == 0 {
                        failing.note(&old.path, &why);
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
    failing.tell("segments cannot be removed; they are tried again later");
    // A store that does not answer is not asked again at once.
    Ok(chore.end(left) && !failing.is_too_much())
}

/// As [`remove`], of index files. Those that cannot be removed are tried again by the next sweep.
async fn remove_index_files(ctx: &mut Ctx, world: &World, abandoned: Timestamp) -> Result<bool, Failure> {
    let chore = Chore::lasting("objects of index files", REMOVING_TAKES);
    let mut failing = Failing::default();
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
                failing.note(&old.path, &Cause::of(&error));
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
    failing.tell("index files cannot be removed; the next sweep tries again");
    let is_behind = chore.end(left + failing.objects);
    Ok(is_behind && failing.objects == 0)
}

/// Whether there is no other page of objects behind this one.
fn is_short<T>(page: &[T]) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found < OBJECTS)
}

/// Removes what lies beside a segment's rows, its object, then its row: a crash in between is made up for.
async fn remove_one(ctx: &mut Ctx, world: &World, old: &Segment, keep_from: Option<NaiveDate>) -> Result<(), Failure> {
    beside::remove(ctx, world, old, keep_from).await?;
    world.objects.delete(&Path::from(old.path.as_str())).await.retry()?;
    failpoint::hit("sweep.object_removed");
    ctx.commit(async |tx| segments::forget(tx, old.tenant_id, old.id).await)
        .await?;
    failpoint::hit("sweep.row_removed");
    Ok(())
}

/// Before a segment is tried again that could not be removed so many times before.
fn pause(failures: i64) -> Duration {
    let doubled = u32::try_from(failures).ok().and_then(|times| 2_u32.checked_pow(times));
    doubled.map_or(REMOVE_AGAIN_AT_MOST, |times| {
        REMOVE_AGAIN.saturating_mul(times).min(REMOVE_AGAIN_AT_MOST)
    })
}

/// Removals of one sweep that failed.
#[derive(Default)]
struct Failing {
    took: Duration,
    /// Objects that are told of.
    objects: usize,
    /// One of those, and why.
    example: Option<(String, Cause)>,
}

impl Failing {
    fn note(&mut self, path: &str, why: &Cause) {
        self.objects += 1;
        self.example.get_or_insert_with(|| (path.to_owned(), why.clone()));
    }

    fn is_too_much(&self) -> bool {
        self.took > FAILURES_TAKE
    }

    fn tell(&self, what: &str) {
        if let Some((path, why)) = &self.example {
            tracing::warn!(objects = self.objects, object.path = path, error = %why, "{what}");
        }
    }
}

/// Repeats a statement until nothing is left to do, or its time is up. Whether something may be left.
async fn rounds(
    ctx: &mut Ctx,
    name: &'static str,
    mut sweep: impl AsyncFnMut(&mut Tx<'_>) -> store::Result<u64>,
) -> Result<bool, Failure> {
    let chore = Chore::begin(name);
    loop {
        let done = ctx.commit(async |tx| sweep(tx).await).await?;
        if done == 0 || chore.is_spent() {
            return Ok(chore.end(usize::try_from(done).unwrap_or(usize::MAX)));
        }
    }
}
