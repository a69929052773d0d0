//! Small chores of a process, each in a task of its own: metrics upkeep, units of the log that nobody needs any more, and what
//! writers left behind that died.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use towpath_api::App;
use towpath_domain::Timestamp;
use towpath_scheduler::metric;
use towpath_store::{Store, jobs, sweep_cursors, units};
use towpath_traces::objects::Objects;
use towpath_traces::wal::sweep::{self, FoldedWalk};

/// The exporter's histograms grow until this is done.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// A folded unit stays this long, for a look at what came in.
const KEEP_FOLDED: Duration = Duration::from_secs(10 * 60);
/// No writer takes this long: what is older and named by no row was left by a process that died.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
/// Rows per statement.
const BATCH: i64 = 1000;
/// What is left is counted up to here.
const COUNTED: i64 = 10_000;

/// A sweep that one process at a time does.
struct Sweep {
    /// In metrics, in logs, and of its turn in the database.
    name: &'static str,
    /// How often a process asks for the turn.
    every: Duration,
    /// How long the turn lasts. Shorter than the time between two questions, or a multiple of it less a little, so that one
    /// process alone never waits for itself.
    turn: Duration,
}

const FOLDED: Sweep = Sweep {
    name: "folded units",
    every: Duration::from_secs(60),
    turn: Duration::from_secs(55),
};

/// Listing a log takes as long as there are objects in it, and what it finds is in nobody's way.
const LEFTOVERS: Sweep = Sweep {
    name: "leftover objects",
    every: Duration::from_secs(10 * 60),
    turn: Duration::from_secs(55 * 60),
};

/// How often it is written when keys were used.
const RECORD_KEYS_EVERY: Duration = Duration::from_secs(60);

/// Writes when keys were used last, until it is aborted.
pub async fn record_key_uses(app: App) {
    let mut clock = interval(RECORD_KEYS_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        if let Err(error) = app.record_key_uses().await {
            tracing::warn!(%error, "it cannot be written when keys were used; the next time tries again");
        }
    }
}

/// Runs until it is aborted.
pub async fn run(store: Store, objects: Objects, metrics: PrometheusHandle, sweeps: bool) {
    // They end with this task, which drops them.
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
    let mut walk = FoldedWalk::new(BATCH);
    loop {
        ticks.tick().await;
        let began = Instant::now();
        match FOLDED.is_ours(&store).await {
            Ok(false) => {}
            Ok(true) => FOLDED.note(began, folded(&store, &objects, &mut walk, began + FOLDED.turn).await),
            Err(error) => FOLDED.note(began, Err(error)),
        }
    }
}

async fn sweep_leftovers(store: Store, objects: Objects) {
    let mut ticks = LEFTOVERS.ticks();
    loop {
        ticks.tick().await;
        let began = Instant::now();
        match LEFTOVERS.is_ours(&store).await {
            Ok(false) => {}
            Ok(true) => LEFTOVERS.note(began, leftovers(&store, &objects).await),
            Err(error) => LEFTOVERS.note(began, Err(error)),
        }
    }
}

impl Sweep {
    fn ticks(&self) -> tokio::time::Interval {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    /// Takes the turn. Several at once would only do the same twice.
    async fn is_ours(&self, store: &Store) -> anyhow::Result<bool> {
        let (name, turn) = (self.name, self.turn);
        let taken = store
            .write(async |tx| sweep_cursors::take_turn(tx, name, turn).await)
            .await;
        taken.context("taking the turn")
    }

    fn note(&self, began: Instant, done: anyhow::Result<i64>) {
        match done {
            Ok(left) => metric::swept(self.name, began.elapsed(), Some(left)),
            Err(error) => {
                metric::swept(self.name, began.elapsed(), None);
                let error = format!("{error:#}");
                tracing::warn!(
                    sweep = self.name,
                    error,
                    "a sweep of objects failed; it is repeated later"
                );
            }
        }
    }
}

/// The time by the earlier of this host's clock and the database's. On a host whose clock is ahead, what is being
/// written at this moment would look old.
async fn earlier_clock(store: &Store) -> anyhow::Result<Timestamp> {
    let now = store.read(async |tx| jobs::db_now(tx).await).await;
    Ok(now
        .context("asking the database for the time")?
        .min(store.clock().now()))
}

/// Removes what is folded until it has caught up or the turn is over. Answers how many units are left.
async fn folded(store: &Store, objects: &Objects, walk: &mut FoldedWalk, until: Instant) -> anyhow::Result<i64> {
    let before = earlier_clock(store).await?.minus(KEEP_FOLDED);
    walk.go_on(store, objects, before, until)
        .await
        .context("folded units")?;
    Ok(store
        .read(async |tx| units::count_folded(tx, before, COUNTED).await)
        .await?)
}

/// Removes objects that no row names, and files that were never finished.
async fn leftovers(store: &Store, objects: &Objects) -> anyhow::Result<i64> {
    let abandoned = earlier_clock(store).await?.minus(ABANDONED);
    sweep::orphans(store, objects, abandoned)
        .await
        .context("units without a row")?;
    objects.sweep_unfinished(abandoned).await.context("unfinished files")?;
    Ok(0)
}
