//! Bulk exports and their runs.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_domain::export::{Compression, ExportEnd, ExportRequest, ExportStatus, Field, FormatVersion};
use towpath_domain::{DestinationId, ExportId, ExportRunId, ProjectId, Rejection, TenantId, Timestamp};
use towpath_store::exports::files::{self, ExportFile};
use towpath_store::exports::listing::{self, ExportSummary};
use towpath_store::exports::runs;
use towpath_workflows::{run_export, spawn_export};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query, whole};
use crate::idempotency::{self, IdempotencyKey, IdempotentJson};
use crate::platform::{names, paging};

/// A bulk export, or a schedule of bulk exports.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Export {
    #[schema(value_type = Uuid)]
    id: ExportId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    #[schema(value_type = Uuid)]
    bulk_export_destination_id: DestinationId,
    #[schema(value_type = Uuid)]
    session_id: ProjectId,
    #[schema(value_type = names::Status)]
    status: ExportStatus,
    /// Include trace runs that started at this time or later.
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    /// Include trace runs that started before this time. Null for a schedule.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    filter: Option<String>,
    #[schema(value_type = names::Format)]
    format: &'static str,
    #[schema(value_type = names::FormatVersion)]
    format_version: FormatVersion,
    #[schema(value_type = names::CompressionName)]
    compression: Compression,
    /// Schedules only: length of the interval.
    interval_hours: Option<i64>,
    /// Exported fields; null means all.
    #[schema(value_type = Option<Vec<names::ExportField>>)]
    export_fields: Option<Vec<Field>>,
    /// The schedule that created it.
    #[schema(value_type = Option<Uuid>)]
    source_bulk_export_id: Option<ExportId>,
    /// Why the export failed, or why the schedule stopped. Null for a schedule that was cancelled.
    error: Option<String>,
    /// Null for a schedule.
    metadata: Option<ExportMetadata>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

/// Result of an export, in metadata.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ExportMetadata {
    result: ExportResult,
}

/// Totals of an export. Totals per day are in its runs.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ExportResult {
    /// Operations in quarantine that may belong to the export's project and range. They were accepted before the export
    /// and may be missing from it.
    #[schema(minimum = 0)]
    missing_operations: i64,
}

impl TryFrom<ExportSummary> for Export {
    type Error = ApiError;

    fn try_from(row: ExportSummary) -> Result<Self, ApiError> {
        Ok(Self {
            export_fields: row.fields()?,
            id: row.id,
            tenant_id: row.tenant_id,
            bulk_export_destination_id: row.destination_id,
            session_id: row.project_id,
            status: row.status,
            start_time: row.start_time,
            end_time: row.end_time,
            filter: row.filter,
            format: "Parquet",
            format_version: row.format_version,
            compression: row.compression,
            interval_hours: row.interval_hours,
            source_bulk_export_id: row.source_bulk_export_id,
            error: row.error,
            metadata: row.missing_operations.map(|missing_operations| ExportMetadata {
                result: ExportResult { missing_operations },
            }),
            created_at: row.created_at,
            updated_at: row.updated_at,
            finished_at: row.finished_at,
        })
    }
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewExport)]
pub struct CreateExport {
    #[schema(value_type = Uuid)]
    bulk_export_destination_id: DestinationId,
    #[schema(value_type = Uuid)]
    session_id: ProjectId,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    /// Required unless `interval_hours` is set.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    /// Filter expression; by default all trace runs. An invalid filter is rejected with 400 and the position of the
    /// error.
    filter: Option<String>,
    #[schema(value_type = Option<names::Format>)]
    format: Option<String>,
    /// Default `v1`. `v2_beta` has times in microseconds adjusted to UTC and `key=value` folders only.
    #[schema(value_type = Option<names::FormatVersion>)]
    format_version: Option<String>,
    /// Default `zstandard`.
    #[schema(value_type = Option<names::CompressionName>)]
    compression: Option<String>,
    /// Creates a schedule: one export per interval from `start_time` on, started ten minutes after its end.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 168)]
    interval_hours: Option<i64>,
    /// Fields to export; by default all.
    #[schema(value_type = Option<Vec<names::ExportField>>, min_items = 1)]
    export_fields: Option<Vec<String>>,
    /// Refused when true: not available in this build.
    all_experiments: Option<bool>,
}

