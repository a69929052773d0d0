//! Exports of all workspaces for operators: status and progress, without content.

use sqlx::FromRow;
use towpath_domain::export::ExportStatus;
use towpath_domain::{ExportId, JobId, TenantId, Timestamp};

use crate::error::Result;
use crate::tx::Tx;

/// An export in the view of operators.
#[derive(Clone, Debug, FromRow)]
pub struct Overview {
    pub id: ExportId,
    pub tenant_id: TenantId,
    pub status: ExportStatus,
    /// Inclusive.
    pub start_time: Timestamp,
    /// Exclusive.
    pub end_time: Timestamp,
    /// The job that performs it.
    pub job_id: JobId,
    /// Why it failed, if not for one of its runs.
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Name of its tracing project, unless that is gone.
    pub project: Option<String>,
    /// Name of its destination, unless that is gone.
    pub destination: Option<String>,
    /// Its export runs, one per day.
    pub runs: i64,
    /// Those that are over.
    pub runs_over: i64,
    /// Rows written so far.
    pub rows_written: i64,
    /// Bytes written so far.
    pub bytes_written: i64,
    /// Finished files.
    pub files_written: i64,
}

/// Exports older than `before` (ids are in the order of time), newest first.
pub async fn list(tx: &mut Tx<'_>, before: Option<ExportId>, limit: i64) -> Result<Vec<Overview>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT e.id, e.tenant_id, e.status, e.start_time, e.end_time, e.job_id, e.error, e.created_at, e.started_at,
                    e.finished_at, p.name AS project, d.display_name AS destination,
                    (SELECT count(*) FROM export_run r WHERE r.export_id = e.id) AS runs,
                    (SELECT count(*) FROM export_run r WHERE r.export_id = e.id AND r.finished_at IS NOT NULL)
                        AS runs_over,
                    (SELECT CAST(coalesce(sum(r.rows_written), 0) AS bigint) FROM export_run r
                     WHERE r.export_id = e.id) AS rows_written,
                    (SELECT CAST(coalesce(sum(r.bytes_written), 0) AS bigint) FROM export_run r
                     WHERE r.export_id = e.id) AS bytes_written,
                    (SELECT CAST(coalesce(sum(r.files_written), 0) AS bigint) FROM export_run r
                     WHERE r.export_id = e.id) AS files_written
             FROM export e
             LEFT JOIN project p ON p.id = e.project_id AND p.tenant_id = e.tenant_id
             LEFT JOIN destination d ON d.id = e.destination_id AND d.tenant_id = e.tenant_id
             WHERE $1 IS NULL OR e.id < $1
             ORDER BY e.id DESC LIMIT $2 + 0",
        )
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?)
}

/// The owner of an export.
pub async fn owner(tx: &mut Tx<'_>, export: ExportId) -> Result<Option<TenantId>> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT tenant_id FROM export WHERE id = $1")
            .bind(export)
            .fetch_optional(conn)
            .await
    })?)
}
