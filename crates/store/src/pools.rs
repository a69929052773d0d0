//! Pools: pausing them, and how full they are.

mod depth;

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_domain::Timestamp;

use crate::error::Result;
use crate::tx::Tx;
use crate::{gauges, workers};

pub use depth::{COUNTED, Depth, Oldest, depths, depths_of, oldest_ready, oldest_ready_of};

/// Pauses a pool: its jobs are not claimed; running ones continue. Ends a drain.
pub async fn pause(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    set(tx, name, Mode::Paused).await
}

/// Resumes a pool that is paused or draining.
pub async fn resume(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    set(tx, name, Mode::Active).await
}

/// Pauses a pool so that it gets empty: once the jobs at work are over it counts as drained.
pub async fn drain(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    set(tx, name, Mode::Draining).await
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Active,
    Paused,
    Draining,
}

async fn set(tx: &mut Tx<'_>, name: &str, mode: Mode) -> Result<()> {
    let paused = mode != Mode::Active;
    on!(tx, |conn| {
        sqlx::query(
            "INSERT INTO pool (name, paused, draining) VALUES ($1, $2, $3)
             ON CONFLICT (name) DO UPDATE SET paused = $2, draining = $3",
        )
        .bind(name)
        .bind(paused)
        .bind(mode == Mode::Draining)
        .execute(conn)
        .await
        .map(drop)
    })?;
    if !paused {
        tx.wake(name);
    }
    Ok(())
}

/// Whether a pool is paused.
pub async fn is_paused(tx: &mut Tx<'_>, name: &str) -> Result<bool> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pool WHERE name = $1 AND paused)")
            .bind(name)
            .fetch_one(conn)
            .await
    })?)
}

/// A pool as operators see it. Of jobs that wait, no more are counted than [`depths`] counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    pub pool: String,
    /// Nothing is claimed.
    pub paused: bool,
    /// It was paused to get empty.
    pub draining: bool,
    /// Jobs for later.
    pub scheduled: i64,
    /// Jobs whose lane is full.
    pub blocked: i64,
    /// Jobs for whom a worker is wanted.
    pub ready: i64,
    /// Jobs at work.
    pub running: i64,
    /// Jobs that wait for their children.
    pub waiting: i64,
    /// When the oldest ready job was due.
    pub oldest_ready: Option<Timestamp>,
    /// Workers that serve it and claim.
    pub workers: i64,
    /// Jobs those may have at work at the same time.
    pub slots: i64,
}

/// Pools by their names, as what is known of them comes together.
#[derive(Default)]
struct PoolOverviews(BTreeMap<String, Overview>);

impl PoolOverviews {
    fn named(&mut self, name: &str) -> &mut Overview {
        self.0.entry(name.to_owned()).or_insert_with(|| Overview {
            pool: name.to_owned(),
            ..Overview::default()
        })
    }

    fn add_pool(&mut self, known: &gauges::Pool) {
        let pool = self.named(&known.name);
        pool.paused = known.paused;
        pool.draining = known.draining;
    }

    fn count(&mut self, depth: &Depth) {
        let pool = self.named(&depth.pool);
        let place = match depth.state.as_str() {
            "scheduled" => &mut pool.scheduled,
            "blocked" => &mut pool.blocked,
            "ready" => &mut pool.ready,
            "running" => &mut pool.running,
            _ => &mut pool.waiting,
        };
        *place += depth.jobs;
    }

    /// A worker serves this pool with so many slots. One that leaves is no place for work to come.
    fn serve(&mut self, name: &str, worker: &workers::Worker, slots: i64) {
        let pool = self.named(name);
        pool.workers += i64::from(!worker.draining);
        pool.slots += if worker.draining { 0 } else { slots };
    }
}

/// Every pool that has an open job, a worker seen within `window`, or was ever paused, by name.
pub async fn list(tx: &mut Tx<'_>, window: Duration) -> Result<Vec<Overview>> {
    let mut pools = PoolOverviews::default();
    for known in gauges::pools(tx).await? {
        pools.add_pool(&known);
    }
    for depth in depths(tx).await? {
        pools.count(&depth);
    }
    for oldest in oldest_ready(tx).await? {
        pools.named(&oldest.pool).oldest_ready = Some(oldest.run_at);
    }
    for worker in workers::alive(tx, window).await? {
        for (name, slots) in worker.slots() {
            pools.serve(&name, &worker, slots);
        }
    }
    Ok(pools.0.into_values().collect())
}

/// One pool; `None` when no one knows it. What waits in other pools is not counted for it.
pub async fn overview(tx: &mut Tx<'_>, name: &str, window: Duration) -> Result<Option<Overview>> {
    let mut pools = PoolOverviews::default();
    for known in gauges::pools(tx).await?.iter().filter(|known| known.name == name) {
        pools.add_pool(known);
    }
    for depth in depths_of(tx, name).await? {
        pools.count(&depth);
    }
    if let Some(run_at) = oldest_ready_of(tx, name).await? {
        pools.named(name).oldest_ready = Some(run_at);
    }
    for worker in workers::alive(tx, window).await? {
        if let Some(slots) = worker.slots().get(name) {
            pools.serve(name, &worker, *slots);
        }
    }
    Ok(pools.0.remove(name))
}
