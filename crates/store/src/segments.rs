//! The catalog of segments: which Parquet objects there are, what each row group of them covers, and who reads them.
//!
//! ```text
//! writing ──► live ──► superseded ──► deleting ──► (row gone)
//!    └────────────────────────────────────▲   an intent whose writer is gone
//! ```
//! `segment_part` holds the row groups that readers see, `segment_part_past` those that only holders of a pin still
//! read: their rows are in a newer segment, or were deleted. A segment none of whose row groups is seen is superseded.
//! How row groups are replaced and removed is in [`replace`] and [`waste`], how many are pinned at once in [`pins`].

pub mod pins;
mod removal;
pub mod replace;
pub mod waste;

use chrono::NaiveDate;
use towpath_domain::{JobId, ProjectId, SegmentId, TenantId, Timestamp};
use uuid::Uuid;

pub use self::removal::{abandon, abandon_of, deleting, forget, put_off_removal};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Parts that one statement inserts. Databases bound how many values a statement binds.
const INSERTED: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum SegmentState {
    /// Intended; the object may or may not be there.
    Writing,
    /// Readers see it.
    Live,
    /// Its rows are in a newer segment; those who pinned it still read it.
    Superseded,
    /// Its object is being removed.
    Deleting,
}

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Segment {
    pub id: SegmentId,
    pub tenant_id: TenantId,
    /// Its object.
    pub path: String,
    pub state: SegmentState,
    /// The job that wrote it.
    pub job: Option<JobId>,
    /// Whether it is of one project, each of its days sorted from end to end.
    pub compacted: bool,
    /// Whether index files say where its rows are: see [`run_index`](crate::run_index).
    pub indexed: bool,
    pub rows: i64,
    /// Size of the object.
    pub bytes: i64,
    /// When it was intended.
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
    /// How often its object could not be removed.
    pub removal_failures: i64,
}

/// A row group: rows of one project and one UTC day, sorted by (sort time, id).
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Part {
    pub segment_id: SegmentId,
    pub tenant_id: TenantId,
    /// Project of all rows.
    pub project_id: ProjectId,
    /// UTC day of all rows' sort times.
    pub day: NaiveDate,
    /// Which row group of the file.
    pub row_group: i64,
    pub rows: i64,
    /// First sort time.
    pub min_sort_time: Timestamp,
    /// Last sort time.
    pub max_sort_time: Timestamp,
    /// Lowest sequence of an operation in it.
    pub min_seq: i64,
    /// Highest sequence of an operation in it.
    pub max_seq: i64,
}

/// What is read of a [`LocatedPart`], where `p` is the row group and `s` its segment.
macro_rules! placed {
    () => {
        concat!(
            columns!(p, segment_part),
            ", s.path, s.bytes, s.compacted, s.indexed, s.changed_at, s.price_version"
        )
    };
}

/// A part together with the object it is in.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct LocatedPart {
    #[sqlx(flatten)]
    pub part: Part,
    /// Path of the segment's object.
    pub path: String,
    /// Size of the segment's object.
    pub bytes: i64,
    /// Whether the segment is of one project, each of its days sorted from end to end.
    pub compacted: bool,
    /// Whether index files say where the segment's rows are.
    pub indexed: bool,
    /// Since when the segment is in its state; of a live one, since when it is there.
    pub changed_at: Timestamp,
    /// The [version](crate::model_prices::version) of the prices by which the costs in the segment were computed.
    pub price_version: i64,
}

/// Writes down that an object is going to be written, before it is.
pub async fn intend(tx: &mut Tx<'_>, tenant: TenantId, id: SegmentId, path: &str, job: Option<JobId>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO segment (id, tenant_id, path, state, job, created_at, changed_at)
         VALUES ($1, $2, $3, 'writing', $4, $5, $5)",
    )
    .bind(id)
    .bind(tenant)
    .bind(path)
    .bind(job)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Bytes of the segments of a workspace that readers see.
pub async fn live_bytes(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar(
            "SELECT CAST(coalesce(sum(bytes), 0) AS bigint) FROM segment WHERE tenant_id = $1 AND state = 'live'",
        )
        .bind(tenant)
        .fetch_one(conn)
        .await
    })?)
}

