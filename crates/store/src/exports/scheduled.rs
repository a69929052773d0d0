//! Scheduled exports: each spawns one export per interval. The state of the chain is in
//! [`schedules`](crate::schedules).

use towpath_domain::export::{Compression, ExportSpec, ExportStatus, FormatVersion};
use towpath_domain::{DestinationId, ExportId, JobId, ProjectId, ScheduleId, TenantId, Timestamp};

use super::{fields, keep_filter, stored};
use crate::{Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ScheduledExport {
    pub id: ExportId,
    pub tenant_id: TenantId,
    pub destination_id: DestinationId,
    pub project_id: ProjectId,
    /// `RUNNING`, until a caller makes it `CANCELLED`.
    pub status: ExportStatus,
    /// Where the first interval begins.
    pub start_time: Timestamp,
    /// How long an interval is.
    pub interval_hours: i64,
    /// Compression of the files.
    pub compression: Compression,
    /// Layout and column types of the files.
    pub format_version: FormatVersion,
    /// JSON array, or absent for all.
    pub export_fields: Option<String>,
    /// In the filter language, or absent for all.
    pub filter: Option<String>,
    /// The chain of its spawns.
    pub schedule_id: ScheduleId,
    /// Why it stopped, unless a caller cancelled it.
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When it was cancelled.
    pub finished_at: Option<Timestamp>,
}

impl ScheduledExport {
    /// What each of its exports is of.
    pub fn content(&self) -> Result<ExportSpec> {
        Ok(ExportSpec {
            destination: self.destination_id,
            project: self.project_id,
            format_version: self.format_version,
            compression: self.compression,
            fields: fields(self.id, self.export_fields.as_deref())?,
            filter: self.filter.clone(),
        })
    }
}

/// The fields of a new scheduled export.
#[derive(Clone, Debug)]
pub struct NewScheduled<'a> {
    pub id: ExportId,
    /// What each export is of.
    pub content: &'a ExportSpec,
    /// Where the first interval begins.
    pub start_time: Timestamp,
    /// How long an interval is.
    pub hours: u32,
    /// The chain of its spawns.
    pub schedule: ScheduleId,
}

/// Records a scheduled export as `RUNNING`.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewScheduled<'_>) -> Result<()> {
    let now = tx.now();
    let fields = stored(new.id, new.content.fields.as_deref())?;
    keep_filter(tx, tenant, new.id, new.content.filter.as_deref()).await?;
    on!(tx, |conn| sqlx::query(
        "INSERT INTO scheduled_export (id, tenant_id, destination_id, project_id, status, start_time, interval_hours,
                                       compression, format_version, export_fields, schedule_id, created_at, updated_at)
         VALUES ($1, $2, $3, $4, 'RUNNING', $5, $6, $7, $8, $9, $10, $11, $11)"
    )
    .bind(new.id)
    .bind(tenant)
    .bind(new.content.destination)
    .bind(new.content.project)
    .bind(new.start_time)
    .bind(i64::from(new.hours))
    .bind(new.content.compression)
    .bind(new.content.format_version)
    .bind(fields)
    .bind(new.schedule)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// One scheduled export, `None` also for another tenant's.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId) -> Result<Option<ScheduledExport>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(s, scheduled_export),
        ", (SELECT f.filter FROM export_filter f WHERE f.id = s.id) AS filter
         FROM scheduled_export s WHERE s.tenant_id = $1 AND s.id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

/// Those of a project that are not cancelled.
pub async fn running_of(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId) -> Result<Vec<ScheduledExport>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(s, scheduled_export),
        ", (SELECT f.filter FROM export_filter f WHERE f.id = s.id) AS filter FROM scheduled_export s
         WHERE s.tenant_id = $1 AND s.project_id = $2 AND s.status = 'RUNNING' ORDER BY s.id"
    ))
    .bind(tenant)
    .bind(project)
    .fetch_all(conn)
    .await)?)
}

/// Cancels it; `error` says why, unless a caller asked for it. True if this call made the change.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId, error: Option<&str>) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE scheduled_export SET status = 'CANCELLED', error = $3, finished_at = $4, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status = 'RUNNING'"
    )
    .bind(tenant)
    .bind(id)
    .bind(error)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// The jobs that spawn the next exports to a destination.
pub async fn spawn_jobs_to(tx: &mut Tx<'_>, tenant: TenantId, destination: DestinationId) -> Result<Vec<JobId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT s.spawn_job FROM scheduled_export e JOIN schedule s ON s.id = e.schedule_id
         WHERE e.tenant_id = $1 AND e.destination_id = $2 AND e.status = 'RUNNING' AND s.spawn_job IS NOT NULL
         ORDER BY e.id"
    )
    .bind(tenant)
    .bind(destination)
    .fetch_all(conn)
    .await)?)
}

/// Cancels all scheduled exports to a destination with their chains.
pub async fn cancel_all_to(tx: &mut Tx<'_>, tenant: TenantId, destination: DestinationId, error: &str) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| {
        sqlx::query(
        "UPDATE schedule SET ended_at = coalesce(ended_at, $3) WHERE id IN (
             SELECT schedule_id FROM scheduled_export WHERE tenant_id = $1 AND destination_id = $2 AND status = 'RUNNING')"
    )
    .bind(tenant)
    .bind(destination)
    .bind(now)
    .execute(conn)
    .await
    .map(drop)
    })?;
    on!(tx, |conn| sqlx::query(
        "UPDATE scheduled_export SET status = 'CANCELLED', error = $3, finished_at = $4, updated_at = $4
         WHERE tenant_id = $1 AND destination_id = $2 AND status = 'RUNNING'"
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
