//! Background tasks of a process: metrics upkeep, and removal of flushed WAL segments and of leftovers of crashed
//! writers.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use towpath_api::App;
use towpath_domain::Timestamp;
use towpath_scheduler::metric;
use towpath_store::{Store, jobs, sweep_cursors, wal_segments};
use towpath_traces::objects::Objects;
use towpath_traces::wal::sweep::{self, FlushedWalk};

/// The exporter's histograms grow until its upkeep runs.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// How long a flushed WAL segment is kept for inspection.
const KEEP_FOLDED: Duration = Duration::from_secs(10 * 60);
/// Older than any write in progress: an object of this age without a row was left by a crashed process.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
/// Rows per statement.
const BATCH: i64 = 1000;
/// Limit of the count of remaining segments.
const COUNTED: i64 = 10_000;

/// A sweep that runs in one process at a time.
struct Sweep {
    /// Name in metrics, logs and the lock in the database.
    name: &'static str,
    /// How often a process tries to take the lock.
    every: Duration,
    /// How long the lock lasts. It is shorter than `every`, or a little less than a multiple of it, so that a single
    /// process never waits for its own lock.
    time_budget: Duration,
}

const FOLDED: Sweep = Sweep {
    name: "folded units",
    every: Duration::from_secs(60),
    time_budget: Duration::from_secs(55),
};

/// Rare, because listing a log takes as long as it has objects, and leftovers do no harm.
const LEFTOVERS: Sweep = Sweep {
    name: "leftover objects",
    every: Duration::from_secs(10 * 60),
    time_budget: Duration::from_secs(55 * 60),
};

/// How often the use of keys is recorded.
const RECORD_KEYS_EVERY: Duration = Duration::from_secs(60);

/// Records when keys were last used, until it is aborted.
pub async fn record_key_uses(app: App) {
    let mut clock = interval(RECORD_KEYS_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        if let Err(error) = app.record_key_uses().await {
            tracing::warn!(%error, "the last uses of keys could not be recorded; retrying");
        }
    }
}

/// Runs until it is aborted.
pub async fn run(store: Store, objects: Objects, metrics: PrometheusHandle, sweeps: bool) {
    // Dropping the set ends the tasks with this one.
    let mut chores = JoinSet::new();
    chores.spawn(upkeep(metrics));
    if sweeps {
        chores.spawn(sweep_folded(store.clone(), objects.clone()));
        chores.spawn(sweep_leftovers(store, objects));
    }
    while chores.join_next().await.is_some() {}
}

async fn upkeep(metrics: PrometheusHandle) {
    let mut ticks = interval(UPKEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

async fn sweep_folded(store: Store, objects: Objects) {
    let mut ticks = FOLDED.ticks();
    let mut walk = FlushedWalk::new(BATCH);
    loop {
        ticks.tick().await;
        let began = Instant::now();
        match FOLDED.acquire_turn(&store).await {
            Ok(false) => {}
            Ok(true) => FOLDED.record_result(
                began,
                folded(&store, &objects, &mut walk, began + FOLDED.time_budget).await,
            ),
            Err(error) => FOLDED.record_result(began, Err(error)),
        }
    }
}

async fn sweep_leftovers(store: Store, objects: Objects) {
    let mut ticks = LEFTOVERS.ticks();
    loop {
        ticks.tick().await;
        let began = Instant::now();
        match LEFTOVERS.acquire_turn(&store).await {
            Ok(false) => {}
            Ok(true) => LEFTOVERS.record_result(began, leftovers(&store, &objects).await),
            Err(error) => LEFTOVERS.record_result(began, Err(error)),
        }
    }
}

impl Sweep {
    fn ticks(&self) -> tokio::time::Interval {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    /// Takes the lock: concurrent sweeps would only repeat the same work.
    async fn acquire_turn(&self, store: &Store) -> anyhow::Result<bool> {
        let (name, turn) = (self.name, self.time_budget);
        let taken = store
            .write(async |tx| sweep_cursors::claim_interval(tx, name, turn).await)
            .await;
        taken.context("acquiring the sweep lock")
    }

    fn record_result(&self, began: Instant, done: anyhow::Result<i64>) {
        match done {
            Ok(left) => metric::swept(self.name, began.elapsed(), Some(left)),
            Err(error) => {
                metric::swept(self.name, began.elapsed(), None);
                let error = format!("{error:#}");
                tracing::warn!(sweep = self.name, error, "a sweep of objects failed; retrying later");
            }
        }
    }
}

/// The earlier of the clocks of this host and the database. On a host whose clock is ahead, current writes would
/// otherwise look old.
async fn earlier_clock(store: &Store) -> anyhow::Result<Timestamp> {
    let now = store.read(async |tx| jobs::db_now(tx).await).await;
    Ok(now
        .context("reading the time of the database")?
        .min(store.clock().now()))
}

/// Removes flushed WAL segments until none is left or the time is over. Returns the number of remaining ones.
async fn folded(store: &Store, objects: &Objects, walk: &mut FlushedWalk, until: Instant) -> anyhow::Result<i64> {
    let before = earlier_clock(store).await?.minus(KEEP_FOLDED);
    walk.sweep_next(store, objects, before, until)
        .await
        .context("folded units")?;
    Ok(store
        .read(async |tx| wal_segments::count_flushed(tx, before, COUNTED).await)
        .await?)
}

/// Removes objects without a row, and incomplete files.
async fn leftovers(store: &Store, objects: &Objects) -> anyhow::Result<i64> {
    let abandoned = earlier_clock(store).await?.minus(ABANDONED);
    sweep::orphans(store, objects, abandoned)
        .await
        .context("WAL segments without a row")?;
    objects.sweep_unfinished(abandoned).await.context("unfinished files")?;
    Ok(0)
}
