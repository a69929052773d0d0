//! Planning: one export run per UTC day, over pinned segments.

use towpath_domain::ExportRunId;
use towpath_domain::export::{Compression, day_partitions};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, Start};
use towpath_store::exports::runs::{self, NewRun};
use towpath_store::exports::{self, Export};
use towpath_store::segments::{self, pins};
use towpath_store::{self as store, Tx, destinations};
use towpath_traces::hive::Prefix;

use super::{RunExport, missing_operations};
use crate::Services;
use crate::compact_day::CompactDay;
use crate::delete_destination::DELETED;
use crate::export_part::ExportPart;
use crate::services::prefix;

/// Fewer rows are merged during the export, which is fast.
const WORTH_ROWS: i64 = 50_000;
/// More days are left to the sweep, because this export would wait for them.
const WORTH_DAYS: i64 = 400;

impl RunExport {
    /// Complete closed days of this export with many scattered rows. Compacting one takes as long as exporting it;
    /// afterwards this and later exports copy it.
    pub(super) async fn worth_compacting(&self, world: &Services, export: &Export) -> Result<Vec<CompactDay>, Failure> {
        if export.compression != Compression::Zstandard {
            return Ok(Vec::new());
        }
        let &Self { tenant, .. } = self;
        let project = export.project_id;
        let today = world.store.clock().now().day();
        let mut whole = day_partitions(export.start_time, export.end_time)
            .into_iter()
            .filter(|day| day.end == day.start.next_midnight() && day.start.day() < today)
            .map(|day| day.start.day());
        let Some(first) = whole.next() else {
            return Ok(Vec::new());
        };
        // They are consecutive.
        let last = whole.next_back().unwrap_or(first);
        let read = world.store.read(async |tx| {
            segments::scattered_days(tx, tenant, project, (first, last), WORTH_ROWS, WORTH_DAYS).await
        });
        let days = read.await.retry()?.into_iter();
        Ok(days.map(|day| CompactDay::whole(tenant, project, day)).collect())
    }

    pub(super) async fn compact_first(&self, ctx: &mut Ctx, days: Vec<CompactDay>) -> Outcome {
        let job = ctx.job();
        let lanes: Vec<_> = days.iter().map(CompactDay::lane).collect();
        let days: Vec<_> = days.into_iter().zip(lanes.iter().cloned()).collect();
        ctx.wait(&lanes, async |tx| {
            let how = Start::new(self.tenant).child_of(job);
            towpath_durable::start_all(tx, &days, how).await.map(drop)
        })
        .await
    }

    pub(super) async fn plan(&self, ctx: &mut Ctx, world: &Services, export: &Export) -> Outcome {
        let &Self { tenant, export: id } = self;
        let destination = world
            .store
            .read(async |tx| destinations::get(tx, tenant, export.destination_id).await)
            .await;
        let destination = match destination {
            Err(store::Error::NotFound) => return Err(Failure::fatal(DELETED)),
            other => other.retry()?,
        };
        let prefix = prefix(&destination.config().fatal()?).fatal()?;
        let lane = Lane::new(format!("export:{id}"), world.exports.runs_per_export);
        let job = ctx.job();
        ctx.wait(std::slice::from_ref(&lane), async |tx| {
            // In the transaction of the pins: data that is flushed later is in no segment that this export reads.
            let missing = missing_operations(tx, export).await?;
            if !exports::planned(tx, tenant, id, missing).await? {
                return Err(store::Error::Stale);
            }
            record(tx, export, &prefix, &lane, Start::new(tenant).child_of(job)).await
        })
        .await
    }
}

/// Records the runs of an export with their jobs, and pins their segments. The number of statements does not depend on
/// the number of days, because this holds the lanes of the workspace and of the export.
async fn record(tx: &mut Tx<'_>, export: &Export, prefix: &Prefix, lane: &Lane, how: Start) -> store::Result<()> {
    let (tenant, project) = (export.tenant_id, export.project_id);
    let partitions = day_partitions(export.start_time, export.end_time);
    let parts: Vec<_> = partitions
        .iter()
        .map(|_| {
            let part = ExportPart {
                tenant,
                export: export.id,
                run: ExportRunId::new(),
            };
            (part, lane.clone())
        })
        .collect();
    let jobs = towpath_durable::start_all(tx, &parts, how).await?;
    let runs: Vec<_> = partitions
        .into_iter()
        .zip(&parts)
        .zip(jobs)
        .map(|((partition, (part, _)), job)| {
            let day = partition.start.day();
            let folder = prefix.partition(export.format_version, export.id, tenant, project, day);
            NewRun {
                id: part.run,
                partition,
                prefix: folder.to_string(),
                job,
            }
        })
        .collect();
    // A day without trace runs has an empty export run too.
    let holders: Vec<_> = runs.iter().map(|run| (run.partition.start.day(), run.id.0)).collect();
    pins::pin_all(tx, tenant, project, &holders).await?;
    runs::insert_all(tx, tenant, export.id, &runs).await
}
