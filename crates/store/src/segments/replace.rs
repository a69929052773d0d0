//! Row groups that others replace, or that are deleted.

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use towpath_domain::{ProjectId, SegmentId, TenantId};

use super::{LocatedPart, Part, publish, waste};
use crate::segments::id_list;
use crate::{Error, Result, Tx, run_index};

/// Replaces the row groups `old`, all of one project, by `new` for readers. Holders of pins continue reading `old`.
/// `compacted` means that `old` is everything of each of its days. The result of indexed segments alone is indexed: its
/// rows are where they were.
///
/// # Errors
/// [`Error::Stale`] if one of `old` is no longer visible, or an intent of `new` was swept: discard this work.
pub async fn replace(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    old: &[LocatedPart],
    new: &[Replacement],
    compacted: bool,
) -> Result<()> {
    let mut segments: Vec<SegmentId> = old.iter().map(|placed| placed.part.segment_id).collect();
    segments.sort_unstable();
    segments.dedup();
    lock(tx, &segments).await?;
    let indexed = are_indexed(tx, &segments).await?;
    let given = part_list(old.iter().map(|placed| &placed.part));
    if retire(tx, &given).await? != old.len() as u64 {
        return Err(Error::Stale);
    }
    for segment in new {
        publish(tx, tenant, segment.id, segment.rows, segment.bytes, &segment.parts).await?;
        on!(tx, |conn| sqlx::query(
            "UPDATE segment SET compacted = $3, indexed = $4, price_version = $5 WHERE tenant_id = $1 AND id = $2"
        )
        .bind(tenant)
        .bind(segment.id)
        .bind(compacted)
        .bind(indexed)
        .bind(segment.price_version)
        .execute(conn)
        .await
        .map(drop))?;
    }
    waste::supersede(tx, &segments).await
}

/// A segment that was written to replace others.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub id: SegmentId,
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// Its row groups.
    pub parts: Vec<Part>,
    /// The version of the prices by which its costs were computed.
    pub price_version: i64,
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

/// Moves the row groups of a [`part_list`] to the past, of segments that the caller has locked, and returns how many
/// were not there already.
async fn retire(tx: &mut Tx<'_>, given: &str) -> Result<u64> {
    macro_rules! copy_to_past {
        () => {
            concat!(
                "INSERT INTO segment_part_past (",
                columns!(segment_part),
                ") SELECT ",
                columns!(segment_part),
                " FROM segment_part WHERE (segment_id, row_group) IN "
            )
        };
    }
    macro_rules! delete_live {
        () => {
            "DELETE FROM segment_part WHERE (segment_id, row_group) IN "
        };
    }
    macro_rules! sqlite {
        () => {
            "(SELECT unhex(replace(value ->> 0, '-', '')), value ->> 1 FROM json_each($1))"
        };
    }
    macro_rules! postgres {
        () => {
            "(SELECT (value ->> 0)::uuid, (value ->> 1)::bigint FROM json_array_elements($1::json) AS given(value))"
        };
    }
    let copy = sql!(tx, sqlite: concat!(copy_to_past!(), sqlite!()), postgres: concat!(copy_to_past!(), postgres!()));
    let moved = on!(tx, |conn| sqlx::query(copy)
        .bind(given)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    let remove = sql!(tx, sqlite: concat!(delete_live!(), sqlite!()), postgres: concat!(delete_live!(), postgres!()));
    let gone = on!(tx, |conn| sqlx::query(remove)
        .bind(given)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if moved == gone { Ok(moved) } else { Err(Error::Stale) }
}

/// Those of the segments of which row groups were replaced or deleted.
pub async fn partly_replaced(tx: &mut Tx<'_>, segments: &[SegmentId]) -> Result<Vec<SegmentId>> {
    let text = sql!(tx,
        sqlite: "SELECT DISTINCT segment_id FROM segment_part_past
                 WHERE segment_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "SELECT DISTINCT segment_id FROM segment_part_past
                   WHERE segment_id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(id_list(segments.iter().map(|id| id.0)))
        .fetch_all(conn)
        .await)?)
}

/// Row groups as text that both databases take apart.
fn part_list<'a>(parts: impl Iterator<Item = &'a Part>) -> String {
    let parts: Vec<(String, i64)> = parts
        .map(|part| (part.segment_id.0.to_string(), part.row_group))
        .collect();
    serde_json::to_string(&parts).expect("texts and numbers are always JSON")
}

