//! Deletes a sandbox with its files. Volumes and snapshots stay.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::sandbox::BoxStatus;
use towpath_domain::{BoxId, JobId, TenantId, failpoint};
use towpath_durable::{Ctx, IntoFailure, Outcome, RetryDecision, Settlement, Workflow};
use towpath_sandbox::Error;
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::{self as store, Tx};

use crate::Services;
use crate::sandbox_host::driver_generation;
use crate::start_box::{failure_of, lane_of, on_node_of};

#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteBox {
    pub tenant: TenantId,
    #[serde(rename = "box")]
    pub id: BoxId,
}

/// Deletes a sandbox in the caller's transaction, which frees its name. `None` if it was deleted before. Call it before
/// the transaction's business writes: it locks the lane.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<Option<SandboxBox>> {
    start(tx, tenant, id).await?;
    boxes::mark_deleting(tx, tenant, id).await
}

/// Records only the job.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<JobId> {
    let input = DeleteBox { tenant, id };
    let how = on_node_of(tx, tenant, id).await?;
    towpath_durable::start(tx, &input, how).await
}

impl Workflow for DeleteBox {
    const KIND: &'static str = "delete_box";
    const POOL: &'static str = crate::sandbox_host::POOL;
    // Retried for days, so that no sandbox stays half deleted.
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, id } = self;
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        if row.status != BoxStatus::Deleting {
            // It was claimed from its pool at the last moment.
            return ctx.complete();
        }
        let Some(machine) = world.sandbox_host_of(row.host_id).await? else {
            return ctx
                .settle_as(Settlement::irrevocable(), async |tx| {
                    boxes::remove(tx, tenant, id).await
                })
                .await;
        };
        match machine.driver.destroy(id.0, driver_generation(row.generation)).await {
            Ok(()) | Err(Error::NotRunning) => {}
            Err(error) => return Err(failure_of(&error)),
        }
        failpoint::hit("box.destroyed");
        machine.remove_handle(id);
        machine.end_proxy(id);
        let settled = ctx
            .settle_as(Settlement::irrevocable(), async |tx| {
                boxes::remove(tx, tenant, id).await
            })
            .await;
        machine.notify_change();
        settled
    }

    /// The sandbox keeps its status; an operator may retry the job.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(lane_of(self.id)))
    }
}
