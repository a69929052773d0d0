//! Datasets. Submodules hold their examples, versions and experiments.

pub mod comparative;
pub mod deletion;
pub mod examples;
pub mod listing;
pub mod model;
pub mod multipart;
pub mod results;
pub mod source_runs;
pub mod splits;
pub mod upload;
pub mod versions;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use towpath_domain::dataset::DataType;
use towpath_domain::{DatasetId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::datasets::{self, Dataset, DatasetChange, ExperimentCount, Filter, NewDataset};
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, optional_object};
use crate::platform::paging;
use model::JsonBody;

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Dataset)]
pub struct DatasetView {
    #[schema(value_type = Uuid)]
    id: DatasetId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    name: String,
    description: Option<String>,
    data_type: String,
    #[schema(value_type = Option<Object>)]
    inputs_schema_definition: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    outputs_schema_definition: Option<Box<RawValue>>,
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
    example_count: i64,
    /// Number of experiments.
    session_count: i64,
    #[schema(value_type = Option<String>, format = DateTime)]
    last_session_start_time: Option<Timestamp>,
}

impl DatasetView {
    fn new(row: Dataset, experiments: Option<&ExperimentCount>) -> Result<Self, ApiError> {
        let raw = |column: &'static str, text: String| {
            RawValue::from_string(text).map_err(|_| store::Error::corrupt("dataset", column, row.id))
        };
        let schema = |column, text: Option<String>| text.map(|text| raw(column, text)).transpose();
        Ok(Self {
            id: row.id,
            tenant_id: row.tenant_id,
            inputs_schema_definition: schema("inputs_schema", row.inputs_schema)?,
            outputs_schema_definition: schema("outputs_schema", row.outputs_schema)?,
            metadata: raw("metadata", row.metadata)?,
            name: row.name,
            description: row.description,
            data_type: row.data_type,
            created_at: row.created_at,
            modified_at: row.modified_at,
            example_count: row.example_count,
            session_count: experiments.map_or(0, |counted| counted.experiments),
            last_session_start_time: experiments.and_then(|counted| counted.last_start),
        })
    }
}

/// A dataset to create. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewDataset)]
pub struct CreateDataset {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    name: String,
    #[schema(value_type = Option<Uuid>)]
    id: Option<DatasetId>,
    #[schema(pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    #[schema(value_type = Option<String>)]
    data_type: Option<DataType>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    inputs_schema_definition: Option<Box<RawValue>>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    outputs_schema_definition: Option<Box<RawValue>>,
    /// Refused unless empty: not available in this build.
    transformations: Option<Vec<Value>>,
    metadata: Option<Map<String, Value>>,
    /// `extra.metadata` is used if `metadata` is not set.
    #[serde(default, deserialize_with = "optional_object")]
    extra: Option<DatasetExtra>,
}

/// Wrapper in which clients send the metadata.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DatasetExtra)]
pub struct DatasetExtra {
    metadata: Option<Map<String, Value>>,
}

fn refuse_transformations(transformations: Option<&Vec<Value>>) -> Result<(), ApiError> {
    if transformations.is_some_and(|list| !list.is_empty()) {
        return Err(Rejection::unsupported("transformations", "a dataset with transformations").into());
    }
    Ok(())
}

