//! Pools: pausing them, and how full they are.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::FromRow;
use towpath_domain::Timestamp;

use crate::error::Result;
use crate::tx::Tx;
use crate::{gauges, workers};

/// Pauses or resumes a pool. A paused pool's jobs are not claimed; those at work go on. It drains no more.
///
/// # Errors
/// As every statement.
pub async fn pause(tx: &mut Tx<'_>, name: &str, paused: bool) -> Result<()> {
    set(tx, name, paused, false).await
}

/// Pauses a pool so that it gets empty: once the jobs at work are over it counts as drained.
///
/// # Errors
/// As every statement.
pub async fn drain(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    set(tx, name, true, true).await
}

async fn set(tx: &mut Tx<'_>, name: &str, paused: bool, draining: bool) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query(
            "INSERT INTO pool (name, paused, draining) VALUES ($1, $2, $3)
             ON CONFLICT (name) DO UPDATE SET paused = $2, draining = $3",
        )
        .bind(name)
        .bind(paused)
        .bind(draining)
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
///
/// # Errors
/// As every statement.
pub async fn is_paused(tx: &mut Tx<'_>, name: &str) -> Result<bool> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pool WHERE name = $1 AND paused)")
            .bind(name)
            .fetch_one(conn)
            .await
    })?)
}

/// How many open jobs of a pool are in a state.
#[derive(Clone, Debug, FromRow)]
pub struct Depth {
    /// Pool.
    pub pool: String,
    /// State.
    pub state: String,
    /// Jobs.
    pub jobs: i64,
}

/// Counts the open jobs by pool and state. Each state has an index of its own: those that are over, by far the most,
/// are not looked at.
///
/// # Errors
/// As every statement.
pub async fn depths(tx: &mut Tx<'_>) -> Result<Vec<Depth>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT pool, state, count(*) AS jobs FROM job WHERE state = 'scheduled' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM job
             WHERE lane IS NOT NULL AND finished_at IS NULL AND state = 'blocked' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM job WHERE state = 'ready' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM job WHERE state = 'running' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM job WHERE state = 'waiting' GROUP BY pool, state",
        )
        .fetch_all(conn)
        .await
    })?)
}

/// The oldest ready job of a pool.
#[derive(Clone, Debug, FromRow)]
pub struct Oldest {
    /// Pool.
    pub pool: String,
    /// When it was due.
    pub run_at: Timestamp,
}

/// The oldest ready job of each pool that has one.
///
/// # Errors
/// As every statement.
pub async fn oldest_ready(tx: &mut Tx<'_>) -> Result<Vec<Oldest>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT pool, min(run_at) AS run_at FROM job WHERE state = 'ready' GROUP BY pool")
            .fetch_all(conn)
            .await
    })?)
}

/// A pool as operators see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Its name.
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

/// Every pool that has an open job, a worker seen within `window`, or was ever paused, by name.
///
/// # Errors
/// As every statement.
pub async fn list(tx: &mut Tx<'_>, window: Duration) -> Result<Vec<Overview>> {
    let mut pools: BTreeMap<String, Overview> = BTreeMap::new();
    let named = |pools: &mut BTreeMap<String, Overview>, name: &str, set: &mut dyn FnMut(&mut Overview)| {
        set(pools.entry(name.to_owned()).or_insert_with(|| Overview {
            pool: name.to_owned(),
            ..Overview::default()
        }));
    };
    for known in gauges::pools(tx).await? {
        named(&mut pools, &known.name, &mut |pool| {
            pool.paused = known.paused;
            pool.draining = known.draining;
        });
    }
    for depth in depths(tx).await? {
        named(&mut pools, &depth.pool, &mut |pool| {
            let place = match depth.state.as_str() {
                "scheduled" => &mut pool.scheduled,
                "blocked" => &mut pool.blocked,
                "ready" => &mut pool.ready,
                "running" => &mut pool.running,
                _ => &mut pool.waiting,
            };
            *place = depth.jobs;
        });
    }
    for oldest in oldest_ready(tx).await? {
        named(&mut pools, &oldest.pool, &mut |pool| {
            pool.oldest_ready = Some(oldest.run_at);
        });
    }
    for worker in workers::alive(tx, window).await? {
        for (name, slots) in worker.slots() {
            named(&mut pools, &name, &mut |pool| {
                // One that leaves is no place for work to come.
                pool.workers += i64::from(!worker.draining);
                pool.slots += if worker.draining { 0 } else { slots };
            });
        }
    }
    Ok(pools.into_values().collect())
}

/// One pool; `None` when nobody knows it.
///
/// # Errors
/// As every statement.
pub async fn overview(tx: &mut Tx<'_>, name: &str, window: Duration) -> Result<Option<Overview>> {
    Ok(list(tx, window).await?.into_iter().find(|pool| pool.pool == name))
}
