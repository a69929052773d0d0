//! Patches whose trace run does not come: those that waited too long, and the oldest where too many wait.

use std::collections::BTreeMap;

use towpath_domain::{TenantId, Timestamp, TraceRunId};
use towpath_durable::{Ctx, Failure, Verdict};
use towpath_store::pending_patches::{self, Dropped};

use super::chore::Chore;
use crate::World;
use crate::metric;

/// Patches of one step.
const PATCHES: i64 = 1000;
/// Workspaces that are looked at in one step.
const TENANTS: i64 = 100;

/// Drops patches that have waited since before `before`. Whether some are left.
pub async fn expire(ctx: &mut Ctx, world: &World, before: Timestamp) -> Result<bool, Failure> {
    let chore = Chore::begin("patches past their time");
    loop {
        let read = world
            .store
            .read(async |tx| pending_patches::older(tx, before, PATCHES).await);
        let old = read.await.retry()?;
        if old.is_empty() || chore.is_spent() {
            return Ok(chore.end(old.len()));
        }
        let mut tenants: BTreeMap<TenantId, Vec<(TenantId, TraceRunId, i64)>> = BTreeMap::new();
        for patch in old {
            tenants.entry(patch.0).or_default().push(patch);
        }
        // One workspace to a transaction: a fold locks what waits in several of them.
        for patches in tenants.values() {
            let dropped = ctx
                .commit(async |tx| pending_patches::remove_all(tx, patches).await)
                .await?;
            metrics::counter!(metric::PATCHES_DROPPED).increment(dropped);
        }
    }
}

/// Drops the oldest patches of workspaces in which more wait than may: a fold drops only some thousand at once, and bounds
/// may have been lowered. Whether some are left that have too many.
pub async fn trim(ctx: &mut Ctx, world: &World) -> Result<bool, Failure> {
    let bounds = world.sizes.pending;
    let chore = Chore::begin("patches beyond their bounds");
    loop {
        let read = world
            .store
            .read(async |tx| pending_patches::over(tx, bounds, TENANTS).await);
        let over = read.await.retry()?;
        if over.is_empty() || chore.is_spent() {
            return Ok(chore.end(over.len()));
        }
        for tenant in over {
            let dropped = ctx.commit(async |tx| pending_patches::trim(tx, [tenant], bounds).await);
            report(&dropped.await?);
        }
    }
}

/// Tells operators what was dropped because too much waited.
pub fn report(dropped: &[Dropped]) {
    for dropped in dropped {
        metrics::counter!(metric::PATCHES_EVICTED).increment(dropped.usage.patches.unsigned_abs());
        tracing::warn!(
            tenant.id = %dropped.tenant_id,
            patches = dropped.usage.patches,
            bytes = dropped.usage.bytes,
            "more patches wait for their trace runs than ingest.pending_patches and ingest.pending_bytes allow; the oldest \
             were dropped"
        );
    }
}
