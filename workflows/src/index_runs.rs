//! Brings segments of a workspace into its index of trace runs, by which folds and readers find a trace run whose id is
//! all they know.
//!
//! Segments wait until there are enough of them, or an hour. Their entries become index files in the order of ids, and
//! files of one size are merged into one, so that there are few of them however many trace runs there are. A lane of
//! one place per workspace keeps two from doing the same. Nothing changes before the one transaction that makes a file
//! live; segments that are not indexed yet are looked through by themselves.

mod choose;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, RunIndexId, SegmentId, TenantId, Timestamp, failpoint};
use towpath_durable::{Again, Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::run_index::{self as catalog, IndexFile, Written};
use towpath_store::segments::Segment;
use towpath_store::{self as store, Tx, jobs, lanes, segments};
use towpath_traces::run_index::{self, Indexed, NewIndexFile};

use crate::World;
use crate::intents;

/// A segment waits at most so long for others that are indexed with it.
pub const PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Segments of one round…
const SEGMENTS: i64 = 256;
/// … and about how many rows they have: as many entries lie in memory until they are sorted.
const ROWS: i64 = 1 << 20;
/// Rounds of one job, and merges of it. What is left is met again by the sweep.
const ROUNDS: usize = 32;

/// Indexes what waits for it in a workspace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexRuns {
    /// The workspace.
    pub tenant: TenantId,
    /// What index files in work are marked with. Not the job's own id: `end` is not told that.
    pub mark: JobId,
}

/// The lane of a workspace.
#[must_use]
pub fn lane(tenant: TenantId) -> Lane {
    Lane::new(format!("index:{tenant}"), 1)
}

/// Since when a segment must be live that waits for no others.
#[must_use]
pub fn overdue(now: Timestamp) -> Timestamp {
    now.minus(PATIENCE)
}

/// Records the job of those of `tenants` of whose segments enough wait. Belongs behind the transaction that published
/// some, since lanes are locked before anything else; the sweep makes up for a crash in between.
///
/// # Errors
/// As [`Ctx::commit`].
pub(crate) async fn ensure_due(ctx: &mut Ctx, world: &World, tenants: BTreeSet<TenantId>) -> Result<(), Failure> {
    if tenants.is_empty() {
        return Ok(());
    }
    let (tenants, least) = (Vec::from_iter(tenants), world.sizes.index_segments);
    let due = world
        .store
        .read(async |tx| catalog::due_among(tx, &tenants, least).await)
        .await
        .retry()?;
    for tenant in due {
        ensure(ctx, tenant).await?;
    }
    Ok(())
}

/// Records the job of a workspace when enough of its index files are of one size. For those who bring files in beside
/// this job.
///
/// # Errors
/// As [`Ctx::commit`].
pub(crate) async fn ensure_merge(ctx: &mut Ctx, world: &World, tenant: TenantId) -> Result<(), Failure> {
    let live = world.store.read(async |tx| catalog::live(tx, tenant).await).await;
    match choose::choose(&live.retry()?) {
        Some(_) => ensure(ctx, tenant).await,
        None => Ok(()),
    }
}

/// Records the job of a workspace, unless one waits already.
///
/// # Errors
/// As [`Ctx::commit`].
pub(crate) async fn ensure(ctx: &mut Ctx, tenant: TenantId) -> Result<(), Failure> {
    let lane = lane(tenant);
    ctx.commit_in(std::slice::from_ref(&lane), async |tx| {
        lanes::lock(tx, lane.key(), 1).await?;
        if jobs::lane_has_queued(tx, lane.key()).await? {
            return Ok(());
        }
        // Folds get slower while it waits, so it goes before compactions.
        let how = Start::new(tenant).lane(lane.clone()).priority(1);
        towpath_durable::start(tx, &IndexRuns::new(tenant), how).await.map(drop)
    })
    .await
}

impl IndexRuns {
    /// What waits in this workspace.
    #[must_use]
    pub fn new(tenant: TenantId) -> Self {
        Self {
            tenant,
            mark: JobId::new(),
        }
    }
}

impl Workflow for IndexRuns {
    const KIND: &'static str = "index_runs";
    const POOL: &'static str = "compactions";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(2), Duration::from_secs(120));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let mark = self.mark;
        let place = world.heavy.place(&ctx.cancelled()).await?;
        for _ in 0..ROUNDS {
            let waiting = self.waiting(world).await?;
            if waiting.is_empty() {
                break;
            }
            self.index(ctx, world, waiting).await?;
        }
        for _ in 0..ROUNDS {
            let live = world
                .store
                .read(async |tx| catalog::live(tx, self.tenant).await)
                .await
                .retry()?;
            let Some(files) = choose::choose(&live) else { break };
            self.merge(ctx, world, files).await?;
        }
        drop(place);
        // An attempt that was killed may have begun to write what another one has written since.
        ctx.settle(async |tx| catalog::abandon_of(tx, mark).await.map(drop))
            .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: Ended) -> store::Result<()> {
        catalog::abandon_of(tx, input.mark).await.map(drop)
    }

    /// It takes what is there when its turn comes.
    fn again(&self) -> Again {
        Again::Allowed(Some(lane(self.tenant)))
    }
}

