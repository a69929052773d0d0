//! Queue depth and age of pools. Runs every few seconds, so all counts are bounded.

use sqlx::FromRow;
use towpath_domain::Timestamp;

use crate::error::Result;
use crate::tx::Tx;

/// Counts stop here and then mean "at least". Counting a backlog of a million every few seconds would cost as much as
/// processing it.
pub const COUNTED: i64 = 10_000;

/// Tenants of a pool that are asked for their oldest job.
const TENANTS: i64 = 1_000;

/// How many open jobs of a pool are in a state.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Depth {
    pub pool: String,
    pub state: String,
    /// Jobs, see [`depths`].
    pub jobs: i64,
}

/// The condition for a suspect that could be claimed now: `scheduled` in its row, but ready for readers of the queue
/// depth. `$2` is the time. The sum and the pool prevent the use of the index of all due jobs by `run_at` alone.
macro_rules! claimed_alone {
    (sqlite) => {
        "state = 'scheduled' AND lost_leases >= 2 AND pool >= '' AND +run_at <= $2 AND (lane IS NULL OR lane_held)"
    };
    (postgres) => {
        "state = 'scheduled' AND lost_leases >= 2 AND pool >= '' AND run_at + interval '0' <= (SELECT towpath_now($2)) \
         AND (lane IS NULL OR lane_held)"
    };
}

