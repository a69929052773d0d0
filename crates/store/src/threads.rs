//! Threads: conversations whose state outlives their runs. Search is in [`search`], checkpoints are in
//! [`crate::checkpoints`].

/// The expiry of a thread that is touched at `$now` with a time to live of `$minutes`. The databases differ in date
/// arithmetic.
macro_rules! expires {
    (sqlite: $now:literal, $minutes:literal) => {
        concat!(
            "CASE WHEN ",
            $minutes,
            " IS NULL THEN NULL ELSE ",
            $now,
            " + CAST(",
            $minutes,
            " * 60000000 AS INTEGER) END"
        )
    };
    (postgres: $now:literal, $minutes:literal) => {
        concat!(
            "CASE WHEN ",
            $minutes,
            " IS NULL THEN NULL ELSE ",
            $now,
            " + ",
            $minutes,
            " * interval '1 minute' END"
        )
    };
}

mod copy;
mod search;

use sqlx::FromRow;
use towpath_domain::agent::{ThreadStatus, TtlStrategy};
use towpath_domain::{TenantId, ThreadId, Timestamp};

use crate::error::Result;
use crate::tx::Tx;

pub use copy::copy;
pub use search::{Filter, Search, SortBy, ThreadRow, count, search};

/// A thread as it is stored. JSON columns are texts.
#[derive(Clone, Debug, FromRow)]
pub struct Thread {
    pub id: ThreadId,
    pub tenant_id: TenantId,
    pub status: ThreadStatus,
    pub metadata: String,
    pub config: String,
    pub current_values: Option<String>,
    pub interrupts: String,
    pub error: Option<String>,
    pub temporary: bool,
    pub ttl_strategy: Option<TtlStrategy>,
    pub ttl_minutes: Option<f64>,
    pub expires_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state_updated_at: Timestamp,
}

/// How long a thread lives after it was touched last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ttl {
    /// The action on expiry.
    pub strategy: TtlStrategy,
    /// How long, in minutes.
    pub minutes: f64,
}

impl Ttl {
    /// When it is over for a thread touched at `now`.
    #[must_use]
    pub fn expires(self, now: Timestamp) -> Timestamp {
        let seconds = (self.minutes * 60.0).clamp(0.0, 1e10);
        now.plus(std::time::Duration::from_secs_f64(seconds))
    }
}

/// A thread about to be recorded.
#[derive(Clone, Debug)]
pub struct NewThread<'a> {
    /// Its id, the caller's or ours.
    pub id: ThreadId,
    /// JSON object.
    pub metadata: &'a str,
    /// JSON object.
    pub config: &'a str,
    /// The initial status.
    pub status: ThreadStatus,
    /// It belongs to one run and goes with it.
    pub temporary: bool,
    /// How long it lives.
    pub ttl: Option<Ttl>,
}

/// # Errors
/// [`Error::Conflict`](crate::Error::Conflict) if the id is taken, in any workspace.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewThread<'_>) -> Result<Thread> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO thread (id, tenant_id, status, metadata, config, temporary, ttl_strategy, ttl_minutes, expires_at,
                             created_at, updated_at, state_updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $10) RETURNING ",
        columns!(thread)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.status)
    .bind(new.metadata)
    .bind(new.config)
    .bind(new.temporary)
    .bind(new.ttl.map(|ttl| ttl.strategy))
    .bind(new.ttl.map(|ttl| ttl.minutes))
    .bind(new.ttl.map(|ttl| ttl.expires(now)))
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Records a thread unless its id is taken. True when this call made it.
pub async fn insert_new(tx: &mut Tx<'_>, tenant: TenantId, new: &NewThread<'_>) -> Result<bool> {
    let now = tx.now();
    let made = on!(tx, |conn| {
        sqlx::query(
        "INSERT INTO thread (id, tenant_id, status, metadata, config, temporary, ttl_strategy, ttl_minutes, expires_at,
                             created_at, updated_at, state_updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $10) ON CONFLICT (id) DO NOTHING"
    )
    .bind(new.id)
    .bind(tenant)
    .bind(new.status)
    .bind(new.metadata)
    .bind(new.config)
    .bind(new.temporary)
    .bind(new.ttl.map(|ttl| ttl.strategy))
    .bind(new.ttl.map(|ttl| ttl.minutes))
    .bind(new.ttl.map(|ttl| ttl.expires(now)))
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    })?;
    Ok(made == 1)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<Thread> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(thread),
        " FROM thread WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Whether a thread is there.