/// Publishes a segment whose object is on disk, with its parts.
///
/// # Errors
/// [`Error::Stale`] if it is not `writing`: its intent was swept, so its object may be gone.
pub async fn publish(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: SegmentId,
    rows: i64,
    bytes: i64,
    parts: &[Part],
) -> Result<()> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE segment SET state = 'live', rows = $3, bytes = $4, changed_at = $5
         WHERE tenant_id = $1 AND id = $2 AND state = 'writing'",
    )
    .bind(tenant)
    .bind(id)
    .bind(rows)
    .bind(bytes)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed != 1 {
        return Err(Error::Stale);
    }
    for parts in parts.chunks(INSERTED) {
        let mut insert = Query::new(
            tx,
            "INSERT INTO segment_part (segment_id, tenant_id, project_id, day, row_group, rows,
                                       min_sort_time, max_sort_time, min_seq, max_seq) VALUES ",
        );
        insert.rows(parts.iter().map(|part| {
            [
                Arg::Uuid(id.0),
                Arg::Uuid(tenant.0),
                Arg::Uuid(part.project_id.0),
                Arg::Date(part.day),
                Arg::Int(part.row_group),
                Arg::Int(part.rows),
                Arg::Time(part.min_sort_time),
                Arg::Time(part.max_sort_time),
                Arg::Int(part.min_seq),
                Arg::Int(part.max_seq),
            ]
        }));
        insert.execute(tx).await?;
    }
    Ok(())
}

/// Sets the version of the prices by which the costs in a new segment were computed.
pub async fn set_price_version(tx: &mut Tx<'_>, tenant: TenantId, id: SegmentId, version: i64) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE segment SET price_version = $3 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(version)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Live parts of a project from `first` to `last` day, both included, by day and then sort time.
pub async fn live_parts(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    first: NaiveDate,
    last: NaiveDate,
) -> Result<Vec<LocatedPart>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            placed!(),
            " FROM segment_part p JOIN segment s ON s.id = p.segment_id
             WHERE p.tenant_id = $1 AND p.project_id = $2 AND p.day BETWEEN $3 AND $4 AND s.state = 'live'
             ORDER BY p.day, p.min_sort_time, p.segment_id, p.row_group"
        ))
        .bind(tenant)
        .bind(project)
        .bind(first)
        .bind(last)
        .fetch_all(conn)
        .await
    })?)
}

/// Live parts of a project on some days, by day and then sort time.
pub async fn live_parts_on(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    days: &[NaiveDate],
) -> Result<Vec<LocatedPart>> {
    let text = sql!(tx,
        sqlite: concat!("SELECT ", placed!(), " FROM segment_part p JOIN segment s ON s.id = p.segment_id
                 WHERE p.tenant_id = $1 AND p.project_id = $2 AND p.day IN (SELECT value FROM json_each($3))
                   AND s.state = 'live'
                 ORDER BY p.day, p.min_sort_time, p.segment_id, p.row_group"),
        postgres: concat!("SELECT ", placed!(), " FROM segment_part p JOIN segment s ON s.id = p.segment_id
                   WHERE p.tenant_id = $1 AND p.project_id = $2
                     AND p.day = ANY (ARRAY (SELECT value::date FROM json_array_elements_text($3::json)))
                     AND s.state = 'live'
                   ORDER BY p.day, p.min_sort_time, p.segment_id, p.row_group"));
    let days: Vec<String> = days.iter().map(NaiveDate::to_string).collect();
    let days = serde_json::to_string(&days).expect("texts are always JSON");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(project)
        .bind(days)
        .fetch_all(conn)
        .await)?)
}

/// Days of a project from `first` to `last`, inclusive, with at least `rows` rows in uncompacted segments, first days
/// first, at most `limit`.
pub async fn scattered_days(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    (first, last): (NaiveDate, NaiveDate),
    rows: i64,
    limit: i64,
) -> Result<Vec<NaiveDate>> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar(
            "SELECT p.day FROM segment_part p JOIN segment s ON s.id = p.segment_id
             WHERE p.tenant_id = $1 AND p.project_id = $2 AND p.day BETWEEN $3 AND $4 AND s.state = 'live'
               AND NOT s.compacted
             GROUP BY p.day HAVING sum(p.rows) >= $5 ORDER BY p.day LIMIT $6 + 0",
        )
        .bind(tenant)
        .bind(project)
        .bind(first)
        .bind(last)
        .bind(rows)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?)
}

/// Live parts of some projects from `first` to `last` day, both included, in no particular order.
pub async fn live_parts_of(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    projects: &[ProjectId],
    first: NaiveDate,
    last: NaiveDate,
) -> Result<Vec<LocatedPart>> {
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: concat!("SELECT ", placed!(), " FROM segment_part p JOIN segment s ON s.id = p.segment_id
                 WHERE p.tenant_id = $1 AND p.project_id IN (SELECT unhex(value, '-') FROM json_each($2))
                   AND p.day BETWEEN $3 AND $4 AND s.state = 'live'"),
        postgres: concat!("SELECT ", placed!(), " FROM segment_part p JOIN segment s ON s.id = p.segment_id
                   WHERE p.tenant_id = $1
                     AND p.project_id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json)))
                     AND p.day BETWEEN $3 AND $4 AND s.state = 'live'"));
    let ids = id_list(projects.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .bind(first)
        .bind(last)
        .fetch_all(conn)
        .await)?)
}

