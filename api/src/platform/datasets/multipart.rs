//! Many examples in one body, with their files: how the official clients send and change them.
//!
//! ```text
//! <example id>                           {"dataset_id": …, "metadata": …, "split": …, "created_at": …, "source_run_id": …}
//! <example id>.inputs                    a JSON object
//! <example id>.outputs                   a JSON object
//! <example id>.attachment.<name>         a file
//! <example id>.attachments_operations    {"rename": {…}, "retain": […]}
//! ```

use axum::extract::{Request, State};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::{DatasetId, ExampleId, Rejection, Timestamp};
use towpath_store as store;
use towpath_store::datasets::examples::{self, ExampleChange, NewExample, Written};
use towpath_store::datasets::files::{Kept, NewFile};
use towpath_traces::multipart::{self, MultipartError};
use uuid::Uuid;

use super::examples::{Draft, Operations, check_count};
use super::model::{self, Names};
use super::{missing, source_runs};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, parse_json, read_body};

/// The longest type of a file.
const LONGEST_TYPE: usize = 255;

/// What was written.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = WrittenExamples)]
pub struct Answer {
    count: usize,
    #[schema(value_type = Vec<Uuid>)]
    example_ids: Vec<ExampleId>,
    /// The version of the dataset.
    #[schema(value_type = Option<String>, format = DateTime)]
    as_of: Option<Timestamp>,
}

