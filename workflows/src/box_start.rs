//! Begins a life of a box.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::sandbox::{BoxStatus, SnapshotStatus, host_name};
use towpath_domain::{BoxId, JobId, TenantId};
use towpath_durable::{Cause, Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_sandbox::{BoxSpec, Error, Mount, Root};
use towpath_store::sandboxes::boxes::{self, SandboxBox, Started};
use towpath_store::sandboxes::{snapshots, volumes};
use towpath_store::{self as store, Tx};

use crate::World;
use crate::boxes::{Boxes, generation, isolation_name, shown};

/// The root of a box that names no image and no snapshot.
const DEFAULT_IMAGE: &str = "host";

/// Starts one box.
#[derive(Debug, Serialize, Deserialize)]
pub struct BoxStart {
    /// Its workspace.
    pub tenant: TenantId,
    /// The box.
    #[serde(rename = "box")]
    pub id: BoxId,
    /// The life that begins.
    pub generation: i64,
}

/// The lane of a box: its jobs are performed one after another.
#[must_use]
pub fn lane_of(id: BoxId) -> Lane {
    Lane::new(format!("box:{id}"), 1)
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, generation: i64) -> store::Result<JobId> {
    let input = BoxStart { tenant, id, generation };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(id))).await
}

/// Starts a box that does not run, in the caller's transaction. `None` where it runs, or is being removed.
///
/// # Errors
/// Those of the database.
pub async fn again(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<Option<SandboxBox>> {
    let row = boxes::get(tx, tenant, id).await?;
    if !row.status.may_start() {
        return Ok(None);
    }
    // The lane is locked before the row. Another request may begin the same life meanwhile: its job finds nothing to do.
    start(tx, tenant, id, row.generation + 1).await?;
    boxes::begin_start(tx, tenant, id).await
}

impl Workflow for BoxStart {
    const KIND: &'static str = "box_start";
    const POOL: &'static str = crate::boxes::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(2, Duration::from_secs(1));
    const ATTEMPT_LIMIT: Option<Duration> = Some(Duration::from_secs(600));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, id, .. } = self;
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Err(store::Error::NotFound) => return ctx.done(),
            found => found.retry()?,
        };
        if row.generation != self.generation || row.status != BoxStatus::Provisioning {
            // It was stopped, started anew or removed since.
            return ctx.done();
        }
        let machine = world.boxes()?;
        let (spec, isolation) = spec(world, machine, &row).await?;
        let handle = machine.driver.start(&spec, generation(row.generation)).await;
        let handle = handle.map_err(|error| verdict(&error))?;
        machine.remember(id, handle);
        let root = serde_json::to_string(&spec.root).fatal()?;
        let begun = Started {
            root: &root,
            host_id: machine.host_id(),
            isolation,
        };
        let settled = ctx
            .settle(async |tx| {
                boxes::started(tx, tenant, id, self.generation, begun).await?;
                Ok(())
            })
            .await;
        machine.announce();
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> store::Result<()> {
        let message = match &ended {
            Ended::Failed(message) => message,
            Ended::Cancelled => "its start was cancelled",
            Ended::TimedOut => "its start took longer than it may",
        };
        boxes::fail(tx, input.tenant, input.id, input.generation, message).await?;
        Ok(())
    }
}

/// What a driver's failure means to a job.
pub(crate) fn verdict(error: &Error) -> Failure {
    let cause = Cause::new(shown(error));
    if error.is_transient() {
        Failure::Retry(cause)
    } else {
        Failure::Fatal(cause)
    }
}

async fn spec(world: &World, machine: &Boxes, row: &SandboxBox) -> Result<(BoxSpec, &'static str), Failure> {
    let config = row.config().fatal()?;
    let capabilities = machine.capabilities().await.map_err(|error| verdict(&error))?;
    let (limits, _) = machine.limits(&config, capabilities).map_err(|error| verdict(&error))?;
    if row.host_id.is_some_and(|host| host != machine.host_id()) && !config.is_temporary {
        return Err(Failure::fatal(
            "its files lie on another machine, which does not hold boxes any more: delete the box and make another one",
        ));
    }
    let root = match &row.root {
        Some(root) => serde_json::from_str(root).fatal()?,
        None => root(world, machine, row, config.image.as_deref()).await?,
    };
    let mounts = mounts(world, machine, row).await?;
    let run = config.run_config.clone().unwrap_or_default();
    let spec = BoxSpec {
        id: row.id.0,
        hostname: host_name(&row.name),
        root,
        fresh: config.is_temporary,
        user: run.user,
        work_dir: run.work_dir,
        env: config.variables(),
        limits,
        mounts,
    };
    Ok((spec, isolation_name(capabilities.isolation)))
}

async fn mounts(world: &World, machine: &Boxes, row: &SandboxBox) -> Result<Vec<Mount>, Failure> {
    let found = world.store.read(async |tx| {
        let attached = boxes::attachments(tx, &[row.id]).await?;
        let ids: Vec<_> = attached.iter().map(|volume| volume.volume_id).collect();
        let holders = volumes::holders(tx, &ids).await?;
        let mut found = Vec::with_capacity(attached.len());
        for mount in attached {
            let mut others = holders
                .iter()
                .filter(|holder| holder.kind == "box" && holder.id != row.id.0);
            let is_shared = others.any(|holder| holder.volume_id == mount.volume_id);
            found.push((
                volumes::get(tx, row.tenant_id, mount.volume_id).await?,
                mount,
                is_shared,
            ));
        }
        Ok(found)
    });
    let mut mounts = Vec::new();
    for (volume, mount, is_shared) in found.await.retry()? {
        let source = machine.volume(&volume).await.map_err(|error| verdict(&error))?;
        if !is_shared {
            // It may be larger than when it was made; nobody else has it mounted.
            machine.grow_volume(&volume).await.map_err(|error| verdict(&error))?;
        }
        mounts.push(Mount {
            source,
            path: mount.mount_path,
            read_only: mount.read_only,
        });
    }
    Ok(mounts)
}

/// What a box that was never started is started on.
async fn root(world: &World, machine: &Boxes, row: &SandboxBox, image: Option<&str>) -> Result<Root, Failure> {
    let Some(id) = row.snapshot_id else {
        let prepared = machine.driver.prepare(image.unwrap_or(DEFAULT_IMAGE)).await;
        return prepared.map_err(|error| verdict(&error));
    };
    let found = world.store.read(async |tx| snapshots::get(tx, row.tenant_id, id).await);
    let snapshot = found.await.retry()?;
    match (snapshot.status, &snapshot.root) {
        (SnapshotStatus::Ready, Some(root)) => serde_json::from_str(root).fatal(),
        _ => Err(Failure::fatal(format!(
            "its snapshot {} is {}",
            snapshot.name,
            snapshot.status.as_str()
        ))),
    }
}
