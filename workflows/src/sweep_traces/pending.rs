//! Patches whose trace run does not arrive: expired ones, and the oldest ones beyond the limits.

use std::collections::BTreeMap;

use towpath_domain::{TenantId, Timestamp, TraceRunId};
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_store::pending_patches::{self, DroppedPatches};

use super::sweep_task::SweepTask;
use crate::Services;
use crate::metric;

/// Patches per step.
const PATCHES: i64 = 1000;
/// Workspaces per step.
const TENANTS: i64 = 100;

/// Drops patches that have waited since `before`. Returns whether some are left.
pub async fn expire(ctx: &mut Ctx, world: &Services, before: Timestamp) -> Result<bool, Failure> {
    let chore = SweepTask::begin("patches past their time");
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
        // One workspace per transaction, because a flush locks the pending patches of several.
        for patches in tenants.values() {
            let dropped = ctx
                .commit(async |tx| pending_patches::remove_all(tx, patches).await)
                .await?;
            metrics::counter!(metric::PATCHES_DROPPED).increment(dropped);
        }
    }
}

/// Drops the oldest patches of workspaces beyond the limits: a flush drops only some thousand at once, and limits may
/// have been lowered. Returns whether workspaces beyond the limits are left.
pub async fn trim(ctx: &mut Ctx, world: &Services) -> Result<bool, Failure> {
    let bounds = world.sizes.pending;
    let chore = SweepTask::begin("patches beyond their bounds");
    loop {
        let read = world
            .store
            .read(async |tx| pending_patches::tenants_over_bounds(tx, bounds, TENANTS).await);
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

/// Reports dropped patches to operators.
pub fn report(dropped: &[DroppedPatches]) {
    for dropped in dropped {
        metrics::counter!(metric::PATCHES_EVICTED).increment(dropped.usage.patches.unsigned_abs());
        tracing::warn!(
            tenant.id = %dropped.tenant_id,
            patches = dropped.usage.patches,
            bytes = dropped.usage.bytes,
            "more patches wait for their trace runs than ingest.pending_patches and ingest.pending_bytes allow; the \
             oldest were dropped"
        );
    }
}
