//! Keys that call one deployment and do nothing else.

use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderName};
use serde::Deserialize;
use towpath_domain::deployment::DeploymentStatus;
use towpath_domain::{DeploymentId, Rejection, Scope};
use towpath_store::access::{self, KeyLimits, NewKey};
use towpath_store::{self as store, deployments};

use super::missing;
use crate::app::App;
use crate::auth::{Granted, Tenant};
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};
use crate::internal::keys::{self, LONGEST_LIFE_DAYS, MadeKey};
use crate::scopes;

/// A key to be made.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeploymentKeyRequest)]
pub(crate) struct Request {
    /// What people call it; the deployment's name unless given.
    #[serde(default)]
    #[schema(
        max_length = 255,
        pattern = r"^[\p{L}\p{N} _.'-]*[\p{L}\p{N}_.'-][\p{L}\p{N} _.'-]*$"
    )]
    name: Option<String>,
    /// After so many days it ends by itself, 1 to 3650; never unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 3650)]
    expires_in_days: Option<i64>,
}

/// Make a key that calls this deployment and does nothing else. The key that asks has to be able to call it. The secret is
/// in the answer, and nowhere else from then on.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/keys", tag = "deployments",
    params(("deployment_id" = Uuid, Path, description = "The deployment")), request_body = Request,
    responses((status = 201, description = "The key with its secret", body = MadeKey),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub(crate) async fn create_key(
    State(app): State<App>,
    tenant: Tenant,
    Granted(granted): Granted,
    Path(id): Path<DeploymentId>,
    Json(request): Json<Request>,
) -> Result<(StatusCode, [(HeaderName, &'static str); 1], Json<MadeKey>), ApiError> {
    let scope = Scope::AgentsInvokeOf(id);
    let name = request.name.as_deref().map(keys::name).transpose()?;
    let days = keys::within("expires_in_days", request.expires_in_days, (1, LONGEST_LIFE_DAYS))?;
    let expires_at = days.map(|days| app.clock.now().plus(Duration::from_secs(days * 24 * 3600)));
    let found = app.store.read(async |tx| deployments::get(tx, tenant.id, id).await);
    let deployment = found.await.map_err(missing(id))?;
    scopes::require(&granted, scope)?;
    if deployment.status == DeploymentStatus::AwaitingDelete {
        return Err(Rejection::rule("deployment_id", "the deployment is being deleted").into());
    }
    let made = app.store.write(async |tx| {
        let new = NewKey {
            organization: tenant.organization,
            workspace: Some(tenant.id),
            name: name.unwrap_or(&deployment.name),
            operator: false,
        };
        let limits = KeyLimits {
            scopes: Some([scope].into_iter().collect()),
            expires_at,
        };
        let (key, secret) = access::create_limited_key(tx, new, limits).await?;
        let opened = access::principal(tx, key.id).await?.ok_or(store::Error::NotFound)?;
        Ok((key, secret, opened.workspaces))
    });
    let (key, secret, workspaces) = made.await?;
    tracing::info!(key.id = %key.id, deployment.id = %id, by.key = %tenant.key, "a key for one deployment was made");
    let made = MadeKey::of(key, &secret, workspaces);
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(made)))
}
