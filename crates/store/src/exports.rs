//! Bulk exports and their states. Their day partitions are in [`runs`], the files of those in [`files`], and recurring
//! exports in [`scheduled`].

pub mod files;
pub mod listing;
pub mod overview;
pub mod runs;
pub mod scheduled;

use towpath_domain::export::{Compression, ExportSpec, ExportStatus, Field, FormatVersion};
use towpath_domain::{DestinationId, ExportId, JobId, ProjectId, TenantId, Timestamp};

use crate::segments::id_list;
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Export {
    pub id: ExportId,
    pub tenant_id: TenantId,
    pub destination_id: DestinationId,
    pub project_id: ProjectId,
    pub status: ExportStatus,
    /// Inclusive.
    pub start_time: Timestamp,
    /// Exclusive.
    pub end_time: Timestamp,
    /// Compression of its files.
    pub compression: Compression,
    /// Layout and column types of its files.
    pub format_version: FormatVersion,
    /// JSON array, or absent for all; read it with [`Export::fields`].
    pub export_fields: Option<String>,
    /// The scheduled export it was spawned from.
    pub source_bulk_export_id: Option<ExportId>,
    /// The job that performs it.
    pub job_id: JobId,
    /// Why it failed, if not for one of its runs.
    pub error: Option<String>,
    /// Whether its export runs are recorded.
    pub planned: bool,
    /// Operations in quarantine when the export was planned or began to run, which may be missing from it.
    pub missing_operations: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

impl Export {
    pub fn fields(&self) -> Result<Option<Vec<Field>>> {
        fields(self.id, self.export_fields.as_deref())
    }
}

/// Reads a stored list of fields.
fn fields(id: ExportId, stored: Option<&str>) -> Result<Option<Vec<Field>>> {
    stored
        .map(serde_json::from_str)
        .transpose()
        .map_err(|_| Error::corrupt("export", "export_fields", id))
}

/// A list of fields as it is stored.
fn stored(id: ExportId, fields: Option<&[Field]>) -> Result<Option<String>> {
    fields
        .map(serde_json::to_string)
        .transpose()
        .map_err(|_| Error::corrupt("export", "export_fields", id))
}

/// The fields of an new export.
#[derive(Clone, Debug)]
pub struct NewExport<'a> {
    pub id: ExportId,
    pub content: &'a ExportSpec,
    /// Inclusive.
    pub start_time: Timestamp,
    /// Exclusive.
    pub end_time: Timestamp,
    /// The scheduled export that spawns it.
    pub source: Option<ExportId>,
    /// The job that performs it.
    pub job: JobId,
}

/// Records an export as `CREATED`.
///
/// # Errors
/// [`Error::Conflict`] if its source has already spawned an export with this start.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewExport<'_>) -> Result<Export> {
    let now = tx.now();
    let fields = stored(new.id, new.content.fields.as_deref())?;
    keep_filter(tx, tenant, new.id, new.content.filter.as_deref()).await?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO export (id, tenant_id, destination_id, project_id, status, start_time, end_time, compression,
                             format_version, export_fields, source_bulk_export_id, job_id, created_at, updated_at)
         VALUES ($1, $2, $3, $4, 'CREATED', $5, $6, $7, $8, $9, $10, $11, $12, $12) RETURNING ",
        columns!(export)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.content.destination)
    .bind(new.content.project)
    .bind(new.start_time)
    .bind(new.end_time)
    .bind(new.content.compression)
    .bind(new.content.format_version)
    .bind(fields)
    .bind(new.source)
    .bind(new.job)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Keeps the filter of an export, or of a schedule.
