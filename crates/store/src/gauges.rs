//! Counts over the whole system, for metrics: numbers only, of no workspace in particular.

use sqlx::FromRow;
use towpath_domain::Timestamp;

use crate::error::Result;
use crate::tx::Tx;

/// Lanes with a job in them.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Lanes {
    /// All of them.
    pub open: i64,
    /// Those whose places are all taken.
    pub full_lanes: i64,
}

/// Counts lanes.
///
/// # Errors
/// As every statement.
pub async fn lanes(tx: &mut Tx<'_>) -> Result<Lanes> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT count(*) AS open, count(*) FILTER (WHERE held >= places) AS full_lanes FROM lane")
            .fetch_one(conn)
            .await
    })?)
}

/// Schedules that have not ended.
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
///
/// # Errors
/// As every statement.
pub async fn schedules(tx: &mut Tx<'_>) -> Result<Schedules> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT count(*) FILTER (WHERE NOT paused) AS active, count(*) FILTER (WHERE paused) AS paused,
                    min(next_at) FILTER (WHERE NOT paused) AS next_at
             FROM schedule WHERE ended_at IS NULL",
        )
        .fetch_one(conn)
        .await
    })?)
}

/// Units of the write-ahead log that wait to be folded.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct OpenUnits {
    /// How many.
    pub units: i64,
    /// When the oldest was accepted.
    pub oldest_at: Option<Timestamp>,
}

/// Counts open units.
///
/// # Errors
/// As every statement.
pub async fn open_units(tx: &mut Tx<'_>) -> Result<OpenUnits> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT count(*) AS units, min(created_at) AS oldest_at FROM wal_unit WHERE state = 'open'")
            .fetch_one(conn)
            .await
    })?)
}

/// Accepted trace data that could not be folded.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Quarantine {
    /// Entries.
    pub entries: i64,
    /// Operations, feedback and attachments in them.
    pub items: i64,
    /// Bytes of their frames.
    pub bytes: i64,
}

/// Adds up what is in quarantine.
///
/// # Errors
/// As every statement.
pub async fn quarantine(tx: &mut Tx<'_>) -> Result<Quarantine> {
    Ok(on!(tx, |conn| {
        // SUM of bigint is numeric on PostgreSQL.
        sqlx::query_as(
            "SELECT COUNT(*) AS entries, CAST(COALESCE(SUM(items), 0) AS bigint) AS items,
                    CAST(COALESCE(SUM(bytes), 0) AS bigint) AS bytes
             FROM quarantine",
        )
        .fetch_one(conn)
        .await
    })?)
}

/// A pool that somebody paused or resumed once.
#[derive(Clone, Debug, FromRow)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Whether it is paused now.
    pub paused: bool,
    /// Whether it was paused to get empty.
    pub draining: bool,
}

/// Pools that were ever paused.
///
/// # Errors
/// As every statement.
pub async fn pools(tx: &mut Tx<'_>) -> Result<Vec<Pool>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT name, paused, draining FROM pool ORDER BY name")
            .fetch_all(conn)
            .await
    })?)
}
