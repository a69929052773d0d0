//! Removes a volume that nothing uses.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, TenantId, VolumeId};
use towpath_durable::{Again, Ctx, Outcome, Start, Verdict, Workflow};
use towpath_store::sandboxes::volumes;
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::verdict;
use crate::volume_clone::lane_of;

/// Removes one volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct VolumeDelete {
    /// Its workspace.
    pub tenant: TenantId,
    /// The volume.
    pub volume: VolumeId,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, volume: VolumeId) -> store::Result<JobId> {
    let input = VolumeDelete { tenant, volume };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(volume))).await
}

impl Workflow for VolumeDelete {
    const KIND: &'static str = "volume_delete";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, volume } = self;
        let found = world.store.read(async |tx| volumes::get(tx, tenant, volume).await);
        match found.await {
            Err(store::Error::NotFound) => return ctx.done(),
            found => drop(found.retry()?),
        }
        let removed = world.boxes()?.remove_volume(volume).await;
        removed.map_err(|error| verdict(&error))?;
        ctx.settle_final(async |tx| volumes::forget(tx, tenant, volume).await)
            .await
    }

    /// The volume waits for its end as long as it is there; an operator may have the job performed again.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }

    fn again(&self) -> Again {
        Again::Allowed(Some(lane_of(self.volume)))
    }
}
