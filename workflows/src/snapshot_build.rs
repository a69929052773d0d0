//! Makes a snapshot of an image.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::sandbox::SnapshotStatus;
use towpath_domain::{JobId, SnapshotId, TenantId};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::sandboxes::snapshots;
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::verdict;
use crate::snapshot_capture::reason;

/// Makes one snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct SnapshotBuild {
    /// Its workspace.
    pub tenant: TenantId,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

/// The lane of a snapshot.
pub(crate) fn lane_of(id: SnapshotId) -> Lane {
    Lane::new(format!("snapshot:{id}"), 1)
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, snapshot: SnapshotId) -> store::Result<JobId> {
    let input = SnapshotBuild { tenant, snapshot };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(snapshot))).await
}

impl Workflow for SnapshotBuild {
    const KIND: &'static str = "snapshot_build";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(3, Duration::from_secs(5));
    const ATTEMPT_LIMIT: Option<Duration> = Some(Duration::from_secs(1800));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, snapshot } = self;
        let found = world.store.read(async |tx| snapshots::get(tx, tenant, snapshot).await);
        let kept = match found.await {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        if kept.status != SnapshotStatus::Building {
            return ctx.done();
        }
        let image = kept.docker_image.as_deref();
        let image = image.ok_or_else(|| Failure::fatal("the snapshot names no image"))?;
        let machine = world.boxes()?;
        let root = machine.driver.prepare(image).await.map_err(|error| verdict(&error))?;
        let root = serde_json::to_string(&root).fatal()?;
        let settled = ctx
            .settle(async |tx| {
                snapshots::ready(tx, tenant, snapshot, &root, None).await?;
                Ok(())
            })
            .await;
        machine.announce();
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> store::Result<()> {
        snapshots::fail(tx, input.tenant, input.snapshot, &reason(&ended)).await
    }
}
