//! Segments whose objects are to be removed.

use towpath_domain::{JobId, SegmentId, TenantId, Timestamp};

use super::Segment;
use crate::{Error, Result, Tx};

/// Moves intents that were not finished since `before` to `deleting`, so that their objects can be removed; their
/// writer can no longer publish them.
pub async fn abandon(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<Segment>> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE segment SET state = 'deleting', changed_at = $3 WHERE state = 'writing' AND id IN (
             SELECT id FROM segment WHERE state = 'writing' AND changed_at < $1 ORDER BY changed_at LIMIT $2 + 0)
         RETURNING ",
        columns!(segment)
    ),)
    .bind(before)
    .bind(limit)
    .bind(now)
    .fetch_all(conn)
    .await)?)
}

/// Takes the intents of `job`, which is over, as [`abandon`] takes old ones.
pub async fn abandon_of(tx: &mut Tx<'_>, job: JobId) -> Result<u64> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE segment SET state = 'deleting', changed_at = $2 WHERE state = 'writing' AND job = $1",
    )
    .bind(job)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Segments in `deleting` that are due for removal: their objects may still exist. Segments that were never published
/// only if abandoned before `abandoned`: until then their writer may be active, and an object written after its row is
/// gone would stay for ever.
pub async fn deleting(tx: &mut Tx<'_>, abandoned: Timestamp, limit: i64) -> Result<Vec<Segment>> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(segment),
        " FROM segment WHERE state = 'deleting' AND coalesce(remove_at, changed_at) <= $1
           AND (rows > 0 OR changed_at < $2)
         ORDER BY coalesce(remove_at, changed_at) LIMIT $3 + 0"
    ))
    .bind(now)
    .bind(abandoned)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Records that the object of a segment in `deleting` could not be removed; the next attempt is at `again`.
pub async fn put_off_removal(tx: &mut Tx<'_>, tenant: TenantId, id: SegmentId, again: Timestamp) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE segment SET removal_failures = removal_failures + 1, remove_at = $3
         WHERE tenant_id = $1 AND id = $2 AND state = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .bind(again)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes a segment whose object is gone.
///
/// # Errors
/// [`Error::Stale`] when it is not `deleting`.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId, id: SegmentId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM segment WHERE tenant_id = $1 AND id = $2 AND state = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(Error::Stale) }
}