impl From<Written> for Answer {
    fn from(written: Written) -> Self {
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
struct Head {
    dataset_id: Option<DatasetId>,
    metadata: Option<Map<String, Value>>,
    split: Option<Names>,
    created_at: Option<Timestamp>,
    source_run_id: Option<Uuid>,
    use_source_run_io: Option<bool>,
    use_source_run_attachments: Option<Vec<String>>,
}

/// All parts of an example.
struct Sent {
    id: ExampleId,
    head: Head,
    inputs: Option<String>,
    outputs: Option<String>,
    files: Vec<NewFile>,
    operations: Option<Operations>,
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
pub(super) async fn body(app: &App, request: Request) -> Result<(String, Bytes), ApiError> {
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = multipart::boundary(kind)?.to_owned();
    let body = read_body(request.into_body(), app.settings.ingest_body_bytes).await?;
    Ok((boundary, body))
}

fn parse(boundary: &str, body: &[u8]) -> Result<Vec<Sent>, ApiError> {
    let mut all: Vec<Sent> = Vec::new();
    for part in multipart::parts(body, boundary) {
        let part = part?;
        let (id, rest) = part.name.split_once('.').unwrap_or((part.name, ""));
        let bad = |what: &str| ApiError::bad_request(format!("{}: {what}", part.name));
        let id: Uuid = id
            .parse()
            .map_err(|_| bad("expected a part that is named by the id of an example"))?;
        let id = ExampleId(id);
        if rest.is_empty() {
            if all.iter().any(|sent| sent.id == id) {
                return Err(bad("the example is in the request twice"));
            }
            check_count(all.len() + 1)?;
            all.push(Sent {
                id,
                head: parse_json(part.data)?,
                inputs: None,
                outputs: None,
                files: Vec::new(),
                operations: None,
            });
            continue;
        }
        // Its parts follow the first one of an example.
        let sent = all.last_mut().filter(|sent| sent.id == id);
        let sent = sent.ok_or_else(|| bad("the part that is named by the id alone has to come before it"))?;
        match rest.split_once('.') {
            None if rest == "inputs" => sent.inputs = object(rest, part.data)?,
            None if rest == "outputs" => sent.outputs = object(rest, part.data)?,
            None if rest == "attachments_operations" => sent.operations = Some(parse_json(part.data)?),
            Some(("attachment", name)) => sent.files.push(file(name, part.content_type, part.data)?),
            _ => {
                return Err(bad(
                    "expected inputs, outputs, attachments_operations or attachment.<name>",
                ));
            }
        }
    }
    Ok(all)
}

fn object(field: &str, data: &[u8]) -> Result<Option<String>, ApiError> {
    let wrong = || Rejection::invalid(field, "expected a JSON object");
    let sent: Box<RawValue> = serde_json::from_slice(data).map_err(|_| wrong())?;
    Ok(model::object(field, Some(sent))?.map(|text| text.get().to_owned()))
}

fn file(name: &str, mime_type: &str, data: &[u8]) -> Result<NewFile, ApiError> {
    if mime_type.len() > LONGEST_TYPE {
        let text = format!("the type of `{name}` is longer than {LONGEST_TYPE} bytes");
        return Err(Rejection::invalid("attachments", text).into());
    }
    Ok(NewFile {
        name: name.to_owned(),
        mime_type: mime_type.to_owned(),
        data: data.to_vec(),
    })
}

impl Sent {
    fn draft(self) -> Result<Draft, ApiError> {
        if self.operations.is_some() {
            let text = "a new example has no attachments to rename or to retain";
            return Err(Rejection::rule("attachments_operations", text).into());
        }
        Ok(Draft {
            has_inputs: self.inputs.is_some(),
            use_io: self.head.use_source_run_io.unwrap_or(false),
            use_attachments: self.head.use_source_run_attachments.unwrap_or_default(),
            new: NewExample {
                id: Some(self.id),
                created_at: self.head.created_at,
                inputs: self.inputs.unwrap_or_else(|| "{}".to_owned()),
                outputs: self.outputs,
                metadata: model::metadata(self.head.metadata)?,
                split: self.head.split.map(Names::list),
                source_run: self.head.source_run_id,
                files: self.files,
            },
        })
    }

    fn change(self) -> Result<(ExampleId, ExampleChange), ApiError> {
        let change = ExampleChange {
            inputs: self.inputs,
            outputs: self.outputs,
            metadata: model::metadata(self.head.metadata)?,
            split: self.head.split.map(Names::list),
            kept: self.operations.map(Kept::from).unwrap_or_default(),
            files: self.files,
        };
        Ok((self.id, change))
    }
}

/// Create examples with their files, all or none.
#[utoipa::path(post, path = "/v1/platform/datasets/{dataset_id}/examples", tag = "examples",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    request_body(content = Vec<u8>, content_type = "multipart/form-data",
        description = "For each example a part named by its id, then `<id>.inputs`, `<id>.outputs` and `<id>.attachment.<name>`"),
    responses((status = 201, description = "Created", body = Answer),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "An id is taken"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Path(dataset): Path<DatasetId>,
    request: Request,
) -> Result<(http::StatusCode, Json<Answer>), ApiError> {
    let (boundary, body) = body(&app, request).await?;
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let sent = parse(&boundary, &body)?;
    let drafts = sent.into_iter().map(Sent::draft).collect::<Result<Vec<_>, _>>()?;
    let news = source_runs::complete(&app, tenant, drafts).await?;
    let made = app
        .store
        .write(async |tx| examples::create(tx, tenant.id, dataset, &news).await);
    Ok((http::StatusCode::CREATED, Json(made.await.map_err(missing)?.into())))
}

/// Change examples with their files, all or none.
#[utoipa::path(patch, path = "/v1/platform/datasets/{dataset_id}/examples", tag = "examples",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    request_body(content = Vec<u8>, content_type = "multipart/form-data",
        description = "As when they are created, and `<id>.attachments_operations`"),
    responses((status = 200, description = "Changed", body = Answer),
              (status = 404, description = "No such dataset in this workspace, or no such example in it"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(dataset): Path<DatasetId>,
    request: Request,
) -> Result<Json<Answer>, ApiError> {
    let (boundary, body) = body(&app, request).await?;
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let sent = parse(&boundary, &body)?;
    let changes = sent.into_iter().map(Sent::change).collect::<Result<Vec<_>, _>>()?;
    let changed = app
        .store
        .write(async |tx| examples::update(tx, tenant.id, dataset, &changes).await);
    Ok(Json(changed.await.map_err(missing)?.into()))
}

/// Create examples with their files, or change those whose ids are there. All are of one dataset, which the first part of each
/// names.
#[utoipa::path(post, path = "/v1/platform/examples/multipart", tag = "examples",
    request_body(content = Vec<u8>, content_type = "multipart/form-data", description = "As when they are created"),
    responses((status = 200, description = "Written", body = Answer),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn upsert(State(app): State<App>, tenant: Tenant, request: Request) -> Result<Json<Answer>, ApiError> {
    let (boundary, body) = body(&app, request).await?;
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let sent = parse(&boundary, &body)?;
    let dataset = sent.first().and_then(|first| first.head.dataset_id);
    let dataset = dataset.ok_or_else(|| Rejection::invalid("dataset_id", "field required"))?;
    if sent
        .iter()
        .any(|one| one.head.dataset_id.is_some_and(|other| other != dataset))
    {
        return Err(Rejection::rule("dataset_id", "all examples of a request are of one dataset").into());
    }
    let ids: Vec<ExampleId> = sent.iter().map(|one| one.id).collect();
    let criteria = examples::Criteria {
        dataset: Some(dataset),
        ids: ids.clone(),
        ..examples::Criteria::default()
    };
    let most = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let there = app
        .store
        .read(async |tx| examples::list(tx, tenant.id, &criteria, most, 0).await)
        .await?;
    let (old, new): (Vec<Sent>, Vec<Sent>) = sent
        .into_iter()
        .partition(|one| there.iter().any(|row| row.example_id == one.id));
    let changes = old.into_iter().map(Sent::change).collect::<Result<Vec<_>, _>>()?;
    let drafts = new.into_iter().map(Sent::draft).collect::<Result<Vec<_>, _>>()?;
    let news = source_runs::complete(&app, tenant, drafts).await?;
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
    let as_of = written.await.map_err(missing)?;
    Ok(Json(Answer {
        count: ids.len(),
        example_ids: ids,
        as_of: Some(as_of),
    }))
}
