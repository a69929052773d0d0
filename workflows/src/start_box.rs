//! Starts a sandbox.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::sandbox::{BoxStatus, SnapshotStatus, host_name};
use towpath_domain::{BoxId, JobId, TenantId, failpoint};
use towpath_durable::{Cause, Ctx, Failure, IntoFailure, Lane, Outcome, Start, Workflow};
use towpath_sandbox::{BoxSpec, Error, ImageRequest, RootFileSystem, VolumeMount};
use towpath_store::sandboxes::boxes::{self, SandboxBox, StartResult};
use towpath_store::sandboxes::{network, nodes, snapshots, volumes};
use towpath_store::{self as store, Tx};
use uuid::Uuid;

use crate::sandbox_host::{SandboxHost, driver_generation, error_text, image_request, isolation_name};
use crate::sandbox_nodes::{eligible, pool_for};
use crate::{Services, metric};

/// The root of a sandbox without an image or a snapshot.
const DEFAULT_IMAGE: &str = "host";

#[derive(Debug, Serialize, Deserialize)]
pub struct StartBox {
    pub tenant: TenantId,
    #[serde(rename = "box")]
    pub id: BoxId,
    /// The life that starts.
    pub generation: i64,
}

/// The lane of a sandbox, which runs its jobs one after another.
#[must_use]
pub fn lane_of(id: BoxId) -> Lane {
    Lane::new(format!("box:{id}"), 1)
}

/// Records the job for a node, or for any. Call it before the transaction's business writes: it locks the lane.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: BoxId,
    generation: i64,
    node: Option<Uuid>,
) -> store::Result<JobId> {
    let input = StartBox { tenant, id, generation };
    let how = Start::new(tenant).lane(lane_of(id)).pool(pool_for(tx, node).await?);
    towpath_durable::start(tx, &input, how).await
}

/// How jobs of an existing sandbox start: in its lane, on its node.
pub(crate) async fn on_node_of(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<Start> {
    let node = nodes::of_box(tx, id).await?;
    Ok(Start::new(tenant).lane(lane_of(id)).pool(pool_for(tx, node).await?))
}

/// Starts a sandbox that is not running, in the caller's transaction. `None` if it is running or being deleted. It
/// starts where its files are; without files it leaves a node that is lost.
pub async fn restart(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> store::Result<Option<SandboxBox>> {
    let row = boxes::get(tx, tenant, id).await?;
    if !row.status.may_start() {
        return Ok(None);
    }
    // The lane is locked before the row. Another request may start the same life meanwhile; this job then has nothing
    // to do.
    let node = node_of_restart(tx, &row).await?;
    start(tx, tenant, id, row.generation + 1, node).await?;
    boxes::begin_start(tx, tenant, id, row.generation, node).await
}

/// Whether a sandbox needs files of its node.
pub async fn is_bound(tx: &mut Tx<'_>, row: &SandboxBox) -> store::Result<bool> {
    let keeps_files = !row.config()?.is_temporary || row.snapshot_id.is_some();
    Ok(keeps_files || !boxes::volumes_of(tx, &[row.id]).await?.is_empty())
}

async fn node_of_restart(tx: &mut Tx<'_>, row: &SandboxBox) -> store::Result<Option<Uuid>> {
    let Some(node) = row.host_id else { return Ok(None) };
    if is_bound(tx, row).await? {
        return Ok(Some(node));
    }
    if nodes::find(tx, node).await?.is_some_and(|node| node.is_alive) {
        return Ok(Some(node));
    }
    let others = eligible(tx, row.config()?.mem_bytes).await?;
    Ok(others.first().copied().or(Some(node)))
}

impl Workflow for StartBox {
    const KIND: &'static str = "start_box";
    const POOL: &'static str = crate::sandbox_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(2, Duration::from_secs(1));
    const ATTEMPT_LIMIT: Option<Duration> = Some(Duration::from_secs(600));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, id, .. } = self;
        let found = world.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Err(store::Error::NotFound) => return ctx.complete(),
            found => found.retry()?,
        };
        if row.generation != self.generation || row.status != BoxStatus::Provisioning {
            // It was stopped, restarted or deleted since.
            return ctx.complete();
        }
        let is_temporary = row.config().fatal()?.is_temporary;
        let machine = match world.sandbox_host_of(row.host_id).await? {
            Some(machine) => machine,
            // It has no files that it needs.
            None if is_temporary => world.sandbox_host()?,
            None => {
                return Err(Failure::fatal(
                    "its files are on another machine, which no longer runs sandboxes: delete the sandbox and create \
                     another one",
                ));
            }
        };
        let (spec, isolation) = box_spec(world, machine, &row).await?;
        failpoint::hit("box.starting");
        let began = Instant::now();
        let handle = machine.driver.start(&spec, driver_generation(row.generation)).await;
        let handle = handle.map_err(|error| {
            metrics::counter!(metric::BOX_STARTS_FAILED).increment(1);
            failure_of(&error)
        })?;
        metrics::histogram!(metric::BOX_START_SECONDS).record(began.elapsed());
        failpoint::hit("box.started");
        machine.insert_handle(id, handle);
        // Before it is ready: whoever changes what it may call finds its proxy.
        let served = machine.ensure_proxy(&row, &world.store, &world.sealer).await;
        served.map_err(|error| failure_of(&error))?;
        let root = serde_json::to_string(&spec.root).fatal()?;
        let begun = StartResult {
            root: &root,
            host_id: machine.host_id(),
            isolation,
        };
        let settled = ctx
            .settle(async |tx| {
                boxes::mark_ready(tx, tenant, id, self.generation, begun).await?;
                Ok(())
            })
            .await;
        machine.notify_change();
        settled
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        let message = match &ended {
            EndReason::Failed(message) => message,
            EndReason::Cancelled => "its start was cancelled",
            EndReason::TimedOut => "its start exceeded its time limit",
        };
        boxes::mark_failed(tx, input.tenant, input.id, input.generation, message).await?;
        Ok(())
    }
}