pub async fn exists(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<bool> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM thread WHERE tenant_id = $1 AND id = $2)"
    )
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// One thread, locked until the transaction ends, for a change that depends on what it says.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<Thread> {
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(thread), " FROM thread WHERE tenant_id = $1 AND id = $2"),
        postgres: concat!("SELECT ", columns!(thread), " FROM thread WHERE tenant_id = $1 AND id = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

macro_rules! update_text {
    ($expires:expr) => {
        concat!(
            "UPDATE thread SET metadata = $3, ttl_strategy = coalesce($4, ttl_strategy),
                               ttl_minutes = coalesce($5, ttl_minutes), expires_at = ",
            $expires,
            ", updated_at = $6
             WHERE tenant_id = $1 AND id = $2 RETURNING ",
            columns!(thread)
        )
    };
}

/// Writes a thread's metadata, and its time to live if given. Restarts its time to live.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: ThreadId,
    metadata: &str,
    ttl: Option<Ttl>,
) -> Result<Thread> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: update_text!(expires!(sqlite: "$6", "coalesce($5, ttl_minutes)")),
        postgres: update_text!(expires!(postgres: "$6", "coalesce($5, ttl_minutes)")));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .bind(metadata)
        .bind(ttl.map(|ttl| ttl.strategy))
        .bind(ttl.map(|ttl| ttl.minutes))
        .bind(now)
        .fetch_one(conn)
        .await)?)
}

macro_rules! busy_text {
    ($expires:expr) => {
        concat!(
            "UPDATE thread SET rest_status = CASE WHEN status = 'busy' THEN rest_status ELSE status END,
                               status = 'busy', metadata = $3, config = $4, expires_at = ",
            $expires,
            ", updated_at = $5 WHERE tenant_id = $1 AND id = $2"
        )
    };
}

/// A run was recorded on the thread: it becomes busy, with this metadata and config. Restarts its time to live.
pub async fn busy(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId, metadata: &str, config: &str) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: busy_text!(expires!(sqlite: "$5", "ttl_minutes")),
        postgres: busy_text!(expires!(postgres: "$5", "ttl_minutes")));
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id)
        .bind(metadata)
        .bind(config)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The outcome of a run for its thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadOutcome<'a> {
    /// Its state and interrupts (JSON) after the last checkpoint; absent: as they were.
    pub state: Option<(&'a str, &'a str)>,
    /// The error (JSON) of the run, absent when there was none.
    pub error: Option<&'a str>,
}

macro_rules! settle_text {
    ($expires:expr) => {
        concat!(
            "UPDATE thread SET status = CASE WHEN EXISTS (SELECT 1 FROM run WHERE tenant_id = $1 AND thread_id = $2
                                                          AND status = 'pending') THEN 'busy' ELSE $3 END,
                               rest_status = $3,
                               current_values = coalesce($4, current_values),
                               interrupts = coalesce($5, interrupts),
                               error = $6,
                               state_updated_at = CASE WHEN $4 IS NULL THEN state_updated_at ELSE $7 END,
                               expires_at = ",
            $expires,
            ", updated_at = $7 WHERE tenant_id = $1 AND id = $2"
        )
    };
}