/// Changes of an export.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExportChange)]
pub struct UpdateExport {
    #[schema(value_type = names::NewStatus)]
    status: String,
}

/// Filters and page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListExports {
    /// Maximum number of results, 1 to 1000; default 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[param(minimum = 0, maximum = 1_000_000_000)]
    offset: Option<i64>,
    #[param(value_type = Option<Uuid>)]
    session_id: Option<ProjectId>,
    #[param(value_type = Option<Uuid>)]
    bulk_export_destination_id: Option<DestinationId>,
    #[param(value_type = Option<names::Status>)]
    status: Option<ExportStatus>,
    /// The schedule that created the exports.
    #[param(value_type = Option<Uuid>)]
    source_bulk_export_id: Option<ExportId>,
}

/// Selects export runs.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListSpawnedRuns {
    /// Runs of all exports that this schedule created.
    #[param(value_type = Uuid)]
    source_bulk_export_id: ExportId,
    /// Maximum number of results, 1 to 1000; default 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[param(minimum = 0, maximum = 1_000_000_000)]
    offset: Option<i64>,
}

/// One UTC day of an export.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ExportRun {
    #[schema(value_type = Uuid)]
    id: ExportRunId,
    #[schema(value_type = Uuid)]
    bulk_export_id: ExportId,
    /// Same values as for an export.
    #[schema(value_type = names::Status)]
    status: ExportStatus,
    /// Number of failed attempts.
    retry_number: i64,
    /// Error of each attempt: `retry_0`, `retry_1`, …
    #[schema(value_type = Object, example = json!({"retry_0": "Destination is not available: SlowDown (503) for key …"}))]
    errors: Box<RawValue>,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    end_time: Timestamp,
    metadata: ExportRunMetadata,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

/// Details and progress of an export run.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ExportRunMetadata)]
pub struct ExportRunMetadata {
    /// Folder of the files.
    prefix: String,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    end_time: Timestamp,
    result: ExportRunProgress,
}

/// Progress of an export run. While it runs, rows and bytes include the unfinished file.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ExportRunResult)]
pub struct ExportRunProgress {
    rows_written: i64,
    /// Same as `rows_written`.
    rows_exported: i64,
    bytes_written: i64,
    files_written: i64,
    /// Finished files.
    exported_files: Vec<String>,
    /// Folder of the files.
    export_path: String,
    /// The last row in the finished files.
    #[schema(value_type = Option<Object>)]
    latest_cursor: Option<Box<RawValue>>,
    /// The upload that is about to complete.
    #[schema(value_type = Option<Object>)]
    pending_upload: Option<Box<RawValue>>,
}

impl ExportRun {
    fn of(row: runs::ExportRun, written: &[ExportFile]) -> Result<Self, ApiError> {
        let json = |column, text| {
            RawValue::from_string(text).map_err(|_| towpath_store::Error::corrupt("export_run", column, row.id))
        };
        let written = written.iter().filter(|file| file.export_run_id == row.id);
        Ok(Self {
            errors: json("errors", row.errors)?,
            metadata: ExportRunMetadata {
                start_time: row.start_time,
                end_time: row.end_time,
                result: ExportRunProgress {
                    rows_written: row.rows_written,
                    rows_exported: row.rows_written,
                    bytes_written: row.bytes_written,
                    files_written: row.files_written,
                    exported_files: written.map(|file| file.path.clone()).collect(),
                    export_path: row.prefix.clone(),
                    latest_cursor: row.latest_cursor.map(|text| json("latest_cursor", text)).transpose()?,
                    pending_upload: row
                        .pending_upload
                        .map(|text| json("pending_upload", text))
                        .transpose()?,
                },
                prefix: row.prefix,
            },
            id: row.id,
            bulk_export_id: row.export_id,
            status: row.status,
            retry_number: row.retry_number,
            start_time: row.start_time,
            end_time: row.end_time,
            created_at: row.created_at,
            updated_at: row.updated_at,
            finished_at: row.finished_at,
        })
    }
}

