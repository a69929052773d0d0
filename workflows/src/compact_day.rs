//! Compacts one day of a project: scattered row groups become a few sorted ones, which exports copy instead of reading
//! them. Costs of earlier prices are computed again.
//!
//! Compactions of one day never overlap: the days of a project are distributed over a fixed number of lanes with one
//! slot each, and [`CompactDays`](crate::compact_days::CompactDays) takes days of one lane only. Jobs of earlier builds
//! have a lane for each day; if one of those compacts the same day, the second one to commit finds its row groups
//! replaced and starts again. One transaction makes the new row groups visible and hides the old ones; readers that
//! have pinned those continue to read them. Rows that arrive meanwhile stay separate until the next time.
//!
//! Rows without an entry in the run index are indexed in the same transaction. Otherwise a few late rows would cause
//! the whole day to be indexed again, with duplicate entries.

pub(crate) mod choose;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{Datelike, NaiveDate};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, ProjectId, RunIndexId, SegmentId, TenantId, failpoint};
use towpath_durable::{Ctx, IntoFailure, Lane, Outcome, RetryDecision, Workflow};
use towpath_store::run_index::{self as catalog, IndexFileRecord};
use towpath_store::segments::LocatedPart;
use towpath_store::segments::replace::{self, Replacement};
use towpath_store::{self as store, Tx, segments};
use towpath_traces::compact::{self, Day, Pricing, PricingScope};
use towpath_traces::flush::{FlushError, NewSegment, catalog_parts, part_ref};
use towpath_traces::prices::PriceTable;
use towpath_traces::run_index::{self, NewIndexFile, SegmentToIndex};

use crate::Services;
use crate::index_runs;
use crate::write_intents::{self, IntentFailed};
use choose::{Choice, choose, choose_outdated};

/// Merges per job. A day that needs more is found by the next sweep.
const ROUNDS: usize = 16;

/// Lanes of a project. Consecutive days are in different lanes, so that they are compacted concurrently.
pub(crate) const LANES: i32 = 16;

