//! Row groups that others take the place of, or that are deleted.

use chrono::NaiveDate;
use towpath_domain::{ProjectId, SegmentId, TenantId};

use super::{Part, PlacedPart, publish, waste};
use crate::segments::id_list;
use crate::{Error, Result, Tx, run_index};

/// Puts `new` in the place of the row groups `old`, all of one project and one day: from now on readers see the one
/// and not the others. Whoever has pinned those goes on reading them. `compacted` says that `old` is all there is of
/// that day. What comes of indexed segments alone is indexed: its rows lie where they lay.
///
/// # Errors
/// [`Error::Stale`] when one of `old` is not to be seen any more, or an intent of `new` was swept: this work counts for
/// nothing.
pub async fn replace(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    old: &[PlacedPart],
    new: &[Replacement],
    compacted: bool,
) -> Result<()> {
    let mut segments: Vec<SegmentId> = old.iter().map(|placed| placed.part.segment_id).collect();
    segments.sort_unstable();
    segments.dedup();
    lock(tx, &segments).await?;
    let indexed = are_indexed(tx, &segments).await?;
    for placed in old {
        if !retire(tx, &placed.part).await? {
            return Err(Error::Stale);
        }
    }
    for segment in new {
        publish(tx, tenant, segment.id, segment.rows, segment.bytes, &segment.parts).await?;
        on!(tx, |conn| sqlx::query(
            "UPDATE segment SET compacted = $3, indexed = $4 WHERE tenant_id = $1 AND id = $2"
        )
        .bind(tenant)
        .bind(segment.id)
        .bind(compacted)
        .bind(indexed)
        .execute(conn)
        .await
        .map(drop))?;
    }
    waste::supersede(tx, &segments).await
}

/// A segment that was written to take the place of others.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// The segment.
    pub id: SegmentId,
    /// Its rows.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// Its row groups.
    pub parts: Vec<Part>,
}

/// Who pins a segment has it locked for sharing until the pin is written.
async fn lock(tx: &mut Tx<'_>, segments: &[SegmentId]) -> Result<()> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM segment WHERE id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "SELECT id FROM segment WHERE id IN (SELECT value::uuid FROM json_array_elements_text($1::json))
                   ORDER BY id FOR UPDATE");
    let locked: Vec<SegmentId> = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(id_list(segments.iter().map(|id| id.0)))
        .fetch_all(conn)
        .await)?;
    if locked.len() == segments.len() {
        Ok(())
    } else {
        Err(Error::Stale)
    }
}

/// Whether all of these segments, which the caller has locked, are indexed.
async fn are_indexed(tx: &mut Tx<'_>, segments: &[SegmentId]) -> Result<bool> {
    let text = sql!(tx,
        sqlite: "SELECT NOT EXISTS (SELECT 1 FROM segment WHERE NOT indexed
                                      AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1)))",
        postgres: "SELECT NOT EXISTS (SELECT 1 FROM segment WHERE NOT indexed
                                        AND id IN (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(id_list(segments.iter().map(|id| id.0)))
        .fetch_one(conn)
        .await)?)
}

/// Moves a row group to the past. False when it is there already.
async fn retire(tx: &mut Tx<'_>, part: &Part) -> Result<bool> {
    let moved = on!(tx, |conn| sqlx::query(
        "INSERT INTO segment_part_past SELECT * FROM segment_part WHERE segment_id = $1 AND row_group = $2",
    )
    .bind(part.segment_id)
    .bind(part.row_group)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM segment_part WHERE segment_id = $1 AND row_group = $2"
    )
    .bind(part.segment_id)
    .bind(part.row_group)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(moved == 1 && gone == 1)
}

/// A project and a day of which something is to be compacted.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Candidate {
    /// Its workspace.
    pub tenant_id: TenantId,
    /// The project.
    pub project_id: ProjectId,
    /// The UTC day.
    pub day: NaiveDate,
}