/// Create a dataset.
#[utoipa::path(post, path = "/datasets", tag = "datasets", request_body = CreateDataset,
    responses((status = 200, description = "Created", body = DatasetView),
              (status = 409, description = "The name or the id is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(new): JsonBody<CreateDataset>,
) -> Result<Json<DatasetView>, ApiError> {
    refuse_transformations(new.transformations.as_ref())?;
    let new = NewDataset {
        id: new.id.unwrap_or_else(DatasetId::new),
        name: new.name,
        description: model::check_text_field("description", new.description)?,
        data_type: new.data_type.unwrap_or_default(),
        inputs_schema: model::check_object_field("inputs_schema_definition", new.inputs_schema_definition)?,
        outputs_schema: model::check_object_field("outputs_schema_definition", new.outputs_schema_definition)?,
        metadata: model::check_metadata(new.metadata.or_else(|| new.extra?.metadata))?.unwrap_or_default(),
    };
    let made = app.store.write(async |tx| datasets::create(tx, tenant.id, &new).await);
    Ok(Json(DatasetView::new(made.await?, None)?))
}

/// Parameters of the list.
const PARAMETERS: [&str; 11] = [
    "id",
    "name",
    "name_contains",
    "data_type",
    "metadata",
    "limit",
    "offset",
    "sort_by",
    "sort_by_desc",
    "tag_value_id",
    "exclude_corrections_datasets",
];

fn criteria(sent: &Pairs) -> Result<Filter, ApiError> {
    let types = sent.all("data_type").map(|name| {
        serde_json::from_value(json!(name))
            .map_err(|_| ApiError::from(Rejection::invalid("data_type", "expected kv, llm or chat")))
    });
    Ok(Filter {
        ids: sent.read::<Uuid>("id", "a UUID")?.into_iter().map(DatasetId).collect(),
        name: sent.all("name").last().map(str::to_owned),
        name_contains: sent.all("name_contains").last().map(str::to_owned),
        data_types: types.collect::<Result<Vec<DataType>, ApiError>>()?,
        metadata: model::metadata_filter(sent)?,
    })
}

/// List datasets, newest first. Unknown filters are rejected.
#[utoipa::path(get, path = "/datasets", tag = "datasets",
    params(("id" = Option<Vec<Uuid>>, Query, description = "Dataset ids"),
           ("name" = Option<String>, Query, description = "Exact name"),
           ("name_contains" = Option<String>, Query, description = "Text in the name, in any case"),
           ("data_type" = Option<String>, Query, description = "`kv`, `llm` or `chat`"),
           ("metadata" = Option<String>, Query, description = "A JSON object that the metadata contains"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Datasets", body = Vec<DatasetView>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<DatasetView>>, ApiError> {
    sent.only(&PARAMETERS)?;
    model::refuse_parameters(&sent, &["tag_value_id"])?;
    if sent
        .all("sort_by")
        .any(|order| !order.is_empty() && order != "created_at")
    {
        return Err(Rejection::unsupported("sort_by", "a list of datasets in another order than created_at").into());
    }
    let criteria = criteria(&sent)?;
    let (limit, offset) = paging::of(&sent)?;
    let read = app.store.read(async |tx| {
        let found = datasets::list(tx, tenant.id, &criteria, limit, offset).await?;
        let ids: Vec<DatasetId> = found.iter().map(|row| row.id).collect();
        let counted = datasets::experiments(tx, tenant.id, &ids).await?;
        Ok((found, counted))
    });
    let (found, counted) = read.await?;
    let shown = found.into_iter().map(|row| {
        let experiments = counted.get(&row.id);
        DatasetView::new(row, experiments)
    });
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

/// Get one dataset.
#[utoipa::path(get, path = "/datasets/{dataset_id}", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 200, description = "The dataset", body = DatasetView),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
) -> Result<Json<DatasetView>, ApiError> {
    let read = app.store.read(async |tx| {
        let found = datasets::get(tx, tenant.id, id).await?;
        let counted = datasets::experiments(tx, tenant.id, &[id]).await?;
        Ok((found, counted))
    });
    let (found, counted) = read.await.map_err(dataset_not_found)?;
    Ok(Json(DatasetView::new(found, counted.get(&id))?))
}

/// Changes of a dataset; null and omitted fields stay unchanged. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DatasetChange)]
pub struct UpdateDataset {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    name: Option<String>,
    #[schema(pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    inputs_schema_definition: Option<Box<RawValue>>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    outputs_schema_definition: Option<Box<RawValue>>,
    /// Refused unless empty: not available in this build.
    transformations: Option<Vec<Value>>,
    metadata: Option<Map<String, Value>>,
}

/// Change a dataset.
#[utoipa::path(patch, path = "/datasets/{dataset_id}", tag = "datasets", request_body = UpdateDataset,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 200, description = "Updated", body = DatasetView),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    JsonBody(change): JsonBody<UpdateDataset>,
) -> Result<Json<DatasetView>, ApiError> {
    refuse_transformations(change.transformations.as_ref())?;
    let change = DatasetChange {
        name: change.name,
        description: model::check_text_field("description", change.description)?,
        inputs_schema: model::check_object_field("inputs_schema_definition", change.inputs_schema_definition)?,
        outputs_schema: model::check_object_field("outputs_schema_definition", change.outputs_schema_definition)?,
        metadata: model::check_metadata(change.metadata)?,
    };
    let changed = app.store.write(async |tx| {
        let changed = datasets::update(tx, tenant.id, id, &change).await?;
        let counted = datasets::experiments(tx, tenant.id, &[id]).await?;
        Ok((changed, counted))
    });
    let (changed, counted) = changed.await.map_err(dataset_not_found)?;
    Ok(Json(DatasetView::new(changed, counted.get(&id))?))
}

/// Delete a dataset with its examples and their files, in all versions. Its experiments remain as projects.
#[utoipa::path(delete, path = "/datasets/{dataset_id}", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<DatasetId>) -> Result<StatusCode, ApiError> {
    loop {
        let some = app
            .store
            .write(async |tx| datasets::delete_batch(tx, tenant.id, id).await);
        if !some.await.map_err(dataset_not_found)? {
            break;
        }
    }
    let gone = app.store.write(async |tx| datasets::delete(tx, tenant.id, id).await);
    gone.await.map_err(dataset_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Share a dataset publicly. Always rejected.
#[utoipa::path(put, path = "/datasets/{dataset_id}/share", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 400, description = "Not available in this build"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn share(State(app): State<App>, tenant: Tenant, Path(id): Path<DatasetId>) -> Result<StatusCode, ApiError> {
    let found = app.store.read(async |tx| datasets::get(tx, tenant.id, id).await);
    found.await.map_err(dataset_not_found)?;
    let text = "public sharing of a dataset";
    Err(Rejection::unsupported("", text).into())
}

/// Get how a dataset is shared. No dataset is.
#[utoipa::path(get, path = "/datasets/{dataset_id}/share", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 404, description = "The dataset is not shared or does not exist"), ApiError))]
pub async fn shared(_: Tenant, Path(_id): Path<DatasetId>) -> Result<StatusCode, ApiError> {
    Err(ApiError::not_found("share"))
}

/// Maps a missing row to 404 for a dataset.
fn dataset_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("dataset"),
        error => error.into(),
    }
}
