//! Planning: one export run per UTC day, over segments that are pinned now.

use std::collections::BTreeSet;

use towpath_domain::ExportRunId;
use towpath_domain::export::{RUNS_PER_EXPORT, day_partitions};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Start, Verdict};
use towpath_store::exports::{self, Export, runs};
use towpath_store::{self as store, Tx, destinations, segments};
use towpath_traces::hive::Prefix;

use super::RunExport;
use crate::World;
use crate::export_part::ExportPart;
use crate::world::prefix;

impl RunExport {
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
        let lane = Lane::new(format!("export:{id}"), RUNS_PER_EXPORT);
        let job = ctx.job();
        ctx.wait(std::slice::from_ref(&lane), async |tx| {
            if !exports::planned(tx, tenant, id).await? {
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
        let folder = prefix.partition(export.id, tenant, project, day);
        runs::insert(tx, tenant, export.id, run, partition, folder.as_ref(), job).await?;
    }
    Ok(())
}
