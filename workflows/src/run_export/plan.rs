//! Planning: one export run per UTC day, over segments that are pinned now.

use std::collections::{BTreeMap, BTreeSet};

use towpath_domain::ExportRunId;
use towpath_domain::export::{Compression, day_partitions};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Start, Verdict};
use towpath_store::exports::{self, Export, runs};
use towpath_store::{self as store, Tx, destinations, segments};
use towpath_traces::hive::Prefix;

use super::{RunExport, missing};
use crate::World;
use crate::compact_day::CompactDay;
use crate::export_part::ExportPart;
use crate::world::prefix;

/// Fewer rows are merged while they are exported, which takes a moment.
const WORTH_ROWS: i64 = 50_000;
/// More days are left to the sweep: this export would wait for them.
const WORTH_DAYS: usize = 400;

impl RunExport {
    /// Whole closed days of this export of which many rows lie scattered. Compacting one takes as long as exporting it
    /// does; then it is copied, by this export and by every one to come.
    pub(super) async fn worth_compacting(&self, world: &World, export: &Export) -> Result<Vec<CompactDay>, Failure> {
        if export.compression != Compression::Zstandard {
            return Ok(Vec::new());
        }
        let &Self { tenant, .. } = self;
        let project = export.project_id;
        let today = world.store.clock().now().day();
        let days: Vec<_> = day_partitions(export.start_time, export.end_time)
            .into_iter()
            .filter(|day| day.end == day.start.next_midnight() && day.start.day() < today)
            .map(|day| day.start.day())
            .collect();
        let (Some(first), Some(last)) = (days.first().copied(), days.last().copied()) else {
            return Ok(Vec::new());
        };
        let read = world
            .store
            .read(async |tx| segments::live_parts(tx, tenant, project, first, last).await);
        let mut scattered: BTreeMap<_, i64> = BTreeMap::new();
        for placed in read.await.retry()?.into_iter().filter(|placed| !placed.compacted) {
            *scattered.entry(placed.part.day).or_default() += placed.part.rows;
        }
        let worth = scattered
            .into_iter()
            .filter(|(day, rows)| *rows >= WORTH_ROWS && days.contains(day));
        Ok(worth
            .take(WORTH_DAYS)
            .map(|(day, _)| CompactDay::whole(tenant, project, day))
            .collect())
    }

    pub(super) async fn compact_first(&self, ctx: &mut Ctx, days: Vec<CompactDay>) -> Outcome {
        let job = ctx.job();
        let lanes: Vec<_> = days.iter().map(CompactDay::lane).collect();
        ctx.wait(&lanes, async |tx| {
            for (day, lane) in days.iter().zip(&lanes) {
                let how = Start::new(day.tenant).lane(lane.clone()).child_of(job);
                towpath_durable::start(tx, day, how).await?;
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn plan(&self, ctx: &mut Ctx, world: &World, export: &Export) -> Outcome {
        let &Self { tenant, export: id } = self;
        let destination = world
            .store
            .read(async |tx| destinations::get(tx, tenant, export.destination_id).await)
            .await;
        let destination = match destination {
            Err(store::Error::NotFound) => return Err(Failure::fatal("the destination was deleted")),
            other => other.retry()?,
        };
        let prefix = prefix(&destination.config().fatal()?).fatal()?;
        let lane = Lane::new(format!("export:{id}"), world.exports.runs_per_export);
        let job = ctx.job();
        ctx.wait(std::slice::from_ref(&lane), async |tx| {
            // Together with the pins: what is folded after all from here on is in no segment that this export reads.
            let missing = missing(tx, export).await?;
            if !exports::planned(tx, tenant, id, missing).await? {
                return Err(store::Error::Stale);
            }
            record(
                tx,
                export,
                &prefix,
                &Start::new(tenant).lane(lane.clone()).child_of(job),
            )
            .await
        })
        .await
    }
}

async fn record(tx: &mut Tx<'_>, export: &Export, prefix: &Prefix, how: &Start) -> store::Result<()> {
    let (tenant, project) = (export.tenant_id, export.project_id);
    let partitions = day_partitions(export.start_time, export.end_time);
    let (Some(first), Some(last)) = (partitions.first(), partitions.last()) else {
        return Ok(());
    };
    let (first, last) = (first.start.day(), last.start.day());
    let parts = segments::live_parts(tx, tenant, project, first, last).await?;
    let days: BTreeSet<_> = parts.into_iter().map(|placed| placed.part.day).collect();
    for partition in partitions {
        let run = ExportRunId::new();
        let day = partition.start.day();
        let job = towpath_durable::start(
            tx,
            &ExportPart {
                tenant,
                export: export.id,
                run,
            },
            how.clone(),
        )
        .await?;
        // A day without trace runs has an export run too, which finds nothing to do.
        if days.contains(&day) {
            segments::pin(tx, tenant, project, day, day, run.0).await?;
        }
        let folder = prefix.partition(export.format_version, export.id, tenant, project, day);
        runs::insert(tx, tenant, export.id, run, partition, folder.as_ref(), job).await?;
    }
    Ok(())
}
