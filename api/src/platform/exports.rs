//! Bulk exports and their runs.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_domain::export::{Compression, Ends, ExportRequest, ExportStatus, Field, FormatVersion};
use towpath_domain::{DestinationId, ExportId, ExportRunId, ProjectId, Rejection, TenantId, Timestamp};
use towpath_store::exports::files::{self, ExportFile};
use towpath_store::exports::listing::{self, Listed};
use towpath_store::exports::runs;
use towpath_workflows::{run_export, spawn_export};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query, whole};
use crate::idempotency::{self, IdempotencyKey, Once};
use crate::platform::names;

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
    /// Trace runs that started at this time or later…
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    /// … and before this one. A schedule has none.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    filter: Option<String>,
    #[schema(value_type = names::Format)]
    format: &'static str,
    #[schema(value_type = names::FormatVersion)]
    format_version: FormatVersion,
    #[schema(value_type = names::CompressionName)]
    compression: Compression,
    /// Of a schedule: how long an interval is.
    interval_hours: Option<i64>,
    /// Null is all.
    #[schema(value_type = Option<Vec<names::ExportField>>)]
    export_fields: Option<Vec<Field>>,
    /// The schedule it was spawned from.
    #[schema(value_type = Option<Uuid>)]
    source_bulk_export_id: Option<ExportId>,
    /// Why the export failed, or why the schedule stopped. Null for a schedule that was cancelled.
    error: Option<String>,
    /// Of a schedule: null.
    metadata: Option<ExportMetadata>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

/// What became of an export.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ExportMetadata {
    result: ExportResult,
}

/// What an export has, and what it lacks. What its days have stands in its runs.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ExportResult {
    /// Operations that were accepted before the export and could not be folded, so that they may be missing from it:
    /// those in quarantine that may belong to its project and range.
    #[schema(minimum = 0)]
    missing_operations: i64,
}

impl TryFrom<Listed> for Export {
    type Error = ApiError;

    fn try_from(row: Listed) -> Result<Self, ApiError> {
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

/// An export to be made.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewExport)]
pub struct New {
    #[schema(value_type = Uuid)]
    bulk_export_destination_id: DestinationId,
    #[schema(value_type = Uuid)]
    session_id: ProjectId,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    /// Required unless `interval_hours` is set.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    /// In the filter language; absent is all trace runs. A mistake is answered with 400, which says where it is.
    filter: Option<String>,
    #[schema(value_type = Option<names::Format>)]
    format: Option<String>,
    /// `v1` is the default; `v2_beta` has times in microseconds adjusted to UTC, and folders that are all `key=value`.
    #[schema(value_type = Option<names::FormatVersion>)]
    format_version: Option<String>,
    /// `zstandard` is the default.
    #[schema(value_type = Option<names::CompressionName>)]
    compression: Option<String>,
    /// Makes it a schedule: one export for each so many hours from `start_time` on, begun ten minutes after their end.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 168)]
    interval_hours: Option<i64>,
    /// Absent is all.
    #[schema(value_type = Option<Vec<names::ExportField>>, min_items = 1)]
    export_fields: Option<Vec<String>>,
    /// Refused when true: not available in this build.
    all_experiments: Option<bool>,
}

/// What may change of an export.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExportChange)]
pub struct Change {
    #[schema(value_type = names::NewStatus)]
    status: String,
}

/// The most rows of a list that can be skipped. Skipping reads them all.
pub const MAX_OFFSET: i64 = 1_000_000_000;

/// Which part of a list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// At most so many, 1 to 1000, which is the default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Skip so many.
    #[param(minimum = 0, maximum = 1_000_000_000)]
    offset: Option<i64>,
}

impl Page {
    /// # Errors
    /// Out of range.
    pub fn admit(&self) -> Result<(i64, i64), ApiError> {
        let (limit, offset) = (self.limit.unwrap_or(1000), self.offset.unwrap_or(0));
        let refuse = |field: &str, msg: String| {
            Err(ApiError::invalid_at(
                vec!["query".into(), field.into()],
                "value_error",
                msg,
            ))
        };
        match (limit, offset) {
            (limit, _) if !(1..=1000).contains(&limit) => refuse("limit", "expected 1 to 1000".to_owned()),
            (_, offset) if !(0..=MAX_OFFSET).contains(&offset) => {
                refuse("offset", format!("expected 0 to {MAX_OFFSET}"))
            }
            page => Ok(page),
        }
    }
}

/// Which exports.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// At most so many, 1 to 1000, which is the default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Skip so many.
    #[param(minimum = 0, maximum = 1_000_000_000)]
    offset: Option<i64>,
    /// Those of this project.
    #[param(value_type = Option<Uuid>)]
    session_id: Option<ProjectId>,
    /// Those that go to this destination.
    #[param(value_type = Option<Uuid>)]
    bulk_export_destination_id: Option<DestinationId>,
    /// Those that stand so.
    #[param(value_type = Option<names::Status>)]
    status: Option<ExportStatus>,
    /// Those spawned from this schedule.
    #[param(value_type = Option<Uuid>)]
    source_bulk_export_id: Option<ExportId>,
}

