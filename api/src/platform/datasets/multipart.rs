//! Bulk creation and change of examples with files, in the format of the official clients.
//!
//! ```text
//! <example id>                           {"dataset_id": …, "metadata": …, "split": …, "created_at": …, "source_run_id": …}
//! <example id>.inputs                    a JSON object
//! <example id>.outputs                   a JSON object
//! <example id>.attachment.<name>         a file
//! <example id>.attachments_operations    {"rename": {…}, "retain": […]}
//! ```

use std::collections::HashSet;

use axum::extract::{Request, State};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::{DatasetId, ExampleId, Rejection, Timestamp};
use towpath_store as store;
use towpath_store::datasets::examples::{self, ExampleChange, ExampleWrite, NewExample};
use towpath_store::datasets::files::{FileRetention, NewFile};
use towpath_traces::multipart::{self, MultipartError};
use uuid::Uuid;

use super::examples::{AttachmentOperations, ExampleDraft, check_count};
use super::model::{self, OneOrMany};
use super::{dataset_not_found, source_runs};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, parse_json, read_body};

/// Result of a bulk write.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = WrittenExamples)]
pub struct ExampleWriteResult {
    count: usize,
    #[schema(value_type = Vec<Uuid>)]
    example_ids: Vec<ExampleId>,
    /// New version of the dataset.
    #[schema(value_type = Option<String>, format = DateTime)]
    as_of: Option<Timestamp>,
}

impl From<ExampleWrite> for ExampleWriteResult {
    fn from(written: ExampleWrite) -> Self {
        Self {
            count: written.ids.len(),
            example_ids: written.ids,
            as_of: Some(written.as_of),
        }
    }
}

/// The first part of an example.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ExampleHead {
    dataset_id: Option<DatasetId>,
    metadata: Option<Map<String, Value>>,
    split: Option<OneOrMany>,
    created_at: Option<Timestamp>,
    source_run_id: Option<Uuid>,
    use_source_run_io: Option<bool>,
    use_source_run_attachments: Option<Vec<String>>,
}

/// All parts of an example.
struct ExampleParts {
    id: ExampleId,
    head: ExampleHead,
    inputs: Option<String>,
    outputs: Option<String>,
    files: Vec<NewFile>,
    operations: Option<AttachmentOperations>,
}

impl From<MultipartError> for ApiError {
    fn from(error: MultipartError) -> Self {
        match error {
            MultipartError::ContentType => Self::unsupported_media_type(error.to_string()),
            error => Self::bad_request(error.to_string()),
        }
    }
}

/// Reads a multipart body: its boundary and its bytes.
pub(super) async fn read_multipart(app: &App, request: Request) -> Result<(String, Bytes), ApiError> {
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = multipart::boundary(kind)?.to_owned();
    let body = read_body(request.into_body(), app.settings.ingest_body_bytes).await?;
    Ok((boundary, body))
}

fn parse_parts(boundary: &str, body: &[u8]) -> Result<Vec<ExampleParts>, ApiError> {
    let mut all: Vec<ExampleParts> = Vec::new();
    let mut ids = HashSet::new();
    for part in multipart::parts(body, boundary) {
        let part = part?;
        let (id, rest) = part.name.split_once('.').unwrap_or((part.name, ""));
        let bad = |what: &str| ApiError::bad_request(format!("{}: {what}", part.name));
        let id: Uuid = id
            .parse()
            .map_err(|_| bad("expected a part name that begins with the id of an example"))?;
        let id = ExampleId(id);
        if rest.is_empty() {
            if !ids.insert(id) {
                return Err(bad("the example occurs twice in the request"));
            }
            check_count(all.len() + 1)?;
            all.push(ExampleParts {
                id,
                head: parse_json(part.data)?,
                inputs: None,
                outputs: None,
                files: Vec::new(),
                operations: None,
            });
            continue;
        }
        // The further parts of an example follow its first one.
        let sent = all.last_mut().filter(|sent| sent.id == id);
        let sent = sent.ok_or_else(|| bad("expected the part named by the id alone before it"))?;
        match rest.split_once('.') {
            None if rest == "inputs" => sent.inputs = parse_object(rest, part.data)?,
            None if rest == "outputs" => sent.outputs = parse_object(rest, part.data)?,
            None if rest == "attachments_operations" => sent.operations = Some(parse_json(part.data)?),
            Some(("attachment", name)) => sent.files.push(NewFile {
                name: name.to_owned(),
                mime_type: part.content_type.to_owned(),
                data: part.data.to_vec(),
            }),
            _ => {
                return Err(bad(
                    "expected inputs, outputs, attachments_operations or attachment.<name>",
                ));
            }
        }
    }
    Ok(all)
}

fn parse_object(field: &str, data: &[u8]) -> Result<Option<String>, ApiError> {
    let wrong = || Rejection::invalid(field, "expected a JSON object");
    let sent: Box<RawValue> = serde_json::from_slice(data).map_err(|_| wrong())?;
    Ok(model::check_object_field(field, Some(sent))?.map(|text| text.get().to_owned()))
}

impl ExampleParts {
    fn into_draft(self) -> Result<ExampleDraft, ApiError> {
        if self.operations.is_some() {
            let text = "rename and retain are not allowed for a new example";
            return Err(Rejection::rule("attachments_operations", text).into());
        }
        Ok(ExampleDraft {
            has_inputs: self.inputs.is_some(),
            use_io: self.head.use_source_run_io.unwrap_or(false),
            use_attachments: self.head.use_source_run_attachments.unwrap_or_default(),
            new: NewExample {
                id: Some(self.id),
                created_at: self.head.created_at,
                inputs: self.inputs.unwrap_or_else(|| "{}".to_owned()),
                outputs: self.outputs,
                metadata: model::check_metadata(self.head.metadata)?,
                split: self.head.split.map(OneOrMany::into_list),
                source_run: self.head.source_run_id,
                files: self.files,
            },
        })
    }

