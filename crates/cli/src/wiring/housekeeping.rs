//! Small chores of a process: metrics upkeep, and units of the log that nobody needs any more.

use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::{MissedTickBehavior, interval};
use towpath_store::{Store, units};
use towpath_traces::objects::Objects;
use towpath_traces::wal;

/// The exporter's histograms grow until this is done.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// A folded unit stays this long, for a look at what came in.
const KEEP_FOLDED: Duration = Duration::from_secs(10 * 60);
/// No writer takes this long: what is older and named by no row was left by a process that died.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
/// Rows per statement.
const BATCH: i64 = 1000;
/// Batches of one sweep: the rest is for the next.
const ROUNDS: usize = 50;

/// Runs until it is aborted. Any number of processes may sweep: a chore done twice is done.
pub async fn run(store: Store, objects: Objects, metrics: PrometheusHandle, sweeps: bool) {
    let mut upkeep = interval(UPKEEP_EVERY);
    let mut sweep = interval(SWEEP_EVERY);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = upkeep.tick() => metrics.run_upkeep(),
            _ = sweep.tick(), if sweeps => {
                if let Err(error) = sweep_objects(&store, &objects).await {
                    tracing::warn!(error = format!("{error:#}"), "a sweep of objects failed; it is repeated in a minute");
                }
            }
        }
    }
}

async fn sweep_objects(store: &Store, objects: &Objects) -> anyhow::Result<()> {
    let now = store.clock().now();
    for _ in 0..ROUNDS {
        let old = store
            .read(async |tx| units::folded_before(tx, now.minus(KEEP_FOLDED), BATCH).await)
            .await?;
        let gone = wal::sweep::folded(objects, &old).await.context("folded units")?;
        if gone.is_empty() {
            break;
        }
        store.write(async |tx| units::forget(tx, &gone).await).await?;
    }
    let abandoned = now.minus(ABANDONED);
    wal::sweep::orphans(store, objects, abandoned)
        .await
        .context("units without a row")?;
    objects.sweep_unfinished(abandoned).await.context("unfinished files")?;
    Ok(())
}
