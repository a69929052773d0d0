//! Deployments: create, change, delete. Their revisions are in [`super::revisions`].

pub(crate) mod database;
pub(crate) mod keys;
pub mod model;
mod resources;

use std::collections::HashMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::deployment::{
    ConfigChange, DeploymentChange, DeploymentRequest, DeploymentStatus, DeploymentType, RevisionConfig, RevisionPolicy,
};
use towpath_domain::{DeploymentId, Rejection};
use towpath_store::deployments::{self, Filter};
use towpath_store::{self as store, placements, revisions};
use towpath_workflows::deployments as work;

use crate::app::App;
use crate::auth::{GrantedScopes, Tenant};
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query};
use crate::idempotency::{self, IdempotencyKey, IdempotentJson};
use crate::platform::revisions::model::NewRevisionConfig;
use crate::platform::{names, paging};
use model::{CreateDeployment, Deployment, DeploymentList, UpdateDeployment};

/// Maximum number of deployments that one request may delete.
const MOST_AT_ONCE: usize = 100;

/// Create a deployment with its tracing project and its first revision. A repeated request with the same
/// `Idempotency-Key` returns the first response.
#[utoipa::path(post, path = "/v2/deployments", tag = "deployments", request_body = CreateDeployment, params(IdempotencyKey),
    responses((status = 201, description = "Recorded; poll the revision until it is `DEPLOYED`", body = Deployment),
              (status = 409, description = "The `Idempotency-Key` was used for another request"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    GrantedScopes(granted): GrantedScopes,
    sent: IdempotentJson<CreateDeployment>,
) -> Result<Response, ApiError> {
    let IdempotentJson { body: new, key } = sent;
    new.source_config.check_scopes(&granted)?;
    new.source_config.check_auth(&app)?;
    if new.agent.is_some() {
        return Err(Rejection::unsupported("agent", "a deployment of an agent (agent)").into());
    }
    refuse_references(new.secret_references.as_deref())?;
    let missing = || ApiError::invalid_at(vec!["body".into(), "name".into()], "missing", "field required");
    let mut request = DeploymentRequest {
        name: new.name.ok_or_else(missing)?,
        source: new.source,
        config: new.source_config.into(),
        revision: new.source_revision_config.admit()?,
        secrets: model::secrets(new.secrets),
    };
    let first = request.admit()?;
    let packages = new.tracked_packages.unwrap_or_default();
    let tell = |(row, revision)| Deployment::of(&app, row, &revision);
    idempotency::run_once(&app.store, tenant.id, key.as_ref(), tell, async |tx| {
        if app.settings.one_workspace {
            work::check_workspace(tx, tenant.id).await?;
        }
        let made = work::create(tx, tenant.id, &app.sealer, &request, &first).await?;
        deployments::track(tx, tenant.id, made.0.id, &packages).await?;
        Ok(made)
    })
    .await
    .map(idempotency::created)
}

fn refuse_references(sent: Option<&[serde_json::Value]>) -> Result<(), Rejection> {
    match sent {
        Some([_, ..]) => Err(Rejection::unsupported("secret_references", "secret_references")),
        _ => Ok(()),
    }
}

/// Filters and page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListDeployments {
    /// Maximum number of results.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[param(minimum = 0, maximum = 1000000000, default = 0)]
    offset: Option<i64>,
    /// Exact name.
    name: Option<String>,
    /// Text in the name, in any case.
    name_contains: Option<String>,
    #[param(value_type = Option<names::DeploymentState>)]
    status: Option<DeploymentStatus>,
    #[param(value_type = Option<names::DeploymentTypeName>)]
    deployment_type: Option<DeploymentType>,
    image_version: Option<String>,
    /// Deployment ids, separated by commas.
    deployment_ids: Option<String>,
    /// Refused: not available in this build.
    tag_value_ids: Option<String>,
    /// Refused: not available in this build.
    remote_reconciled: Option<String>,
    /// Refused: not available in this build.
    agent_id: Option<String>,
    /// Refused: not available in this build.
    agent_environment: Option<String>,
}

