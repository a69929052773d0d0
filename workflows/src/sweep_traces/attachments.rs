//! Unneeded attachments: their trace run never arrived, or no row names their object.

use std::collections::{BTreeMap, HashSet};

use futures::{StreamExt, stream};
use object_store::path::Path;
use towpath_domain::{TenantId, Timestamp, TraceRunId};
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_store::feedback::waste::{self, Position, Waste};
use towpath_store::feedback::{self, Attachment};
use towpath_store::sweep_cursors;
use towpath_traces::flush;

use super::sweep_task::SweepTask;
use crate::Services;
use crate::metric;

/// Files per step.
const FILES: i64 = 1000;
/// Concurrent removals.
const AT_ONCE: usize = 16;
/// Name of the cursor of the walk through all attachments.
const WALK: &str = "attachments";

/// Checks each attachment once when it is older than `before`, and deletes those whose trace run has not arrived. Each
/// sweep continues where the previous one ended. Returns whether some are left.
pub async fn forget_orphans(ctx: &mut Ctx, world: &Services, before: Timestamp) -> Result<bool, Failure> {
    let chore = SweepTask::begin("attachments without a trace run");
    let read = world.store.read(async |tx| sweep_cursors::get(tx, WALK).await).await;
    let known = read.retry()?.and_then(|text| serde_json::from_str(&text).ok());
    let mut position: Position = known.unwrap_or(Position::start());
    loop {
        let read = world
            .store
            .read(async |tx| waste::walk(tx, &position, before, FILES).await);
        let files = read.await.retry()?;
        let Some(last) = files.last().filter(|_| !chore.is_spent()) else {
            return Ok(chore.end(files.len()));
        };
        position = Position::of(last);
        let text = serde_json::to_string(&position).fatal()?;
        let mut tenants: BTreeMap<TenantId, Vec<Attachment>> = BTreeMap::new();
        for file in files {
            tenants.entry(file.tenant_id).or_default().push(file);
        }
        for (tenant, files) in &mut tenants {
            let mut runs: Vec<TraceRunId> = files.iter().map(|file| file.run_id).collect();
            runs.dedup();
            let found = flush::locate(&world.store, &world.objects, *tenant, &runs)
                .await
                .retry()?;
            let found: HashSet<TraceRunId> = found.into_iter().map(|(run, _)| run).collect();
            files.retain(|file| !found.contains(&file.run_id));
        }
        let forgotten = ctx.commit(async |tx| {
            let mut forgotten = 0;
            for (tenant, files) in &tenants {
                forgotten += feedback::detach(tx, *tenant, files).await?;
            }
            sweep_cursors::set(tx, WALK, &text).await?;
            Ok(forgotten)
        });
        metrics::counter!(metric::ATTACHMENTS_ORPHANED).increment(forgotten.await?);
    }
}

/// Removes objects that no row has named since `before`. Failed removals are retried after all others. Returns whether
/// some are left.
pub async fn remove_waste(ctx: &mut Ctx, world: &Services, before: Timestamp) -> Result<bool, Failure> {
    let chore = SweepTask::begin("objects of attachments");
    loop {
        let read = world.store.read(async |tx| waste::before(tx, before, FILES).await);
        let found: Vec<Waste> = read.await.retry()?;
        if found.is_empty() || chore.is_spent() {
            return Ok(chore.end(found.len()));
        }
        let removals = found.into_iter().map(|object| {
            let objects = world.objects.clone();
            async move {
                let path = Path::from(object.path.as_str());
                let removed = if object.named {
                    Ok(())
                } else {
                    objects.delete(&path).await
                };
                (object.path, removed)
            }
        });
        let removed: Vec<_> = stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
        let (mut gone, mut stuck) = (Vec::new(), Vec::new());
        let mut first = None;
        for (path, outcome) in &removed {
            match outcome {
                Ok(()) => gone.push(path.as_str()),
                Err(error) => {
                    stuck.push(path.as_str());
                    first.get_or_insert((path, error));
                }
            }
        }
        if let Some((path, error)) = first {
            tracing::warn!(
                object.path = path,
                objects = stuck.len(),
                error = error as &dyn std::error::Error,
                "unneeded attachments cannot be removed; retrying later"
            );
        }
        ctx.commit(async |tx| {
            waste::forget(tx, &gone).await?;
            waste::postpone(tx, &stuck).await
        })
        .await?;
        metrics::counter!(metric::ATTACHMENTS_REMOVED).increment(gone.len() as u64);
    }
}
