//! Quarantine in order: workspaces within their quota, missing objects that are back folded, objects of nobody removed.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_durable::{Ctx, Failure, Verdict};
use towpath_store as store;
use towpath_store::quarantine::{self as stored, Entry, Usage};
use towpath_traces::objects::ObjectsError;

use crate::World;
use crate::quarantine::{self, Presence};

/// Entries of one step whose objects are looked for.
const BATCH: i64 = 500;
/// Objects looked for at the same time.
const AT_ONCE: usize = 16;
/// An object is written before the entry that names it is committed, at most this long before.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the look for missing objects is. It goes from one sweep to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// When the next look begins; at once where there was none.
    due: Option<Timestamp>,
    /// The last entry of the look that is under way.
    after: Option<QuarantineId>,
}

/// Sweeps, and says where the next sweep goes on.
pub async fn sweep(ctx: &mut Ctx, world: &World, look: Look, now: Timestamp) -> Result<Look, Failure> {
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
    let back = match find_back(world, entries).await {
        Ok(back) => back,
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "objects of quarantined trace data could not be looked for; the next sweep tries again"
            );
            return Ok(look);
        }
    };
    retry(ctx, world, back).await?;
    Ok(Look {
        due: if begins {
            Some(now.plus(world.keeping.missing))
        } else {
            look.due
        },
        after: last.filter(|_| !is_last),
    })
}

/// Keeps every workspace within its quota.
async fn trim(ctx: &mut Ctx, world: &World) -> Result<(), Failure> {
    let quota = world.keeping.quarantine;
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

/// Those of the entries whose objects are there again.
async fn find_back(world: &World, entries: Vec<Entry>) -> Result<Vec<Entry>, ObjectsError> {
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

async fn retry(ctx: &mut Ctx, world: &World, back: Vec<Entry>) -> Result<(), Failure> {
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
            "objects of accepted trace data that were missing are there again; they are folded"
        );
    }
    Ok(())
}

/// Removes objects older than `before` that were written for an entry that was never committed, or was dropped since.
async fn remove_orphans(world: &World, before: Timestamp) -> Result<(), Failure> {
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
                "quarantined objects could not be listed; a later sweep tries again"
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

/// What is not named as objects of entries are was not put there by us.
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