/// Maps a driver's error to a failure.
pub(crate) fn failure_of(error: &Error) -> Failure {
    let cause = Cause::new(error_text(error));
    if error.is_transient() {
        Failure::Retry(cause)
    } else {
        Failure::Fatal(cause)
    }
}

async fn box_spec(
    world: &Services,
    machine: &SandboxHost,
    row: &SandboxBox,
) -> Result<(BoxSpec, &'static str), Failure> {
    let config = row.config().fatal()?;
    let capabilities = machine.capabilities().await.map_err(|error| failure_of(&error))?;
    let (limits, _) = machine
        .limits(&config, capabilities)
        .map_err(|error| failure_of(&error))?;
    let root = match &row.root {
        Some(root) => ensure_base(world, machine, row.tenant_id, root).await?,
        None => root_file_system(world, machine, row, config.image.as_deref()).await?,
    };
    let mounts = volume_mounts(world, machine, row).await?;
    let found = world
        .store
        .read(async |tx| network::find(tx, row.tenant_id, row.id).await);
    let mut env = match found.await.retry()? {
        Some(found) => found.config().fatal()?.variables(),
        None => BTreeMap::new(),
    };
    env.extend(config.variables());
    let run = config.run_config.clone().unwrap_or_default();
    let spec = BoxSpec {
        id: row.id.0,
        hostname: host_name(&row.name),
        root,
        fresh: config.is_temporary,
        user: run.user,
        work_dir: run.work_dir,
        env,
        limits,
        mounts,
        has_proxy: true,
    };
    Ok((spec, isolation_name(capabilities.isolation)))
}

async fn volume_mounts(world: &Services, machine: &SandboxHost, row: &SandboxBox) -> Result<Vec<VolumeMount>, Failure> {
    let found = world.store.read(async |tx| {
        let attached = boxes::volumes_of(tx, &[row.id]).await?;
        let ids: Vec<_> = attached.iter().map(|volume| volume.volume_id).collect();
        let holders = volumes::users(tx, &ids).await?;
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
    let found = found.await.retry()?;
    let mut mounts = Vec::with_capacity(found.len());
    let is_mounted = !found.is_empty() && is_running(machine, row).await?;
    for (volume, mount, is_shared) in found {
        check_node(machine, volume.host_id, "volume", &volume.name)?;
        let source = machine
            .ensure_volume(&volume)
            .await
            .map_err(|error| failure_of(&error))?;
        if !is_shared && !is_mounted {
            // It may have grown; no sandbox has it mounted.
            machine.grow_volume(&volume).await.map_err(|error| failure_of(&error))?;
        }
        mounts.push(VolumeMount {
            source,
            path: mount.mount_path,
            read_only: mount.read_only,
        });
    }
    Ok(mounts)
}

/// Whether an interrupted start left this life running. Whatever else was left is ended: it has the volumes mounted.
async fn is_running(machine: &SandboxHost, row: &SandboxBox) -> Result<bool, Failure> {
    let (id, generation) = (row.id.0, driver_generation(row.generation));
    if let Ok(Some(_)) = machine.driver.adopt(id, generation).await {
        return Ok(true);
    }
    match machine.driver.stop(id, generation, Duration::ZERO).await {
        Ok(()) | Err(Error::NotRunning) => Ok(false),
        Err(error) => Err(failure_of(&error)),
    }
}

/// Files of another node cannot be used: a sandbox is placed where they are.
fn check_node(machine: &SandboxHost, node: Option<Uuid>, noun: &str, name: &str) -> Result<(), Failure> {
    if node.is_none_or(|node| node == machine.host_id()) {
        return Ok(());
    }
    Err(Failure::fatal(format!(
        "the files of its {noun} {name} are on another node"
    )))
}

/// The root file system of a sandbox that starts for the first time.
async fn root_file_system(
    world: &Services,
    machine: &SandboxHost,
    row: &SandboxBox,
    image: Option<&str>,
) -> Result<RootFileSystem, Failure> {
    let Some(id) = row.snapshot_id else {
        let image = match image {
            Some(image) => image_request(world, row.tenant_id, image, None).await?,
            None => ImageRequest::anonymous(DEFAULT_IMAGE),
        };
        let prepared = machine.driver.prepare(&image).await;
        return prepared.map_err(|error| failure_of(&error));
    };
    let found = world.store.read(async |tx| snapshots::get(tx, row.tenant_id, id).await);
    let snapshot = found.await.retry()?;
    check_node(machine, snapshot.host_id, "snapshot", &snapshot.name)?;
    match (snapshot.status, &snapshot.root) {
        (SnapshotStatus::Ready, Some(root)) => ensure_base(world, machine, row.tenant_id, root).await,
        _ => Err(Failure::fatal(format!(
            "its snapshot {} is {}",
            snapshot.name,
            snapshot.status.as_str()
        ))),
    }
}

/// Reads a stored root, whose image may have been pulled by another node.
async fn ensure_base(
    world: &Services,
    machine: &SandboxHost,
    tenant: TenantId,
    root: &str,
) -> Result<RootFileSystem, Failure> {
    let root: RootFileSystem = serde_json::from_str(root).fatal()?;
    let is_prepared = machine.driver.is_prepared(&root.base).await;
    if !is_prepared.map_err(|error| failure_of(&error))? {
        let image = image_request(world, tenant, &root.base, None).await?;
        let prepared = machine.driver.prepare(&image).await;
        prepared.map_err(|error| failure_of(&error))?;
    }
    Ok(root)
}