/// From pool to pool in the index of ready jobs, past those that are not counted.
macro_rules! depths_text {
    ($dialect:ident) => {
        concat!(
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
             SELECT pool, 'ready', count(*) FROM (SELECT pool FROM job WHERE ",
            claimed_alone!($dialect),
            " LIMIT $1 + 0) found GROUP BY pool
             UNION ALL
             SELECT pool, 'scheduled', count(*) FROM (SELECT pool FROM job WHERE state = 'scheduled' AND NOT (",
            claimed_alone!($dialect),
            ") LIMIT $1 + 0) found GROUP BY pool
             UNION ALL
             SELECT pool, state, count(*)
             FROM (SELECT pool, state FROM job WHERE lane IS NOT NULL AND finished_at IS NULL LIMIT $1 + 0) found
             WHERE state = 'blocked' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM job WHERE state = 'running' GROUP BY pool, state
             UNION ALL
             SELECT pool, state, count(*) FROM (SELECT pool, state FROM job WHERE state = 'waiting' LIMIT $1 + 0) found
             GROUP BY pool, state"
        )
    };
}

/// Counts the open jobs by pool and state up to a bound: ready ones up to [`COUNTED`] per pool; scheduled, waiting and
/// blocked ones up to [`COUNTED`] over all pools. Running jobs are all counted, since slots bound them. A suspect stays
/// scheduled until it is claimed; once due it counts as ready.
pub async fn depths(tx: &mut Tx<'_>) -> Result<Vec<Depth>> {
    let now = tx.now_param();
    let text = sql!(tx, sqlite: depths_text!(sqlite), postgres: depths_text!(postgres));
    let counted: Vec<Depth> = on!(tx, |conn| {
        sqlx::query_as(text).bind(COUNTED).bind(now).fetch_all(conn).await
    })?;
    let mut depths: Vec<Depth> = Vec::with_capacity(counted.len());
    for depth in counted {
        let same = |known: &&mut Depth| known.pool == depth.pool && known.state == depth.state;
        match depths.iter_mut().find(same) {
            Some(known) => known.jobs += depth.jobs,
            None => depths.push(depth),
        }
    }
    Ok(depths)
}

/// As [`depths_text`], for the pool `$3`. What only an index over all pools can count is counted among the first of all
/// pools, as there.
macro_rules! depths_of_text {
    ($dialect:ident) => {
        concat!(
            "SELECT 'ready' AS state, count(*) AS jobs
             FROM (SELECT 1 FROM job WHERE state = 'ready' AND pool = $3 LIMIT $1 + 0) found
             UNION ALL
             SELECT 'ready', count(*) FROM (SELECT 1 FROM job WHERE ",
            claimed_alone!($dialect),
            " AND pool = $3 LIMIT $1 + 0) found
             UNION ALL
             SELECT 'scheduled', count(*) FROM (SELECT pool FROM job WHERE state = 'scheduled' AND NOT (",
            claimed_alone!($dialect),
            ") LIMIT $1 + 0) found WHERE pool = $3
             UNION ALL
             SELECT 'blocked', count(*)
             FROM (SELECT pool, state FROM job WHERE lane IS NOT NULL AND finished_at IS NULL LIMIT $1 + 0) found
             WHERE state = 'blocked' AND pool = $3
             UNION ALL
             SELECT 'running', count(*) FROM job WHERE state = 'running' AND pool = $3
             UNION ALL
             SELECT 'waiting', count(*) FROM (SELECT 1 FROM job WHERE state = 'waiting' AND pool = $3 LIMIT $1 + 0) found"
        )
    };
}

/// As [`depths`], for one pool. States without jobs are left out, and a state may come in two rows.
pub async fn depths_of(tx: &mut Tx<'_>, pool: &str) -> Result<Vec<Depth>> {
    let now = tx.now_param();
    let text = sql!(tx, sqlite: depths_of_text!(sqlite), postgres: depths_of_text!(postgres));
    let counted: Vec<(String, i64)> = on!(tx, |conn| {
        sqlx::query_as(text)
            .bind(COUNTED)
            .bind(now)
            .bind(pool)
            .fetch_all(conn)
            .await
    })?;
    let depths = counted.into_iter().filter(|(_, jobs)| *jobs > 0);
    Ok(depths
        .map(|(state, jobs)| Depth {
            pool: pool.to_owned(),
            state,
            jobs,
        })
        .collect())
}

/// The oldest job of a pool that a worker could claim.
#[derive(Clone, Debug, FromRow)]
pub struct Oldest {
    pub pool: String,
    /// When it was due.
    pub run_at: Timestamp,
}

/// Walks the index of ready jobs by tenant and priority: the first entry of each is its oldest.
macro_rules! oldest_text {
    ($dialect:ident) => {
        concat!(
            "WITH RECURSIVE head(nth, pool, tenant_id, priority, run_at) AS (
                 SELECT nth, pool, tenant_id, priority, run_at
                 FROM (SELECT 1 AS nth, j.pool, j.tenant_id, j.priority, j.run_at FROM job j WHERE j.state = 'ready'
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
             SELECT pool, min(run_at) AS run_at FROM (
                 SELECT pool, run_at FROM head
                 UNION ALL
                 SELECT pool, run_at FROM (SELECT pool, run_at FROM job WHERE ",
            claimed_alone!($dialect),
            " LIMIT $3 + 0) alone
             ) oldest GROUP BY pool"
        )
    };
}

/// The oldest claimable job of each pool; with very many tenants, the oldest of the first thousand.
pub async fn oldest_ready(tx: &mut Tx<'_>) -> Result<Vec<Oldest>> {
    let now = tx.now_param();
    let text = sql!(tx, sqlite: oldest_text!(sqlite), postgres: oldest_text!(postgres));
    Ok(on!(tx, |conn| {
        sqlx::query_as(text)
            .bind(TENANTS)
            .bind(now)
            .bind(COUNTED)
            .fetch_all(conn)
            .await
    })?)
}

/// As [`oldest_text`], of the pool `$4`.
macro_rules! oldest_of_text {
    ($dialect:ident) => {
        concat!(
            "WITH RECURSIVE head(nth, tenant_id, priority, run_at) AS (
                 SELECT nth, tenant_id, priority, run_at
                 FROM (SELECT 1 AS nth, j.tenant_id, j.priority, j.run_at FROM job j WHERE j.state = 'ready' AND j.pool = $4
                       ORDER BY j.tenant_id, j.priority DESC, j.run_at, j.id LIMIT 1) found
                 UNION ALL
                 SELECT head.nth + 1, j.tenant_id, j.priority, j.run_at
                 FROM head JOIN job j ON j.id = CASE WHEN head.nth < $1 THEN coalesce(
                     (SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool = $4
                      AND i.tenant_id = head.tenant_id AND i.priority < head.priority
                      ORDER BY i.priority DESC, i.run_at, i.id LIMIT 1),
                     (SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool = $4 AND i.tenant_id > head.tenant_id
                      ORDER BY i.tenant_id, i.priority DESC, i.run_at, i.id LIMIT 1)) END
             )
             SELECT run_at FROM (
                 SELECT run_at FROM head
                 UNION ALL
                 SELECT run_at FROM (SELECT run_at FROM job WHERE ",
            claimed_alone!($dialect),
            " AND pool = $4 LIMIT $3 + 0) alone
             ) oldest ORDER BY run_at LIMIT 1"
        )
    };
}

/// When the oldest job of one pool was due that a worker could claim, as [`oldest_ready`] says.
pub async fn oldest_ready_of(tx: &mut Tx<'_>, pool: &str) -> Result<Option<Timestamp>> {
    let now = tx.now_param();
    let text = sql!(tx, sqlite: oldest_of_text!(sqlite), postgres: oldest_of_text!(postgres));
    Ok(on!(tx, |conn| {
        sqlx::query_scalar(text)
            .bind(TENANTS)
            .bind(now)
            .bind(COUNTED)
            .bind(pool)
            .fetch_optional(conn)
            .await
    })?)
}
