//! Related data of deleted trace runs: feedback and attachments.

use std::collections::HashSet;

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::TraceRunId;
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_store::feedback;
use towpath_store::segments::{self, waste};
use towpath_traces::flush::{self, RunLocation};
use towpath_traces::segment::Segment;

use crate::Services;

/// Trace runs per lookup.
const RUNS: usize = 1000;

/// Removes related data of the trace runs that are deleted with `old`. Their segment must still exist: after a crash in
/// between, the next sweep finds them in it again.
pub async fn remove(
    ctx: &mut Ctx,
    world: &Services,
    old: &segments::Segment,
    keep_from: Option<NaiveDate>,
) -> Result<(), Failure> {
    let tenant = old.tenant_id;
    let parts = world
        .store
        .read(async |tx| waste::dead_parts(tx, tenant, old.id, keep_from).await)
        .await
        .retry()?;
    if parts.is_empty() {
        return Ok(());
    }
    let path = Path::from(old.path.as_str());
    let segment = match Segment::open(world.objects.store().clone(), path).await {
        // An earlier sweep died after this, before it deleted the row.
        Err(error) if matches!(error.object_store(), Some(object_store::Error::NotFound { .. })) => return Ok(()),
        opened => opened.retry()?,
    };
    for part in parts {
        let row_group = usize::try_from(part.row_group).unwrap_or_default();
        for runs in segment.ids(row_group).await.retry()?.chunks(RUNS) {
            remove_of(ctx, world, old, runs, keep_from).await?;
        }
    }
    Ok(())
}

async fn remove_of(
    ctx: &mut Ctx,
    world: &Services,
    old: &segments::Segment,
    runs: &[TraceRunId],
    keep_from: Option<NaiveDate>,
) -> Result<(), Failure> {
    let tenant = old.tenant_id;
    let read = world.store.read(async |tx| {
        let given = feedback::of_runs(tx, tenant, runs).await?;
        Ok((given, feedback::attachments_of(tx, tenant, runs).await?))
    });
    let (mut given, mut files) = read.await.retry()?;
    let mut gone: Vec<TraceRunId> = given.iter().filter_map(|row| row.run_id).collect();
    gone.extend(files.iter().map(|file| file.run_id));
    gone.sort_unstable();
    gone.dedup();
    if gone.is_empty() {
        return Ok(());
    }
    // Sent again to another project meanwhile: their related data belongs to it now.
    let live = flush::locate(&world.store, &world.objects, tenant, &gone)
        .await
        .retry()?;
    // The index still names runs of expired days.
    let is_kept = |place: &RunLocation| keep_from.is_none_or(|keep_from| place.sort_time.day() >= keep_from);
    let live: HashSet<TraceRunId> = live
        .into_iter()
        .filter(|(_, place)| is_kept(place))
        .map(|(id, _)| id)
        .collect();
    gone.retain(|run| !live.contains(run));
    given.retain(|row| row.run_id.is_some_and(|run| gone.binary_search(&run).is_ok()));
    files.retain(|file| gone.binary_search(&file.run_id).is_ok());
    ctx.commit(async |tx| {
        feedback::forget(tx, tenant, &given).await?;
        feedback::detach(tx, tenant, &files).await.map(drop)
    })
    .await
}
