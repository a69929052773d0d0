//! Revisions of deployments.

pub mod model;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use towpath_domain::deployment::{DeploymentChange, RevisionConfig, RevisionPolicy, RevisionStatus};
use towpath_domain::{DeploymentId, RevisionId};
use towpath_store::{self as store, deployments, revisions};
use towpath_workflows::deployments as work;

use super::deployments::missing;
use super::deployments::model::{self as of_deployments, Deployment};
use super::paging;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query};
use crate::idempotency::{self, IdempotencyKey, IdempotentJson, IdempotentJsonOrEmpty};
use model::{NewRevision, NewRevisionConfig, Revision, RevisionList};

/// Filters and page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListRevisions {
    /// Maximum number of results.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[param(minimum = 0, maximum = 1000000000, default = 0)]
    offset: Option<i64>,
    /// Statuses, separated by commas.
    status: Option<String>,
    /// Refused: not available in this build.
    remote_reconciled: Option<String>,
}

/// List the revisions of a deployment, newest first.
#[utoipa::path(get, path = "/v2/deployments/{deployment_id}/revisions", tag = "revisions",
    params(("deployment_id" = Uuid, Path, description = "The deployment"), ListRevisions),
    responses((status = 200, description = "Revisions", body = RevisionList),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path(deployment): Path<DeploymentId>,
    Query(asked): Query<ListRevisions>,
) -> Result<Json<RevisionList>, ApiError> {
    let (limit, offset) = paging::check(asked.limit, asked.offset, 20, 100)?;
    if asked.remote_reconciled.is_some() {
        let what = "the filter remote_reconciled";
        return Err(towpath_domain::Rejection::unsupported("remote_reconciled", what).into());
    }
    let wrong = || {
        let names = RevisionStatus::ALL.map(RevisionStatus::as_str).join(", ");
        let loc = vec!["query".into(), "status".into()];
        ApiError::invalid_at(loc, "enum", format!("expected some of {names}, separated by commas"))
    };
    let statuses = asked.status.map(|text| {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| RevisionStatus::parse(name).ok_or_else(wrong))
            .collect::<Result<Vec<_>, _>>()
    });
    let statuses = statuses.transpose()?;
    let read = app.store.read(async |tx| {
        deployments::get(tx, tenant.id, deployment).await?;
        revisions::list(tx, tenant.id, deployment, statuses.as_deref(), limit, offset).await
    });
    let rows = read.await.map_err(missing(deployment))?;
    Ok(Json(RevisionList {
        offset: offset + rows.len() as i64,
        resources: rows.into_iter().map(Revision::try_from).collect::<Result<_, _>>()?,
    }))
}

/// Create a revision from the latest one with the changes in the body. A repeated request with the same
/// `Idempotency-Key` returns the first response.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/revisions", tag = "revisions",
    params(("deployment_id" = Uuid, Path, description = "The deployment"), IdempotencyKey),
    request_body = Option<NewRevision>,
    responses((status = 201, description = "Recorded", body = Revision),
              (status = 404, description = "No such deployment in this workspace"),
              (status = 409, description = "Changed by another request, or the `Idempotency-Key` is in use"),
              ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Path(deployment): Path<DeploymentId>,
    IdempotentJsonOrEmpty(sent): IdempotentJsonOrEmpty<NewRevision>,
) -> Result<Response, ApiError> {
    let IdempotentJson { body: new, key } = sent;
    let config = new.source_revision_config.map(NewRevisionConfig::admit).transpose()?;
    let change = DeploymentChange {
        revision: config.unwrap_or_else(RevisionConfig::default),
        secrets: new.secrets.map(of_deployments::secrets),
        revision_source: new.revision_source,
        ..DeploymentChange::default()
    };
    let mut is_missing = false;
    let made = idempotency::run_once(&app.store, tenant.id, key.as_ref(), Revision::try_from, async |tx| {
        let changed = work::change(tx, tenant.id, &app.sealer, deployment, &change, RevisionPolicy::Always).await;
        is_missing = matches!(changed, Err(store::Error::NotFound));
        Ok(changed?.1)
    })
    .await;
    match made {
        Err(_) if is_missing => Err(missing(deployment)(store::Error::NotFound)),
        made => made.map(idempotency::created),
    }
}

/// Get one revision.
#[utoipa::path(get, path = "/v2/deployments/{deployment_id}/revisions/{revision_id}", tag = "revisions",
    params(("deployment_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    responses((status = 200, description = "The revision", body = Revision),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, id)): Path<(DeploymentId, RevisionId)>,
) -> Result<Json<Revision>, ApiError> {
    let read = app.store.read(async |tx| {
        deployments::get(tx, tenant.id, deployment).await?;
        Ok(match revisions::of(tx, tenant.id, deployment, id).await {
            Err(store::Error::NotFound) => None,
            found => Some(found?),
        })
    });
    let row = read.await.map_err(missing(deployment))?;
    let row = row.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, format!("Revision ID {id} not found.")))?;
    Ok(Json(row.try_into()?))
}

/// Redeploy the artifact and secrets of a revision, for example to roll back. Nothing is built.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy", tag = "revisions",
    params(("deployment_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    responses((status = 200, description = "The new revision is recorded", body = Deployment),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn redeploy(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, id)): Path<(DeploymentId, RevisionId)>,
) -> Result<Json<Deployment>, ApiError> {
    let (row, latest) = app
        .store
        .write(async |tx| work::redeploy(tx, tenant.id, &app.sealer, deployment, id).await)
        .await
        .map_err(missing(deployment))?;
    Ok(Json(Deployment::of(&app, row, &latest)?))
}

/// Interrupt an unfinished revision and stop what it started. The active revision keeps serving.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt", tag = "revisions",
    params(("deployment_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    responses((status = 200, description = "Interrupted", body = Revision),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn interrupt(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, id)): Path<(DeploymentId, RevisionId)>,
) -> Result<Json<Revision>, ApiError> {
    // The hints of this transaction notify running workers.
    let stopped = app.store.write(async |tx| {
        deployments::get(tx, tenant.id, deployment).await?;
        work::interrupt(tx, tenant.id, deployment, id).await
    });
    Ok(Json(stopped.await.map_err(missing(deployment))?.try_into()?))
}

/// Interrupt a revision, at the address of version 1.
#[utoipa::path(post, path = "/v1/projects/{project_id}/revisions/{revision_id}/interrupt", tag = "revisions",
    params(("project_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    responses((status = 200, description = "Interrupted", body = Revision),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn interrupt_of_project(
    app: State<App>,
    tenant: Tenant,
    ids: Path<(DeploymentId, RevisionId)>,
) -> Result<Json<Revision>, ApiError> {
    interrupt(app, tenant, ids).await
}