/// A project and a day of which something is to be compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionCandidate {
    /// Its workspace.
    pub tenant_id: TenantId,
    pub project_id: ProjectId,
    /// The UTC day.
    pub day: NaiveDate,
}

/// Thresholds for compacting a day.
#[derive(Clone, Copy, Debug)]
pub struct CompactionThresholds {
    /// Days before this one are closed: nothing but late rows is still to come.
    pub open_from: NaiveDate,
    /// So many rows of a closed day that are in no compacted segment are enough.
    pub closed_rows: i64,
    /// So many segments of a closed day are enough.
    pub closed_segments: i64,
    /// So many segments of a day that is still open are enough.
    pub open_segments: i64,
}

/// A day worth compacting, with its statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatteredDay {
    /// The project and the day.
    pub candidate: CompactionCandidate,
    pub segments: i64,
    /// Its rows, each as often as a segment has a part of it.
    pub rows: i64,
}

/// The result of one step of a scan of the days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionScan {
    /// Days worth compacting.
    pub candidates: Vec<ScatteredDay>,
    /// The last scanned day; absent when there is none behind it.
    pub last: Option<CompactionCandidate>,
}

/// Row groups of a project and a day.
#[derive(sqlx::FromRow)]
struct DayStatistics {
    tenant_id: TenantId,
    project_id: ProjectId,
    day: NaiveDate,
    parts: i64,
    segments: i64,
    rows: i64,
    /// Row groups that are in no compacted segment, and their rows.
    scattered: i64,
    scattered_rows: i64,
    /// Row groups that keep a segment alive of which others were replaced or deleted.
    torn: i64,
}

impl DayStatistics {
    const fn candidate(&self) -> CompactionCandidate {
        CompactionCandidate {
            tenant_id: self.tenant_id,
            project_id: self.project_id,
            day: self.day,
        }
    }

    fn needs_compaction(&self, worth: CompactionThresholds) -> bool {
        let closed =
            self.segments >= worth.closed_segments || self.scattered_rows >= worth.closed_rows || self.torn > 0;
        let is_open_worth = self.scattered > 0 && self.segments >= worth.open_segments;
        // Of a torn segment also what is compacted: else rows past their time stay in its object.
        is_open_worth || (self.day < worth.open_from && closed && (self.scattered > 0 || self.torn > 0))
    }
}

/// Scans the next days of all projects after `behind`, at most `limit` row groups, for days worth compacting: closed
/// days with rows outside a compacted segment, days in many segments, and segments kept alive by few row groups. The
/// cost of a step is constant.
pub async fn candidates(
    tx: &mut Tx<'_>,
    worth: CompactionThresholds,
    behind: Option<CompactionCandidate>,
    limit: i64,
) -> Result<CompactionScan> {
    let behind = behind.unwrap_or(CompactionCandidate {
        tenant_id: TenantId::nil(),
        project_id: ProjectId::nil(),
        day: NaiveDate::default(),
    });
    // Subqueries of one row, not joins, for which PostgreSQL may read the tables.
    let mut rows: Vec<DayStatistics> = on!(tx, |conn| sqlx::query_as(
        "SELECT tenant_id, project_id, day, COUNT(*) AS parts, COUNT(DISTINCT segment_id) AS segments,
                CAST(SUM(rows) AS bigint) AS rows,
                CAST(SUM(CASE WHEN scattered THEN 1 ELSE 0 END) AS bigint) AS scattered,
                CAST(SUM(CASE WHEN scattered THEN rows ELSE 0 END) AS bigint) AS scattered_rows,
                CAST(SUM(CASE WHEN torn THEN 1 ELSE 0 END) AS bigint) AS torn
         FROM (SELECT p.tenant_id, p.project_id, p.day, p.segment_id, p.rows,
                      (SELECT s.id FROM segment s WHERE s.id = p.segment_id AND s.state = 'live' AND NOT s.compacted)
                          IS NOT NULL AS scattered,
                      (SELECT o.row_group FROM segment_part_past o WHERE o.segment_id = p.segment_id LIMIT 1)
                          IS NOT NULL AS torn
               FROM segment_part p WHERE (p.tenant_id, p.project_id, p.day) > ($1, $2, $3)
               ORDER BY p.tenant_id, p.project_id, p.day LIMIT $4 + 0) seen
         GROUP BY tenant_id, project_id, day ORDER BY tenant_id, project_id, day",
    )
    .bind(behind.tenant_id)
    .bind(behind.project_id)
    .bind(behind.day)
    .bind(limit)
    .fetch_all(conn)
    .await)?;
    let is_cut = rows.iter().map(|row| row.parts).sum::<i64>() >= limit;
    // The last day may continue behind the limit. Alone it has more than enough anyway.
    if is_cut && rows.len() > 1 {
        rows.pop();
    }
    Ok(CompactionScan {
        last: rows.last().filter(|_| is_cut).map(DayStatistics::candidate),
        candidates: rows
            .iter()
            .filter(|row| row.needs_compaction(worth))
            .map(|row| ScatteredDay {
                candidate: row.candidate(),
                segments: row.segments,
                rows: row.rows,
            })
            .collect(),
    })
}

