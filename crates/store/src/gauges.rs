//! System-wide counts for metrics.
//!
//! They run every few seconds, so none reads more than [`COUNTED`] rows; at that bound the count means "at least".

use sqlx::FromRow;
use towpath_domain::Timestamp;

use crate::error::Result;
use crate::pools::COUNTED;
use crate::tx::Tx;

#[derive(Clone, Copy, Debug, FromRow)]
pub struct Lanes {
    /// All of them, up to [`COUNTED`].
    pub open: i64,
    /// Those of them whose places are all taken.
    pub full_lanes: i64,
}

/// Counts lanes.
pub async fn lanes(tx: &mut Tx<'_>) -> Result<Lanes> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT count(*) AS open, count(*) FILTER (WHERE held >= places) AS full_lanes
             FROM (SELECT held, places FROM lane ORDER BY key LIMIT $1 + 0) found",
        )
        .bind(COUNTED)
        .fetch_one(conn)
        .await
    })?)
}

/// Schedules that have not ended, the most overdue first as far as they are counted.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Schedules {
    /// Those that spawn.
    pub active: i64,
    /// Those that do not until they are resumed.
    pub paused: i64,
    /// When the first of the active ones is due.
    pub next_at: Option<Timestamp>,
}

/// Counts schedules.
pub async fn schedules(tx: &mut Tx<'_>) -> Result<Schedules> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT count(*) FILTER (WHERE NOT paused) AS active, count(*) FILTER (WHERE paused) AS paused,
                    min(next_at) FILTER (WHERE NOT paused) AS next_at
             FROM (SELECT paused, next_at FROM schedule WHERE ended_at IS NULL ORDER BY next_at LIMIT $1 + 0) found",
        )
        .bind(COUNTED)
        .fetch_one(conn)
        .await
    })?)
}

/// WAL segments of the write-ahead log that wait to be flushed.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct OpenWalSegments {
    pub units: i64,
    /// When the oldest was accepted.
    pub oldest_at: Option<Timestamp>,
}

/// Counts open WAL segments.
pub async fn open_wal_segments(tx: &mut Tx<'_>) -> Result<OpenWalSegments> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT count(*) AS units, min(created_at) AS oldest_at
             FROM (SELECT created_at FROM wal_unit WHERE state = 'open' ORDER BY seq LIMIT $1 + 0) found",
        )
        .bind(COUNTED)
        .fetch_one(conn)
        .await
    })?)
}

/// Accepted trace data that could not be flushed.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Quarantine {
    pub entries: i64,
    /// Operations, feedback and attachments in them.
    pub items: i64,
    /// Bytes of their frames.
    pub bytes: i64,
}

/// Adds up what is in quarantine.
pub async fn quarantine(tx: &mut Tx<'_>) -> Result<Quarantine> {
    Ok(on!(tx, |conn| {
        // SUM of bigint is numeric on PostgreSQL.
        sqlx::query_as(
            "SELECT COUNT(*) AS entries, CAST(COALESCE(SUM(items), 0) AS bigint) AS items,
                    CAST(COALESCE(SUM(bytes), 0) AS bigint) AS bytes
             FROM (SELECT items, bytes FROM quarantine ORDER BY id LIMIT $1 + 0) found",
        )
        .bind(COUNTED)
        .fetch_one(conn)
        .await
    })?)
}

/// A pool that a caller paused or resumed once.
#[derive(Clone, Debug, FromRow)]
pub struct Pool {
    pub name: String,
    /// Whether it is paused now.
    pub paused: bool,
    /// Whether it was paused to get empty.
    pub draining: bool,
}

/// Pools that were ever paused.
pub async fn pools(tx: &mut Tx<'_>) -> Result<Vec<Pool>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT name, paused, draining FROM pool ORDER BY name")
            .fetch_all(conn)
            .await
    })?)
}
