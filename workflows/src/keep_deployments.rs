//! Keeping what serves: the one process that holds the compute backend starts what the placements say, starts again
//! what ended, and stops what nothing names any more.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use tokio::sync::Semaphore;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towpath_compute::metric;
use towpath_domain::DeploymentId;
use towpath_domain::deployment::LogKind;
use towpath_durable::{Failure, Verdict};
use towpath_store::placements::{self, Placement, PlacementState};
use towpath_store::{deployments, revision_logs, revisions, source_uploads};

use crate::hosting::Hosting;
use crate::{World, sweep_archives};

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

/// Requests wait for pauses up to this; beyond it they are answered at once that nothing serves.
const SHORT_PAUSE: Duration = Duration::from_secs(2);
/// One that did not answer so many times in a row hangs.
const MISSES: u32 = 3;

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
    // Beside all else: what serves must not wait until something is removed.
    let chores = {
        let (world, hosting) = (Arc::clone(&world), Arc::clone(&hosting));
        async move {
            loop {
                tokio::time::sleep(PRUNE_EVERY).await;
                tidy(&world, &hosting).await;
            }
        }
    };
    tokio::pin!(chores);
    let mut keeping = Keeping::new(world, hosting, stop);
    loop {
        if let Err(error) = keeping.look().await {
            tracing::warn!(%error, "deployments cannot be looked at; it is tried again");
        }
        let pause = keeping.pause();
        let Keeping {
            tasks, hosting, stop, ..
        } = &mut keeping;
        let done = tokio::select! {
            () = stop.cancelled() => break,
            () = &mut chores => None,
            Some(done) = tasks.join_next_with_id() => Some(done),
            () = hosting.backend.ended() => None,
            () = hosting.nudged() => None,
            () = tokio::time::sleep(pause) => None,
        };
        if let Some(done) = done {
            keeping.done(done);
        }
    }
    // Each hears the same token, and stops what it started.
    while keeping.tasks.join_next().await.is_some() {}
    keeping.hosting.backend.stop_all().await;
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
        (
            "source archives",
            sweep_archives::run(world, hosting.settings.keep_artifacts)
                .await
                .map(drop),
        ),
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

/// What is being done about deployments.
struct Keeping {
    world: Arc<World>,
    hosting: Arc<Hosting>,
    stop: CancellationToken,
    trouble: HashMap<DeploymentId, Trouble>,
    tasks: JoinSet<Done>,
    /// Also of a task that panics it is known what it was for.
    under_way: HashMap<Id, DeploymentId>,
    /// Starts at a time: each loads the graphs of a deployment.
    starts: Arc<Semaphore>,
    asked: Instant,
    /// How many times in a row an agent server did not answer.
    misses: HashMap<DeploymentId, u32>,
}

/// How a task about a deployment ended.
enum Done {
    Started(bool),
    Stopped,
    Answered(bool),
}

