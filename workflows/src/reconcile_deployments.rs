//! The deployment reconciler: the process with the compute backend starts what the placements name, restarts what
//! ended, and stops what no placement names.

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
use towpath_durable::{Failure, IntoFailure};
use towpath_store::placements::{self, Placement, PlacementState};
use towpath_store::{deployments, revision_logs, revisions, source_uploads};

use crate::deployment_host::DeploymentHost;
use crate::{Services, sweep_archives};

/// Checked even without an event, because another process may change a placement.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(2);
/// First pause after a failed start; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// After serving for this long, the pauses start from the beginning.
const BACKOFF_RESET: Duration = Duration::from_secs(60);
/// Interval of clean-ups.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// How long artifacts stay after their last use.
const IDLE_HOURS: u64 = 1;
/// Retention of agent servers' log lines.
const LINE_RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// Lines or uploads per statement.
const LINES: i64 = 1000;

/// Requests wait during pauses up to this; during longer ones they are answered at once with an error.
const SHORT_PAUSE: Duration = Duration::from_secs(2);
/// An agent server with this many missed health checks in a row counts as hanging.
const MAX_MISSED_CHECKS: u32 = 3;

/// Recent failures of a deployment.
struct RestartBackoff {
    failures: u32,
    not_before: Instant,
    started: Instant,
}

/// Runs until `stop` is cancelled, then stops every agent server. Call it once, in the process that has `hosting`.
pub async fn run(world: Arc<Services>, stop: CancellationToken) {
    let Some(hosting) = world.deployment_host.clone() else {
        return;
    };
    while let Err(failure) = reset_placements(&world, &hosting).await {
        tracing::warn!(%failure, "deployments wait");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RECONCILE_INTERVAL) => {}
        }
    }
    // Concurrent with everything else, so that a removal does not delay a restart.
    let chores = {
        let (world, hosting) = (Arc::clone(&world), Arc::clone(&hosting));
        async move {
            loop {
                tokio::time::sleep(PRUNE_EVERY).await;
                clean_up(&world, &hosting).await;
            }
        }
    };
    tokio::pin!(chores);
    let mut keeping = Reconciler::new(world, hosting, stop);
    'running: loop {
        let pause = match keeping.reconcile().await {
            Ok(()) => keeping.pause(),
            Err(error) => {
                tracing::warn!(%error, "deployments cannot be read; retrying");
                RECONCILE_INTERVAL
            }
        };
        let next = Instant::now() + pause;
        loop {
            let Reconciler {
                tasks, hosting, stop, ..
            } = &mut keeping;
            let done = tokio::select! {
                () = stop.cancelled() => break 'running,
                () = &mut chores => None,
                Some(done) = tasks.join_next_with_id() => Some(done),
                () = hosting.backend.ended() => None,
                () = hosting.reconcile_requested() => None,
                () = tokio::time::sleep_until(next) => None,
            };
            let Some(done) = done else { break };
            // The answer of each agent server must not cost a read of all placements.
            if keeping.finish_task(done) {
                break;
            }
        }
    }
    // Each has the same token, and stops what it started.
    while keeping.tasks.join_next().await.is_some() {}
    keeping.hosting.backend.stop_all().await;
}

/// Marks all placements as not running, then ends the agent servers of an earlier process life. In this order, requests
/// wait instead of being interrupted.
async fn reset_placements(world: &Services, hosting: &DeploymentHost) -> Result<(), Failure> {
    world
        .store
        .write(async |tx| placements::begin(tx).await)
        .await
        .retry()?;
    hosting.backend.end_leftovers().await.retry()
}

/// Removes unneeded data. A failure does not stop the other tasks.
pub async fn clean_up(world: &Services, hosting: &DeploymentHost) {
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
            tracing::warn!(%error, "unneeded {what} could not be removed; retrying in the next round");
        }
    }
}

async fn forget_lines(world: &Services) -> Result<(), Failure> {
    let before = world.store.clock().now().minus(LINE_RETENTION);
    loop {
        let gone = world
            .store
            .write(async |tx| revision_logs::forget(tx, before, LINES).await);
        if gone.await.retry()? == 0 {
            return Ok(());
        }
    }
}

/// Deletes upload addresses that were never used. An upload that was in progress when its time ended gets the same time
/// again.
pub async fn sweep_uploads(world: &Services) -> Result<usize, Failure> {
    let before = world.store.clock().now().minus(source_uploads::PATIENCE);
    let mut swept = 0;
    loop {
        let found = world
            .store
            .read(async |tx| source_uploads::expired(tx, before, LINES).await);
        let found = found.await.retry()?;
        let is_last = (found.len() as i64) < LINES;
        for upload in found {
            // A part may exist: the receiver died before it recorded the upload.
            world
                .objects
                .delete(&Path::parse(&upload.path).fatal()?)
                .await
                .retry()?;
            let gone = world
                .store
                .write(async |tx| source_uploads::delete_expired(tx, upload.tenant_id, upload.id).await);
            swept += usize::from(gone.await.retry()?);
        }
        if is_last {
            return Ok(swept);
        }
    }
}

