//! Image-pull secrets of a workspace: credentials of container registries.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::registry::{self, RegistryLogin};
use towpath_domain::{ImagePullSecretId, Rejection, Secret, Timestamp};
use towpath_store::image_pull_secrets::{self, ImagePullSecret as Row};
use towpath_store::{self as store};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};

/// An image-pull secret. Its content is never returned.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ImagePullSecret {
    #[schema(value_type = Uuid)]
    id: ImagePullSecretId,
    /// Name to use in `resource_spec.image_pull_secrets`.
    name: String,
    /// Registries that it has credentials for.
    registries: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl ImagePullSecret {
    fn of(row: Row) -> Result<Self, ApiError> {
        Ok(Self {
            registries: row.registries()?,
            id: row.id,
            name: row.name,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ImagePullSecretList {
    resources: Vec<ImagePullSecret>,
}

/// Credentials of one registry, or a Docker `config.json` with several.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewImagePullSecret)]
pub struct PutImagePullSecret {
    /// Registry as a prefix of image references: `registry.example`, `registry.example:5000/team`, `docker.io`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 255)]
    registry: Option<String>,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^:\u0000-\u001f\u007f-\u009f]+$")]
    username: Option<String>,
    /// Stored encrypted and never returned.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only, min_length = 1, max_length = 65536,
             pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    password: Option<Secret>,
    /// Instead of the other fields: the content of a `config.json` as an object. Stored encrypted and never returned.
    #[serde(default)]
    #[schema(value_type = Option<Object>, write_only)]
    docker_config: Option<Value>,
}

impl PutImagePullSecret {
    fn admit(self) -> Result<Vec<RegistryLogin>, Rejection> {
        let sent = (self.registry, self.username, self.password);
        match (self.docker_config, sent) {
            (Some(config), (None, None, None)) => registry::parse_docker_config(&config.to_string())
                .map_err(|why| Rejection::invalid("docker_config", why)),
            (None, (Some(registry), Some(username), Some(password))) => {
                let registry =
                    registry::parse_registry_name(&registry).map_err(|why| Rejection::invalid("registry", why))?;
                let fits = |text: &str, longest: usize| {
                    (1..=longest).contains(&text.chars().count()) && !text.chars().any(char::is_control)
                };
                if !fits(&username, 255) || username.contains(':') {
                    let text = "expected 1 to 255 characters, no colon and no control characters";
                    return Err(Rejection::invalid("username", text));
                }
                if !fits(password.reveal(), 65_536) {
                    let text = "expected 1 to 65536 characters, no control characters";
                    return Err(Rejection::invalid("password", text));
                }
                Ok(vec![RegistryLogin {
                    registry,
                    username,
                    password,
                }])
            }
            _ => Err(Rejection::rule(
                "registry",
                "send either registry, username and password, or docker_config",
            )),
        }
    }
}

/// Names follow the Kubernetes rule, so that they are portable.
fn check_name(name: &str) -> Result<(), ApiError> {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        edge(part.bytes().next()) && edge(part.bytes().last()) && part.bytes().all(inner)
    };
    if name.len() > 253 || !name.split('.').all(part) {
        let text = "expected lower-case letters, digits, '-' and '.', at most 253";
        return Err(ApiError::invalid_at(
            vec!["path".into(), "name".into()],
            "value_error",
            text,
        ));
    }
    Ok(())
}

/// List image-pull secrets, sorted by name.
#[utoipa::path(get, path = "/v2/image-pull-secrets", tag = "image-pull-secrets",
    responses((status = 200, description = "Image-pull secrets", body = ImagePullSecretList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant) -> Result<Json<ImagePullSecretList>, ApiError> {
    let rows = app
        .store
        .read(async |tx| image_pull_secrets::list(tx, tenant.id).await)
        .await?;
    let resources = rows.into_iter().map(ImagePullSecret::of).collect::<Result<_, _>>()?;
    Ok(Json(ImagePullSecretList { resources }))
}

/// Create or replace an image-pull secret. Deployments whose `resource_spec.image_pull_secrets` names it use it for
/// later pulls.
#[utoipa::path(put, path = "/v2/image-pull-secrets/{name}", tag = "image-pull-secrets", request_body = PutImagePullSecret,
    params(("name" = String, Path, description = "Its name", max_length = 253,
            pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")),
    responses((status = 200, description = "Replaced", body = ImagePullSecret),
              (status = 201, description = "Created", body = ImagePullSecret), ApiError))]
pub async fn put(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(new): Json<PutImagePullSecret>,
) -> Result<Response, ApiError> {
    check_name(&name)?;
    let logins = new.admit()?;
    let (row, is_new) = app
        .store
        .write(async |tx| image_pull_secrets::put(tx, tenant.id, &app.sealer, &name, &logins).await)
        .await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(ImagePullSecret::of(row)?)).into_response())
}

/// Delete an image-pull secret. Pulled images remain.
#[utoipa::path(delete, path = "/v2/image-pull-secrets/{name}", tag = "image-pull-secrets",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such image-pull secret in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    if check_name(&name).is_err() {
        // No secret has such a name, and PostgreSQL rejects a text with NUL.
        return Err(ApiError::not_found("image-pull secret"));
    }
    let gone = app
        .store
        .write(async |tx| image_pull_secrets::delete(tx, tenant.id, &name).await);
    match gone.await {
        Err(store::Error::NotFound) => Err(ApiError::not_found("image-pull secret")),
        gone => Ok(gone.map(|()| StatusCode::NO_CONTENT)?),
    }
}
