//! Compacts days of few rows of one project together: one job, one segment with row groups for each day, one transaction.
//! A day of its own costs a job and an object, however little is in it, and a backfill may have thousands.
//!
//! All days are of one lane, which is that of [`CompactDay`](crate::compact_day::CompactDay) too: so nobody else is at any of
//! them. What holds of a day there holds here: nothing changes before the one transaction, and rows that the index of
//! trace runs does not name are brought into it with it. Days of which not everything is to be merged at once are left to
//! the next sweep.

use std::time::Duration;

use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, ProjectId, RunIndexId, SegmentId, TenantId, Timestamp, failpoint};
use towpath_durable::{Again, Ctx, Lane, Outcome, Verdict, Workflow};
use towpath_store::run_index::{self as catalog, Written};
use towpath_store::segments::PlacedPart;
use towpath_store::segments::replace::{self, Replacement, Scattered};
use towpath_store::{self as store, Tx, segments};
use towpath_traces::compact::{self, Day};
use towpath_traces::fold::{FoldError, part_ref};
use towpath_traces::run_index::{self, NewIndexFile};
use towpath_traces::scan::PartRef;

use crate::World;
use crate::compact_day::choose::{Choice, DEEP, choose};
use crate::compact_day::{abandon, lane, replacement, scatter_torn, unindexed};
use crate::index_runs;
use crate::intents::{self, Interrupted};

/// A day of more rows is worth a segment of its own.
const FEW_ROWS: i64 = 10_000;
/// Days of one job…
const DAYS: usize = 256;
/// … and their rows, when the job is recorded.
const ROWS: i64 = 100_000;
/// Rows of one transaction: days may have grown until the job is at them.
const BATCH_ROWS: i64 = 4 * ROWS;

/// Compacts some days of one lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompactDays {
    /// The workspace.
    pub tenant: TenantId,
    /// The project.
    pub project: ProjectId,
    /// The UTC days: at least one, in order.
    pub days: Vec<NaiveDate>,
    /// What segments in work are marked with.
    pub mark: JobId,
}

/// Whether a day is compacted together with others: it is over, and of few rows in few segments.
pub(crate) fn is_small(day: &Scattered, today: NaiveDate) -> bool {
    day.of.day < today && day.rows < FEW_ROWS && usize::try_from(day.segments).is_ok_and(|segments| segments <= DEEP)
}

/// Deals out small days of one lane over as many jobs as they need.
pub(crate) fn batches(mut days: Vec<Scattered>) -> Vec<Vec<NaiveDate>> {
    days.sort_unstable_by_key(|day| day.of.day);
    let mut batches: Vec<Vec<NaiveDate>> = Vec::new();
    let mut rows = 0;
    for day in days {
        match batches.last_mut() {
            Some(open) if open.len() < DAYS && rows + day.rows <= ROWS => {
                open.push(day.of.day);
                rows += day.rows;
            }
            _ => {
                batches.push(vec![day.of.day]);
                rows = day.rows;
            }
        }
    }
    batches
}

impl CompactDays {
    /// Days of one lane, in order.
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
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self {
            tenant, project, mark, ..
        } = self;
        let place = world.heavy.place(&ctx.cancelled()).await?;
        let live = world.store.read(async |tx| {
            let mut live = segments::live_parts_on(tx, tenant, project, &self.days).await?;
            scatter_torn(tx, &mut live).await?;
            Ok(live)
        });
        let days = chosen(live.await.retry()?, world.store.clock().now());
        // What an earlier attempt of this job began to write and did not bring in, nobody will.
        ctx.commit(async |tx| abandon(tx, mark).await).await?;
        if !days.is_empty() {
            let (objects, refs) = (world.objects.clone(), refs(tenant, project, &days));
            let parts: Vec<PlacedPart> = days.into_iter().flatten().collect();
            let unindexed = unindexed(&parts);
            let work = intents::with(ctx, &world.heavy, mark, move |intend| async move {
                let intend_segment = async |tenant, id: SegmentId, path: &Path| {
                    let asked = intend.ask(tenant, id, path).await;
                    failpoint::hit("compact.intended");
                    asked
                };
                let new = compact::compact_all(&objects, refs, intend_segment).await?;
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
        ctx.settle(async |tx| abandon(tx, mark).await).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: Ended) -> store::Result<()> {
        abandon(tx, input.mark).await
    }

    /// It takes what is there when its turn comes.
    fn again(&self) -> Again {
        Again::Allowed(self.lane())
    }
}

/// What of each day is merged now, where that is all of it. `live` is sorted by day.
fn chosen(live: Vec<PlacedPart>, now: Timestamp) -> Vec<Vec<PlacedPart>> {
    let mut days: Vec<Vec<PlacedPart>> = Vec::new();
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
        let fits = compacted && rows + more <= BATCH_ROWS;
        if fits {
            rows += more;
        }
        fits.then_some(parts)
    });
    whole.collect()
}

/// What is read of each day.
fn refs(tenant: TenantId, project: ProjectId, days: &[Vec<PlacedPart>]) -> Vec<(Day, Vec<PartRef>)> {
    let days = days.iter().filter_map(|parts| {
        let day = parts.first()?.part.day;
        Some((Day { tenant, project, day }, parts.iter().map(part_ref).collect()))
    });
    days.collect()
}

#[cfg(test)]
mod tests {
    use chrono::Days;
    use towpath_store::segments::replace::Candidate;

    use super::*;

    fn days(count: u64, rows: i64) -> Vec<Scattered> {
        let day = |number| Scattered {
            of: Candidate {
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
        let sizes = |count, rows| -> Vec<usize> { batches(days(count, rows)).iter().map(Vec::len).collect() };
        assert_eq!(sizes(0, 1), [] as [usize; 0]);
        assert_eq!(sizes(600, 1), [256, 256, 88]);
        assert_eq!(sizes(25, 9_999), [10, 10, 5]);
        assert!(batches(days(600, 1)).concat().is_sorted(), "in order, each once");
    }

    #[test]
    fn days_that_go_on_or_are_large_are_not_compacted_with_others() {
        let today = NaiveDate::default() + Days::new(1);
        let of = |day: NaiveDate, rows, segments| {
            let mut scattered = days(1, rows)[0];
            (scattered.of.day, scattered.segments) = (day, segments);
            is_small(&scattered, today)
        };
        let yesterday = NaiveDate::default();
        assert!(of(yesterday, 10, 4));
        assert!(!of(today, 10, 4));
        assert!(!of(yesterday, FEW_ROWS, 4));
        assert!(!of(yesterday, 100, 25));
    }
}
