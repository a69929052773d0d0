//! Creates a snapshot from an image.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::sandbox::SnapshotStatus;
use towpath_domain::{BoxRegistryId, JobId, SnapshotId, TenantId};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Start, Workflow};
use towpath_store::sandboxes::snapshots;
use towpath_store::{self as store, Tx};

use crate::Services;
use crate::capture_snapshot::failure_reason;
use crate::delete_snapshot::lane_of;
use crate::sandbox_host::image_request;
use crate::start_box::failure_of;

#[derive(Debug, Serialize, Deserialize)]
pub struct BuildSnapshot {
    pub tenant: TenantId,
    pub snapshot: SnapshotId,
    /// Moves to the snapshot when it is ready.
    #[serde(default)]
    pub tag: Option<String>,
    /// Whose login pulls the image; otherwise one that fits its name.
    #[serde(default)]
    pub registry: Option<BoxRegistryId>,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    snapshot: SnapshotId,
    tag: Option<&str>,
    registry: Option<BoxRegistryId>,
) -> store::Result<JobId> {
    let input = BuildSnapshot {
        tenant,
        snapshot,
        tag: tag.map(str::to_owned),
        registry,
    };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(snapshot))).await
}

impl Workflow for BuildSnapshot {
    const KIND: &'static str = "build_snapshot";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(3, Duration::from_secs(5));
    const ATTEMPT_LIMIT: Option<Duration> = Some(Duration::from_secs(1800));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, snapshot, .. } = self;
        let found = world.store.read(async |tx| snapshots::get(tx, tenant, snapshot).await);
        let kept = match found.await {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        if kept.status != SnapshotStatus::Building {
            return ctx.complete();
        }
        let image = kept.docker_image.as_deref();
        let image = image.ok_or_else(|| Failure::fatal("the snapshot has no image"))?;
        let machine = world.sandbox_host()?;
        let image = image_request(world, tenant, image, self.registry).await?;
        let root = machine
            .driver
            .prepare(&image)
            .await
            .map_err(|error| failure_of(&error))?;
        let root = serde_json::to_string(&root).fatal()?;
        let settled = ctx
            .settle(async |tx| {
                snapshots::mark_ready(tx, tenant, snapshot, &root, None, self.tag.as_deref()).await?;
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
