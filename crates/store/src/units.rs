//! Units of the write-ahead log of trace ingest: what was accepted and is not folded into segments yet.

use towpath_domain::{JobId, ProjectId, TenantId, Timestamp, UnitId};

use crate::segments::id_list;
use crate::{Error, Result, Tx};

/// Where a unit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum UnitState {
    /// Accepted, not in a segment yet.
    Open,
    /// Its operations are in live segments (or pending); the object may go.
    Folded,
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Unit {
    /// Order of acceptance over all units.
    pub seq: i64,
    /// The unit.
    pub id: UnitId,
    /// Its object.
    pub path: String,
    /// Size of the object.
    pub bytes: i64,
    /// Operations on trace runs in it.
    pub operations: i64,
    /// Where it stands.
    pub state: UnitState,
    /// The job that folds or folded it.
    pub fold_job: Option<JobId>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it was folded.
    pub folded_at: Option<Timestamp>,
}

/// The project that stands for "some project of this workspace" where a patch names none.
pub const ANY_PROJECT: ProjectId = ProjectId::nil();

/// Registers a unit whose object is on disk. Once this is committed its bodies count as accepted.
/// Answers its place in the order of acceptance.
///
/// # Errors
/// Only what the database says.
pub async fn register(
    tx: &mut Tx<'_>,
    id: UnitId,
    path: &str,
    bytes: i64,
    operations: i64,
    touches: &[(TenantId, ProjectId)],
) -> Result<i64> {
    let now = tx.now();
    let seq = on!(tx, |conn| sqlx::query_scalar(
        "INSERT INTO wal_unit (id, path, bytes, operations, state, created_at)
         VALUES ($1, $2, $3, $4, 'open', $5) RETURNING seq",
    )
    .bind(id)
    .bind(path)
    .bind(bytes)
    .bind(operations)
    .bind(now)
    .fetch_one(conn)
    .await)?;
    for &(tenant, project) in touches {
        on!(tx, |conn| sqlx::query(
            "INSERT INTO wal_unit_project (unit_id, tenant_id, project_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(id)
        .bind(tenant)
        .bind(project)
        .execute(conn)
        .await
        .map(drop))?;
    }
    Ok(seq)
}

/// Whether a unit is registered: settles a commit whose answer was lost.
///
/// # Errors
/// Only what the database says.
pub async fn exists(tx: &mut Tx<'_>, id: UnitId) -> Result<bool> {
    let found: Option<i64> = on!(tx, |conn| sqlx::query_scalar("SELECT seq FROM wal_unit WHERE id = $1")
        .bind(id)
        .fetch_optional(conn)
        .await)?;
    Ok(found.is_some())
}

/// Open units in order of acceptance, as many as stay within `max_bytes` together; at least one if there is one.
///
/// # Errors
/// Only what the database says.
pub async fn open(tx: &mut Tx<'_>, max_bytes: i64) -> Result<Vec<Unit>> {
    /// More would be slow to list and mark in one transaction.
    const MOST: i64 = 512;
    let mut units: Vec<Unit> = on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM wal_unit WHERE state = 'open' ORDER BY seq LIMIT $1 + 0",
    )
    .bind(MOST)
    .fetch_all(conn)
    .await)?;
    let mut sum = 0_i64;
    let fit = units.iter().take_while(|unit| {
        sum = sum.saturating_add(unit.bytes);
        sum <= max_bytes
    });
    let fit = fit.count().max(1);
    units.truncate(fit);
    Ok(units)
}

/// Open units that touch `project`, or may: what an export has to wait for.
///
/// # Errors
/// Only what the database says.
pub async fn open_touching(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId) -> Result<Vec<Unit>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT u.* FROM wal_unit u WHERE u.state = 'open' AND EXISTS (
             SELECT 1 FROM wal_unit_project p
             WHERE p.unit_id = u.id AND p.tenant_id = $1 AND p.project_id IN ($2, $3))
         ORDER BY u.seq",
    )
    .bind(tenant)
    .bind(project)
    .bind(ANY_PROJECT)
    .fetch_all(conn)
    .await)?)
}

/// Open units that touch a workspace, in order of acceptance: what readers have to look into beside the segments.
///
/// # Errors
/// Only what the database says.
pub async fn open_of(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Unit>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT u.* FROM wal_unit u WHERE u.state = 'open' AND EXISTS (
             SELECT 1 FROM wal_unit_project p WHERE p.unit_id = u.id AND p.tenant_id = $1)
         ORDER BY u.seq",
    )
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// How many units are open, and how many bytes they have together.
///
/// # Errors
/// Only what the database says.
pub async fn backlog(tx: &mut Tx<'_>) -> Result<(i64, i64)> {
    Ok(on!(tx, |conn| sqlx::query_as(
        // SUM of bigint is numeric on PostgreSQL.
        "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS bigint) FROM wal_unit WHERE state = 'open'",
    )
    .fetch_one(conn)
    .await)?)
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

/// Notes that `job` folds these units, whoever had them before. Folding is serialised by its lane; this says to
/// people who is at it.
///
/// # Errors
/// [`Error::Stale`] when one of them is not open any more.
pub async fn assign(tx: &mut Tx<'_>, job: JobId, units: &[UnitId]) -> Result<()> {
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
        sqlite: "UPDATE wal_unit SET fold_job = $2 WHERE state = 'open'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "UPDATE wal_unit SET fold_job = $2 WHERE state = 'open'
                   AND id IN (SELECT value::uuid FROM json_array_elements_text($1::json))");
    let ids = id_list(units.iter().map(|id| id.0));
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(ids)
        .bind(job)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    all(changed, units.len())
}

/// Gives units back that `job` had taken and did not fold.
///
/// # Errors
/// Only what the database says.
pub async fn release(tx: &mut Tx<'_>, job: JobId) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE wal_unit SET fold_job = NULL WHERE fold_job = $1 AND state = 'open'"
    )
    .bind(job)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Marks units folded. Belongs into the transaction that makes their segments live.
///
/// # Errors
/// [`Error::Stale`] when one of them is not open any more: somebody else folded it, and this work must be dropped.
pub async fn fold(tx: &mut Tx<'_>, job: JobId, units: &[UnitId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE wal_unit SET state = 'folded', folded_at = $2, fold_job = $3 WHERE state = 'open'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "UPDATE wal_unit SET state = 'folded', folded_at = $2, fold_job = $3 WHERE state = 'open'
                   AND id IN (SELECT value::uuid FROM json_array_elements_text($1::json))");
    let ids = id_list(units.iter().map(|id| id.0));
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(ids)
        .bind(now)
        .bind(job)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    all(changed, units.len())
}

/// Folded units whose objects may go, oldest first.
///
/// # Errors
/// Only what the database says.
pub async fn folded_before(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<Unit>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM wal_unit WHERE state = 'folded' AND folded_at < $1 ORDER BY folded_at LIMIT $2 + 0",
    )
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Forgets folded units, after their objects are gone. Open ones stay.
///
/// # Errors
/// Only what the database says.
pub async fn forget(tx: &mut Tx<'_>, units: &[UnitId]) -> Result<u64> {
    let text = sql!(tx,
        sqlite: "DELETE FROM wal_unit WHERE state = 'folded'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "DELETE FROM wal_unit WHERE state = 'folded'
                   AND id IN (SELECT value::uuid FROM json_array_elements_text($1::json))");
    let ids = id_list(units.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query(text)
        .bind(ids)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

fn all(changed: u64, expected: usize) -> Result<()> {
    if usize::try_from(changed).is_ok_and(|changed| changed == expected) {
        Ok(())
    } else {
        Err(Error::Stale)
    }
}