/// Start a bulk export. A repeated request with the same `Idempotency-Key` returns the first response.
#[utoipa::path(post, path = "/api/v1/bulk-exports", tag = "bulk-exports", request_body = CreateExport, params(IdempotencyKey),
    responses((status = 200, description = "Recorded; it starts as soon as a slot is free", body = Export),
              (status = 400, description = "The request is invalid or not supported by this build"),
              (status = 404, description = "No such destination or tracing project in this workspace"),
              (status = 409, description = "The `Idempotency-Key` was used for another request"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    sent: IdempotentJson<CreateExport>,
) -> Result<Response, ApiError> {
    let IdempotentJson { body: new, key } = sent;
    if new.all_experiments == Some(true) {
        return Err(Rejection::unsupported("all_experiments", "an export of all experiments").into());
    }
    let asked = ExportRequest {
        destination: new.bulk_export_destination_id,
        project: new.session_id,
        start_time: new.start_time,
        end_time: new.end_time,
        filter: new.filter,
        format: new.format,
        format_version: new.format_version,
        compression: new.compression,
        interval_hours: new.interval_hours,
        export_fields: new.export_fields,
    };
    // A repeated request gets its first response even if the destination or project was deleted since.
    if let Some(answer) = idempotency::recorded_answer(&app.store, tenant.id, key.as_ref()).await? {
        return Ok(answer);
    }
    // Missing destinations and projects (404) are reported before errors in other fields.
    let (destination, project) = (asked.destination, asked.project);
    app.store
        .read(async |tx| run_export::check_references(tx, tenant.id, destination, project).await)
        .await?;
    let asked = asked.admit()?;
    let limits = app.settings.exports;
    idempotency::run_once(&app.store, tenant.id, key.as_ref(), Export::try_from, async |tx| {
        let (content, start) = (&asked.spec, asked.start_time);
        let id = match asked.end {
            ExportEnd::At(end) => run_export::start(tx, tenant.id, &limits, content, start..end).await?.id,
            ExportEnd::Every { hours } => spawn_export::create(tx, tenant.id, content, start, hours).await?,
        };
        listing::get(tx, tenant.id, id).await
    })
    .await
}

/// List bulk exports and schedules, newest first.
#[utoipa::path(get, path = "/api/v1/bulk-exports", tag = "bulk-exports", params(ListExports),
    responses((status = 200, description = "Exports", body = Vec<Export>), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Query(wanted): Query<ListExports>,
) -> Result<Json<Vec<Export>>, ApiError> {
    let (limit, offset) = paging::check(wanted.limit, wanted.offset, 1000, 1000)?;
    let filter = listing::Filter {
        id: None,
        project: wanted.session_id,
        destination: wanted.bulk_export_destination_id,
        status: wanted.status,
        source: wanted.source_bulk_export_id,
    };
    let rows = app
        .store
        .read(async |tx| listing::list(tx, tenant.id, &filter, limit, offset).await)
        .await?;
    Ok(Json(rows.into_iter().map(Export::try_from).collect::<Result<_, _>>()?))
}

/// Get one bulk export.
#[utoipa::path(get, path = "/api/v1/bulk-exports/{export_id}", tag = "bulk-exports",
    params(("export_id" = Uuid, Path, description = "The export")),
    responses((status = 200, description = "The export", body = Export),
              (status = 404, description = "No such export in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(id): Path<ExportId>) -> Result<Json<Export>, ApiError> {
    let row = app
        .store
        .read(async |tx| listing::get(tx, tenant.id, id).await)
        .await
        .map_err(missing)?;
    Ok(Json(row.try_into()?))
}

/// Cancel a bulk export: finished files remain and no manifest is written. Exports of a cancelled schedule continue.
#[utoipa::path(patch, path = "/api/v1/bulk-exports/{export_id}", tag = "bulk-exports",
    params(("export_id" = Uuid, Path, description = "The export")), request_body = UpdateExport,
    responses((status = 200, description = "Cancelled", body = Export),
              (status = 400, description = "The export has already ended"),
              (status = 404, description = "No such export in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExportId>,
    Json(change): Json<UpdateExport>,
) -> Result<Json<Export>, ApiError> {
    ExportStatus::admit_change(&change.status)?;
    // The hints of this transaction notify running workers.
    let row = app
        .store
        .write(async |tx| {
            if !spawn_export::cancel(tx, tenant.id, id, None).await? {
                run_export::cancel(tx, tenant.id, id).await?;
            }
            listing::get(tx, tenant.id, id).await
        })
        .await
        .map_err(missing)?;
    Ok(Json(row.try_into()?))
}

/// List the runs of a bulk export, one per UTC day, latest first. Empty before the export is planned.
#[utoipa::path(get, path = "/api/v1/bulk-exports/{export_id}/runs", tag = "bulk-export-runs",
    params(("export_id" = Uuid, Path, description = "The export")),
    responses((status = 200, description = "Its runs", body = Vec<ExportRun>),
              (status = 404, description = "No such export in this workspace"), ApiError))]
pub async fn list_runs(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExportId>,
) -> Result<Json<Vec<ExportRun>>, ApiError> {
    let read = app.store.read(async |tx| {
        listing::get(tx, tenant.id, id).await?;
        Ok((
            runs::list(tx, tenant.id, id).await?,
            files::list(tx, tenant.id, id).await?,
        ))
    });
    let (rows, written) = read.await.map_err(missing)?;
    Ok(Json(
        rows.into_iter()
            .map(|row| ExportRun::of(row, &written))
            .collect::<Result<_, _>>()?,
    ))
}

/// List the runs of all bulk exports of a schedule, latest first.
#[utoipa::path(get, path = "/api/v1/bulk-exports/runs", tag = "bulk-export-runs", operation_id = "spawned",
    params(ListSpawnedRuns),
    responses((status = 200, description = "Their runs", body = Vec<ExportRun>),
              (status = 404, description = "No such schedule in this workspace"), ApiError))]
