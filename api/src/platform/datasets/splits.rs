//! Splits of datasets, which are part of the metadata of examples; and changes of the metadata of many.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use towpath_domain::dataset::{BASE_SPLIT, SPLIT_KEY, check_label, set_splits, splits};
use towpath_domain::{DatasetId, ExampleId, Rejection};
use towpath_store::datasets::examples;
use towpath_store::datasets::versions::{self, AsOf};
use uuid::Uuid;

use super::examples::check_count;
use super::listing::as_of;
use super::missing;
use super::model::{self, Sent};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, objects};

/// Changes of one request.
const MOST_OPERATIONS: usize = 50;
/// Values of one change of a list.
const MOST_VALUES: usize = 1000;

/// The names of a dataset's splits, sorted.
#[utoipa::path(get, path = "/datasets/{dataset_id}/splits", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("as_of" = Option<String>, Query, description = "At this time, or in the version of this tag")),
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
    Ok(Json(read.await.map_err(missing)?))
}

/// Examples that come into a split, or leave it.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = SplitChange)]
pub struct Change {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    split_name: String,
    #[schema(value_type = Vec<Uuid>)]
    examples: Vec<ExampleId>,
    /// Take them out of it.
    #[serde(default)]
    remove: bool,
}

/// Put examples into a split, or take them out of it. Ids that the dataset does not have are passed over.
#[utoipa::path(put, path = "/datasets/{dataset_id}/splits", tag = "datasets", request_body = Change,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 204, description = "Changed"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    Sent(sent): Sent<Change>,
) -> Result<StatusCode, ApiError> {
    check_count(sent.examples.len())?;
    check_label("split_name", &sent.split_name)?;
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let operation = Operation {
        key: SPLIT_KEY.to_owned(),
        operation: if sent.remove { Kind::Remove } else { Kind::Add },
        value: None,
        values: Some(vec![Value::from(sent.split_name)]),
    };
    let changed = app.store.write(async |tx| {
        let change = |metadata: &mut Map<String, Value>| operation.apply(metadata);
        examples::rewrite_metadata(tx, tenant.id, id, &sent.examples, change).await
    });
    changed.await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a key of the metadata changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[schema(as = MetadataOperationKind)]
pub enum Kind {
    /// The key gets a value.
    #[serde(rename = "SET", alias = "set")]
    Set,
    /// A list gets values that it has not.
    #[serde(rename = "ARRAY_ADD", alias = "array_add")]
    Add,
    /// A list loses values.
    #[serde(rename = "ARRAY_REMOVE", alias = "array_remove")]
    Remove,
}

/// A change of one key of the metadata.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MetadataOperation)]
pub struct Operation {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    key: String,
    operation: Kind,
    /// Of SET.
    #[serde(default)]
    value: Option<Value>,
    /// Of ARRAY_ADD and ARRAY_REMOVE.
    #[serde(default)]
    values: Option<Vec<Value>>,
}

impl Operation {
    fn admit(&self) -> Result<(), Rejection> {
        check_label("operations", &self.key)?;
        let values = self.values.as_deref().unwrap_or_default();
        if values.len() > MOST_VALUES {
            return Err(Rejection::invalid(
                "operations",
                format!("expected at most {MOST_VALUES} values"),
            ));
        }
        if self.operation != Kind::Set && self.values.is_none() {
            return Err(Rejection::invalid(
                "operations",
                "ARRAY_ADD and ARRAY_REMOVE need values",
            ));
        }
        Ok(())
    }

    fn apply(&self, metadata: &mut Map<String, Value>) -> Result<(), Rejection> {
        let values = self.values.as_deref().unwrap_or_default();
        if self.operation == Kind::Set {
            metadata.insert(self.key.clone(), self.value.clone().unwrap_or(Value::Null));
        } else {
            let list = metadata.entry(&self.key).or_insert_with(|| json!([]));
            // A single value counts as a list of it.
            if !list.is_array() {
                *list = json!([list.take()]);
            }
            let Value::Array(list) = list else { return Ok(()) };
            if self.operation == Kind::Add {
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
        model::metadata(Some(metadata.clone()))?;
        Ok(())
    }
}

/// Changes for each of some examples.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = MetadataChange)]
pub struct MetadataChange {
    #[schema(value_type = Vec<Uuid>)]
    example_ids: Vec<ExampleId>,
    #[serde(deserialize_with = "objects")]
    operations: Vec<Operation>,
}

/// What became of an example.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = MetadataResult)]
pub struct Outcome {
    #[schema(value_type = Uuid)]
    id: ExampleId,
    /// `UPDATED`, or `NOT_FOUND` where the dataset does not have it.
    status: &'static str,
}

/// What became of all of them.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = MetadataResults)]
pub struct Outcomes {
    /// In the order of the request.
    statuses: Vec<Outcome>,
}

/// Change the metadata of examples in the same way, all or none. Those that the dataset does not have are passed over.
#[utoipa::path(patch, path = "/v1/platform/datasets/{dataset_id}/examples/metadata", tag = "examples",
    request_body = MetadataChange,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 207, description = "What became of each", body = Outcomes),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn update_metadata(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    Sent(sent): Sent<MetadataChange>,
) -> Result<(StatusCode, Json<Outcomes>), ApiError> {
    check_count(sent.example_ids.len())?;
    if sent.operations.len() > MOST_OPERATIONS {
        return Err(ApiError::bad_request(format!(
            "operations: at most {MOST_OPERATIONS} at once"
        )));
    }
    for operation in &sent.operations {
        operation.admit()?;
    }
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let changed = app.store.write(async |tx| {
        let change = |metadata: &mut Map<String, Value>| {
            sent.operations
                .iter()
                .try_for_each(|operation| operation.apply(metadata))
        };
        examples::rewrite_metadata(tx, tenant.id, id, &sent.example_ids, change).await
    });
    let found = changed.await.map_err(missing)?;
    let statuses = sent.example_ids.iter().map(|example| Outcome {
        id: *example,
        status: if found.contains(example) {
            "UPDATED"
        } else {
            "NOT_FOUND"
        },
    });
    let statuses = statuses.collect();
    Ok((StatusCode::MULTI_STATUS, Json(Outcomes { statuses })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_metadata_gain_and_lose_values() {
        let operation = |kind, values: Value| Operation {
            key: SPLIT_KEY.to_owned(),
            operation: kind,
            value: None,
            values: values.as_array().cloned(),
        };
        let mut metadata = Map::new();
        metadata.insert(SPLIT_KEY.to_owned(), json!(["base"]));
        operation(Kind::Add, json!(["test", "base"]))
            .apply(&mut metadata)
            .unwrap();
        assert_eq!(metadata[SPLIT_KEY], json!(["base", "test"]));
        operation(Kind::Remove, json!(["test", "base"]))
            .apply(&mut metadata)
            .unwrap();
        assert_eq!(metadata[SPLIT_KEY], json!(["base"]), "an example is always in a split");
    }
}
