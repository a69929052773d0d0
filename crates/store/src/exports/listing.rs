//! One-off, spawned and scheduled exports in one list, as the API shows them.

use towpath_domain::export::{Compression, ExportStatus, Field, FormatVersion};
use towpath_domain::{DestinationId, ExportId, ProjectId, TenantId, Timestamp};

use super::fields;
use crate::{Error, Result, Tx};

/// An export, or a schedule of exports.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ExportSummary {
    pub id: ExportId,
    pub tenant_id: TenantId,
    pub destination_id: DestinationId,
    pub project_id: ProjectId,
    pub status: ExportStatus,
    /// Inclusive.
    pub start_time: Timestamp,
    /// First moment it does not cover; a schedule has none.
    pub end_time: Option<Timestamp>,
    /// How long an interval is; only a schedule has it.
    pub interval_hours: Option<i64>,
    /// Compression of its files.
    pub compression: Compression,
    /// Layout and column types of its files.
    pub format_version: FormatVersion,
    /// JSON array, or absent for all; read it with [`ExportSummary::fields`].
    pub export_fields: Option<String>,
    /// In the filter language, or absent for all.
    pub filter: Option<String>,
    /// The schedule it was spawned from.
    pub source_bulk_export_id: Option<ExportId>,
    /// Why it failed, if not because of a run; for a schedule, why it stopped, unless a caller cancelled it.
    pub error: Option<String>,
    /// Operations in quarantine that may be missing from it; `None` for a schedule.
    pub missing_operations: Option<i64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl ExportSummary {
    pub fn fields(&self) -> Result<Option<Vec<Field>>> {
        fields(self.id, self.export_fields.as_deref())
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    pub id: Option<ExportId>,
    /// Those of this project.
    pub project: Option<ProjectId>,
    /// Those that go there.
    pub destination: Option<DestinationId>,
    pub status: Option<ExportStatus>,
    /// Those spawned from this schedule.
    pub source: Option<ExportId>,
}

/// Exports, newest first.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    filter: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<ExportSummary>> {
    let text = "SELECT id, tenant_id, destination_id, project_id, status, start_time, end_time,
                       CAST(NULL AS bigint) AS interval_hours, compression, format_version, export_fields,
                       (SELECT f.filter FROM export_filter f WHERE f.id = export.id) AS filter, source_bulk_export_id, error,
                       missing_operations, created_at, updated_at, finished_at
                FROM export
                WHERE tenant_id = $1 AND ($2 IS NULL OR id = $2) AND ($3 IS NULL OR project_id = $3)
                  AND ($4 IS NULL OR destination_id = $4) AND ($5 IS NULL OR status = $5)
                  AND ($6 IS NULL OR source_bulk_export_id = $6)
                UNION ALL
                SELECT id, tenant_id, destination_id, project_id, status, start_time, NULL,
                       interval_hours, compression, format_version, export_fields,
                       (SELECT f.filter FROM export_filter f WHERE f.id = scheduled_export.id), NULL, error,
                       NULL, created_at, updated_at, finished_at
                FROM scheduled_export
                WHERE tenant_id = $1 AND ($2 IS NULL OR id = $2) AND ($3 IS NULL OR project_id = $3)
                  AND ($4 IS NULL OR destination_id = $4) AND ($5 IS NULL OR status = $5) AND $6 IS NULL
                ORDER BY created_at DESC, id DESC LIMIT $7 + 0 OFFSET $8";
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(filter.id)
        .bind(filter.project)
        .bind(filter.destination)
        .bind(filter.status)
        .bind(filter.source)
        .bind(limit)
        .bind(offset)
        .fetch_all(conn)
        .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId) -> Result<ExportSummary> {
    let filter = Filter {
        id: Some(id),
        ..Filter::default()
    };
    list(tx, tenant, &filter, 1, 0).await?.pop().ok_or(Error::NotFound)
}
