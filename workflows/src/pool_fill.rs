//! Brings a pool to the number of boxes that are to wait in it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::sandbox::Times;
use towpath_domain::{BoxId, JobId, PoolId, TenantId};
use towpath_durable::{Ctx, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::sandboxes::boxes::{self, NewBox};
use towpath_store::sandboxes::{pools, templates};
use towpath_store::{self as store, Tx};

use crate::World;
use crate::{box_delete, box_start};

/// What boxes in a pool have as their request: nobody sent one.
const NO_REQUEST: &[u8] = b"";

/// Fills one pool.
#[derive(Debug, Serialize, Deserialize)]
pub struct PoolFill {
    /// Its workspace.
    pub tenant: TenantId,
    /// The pool.
    pub pool: PoolId,
}

fn lane_of(id: PoolId) -> Lane {
    Lane::new(format!("pool:{id}"), 1)
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, pool: PoolId) -> store::Result<JobId> {
    let input = PoolFill { tenant, pool };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(pool))).await
}

impl Workflow for PoolFill {
    const KIND: &'static str = "pool_fill";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(5, Duration::from_secs(2));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, pool } = self;
        let reference = pool.to_string();
        let found = world.store.read(async |tx| {
            let row = pools::find(tx, tenant, &reference).await?;
            let template = templates::get(tx, tenant, row.template_id).await?;
            Ok((row, template, boxes::members(tx, tenant, pool).await?))
        });
        let (row, template, members) = match found.await {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        let (live, mut surplus): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.status.is_live());
        let replicas = usize::try_from(row.replicas).unwrap_or_default();
        surplus.extend(live.iter().skip(replicas).cloned());
        let surplus: Vec<BoxId> = surplus.into_iter().map(|member| member.id).collect();
        let new: Vec<BoxId> = (live.len()..replicas).map(|_| BoxId::new()).collect();
        let config = template.resources().fatal()?.config(&template.image).fatal()?;
        // Boxes that wait do not stop, and what a caller asks for holds from the claim on.
        let times = Times {
            idle_ttl_seconds: 0,
            ttl_seconds: 0,
            delete_after_stop_seconds: 0,
        };
        let lanes: Vec<Lane> = new.iter().chain(&surplus).map(|id| box_start::lane_of(*id)).collect();
        ctx.settle_with(&lanes, async |tx| {
            for id in &surplus {
                box_delete::start(tx, tenant, *id).await?;
            }
            for id in &new {
                box_start::start(tx, tenant, *id, 1).await?;
            }
            for id in &surplus {
                // A caller may have claimed it since.
                if boxes::lock(tx, tenant, *id).await?.pool_id == Some(pool) {
                    boxes::delete(tx, tenant, *id).await?;
                }
            }
            for id in &new {
                let name = format!("pool-{}", id.0.simple());
                let new = NewBox {
                    id: *id,
                    name: &name,
                    config: &config,
                    template_name: &template.name,
                    template: Some(template.id),
                    snapshot: None,
                    pool: Some(pool),
                    times,
                    attachments: &[],
                    request: NO_REQUEST,
                    created_by: "pool",
                };
                boxes::insert(tx, tenant, &new).await?;
            }
            Ok(())
        })
        .await
    }

    /// The machine's keeper looks for pools that are not as they should be.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }
}
