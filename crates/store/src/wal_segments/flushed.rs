//! WAL segments that are on their way out, and objects that no row names.

use towpath_domain::{Timestamp, WalSegmentId};

use crate::segments::id_list;
use crate::{Result, Tx};

/// Whether a WAL segment or a quarantine entry names this object: resolves a commit whose answer was lost.
pub async fn is_object_referenced(tx: &mut Tx<'_>, path: &str) -> Result<bool> {
    let found: Option<i64> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT seq FROM wal_unit WHERE path = $1 UNION ALL SELECT bytes FROM quarantine WHERE path = $1 LIMIT 1"
    )
    .bind(path)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// Those of these objects that a WAL segment, or what is in quarantine, names.
pub async fn referenced_objects(tx: &mut Tx<'_>, paths: &[String]) -> Result<Vec<String>> {
    let text = sql!(tx,
        sqlite: "SELECT given.value FROM json_each($1) AS given
                 WHERE (SELECT u.seq FROM wal_unit u WHERE u.path = given.value LIMIT 1) IS NOT NULL
                    OR (SELECT q.bytes FROM quarantine q WHERE q.path = given.value LIMIT 1) IS NOT NULL",
        // Not EXISTS, for which PostgreSQL may read the whole table once.
        postgres: "SELECT given.path FROM json_array_elements_text($1::json) AS given(path)
                   WHERE (SELECT u.seq FROM wal_unit u WHERE u.path = given.path LIMIT 1) IS NOT NULL
                      OR (SELECT q.bytes FROM quarantine q WHERE q.path = given.path LIMIT 1) IS NOT NULL");
    let paths = serde_json::to_string(paths).expect("texts are always JSON");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(paths)
        .fetch_all(conn)
        .await)?)
}

/// A WAL segment that was flushed a while ago.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct FlushedWalSegment {
    pub id: WalSegmentId,
    /// The object it is in.
    pub path: String,
    /// When it was flushed.
    pub folded_at: Timestamp,
    /// Whether every WAL segment of the object was flushed before that time and none is in quarantine, so that the
    /// object can be removed.
    pub object_done: bool,
}

/// The position of a scan of flushed WAL segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// When the last scanned WAL segment was flushed.
    pub folded_at: Timestamp,
    pub id: WalSegmentId,
}

impl Position {
    /// Before all of them.
    pub const START: Self = Self {
        folded_at: Timestamp::from_micros(0),
        id: WalSegmentId::nil(),
    };

    /// Behind a WAL segment.
    #[must_use]
    pub const fn of(unit: &FlushedWalSegment) -> Self {
        Self {
            folded_at: unit.folded_at,
            id: unit.id,
        }
    }
}

/// WAL segments behind `from` that were flushed before this time, oldest first.
pub async fn flushed_before(
    tx: &mut Tx<'_>,
    before: Timestamp,
    from: Position,
    limit: i64,
) -> Result<Vec<FlushedWalSegment>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        // Not EXISTS, for which PostgreSQL may read the whole table once.
        "SELECT id, path, folded_at, (SELECT o.seq FROM wal_unit o WHERE o.path = u.path
                           AND (o.state <> 'folded' OR o.folded_at >= $1) LIMIT 1) IS NULL
                 AND (SELECT q.bytes FROM quarantine q WHERE q.path = u.path LIMIT 1) IS NULL AS object_done
         FROM wal_unit u WHERE state = 'folded' AND folded_at < $1 AND (folded_at, id) > ($2, $3)
         ORDER BY folded_at, id LIMIT $4 + 0",
    )
    .bind(before)
    .bind(from.folded_at)
    .bind(from.id)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Deletes flushed WAL segments. The last rows of an object are deleted after it is removed. Open ones stay.
pub async fn forget(tx: &mut Tx<'_>, units: &[WalSegmentId]) -> Result<u64> {
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

/// How many WAL segments were flushed before this time; `most` means at least that many.
pub async fn count_flushed(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM wal_unit WHERE state = 'folded' AND folded_at < $1 LIMIT $2 + 0) found",
    )
    .bind(before)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}

/// Bytes of the WAL segments that were flushed since then and are not forgotten yet.
pub async fn flushed_bytes_since(tx: &mut Tx<'_>, since: Timestamp) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT CAST(COALESCE(SUM(bytes), 0) AS bigint) FROM wal_unit WHERE state = 'folded' AND folded_at > $1",
    )
    .bind(since)
    .fetch_one(conn)
    .await)?)
}
