//! Tidies up trace data, again and again: rows of deleted projects and of days past their time go out of sight, days
//! worth it are compacted, segments that nobody else has brought into the index of trace runs are, objects that nobody
//! reads any more are removed, the quarantine is kept in order. A chain, so one sweep goes on at a time.

mod attachments;
mod beside;
pub(crate) mod pending;
mod quarantine;

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ScheduleId, TenantId, Timestamp, failpoint};
use towpath_durable::{Cause, Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_store::schedules::{self, Schedule};
use towpath_store::segments::Segment;
use towpath_store::segments::replace::{self, Candidate, Worth};
use towpath_store::segments::waste;
use towpath_store::{self as store, Store, Tx, jobs, lanes, run_index, segments};

use crate::World;
use crate::compact_day::CompactDay;
use crate::index_runs;
use crate::metric;

/// Between the end of one sweep and the beginning of the next.
const EVERY: Duration = Duration::from_secs(60);
/// Rows of one statement.
const BATCH: i64 = 200;
/// Batches of one sweep: the rest is for the next.
const ROUNDS: usize = 50;
/// Days that one sweep has compacted.
const DAYS: usize = 100;
/// Row groups looked at in one statement for days worth compacting…
const PARTS: i64 = 20_000;
/// … and how long one sweep goes on with it.
const LOOKING_TAKES: Duration = Duration::from_secs(10);
/// Workspaces of which one sweep has segments indexed.
const WORKSPACES: i64 = 100;
/// So many scattered rows of a closed day, or segments of it, are worth a compaction…
const CLOSED_ROWS: i64 = 20_000;
const CLOSED_SEGMENTS: i64 = 4;
/// … and so many segments of a day that is still open.
const OPEN_SEGMENTS: i64 = 8;
/// No writer takes this long: what it intended and did not finish was left by a process that died.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
/// Before an object that cannot be removed is tried again; each further time it is twice as long…
const REMOVE_AGAIN: Duration = Duration::from_secs(60);
/// … up to this.
const REMOVE_AGAIN_AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// What removals that fail may take of one sweep: a store that does not answer must not keep all else waiting.
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
        let left = sweep(ctx, world, self).await?;
        ctx.settle(async |tx| {
            let next = jobs::db_now(tx).await?.plus(EVERY);
            let job = towpath_durable::start(tx, &left, Start::new(TenantId::nil()).at(next)).await?;
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

/// Sweeps, and says where the next sweep goes on.
async fn sweep(ctx: &mut Ctx, world: &World, from: &SweepTraces) -> Result<SweepTraces, Failure> {
    let now = world.store.clock().now();
    let keep_from = world.keeping.first_day(now);
    rounds(ctx, async move |tx| replace::retire_dead(tx, keep_from, BATCH).await).await?;
    failpoint::hit("sweep.retired");
    let days = compact(ctx, world, now, from.days).await?;
    index(ctx, world, now).await?;
    let replaced = now.minus(world.keeping.replaced);
    rounds(ctx, async move |tx| {
        waste::collect(tx, replaced, BATCH)
            .await
            .map(|taken| taken.len() as u64)
    })
    .await?;
    rounds(ctx, async move |tx| run_index::collect(tx, replaced, BATCH).await).await?;
    let abandoned = now.minus(ABANDONED);
    rounds(ctx, async move |tx| {
        segments::abandon(tx, abandoned, BATCH)
            .await
            .map(|taken| taken.len() as u64)
    })
    .await?;
    rounds(ctx, async move |tx| run_index::abandon(tx, abandoned, BATCH).await).await?;
    failpoint::hit("sweep.collected");
    remove(ctx, world, abandoned, keep_from).await?;
    remove_index_files(ctx, world, abandoned).await?;
    pending::expire(ctx, world, now.minus(RUN_COMES)).await?;
    pending::trim(ctx, world).await?;
    attachments::forget_orphans(ctx, world, now.minus(RUN_COMES)).await?;
    attachments::remove_waste(ctx, world, replaced).await?;
    let look = quarantine::sweep(ctx, world, from.look, now).await?;
    Ok(SweepTraces { look, days })
}

/// Starts a compaction of the days most worth it, unless one waits already. Answers where the next sweep goes on looking.
async fn compact(
    ctx: &mut Ctx,
    world: &World,
    now: Timestamp,
    from: Option<Candidate>,
) -> Result<Option<Candidate>, Failure> {
    let worth = Worth {
        open_from: now.day(),
        closed_rows: CLOSED_ROWS,
        closed_segments: CLOSED_SEGMENTS,
        open_segments: OPEN_SEGMENTS,
    };
    let until = Instant::now() + LOOKING_TAKES;
    let (mut found, mut from) = (Vec::new(), from);
    loop {
        let behind = from;
        let seen = world
            .store
            .read(async |tx| replace::candidates(tx, worth, behind, PARTS).await)
            .await
            .retry()?;
        found.extend(seen.worth_it);
        from = seen.last;
        if from.is_none() || Instant::now() >= until {
            break;
        }
    }
    found.sort_by_key(|(segments, _)| Reverse(*segments));
    found.truncate(DAYS);
    for (_, day) in found {
        let compact = CompactDay::new(day.tenant_id, day.project_id, day.day);
        let lane = compact.lane();
        ctx.commit_in(std::slice::from_ref(&lane), async |tx| {
            lanes::lock(tx, lane.key(), 1).await?;
            if jobs::lane_has_queued(tx, lane.key()).await? {
                return Ok(());
            }
            let how = Start::new(compact.tenant).lane(lane.clone());
            towpath_durable::start(tx, &compact, how).await.map(drop)
        })
        .await?;
        failpoint::hit("sweep.compaction_started");
    }
    Ok(from)
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
) -> Result<(), Failure> {
    let deleting = world
        .store
        .read(async |tx| segments::deleting(tx, BATCH * 10).await)
        .await
        .retry()?;
    let mut failing = Failing::default();
    for old in deleting {
        // Whoever began to write one that was never published may still be at it; an object that comes after its row is
        // gone would stay for ever.
        if old.rows == 0 && old.changed_at >= abandoned {
            continue;
        }
        let began = Instant::now();
        match remove_one(ctx, world, &old, keep_from).await {
            Ok(()) => metrics::counter!(metric::SEGMENTS_REMOVED).increment(1),
            Err(Failure::Retry(why) | Failure::Fatal(why)) => {
                failing.note(&old, &why);
                let again = world.store.clock().now().plus(pause(old.removal_failures));
                ctx.commit(async |tx| segments::put_off_removal(tx, old.tenant_id, old.id, again).await)
                    .await?;
                failing.took += began.elapsed();
                if failing.took > FAILURES_TAKE {
                    break;
                }
            }
            Err(failure) => return Err(failure),
        }
    }
    failing.tell();
    Ok(())
}

/// As [`remove`], of index files.
async fn remove_index_files(ctx: &mut Ctx, world: &World, abandoned: Timestamp) -> Result<(), Failure> {
    let deleting = world
        .store
        .read(async |tx| run_index::deleting(tx, BATCH * 10).await)
        .await
        .retry()?;
    for old in deleting {
        // Its writer may still be at it, as that of a segment.
        if old.entries == 0 && old.changed_at >= abandoned {
            continue;
        }
        world.objects.delete(&Path::from(old.path.as_str())).await.retry()?;
        ctx.commit(async |tx| run_index::forget(tx, old.tenant_id, old.id).await)
            .await?;
    }
    Ok(())
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
    /// Segments that failed for the first time. Later failures are in the metric alone.
    new: usize,
    /// One of those, and why.
    example: Option<(String, Cause)>,
}

impl Failing {
    fn note(&mut self, old: &Segment, why: &Cause) {
        metrics::counter!(metric::REMOVALS_FAILED).increment(1);
        if old.removal_failures == 0 {
            self.new += 1;
            self.example.get_or_insert_with(|| (old.path.clone(), why.clone()));
        }
    }

    fn tell(&self) {
        if let Some((path, why)) = &self.example {
            tracing::warn!(
                segments = self.new,
                object.path = path,
                error = %why,
                "segments cannot be removed; they are tried again later"
            );
        }
    }
}

/// Repeats a statement until nothing is left to do, or enough was done.
async fn rounds(ctx: &mut Ctx, mut sweep: impl AsyncFnMut(&mut Tx<'_>) -> store::Result<u64>) -> Result<(), Failure> {
    for _ in 0..ROUNDS {
        if ctx.commit(async |tx| sweep(tx).await).await? == 0 {
            break;
        }
    }
    Ok(())
}
