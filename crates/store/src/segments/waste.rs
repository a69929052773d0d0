//! Segments that nobody sees any more, on their way out.

use chrono::NaiveDate;
use towpath_domain::{SegmentId, TenantId, Timestamp};

use super::{Part, Segment, id_list};
use crate::{Result, Tx};

/// Those of `segments` that are live and none of whose row groups is seen become `superseded`. The caller has locked
/// them.
pub(super) async fn supersede(tx: &mut Tx<'_>, segments: &[SegmentId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
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

/// Takes segments that were superseded before `before` and are pinned by nobody: they are `deleting` afterwards, and
/// their objects may go. `before` must be longer ago than the longest query takes that reads without a pin.
///
/// # Errors
/// Only what the database says.
pub async fn collect(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<Segment>> {
    let now = tx.now();
    let lock = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM segment s WHERE state = 'superseded' AND changed_at < $1
                   AND NOT EXISTS (SELECT 1 FROM segment_pin h WHERE h.segment_id = s.id)
                 ORDER BY changed_at, id LIMIT $2 + 0",
        // A pin is only taken on what is live, so once the row is locked nobody new comes; those who came before
        // are looked for below, in a statement of its own.
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

/// Row groups of a segment on its way out whose trace runs are gone with it: of projects that were deleted, and of days
/// before `keep_from`. What else it held was put elsewhere.
///
/// # Errors
/// Only what the database says.
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
