//! Captures the files of a sandbox as a snapshot.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::sandbox::{BoxStatus, SnapshotStatus};
use towpath_domain::{BoxId, JobId, SnapshotId, TenantId, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Workflow};
use towpath_sandbox::RootFileSystem;
use towpath_store::sandboxes::{boxes, snapshots};
use towpath_store::{self as store, Tx};

use crate::Services;
use crate::delete_snapshot::remove_layer;
use crate::sandbox_host::driver_generation;
use crate::start_box::{failure_of, on_node_of};

/// Maximum number of layers that the driver mounts for one root.
pub const MAX_LAYERS: usize = 32;

#[derive(Debug, Serialize, Deserialize)]
pub struct CaptureSnapshot {
    pub tenant: TenantId,
    #[serde(rename = "box")]
    pub id: BoxId,
    pub snapshot: SnapshotId,
    /// Moves to the snapshot when it is ready.
    #[serde(default)]
    pub tag: Option<String>,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: BoxId,
    snapshot: SnapshotId,
    tag: Option<&str>,
) -> store::Result<JobId> {
    let input = CaptureSnapshot {
        tenant,
        id,
        snapshot,
        tag: tag.map(str::to_owned),
    };
    let how = on_node_of(tx, tenant, id).await?;
    towpath_durable::start(tx, &input, how).await
}

impl Workflow for CaptureSnapshot {
    const KIND: &'static str = "capture_snapshot";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(3, Duration::from_secs(2));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self {
            tenant, id, snapshot, ..
        } = self;
        match snapshot_status(world, tenant, snapshot).await? {
            SnapshotStatus::Building => {}
            SnapshotStatus::Deleting => {
                // The snapshot was removed, perhaps before an earlier attempt of this job created the layer.
                remove_layer(world.sandbox_host()?, snapshot).await?;
                return ctx.complete();
            }
            SnapshotStatus::Ready | SnapshotStatus::Failed => return ctx.complete(),
        }
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await);
        let row = match found.await {
            Err(store::Error::NotFound) => return Err(Failure::fatal("the sandbox no longer exists")),
            found => found.retry()?,
        };
        let (BoxStatus::Ready | BoxStatus::Stopped, Some(root)) = (row.status, &row.root) else {
            return Err(Failure::fatal(format!("the sandbox is {}", row.status.as_str())));
        };
        let below: RootFileSystem = serde_json::from_str(root).fatal()?;
        let Some(machine) = world.sandbox_host_of(row.host_id).await? else {
            return Err(Failure::fatal("the node of the sandbox no longer runs sandboxes"));
        };
        let sealed = machine
            .driver
            .capture_layer(id.0, driver_generation(row.generation), snapshot.0)
            .await;
        let layer = sealed.map_err(|error| failure_of(&error))?;
        failpoint::hit("box.captured");
        let root = RootFileSystem {
            base: below.base,
            layers: std::iter::once(layer.id).chain(below.layers).collect(),
        };
        let root = serde_json::to_string(&root).fatal()?;
        let used = i64::try_from(layer.used_bytes).unwrap_or(i64::MAX);
        if snapshot_status(world, tenant, snapshot).await? == SnapshotStatus::Deleting {
            remove_layer(machine, snapshot).await?;
            return ctx.complete();
        }
        let settled = ctx
            .settle(async |tx| {
                let tag = self.tag.as_deref();
                snapshots::mark_ready(tx, tenant, snapshot, &root, Some(used), tag).await?;
                Ok(())
            })
            .await;
        machine.notify_change();
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        snapshots::mark_failed(tx, input.tenant, input.snapshot, &failure_reason(&ended)).await
    }
}

/// Status of a snapshot; a missing one was being removed. The removal does not wait for this job, which is in the lane
/// of the sandbox.
async fn snapshot_status(world: &Services, tenant: TenantId, snapshot: SnapshotId) -> Result<SnapshotStatus, Failure> {
    let found = world.store.read(async |tx| snapshots::get(tx, tenant, snapshot).await);
    match found.await {
        Err(store::Error::NotFound) => Ok(SnapshotStatus::Deleting),
        found => Ok(found.retry()?.status),
    }
}

pub(crate) fn failure_reason(ended: &EndReason) -> String {
    match ended {
        EndReason::Failed(message) => message.clone(),
        EndReason::Cancelled => "it was cancelled".to_owned(),
        EndReason::TimedOut => "it exceeded its time limit".to_owned(),
    }
}