async fn keep_filter(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId, filter: Option<&str>) -> Result<()> {
    let Some(filter) = filter else { return Ok(()) };
    on!(tx, |conn| sqlx::query(
        "INSERT INTO export_filter (id, tenant_id, filter) VALUES ($1, $2, $3)"
    )
    .bind(id)
    .bind(tenant)
    .bind(filter)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The filter of an export, or of a schedule.
pub async fn filter(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId) -> Result<Option<String>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT filter FROM export_filter WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId) -> Result<Export> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(export),
        " FROM export WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// `CREATED` → `RUNNING`, with the number of operations that may be missing from it. True if this call made the change.
pub async fn running(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId, missing_operations: i64) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export SET status = 'RUNNING', missing_operations = $4, started_at = $3, updated_at = $3
         WHERE tenant_id = $1 AND id = $2 AND status = 'CREATED'"
    )
    .bind(tenant)
    .bind(id)
    .bind(now)
    .bind(missing_operations)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Marks the export runs of a running export as recorded and stores how many operations may be missing from them: now
/// or when it began to run, whichever is more. True if this call made the change.
pub async fn planned(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId, missing_operations: i64) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export SET planned = TRUE, updated_at = $3,
                           missing_operations = CASE WHEN missing_operations > $4 THEN missing_operations ELSE $4 END
         WHERE tenant_id = $1 AND id = $2 AND status = 'RUNNING' AND NOT planned"
    )
    .bind(tenant)
    .bind(id)
    .bind(now)
    .bind(missing_operations)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// The jobs of exports to a destination that are not over.
pub async fn open_jobs_to(tx: &mut Tx<'_>, tenant: TenantId, destination: DestinationId) -> Result<Vec<JobId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT job_id FROM export WHERE tenant_id = $1 AND destination_id = $2 AND finished_at IS NULL ORDER BY id"
    )
    .bind(tenant)
    .bind(destination)
    .fetch_all(conn)
    .await)?)
}

/// Fails all exports to a destination that are not over.
pub async fn fail_all_to(tx: &mut Tx<'_>, tenant: TenantId, destination: DestinationId, error: &str) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE export SET status = 'FAILED', error = $3, finished_at = $4, updated_at = $4
         WHERE tenant_id = $1 AND destination_id = $2 AND finished_at IS NULL"
    )
    .bind(tenant)
    .bind(destination)
    .bind(error)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Those of these exports that did not complete but may have a manifest at their destination. It is written when all
/// runs have completed. Excludes destinations that no longer exist.
pub async fn with_a_manifest(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportId]) -> Result<Vec<ExportId>> {
    let text = sql!(tx,
        sqlite: "SELECT e.id FROM export e JOIN destination d ON d.id = e.destination_id
                 WHERE e.id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) AND e.tenant_id = $1 AND e.planned
                   AND e.status <> 'COMPLETED'
                   AND NOT EXISTS (SELECT 1 FROM export_run r WHERE r.export_id = e.id AND r.status <> 'COMPLETED')",
        postgres: "SELECT e.id FROM export e JOIN destination d ON d.id = e.destination_id
                   WHERE e.id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json)))
                     AND e.tenant_id = $1 AND e.planned AND e.status <> 'COMPLETED'
                     AND NOT EXISTS (SELECT 1 FROM export_run r WHERE r.export_id = e.id AND r.status <> 'COMPLETED')");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(id_list(ids.iter().map(|id| id.0)))
        .fetch_all(conn)
        .await)?)
}

/// Cancels those of these exports that are not over.
pub async fn cancel_all(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE export SET status = 'CANCELLED', finished_at = $3, updated_at = $3
                 WHERE id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) AND tenant_id = $1
                   AND status IN ('CREATED', 'RUNNING')",
        postgres: "UPDATE export SET status = 'CANCELLED', finished_at = $3, updated_at = $3
                   WHERE id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json))) AND tenant_id = $1
                     AND status IN ('CREATED', 'RUNNING')");
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id_list(ids.iter().map(|id| id.0)))
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Brings an export to a final state. True if this call made the change; a final state never changes again.
pub async fn finish(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: ExportId,
    status: ExportStatus,
    error: Option<&str>,
) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export SET status = $3, error = $4, finished_at = $5, updated_at = $5
         WHERE tenant_id = $1 AND id = $2 AND status IN ('CREATED', 'RUNNING')"
    )
    .bind(tenant)
    .bind(id)
    .bind(status)
    .bind(error)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}
