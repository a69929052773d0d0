//! Which database a deployment starts on, where an operator has to decide.

use axum::extract::State;
use towpath_domain::DeploymentId;
use towpath_store::deployments::overview;
use towpath_store::placements;

use super::model::DeploymentPlacement;
use crate::app::App;
use crate::auth::Operator;
use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path};

/// Let a deployment start on the database found where it runs, or on an empty one. It refuses to start if its earlier
/// database is missing; the data in that database is no longer used.
#[utoipa::path(post, path = "/internal/deployments/{deployment_id}/accept-database", tag = "deployments",
    security(("api_key" = []), ("bearer" = [])),
    params(("deployment_id" = Uuid, Path, description = "The deployment")),
    responses((status = 200, description = "Allowed; it starts within a minute", body = DeploymentPlacement),
              (status = 404, description = "No such deployment, or it was never deployed", body = Error), ApiError))]
pub(crate) async fn accept_database(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<DeploymentId>,
) -> Result<Json<DeploymentPlacement>, ApiError> {
    let accepted = app.store.write(async |tx| {
        if !placements::accept_database(tx, id).await? {
            return Ok(None);
        }
        match overview::owner(tx, id).await? {
            Some(tenant) => placements::get(tx, tenant, id).await,
            None => Ok(None),
        }
    });
    let placement = accepted.await?.ok_or_else(|| ApiError::not_found("deployment"))?;
    tracing::warn!(
        deployment.id = %id,
        operator.key = %caller.key,
        "an operator allowed a deployment to start on another database"
    );
    Ok(Json(placement.into()))
}
