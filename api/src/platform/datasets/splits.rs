//! Splits of datasets, which are stored in the metadata of examples, and bulk changes of metadata.

use std::collections::HashSet;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use towpath_domain::dataset::{BASE_SPLIT, SPLIT_KEY, check_label, set_splits, splits};
use towpath_domain::{DatasetId, ExampleId, Rejection};
use towpath_store::datasets::examples;
use towpath_store::datasets::versions::{self, AsOf};

use super::dataset_not_found;
use super::examples::check_count;
use super::listing::as_of;
use super::model::{self, JsonBody};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, objects};

/// Maximum number of operations in one request.
const MAX_OPERATIONS: usize = 50;
/// Maximum number of values in one list operation.
const MAX_VALUES: usize = 1000;

/// List the names of the splits of a dataset, sorted.
#[utoipa::path(get, path = "/datasets/{dataset_id}/splits", operation_id = "list_splits", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("as_of" = Option<String>, Query, description = "A time or a tag: the version to read")),
    responses((status = 200, description = "Names", body = Vec<String>),
              (status = 404, description = "No such dataset or tag in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<Vec<String>>, ApiError> {
    sent.only(&["as_of"])?;
    let as_of = as_of(&sent).filter(|as_of| *as_of != AsOf::Tag("latest".to_owned()));
    let read = app.store.read(async |tx| {
        let at = match &as_of {
            None => None,
            Some(as_of) => Some(versions::resolve(tx, tenant.id, id, as_of).await?),
        };
        examples::splits(tx, tenant.id, id, at).await
    });
    Ok(Json(read.await.map_err(dataset_not_found)?))
}

/// Examples to add to or remove from a split.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = SplitChange)]
pub struct UpdateSplit {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    split_name: String,
    #[schema(value_type = Vec<Uuid>)]
    examples: Vec<ExampleId>,
    /// Remove the examples from the split.
    #[serde(default)]
    remove: bool,
}

/// Add examples to a split or remove them from it. Ids that are not in the dataset are ignored.
#[utoipa::path(put, path = "/datasets/{dataset_id}/splits", operation_id = "update_splits", tag = "datasets", request_body = UpdateSplit,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 204, description = "Updated"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    JsonBody(sent): JsonBody<UpdateSplit>,
) -> Result<StatusCode, ApiError> {
    check_count(sent.examples.len())?;
    check_label("split_name", &sent.split_name)?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let operation = MetadataOperation {
        key: SPLIT_KEY.to_owned(),
        operation: if sent.remove {
            OperationKind::Remove
        } else {
            OperationKind::Add
        },
        value: None,
        values: Some(vec![Value::from(sent.split_name)]),
    };
    let changed = app.store.write(async |tx| {
        let change = |metadata: &mut Map<String, Value>| operation.apply(metadata);
        examples::rewrite_metadata(tx, tenant.id, id, &sent.examples, change).await
    });
    changed.await.map_err(dataset_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Kind of a metadata change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[schema(as = MetadataOperationKind)]
pub enum OperationKind {
    /// Set the key to a value.
    #[serde(rename = "SET", alias = "set")]
    Set,
    /// Add missing values to a list.
    #[serde(rename = "ARRAY_ADD", alias = "array_add")]
    Add,
    /// Remove values from a list.
    #[serde(rename = "ARRAY_REMOVE", alias = "array_remove")]
    Remove,
}

/// A change of one key of the metadata.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MetadataOperation)]
pub struct MetadataOperation {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    key: String,
    operation: OperationKind,
    /// Required for SET.
    #[serde(default)]
    value: Option<Value>,
    /// Required for ARRAY_ADD and ARRAY_REMOVE.
    #[serde(default)]
    values: Option<Vec<Value>>,
}

impl MetadataOperation {
    fn admit(&self) -> Result<(), Rejection> {
        check_label("operations", &self.key)?;
        let values = self.values.as_deref().unwrap_or_default();
        if values.len() > MAX_VALUES {
            return Err(Rejection::invalid(
                "operations",
                format!("expected at most {MAX_VALUES} values"),
            ));
        }
        if self.operation != OperationKind::Set && self.values.is_none() {
            return Err(Rejection::invalid(
                "operations",
                "values is required for ARRAY_ADD and ARRAY_REMOVE",
            ));
        }
        Ok(())
    }

    fn apply(&self, metadata: &mut Map<String, Value>) -> Result<(), Rejection> {
        let values = self.values.as_deref().unwrap_or_default();
        if self.operation == OperationKind::Set {
            metadata.insert(self.key.clone(), self.value.clone().unwrap_or(Value::Null));
        } else {
            if self.operation == OperationKind::Remove && !metadata.contains_key(&self.key) {
                return Ok(());
            }
            let list = metadata.entry(&self.key).or_insert_with(|| json!([]));
            // A single value counts as a list with one entry.
            if !list.is_array() {
                *list = json!([list.take()]);
            }
            let Value::Array(list) = list else { return Ok(()) };
            if self.operation == OperationKind::Add {
                for value in values {
                    if !list.contains(value) {
                        list.push(value.clone());
                    }
                }
            } else {
                list.retain(|known| !values.contains(known));
            }
        }
        if self.key == SPLIT_KEY {
            let mut named = splits(metadata);
            if named.is_empty() {
                named.push(BASE_SPLIT.to_owned());
            }
            set_splits(metadata, named)?;
        }
        model::check_metadata(Some(metadata.clone()))?;
        Ok(())
    }
}

/// Metadata changes for a list of examples.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = MetadataChange)]
pub struct UpdateMetadata {
    #[schema(value_type = Vec<Uuid>)]
    example_ids: Vec<ExampleId>,
    #[serde(deserialize_with = "objects")]
    operations: Vec<MetadataOperation>,
}

/// Result for one example.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = MetadataResult)]
pub struct ExampleStatus {
    #[schema(value_type = Uuid)]
    id: ExampleId,
    /// `UPDATED`, or `NOT_FOUND` if the example is not in the dataset.
    status: &'static str,
}

/// Results for all examples.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = MetadataResults)]
pub struct ExampleStatuses {
    /// In the order of the request.
    statuses: Vec<ExampleStatus>,
}

/// Apply the same metadata changes to examples, all or none. Ids that are not in the dataset are reported.
#[utoipa::path(patch, path = "/v1/platform/datasets/{dataset_id}/examples/metadata", tag = "examples",
    request_body = UpdateMetadata,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 207, description = "Result for each example", body = ExampleStatuses),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn update_metadata(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    JsonBody(sent): JsonBody<UpdateMetadata>,
) -> Result<(StatusCode, Json<ExampleStatuses>), ApiError> {
    check_count(sent.example_ids.len())?;
    if sent.operations.len() > MAX_OPERATIONS {
        return Err(ApiError::bad_request(format!(
            "operations: expected at most {MAX_OPERATIONS}"
        )));
    }
    for operation in &sent.operations {
        operation.admit()?;
    }
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let changed = app.store.write(async |tx| {
        let change = |metadata: &mut Map<String, Value>| {
            sent.operations
                .iter()
                .try_for_each(|operation| operation.apply(metadata))
        };
        examples::rewrite_metadata(tx, tenant.id, id, &sent.example_ids, change).await
    });
    let found: HashSet<ExampleId> = changed.await.map_err(dataset_not_found)?.into_iter().collect();
    let statuses = sent.example_ids.iter().map(|example| ExampleStatus {
        id: *example,
        status: if found.contains(example) {
            "UPDATED"
        } else {
            "NOT_FOUND"
        },
    });
    let statuses = statuses.collect();
    Ok((StatusCode::MULTI_STATUS, Json(ExampleStatuses { statuses })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_metadata_gain_and_lose_values() {
        let operation = |kind, values: Value| MetadataOperation {
            key: SPLIT_KEY.to_owned(),
            operation: kind,
            value: None,
            values: values.as_array().cloned(),
        };
        let mut metadata = Map::new();
        metadata.insert(SPLIT_KEY.to_owned(), json!(["base"]));
        operation(OperationKind::Add, json!(["test", "base"]))
            .apply(&mut metadata)
            .unwrap();
        assert_eq!(metadata[SPLIT_KEY], json!(["base", "test"]));
        operation(OperationKind::Remove, json!(["test", "base"]))
            .apply(&mut metadata)
            .unwrap();
        assert_eq!(metadata[SPLIT_KEY], json!(["base"]), "an example is always in a split");
    }
}