struct Reconciler {
    world: Arc<Services>,
    hosting: Arc<DeploymentHost>,
    stop: CancellationToken,
    backoffs: HashMap<DeploymentId, RestartBackoff>,
    tasks: JoinSet<TaskResult>,
    /// Also identifies the deployment of a panicked task.
    task_deployments: HashMap<Id, DeploymentId>,
    /// Concurrent starts: each loads the graphs of a deployment.
    starts: Arc<Semaphore>,
    health_checked_at: Instant,
    /// Missed health checks in a row.
    misses: HashMap<DeploymentId, u32>,
    /// Deployments that need something and had a task in progress.
    passed_over: HashSet<DeploymentId>,
}

/// Result of a task about a deployment.
enum TaskResult {
    Started(bool),
    Stopped,
    Answered(bool),
}

impl Reconciler {
    fn new(world: Arc<Services>, hosting: Arc<DeploymentHost>, stop: CancellationToken) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            world,
            hosting,
            stop,
            backoffs: HashMap::new(),
            tasks: JoinSet::new(),
            task_deployments: HashMap::new(),
            // More than one, so that a hanging start does not block all others.
            starts: Arc::new(Semaphore::new((cores / 2).max(2))),
            health_checked_at: Instant::now(),
            misses: HashMap::new(),
            passed_over: HashSet::new(),
        }
    }

    /// Time until something needs to be done, unless an event comes first.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let soonest = self.backoffs.values().map(|trouble| trouble.not_before);
        let soonest = soonest.filter(|at| *at > now).min();
        let pause = soonest.map_or(RECONCILE_INTERVAL, |at| RECONCILE_INTERVAL.min(at - now));
        let health_check = self.health_checked_at + self.hosting.settings.health_interval;
        pause.min(health_check.saturating_duration_since(now))
    }

    /// Records the end of a task. Returns whether something may have to be done now.
    fn finish_task(&mut self, done: Result<(Id, TaskResult), JoinError>) -> bool {
        let (id, done) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a task of a deployment panicked; retrying");
                (error.id(), TaskResult::Started(false))
            }
        };
        let Some(deployment) = self.task_deployments.remove(&id) else {
            return true;
        };
        match done {
            TaskResult::Started(well) => {
                update_backoff(&mut self.backoffs, deployment, well);
                true
            }
            TaskResult::Stopped => true,
            TaskResult::Answered(true) => {
                self.misses.remove(&deployment);
                self.passed_over.contains(&deployment)
            }
            TaskResult::Answered(false) => {
                let misses = self.misses.entry(deployment).or_default();
                *misses += 1;
                *misses >= MAX_MISSED_CHECKS || self.passed_over.contains(&deployment)
            }
        }
    }

    async fn reconcile(&mut self) -> Result<(), Failure> {
        let read = self.world.store.read(async |tx| placements::all(tx).await);
        let placements = read.await.retry()?;
        let named: HashSet<DeploymentId> = placements.iter().map(|placement| placement.deployment_id).collect();
        self.backoffs.retain(|deployment, _| named.contains(deployment));
        self.misses.retain(|deployment, _| named.contains(deployment));
        let busy: HashSet<DeploymentId> = self.task_deployments.values().copied().collect();
        let asks = self.health_checked_at.elapsed() >= self.hosting.settings.health_interval;
        if asks {
            self.health_checked_at = Instant::now();
        }
        self.passed_over.clear();
        for placement in placements {
            let id = placement.deployment_id;
            let state = self.hosting.backend.state(id);
            let runs = state.is_some_and(|state| state.revision == placement.revision_id);
            let serves = runs && placement.state == PlacementState::Serving;
            if busy.contains(&id) {
                if !serves {
                    self.passed_over.insert(id);
                }
            } else if serves && self.misses.get(&id).is_some_and(|misses| *misses >= MAX_MISSED_CHECKS) {
                self.misses.remove(&id);
                tracing::warn!(deployment.id = %id, "the agent server of a deployment does not answer; stopping it");
                self.stop(id);
            } else if serves && asks {
                self.check_health(id);
            } else if !serves {
                self.start(placement, runs).await?;
            }
        }
        let running = self.hosting.backend.running().into_iter();
        for id in running.filter(|id| !named.contains(id)) {
            if busy.contains(&id) {
                self.passed_over.insert(id);
            } else {
                self.stop(id);
            }
        }
        Ok(())
    }

    /// Starts what a placement names, unless it must wait.
    async fn start(&mut self, placement: Placement, runs: bool) -> Result<(), Failure> {
        let id = placement.deployment_id;
        // A switch in progress holds the lock.
        let Some(lock) = self.hosting.try_lock(id) else {
            return Ok(());
        };
        let now = Instant::now();
        let trouble = self.backoffs.get(&id).filter(|trouble| trouble.not_before > now);
        if let Some(trouble) = trouble {
            if !runs && placement.state == PlacementState::Serving {
                let wait = trouble.not_before - now;
                return record_end(&self.world, &placement, wait).await;
            }
            return Ok(());
        }
        self.misses.remove(&id);
        let (world, hosting) = (Arc::clone(&self.world), Arc::clone(&self.hosting));
        let (stop, starts) = (self.stop.clone(), Arc::clone(&self.starts));
        let task = self.tasks.spawn(async move {
            let permit = tokio::select! {
                permit = starts.acquire_owned() => permit,
                () = stop.cancelled() => return TaskResult::Started(false),
            };
            let well = restore(&world, &hosting, &placement, &stop).await;
            drop((permit, lock));
            TaskResult::Started(well)
        });
        self.task_deployments.insert(task.id(), id);
        Ok(())
    }

    /// Stops a deployment in the background.
    fn stop(&mut self, id: DeploymentId) {
        let Some(lock) = self.hosting.try_lock(id) else { return };
        let hosting = Arc::clone(&self.hosting);
        let task = self.tasks.spawn(async move {
            hosting.backend.stop(id).await;
            drop(lock);
            TaskResult::Stopped
        });
        self.task_deployments.insert(task.id(), id);
    }

    /// Checks the health of an agent server.
    fn check_health(&mut self, id: DeploymentId) {
        let hosting = Arc::clone(&self.hosting);
        let task = self.tasks.spawn(async move {
            // One that has ended is handled by its end.
            let away = hosting.backend.state(id).is_none();
            TaskResult::Answered(away || hosting.backend.answers(id).await)
        });
        self.task_deployments.insert(task.id(), id);
    }
}

