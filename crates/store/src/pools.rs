//! Pools: pausing them, and how full they are.

use sqlx::FromRow;

use crate::error::Result;
use crate::tx::Tx;

/// Pauses or resumes a pool. A paused pool's jobs are not claimed; those at work go on.
///
/// # Errors
/// As every statement.
pub async fn pause(tx: &mut Tx<'_>, name: &str, paused: bool) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("INSERT INTO pool (name, paused) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET paused = $2")
            .bind(name)
            .bind(paused)
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
    pub run_at: towpath_domain::Timestamp,
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
