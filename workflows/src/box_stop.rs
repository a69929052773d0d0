//! Ends a life of a box. Its files stay.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{BoxId, JobId, TenantId};
use towpath_durable::{Ctx, Outcome, Start, Verdict, Workflow};
use towpath_sandbox::Error;
use towpath_store::sandboxes::boxes;
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::{lane_of, verdict};
use crate::boxes::generation;

/// Stops one box.
#[derive(Debug, Serialize, Deserialize)]
pub struct BoxStop {
    /// Its workspace.
    pub tenant: TenantId,
    /// The box.
    #[serde(rename = "box")]
    pub id: BoxId,
    /// The life that ends.
    pub generation: i64,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, generation: i64) -> store::Result<JobId> {
    let input = BoxStop { tenant, id, generation };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(id))).await
}

impl Workflow for BoxStop {
    const KIND: &'static str = "box_stop";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(5, Duration::from_secs(1));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, id, .. } = self;
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        if row.generation != self.generation || !row.status.is_live() {
            return ctx.done();
        }
        let machine = world.boxes()?;
        let stopped = machine
            .driver
            .stop(id.0, generation(row.generation), machine.settings.grace);
        match stopped.await {
            Ok(()) | Err(Error::NotRunning) => {}
            // A newer life has begun.
            Err(Error::Stale { .. }) => return ctx.done(),
            Err(error) => return Err(verdict(&error)),
        }
        machine.forget(id);
        let settled = ctx
            .settle(async |tx| {
                boxes::stopped(tx, tenant, id, self.generation, None).await?;
                Ok(())
            })
            .await;
        machine.announce();
        settled
    }

    /// The box stays as it is, and its times ask again.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }
}
