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

/// No number of a queue counts more jobs than these: there are so many, or more. Counting a backlog of a million every few
/// seconds would cost as much as working it off.
pub const COUNTED: i64 = 10_000;

/// Tenants of a pool that are asked for their oldest job.
const TENANTS: i64 = 1_000;

/// How many open jobs of a pool are in a state.
#[derive(Clone, Debug, FromRow)]
pub struct Depth {
    /// Pool.
    pub pool: String,
    /// State.
    pub state: String,
    /// Jobs, see [`depths`].
    pub jobs: i64,
}

/// Counts the open jobs by pool and state, up to a bound: ready ones up to [`COUNTED`] in each pool; scheduled and waiting
/// ones, and those in lanes for the blocked ones among them, up to [`COUNTED`] in all pools together. Running jobs are all
/// counted: there are no more than slots.
///
/// # Errors
/// As every statement.
pub async fn depths(tx: &mut Tx<'_>) -> Result<Vec<Depth>> {
    Ok(on!(tx, |conn| {
        // From pool to pool in the index of ready jobs, past those that are not counted.
        sqlx::query_as(
            "WITH RECURSIVE served(pool) AS (
                 SELECT (SELECT j.pool FROM job j WHERE j.state = 'ready' ORDER BY j.pool LIMIT 1)
                 UNION ALL
                 SELECT (SELECT j.pool FROM job j WHERE j.state = 'ready' AND j.pool > served.pool ORDER BY j.pool LIMIT 1)
                 FROM served WHERE served.pool IS NOT NULL
             )
             SELECT pool, 'ready' AS state,
                    (SELECT count(*) FROM (SELECT 1 FROM job j WHERE j.state = 'ready' AND j.pool = served.pool
                                           LIMIT $1 + 0) found) AS jobs
             FROM served WHERE pool IS NOT NULL
             UNION ALL
             SELECT pool, state, count(*) FROM (SELECT pool, state FROM job WHERE state = 'scheduled' LIMIT $1 + 0) found
             GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*)
             FROM (SELECT pool, state FROM job WHERE lane IS NOT NULL AND finished_at IS NULL LIMIT $1 + 0) found
             WHERE state = 'blocked' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM job WHERE state = 'running' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM (SELECT pool, state FROM job WHERE state = 'waiting' LIMIT $1 + 0) found
             GROUP BY pool, state",
        )
        .bind(COUNTED)
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

/// The oldest ready job of each pool that has one; of a pool with very many tenants, the oldest of the first thousand.
///
/// # Errors
/// As every statement.
pub async fn oldest_ready(tx: &mut Tx<'_>) -> Result<Vec<Oldest>> {
    Ok(on!(tx, |conn| {
        // In the index of ready jobs the first of each tenant and priority is the oldest of these. So it goes from one
        // such first job to the next, past all between them.
        sqlx::query_as(
            "WITH RECURSIVE head(nth, pool, tenant_id, priority, run_at) AS (
                 SELECT * FROM (SELECT 1, j.pool, j.tenant_id, j.priority, j.run_at FROM job j WHERE j.state = 'ready'
                                ORDER BY j.pool, j.tenant_id, j.priority DESC, j.run_at, j.id LIMIT 1) found
                 UNION ALL
                 SELECT CASE WHEN j.pool = head.pool THEN head.nth + 1 ELSE 1 END, j.pool, j.tenant_id, j.priority, j.run_at
                 FROM head JOIN job j ON j.id = coalesce(
                     CASE WHEN head.nth < $1 THEN coalesce(
                         (SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool = head.pool
                          AND i.tenant_id = head.tenant_id AND i.priority < head.priority
                          ORDER BY i.priority DESC, i.run_at, i.id LIMIT 1),
                         (SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool = head.pool
                          AND i.tenant_id > head.tenant_id
                          ORDER BY i.tenant_id, i.priority DESC, i.run_at, i.id LIMIT 1)) END,
                     (SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool > head.pool
                      ORDER BY i.pool, i.tenant_id, i.priority DESC, i.run_at, i.id LIMIT 1))
             )
             SELECT pool, min(run_at) AS run_at FROM head GROUP BY pool",
        )
        .bind(TENANTS)
        .fetch_all(conn)
        .await
    })?)
}

/// A pool as operators see it. Of jobs that wait, no more are counted than [`depths`] counts.
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
