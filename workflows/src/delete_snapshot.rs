//! Deletes an unused snapshot.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, SnapshotId, TenantId, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, RetryDecision, Settlement, Start, Workflow};
use towpath_sandbox::Error;
use towpath_store::sandboxes::snapshots;
use towpath_store::{self as store, Tx};

use crate::Services;
use crate::sandbox_host::SandboxHost;
use crate::sandbox_nodes::pool_for;
use crate::start_box::failure_of;

#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteSnapshot {
    pub tenant: TenantId,
    pub snapshot: SnapshotId,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, snapshot: SnapshotId) -> store::Result<JobId> {
    let input = DeleteSnapshot { tenant, snapshot };
    let node = snapshots::get(tx, tenant, snapshot).await?.host_id;
    let how = Start::new(tenant)
        .lane(lane_of(snapshot))
        .pool(pool_for(tx, node).await?);
    towpath_durable::start(tx, &input, how).await
}

/// The lane of the jobs of a snapshot.
pub(crate) fn lane_of(id: SnapshotId) -> Lane {
    Lane::new(format!("snapshot:{id}"), 1)
}

/// Removes the layer of a captured snapshot, if it exists.
pub(crate) async fn remove_layer(machine: &SandboxHost, snapshot: SnapshotId) -> Result<(), Failure> {
    match machine.driver.remove_layer(snapshot.0).await {
        Ok(()) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(failure_of(&error)),
    }
}

impl Workflow for DeleteSnapshot {
    const KIND: &'static str = "delete_snapshot";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, snapshot } = self;
        let found = world.store.read(async |tx| snapshots::get(tx, tenant, snapshot).await);
        let kept = match found.await {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        // A failed capture may have left a layer without a record. Layers below it belong to others.
        if kept.source_box_id.is_some()
            && let Some(machine) = world.sandbox_host_of(kept.host_id).await?
        {
            remove_layer(machine, snapshot).await?;
        }
        failpoint::hit("box.layer_removed");
        ctx.settle_as(Settlement::irrevocable(), async |tx| {
            snapshots::remove(tx, tenant, snapshot).await
        })
        .await
    }

    /// The snapshot keeps its status; an operator may retry the job.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(lane_of(self.snapshot)))
    }
}
