//! Compacts small days of one project together: one job and one segment with row groups for each day, in one
//! transaction. A separate compaction costs a job and an object per day, and a backfill may have thousands of days.
//!
//! All days are in one lane, which they share with [`CompactDay`](crate::compact_day::CompactDay), so no other job
//! compacts them. Visibility and indexing work as for a single day. Days that cannot be merged completely at once are
//! left to the next sweep.

use std::time::Duration;

use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, ProjectId, RunIndexId, SegmentId, TenantId, Timestamp, failpoint};
use towpath_durable::{Ctx, IntoFailure, Lane, Outcome, RetryDecision, Workflow};
use towpath_store::run_index::{self as catalog, IndexFileRecord};
use towpath_store::segments::LocatedPart;
use towpath_store::segments::replace::{self, Replacement, ScatteredDay};
use towpath_store::{self as store, Tx, segments};
use towpath_traces::compact::{self, Day};
use towpath_traces::flush::{FlushError, part_ref};
use towpath_traces::run_index::{self, NewIndexFile};
use towpath_traces::scan::PartRef;

use crate::Services;
use crate::compact_day::choose::{Choice, MAX_DEPTH, choose};
use crate::compact_day::{abandon_segments, lane, mark_partly_replaced, pricing, replacement, unindexed_row_groups};
use crate::index_runs;
use crate::write_intents::{self, IntentFailed};

/// A larger day gets its own segment.
const MAX_SMALL_DAY_ROWS: i64 = 10_000;
/// Maximum number of days of one job,
const MAX_DAYS: usize = 256;
/// and of their rows when the job is recorded.
const MAX_ROWS: i64 = 100_000;
/// Maximum rows of one transaction, because days may grow until the job runs.
const MAX_BATCH_ROWS: i64 = 4 * MAX_ROWS;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompactDays {
    pub tenant: TenantId,
    pub project: ProjectId,
    /// At least one UTC day, in order.
    pub days: Vec<NaiveDate>,
    /// Marks its segments in progress.
    pub mark: JobId,
}

/// Whether a day is compacted together with others: it has ended, and has few rows and segments.
pub(crate) fn is_small(day: &ScatteredDay, today: NaiveDate) -> bool {
    day.candidate.day < today
        && day.rows < MAX_SMALL_DAY_ROWS
        && usize::try_from(day.segments).is_ok_and(|segments| segments <= MAX_DEPTH)
}

/// Distributes small days of one lane over jobs.
pub(crate) fn split_into_batches(mut days: Vec<ScatteredDay>) -> Vec<Vec<NaiveDate>> {
    days.sort_unstable_by_key(|day| day.candidate.day);
    let mut batches: Vec<Vec<NaiveDate>> = Vec::new();
    let mut rows = 0;
    for day in days {
        match batches.last_mut() {
            Some(open) if open.len() < MAX_DAYS && rows + day.rows <= MAX_ROWS => {
                open.push(day.candidate.day);
                rows += day.rows;
            }
            _ => {
                batches.push(vec![day.candidate.day]);
                rows = day.rows;
            }
        }
    }
    batches
}

impl CompactDays {
    pub(crate) fn new(tenant: TenantId, project: ProjectId, days: Vec<NaiveDate>) -> Self {
        Self {
            tenant,
            project,
            days,
            mark: JobId::new(),
        }
    }

    fn lane(&self) -> Option<Lane> {
        self.days.first().map(|day| lane(self.tenant, self.project, *day))
    }
}

