//! Folded units, until their objects are gone.

use towpath_domain::{Timestamp, UnitId};

use crate::segments::id_list;
use crate::{Result, Tx};

/// A unit that was folded a while ago.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct FoldedUnit {
    /// The unit.
    pub id: UnitId,
    /// The object it lies in.
    pub path: String,
    /// Whether every unit of the object was folded before that time and none is in quarantine, so that the object may go.
    pub object_done: bool,
}

/// Units folded before this time, oldest first.
///
/// # Errors
/// Only what the database says.
pub async fn folded_before(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<FoldedUnit>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        // Not EXISTS, for which PostgreSQL may read the whole table once.
        "SELECT id, path, (SELECT o.seq FROM wal_unit o WHERE o.path = u.path
                           AND (o.state <> 'folded' OR o.folded_at >= $1) LIMIT 1) IS NULL
                 AND (SELECT q.bytes FROM quarantine q WHERE q.path = u.path LIMIT 1) IS NULL AS object_done
         FROM wal_unit u WHERE state = 'folded' AND folded_at < $1 ORDER BY folded_at LIMIT $2 + 0",
    )
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Forgets folded units. Those that are the last of their object are forgotten after it is gone. Open ones stay.
///
/// # Errors
/// Only what the database says.
pub async fn forget(tx: &mut Tx<'_>, units: &[UnitId]) -> Result<u64> {
    let text = sql!(tx,
        sqlite: "DELETE FROM wal_unit WHERE state = 'folded'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "DELETE FROM wal_unit WHERE state = 'folded'
                   AND id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    let ids = id_list(units.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query(text)
        .bind(ids)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

/// Bytes of the units that were folded since then and are not forgotten yet.
///
/// # Errors
/// Only what the database says.
pub async fn folded_bytes_since(tx: &mut Tx<'_>, since: Timestamp) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT CAST(COALESCE(SUM(bytes), 0) AS bigint) FROM wal_unit WHERE state = 'folded' AND folded_at > $1",
    )
    .bind(since)
    .fetch_one(conn)
    .await)?)
}
