//! Removes a snapshot that nothing uses.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, SnapshotId, TenantId};
use towpath_durable::{Again, Ctx, Outcome, Start, Verdict, Workflow};
use towpath_sandbox::{Error, Root};
use towpath_store::sandboxes::snapshots;
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::verdict;
use crate::snapshot_build::lane_of;

/// Removes one snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct SnapshotDelete {
    /// Its workspace.
    pub tenant: TenantId,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, snapshot: SnapshotId) -> store::Result<JobId> {
    let input = SnapshotDelete { tenant, snapshot };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(snapshot))).await
}

impl Workflow for SnapshotDelete {
    const KIND: &'static str = "snapshot_delete";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, snapshot } = self;
        let found = world.store.read(async |tx| snapshots::get(tx, tenant, snapshot).await);
        let kept = match found.await {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        if let Some(root) = &kept.root {
            let root: Root = serde_json::from_str(root).fatal()?;
            // Layers of an image, or of the snapshot below, are not its own.
            if root.layers.first() == Some(&snapshot.0) {
                let machine = world.boxes()?;
                match machine.driver.remove_layer(snapshot.0).await {
                    Ok(()) | Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(verdict(&error)),
                }
            }
        }
        ctx.settle_final(async |tx| snapshots::forget(tx, tenant, snapshot).await)
            .await
    }

    /// The snapshot waits for its end as long as it is there; an operator may have the job performed again.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }

    fn again(&self) -> Again {
        Again::Allowed(Some(lane_of(self.snapshot)))
    }
}
