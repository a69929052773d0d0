//! Examples, single and as lists. Bulk requests with files are in [`super::multipart`].

use std::collections::{BTreeMap, HashMap};

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use towpath_domain::dataset::MAX_EXAMPLES;
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::datasets::examples::{self, Example, ExampleChange, Filter, NewExample};
use towpath_store::datasets::files::FileRetention;
use towpath_store::datasets::versions::AsOf;
use uuid::Uuid;

use super::listing::{as_of, version_time};
use super::model::{self, JsonBody, JsonList, OneOrMany};
use super::{dataset_not_found, source_runs};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, optional_object};
use crate::platform::attachments;

/// An example with the selected fields.
#[derive(Serialize)]
#[serde(transparent)]
pub struct ExampleView(BTreeMap<&'static str, Box<RawValue>>);

/// Fields shown by default.
pub(super) const FIELDS: [&str; 10] = [
    "id",
    "name",
    "dataset_id",
    "created_at",
    "modified_at",
    "inputs",
    "outputs",
    "metadata",
    "source_run_id",
    "attachment_urls",
];

impl ExampleView {
    /// An example with these fields of [`FIELDS`].
    pub(super) fn new(app: &App, tenant: TenantId, row: &Example, fields: &[&'static str]) -> Result<Self, ApiError> {
        let corrupt = |column| ApiError::from(store::Error::corrupt("example", column, row.example_id));
        let raw = |column, text: &str| RawValue::from_string(text.to_owned()).map_err(|_| corrupt(column));
        let value = |value: Value| to_raw_value(&value).map_err(|error| ApiError::internal(&error));
        let mut shown = BTreeMap::new();
        for field in fields.iter().copied() {
            let text = match field {
                "id" => value(json!(row.example_id))?,
                // A short display name for pages that cannot show the whole id.
                "name" => value(json!(format!("#{}", &row.example_id.0.simple().to_string()[..4])))?,
                "dataset_id" => value(json!(row.dataset_id))?,
                "created_at" => value(json!(row.created_at))?,
                "modified_at" => value(json!(row.valid_from))?,
                "inputs" => raw("inputs", &row.inputs)?,
                "outputs" => raw("outputs", row.outputs.as_deref().unwrap_or("null"))?,
                "metadata" => raw("metadata", &row.metadata)?,
                "source_run_id" => value(json!(row.source_run_id))?,
                "attachment_urls" => value(attachment_links(app, tenant, row)?)?,
                _ => continue,
            };
            shown.insert(field, text);
        }
        Ok(Self(shown))
    }

    /// Adds a field.
    pub(super) fn with_field(mut self, name: &'static str, value: &impl Serialize) -> Result<Self, ApiError> {
        let value = to_raw_value(value).map_err(|error| ApiError::internal(&error))?;
        self.0.insert(name, value);
        Ok(self)
    }
}

/// All fields except links to files, which clients follow at once.
pub(super) fn fields_without_links() -> Vec<&'static str> {
    FIELDS.into_iter().filter(|field| *field != "attachment_urls").collect()
}

fn attachment_links(app: &App, tenant: TenantId, row: &Example) -> Result<Value, ApiError> {
    let links = row.files()?.into_iter().map(|file| {
        let link = json!({
            "presigned_url": attachments::example_link(app, tenant, file.id),
            "mime_type": file.mime_type,
        });
        (format!("attachment.{}", file.name), link)
    });
    let links: Map<String, Value> = links.collect();
    Ok(if links.is_empty() { Value::Null } else { links.into() })
}

/// An example to create. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewExample)]
pub struct CreateExample {
    #[schema(value_type = Option<Uuid>)]
    id: Option<ExampleId>,
    /// Must be the same for all examples of a request.
    #[schema(value_type = Uuid)]
    dataset_id: DatasetId,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    inputs: Option<Box<RawValue>>,
    /// Expected outputs.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    outputs: Option<Box<RawValue>>,
    metadata: Option<Map<String, Value>>,
    /// Splits of the example; `base` if neither this nor `metadata` names one.
    split: Option<OneOrMany>,
    #[schema(value_type = Option<String>, format = DateTime)]
    created_at: Option<Timestamp>,
    /// The trace run that the example is made from.
    source_run_id: Option<Uuid>,
    /// Copy inputs, outputs and attachments from the source run.
    #[serde(default)]
    use_source_run_io: Option<bool>,
    /// Copy these attachments from the source run.
    #[serde(default)]
    use_source_run_attachments: Option<Vec<String>>,
}

/// An example whose source run has not been read yet.
pub(super) struct ExampleDraft {
    pub(super) new: NewExample,
    pub(super) has_inputs: bool,
    pub(super) use_io: bool,
    pub(super) use_attachments: Vec<String>,
}

impl CreateExample {
    fn draft(self) -> Result<ExampleDraft, ApiError> {
        let inputs = model::check_object_field("inputs", self.inputs)?;
        Ok(ExampleDraft {
            has_inputs: inputs.is_some(),
            use_io: self.use_source_run_io.unwrap_or(false),
            use_attachments: self.use_source_run_attachments.unwrap_or_default(),
            new: NewExample {
                id: self.id,
                created_at: self.created_at,
                inputs: inputs.map_or_else(|| "{}".to_owned(), |inputs| inputs.get().to_owned()),
                outputs: model::check_object_field("outputs", self.outputs)?.map(|outputs| outputs.get().to_owned()),
                metadata: model::check_metadata(self.metadata)?,
                split: self.split.map(OneOrMany::into_list),
                source_run: self.source_run_id,
                files: Vec::new(),
            },
        })
    }
}

/// Creates examples and shows them.
async fn create_all(app: &App, tenant: Tenant, news: Vec<CreateExample>) -> Result<Vec<ExampleView>, ApiError> {
    let Some(dataset) = news.first().map(|new| new.dataset_id) else {
        return Ok(Vec::new());
    };
    if news.iter().any(|new| new.dataset_id != dataset) {
        return Err(Rejection::rule("dataset_id", "expected the same dataset for all examples of a request").into());
    }
    check_count(news.len())?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let drafts = news
        .into_iter()
        .map(CreateExample::draft)
        .collect::<Result<Vec<_>, _>>()?;
    let news = source_runs::fill_from_source_runs(app, tenant, drafts).await?;
    let made = app.store.write(async |tx| {
        let written = examples::create(tx, tenant.id, dataset, &news).await?;
        let criteria = Filter {
            ids: written.ids.clone(),
            ..Filter::default()
        };
        let most = i64::try_from(written.ids.len()).unwrap_or(i64::MAX);
        let rows = examples::list(tx, tenant.id, &criteria, most, 0).await?;
        Ok((written, rows))
    });
    let (written, mut rows) = made.await.map_err(dataset_not_found)?;
    let order: HashMap<ExampleId, usize> = written.ids.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    rows.sort_by_key(|row| order.get(&row.example_id).copied());
    rows.iter()
        .map(|row| ExampleView::new(app, tenant.id, row, &FIELDS))
        .collect()
}

pub(super) fn check_count(count: usize) -> Result<(), ApiError> {
    if count > MAX_EXAMPLES {
        let text = format!("expected at most {MAX_EXAMPLES} examples; send several requests");
        return Err(ApiError::bad_request(text));
    }
    Ok(())
}

/// Create an example.
#[utoipa::path(post, path = "/examples", tag = "examples", request_body = CreateExample,
    responses((status = 200, description = "Created", body = Object),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "The id is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(new): JsonBody<CreateExample>,
) -> Result<Json<ExampleView>, ApiError> {
    let made = create_all(&app, tenant, vec![new]).await?.pop();
    made.map(Json).ok_or_else(|| ApiError::not_found("example"))
}

/// Create examples, all or none.
#[utoipa::path(post, path = "/examples/bulk", tag = "examples", request_body = Vec<CreateExample>,
    responses((status = 200, description = "Created", body = Vec<Object>),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "An id is already in use"), ApiError))]