pub async fn list_spawned_runs(
    State(app): State<App>,
    tenant: Tenant,
    Query(wanted): Query<ListSpawnedRuns>,
) -> Result<Json<Vec<ExportRun>>, ApiError> {
    let (limit, offset) = paging::check(wanted.limit, wanted.offset, 1000, 1000)?;
    let source = wanted.source_bulk_export_id;
    let read = app.store.read(async |tx| {
        listing::get(tx, tenant.id, source).await?;
        let rows = runs::list_spawned(tx, tenant.id, source, limit, offset).await?;
        let mut written = Vec::new();
        for row in &rows {
            written.extend(files::of_run(tx, row.id).await?);
        }
        Ok((rows, written))
    });
    let (rows, written) = read.await.map_err(missing)?;
    Ok(Json(
        rows.into_iter()
            .map(|row| ExportRun::of(row, &written))
            .collect::<Result<_, _>>()?,
    ))
}

/// Get one run of a bulk export.
#[utoipa::path(get, path = "/api/v1/bulk-exports/{export_id}/runs/{run_id}", tag = "bulk-export-runs",
    params(("export_id" = Uuid, Path, description = "The export"), ("run_id" = Uuid, Path, description = "The run")),
    responses((status = 200, description = "The run", body = ExportRun),
              (status = 404, description = "No such run of this export in this workspace"), ApiError))]
pub async fn get_run(
    State(app): State<App>,
    tenant: Tenant,
    Path((export, id)): Path<(ExportId, ExportRunId)>,
) -> Result<Json<ExportRun>, ApiError> {
    let read = app.store.read(async |tx| {
        Ok((
            runs::get(tx, tenant.id, export, id).await?,
            files::list(tx, tenant.id, export).await?,
        ))
    });
    let (row, written) = read.await.map_err(missing)?;
    Ok(Json(ExportRun::of(row, &written)?))
}

fn missing(error: towpath_store::Error) -> ApiError {
    match error {
        towpath_store::Error::NotFound => ApiError::not_found("export"),
        error => error.into(),
    }
}
