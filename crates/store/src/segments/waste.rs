//! Segments that no one sees any more, on their way out.

use chrono::NaiveDate;
use towpath_domain::{SegmentId, TenantId, Timestamp};

use super::{Part, Segment, id_list};
use crate::{Result, Tx};

/// Supersedes those of `segments` that are live without visible row groups. The caller has locked them.
pub(super) async fn supersede(tx: &mut Tx<'_>, segments: &[SegmentId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: "UPDATE segment SET state = 'superseded', changed_at = $2
                 WHERE id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1)) AND state = 'live'
                   AND NOT EXISTS (SELECT 1 FROM segment_part p WHERE p.segment_id = segment.id)",
        postgres: "UPDATE segment SET state = 'superseded', changed_at = $2
                   WHERE id IN (SELECT value::uuid FROM json_array_elements_text($1::json)) AND state = 'live'
                     AND NOT EXISTS (SELECT 1 FROM segment_part p WHERE p.segment_id = segment.id)");
    on!(tx, |conn| sqlx::query(text)
        .bind(id_list(segments.iter().map(|id| id.0)))
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Moves segments that were superseded before `before` and are not pinned to `deleting`, so that their objects can be
/// removed. `before` must be longer ago than the longest query without a pin takes.
pub async fn collect(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<Segment>> {
    let now = tx.now();
    let lock = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM segment s WHERE state = 'superseded' AND changed_at < $1
                   AND NOT EXISTS (SELECT 1 FROM segment_pin h WHERE h.segment_id = s.id)
                 ORDER BY changed_at, id LIMIT $2 + 0",
        // Pins are only taken on live segments, so none is added once the row is locked; existing ones are checked
        // below, in a separate statement.
        postgres: "SELECT id FROM segment s WHERE state = 'superseded' AND changed_at < $1
                     AND NOT EXISTS (SELECT 1 FROM segment_pin h WHERE h.segment_id = s.id)
                   ORDER BY changed_at, id LIMIT $2 FOR UPDATE SKIP LOCKED");
    let ids: Vec<SegmentId> = on!(tx, |conn| sqlx::query_scalar(lock)
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let text = sql!(tx,
        sqlite: concat!("UPDATE segment SET state = 'deleting', changed_at = $2
                 WHERE id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1)) AND state = 'superseded'
                   AND NOT EXISTS (SELECT 1 FROM segment_pin h WHERE h.segment_id = segment.id) RETURNING ", columns!(segment)),
        postgres: concat!("UPDATE segment SET state = 'deleting', changed_at = $2
                   WHERE id IN (SELECT value::uuid FROM json_array_elements_text($1::json)) AND state = 'superseded'
                     AND NOT EXISTS (SELECT 1 FROM segment_pin h WHERE h.segment_id = segment.id) RETURNING ", columns!(segment)));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(id_list(ids.iter().map(|id| id.0)))
        .bind(now)
        .fetch_all(conn)
        .await)?)
}

/// Row groups of a segment about to be removed whose trace runs are gone with it: of deleted projects, and of days
/// before `keep_from`. Its other rows were moved elsewhere.
pub async fn dead_parts(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    segment: SegmentId,
    keep_from: Option<NaiveDate>,
) -> Result<Vec<Part>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(o, segment_part_past),
        " FROM segment_part_past o
         WHERE o.tenant_id = $1 AND o.segment_id = $2
           AND (($3 IS NOT NULL AND o.day < $3)
                OR EXISTS (SELECT 1 FROM project_tombstone t
                           WHERE t.tenant_id = o.tenant_id AND t.project_id = o.project_id))
         ORDER BY o.row_group"
    ),)
    .bind(tenant)
    .bind(segment)
    .bind(keep_from)
    .fetch_all(conn)
    .await)?)
}