pub async fn create_many(
    State(app): State<App>,
    tenant: Tenant,
    JsonList(news): JsonList<CreateExample>,
) -> Result<Json<Vec<ExampleView>>, ApiError> {
    create_all(&app, tenant, news).await.map(Json)
}

/// Get one example.
#[utoipa::path(get, path = "/examples/{example_id}", tag = "examples",
    params(("example_id" = Uuid, Path, description = "The example"),
           ("as_of" = Option<String>, Query, description = "A time or a tag: the version to read"),
           ("dataset" = Option<Uuid>, Query, description = "Its dataset")),
    responses((status = 200, description = "The example", body = Object),
              (status = 404, description = "No such example in this workspace, or in that version"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExampleId>,
    sent: Pairs,
) -> Result<Json<ExampleView>, ApiError> {
    let as_of = as_of(&sent);
    let read = app.store.read(async |tx| {
        let dataset = match &as_of {
            Some(AsOf::Tag(_)) => Some(examples::dataset_of(tx, tenant.id, id).await?),
            _ => None,
        };
        let at = version_time(tx, tenant.id, dataset, as_of.as_ref()).await?;
        examples::get(tx, tenant.id, id, at).await
    });
    let row = read.await.map_err(example_not_found)?;
    Ok(Json(ExampleView::new(&app, tenant.id, &row, &FIELDS)?))
}

pub(super) fn example_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("example"),
        error => error.into(),
    }
}

