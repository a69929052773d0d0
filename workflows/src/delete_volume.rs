//! Deletes an unused volume.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, TenantId, VolumeId, failpoint};
use towpath_durable::{Ctx, IntoFailure, Outcome, RetryDecision, Settlement, Start, Workflow};
use towpath_store::sandboxes::volumes;
use towpath_store::{self as store, Tx};

use crate::Services;
use crate::clone_volume::lane_of;
use crate::sandbox_nodes::pool_for;
use crate::start_box::failure_of;

#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteVolume {
    pub tenant: TenantId,
    pub volume: VolumeId,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, volume: VolumeId) -> store::Result<JobId> {
    let input = DeleteVolume { tenant, volume };
    let node = volumes::get(tx, tenant, volume).await?.host_id;
    let how = Start::new(tenant).lane(lane_of(volume)).pool(pool_for(tx, node).await?);
    towpath_durable::start(tx, &input, how).await
}

impl Workflow for DeleteVolume {
    const KIND: &'static str = "delete_volume";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, volume } = self;
        let found = world.store.read(async |tx| volumes::get(tx, tenant, volume).await);
        let row = match found.await {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        if let Some(machine) = world.sandbox_host_of(row.host_id).await? {
            let removed = machine.remove_volume(volume).await;
            removed.map_err(|error| failure_of(&error))?;
        }
        failpoint::hit("box.volume_removed");
        ctx.settle_as(Settlement::irrevocable(), async |tx| {
            volumes::remove(tx, tenant, volume).await
        })
        .await
    }

    /// The volume keeps its status; an operator may retry the job.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(lane_of(self.volume)))
    }
}