    fn into_change(self) -> Result<(ExampleId, ExampleChange), ApiError> {
        let change = ExampleChange {
            inputs: self.inputs,
            outputs: self.outputs,
            metadata: model::check_metadata(self.head.metadata)?,
            split: self.head.split.map(OneOrMany::into_list),
            file_retention: self.operations.map(FileRetention::from).unwrap_or_default(),
            files: self.files,
        };
        Ok((self.id, change))
    }
}

/// Create examples with their files, all or none.
#[utoipa::path(post, path = "/v1/platform/datasets/{dataset_id}/examples", operation_id = "create_parts", tag = "examples",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    request_body(content = Vec<u8>, content_type = "multipart/form-data",
        description = "For each example: a part named by its id, then `<id>.inputs`, `<id>.outputs` and `<id>.attachment.<name>`"),
    responses((status = 201, description = "Created", body = ExampleWriteResult),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "An id is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Path(dataset): Path<DatasetId>,
    request: Request,
) -> Result<(http::StatusCode, Json<ExampleWriteResult>), ApiError> {
    let (boundary, body) = read_multipart(&app, request).await?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let sent = parse_parts(&boundary, &body)?;
    let drafts = sent
        .into_iter()
        .map(ExampleParts::into_draft)
        .collect::<Result<Vec<_>, _>>()?;
    let news = source_runs::fill_from_source_runs(&app, tenant, drafts).await?;
    let made = app
        .store
        .write(async |tx| examples::create(tx, tenant.id, dataset, &news).await);
    Ok((
        http::StatusCode::CREATED,
        Json(made.await.map_err(dataset_not_found)?.into()),
    ))
}

/// Change examples with their files, all or none.
#[utoipa::path(patch, path = "/v1/platform/datasets/{dataset_id}/examples", operation_id = "update_parts", tag = "examples",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    request_body(content = Vec<u8>, content_type = "multipart/form-data",
        description = "As for creation, and `<id>.attachments_operations`"),
    responses((status = 200, description = "Updated", body = ExampleWriteResult),
              (status = 404, description = "No such dataset in this workspace, or no such example in it"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(dataset): Path<DatasetId>,
    request: Request,
) -> Result<Json<ExampleWriteResult>, ApiError> {
    let (boundary, body) = read_multipart(&app, request).await?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let sent = parse_parts(&boundary, &body)?;
    let changes = sent
        .into_iter()
        .map(ExampleParts::into_change)
        .collect::<Result<Vec<_>, _>>()?;
    let changed = app
        .store
        .write(async |tx| examples::update(tx, tenant.id, dataset, &changes).await);
    Ok(Json(changed.await.map_err(dataset_not_found)?.into()))
}

/// Create or replace examples with their files: an existing id is changed. All examples belong to the dataset that the
/// first part of each names.
#[utoipa::path(post, path = "/v1/platform/examples/multipart", tag = "examples",
    request_body(content = Vec<u8>, content_type = "multipart/form-data", description = "As for creation"),
    responses((status = 200, description = "Written", body = ExampleWriteResult),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn upsert(
    State(app): State<App>,
    tenant: Tenant,
    request: Request,
) -> Result<Json<ExampleWriteResult>, ApiError> {
    let (boundary, body) = read_multipart(&app, request).await?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let sent = parse_parts(&boundary, &body)?;
    let dataset = sent.first().and_then(|first| first.head.dataset_id);
    let dataset = dataset.ok_or_else(|| Rejection::invalid("dataset_id", "field required"))?;
    if sent
        .iter()
        .any(|one| one.head.dataset_id.is_some_and(|other| other != dataset))
    {
        return Err(Rejection::rule("dataset_id", "expected the same dataset for all examples of a request").into());
    }
    let ids: Vec<ExampleId> = sent.iter().map(|one| one.id).collect();
    let there = app
        .store
        .read(async |tx| examples::existing(tx, tenant.id, Some(dataset), &ids).await);
    let there: HashSet<ExampleId> = there.await?.into_iter().collect();
    let (old, new): (Vec<ExampleParts>, Vec<ExampleParts>) = sent.into_iter().partition(|one| there.contains(&one.id));
    let changes = old
        .into_iter()
        .map(ExampleParts::into_change)
        .collect::<Result<Vec<_>, _>>()?;
    let drafts = new
        .into_iter()
        .map(ExampleParts::into_draft)
        .collect::<Result<Vec<_>, _>>()?;
    let news = source_runs::fill_from_source_runs(&app, tenant, drafts).await?;
    let written = app.store.write(async |tx| {
        let mut as_of = store::datasets::get(tx, tenant.id, dataset).await?.version_at;
        if !changes.is_empty() {
            as_of = examples::update(tx, tenant.id, dataset, &changes).await?.as_of;
        }
        if !news.is_empty() {
            as_of = examples::create(tx, tenant.id, dataset, &news).await?.as_of;
        }
        Ok(as_of)
    });
    let as_of = written.await.map_err(dataset_not_found)?;
    Ok(Json(ExampleWriteResult {
        count: ids.len(),
        example_ids: ids,
        as_of: Some(as_of),
    }))
}