impl Keeping {
    fn new(world: Arc<World>, hosting: Arc<Hosting>, stop: CancellationToken) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            world,
            hosting,
            stop,
            trouble: HashMap::new(),
            tasks: JoinSet::new(),
            under_way: HashMap::new(),
            // One that hangs must not keep all others waiting.
            starts: Arc::new(Semaphore::new((cores / 2).max(2))),
            asked: Instant::now(),
            misses: HashMap::new(),
        }
    }

    /// How long nothing needs to be done unless something happens.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let soonest = self.trouble.values().map(|trouble| trouble.not_before);
        let soonest = soonest.filter(|at| *at > now).min();
        soonest.map_or(LOOK_EVERY, |at| LOOK_EVERY.min(at - now))
    }

    fn done(&mut self, done: Result<(Id, Done), JoinError>) {
        let (id, done) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "keeping a deployment broke off; it is tried again");
                (error.id(), Done::Started(false))
            }
        };
        let Some(deployment) = self.under_way.remove(&id) else {
            return;
        };
        match done {
            Done::Started(well) => note(&mut self.trouble, deployment, well),
            Done::Stopped => {}
            Done::Answered(true) => {
                self.misses.remove(&deployment);
            }
            Done::Answered(false) => *self.misses.entry(deployment).or_default() += 1,
        }
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let read = self.world.store.read(async |tx| placements::all(tx).await);
        let placements = read.await.retry()?;
        let named: HashSet<DeploymentId> = placements.iter().map(|placement| placement.deployment_id).collect();
        self.trouble.retain(|deployment, _| named.contains(deployment));
        self.misses.retain(|deployment, _| named.contains(deployment));
        let busy: HashSet<DeploymentId> = self.under_way.values().copied().collect();
        let asks = self.asked.elapsed() >= self.hosting.settings.ask_every;
        if asks {
            self.asked = Instant::now();
        }
        for placement in placements.into_iter().filter(|one| !busy.contains(&one.deployment_id)) {
            let id = placement.deployment_id;
            let state = self.hosting.backend.state(id);
            let runs = state.is_some_and(|state| state.revision == placement.revision_id);
            let serves = runs && placement.state == PlacementState::Serving;
            if serves && self.misses.get(&id).is_some_and(|misses| *misses >= MISSES) {
                self.misses.remove(&id);
                tracing::warn!(deployment.id = %id, "the agent server of a deployment does not answer; it is stopped");
                self.stop(id);
            } else if serves && asks {
                self.ask(id);
            } else if !serves {
                self.start(placement, runs).await?;
            }
        }
        let running = self.hosting.backend.running().into_iter();
        for id in running.filter(|id| !named.contains(id) && !busy.contains(id)) {
            self.stop(id);
        }
        Ok(())
    }

    /// Starts what a placement names, unless it has to wait.
    async fn start(&mut self, placement: Placement, runs: bool) -> Result<(), Failure> {
        let id = placement.deployment_id;
        // Held by a switch that is under way.
        let Some(lock) = self.hosting.try_lock(id) else {
            return Ok(());
        };
        let now = Instant::now();
        let trouble = self.trouble.get(&id).filter(|trouble| trouble.not_before > now);
        if let Some(trouble) = trouble {
            if !runs && placement.state == PlacementState::Serving {
                let wait = trouble.not_before - now;
                return ended(&self.world, &placement, wait).await;
            }
            return Ok(());
        }
        self.misses.remove(&id);
        let (world, hosting) = (Arc::clone(&self.world), Arc::clone(&self.hosting));
        let (stop, starts) = (self.stop.clone(), Arc::clone(&self.starts));
        let task = self.tasks.spawn(async move {
            let permit = tokio::select! {
                permit = starts.acquire_owned() => permit,
                () = stop.cancelled() => return Done::Started(false),
            };
            let well = restore(&world, &hosting, &placement, &stop).await;
            drop((permit, lock));
            Done::Started(well)
        });
        self.under_way.insert(task.id(), id);
        Ok(())
    }

    /// Stops what runs of a deployment, while the others are looked after.
    fn stop(&mut self, id: DeploymentId) {
        let Some(lock) = self.hosting.try_lock(id) else { return };
        let hosting = Arc::clone(&self.hosting);
        let task = self.tasks.spawn(async move {
            hosting.backend.stop(id).await;
            drop(lock);
            Done::Stopped
        });
        self.under_way.insert(task.id(), id);
    }

    /// Asks an agent server whether it is well.
    fn ask(&mut self, id: DeploymentId) {
        let hosting = Arc::clone(&self.hosting);
        let task = self.tasks.spawn(async move {
            // One that has ended meanwhile is found by its end.
            let away = hosting.backend.state(id).is_none();
            Done::Answered(away || hosting.backend.answers(id).await)
        });
        self.under_way.insert(task.id(), id);
    }
}

/// Records that what served has ended and is started again only after `wait`: its port may be another's by then.
async fn ended(world: &World, placement: &Placement, wait: Duration) -> Result<(), Failure> {
    metrics::counter!(metric::RESTARTS).increment(1);
    tracing::warn!(
        deployment.id = %placement.deployment_id,
        wait_seconds = wait.as_secs(),
        "the agent server of a deployment ended by itself again; it is started after a pause"
    );
    // Requests wait for a short pause.
    let why = (wait > SHORT_PAUSE).then(|| {
        format!(
            "the agent server ended by itself again and again; it is started in {} s",
            wait.as_secs()
        )
    });
    let written = world
        .store
        .write(async |tx| placements::ended(tx, placement, why.as_deref()).await);
    written.await.retry()
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
            hosting.check_database(&placement).await?;
            world
                .store
                .write(async |tx| placements::switching(tx, tenant, id).await)
                .await
                .retry()?;
            let (launch, log) = hosting
                .launch(world, &deployment, &revision, &placement.artifact, LogKind::Deploy)
                .await?;
            log.log().info(if crashed {
                "the agent server ended by itself and is started again"
            } else {
                "the agent server is started"
            });
            let started = async {
                // What an earlier build made is found; it is made where this machine has it no more. Where that fails, as
                // on a full disk, what serves may need nothing of it.
                // One that crashed had it.
                if !crashed {
                    match hosting.prepare(&launch, log.log(), stop).await {
                        Err(towpath_compute::Error::Cancelled) => return Err(towpath_compute::Error::Cancelled),
                        Err(error) => log.log().warn(error.told()),
                        Ok(_) => {}
                    }
                }
                let standby = hosting.backend.stand_by(&launch, log.log(), stop).await?;
                hosting.backend.replace(&launch, standby, log.log(), stop).await
            };
            let started = started.await;
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
    let database = hosting.backend.name_database(id).await.retry()?;
    let serving = world
        .store
        .write(async |tx| placements::serving(tx, &placement, &state.address, crashed, &database).await);
    serving.await.retry()
}