fn ids(field: &str, text: &str) -> Result<Vec<DeploymentId>, ApiError> {
    let wrong = |text| ApiError::invalid_at(vec!["query".into(), field.into()], "uuid_parsing", text);
    let ids: Result<Vec<DeploymentId>, _> = text
        .split(',')
        .map(str::trim)
        .filter(|id| !id.is_empty())
        .map(str::parse)
        .collect();
    let mut ids = ids.map_err(|_| wrong("expected UUIDs separated by commas"))?;
    if ids.len() > MOST_AT_ONCE {
        return Err(wrong("expected at most 100 UUIDs"));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// List deployments, newest first.
#[utoipa::path(get, path = "/v2/deployments", tag = "deployments", params(ListDeployments),
    responses((status = 200, description = "Deployments", body = DeploymentList), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Query(asked): Query<ListDeployments>,
) -> Result<Json<DeploymentList>, ApiError> {
    let (limit, offset) = paging::check(asked.limit, asked.offset, 20, 100)?;
    let refused = [
        ("tag_value_ids", asked.tag_value_ids.is_some()),
        ("remote_reconciled", asked.remote_reconciled.is_some()),
        ("agent_id", asked.agent_id.is_some()),
        ("agent_environment", asked.agent_environment.is_some()),
    ];
    if let Some((field, _)) = refused.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Rejection::unsupported(field, format!("the filter {field}")).into());
    }
    let filter = Filter {
        name: asked.name,
        name_contains: asked.name_contains,
        status: asked.status,
        deployment_type: asked.deployment_type,
        image_version: asked.image_version,
        ids: asked
            .deployment_ids
            .map(|text| ids("deployment_ids", &text))
            .transpose()?,
    };
    let read = app.store.read(async |tx| {
        let rows = deployments::list(tx, tenant.id, &filter, limit, offset).await?;
        let latest: Vec<_> = rows.iter().filter_map(|row| row.latest_revision_id).collect();
        let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        let placed = placements::many(tx, tenant.id, &ids).await?;
        Ok((rows, revisions::many(tx, tenant.id, &latest).await?, placed))
    });
    let (rows, latest, placed) = read.await?;
    let mut placed: HashMap<_, _> = placed
        .into_iter()
        .map(|placement| (placement.deployment_id, placement))
        .collect();
    let latest: HashMap<_, _> = latest.into_iter().map(|revision| (revision.id, revision)).collect();
    let next = offset + rows.len() as i64;
    let resources = rows.into_iter().filter_map(|row| {
        // The deployment may be deleted between the two statements, and its revisions with it.
        let revision = latest.get(&row.latest_revision_id?)?;
        let placement = placed.remove(&row.id);
        Some(Deployment::of(&app, row, revision).map(|shown| shown.with_placement(placement)))
    });
    Ok(Json(DeploymentList {
        resources: resources.collect::<Result<_, _>>()?,
        offset: next,
    }))
}

/// Get one deployment.
#[utoipa::path(get, path = "/v2/deployments/{deployment_id}", tag = "deployments",
    params(("deployment_id" = Uuid, Path, description = "The deployment")),
    responses((status = 200, description = "The deployment", body = Deployment),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DeploymentId>,
) -> Result<Json<Deployment>, ApiError> {
    let read = app.store.read(async |tx| {
        let row = deployments::get(tx, tenant.id, id).await?;
        let latest = row.latest_revision_id.ok_or(store::Error::NotFound)?;
        let latest = revisions::get(tx, tenant.id, latest).await?;
        Ok((row, latest, placements::get(tx, tenant.id, id).await?))
    });
    let (row, latest, placement) = read.await.map_err(missing(id))?;
    Ok(Json(Deployment::of(&app, row, &latest)?.with_placement(placement)))
}

