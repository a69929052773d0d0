//! Comparative experiments.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_domain::dataset::check_time;
use towpath_domain::{ComparativeExperimentId, DatasetId, ProjectId, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::comparative_experiments::{self, ComparativeExperiment, NewComparativeExperiment};
use towpath_store::projects;

use super::dataset_not_found;
use super::model::{self, JsonBody};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::paging;

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ComparativeExperiment)]
pub struct ComparativeExperimentView {
    #[schema(value_type = Uuid)]
    id: ComparativeExperimentId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    #[schema(value_type = Uuid)]
    reference_dataset_id: DatasetId,
    name: Option<String>,
    description: Option<String>,
    #[schema(value_type = Option<Object>)]
    extra: Option<Box<RawValue>>,
    experiments_info: Vec<Experiment>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
}

/// One of the compared experiments.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ComparedExperiment)]
pub struct Experiment {
    #[schema(value_type = Uuid)]
    id: ProjectId,
    name: String,
}

/// Rows with the names of their experiments; deleted experiments are left out.
async fn with_experiment_names(
    tx: &mut store::Tx<'_>,
    tenant: TenantId,
    rows: Vec<ComparativeExperiment>,
) -> store::Result<Vec<(ComparativeExperiment, Vec<Experiment>)>> {
    let mut all = Vec::with_capacity(rows.len());
    for row in rows {
        let criteria = projects::Filter {
            ids: row.experiments()?,
            ..projects::Filter::default()
        };
        let most = i64::try_from(criteria.ids.len()).unwrap_or(i64::MAX);
        let found = projects::list(tx, tenant, &criteria, most, 0).await?;
        let experiments = found.into_iter().map(|project| Experiment {
            id: project.id,
            name: project.name,
        });
        let experiments = experiments.collect();
        all.push((row, experiments));
    }
    Ok(all)
}

impl TryFrom<(ComparativeExperiment, Vec<Experiment>)> for ComparativeExperimentView {
    type Error = ApiError;

    fn try_from((row, experiments_info): (ComparativeExperiment, Vec<Experiment>)) -> Result<Self, ApiError> {
        let extra = row.extra.map(RawValue::from_string).transpose();
        let extra = extra.map_err(|_| store::Error::corrupt("comparative_experiment", "extra", row.id))?;
        Ok(Self {
            id: row.id,
            tenant_id: row.tenant_id,
            reference_dataset_id: row.dataset_id,
            name: row.name,
            description: row.description,
            extra,
            experiments_info,
            created_at: row.created_at,
            modified_at: row.modified_at,
        })
    }
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewComparativeExperiment)]
pub struct CreateComparativeExperiment {
    #[schema(value_type = Option<Uuid>)]
    id: Option<ComparativeExperimentId>,
    /// Experiments of the dataset, at most 100.
    #[schema(value_type = Vec<Uuid>)]
    experiment_ids: Vec<ProjectId>,
    #[schema(value_type = Uuid)]
    reference_dataset_id: DatasetId,
    #[schema(pattern = r"^[^\u0000]*$")]
    name: Option<String>,
    #[schema(pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    created_at: Option<Timestamp>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    extra: Option<Box<RawValue>>,
}

/// Create a comparative experiment.
#[utoipa::path(post, path = "/datasets/comparative", operation_id = "create_comparative", tag = "datasets", request_body = CreateComparativeExperiment,
    responses((status = 200, description = "Created", body = ComparativeExperimentView),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "The id is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(new): JsonBody<CreateComparativeExperiment>,
) -> Result<Json<ComparativeExperimentView>, ApiError> {
    if let Some(time) = new.created_at {
        check_time("created_at", time)?;
    }
    let new = NewComparativeExperiment {
        id: new.id.unwrap_or_else(ComparativeExperimentId::new),
        dataset: new.reference_dataset_id,
        name: model::check_text_field("name", new.name)?,
        description: model::check_text_field("description", new.description)?,
        extra: model::check_object_field("extra", new.extra)?,
        experiments: new.experiment_ids,
        created_at: new.created_at,
    };
    let made = app.store.write(async |tx| {
        let made = comparative_experiments::create(tx, tenant.id, &new).await?;
        with_experiment_names(tx, tenant.id, vec![made]).await
    });
    let made = made.await.map_err(dataset_not_found)?.pop();
    let made = made.ok_or_else(|| ApiError::not_found("comparative experiment"))?;
    Ok(Json(ComparativeExperimentView::try_from(made)?))
}

/// List the comparative experiments of a dataset, newest first.
#[utoipa::path(get, path = "/datasets/{dataset_id}/comparative", operation_id = "list_comparative", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Comparative experiments", body = Vec<ComparativeExperimentView>),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<Vec<ComparativeExperimentView>>, ApiError> {
    sent.only(&["limit", "offset"])?;
    let (limit, offset) = paging::of(&sent)?;
    let read = app.store.read(async |tx| {
        let rows = comparative_experiments::list(tx, tenant.id, id, limit, offset).await?;
        with_experiment_names(tx, tenant.id, rows).await
    });
    let found = read.await.map_err(dataset_not_found)?;
    let shown = found.into_iter().map(ComparativeExperimentView::try_from);
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

/// Delete a comparative experiment. Its experiments remain.
#[utoipa::path(delete, path = "/datasets/comparative/{comparative_experiment_id}", operation_id = "delete_comparative", tag = "datasets",
    params(("comparative_experiment_id" = Uuid, Path, description = "The comparative experiment")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such comparative experiment in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ComparativeExperimentId>,
) -> Result<StatusCode, ApiError> {
    let gone = app
        .store
        .write(async |tx| comparative_experiments::delete(tx, tenant.id, id).await);
    gone.await.map_err(|error| match error {
        store::Error::NotFound => ApiError::not_found("comparative experiment"),
        error => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
