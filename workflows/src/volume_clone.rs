//! Copies the files of a volume into a new one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::sandbox::VolumeStatus;
use towpath_domain::{JobId, TenantId, VolumeId};
use towpath_durable::{Ctx, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::sandboxes::volumes;
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::verdict;
use crate::snapshot_capture::reason;

/// Copies one volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct VolumeClone {
    /// Its workspace.
    pub tenant: TenantId,
    /// The volume whose files are copied.
    pub from: VolumeId,
    /// The new volume.
    pub to: VolumeId,
}

/// The lane of a volume.
pub(crate) fn lane_of(id: VolumeId) -> Lane {
    Lane::new(format!("volume:{id}"), 1)
}

/// Records the job. It is in the lane of the volume that is copied, so that this one is not removed meanwhile. Call it before
/// the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, from: VolumeId, to: VolumeId) -> store::Result<JobId> {
    let input = VolumeClone { tenant, from, to };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(from))).await
}

impl Workflow for VolumeClone {
    const KIND: &'static str = "volume_clone";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(3, Duration::from_secs(5));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, from, to } = self;
        let found = world.store.read(async |tx| {
            let source = volumes::get(tx, tenant, from).await?;
            Ok((source, volumes::get(tx, tenant, to).await?))
        });
        let (source, volume) = match found.await {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        if volume.status != VolumeStatus::Provisioning {
            return ctx.done();
        }
        let machine = world.boxes()?;
        let copied = machine.copy_volume(&source, &volume).await;
        copied.map_err(|error| verdict(&error))?;
        let settled = ctx
            .settle(async |tx| volumes::set_status(tx, tenant, to, VolumeStatus::Ready, None).await)
            .await;
        machine.announce();
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> store::Result<()> {
        let message = reason(&ended);
        volumes::set_status(tx, input.tenant, input.to, VolumeStatus::Failed, Some(&message)).await
    }
}