/// Change a deployment. Sending `source_revision_config`, secrets or a resource specification creates one revision,
/// even if the values are unchanged.
#[utoipa::path(patch, path = "/v2/deployments/{deployment_id}", tag = "deployments",
    params(("deployment_id" = Uuid, Path, description = "The deployment")), request_body = UpdateDeployment,
    responses((status = 200, description = "Updated", body = Deployment),
              (status = 404, description = "No such deployment in this workspace"),
              (status = 409, description = "Another request changed it at the same time"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    GrantedScopes(granted): GrantedScopes,
    Path(id): Path<DeploymentId>,
    Json(sent): Json<UpdateDeployment>,
) -> Result<Json<Deployment>, ApiError> {
    refuse_references(sent.secret_references.as_deref())?;
    if let Some(config) = &sent.source_config {
        config.check_scopes(&granted)?;
        config.check_auth(&app)?;
    }
    let revision = sent.source_revision_config.map(NewRevisionConfig::admit).transpose()?;
    let change = DeploymentChange {
        name: sent.name,
        source: sent.source,
        config: sent.source_config.map(ConfigChange::from).unwrap_or_default(),
        revision: revision.unwrap_or_else(RevisionConfig::default),
        secrets: sent.secrets.map(model::secrets),
        revision_source: sent.revision_source,
    };
    let packages = sent.tracked_packages;
    let changed = app.store.write(async |tx| {
        let changed = work::change(tx, tenant.id, &app.sealer, id, &change, RevisionPolicy::IfRequired).await?;
        if let Some(packages) = &packages {
            deployments::track(tx, tenant.id, id, packages).await?;
        }
        Ok(changed)
    });
    let (row, latest) = changed.await.map_err(missing(id))?;
    Ok(Json(Deployment::of(&app, row, &latest)?))
}

/// Options of the deletion.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteDeploymentQuery {
    /// Also delete its tracing project.
    #[param(default = false)]
    delete_tracing_project: Option<bool>,
}

/// Delete a deployment. Its status is `AWAITING_DELETE` until its resources are removed; then it is not found.
#[utoipa::path(delete, path = "/v2/deployments/{deployment_id}", tag = "deployments",
    params(("deployment_id" = Uuid, Path, description = "The deployment"), DeleteDeploymentQuery),
    responses((status = 204, description = "Deletion has started"),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DeploymentId>,
    Query(along): Query<DeleteDeploymentQuery>,
) -> Result<StatusCode, ApiError> {
    let with_project = along.delete_tracing_project.unwrap_or(false);
    app.store
        .write(async |tx| work::delete(tx, tenant.id, id, with_project).await)
        .await
        .map_err(missing(id))?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteDeploymentsQuery {
    /// Deployment ids, separated by commas, at most 100.
    deployment_ids: String,
    /// Also delete their tracing projects.
    #[param(default = false)]
    delete_tracing_project: Option<bool>,
}

/// Result of the deletion.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DeletedDeployments {
    /// Deployments whose deletion has started.
    #[schema(value_type = Vec<Uuid>)]
    deleted: Vec<DeploymentId>,
    /// Ids that do not exist in this workspace.
    #[schema(value_type = Vec<Uuid>)]
    not_found: Vec<DeploymentId>,
}

/// Delete several deployments.
#[utoipa::path(delete, path = "/v2/deployments", tag = "deployments", params(DeleteDeploymentsQuery),
    responses((status = 200, description = "Deletion of all of them has started", body = DeletedDeployments),
              (status = 207, description = "Deletion of some has started; others were not found", body = DeletedDeployments),
              (status = 404, description = "None of them exists in this workspace"), ApiError))]
pub async fn delete_many(
    State(app): State<App>,
    tenant: Tenant,
    Query(many): Query<DeleteDeploymentsQuery>,
) -> Result<Response, ApiError> {
    let asked = ids("deployment_ids", &many.deployment_ids)?;
    let [first, ..] = asked[..] else {
        let loc = vec!["query".into(), "deployment_ids".into()];
        return Err(ApiError::invalid_at(loc, "value_error", "expected at least one UUID"));
    };
    let with_project = many.delete_tracing_project.unwrap_or(false);
    let mut answer = DeletedDeployments {
        deleted: Vec::new(),
        not_found: Vec::new(),
    };
    for id in asked {
        // One transaction each: deleting holds the locks while the lane is drained, and the order of locks would
        // matter.
        let gone = app
            .store
            .write(async |tx| work::delete(tx, tenant.id, id, with_project).await);
        match gone.await {
            Ok(()) => answer.deleted.push(id),
            Err(store::Error::NotFound) => answer.not_found.push(id),
            Err(error) => return Err(error.into()),
        }
    }
    let status = match (answer.deleted.is_empty(), answer.not_found.is_empty()) {
        (true, _) => return Err(missing(first)(store::Error::NotFound)),
        (false, true) => StatusCode::OK,
        (false, false) => StatusCode::MULTI_STATUS,
    };
    Ok((status, Json(answer)).into_response())
}

/// Clients look for this sentence.
pub(crate) fn missing(id: DeploymentId) -> impl Fn(store::Error) -> ApiError {
    move |error| match error {
        store::Error::NotFound => ApiError::new(StatusCode::NOT_FOUND, format!("Deployment ID {id} not found.")),
        error => error.into(),
    }
}