pub(crate) fn lane(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Lane {
    let number = day.num_days_from_ce().rem_euclid(LANES);
    Lane::new(format!("compact:{tenant}:{project}:{number}"), 1)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompactDay {
    pub tenant: TenantId,
    pub project: ProjectId,
    pub day: NaiveDate,
    /// Compacts everything whatever it costs; otherwise only what is worthwhile.
    pub whole: bool,
    /// Marks its segments in progress. Not the job's id, which `end` does not get.
    pub mark: JobId,
    /// Only computes costs again that are of earlier prices.
    #[serde(default)]
    pub reprice: bool,
}

impl CompactDay {
    /// Compacts what is worthwhile.
    #[must_use]
    pub fn new(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Self {
        Self {
            tenant,
            project,
            day,
            whole: false,
            mark: JobId::new(),
            reprice: false,
        }
    }

    /// Computes the costs of the day again, unless they are of the current prices.
    #[must_use]
    pub fn repricing(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Self {
        Self {
            reprice: true,
            ..Self::new(tenant, project, day)
        }
    }

    /// Compacts the whole day.
    #[must_use]
    pub fn whole(tenant: TenantId, project: ProjectId, day: NaiveDate) -> Self {
        Self {
            whole: true,
            ..Self::new(tenant, project, day)
        }
    }

    #[must_use]
    pub fn lane(&self) -> Lane {
        lane(self.tenant, self.project, self.day)
    }
}

impl Workflow for CompactDay {
    const KIND: &'static str = "compact_day";
    const POOL: &'static str = "compactions";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(2), Duration::from_secs(120));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self {
            tenant,
            project,
            day,
            whole,
            mark,
            reprice,
        } = self;
        let place = world.cpu_pool.memory_permit(&ctx.cancelled()).await?;
        for _ in 0..ROUNDS {
            let now = world.store.clock().now();
            let closed = day < now.day();
            let live = world.store.read(async |tx| {
                let mut live = segments::live_parts(tx, tenant, project, day, day).await?;
                // An export can copy from a partly replaced segment too.
                if closed && !whole {
                    mark_partly_replaced(tx, &mut live).await?;
                }
                Ok(live)
            });
            let live = live.await.retry()?;
            // After the row groups, whose prices are then no later ones.
            let prices = world.objects.prices().table(&world.store, tenant).await.retry()?;
            let choice = if reprice {
                choose_outdated(live, prices.version())
            } else {
                choose(live, whole, closed, now)
            };
            let Some(Choice { parts, compacted }) = choice else {
                break;
            };
            let pricing = pricing(prices, &parts);
            // Segments that an earlier attempt of this job began and did not publish.
            ctx.commit(async |tx| abandon_segments(tx, mark).await).await?;
            let (objects, refs) = (world.objects.clone(), parts.iter().map(part_ref).collect());
            let of = Day { tenant, project, day };
            let unindexed = unindexed_row_groups(&parts);
            let work = write_intents::run_with_intents(ctx, &world.cpu_pool, mark, move |intend| async move {
                let intend_segment = async |tenant, id: SegmentId, path: &Path| {
                    let asked = intend.record(tenant, id, path).await;
                    failpoint::hit("compact.intended");
                    asked
                };
                let new = compact::compact(&objects, &of, refs, &pricing, intend_segment).await?;
                let intend_file = async |tenant, id: RunIndexId, path: &Path| intend.record(tenant, id, path).await;
                let files = run_index::build(&objects, tenant, &unindexed, intend_file).await?;
                Ok::<_, FlushError<IntentFailed>>((new, files))
            });
            let (new, files) = work.await?.retry()?;
            let new: Vec<Replacement> = new.iter().map(replacement).collect();
            let ids: Vec<SegmentId> = new.iter().map(|segment| segment.id).collect();
            let files: Vec<IndexFileRecord> = files.iter().map(NewIndexFile::catalog).collect();
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
        // A killed attempt may have begun to write data that another job has compacted since.
        ctx.settle(async |tx| abandon_segments(tx, mark).await).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: EndReason) -> store::Result<()> {
        abandon_segments(tx, input.mark).await
    }

    /// It processes the data that exists when it runs.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(self.lane()))
    }
}

/// Treats a partly replaced segment as scattered, so that it is rewritten and removed: its object contains the deleted
/// rows until then.
pub(crate) async fn mark_partly_replaced(tx: &mut Tx<'_>, live: &mut [LocatedPart]) -> store::Result<()> {
    let mut segments: Vec<SegmentId> = live.iter().map(|placed| placed.part.segment_id).collect();
    segments.sort_unstable();
    segments.dedup();
    let torn: HashSet<SegmentId> = replace::partly_replaced(tx, &segments).await?.into_iter().collect();
    for placed in live {
        placed.compacted &= !torn.contains(&placed.part.segment_id);
    }
    Ok(())
}

/// Abandons unpublished segments of `mark`.
pub(crate) async fn abandon_segments(tx: &mut Tx<'_>, mark: JobId) -> store::Result<()> {
    segments::abandon_of(tx, mark).await?;
    catalog::abandon_of(tx, mark).await.map(drop)
}

/// Row groups whose rows are not in the run index.
pub(crate) fn unindexed_row_groups(parts: &[LocatedPart]) -> Vec<SegmentToIndex> {
    let mut segments: BTreeMap<&str, Vec<(usize, ProjectId)>> = BTreeMap::new();
    for placed in parts.iter().filter(|placed| !placed.indexed) {
        let row_group = usize::try_from(placed.part.row_group).unwrap_or_default();
        let row_groups = segments.entry(&placed.path).or_default();
        row_groups.push((row_group, placed.part.project_id));
    }
    let indexed = segments.into_iter().map(|(path, row_groups)| SegmentToIndex {
        path: Path::from(path),
        row_groups,
    });
    indexed.collect()
}

/// The prices for a compaction of these row groups.
pub(crate) fn pricing(prices: Arc<PriceTable>, parts: &[LocatedPart]) -> Pricing {
    let is_outdated = parts.iter().any(|placed| placed.price_version < prices.version());
    Pricing {
        prices,
        scope: if is_outdated {
            PricingScope::All
        } else {
            PricingScope::Merged
        },
    }
}

pub(crate) fn replacement(new: &NewSegment) -> Replacement {
    let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Replacement {
        id: new.id,
        rows: int(new.written.rows),
        bytes: int(new.written.bytes),
        parts: catalog_parts(new),
        price_version: new.written.price_version,
    }
}
