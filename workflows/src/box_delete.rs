//! Removes a box with its files. Volumes and snapshots stay.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::sandbox::BoxStatus;
use towpath_domain::{BoxId, JobId, TenantId};
use towpath_durable::{Again, Ctx, Outcome, Start, Verdict, Workflow};
use towpath_sandbox::Error;
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::{lane_of, verdict};
use crate::boxes::generation;

/// Removes one box.
#[derive(Debug, Serialize, Deserialize)]
pub struct BoxDelete {
    /// Its workspace.
    pub tenant: TenantId,
    /// The box.
    #[serde(rename = "box")]
    pub id: BoxId,
}

/// Removes a box, in the caller's transaction: its name is free after that. `None` where that was done before. Call it before
/// the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<Option<SandboxBox>> {
    start(tx, tenant, id).await?;
    boxes::delete(tx, tenant, id).await
}

/// Records the job alone.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<JobId> {
    let input = BoxDelete { tenant, id };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(id))).await
}

impl Workflow for BoxDelete {
    const KIND: &'static str = "box_delete";
    const POOL: &'static str = crate::boxes::POOL;
    // What cannot be removed today may be tomorrow: a box must not stay half there.
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, id } = self;
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        if row.status != BoxStatus::Deleting {
            // It was claimed out of its pool in the last moment.
            return ctx.done();
        }
        let machine = world.boxes()?;
        match machine.driver.destroy(id.0, generation(row.generation)).await {
            Ok(()) | Err(Error::NotRunning) => {}
            Err(error) => return Err(verdict(&error)),
        }
        machine.forget(id);
        let settled = ctx.settle_final(async |tx| boxes::forget(tx, tenant, id).await).await;
        machine.announce();
        settled
    }

    /// The box waits for its end as long as it is there; an operator may have the job performed again.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }

    fn again(&self) -> Again {
        Again::Allowed(Some(lane_of(self.id)))
    }
}
