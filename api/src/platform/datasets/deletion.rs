//! Deletion of examples, from the newest version or from all versions.

use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use towpath_domain::{DatasetId, ExampleId};
use towpath_store as store;
use towpath_store::datasets::examples;
use uuid::Uuid;

use super::examples::{check_count, example_not_found};
use super::model::JsonBody;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};

/// Delete an example. Earlier versions of its dataset keep it.
#[utoipa::path(delete, path = "/examples/{example_id}", tag = "examples",
    params(("example_id" = Uuid, Path, description = "The example")),
    responses((status = 200, description = "Deleted", body = Object),
              (status = 404, description = "No such example in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExampleId>,
) -> Result<Json<Value>, ApiError> {
    let gone_by = app.store.write(async |tx| examples::delete(tx, tenant.id, &[id]).await);
    gone_by.await.map_err(example_not_found)?;
    Ok(Json(json!({"message": "Example deleted"})))
}

/// Delete examples. Earlier versions of their datasets keep them; unknown ids are ignored.
#[utoipa::path(delete, path = "/examples", tag = "examples",
    params(("example_ids" = Vec<Uuid>, Query, description = "The examples, at most 10000")),
    responses((status = 200, description = "Deleted", body = Object),
              (status = 404, description = "None of them exists in this workspace"), ApiError))]
pub async fn delete_many(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Value>, ApiError> {
    sent.only(&["example_ids"])?;
    let ids: Vec<ExampleId> = sent
        .read::<Uuid>("example_ids", "a UUID")?
        .into_iter()
        .map(ExampleId)
        .collect();
    if ids.is_empty() {
        return Err(ApiError::invalid_at(
            vec!["query".into(), "example_ids".into()],
            "missing",
            "field required",
        ));
    }
    check_count(ids.len())?;
    let deleted = app.store.write(async |tx| examples::delete(tx, tenant.id, &ids).await);
    let count = deleted.await.map_err(example_not_found)?.len();
    Ok(Json(json!({"message": format!("{count} examples deleted")})))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ExampleDeletion)]
pub struct DeleteExamples {
    #[schema(value_type = Vec<Uuid>)]
    example_ids: Vec<ExampleId>,
    /// Delete from all versions, with their files.
    #[serde(default)]
    hard_delete: bool,
}

/// Delete examples, from all versions if requested.
#[utoipa::path(post, path = "/v1/platform/datasets/examples/delete", tag = "examples", request_body = DeleteExamples,
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "None of them exists in this workspace"), ApiError))]
pub async fn erase(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(sent): JsonBody<DeleteExamples>,
) -> Result<StatusCode, ApiError> {
    check_count(sent.example_ids.len())?;
    let gone_by = app.store.write(async |tx| match sent.hard_delete {
        true => examples::erase(tx, tenant.id, &sent.example_ids).await,
        false => examples::delete(tx, tenant.id, &sent.example_ids).await,
    });
    gone_by.await.map_err(example_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete an example of a dataset. Earlier versions keep it. Deleting it again has no effect.
#[utoipa::path(delete, path = "/v1/platform/datasets/{dataset_id}/examples/{example_id}", tag = "examples",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("example_id" = Uuid, Path, description = "The example")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such example in this dataset"), ApiError))]
pub async fn delete_of_dataset(
    State(app): State<App>,
    tenant: Tenant,
    Path((dataset, id)): Path<(DatasetId, ExampleId)>,
) -> Result<StatusCode, ApiError> {
    let gone_by = app.store.write(async |tx| {
        if examples::dataset_of(tx, tenant.id, id).await? != dataset {
            return Err(store::Error::NotFound);
        }
        match examples::delete(tx, tenant.id, &[id]).await {
            Ok(_) | Err(store::Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    });
    gone_by.await.map_err(example_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}
