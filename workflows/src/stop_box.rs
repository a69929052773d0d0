//! Stops a sandbox. Its files stay.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{BoxId, JobId, TenantId, failpoint};
use towpath_durable::{Ctx, IntoFailure, Outcome, Workflow};
use towpath_sandbox::Error;
use towpath_store::sandboxes::boxes;
use towpath_store::{self as store, Tx};

use crate::Services;
use crate::sandbox_host::driver_generation;
use crate::start_box::{failure_of, on_node_of};

#[derive(Debug, Serialize, Deserialize)]
pub struct StopBox {
    pub tenant: TenantId,
    #[serde(rename = "box")]
    pub id: BoxId,
    /// The life that ends.
    pub generation: i64,
    /// Whether it stops only if it is not in use.
    #[serde(default)]
    pub when_idle: bool,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, generation: i64) -> store::Result<JobId> {
    record(tx, tenant, id, generation, false).await
}

/// Like [`start`], unless the sandbox is in use again by then.
pub async fn start_when_idle(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, generation: i64) -> store::Result<JobId> {
    record(tx, tenant, id, generation, true).await
}

async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: BoxId,
    generation: i64,
    when_idle: bool,
) -> store::Result<JobId> {
    let input = StopBox {
        tenant,
        id,
        generation,
        when_idle,
    };
    let how = on_node_of(tx, tenant, id).await?;
    towpath_durable::start(tx, &input, how).await
}

impl Workflow for StopBox {
    const KIND: &'static str = "stop_box";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(5, Duration::from_secs(1));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, id, .. } = self;
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        if row.generation != self.generation || !row.status.is_live() {
            return ctx.complete();
        }
        let Some(machine) = world.sandbox_host_of(row.host_id).await? else {
            return ctx
                .settle(async |tx| {
                    let why = Some("its node no longer runs sandboxes");
                    boxes::mark_stopped(tx, tenant, id, self.generation, why).await?;
                    Ok(())
                })
                .await;
        };
        if self.when_idle && machine.connections(id) > 0 {
            return ctx.complete();
        }
        let stopped = machine
            .driver
            .stop(id.0, driver_generation(row.generation), machine.settings.grace);
        match stopped.await {
            Ok(()) | Err(Error::NotRunning) => {}
            // A newer life has begun.
            Err(Error::Stale { .. }) => return ctx.complete(),
            Err(error) => return Err(failure_of(&error)),
        }
        failpoint::hit("box.stopped");
        machine.remove_handle(id);
        machine.end_proxy(id);
        let settled = ctx
            .settle(async |tx| {
                boxes::mark_stopped(tx, tenant, id, self.generation, None).await?;
                Ok(())
            })
            .await;
        machine.notify_change();
        settled
    }

    /// The sandbox stays as it is, and becomes due again.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }
}
