//! Datasets: cases that applications are evaluated on. Their examples, versions and experiments have modules of their own.

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
use towpath_store::datasets::{self, Criteria, Dataset, DatasetChange, Experiments, NewDataset};
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, optional_object};
use crate::platform::exports::MAX_OFFSET;
use model::Sent;

/// A dataset.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Dataset)]
pub struct Shown {
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
    /// Experiments.
    session_count: i64,
    #[schema(value_type = Option<String>, format = DateTime)]
    last_session_start_time: Option<Timestamp>,
}

impl Shown {
    fn new(row: Dataset, experiments: Option<&Experiments>) -> Result<Self, ApiError> {
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

/// A dataset to be created. Further fields that the official clients send are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewDataset)]
pub struct New {
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
    /// `metadata` in it is the dataset's where none stands beside it.
    #[serde(default, deserialize_with = "optional_object")]
    extra: Option<Extra>,
}

/// What clients send around the metadata.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DatasetExtra)]
pub struct Extra {
    metadata: Option<Map<String, Value>>,
}

fn refuse_transformations(transformations: Option<&Vec<Value>>) -> Result<(), ApiError> {
    if transformations.is_some_and(|list| !list.is_empty()) {
        return Err(Rejection::unsupported("transformations", "a dataset with transformations").into());
    }
    Ok(())
}

/// Create a dataset.
#[utoipa::path(post, path = "/datasets", tag = "datasets", request_body = New,
    responses((status = 200, description = "Created", body = Shown),
              (status = 409, description = "The name or the id is taken"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, Sent(new): Sent<New>) -> Result<Json<Shown>, ApiError> {
    refuse_transformations(new.transformations.as_ref())?;
    let new = NewDataset {
        id: new.id.unwrap_or_else(DatasetId::new),
        name: new.name,
        description: model::text("description", new.description)?,
        data_type: new.data_type.unwrap_or_default(),
        inputs_schema: model::object("inputs_schema_definition", new.inputs_schema_definition)?,
        outputs_schema: model::object("outputs_schema_definition", new.outputs_schema_definition)?,
        metadata: model::metadata(new.metadata.or_else(|| new.extra?.metadata))?.unwrap_or_default(),
    };
    let made = app.store.write(async |tx| datasets::create(tx, tenant.id, &new).await);
    Ok(Json(Shown::new(made.await?, None)?))
}

/// What the list can be asked for.
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

fn criteria(sent: &Pairs) -> Result<Criteria, ApiError> {
    let types = sent.all("data_type").map(|name| {
        serde_json::from_value(json!(name))
            .map_err(|_| ApiError::from(Rejection::invalid("data_type", "expected kv, llm or chat")))
    });
    Ok(Criteria {
        ids: sent.read::<Uuid>("id", "a UUID")?.into_iter().map(DatasetId).collect(),
        name: sent.all("name").last().map(str::to_owned),
        name_contains: sent.all("name_contains").last().map(str::to_owned),
        data_types: types.collect::<Result<Vec<DataType>, ApiError>>()?,
        metadata: model::metadata_filter(sent)?,
    })
}

/// Datasets, newest first. A filter that is not here is refused, not ignored.
#[utoipa::path(get, path = "/datasets", tag = "datasets",
    params(("id" = Option<Vec<Uuid>>, Query, description = "One of these"),
           ("name" = Option<String>, Query, description = "Exactly this name"),
           ("name_contains" = Option<String>, Query, description = "With this in its name, in upper or lower case"),
           ("data_type" = Option<String>, Query, description = "`kv`, `llm` or `chat`"),
           ("metadata" = Option<String>, Query, description = "A JSON object that the metadata has in it"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Datasets", body = Vec<Shown>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Shown>>, ApiError> {
    sent.only(&PARAMETERS)?;
    model::refuse(&sent, &["tag_value_id"])?;
    if sent
        .all("sort_by")
        .any(|order| !order.is_empty() && order != "created_at")
    {
        return Err(Rejection::unsupported("sort_by", "a list of datasets in another order than created_at").into());
    }
    let criteria = criteria(&sent)?;
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let read = app.store.read(async |tx| {
        let found = datasets::list(tx, tenant.id, &criteria, limit, offset).await?;
        let ids: Vec<DatasetId> = found.iter().map(|row| row.id).collect();
        let counted = datasets::experiments(tx, tenant.id, &ids).await?;
        Ok((found, counted))
    });
    let (found, counted) = read.await?;
    let shown = found.into_iter().map(|row| {
        let experiments = counted.get(&row.id);
        Shown::new(row, experiments)
    });
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

/// One dataset.
#[utoipa::path(get, path = "/datasets/{dataset_id}", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 200, description = "The dataset", body = Shown),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(id): Path<DatasetId>) -> Result<Json<Shown>, ApiError> {
    let read = app.store.read(async |tx| {
        let found = datasets::get(tx, tenant.id, id).await?;
        let counted = datasets::experiments(tx, tenant.id, &[id]).await?;
        Ok((found, counted))
    });
    let (found, counted) = read.await.map_err(missing)?;
    Ok(Json(Shown::new(found, counted.get(&id))?))
}

/// What changes of a dataset; null and what is not sent stay. Further fields that the official clients send are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DatasetChange)]
pub struct Change {
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
#[utoipa::path(patch, path = "/datasets/{dataset_id}", tag = "datasets", request_body = Change,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 200, description = "Changed", body = Shown),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "The name is taken"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    Sent(change): Sent<Change>,
) -> Result<Json<Shown>, ApiError> {
    refuse_transformations(change.transformations.as_ref())?;
    let change = DatasetChange {
        name: change.name,
        description: model::text("description", change.description)?,
        inputs_schema: model::object("inputs_schema_definition", change.inputs_schema_definition)?,
        outputs_schema: model::object("outputs_schema_definition", change.outputs_schema_definition)?,
        metadata: model::metadata(change.metadata)?,
    };
    let changed = app.store.write(async |tx| {
        let changed = datasets::update(tx, tenant.id, id, &change).await?;
        let counted = datasets::experiments(tx, tenant.id, &[id]).await?;
        Ok((changed, counted))
    });
    let (changed, counted) = changed.await.map_err(missing)?;
    Ok(Json(Shown::new(changed, counted.get(&id))?))
}

/// Delete a dataset with its examples and their files, in all versions. Its experiments stay as projects.
#[utoipa::path(delete, path = "/datasets/{dataset_id}", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<DatasetId>) -> Result<StatusCode, ApiError> {
    let gone = app.store.write(async |tx| datasets::delete(tx, tenant.id, id).await);
    gone.await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sharing a dataset with everybody. Always refused.
#[utoipa::path(put, path = "/datasets/{dataset_id}/share", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 400, description = "Not available in this build"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn share(State(app): State<App>, tenant: Tenant, Path(id): Path<DatasetId>) -> Result<StatusCode, ApiError> {
    let found = app.store.read(async |tx| datasets::get(tx, tenant.id, id).await);
    found.await.map_err(missing)?;
    let text = "sharing a dataset with people who have no key";
    Err(Rejection::unsupported("", text).into())
}

/// How a dataset is shared: no dataset is.
#[utoipa::path(get, path = "/datasets/{dataset_id}/share", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 404, description = "The dataset is not shared, or not there"), ApiError))]
pub async fn shared(_: Tenant, Path(_id): Path<DatasetId>) -> Result<StatusCode, ApiError> {
    Err(ApiError::not_found("share"))
}

/// What a missing row means where a dataset is named.
fn missing(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("dataset"),
        error => error.into(),
    }
}
