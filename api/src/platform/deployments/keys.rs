//! Keys that may only call one deployment.

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
use crate::auth::{GrantedScopes, Tenant};
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};
use crate::internal::keys::{self, KeyWithSecret, LONGEST_LIFE_DAYS};
use crate::scopes;

/// A key to create.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeploymentKeyRequest)]
pub(crate) struct NewDeploymentKey {
    /// Display name; by default the deployment's name.
    #[serde(default)]
    #[schema(
        max_length = 255,
        pattern = r"^[\p{L}\p{N} _.'-]*[\p{L}\p{N}_.'-][\p{L}\p{N} _.'-]*$"
    )]
    name: Option<String>,
    /// Days until the key expires, 1 to 3650; by default it never expires.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 3650)]
    expires_in_days: Option<i64>,
}

/// Create a key that may only call this deployment. The caller's key must be able to call it. The secret is returned
/// only in this response.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/keys", tag = "deployments",
    params(("deployment_id" = Uuid, Path, description = "The deployment")), request_body = NewDeploymentKey,
    responses((status = 201, description = "The key with its secret", body = KeyWithSecret),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub(crate) async fn create_key(
    State(app): State<App>,
    tenant: Tenant,
    GrantedScopes(granted): GrantedScopes,
    Path(id): Path<DeploymentId>,
    Json(request): Json<NewDeploymentKey>,
) -> Result<(StatusCode, [(HeaderName, &'static str); 1], Json<KeyWithSecret>), ApiError> {
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
    tracing::info!(key.id = %key.id, deployment.id = %id, by.key = %tenant.key, "created a key for one deployment");
    let made = KeyWithSecret::of(key, &secret, workspaces);
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(made)))
}