impl IndexRuns {
    /// Segments that are indexed now, the oldest first, as many as one round takes; none while too few wait.
    async fn waiting(&self, world: &World) -> Result<Vec<Segment>, Failure> {
        let (tenant, least) = (self.tenant, world.sizes.index_segments);
        let mut waiting = world
            .store
            .read(async |tx| catalog::unindexed(tx, tenant, SEGMENTS.max(least)).await)
            .await
            .retry()?;
        let overdue = overdue(world.store.clock().now());
        let enough = i64::try_from(waiting.len()).is_ok_and(|count| count >= least)
            || waiting.first().is_some_and(|oldest| oldest.changed_at < overdue);
        if !enough {
            return Ok(Vec::new());
        }
        let mut rows = 0;
        let fit = waiting.iter().take_while(|segment| {
            let fits = rows < ROWS;
            rows += segment.rows;
            fits
        });
        let fit = fit.count();
        waiting.truncate(fit);
        Ok(waiting)
    }

    async fn index(&self, ctx: &mut Ctx, world: &World, waiting: Vec<Segment>) -> Result<(), Failure> {
        let (tenant, mark) = (self.tenant, self.mark);
        let ids: Vec<SegmentId> = waiting.iter().map(|segment| segment.id).collect();
        let parts = world
            .store
            .read(async |tx| segments::parts_of(tx, tenant, &ids).await)
            .await
            .retry()?;
        let mut row_groups: BTreeMap<SegmentId, Vec<_>> = BTreeMap::new();
        for part in parts {
            let row_group = usize::try_from(part.row_group).unwrap_or_default();
            let of = row_groups.entry(part.segment_id).or_default();
            of.push((row_group, part.project_id));
        }
        let indexed: Vec<Indexed> = waiting
            .into_iter()
            .map(|segment| Indexed {
                path: Path::from(segment.path),
                row_groups: row_groups.remove(&segment.id).unwrap_or_default(),
            })
            .collect();
        // What an earlier attempt of this job began to write and did not bring in, nobody will.
        ctx.commit(async |tx| catalog::abandon_of(tx, mark).await.map(drop))
            .await?;
        let objects = world.objects.clone();
        let work = intents::with(ctx, &world.heavy, mark, move |intend| async move {
            let intend = async |tenant, id: RunIndexId, path: &Path| {
                let asked = intend.ask(tenant, id, path).await;
                failpoint::hit("index.intended");
                asked
            };
            run_index::build(&objects, tenant, &indexed, intend).await
        });
        let new: Vec<Written> = work.await?.retry()?.iter().map(NewIndexFile::catalog).collect();
        failpoint::hit("index.written");
        ctx.commit(async |tx| catalog::publish(tx, tenant, &new, &ids).await)
            .await?;
        failpoint::hit("index.published");
        Ok(())
    }

    async fn merge(&self, ctx: &mut Ctx, world: &World, files: Vec<IndexFile>) -> Result<(), Failure> {
        let (tenant, mark) = (self.tenant, self.mark);
        let old: Vec<RunIndexId> = files.iter().map(|file| file.id).collect();
        let entries: u64 = files
            .iter()
            .map(|file| u64::try_from(file.entries).unwrap_or_default())
            .sum();
        let paths: Vec<Path> = files.into_iter().map(|file| Path::from(file.path)).collect();
        let keep_from = world.keeping.first_day(world.store.clock().now());
        ctx.commit(async |tx| catalog::abandon_of(tx, mark).await.map(drop))
            .await?;
        let (store, objects) = (world.store.clone(), world.objects.clone());
        let work = intents::with(ctx, &world.heavy, mark, move |intend| async move {
            let intend = async |tenant, id: RunIndexId, path: &Path| intend.ask(tenant, id, path).await;
            run_index::merge(&store, &objects, tenant, &paths, entries, keep_from, intend).await
        });
        let new: Vec<Written> = work.await?.retry()?.iter().map(NewIndexFile::catalog).collect();
        ctx.commit(async |tx| catalog::replace(tx, tenant, &old, &new).await)
            .await
    }
}
