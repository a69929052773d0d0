//! Maintains the quarantine: enforces quotas, retries entries whose missing objects are restored, and removes orphaned
//! objects.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_store as store;
use towpath_store::quarantine::{self as stored, Entry, Usage};
use towpath_traces::objects::ObjectsError;

use crate::Services;
use crate::quarantine::{self, Presence};

/// Entries whose objects are checked in one step.
const BATCH: i64 = 500;
/// Concurrent checks.
const AT_ONCE: usize = 16;
/// An object is written at most this long before the entry that names it is committed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Position of the check for missing objects, kept between sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanPosition {
    /// Start of the next check; `None` is at once.
    due: Option<Timestamp>,
    /// The last checked entry.
    after: Option<QuarantineId>,
}

/// Sweeps. Returns the position of the next sweep.
pub async fn sweep(
    ctx: &mut Ctx,
    world: &Services,
    look: ScanPosition,
    now: Timestamp,
) -> Result<ScanPosition, Failure> {
    trim(ctx, world).await?;
    let begins = look.after.is_none();
    if begins && look.due.is_some_and(|due| now < due) {
        return Ok(look);
    }
    if begins {
        remove_orphans(world, now.minus(ABANDONED)).await?;
    }
    let after = look.after.unwrap_or(QuarantineId::nil());
    let entries = world
        .store
        .read(async |tx| stored::missing_objects(tx, after, BATCH).await)
        .await
        .retry()?;
    let is_last = (entries.len() as i64) < BATCH;
    let last = entries.last().map(|entry| entry.id);
    let back = match find_restored(world, entries).await {
        Ok(back) => back,
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "objects of quarantined trace data could not be checked; the next sweep retries"
            );
            return Ok(look);
        }
    };
    retry(ctx, world, back).await?;
    Ok(ScanPosition {
        due: if begins {
            Some(now.plus(world.retention.missing_patches))
        } else {
            look.due
        },
        after: last.filter(|_| !is_last),
    })
}

/// Drops entries beyond the quota of each workspace.
async fn trim(ctx: &mut Ctx, world: &Services) -> Result<(), Failure> {
    let quota = world.retention.quarantine;
    let usage = world.store.read(async |tx| stored::usage(tx).await).await.retry()?;
    let is_over = |usage: &&Usage| usage.entries > quota.entries || usage.bytes > quota.bytes;
    for usage in usage.iter().filter(is_over) {
        let tenant = usage.tenant_id;
        let dropped = ctx.commit(async |tx| stored::trim(tx, tenant, quota).await).await?;
        quarantine::count_dropped(tenant, &dropped);
        let paths = dropped.into_iter().map(|entry| entry.path).collect();
        quarantine::remove_unneeded(&world.store, &world.objects, paths)
            .await
            .retry()?;
    }
    Ok(())
}

/// Entries whose objects exist again.
async fn find_restored(world: &Services, entries: Vec<Entry>) -> Result<Vec<Entry>, ObjectsError> {
    let looks = futures::stream::iter(entries).map(|entry| {
        let objects = world.objects.clone();
        async move {
            let presence = quarantine::presence(&objects, &entry).await?;
            Ok::<_, ObjectsError>((presence == Presence::Whole).then_some(entry))
        }
    });
    let found: Vec<Option<Entry>> = looks.buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

async fn retry(ctx: &mut Ctx, world: &Services, back: Vec<Entry>) -> Result<(), Failure> {
    let delay = world.sizes.fold_delay;
    let mut retried = 0;
    for entry in back {
        let is_retried = ctx
            .commit(async |tx| match quarantine::requeue(tx, &entry, delay).await {
                Ok(()) => Ok(true),
                // An operator was faster.
                Err(store::Error::NotFound) => Ok(false),
                Err(error) => Err(error),
            })
            .await?;
        retried += u64::from(is_retried);
    }
    if retried > 0 {
        tracing::info!(
            quarantine.entries = retried,
            "missing objects of accepted trace data are restored; they will be flushed"
        );
    }
    Ok(())
}

/// Removes objects older than `before` whose entry was never committed, or was dropped.
async fn remove_orphans(world: &Services, before: Timestamp) -> Result<(), Failure> {
    let folder = Path::from(quarantine::FOLDER);
    let old = world
        .objects
        .store()
        .list(Some(&folder))
        .try_filter(move |object| {
            let is_old = object.last_modified < before.to_utc() && is_ours(&object.location);
            std::future::ready(is_old)
        })
        .map_ok(|object| object.location.to_string());
    let mut chunks = old.chunks(500);
    let mut removed = 0;
    while let Some(chunk) = chunks.next().await {
        let (paths, failed): (Vec<_>, Vec<_>) = chunk.into_iter().partition(Result::is_ok);
        let paths = paths.into_iter().flatten().collect();
        removed += quarantine::remove_unneeded(&world.store, &world.objects, paths)
            .await
            .retry()?;
        if let Some(Err(error)) = failed.into_iter().next() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "quarantined objects could not be listed; a later sweep retries"
            );
            break;
        }
    }
    if removed > 0 {
        tracing::info!(
            quarantine.objects = removed,
            "removed quarantined objects that no entry names"
        );
    }
    Ok(())
}

/// Other names were not written by this platform.
fn is_ours(path: &Path) -> bool {
    let mut parts = path.parts().skip(1);
    let (tenant, file, more) = (parts.next(), parts.next(), parts.next());
    let is_tenant = tenant.is_some_and(|tenant| tenant.as_ref().parse::<TenantId>().is_ok());
    let id = file.as_ref().and_then(|file| file.as_ref().strip_suffix(".unit"));
    is_tenant && id.is_some_and(|id| id.parse::<QuarantineId>().is_ok()) && more.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_of_entries_are_ours() {
        let (tenant, id) = (TenantId::new(), QuarantineId::new());
        assert!(is_ours(&Path::from(format!("quarantine/{tenant}/{id}.unit"))));
        for other in [
            format!("quarantine/{id}.unit"),
            format!("quarantine/{tenant}/{id}"),
            format!("quarantine/{tenant}/notes.unit"),
            format!("quarantine/notes/{id}.unit"),
            format!("quarantine/{tenant}/{id}.unit/{id}.unit"),
        ] {
            assert!(!is_ours(&Path::from(other.as_str())), "{other}");
        }
    }
}