/// Which export runs.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WantedRuns {
    /// Those of all exports spawned from this schedule.
    #[param(value_type = Uuid)]
    source_bulk_export_id: ExportId,
    /// At most so many, 1 to 1000, which is the default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Skip so many.
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
    /// As of an export.
    #[schema(value_type = names::Status)]
    status: ExportStatus,
    /// Failed attempts so far.
    retry_number: i64,
    /// What went wrong, by attempt: `retry_0`, `retry_1`, …
    #[schema(value_type = Object, example = json!({"retry_0": "Destination is not available: SlowDown (503) for key …"}))]
    errors: Box<RawValue>,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    end_time: Timestamp,
    metadata: Metadata,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

/// What an export run is about and how far it is.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ExportRunMetadata)]
pub struct Metadata {
    /// Folder of its files.
    prefix: String,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    end_time: Timestamp,
    result: Progress,
}

/// How far an export run is. While it runs, rows and bytes include the file that is not finished.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ExportRunResult)]
pub struct Progress {
    rows_written: i64,
    /// The same number.
    rows_exported: i64,
    bytes_written: i64,
    files_written: i64,
    /// Finished files.
    exported_files: Vec<String>,
    /// Folder of its files.
    export_path: String,
    /// The last row in them.
    #[schema(value_type = Option<Object>)]
    latest_cursor: Option<Box<RawValue>>,
    /// The file that is about to be visible.
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
            metadata: Metadata {
                start_time: row.start_time,
                end_time: row.end_time,
                result: Progress {
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

/// Start a bulk export. Sent again under the same `Idempotency-Key`, it starts none, and answers as the first time.
#[utoipa::path(post, path = "/api/v1/bulk-exports", tag = "bulk-exports", request_body = New, params(IdempotencyKey),
    responses((status = 200, description = "Recorded; it runs as soon as it has a place", body = Export),
              (status = 400, description = "The fields do not go together, or this build does not have it"),
              (status = 404, description = "No such destination or tracing project in this workspace"),
              (status = 409, description = "The `Idempotency-Key` belongs to another request"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, sent: Once<New>) -> Result<Response, ApiError> {
    let Once { body: new, keyed } = sent;
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
    // Sent again, it is answered as the first time, whatever has gone since.
    if let Some(answer) = idempotency::answered(&app.store, tenant.id, keyed.as_ref()).await? {
        return Ok(answer);
    }
    // What it names comes before what it says of it: 404 where there is nothing to export, or nowhere to.
    let (destination, project) = (asked.destination, asked.project);
    app.store
        .read(async |tx| run_export::check_references(tx, tenant.id, destination, project).await)
        .await?;
    let asked = asked.admit()?;
    let limits = app.settings.exports;
    idempotency::once(&app.store, tenant.id, keyed.as_ref(), Export::try_from, async |tx| {
        let (content, start) = (&asked.content, asked.start_time);
        let id = match asked.ends {
            Ends::At(end) => run_export::start(tx, tenant.id, &limits, content, start..end).await?.id,
            Ends::Every { hours } => spawn_export::create(tx, tenant.id, content, start, hours).await?,
        };
        listing::get(tx, tenant.id, id).await
    })
    .await
}

/// Bulk exports and schedules, newest first.
#[utoipa::path(get, path = "/api/v1/bulk-exports", tag = "bulk-exports", params(Wanted),
    responses((status = 200, description = "Exports", body = Vec<Export>), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Vec<Export>>, ApiError> {
    let page = Page {
        limit: wanted.limit,
        offset: wanted.offset,
    };
    let (limit, offset) = page.admit()?;
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

/// One bulk export.
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

/// Cancel a bulk export: finished files stay, and no manifest is written. Or a schedule: what it has spawned goes on.
#[utoipa::path(patch, path = "/api/v1/bulk-exports/{export_id}", tag = "bulk-exports",
    params(("export_id" = Uuid, Path, description = "The export")), request_body = Change,
    responses((status = 200, description = "Cancelled, now or before", body = Export),
              (status = 400, description = "It is over in another way"),
              (status = 404, description = "No such export in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExportId>,
    Json(change): Json<Change>,
) -> Result<Json<Export>, ApiError> {
    ExportStatus::admit_change(&change.status)?;
    // Whatever is at work is told through the hints of this transaction.
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

/// The runs of a bulk export, one per UTC day, latest first. There are none before it is planned.
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

/// The runs of all bulk exports that a schedule has spawned, latest first.
#[utoipa::path(get, path = "/api/v1/bulk-exports/runs", tag = "bulk-export-runs", operation_id = "spawned",
    params(WantedRuns),
    responses((status = 200, description = "Their runs", body = Vec<ExportRun>),
              (status = 404, description = "No such schedule in this workspace"), ApiError))]
pub async fn list_spawned_runs(
    State(app): State<App>,
    tenant: Tenant,
    Query(wanted): Query<WantedRuns>,
) -> Result<Json<Vec<ExportRun>>, ApiError> {
    let page = Page {
        limit: wanted.limit,
        offset: wanted.offset,
    };
    let (limit, offset) = page.admit()?;
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

/// One run of a bulk export.
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
