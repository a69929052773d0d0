//! Fills a pool with its number of waiting sandboxes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::sandbox::Lifetime;
use towpath_domain::{BoxId, JobId, PoolId, TenantId};
use towpath_durable::{Ctx, IntoFailure, Lane, Outcome, Settlement, Start, Workflow};
use towpath_store::sandboxes::boxes::{self, NewBox};
use towpath_store::sandboxes::{pools, templates};
use towpath_store::{self as store, Tx};
use uuid::Uuid;

use crate::Services;
use crate::sandbox_nodes::eligible;
use crate::{delete_box, start_box};

/// Sandboxes of a pool have no client request.
const NO_REQUEST: &[u8] = b"";

#[derive(Debug, Serialize, Deserialize)]
pub struct FillPool {
    pub tenant: TenantId,
    pub pool: PoolId,
}

fn lane_of(id: PoolId) -> Lane {
    Lane::new(format!("pool:{id}"), 1)
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, pool: PoolId) -> store::Result<JobId> {
    let input = FillPool { tenant, pool };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(pool))).await
}

impl Workflow for FillPool {
    const KIND: &'static str = "fill_pool";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(5, Duration::from_secs(2));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, pool } = self;
        let reference = pool.to_string();
        let found = world.store.read(async |tx| {
            let row = pools::find(tx, tenant, &reference).await?;
            let template = templates::get(tx, tenant, row.template_id).await?;
            Ok((row, template, boxes::pool_members(tx, tenant, pool).await?))
        });
        let (row, template, members) = match found.await {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        let (live, mut surplus): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.status.is_live());
        let replicas = usize::try_from(row.replicas).unwrap_or_default();
        surplus.extend(live.iter().skip(replicas).cloned());
        let surplus: Vec<BoxId> = surplus.into_iter().map(|member| member.id).collect();
        let new: Vec<BoxId> = (live.len()..replicas).map(|_| BoxId::new()).collect();
        let config = template.resources().fatal()?.to_box_config(&template.image).fatal()?;
        let nodes = world.store.read(async |tx| eligible(tx, config.mem_bytes).await).await;
        let nodes = nodes.retry()?;
        if nodes.is_empty() && surplus.is_empty() {
            tracing::warn!(pool.id = %pool, "no node takes sandboxes; the pool is filled later");
            return ctx.complete();
        }
        // Distributed over the nodes, and none without a node.
        let new: Vec<(BoxId, Uuid)> = new.into_iter().zip(nodes.into_iter().cycle()).collect();
        // Waiting sandboxes do not expire; the caller's times apply from the claim on.
        let times = Lifetime {
            idle_ttl_seconds: 0,
            ttl_seconds: 0,
            delete_after_stop_seconds: 0,
        };
        let lanes: Vec<Lane> = new
            .iter()
            .map(|(id, _)| id)
            .chain(&surplus)
            .map(|id| start_box::lane_of(*id))
            .collect();
        ctx.settle_as(Settlement::starting_in(&lanes), async |tx| {
            for id in &surplus {
                delete_box::start(tx, tenant, *id).await?;
            }
            for (id, node) in &new {
                start_box::start(tx, tenant, *id, 1, Some(*node)).await?;
            }
            for id in &surplus {
                // A caller may have claimed it meanwhile.
                if boxes::lock(tx, tenant, *id).await?.pool_id == Some(pool) {
                    boxes::mark_deleting(tx, tenant, *id).await?;
                }
            }
            for (id, node) in &new {
                let name = format!("pool-{}", id.0.simple());
                let new = NewBox {
                    id: *id,
                    name: &name,
                    config: &config,
                    template_name: &template.name,
                    template: Some(template.id),
                    snapshot: None,
                    pool: Some(pool),
                    node: Some(*node),
                    lifetime: times,
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

    /// The reconciler finds incomplete pools.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }
}
