//! Compacts one day of a project: row groups that lie scattered over many segments become few, sorted from end to end,
//! which exports copy instead of reading.
//!
//! No two compactions do the same day at once: the days of a project are dealt out over a fixed number of lanes of one place, and
//! [`CompactDays`](crate::compact_days::CompactDays) takes days of one lane only. Jobs of earlier builds lie in a lane for
//! each day; where one of those is at the same day, whoever commits second finds its row groups replaced and begins anew.
//! Nothing changes before the one transaction
//! that lets readers see the new row groups and not the old ones; who has pinned those goes on reading them. What comes
//! in meanwhile lies beside the result, for the next time.
//!
//! Rows that the index of trace runs does not name yet are brought into it in the same transaction. Else a day would be
//! indexed again as a whole for the sake of a few rows that came last, and its trace runs would be named twice.

pub(crate) mod choose;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::{Datelike, NaiveDate};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, ProjectId, RunIndexId, SegmentId, TenantId, failpoint};
use towpath_durable::{Again, Ctx, Lane, Outcome, Verdict, Workflow};
use towpath_store::run_index::{self as catalog, Written};
use towpath_store::segments::PlacedPart;
use towpath_store::segments::replace::{self, Replacement};
use towpath_store::{self as store, Tx, segments};
use towpath_traces::compact::{self, Day};
use towpath_traces::fold::{FoldError, NewSegment, catalog_parts, part_ref};
use towpath_traces::run_index::{self, Indexed, NewIndexFile};

use crate::World;
use crate::index_runs;
use crate::intents::{self, Interrupted};
use choose::{Choice, choose};

/// Merges of one job. A day that needs more is met again by the sweep.
const ROUNDS: usize = 16;

/// Lanes of a project. Days that follow one another are in different ones, so that they are compacted side by side.
pub(crate) const LANES: i32 = 16;

/// The lane of a day.
pub(crate) fn lane(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Lane {
    let number = day.num_days_from_ce().rem_euclid(LANES);
    Lane::new(format!("compact:{tenant}:{project}:{number}"), 1)
}

/// Compacts one day.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompactDay {
    /// The workspace.
    pub tenant: TenantId,
    /// The project.
    pub project: ProjectId,
    /// The UTC day.
    pub day: NaiveDate,
    /// Everything of it, at once and whatever it costs; else what is worth it.
    pub whole: bool,
    /// What segments in work are marked with. Not the job's own id: `end` is not told that.
    pub mark: JobId,
}

impl CompactDay {
    /// What is worth it.
    #[must_use]
    pub fn new(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Self {
        Self {
            tenant,
            project,
            day,
            whole: false,
            mark: JobId::new(),
        }
    }

    /// All of the day.
    #[must_use]
    pub fn whole(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Self {
        Self {
            whole: true,
            ..Self::new(tenant, project, day)
        }
    }

    /// Its lane.
    #[must_use]
    pub fn lane(&self) -> Lane {
        lane(self.tenant, self.project, self.day)
    }
}

impl Workflow for CompactDay {
    const KIND: &'static str = "compact_day";
    const POOL: &'static str = "compactions";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(2), Duration::from_secs(120));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self {
            tenant,
            project,
            day,
            whole,
            mark,
        } = self;
        let place = world.heavy.place(&ctx.cancelled()).await?;
        for _ in 0..ROUNDS {
            let now = world.store.clock().now();
            let closed = day < now.day();
            let live = world.store.read(async |tx| {
                let mut live = segments::live_parts(tx, tenant, project, day, day).await?;
                // An export copies out of a torn segment as well.
                if closed && !whole {
                    scatter_torn(tx, &mut live).await?;
                }
                Ok(live)
            });
            let Some(Choice { parts, compacted }) = choose(live.await.retry()?, whole, closed, now) else {
                break;
            };
            // What an earlier attempt of this job began to write and did not bring in, nobody will.
            ctx.commit(async |tx| abandon(tx, mark).await).await?;
            let (objects, refs) = (world.objects.clone(), parts.iter().map(part_ref).collect());
            let of = Day { tenant, project, day };
            let unindexed = unindexed(&parts);
            let work = intents::with(ctx, &world.heavy, mark, move |intend| async move {
                let intend_segment = async |tenant, id: SegmentId, path: &Path| {
                    let asked = intend.ask(tenant, id, path).await;
                    failpoint::hit("compact.intended");
                    asked
                };
                let new = compact::compact(&objects, &of, refs, intend_segment).await?;
                let intend_file = async |tenant, id: RunIndexId, path: &Path| intend.ask(tenant, id, path).await;
                let files = run_index::build(&objects, tenant, &unindexed, intend_file).await?;
                Ok::<_, FoldError<Interrupted>>((new, files))
            });
            let (new, files) = work.await?.retry()?;
            let new: Vec<Replacement> = new.iter().map(replacement).collect();
            let ids: Vec<SegmentId> = new.iter().map(|segment| segment.id).collect();
            let files: Vec<Written> = files.iter().map(NewIndexFile::catalog).collect();
            failpoint::hit("compact.written");
            let replaced = ctx.commit(async |tx| {
                replace::replace(tx, tenant, &parts, &new, compacted).await?;
                catalog::publish(tx, tenant, &files, &ids).await
            });
            replaced.await?;
            failpoint::hit("compact.replaced");
            if !files.is_empty() {
                index_runs::ensure_merge(ctx, world, tenant).await?;
            }
        }
        drop(place);
        // An attempt that was killed may have begun to write what another job has brought together since.
        ctx.settle(async |tx| abandon(tx, mark).await).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: Ended) -> store::Result<()> {
        abandon(tx, input.mark).await
    }

    /// It takes what is there when its turn comes.
    fn again(&self) -> Again {
        Again::Allowed(Some(self.lane()))
    }
}

/// What lies in a torn segment counts as scattered, so that it is written anew and the segment goes: what was deleted of
/// it stays in the object until then.
pub(crate) async fn scatter_torn(tx: &mut Tx<'_>, live: &mut [PlacedPart]) -> store::Result<()> {
    let mut segments: Vec<SegmentId> = live.iter().map(|placed| placed.part.segment_id).collect();
    segments.sort_unstable();
    segments.dedup();
    let torn: HashSet<SegmentId> = replace::torn(tx, &segments).await?.into_iter().collect();
    for placed in live {
        placed.compacted &= !torn.contains(&placed.part.segment_id);
    }
    Ok(())
}

/// Gives up what was begun under `mark` and not brought in.
pub(crate) async fn abandon(tx: &mut Tx<'_>, mark: JobId) -> store::Result<()> {
    segments::abandon_of(tx, mark).await?;
    catalog::abandon_of(tx, mark).await.map(drop)
}

/// Those of the row groups whose rows the index does not name.
pub(crate) fn unindexed(parts: &[PlacedPart]) -> Vec<Indexed> {
    let mut segments: BTreeMap<&str, Vec<(usize, ProjectId)>> = BTreeMap::new();
    for placed in parts.iter().filter(|placed| !placed.indexed) {
        let row_group = usize::try_from(placed.part.row_group).unwrap_or_default();
        let row_groups = segments.entry(&placed.path).or_default();
        row_groups.push((row_group, placed.part.project_id));
    }
    let indexed = segments.into_iter().map(|(path, row_groups)| Indexed {
        path: Path::from(path),
        row_groups,
    });
    indexed.collect()
}

pub(crate) fn replacement(new: &NewSegment) -> Replacement {
    let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Replacement {
        id: new.id,
        rows: int(new.written.rows),
        bytes: int(new.written.bytes),
        parts: catalog_parts(new),
    }
}