/// Live parts of all projects of a workspace on one day.
pub async fn live_of_day(tx: &mut Tx<'_>, tenant: TenantId, day: NaiveDate) -> Result<Vec<LocatedPart>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            placed!(),
            " FROM segment_part p JOIN segment s ON s.id = p.segment_id
             WHERE p.tenant_id = $1 AND p.day = $2 AND s.state = 'live' ORDER BY p.segment_id, p.row_group"
        ))
        .bind(tenant)
        .bind(day)
        .fetch_all(conn)
        .await
    })?)
}

/// Live segments of a workspace, newest first, for the search for a trace run by id.
pub async fn live(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Segment>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(segment),
        " FROM segment WHERE tenant_id = $1 AND state = 'live' ORDER BY created_at DESC, id"
    ),)
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// Live segments of a workspace with rows from `first` to `last` day, both included, newest first.
pub async fn live_within(tx: &mut Tx<'_>, tenant: TenantId, first: NaiveDate, last: NaiveDate) -> Result<Vec<Segment>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(s, segment),
        " FROM segment s WHERE s.tenant_id = $1 AND s.state = 'live'
           AND EXISTS (SELECT 1 FROM segment_part p WHERE p.segment_id = s.id AND p.day BETWEEN $2 AND $3)
         ORDER BY s.created_at DESC, s.id"
    ),)
    .bind(tenant)
    .bind(first)
    .bind(last)
    .fetch_all(conn)
    .await)?)
}

/// The parts of one segment in the order of the file.
pub async fn parts(tx: &mut Tx<'_>, tenant: TenantId, id: SegmentId) -> Result<Vec<Part>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(segment_part),
        " FROM segment_part WHERE tenant_id = $1 AND segment_id = $2 ORDER BY row_group"
    ),)
    .bind(tenant)
    .bind(id)
    .fetch_all(conn)
    .await)?)
}

/// The parts of several segments of a workspace, those of one in the order of the file.
pub async fn parts_of(tx: &mut Tx<'_>, tenant: TenantId, segments: &[SegmentId]) -> Result<Vec<Part>> {
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: concat!("SELECT ", columns!(segment_part), " FROM segment_part WHERE tenant_id = $1
                   AND segment_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))
                 ORDER BY segment_id, row_group"),
        postgres: concat!("SELECT ", columns!(segment_part), " FROM segment_part WHERE tenant_id = $1
                     AND segment_id IN (SELECT value::uuid FROM json_array_elements_text($2::json))
                   ORDER BY segment_id, row_group"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id_list(segments.iter().map(|id| id.0)))
        .fetch_all(conn)
        .await)?)
}

/// Pins the live parts of a project from `first` to `last` day for `holder` and returns them. Until [`unpin`] the
/// holder reads exactly these, regardless of flushes, compaction and collection. Repeated calls return the first
/// result. A holder pins one day: of two, one could be replaced in a segment that the other keeps.
pub async fn pin(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    first: NaiveDate,
    last: NaiveDate,
    holder: Uuid,
) -> Result<Vec<LocatedPart>> {
    if pinned(tx, tenant, project, first, last, holder).await?.is_empty() {
        for segment in pins::lock_live(tx, tenant, project, first, last).await? {
            let now = tx.now();
            on!(tx, |conn| sqlx::query(
                "INSERT INTO segment_pin (holder, segment_id, pinned_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            )
            .bind(holder)
            .bind(segment)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
        }
    }
    pinned(tx, tenant, project, first, last, holder).await
}

/// The parts of a project from `first` to `last` day that `holder` has pinned, by day and then sort time.
pub async fn pinned(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    first: NaiveDate,
    last: NaiveDate,
    holder: Uuid,
) -> Result<Vec<LocatedPart>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        placed!(),
        " FROM segment_pin h
         JOIN segment s ON s.id = h.segment_id
         JOIN (SELECT ",
        columns!(segment_part),
        " FROM segment_part WHERE tenant_id = $1 AND project_id = $2 AND day BETWEEN $3 AND $4
               UNION ALL
               SELECT ",
        columns!(segment_part),
        " FROM segment_part_past WHERE tenant_id = $1 AND project_id = $2 AND day BETWEEN $3 AND $4) p
           ON p.segment_id = h.segment_id
         WHERE h.holder = $5
         ORDER BY p.day, p.min_sort_time, p.segment_id, p.row_group"
    ))
    .bind(tenant)
    .bind(project)
    .bind(first)
    .bind(last)
    .bind(holder)
    .fetch_all(conn)
    .await)?)
}

/// Releases all pins of `holder`.
pub async fn unpin(tx: &mut Tx<'_>, holder: Uuid) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM segment_pin WHERE holder = $1"
    )
    .bind(holder)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Ids as the JSON text in which lists are bound on both databases.
pub(crate) fn id_list(ids: impl Iterator<Item = Uuid>) -> String {
    let mut text = String::from("[");
    for id in ids {
        if text.len() > 1 {
            text.push(',');
        }
        text.push('"');
        text.push_str(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        text.push('"');
    }
    text.push(']');
    text
}
