//! Worker processes: who is there, and who should stop claiming.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::FromRow;
use towpath_domain::{Timestamp, WorkerId};

use crate::error::Result;
use crate::tx::Tx;

/// A worker process.
#[derive(Clone, Debug, FromRow)]
pub struct Worker {
    /// One life of the process.
    pub id: WorkerId,
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: i64,
    /// JSON: pool name to slots.
    pub pools: String,
    /// Version of the program.
    pub version: String,
    /// Claims nothing more.
    pub draining: bool,
    /// Start of this life.
    pub started_at: Timestamp,
    /// Last sign of life, by the database's clock.
    pub seen_at: Timestamp,
    /// JSON: pool name to the attempts that ended here, in this life.
    pub finished: String,
    /// When it was asked to drain, by the database's clock. It is told at its next heartbeat.
    pub drain_at: Option<Timestamp>,
}

/// A worker not seen for this long is not there: three renewals of the default lease.
pub const HEARTBEAT_WINDOW: Duration = Duration::from_secs(15);

impl Worker {
    /// Whether it claims nothing more, and knows it.
    #[must_use]
    pub fn has_stopped_claiming(&self) -> bool {
        self.draining && self.drain_at.is_none_or(|asked| self.seen_at > asked)
    }

    /// Its pools, with the jobs it may have at work in each.
    #[must_use]
    pub fn slots(&self) -> BTreeMap<String, i64> {
        // Written by us; what a newer version may write there counts as nothing rather than as an error.
        serde_json::from_str(&self.pools).unwrap_or_default()
    }
}

/// Every worker that has not left, newest first; also those not seen for a while.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<Worker>> {
    let text = concat!("SELECT ", columns!(worker), " FROM worker ORDER BY id DESC");
    Ok(on!(tx, |conn| sqlx::query_as(text).fetch_all(conn).await)?)
}

/// Records a worker, or that it is alive. Returns whether an operator asked it to drain and has not resumed it.
pub async fn heartbeat(tx: &mut Tx<'_>, worker: &Worker) -> Result<bool> {
    let now = tx.now_param();
    let text = sql!(tx,
        sqlite: "INSERT INTO worker (id, host, pid, pools, version, draining, started_at, seen_at, finished)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                 ON CONFLICT (id) DO UPDATE SET seen_at = $8, finished = $9 RETURNING draining",
        postgres: "INSERT INTO worker (id, host, pid, pools, version, draining, started_at, seen_at, finished)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, towpath_now($8), $9)
                   ON CONFLICT (id) DO UPDATE SET seen_at = towpath_now($8), finished = $9 RETURNING draining");
    // Reads all rows: with SQLite's driver, a single row would be returned even if the commit after it fails.
    let draining: Vec<bool> = on!(tx, |conn| {
        sqlx::query_scalar(text)
            .bind(worker.id)
            .bind(&worker.host)
            .bind(worker.pid)
            .bind(&worker.pools)
            .bind(&worker.version)
            .bind(worker.draining)
            .bind(worker.started_at)
            .bind(now)
            .bind(&worker.finished)
            .fetch_all(conn)
            .await
    })?;
    Ok(draining.contains(&true))
}

/// Asks a worker to stop claiming. Returns whether there is one.
pub async fn drain(tx: &mut Tx<'_>, worker: WorkerId) -> Result<bool> {
    let now = tx.now_param();
    let text = sql!(tx,
        sqlite: "UPDATE worker SET draining = 1, drain_at = coalesce(drain_at, $2) WHERE id = $1",
        postgres: "UPDATE worker SET draining = true, drain_at = coalesce(drain_at, towpath_now($2)) WHERE id = $1");
    Ok(on!(tx, |conn| {
        sqlx::query(text)
            .bind(worker)
            .bind(now)
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    })? > 0)
}

/// Ends a drain: the worker claims again from its next heartbeat. Returns whether there is one.
pub async fn resume(tx: &mut Tx<'_>, worker: WorkerId) -> Result<bool> {
    let text = sql!(tx,
        sqlite: "UPDATE worker SET draining = 0, drain_at = NULL WHERE id = $1",
        postgres: "UPDATE worker SET draining = false, drain_at = NULL WHERE id = $1");
    Ok(on!(tx, |conn| {
        sqlx::query(text)
            .bind(worker)
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    })? > 0)
}

/// Pools of which operators drained every worker seen within `window`, by name. Their jobs wait until one is resumed.
pub async fn drained_pools(tx: &mut Tx<'_>, window: Duration) -> Result<Vec<String>> {
    let mut pools: BTreeMap<String, bool> = BTreeMap::new();
    for worker in alive(tx, window).await? {
        for pool in worker.slots().into_keys() {
            *pools.entry(pool).or_insert(true) &= worker.draining;
        }
    }
    Ok(pools
        .into_iter()
        .filter_map(|(pool, drained)| drained.then_some(pool))
        .collect())
}

/// Workers seen within `window`.
pub async fn alive(tx: &mut Tx<'_>, window: Duration) -> Result<Vec<Worker>> {
    let now = tx.now_param();
    let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(worker), " FROM worker WHERE seen_at > $1 - $2 * 1000 ORDER BY id"),
        postgres: concat!(
            "SELECT ", columns!(worker), " FROM worker WHERE seen_at > towpath_now($1) - $2 * interval '1 millisecond' ORDER BY id"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(now)
        .bind(window_ms)
        .fetch_all(conn)
        .await)?)
}

/// A worker by its id.
pub async fn get(tx: &mut Tx<'_>, id: WorkerId) -> Result<Option<Worker>> {
    let text = concat!("SELECT ", columns!(worker), " FROM worker WHERE id = $1");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(id)
        .fetch_optional(conn)
        .await)?)
}

/// Removes workers that were silent for longer than `window`; how many.
pub async fn prune(tx: &mut Tx<'_>, window: Duration) -> Result<u64> {
    let now = tx.now_param();
    let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    let text = sql!(tx,
        sqlite: "DELETE FROM worker WHERE seen_at < $1 - $2 * 1000",
        postgres: "DELETE FROM worker WHERE seen_at < towpath_now($1) - $2 * interval '1 millisecond'");
    Ok(on!(tx, |conn| {
        sqlx::query(text)
            .bind(now)
            .bind(window_ms)
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    })?)
}

/// Removes a worker that continues under another id. Returns whether it was asked to drain; `None` without a row.
pub async fn replace(tx: &mut Tx<'_>, id: WorkerId) -> Result<Option<bool>> {
    let draining: Vec<bool> = on!(tx, |conn| {
        sqlx::query_scalar("DELETE FROM worker WHERE id = $1 RETURNING draining")
            .bind(id)
            .fetch_all(conn)
            .await
    })?;
    Ok(draining.first().copied())
}

/// Removes a worker that left, and those not seen since `before`.
pub async fn remove(tx: &mut Tx<'_>, id: WorkerId, before: Timestamp) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("DELETE FROM worker WHERE id = $1 OR seen_at < $2")
            .bind(id)
            .bind(before)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}