/// Records that an agent server ended and is restarted only after `wait`: its port may be reused by then.
async fn record_end(world: &Services, placement: &Placement, wait: Duration) -> Result<(), Failure> {
    metric::count_restart();
    tracing::warn!(
        deployment.id = %placement.deployment_id,
        wait_seconds = wait.as_secs(),
        "the agent server of a deployment ended unexpectedly again; restarting it after a pause"
    );
    // Requests wait during a short pause.
    let why = (wait > SHORT_PAUSE).then(|| {
        format!(
            "the agent server keeps ending unexpectedly; it is restarted in {} s",
            wait.as_secs()
        )
    });
    let written = world
        .store
        .write(async |tx| placements::ended(tx, placement, why.as_deref()).await);
    written.await.retry()
}

fn update_backoff(trouble: &mut HashMap<DeploymentId, RestartBackoff>, deployment: DeploymentId, well: bool) {
    let now = Instant::now();
    let of = trouble.entry(deployment).or_insert(RestartBackoff {
        failures: 0,
        not_before: now,
        started: now,
    });
    if well && of.started.elapsed() > BACKOFF_RESET {
        of.failures = 0;
    }
    of.failures = of.failures.saturating_add(1);
    of.started = now;
    let pause = FIRST_PAUSE
        .saturating_mul(1_u32.checked_shl(of.failures - 1).unwrap_or(u32::MAX))
        .min(LONGEST_PAUSE);
    // The first restart is immediate, because requests wait.
    of.not_before = if well && of.failures == 1 { now } else { now + pause };
}

/// Starts what a placement names. Returns whether it serves.
async fn restore(world: &Services, hosting: &DeploymentHost, placement: &Placement, stop: &CancellationToken) -> bool {
    match start(world, hosting, placement, stop).await {
        Ok(serves) => serves,
        Err(Failure::Cancelled) => false,
        Err(failure) => {
            tracing::warn!(
                deployment.id = %placement.deployment_id,
                error = %failure,
                "a deployment does not start; retrying"
            );
            let told = failure.to_string();
            let written = world
                .store
                .write(async |tx| placements::down(tx, placement, &told).await)
                .await;
            if let Err(error) = written {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the failed start of a deployment cannot be \
                     recorded"
                );
            }
            false
        }
    }
}

async fn start(
    world: &Services,
    hosting: &DeploymentHost,
    placement: &Placement,
    stop: &CancellationToken,
) -> Result<bool, Failure> {
    let (tenant, id) = (placement.tenant_id, placement.deployment_id);
    // Read under the lock, because a switch may just have ended.
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
                metric::count_restart();
                tracing::warn!(deployment.id = %id, "the agent server of a deployment ended unexpectedly");
            }
            hosting.check_database(&placement).await?;
            let (store, sealer, artifact) = (&world.store, &world.sealer, &placement.artifact);
            store
                .write(async |tx| placements::switching(tx, tenant, id).await)
                .await
                .retry()?;
            let (launch, log) = hosting
                .launch(store, sealer, &deployment, &revision, artifact, LogKind::Deploy)
                .await?;
            log.log().info(if crashed {
                "the agent server ended unexpectedly and is restarted"
            } else {
                "starting the agent server"
            });
            let started = async {
                // Finds the environment of an earlier build, or creates it if this machine no longer has it. On a
                // failure, such as a full disk, the start is still attempted. A crashed agent server had its
                // environment.
                if !crashed {
                    match hosting.prepare(&launch, log.log(), stop).await {
                        Err(towpath_compute::Error::Cancelled) => return Err(towpath_compute::Error::Cancelled),
                        Err(error) => log.log().warn(error.user_message()),
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
