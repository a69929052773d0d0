//! Adds segments of a workspace to its run index, with which flushes and readers find a trace run by its id.
//!
//! Segments wait until there are enough of them, or for an hour. Their entries become index files sorted by id, and
//! files of similar size are merged, so that their number stays small. A lane with one slot per workspace prevents
//! duplicate work. One transaction makes a file live; segments that are not indexed yet are searched individually.

mod choose;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, RunIndexId, SegmentId, TenantId, Timestamp, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, RetryDecision, Start, Workflow};
use towpath_store::run_index::{self as catalog, IndexFile, IndexFileRecord};
use towpath_store::segments::Segment;
use towpath_store::{self as store, Tx, jobs, lanes, segments};
use towpath_traces::run_index::{self, NewIndexFile, SegmentToIndex};

use crate::Services;
use crate::write_intents;

/// Maximum time that a segment waits for others.
pub const PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Maximum number of segments of one round,
const SEGMENTS: i64 = 256;
/// and approximate number of their rows: the entries are sorted in memory.
const ROWS: i64 = 1 << 20;
/// Maximum number of rounds and merges of one job. The next sweep finds the rest.
const ROUNDS: usize = 32;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexRuns {
    pub tenant: TenantId,
    /// Marks its index files in progress. Not the job's id, which `end` does not get.
    pub mark: JobId,
}

#[must_use]
pub fn lane(tenant: TenantId) -> Lane {
    Lane::new(format!("index:{tenant}"), 1)
}

/// Segments older than this are indexed without waiting for others.
#[must_use]
pub fn overdue(now: Timestamp) -> Timestamp {
    now.minus(PATIENCE)
}

/// Records the job of those of `tenants` with enough waiting segments. Call it after the transaction that published
/// some, because lanes are locked first; after a crash in between, the sweep records the job.
pub(crate) async fn ensure_due(ctx: &mut Ctx, world: &Services, tenants: BTreeSet<TenantId>) -> Result<(), Failure> {
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

/// Records the job of a workspace if enough of its index files have a similar size. For jobs that add index files
/// themselves.
pub(crate) async fn ensure_merge(ctx: &mut Ctx, world: &Services, tenant: TenantId) -> Result<(), Failure> {
    let live = world.store.read(async |tx| catalog::live(tx, tenant).await).await;
    match choose::choose(&live.retry()?) {
        Some(_) => ensure(ctx, tenant).await,
        None => Ok(()),
    }
}

/// Records the job of a workspace, unless one is waiting.
pub(crate) async fn ensure(ctx: &mut Ctx, tenant: TenantId) -> Result<(), Failure> {
    let lane = lane(tenant);
    ctx.commit_in(std::slice::from_ref(&lane), async |tx| {
        lanes::lock(tx, lane.key(), 1).await?;
        if jobs::lane_has_queued(tx, lane.key()).await? {
            return Ok(());
        }
        // Flushes get slower while it waits, so it precedes compactions.
        let how = Start::new(tenant).lane(lane.clone()).priority(1);
        towpath_durable::start(tx, &IndexRuns::new(tenant), how).await.map(drop)
    })
    .await
}

impl IndexRuns {
    /// What is waiting in this workspace.
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
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let mark = self.mark;
        let place = world.cpu_pool.memory_permit(&ctx.cancelled()).await?;
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
        // A killed attempt may have begun files that another one has written since.
        ctx.settle(async |tx| catalog::abandon_of(tx, mark).await.map(drop))
            .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: EndReason) -> store::Result<()> {
        catalog::abandon_of(tx, input.mark).await.map(drop)
    }

    /// It processes the data that exists when it runs.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(lane(self.tenant)))
    }
}

impl IndexRuns {
    /// The oldest segments to index now, at most one round; none while too few wait.
    async fn waiting(&self, world: &Services) -> Result<Vec<Segment>, Failure> {
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

    async fn index(&self, ctx: &mut Ctx, world: &Services, waiting: Vec<Segment>) -> Result<(), Failure> {
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
        let indexed: Vec<SegmentToIndex> = waiting
            .into_iter()
            .map(|segment| SegmentToIndex {
                path: Path::from(segment.path),
                row_groups: row_groups.remove(&segment.id).unwrap_or_default(),
            })
            .collect();
        // Files that an earlier attempt of this job began and did not publish.
        ctx.commit(async |tx| catalog::abandon_of(tx, mark).await.map(drop))
            .await?;
        let objects = world.objects.clone();
        let work = write_intents::run_with_intents(ctx, &world.cpu_pool, mark, move |intend| async move {
            let intend = async |tenant, id: RunIndexId, path: &Path| {
                let asked = intend.record(tenant, id, path).await;
                failpoint::hit("index.intended");
                asked
            };
            run_index::build(&objects, tenant, &indexed, intend).await
        });
        let new: Vec<IndexFileRecord> = work.await?.retry()?.iter().map(NewIndexFile::catalog).collect();
        failpoint::hit("index.written");
        ctx.commit(async |tx| catalog::publish(tx, tenant, &new, &ids).await)
            .await?;
        failpoint::hit("index.published");
        Ok(())
    }

    async fn merge(&self, ctx: &mut Ctx, world: &Services, files: Vec<IndexFile>) -> Result<(), Failure> {
        let (tenant, mark) = (self.tenant, self.mark);
        let old: Vec<RunIndexId> = files.iter().map(|file| file.id).collect();
        let entries: u64 = files
            .iter()
            .map(|file| u64::try_from(file.entries).unwrap_or_default())
            .sum();
        let paths: Vec<Path> = files.into_iter().map(|file| Path::from(file.path)).collect();
        let keep_from = world.retention.first_day(world.store.clock().now());
        ctx.commit(async |tx| catalog::abandon_of(tx, mark).await.map(drop))
            .await?;
        let (store, objects) = (world.store.clone(), world.objects.clone());
        let work = write_intents::run_with_intents(ctx, &world.cpu_pool, mark, move |intend| async move {
            let intend = async |tenant, id: RunIndexId, path: &Path| intend.record(tenant, id, path).await;
            run_index::merge(&store, &objects, tenant, &paths, entries, keep_from, intend).await
        });
        let new: Vec<IndexFileRecord> = work.await?.retry()?.iter().map(NewIndexFile::catalog).collect();
        ctx.commit(async |tx| catalog::replace(tx, tenant, &old, &new).await)
            .await
    }
}