/// Changes of the files of an example.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = AttachmentsOperations)]
pub struct AttachmentOperations {
    /// New name for each old name.
    #[serde(default)]
    rename: BTreeMap<String, String>,
    /// Names to keep; all others are deleted.
    #[serde(default)]
    retain: Vec<String>,
}

impl From<AttachmentOperations> for FileRetention {
    fn from(AttachmentOperations { rename, retain }: AttachmentOperations) -> Self {
        Self::Named { rename, retain }
    }
}

/// Changes of an example; null and omitted fields stay unchanged. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ExampleChange)]
pub struct UpdateExample {
    /// Required when a request changes several examples.
    #[schema(value_type = Option<Uuid>)]
    id: Option<ExampleId>,
    /// Its dataset. An example cannot be moved to another dataset.
    #[schema(value_type = Option<Uuid>)]
    dataset_id: Option<DatasetId>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    inputs: Option<Box<RawValue>>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    outputs: Option<Box<RawValue>>,
    metadata: Option<Map<String, Value>>,
    split: Option<OneOrMany>,
    #[serde(default, deserialize_with = "optional_object")]
    attachments_operations: Option<AttachmentOperations>,
}

impl UpdateExample {
    fn admit(self) -> Result<ExampleChange, ApiError> {
        Ok(ExampleChange {
            inputs: model::check_object_field("inputs", self.inputs)?.map(|inputs| inputs.get().to_owned()),
            outputs: model::check_object_field("outputs", self.outputs)?.map(|outputs| outputs.get().to_owned()),
            metadata: model::check_metadata(self.metadata)?,
            split: self.split.map(OneOrMany::into_list),
            file_retention: self.attachments_operations.map(FileRetention::from).unwrap_or_default(),
            files: Vec::new(),
        })
    }
}

/// Changes examples of one dataset, the one of the first example.
async fn update_all(
    app: &App,
    tenant: Tenant,
    said: Option<DatasetId>,
    changes: Vec<(ExampleId, ExampleChange)>,
) -> Result<usize, ApiError> {
    let Some((first, _)) = changes.first() else {
        return Ok(0);
    };
    let first = *first;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let changed = app.store.write(async |tx| {
        let dataset = examples::get(tx, tenant.id, first, None).await?.dataset_id;
        if said.is_some_and(|said| said != dataset) {
            let text = "the example is in another dataset and cannot be moved: create it there and delete it here";
            return Err(Rejection::rule("dataset_id", text).into());
        }
        examples::update(tx, tenant.id, dataset, &changes).await
    });
    Ok(changed.await.map_err(example_not_found)?.ids.len())
}

/// Change an example. Creates a version of its dataset.
#[utoipa::path(patch, path = "/examples/{example_id}", tag = "examples", request_body = UpdateExample,
    params(("example_id" = Uuid, Path, description = "The example")),
    responses((status = 200, description = "Updated", body = Object),
              (status = 404, description = "No such example in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExampleId>,
    JsonBody(sent): JsonBody<UpdateExample>,
) -> Result<Json<Value>, ApiError> {
    let dataset = sent.dataset_id;
    update_all(&app, tenant, dataset, vec![(id, sent.admit()?)]).await?;
    Ok(Json(json!({"message": "Example updated"})))
}

/// Change examples of one dataset, all or none.
#[utoipa::path(patch, path = "/examples/bulk", tag = "examples", request_body = Vec<UpdateExample>,
    responses((status = 200, description = "Updated", body = Object),
              (status = 404, description = "One of the examples does not exist in this workspace"), ApiError))]
pub async fn update_many(
    State(app): State<App>,
    tenant: Tenant,
    JsonList(sent): JsonList<UpdateExample>,
) -> Result<Json<Value>, ApiError> {
    check_count(sent.len())?;
    let dataset = sent.iter().find_map(|change| change.dataset_id);
    if sent
        .iter()
        .any(|change| change.dataset_id.is_some() && change.dataset_id != dataset)
    {
        return Err(Rejection::rule("dataset_id", "expected the same dataset for all examples of a request").into());
    }
    let mut changes = Vec::with_capacity(sent.len());
    for (at, change) in sent.into_iter().enumerate() {
        let id = change
            .id
            .ok_or_else(|| Rejection::invalid(format!("{at}.id"), "field required"))?;
        changes.push((id, change.admit()?));
    }
    let count = update_all(&app, tenant, dataset, changes).await?;
    Ok(Json(
        json!({"message": format!("{count} examples updated"), "count": count}),
    ))
}