/// What makes a day worth compacting.
#[derive(Clone, Copy, Debug)]
pub struct Worth {
    /// Days before this one are closed: nothing but late rows is still to come.
    pub open_from: NaiveDate,
    /// So many rows of a closed day that lie in no compacted segment are enough.
    pub closed_rows: i64,
    /// So many segments of a closed day are enough.
    pub closed_segments: i64,
    /// So many segments of a day that is still open are enough.
    pub open_segments: i64,
}

/// Days worth compacting, those of the most segments first: closed days of which rows lie outside of a compacted
/// segment, days in many segments, and what keeps segments alive of which other row groups were replaced or deleted.
///
/// # Errors
/// Only what the database says.
pub async fn candidates(tx: &mut Tx<'_>, worth: Worth, limit: i64) -> Result<Vec<Candidate>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT p.tenant_id, p.project_id, p.day FROM segment_part p JOIN segment s ON s.id = p.segment_id
         WHERE s.state = 'live'
         GROUP BY p.tenant_id, p.project_id, p.day
         HAVING SUM(CASE WHEN s.compacted THEN 0 ELSE 1 END) > 0 AND (
             COUNT(DISTINCT p.segment_id) >= $4
             OR (p.day < $1 AND (COUNT(DISTINCT p.segment_id) >= $3
                                 OR SUM(CASE WHEN s.compacted THEN 0 ELSE p.rows END) >= $2
                                 OR SUM(CASE WHEN EXISTS (SELECT 1 FROM segment_part_past o
                                                          WHERE o.segment_id = p.segment_id) THEN 1 ELSE 0 END) > 0)))
         ORDER BY COUNT(DISTINCT p.segment_id) DESC, p.day, p.project_id LIMIT $5 + 0",
    )
    .bind(worth.open_from)
    .bind(worth.closed_rows)
    .bind(worth.closed_segments)
    .bind(worth.open_segments)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Takes every row group of a deleted project out of sight, and of days before `keep_from`. How many those were.
/// At most `limit` at once.
///
/// # Errors
/// Only what the database says.
pub async fn retire_dead(tx: &mut Tx<'_>, keep_from: Option<NaiveDate>, limit: i64) -> Result<u64> {
    let dead: Vec<Part> = on!(tx, |conn| sqlx::query_as(
        "SELECT p.* FROM segment_part p
         WHERE ($1 IS NOT NULL AND p.day < $1)
            OR EXISTS (SELECT 1 FROM project_tombstone t
                       WHERE t.tenant_id = p.tenant_id AND t.project_id = p.project_id)
         LIMIT $2 + 0",
    )
    .bind(keep_from)
    .bind(limit)
    .fetch_all(conn)
    .await)?;
    retire_all(tx, &dead).await
}

/// Takes every row group of a project out of sight. How many those were.
///
/// # Errors
/// Only what the database says.
pub async fn retire_project(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId) -> Result<u64> {
    let dead: Vec<Part> = on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM segment_part WHERE tenant_id = $1 AND project_id = $2"
    )
    .bind(tenant)
    .bind(project)
    .fetch_all(conn)
    .await)?;
    retire_all(tx, &dead).await
}

async fn retire_all(tx: &mut Tx<'_>, dead: &[Part]) -> Result<u64> {
    let mut segments: Vec<SegmentId> = dead.iter().map(|part| part.segment_id).collect();
    segments.sort_unstable();
    segments.dedup();
    if segments.is_empty() {
        return Ok(0);
    }
    lock(tx, &segments).await?;
    let mut retired = 0;
    for part in dead {
        // A compaction may have been faster; what it wrote is found the next time.
        retired += u64::from(retire(tx, part).await?);
    }
    waste::supersede(tx, &segments).await?;
    let mut tenants: Vec<TenantId> = dead.iter().map(|part| part.tenant_id).collect();
    tenants.sort_unstable();
    tenants.dedup();
    run_index::supersede_needless(tx, &tenants).await?;
    Ok(retired)
}