impl Workflow for CompactDays {
    const KIND: &'static str = "compact_days";
    const POOL: &'static str = "compactions";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(2), Duration::from_secs(120));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self {
            tenant, project, mark, ..
        } = self;
        let place = world.cpu_pool.memory_permit(&ctx.cancelled()).await?;
        let live = world.store.read(async |tx| {
            let mut live = segments::live_parts_on(tx, tenant, project, &self.days).await?;
            mark_partly_replaced(tx, &mut live).await?;
            Ok(live)
        });
        let days = parts_by_day(live.await.retry()?, world.store.clock().now());
        // Segments that an earlier attempt of this job began and did not publish.
        ctx.commit(async |tx| abandon_segments(tx, mark).await).await?;
        if !days.is_empty() {
            let (objects, refs) = (world.objects.clone(), part_refs(tenant, project, &days));
            let parts: Vec<LocatedPart> = days.into_iter().flatten().collect();
            let prices = world.objects.prices().table(&world.store, tenant).await.retry()?;
            let pricing = pricing(prices, &parts);
            let unindexed = unindexed_row_groups(&parts);
            let work = write_intents::run_with_intents(ctx, &world.cpu_pool, mark, move |intend| async move {
                let intend_segment = async |tenant, id: SegmentId, path: &Path| {
                    let asked = intend.record(tenant, id, path).await;
                    failpoint::hit("compact.intended");
                    asked
                };
                let new = compact::compact_days(&objects, refs, &pricing, intend_segment).await?;
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
                replace::replace(tx, tenant, &parts, &new, true).await?;
                catalog::publish(tx, tenant, &files, &ids).await
            });
            replaced.await?;
            failpoint::hit("compact.replaced");
            if !files.is_empty() {
                index_runs::ensure_merge(ctx, world, tenant).await?;
            }
        }
        drop(place);
        ctx.settle(async |tx| abandon_segments(tx, mark).await).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: EndReason) -> store::Result<()> {
        abandon_segments(tx, input.mark).await
    }

    /// It processes the data that exists when it runs.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(self.lane())
    }
}

/// Row groups of each day to merge, if that is the whole day. `live` is sorted by day.
fn parts_by_day(live: Vec<LocatedPart>, now: Timestamp) -> Vec<Vec<LocatedPart>> {
    let mut days: Vec<Vec<LocatedPart>> = Vec::new();
    for placed in live {
        match days.last_mut() {
            Some(day) if day.last().is_some_and(|last| last.part.day == placed.part.day) => day.push(placed),
            _ => days.push(vec![placed]),
        }
    }
    let mut rows = 0;
    let whole = days.into_iter().filter_map(|day| {
        let closed = day.first().is_some_and(|first| first.part.day < now.day());
        let Choice { parts, compacted } = choose(day, false, closed, now)?;
        let more: i64 = parts.iter().map(|placed| placed.part.rows).sum();
        let fits = compacted && rows + more <= MAX_BATCH_ROWS;
        if fits {
            rows += more;
        }
        fits.then_some(parts)
    });
    whole.collect()
}

/// Row groups to read for each day.
fn part_refs(tenant: TenantId, project: ProjectId, days: &[Vec<LocatedPart>]) -> Vec<(Day, Vec<PartRef>)> {
    let days = days.iter().filter_map(|parts| {
        let day = parts.first()?.part.day;
        Some((Day { tenant, project, day }, parts.iter().map(part_ref).collect()))
    });
    days.collect()
}

#[cfg(test)]
mod tests {
    use chrono::Days;
    use towpath_store::segments::replace::CompactionCandidate;

    use super::*;

    fn days(count: u64, rows: i64) -> Vec<ScatteredDay> {
        let day = |number| ScatteredDay {
            candidate: CompactionCandidate {
                tenant_id: TenantId::nil(),
                project_id: ProjectId::nil(),
                day: NaiveDate::default() + Days::new(number),
            },
            segments: 4,
            rows,
        };
        (0..count).rev().map(day).collect()
    }

    #[test]
    fn a_job_has_so_many_days_and_so_many_rows_at_most() {
        let sizes =
            |count, rows| -> Vec<usize> { split_into_batches(days(count, rows)).iter().map(Vec::len).collect() };
        assert_eq!(sizes(0, 1), [] as [usize; 0]);
        assert_eq!(sizes(600, 1), [256, 256, 88]);
        assert_eq!(sizes(25, 9_999), [10, 10, 5]);
        assert!(
            split_into_batches(days(600, 1)).concat().is_sorted(),
            "in order, each once"
        );
    }

    #[test]
    fn days_that_go_on_or_are_large_are_not_compacted_with_others() {
        let today = NaiveDate::default() + Days::new(1);
        let of = |day: NaiveDate, rows, segments| {
            let mut scattered = days(1, rows)[0];
            (scattered.candidate.day, scattered.segments) = (day, segments);
            is_small(&scattered, today)
        };
        let yesterday = NaiveDate::default();
        assert!(of(yesterday, 10, 4));
        assert!(!of(today, 10, 4));
        assert!(!of(yesterday, MAX_SMALL_DAY_ROWS, 4));
        assert!(!of(yesterday, 100, 25));
    }
}
