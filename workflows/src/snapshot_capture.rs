//! Keeps the files of a box as a snapshot.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::sandbox::{BoxStatus, SnapshotStatus};
use towpath_domain::{BoxId, JobId, SnapshotId, TenantId};
use towpath_durable::{Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_sandbox::Root;
use towpath_store::sandboxes::{boxes, snapshots};
use towpath_store::{self as store, Tx};

use crate::World;
use crate::box_start::{lane_of, verdict};
use crate::boxes::generation;

/// Layers of one root: the driver mounts no more.
pub const MOST_LAYERS: usize = 32;

/// Captures one box.
#[derive(Debug, Serialize, Deserialize)]
pub struct SnapshotCapture {
    /// Its workspace.
    pub tenant: TenantId,
    /// The box.
    #[serde(rename = "box")]
    pub id: BoxId,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, snapshot: SnapshotId) -> store::Result<JobId> {
    let input = SnapshotCapture { tenant, id, snapshot };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(id))).await
}

impl Workflow for SnapshotCapture {
    const KIND: &'static str = "snapshot_capture";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(3, Duration::from_secs(2));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, id, snapshot } = self;
        let found = world.store.read(async |tx| {
            let snapshot = snapshots::get(tx, tenant, snapshot).await?;
            Ok((boxes::get(tx, tenant, id).await?, snapshot))
        });
        let (row, kept) = match found.await {
            Err(store::Error::NotFound) => return Err(Failure::fatal("the box is gone")),
            found => found.retry()?,
        };
        if kept.status != SnapshotStatus::Building {
            return ctx.done();
        }
        let (BoxStatus::Ready | BoxStatus::Stopped, Some(root)) = (row.status, &row.root) else {
            return Err(Failure::fatal(format!("the box is {}", row.status.as_str())));
        };
        let below: Root = serde_json::from_str(root).fatal()?;
        let machine = world.boxes()?;
        let sealed = machine.driver.seal(id.0, generation(row.generation), snapshot.0).await;
        let layer = sealed.map_err(|error| verdict(&error))?;
        let root = Root {
            base: below.base,
            layers: std::iter::once(layer.id).chain(below.layers).collect(),
        };
        let root = serde_json::to_string(&root).fatal()?;
        let used = i64::try_from(layer.used_bytes).unwrap_or(i64::MAX);
        let settled = ctx
            .settle(async |tx| {
                snapshots::ready(tx, tenant, snapshot, &root, Some(used)).await?;
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

/// Why a snapshot is not there.
pub(crate) fn reason(ended: &Ended) -> String {
    match ended {
        Ended::Failed(message) => message.clone(),
        Ended::Cancelled => "it was cancelled".to_owned(),
        Ended::TimedOut => "it took longer than it may".to_owned(),
    }
}