/// A run of the thread ended. The thread stays busy while others are open, else it takes `status`. Restarts its time to
/// live.
pub async fn settle(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: ThreadId,
    status: ThreadStatus,
    left: &ThreadOutcome<'_>,
) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: settle_text!(expires!(sqlite: "$7", "ttl_minutes")),
        postgres: settle_text!(expires!(postgres: "$7", "ttl_minutes")));
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id)
        .bind(status)
        .bind(left.state.map(|state| state.0))
        .bind(left.state.map(|state| state.1))
        .bind(left.error)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

macro_rules! settle_untouched_text {
    ($expires:expr) => {
        concat!(
            // Before the first run of a newer version only its interrupts say where it stood.
            "UPDATE thread SET status = CASE WHEN EXISTS (SELECT 1 FROM run WHERE tenant_id = $1 AND thread_id = $2
                                                          AND status = 'pending') THEN 'busy'
                                        ELSE coalesce(rest_status, CASE WHEN interrupts = '{}' THEN 'idle'
                                                                        ELSE 'interrupted' END) END,
                               expires_at = ",
            $expires,
            ", updated_at = $3 WHERE tenant_id = $1 AND id = $2"
        )
    };
}

/// A run of the thread was rolled back, or ended before it began: as [`settle`], with the state, error and status from
/// before the run.
pub async fn settle_untouched(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: settle_untouched_text!(expires!(sqlite: "$3", "ttl_minutes")),
        postgres: settle_untouched_text!(expires!(postgres: "$3", "ttl_minutes")));
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

macro_rules! state_text {
    ($expires:expr) => {
        concat!(
            "UPDATE thread SET status = $3, current_values = $4, interrupts = $5, error = NULL, state_updated_at = $6,
                               expires_at = ",
            $expires,
            ", updated_at = $6 WHERE tenant_id = $1 AND id = $2"
        )
    };
}

/// Writes a thread's state outside of a run: a caller updated it. Its time begins again.
pub async fn set_state(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: ThreadId,
    status: ThreadStatus,
    values: &str,
    interrupts: &str,
) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: state_text!(expires!(sqlite: "$6", "ttl_minutes")),
        postgres: state_text!(expires!(postgres: "$6", "ttl_minutes")));
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id)
        .bind(status)
        .bind(values)
        .bind(interrupts)
        .bind(now)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if changed == 0 {
        return Err(crate::Error::NotFound);
    }
    Ok(())
}

/// Deletes a thread with its runs, crons, events and checkpoints. The caller has ended its jobs.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<()> {
    if !delete_bare(tx, tenant, id).await? {
        return Err(crate::Error::NotFound);
    }
    // A caller that makes a thread of the same id again must not read what this one streamed.
    crate::run_events::delete_thread_log(tx, tenant, id).await?;
    crate::checkpoints::delete_all(tx, id).await
}

/// Deletes a thread that never had a checkpoint, with its runs. True when it was there.
pub async fn delete_bare(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<bool> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM thread WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(gone == 1)
}

/// Threads that changed after `since`, longest unchanged first, for the sweep of checkpoints.
pub async fn changed(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    since: (Timestamp, ThreadId),
    limit: i64,
) -> Result<Vec<(ThreadId, Timestamp)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, updated_at FROM thread WHERE tenant_id = $1 AND (updated_at, id) > ($2, $3)
         ORDER BY updated_at, id LIMIT $4 + 0"
    )
    .bind(tenant)
    .bind(since.0)
    .bind(since.1)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Threads whose time to live is over, with what is to happen; busy ones are left for later.
pub async fn expired(tx: &mut Tx<'_>, tenant: TenantId, limit: i64) -> Result<Vec<(ThreadId, TtlStrategy)>> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, ttl_strategy FROM thread
         WHERE expires_at < $2 AND tenant_id = $1 AND ttl_strategy IS NOT NULL AND status <> 'busy'
         ORDER BY expires_at LIMIT $3 + 0"
    )
    .bind(tenant)
    .bind(now)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Removes the expiry of an expired thread that was reduced to its latest checkpoint, until it is touched again.
pub async fn clear_expiry(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE thread SET expires_at = NULL WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
