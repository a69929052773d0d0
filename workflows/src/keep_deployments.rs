//! Keeping what serves: the one process that holds the compute backend starts what the placements say, starts again
//! what ended, and stops what nothing names any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towpath_compute::metric;
use towpath_domain::DeploymentId;
use towpath_durable::{Failure, Verdict};
use towpath_store::placements::{self, Placement, PlacementState};
use towpath_store::{deployments, revision_logs, revisions, source_uploads};

use crate::World;
use crate::hosting::Hosting;

/// Looked at even when nothing happened: a placement may be another process's doing.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What does not start is tried again after this long, twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// What has served for so long begins with short pauses again.
const STEADY: Duration = Duration::from_secs(60);
/// What nothing needs any more is looked for this often.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// Artifacts stay for so long after they were used.
const IDLE_HOURS: u64 = 1;
/// Lines of agent servers are kept this long.
const LINES_KEPT: Duration = Duration::from_secs(7 * 86_400);
/// Lines, or uploads, of one statement.
const LINES: i64 = 1000;

/// How often a deployment ended or did not start of late.
struct Trouble {
    times: u32,
    not_before: Instant,
    started: Instant,
}

/// Runs until `stop` is cancelled, then stops every agent server. Call it once, in the process that has `hosting`.
pub async fn run(world: Arc<World>, stop: CancellationToken) {
    let Some(hosting) = world.hosting.clone() else { return };
    while let Err(failure) = begin(&world, &hosting).await {
        tracing::warn!(%failure, "deployments wait");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    let mut trouble: HashMap<DeploymentId, Trouble> = HashMap::new();
    let mut starting: JoinSet<(DeploymentId, bool)> = JoinSet::new();
    let mut under_way: HashSet<DeploymentId> = HashSet::new();
    let mut pruned = Instant::now();
    loop {
        if let Err(error) = look(&world, &hosting, &mut trouble, &mut starting, &mut under_way, &stop).await {
            tracing::warn!(%error, "deployments cannot be looked at; it is tried again");
        }
        if pruned.elapsed() >= PRUNE_EVERY {
            pruned = Instant::now();
            tidy(&world, &hosting).await;
        }
        let soonest = trouble
            .values()
            .map(|trouble| trouble.not_before)
            .filter(|at| *at > Instant::now())
            .min();
        let pause = soonest.map_or(LOOK_EVERY, |at| LOOK_EVERY.min(at - Instant::now()));
        tokio::select! {
            () = stop.cancelled() => break,
            Some(Ok((deployment, well))) = starting.join_next() => {
                under_way.remove(&deployment);
                note(&mut trouble, deployment, well);
            }
            () = hosting.backend.ended() => {}
            () = hosting.nudged() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    starting.shutdown().await;
    hosting.backend.stop_all().await;
}

/// Has placements say that nothing runs yet, and ends what an earlier life left. In this order: a request that was sent
/// to what is about to end would break off, where it can wait.
async fn begin(world: &World, hosting: &Hosting) -> Result<(), Failure> {
    world
        .store
        .write(async |tx| placements::begin(tx).await)
        .await
        .retry()?;
    hosting.backend.begin().await.retry()
}

/// Removes what nothing needs. A chore that fails keeps no other from being done.
pub async fn tidy(world: &World, hosting: &Hosting) {
    let chores = [
        ("artifacts", hosting.prune(&world.store, IDLE_HOURS).await),
        ("uploads", sweep_uploads(world).await.map(drop)),
        ("lines", forget_lines(world).await),
    ];
    for (what, done) in chores {
        if let Err(error) = done {
            tracing::warn!(%error, "{what} that nothing needs are left to the next round");
        }
    }
}

async fn forget_lines(world: &World) -> Result<(), Failure> {
    let before = world.store.clock().now().minus(LINES_KEPT);
    loop {
        let gone = world
            .store
            .write(async |tx| revision_logs::forget(tx, before, LINES).await);
        if gone.await.retry()? == 0 {
            return Ok(());
        }
    }
}

/// Forgets addresses of archives that nobody sent anything to. One that was being sent when its time was over has as
/// much time again.
///
/// # Errors
/// Those of the database and of the object store.
pub async fn sweep_uploads(world: &World) -> Result<usize, Failure> {
    let before = world.store.clock().now().minus(source_uploads::PATIENCE);
    let mut swept = 0;
    loop {
        let found = world
            .store
            .read(async |tx| source_uploads::unsent(tx, before, LINES).await);
        let found = found.await.retry()?;
        let is_last = (found.len() as i64) < LINES;
        for upload in found {
            // Part of it may be there: whoever took it died before it could say so.
            world
                .objects
                .delete(&Path::parse(&upload.path).fatal()?)
                .await
                .retry()?;
            let gone = world
                .store
                .write(async |tx| source_uploads::forget_unsent(tx, upload.tenant_id, upload.id).await);
            swept += usize::from(gone.await.retry()?);
        }
        if is_last {
            return Ok(swept);
        }
    }
}

async fn look(
    world: &Arc<World>,
    hosting: &Arc<Hosting>,
    trouble: &mut HashMap<DeploymentId, Trouble>,
    starting: &mut JoinSet<(DeploymentId, bool)>,
    under_way: &mut HashSet<DeploymentId>,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let wanted = world.store.read(async |tx| placements::all(tx).await).await.retry()?;
    let named: HashSet<DeploymentId> = wanted.iter().map(|placement| placement.deployment_id).collect();
    trouble.retain(|deployment, _| named.contains(deployment));
    for placement in wanted {
        let id = placement.deployment_id;
        let runs = hosting
            .backend
            .state(id)
            .is_some_and(|state| state.revision == placement.revision_id);
        let told = placement.state == PlacementState::Serving;
        let waits = trouble
            .get(&id)
            .is_some_and(|trouble| trouble.not_before > Instant::now());
        if (runs && told) || waits || under_way.contains(&id) {
            continue;
        }
        // Held by a switch that is under way.
        let Some(lock) = hosting.try_lock(id) else { continue };
        under_way.insert(id);
        let (world, hosting, stop) = (Arc::clone(world), Arc::clone(hosting), stop.clone());
        starting.spawn(async move {
            let well = restore(&world, &hosting, &placement, &stop).await;
            drop(lock);
            (id, well)
        });
    }
    for id in hosting.backend.running().into_iter().filter(|id| !named.contains(id)) {
        if let Some(_lock) = hosting.try_lock(id) {
            hosting.backend.stop(id).await;
        }
    }
    Ok(())
}

fn note(trouble: &mut HashMap<DeploymentId, Trouble>, deployment: DeploymentId, well: bool) {
    let now = Instant::now();
    let of = trouble.entry(deployment).or_insert(Trouble {
        times: 0,
        not_before: now,
        started: now,
    });
    if well && of.started.elapsed() > STEADY {
        of.times = 0;
    }
    of.times = of.times.saturating_add(1);
    of.started = now;
    let pause = FIRST_PAUSE
        .saturating_mul(1_u32.checked_shl(of.times - 1).unwrap_or(u32::MAX))
        .min(LONGEST_PAUSE);
    // The first time at once: requests wait.
    of.not_before = if well && of.times == 1 { now } else { now + pause };
}

/// Starts what a placement names. Whether it serves.
async fn restore(world: &World, hosting: &Hosting, placement: &Placement, stop: &CancellationToken) -> bool {
    match start(world, hosting, placement, stop).await {
        Ok(serves) => serves,
        Err(Failure::Cancelled) => false,
        Err(failure) => {
            tracing::warn!(
                deployment.id = %placement.deployment_id,
                error = %failure,
                "a deployment does not start; it is tried again"
            );
            let told = failure.to_string();
            let written = world
                .store
                .write(async |tx| placements::down(tx, placement, &told).await)
                .await;
            if let Err(error) = written {
                tracing::warn!(error = &error as &dyn std::error::Error, "and that cannot be recorded");
            }
            false
        }
    }
}

async fn start(
    world: &World,
    hosting: &Hosting,
    placement: &Placement,
    stop: &CancellationToken,
) -> Result<bool, Failure> {
    let (tenant, id) = (placement.tenant_id, placement.deployment_id);
    // Read behind the lock: a switch may just have ended.
    let read = world.store.read(async |tx| {
        let now = placements::get(tx, tenant, id).await?;
        let deployment = deployments::get(tx, tenant, id).await?;
        Ok((
            now,
            deployment,
            revisions::get(tx, tenant, placement.revision_id).await?,
        ))
    });
    let (now, deployment, revision) = read.await.retry()?;
    let Some(placement) = now.filter(|now| now.revision_id == placement.revision_id) else {
        return Ok(true);
    };
    let state = hosting
        .backend
        .state(id)
        .filter(|state| state.revision == placement.revision_id);
    let crashed = state.is_none() && placement.state == PlacementState::Serving;
    let state = match state {
        Some(state) if placement.address.as_ref() == Some(&state.address) => return Ok(true),
        Some(state) => state,
        None => {
            if crashed {
                metrics::counter!(metric::RESTARTS).increment(1);
                tracing::warn!(deployment.id = %id, "the agent server of a deployment ended by itself");
            }
            world
                .store
                .write(async |tx| placements::switching(tx, tenant, id).await)
                .await
                .retry()?;
            let (launch, log) = hosting.launch(world, &deployment, &revision, &placement.artifact)?;
            log.log().info(if crashed {
                "the agent server ended by itself and is started again"
            } else {
                "the agent server is started"
            });
            let started = match hosting.backend.stand_by(&launch, log.log(), stop).await {
                Ok(standby) => hosting.backend.replace(&launch, standby, log.log(), stop).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &started {
                log.log().error(error.to_string());
            }
            log.flush().await;
            match started {
                Err(towpath_compute::Error::Cancelled) => return Err(Failure::Cancelled),
                started => started.retry()?,
            }
        }
    };
    let serving = world
        .store
        .write(async |tx| placements::serving(tx, &placement, &state.address, crashed).await);
    serving.await.retry()
}
