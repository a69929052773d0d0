//! Copies the files of a volume to a new one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::sandbox::VolumeStatus;
use towpath_domain::{JobId, TenantId, VolumeId};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, Start, Workflow};
use towpath_store::sandboxes::volumes;
use towpath_store::{self as store, Tx};
use uuid::Uuid;

use crate::Services;
use crate::capture_snapshot::failure_reason;
use crate::sandbox_nodes::pool_for;
use crate::start_box::failure_of;

#[derive(Debug, Serialize, Deserialize)]
pub struct CloneVolume {
    pub tenant: TenantId,
    pub from: VolumeId,
    pub to: VolumeId,
}

pub(crate) fn lane_of(id: VolumeId) -> Lane {
    Lane::new(format!("volume:{id}"), 1)
}

/// Records the job in the lane of the source volume, so that the source is not removed meanwhile, on the node that has
/// its files. Call it before the transaction's business writes: it locks the lane.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    from: VolumeId,
    to: VolumeId,
    node: Option<Uuid>,
) -> store::Result<JobId> {
    let input = CloneVolume { tenant, from, to };
    let how = Start::new(tenant).lane(lane_of(from)).pool(pool_for(tx, node).await?);
    towpath_durable::start(tx, &input, how).await
}

impl Workflow for CloneVolume {
    const KIND: &'static str = "clone_volume";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(3, Duration::from_secs(5));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, from, to } = self;
        let found = world.store.read(async |tx| {
            let source = volumes::get(tx, tenant, from).await?;
            let holders = volumes::users(tx, &[from]).await?;
            let is_read = holders.iter().any(|holder| holder.kind == "box");
            Ok((source, volumes::get(tx, tenant, to).await?, is_read))
        });
        let (source, volume, is_read) = match found.await {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        if volume.status != VolumeStatus::Provisioning {
            return ctx.complete();
        }
        let Some(machine) = world.sandbox_host_of(source.host_id).await? else {
            return Err(Failure::fatal("the node of the copied volume no longer runs sandboxes"));
        };
        if !is_read {
            // The kernel may keep it mounted for a moment after its last sandbox; the job is retried.
            machine
                .check_volume_idle(&source)
                .await
                .map_err(|error| failure_of(&error))?;
        }
        let copied = machine.copy_volume(&source, &volume).await;
        copied.map_err(|error| failure_of(&error))?;
        let settled = ctx
            .settle(async |tx| volumes::set_status(tx, tenant, to, VolumeStatus::Ready, None).await)
            .await;
        machine.notify_change();
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        let message = failure_reason(&ended);
        volumes::set_status(tx, input.tenant, input.to, VolumeStatus::Failed, Some(&message)).await
    }
}