/// Hides row groups of deleted projects and of days before `keep_from`, at most `limit`, and returns how many. What
/// stays is not read.
pub async fn retire_dead(tx: &mut Tx<'_>, keep_from: Option<NaiveDate>, limit: i64) -> Result<u64> {
    let mut dead = of_deleted_projects(tx, limit).await?;
    if let Some(day) = keep_from
        && dead.is_empty()
    {
        dead = before(tx, day, limit).await?;
    }
    retire_all(tx, &dead).await
}

/// Visible row groups of deleted projects.
async fn of_deleted_projects(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Part>> {
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(p, segment_part), " FROM project_tombstone t CROSS JOIN segment_part p
                 WHERE p.tenant_id = t.tenant_id AND p.project_id = t.project_id LIMIT $1 + 0"),
        // LATERAL with a limit, because plans for joins read the table.
        postgres: concat!("SELECT ", columns!(p, segment_part), " FROM project_tombstone t CROSS JOIN LATERAL (
                       SELECT ", columns!(o, segment_part), " FROM segment_part o
                       WHERE o.tenant_id = t.tenant_id AND o.project_id = t.project_id
                       LIMIT $1 + 0) p
                   LIMIT $1 + 0"));
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(limit).fetch_all(conn).await)?)
}

/// Visible row groups of days before this one. Walks the index of days by workspace, skipping all that stays.
async fn before(tx: &mut Tx<'_>, day: NaiveDate, limit: i64) -> Result<Vec<Part>> {
    macro_rules! workspaces {
        () => {
            "WITH RECURSIVE workspace(id) AS (
                 SELECT (SELECT p.tenant_id FROM segment_part p ORDER BY p.tenant_id LIMIT 1)
                 UNION ALL
                 SELECT (SELECT p.tenant_id FROM segment_part p WHERE p.tenant_id > workspace.id
                         ORDER BY p.tenant_id LIMIT 1)
                 FROM workspace WHERE workspace.id IS NOT NULL
             ) "
        };
    }
    let text = sql!(tx,
        sqlite: concat!(workspaces!(),
                        "SELECT ", columns!(p, segment_part), " FROM workspace CROSS JOIN segment_part p
                         WHERE p.tenant_id = workspace.id AND p.day < $1 LIMIT $2 + 0"),
        postgres: concat!(workspaces!(),
                          "SELECT ", columns!(p, segment_part), " FROM workspace CROSS JOIN LATERAL (
                               SELECT ", columns!(o, segment_part), " FROM segment_part o
                               WHERE o.tenant_id = workspace.id AND o.day < $1
                               LIMIT $2 + 0) p
                           LIMIT $2 + 0"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(day)
        .bind(limit)
        .fetch_all(conn)
        .await)?)
}

/// Takes every row group of a project out of sight. How many those were.
pub async fn retire_project(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId) -> Result<u64> {
    let dead: Vec<Part> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(segment_part),
        " FROM segment_part WHERE tenant_id = $1 AND project_id = $2"
    ))
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
    // A compaction may have been faster; what it wrote is found the next time.
    let given = part_list(dead.iter());
    let retired = retire(tx, &given).await?;
    waste::supersede(tx, &segments).await?;
    let mut tenants: Vec<TenantId> = dead.iter().map(|part| part.tenant_id).collect();
    tenants.sort_unstable();
    tenants.dedup();
    run_index::supersede_unneeded(tx, &tenants).await?;
    Ok(retired)
}
