//! Registries of sandbox images, with encrypted credentials.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::sandbox::{check_box_name, check_text};
use towpath_domain::{BoxRegistryId, Rejection, Secret, Timestamp};
use towpath_store::sandboxes;
use towpath_store::sandboxes::registries::{self, Credentials, Registry as Row, RegistryFields};
use towpath_store::sealing::OpenError;

use super::model::{check_count, missing, name_taken};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};

const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
const AWS_ROLE: &str = "AWS_ROLE";

/// A registry. Its password is never returned.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxRegistry)]
pub struct Registry {
    #[schema(value_type = Uuid)]
    id: BoxRegistryId,
    name: String,
    url: String,
    /// `DOCKER_CONFIG` or `AWS_ROLE`.
    auth_type: String,
    username: Option<String>,
    aws_role_arn: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Registry {
    fn from_row(app: &App, row: Row) -> Result<Self, ApiError> {
        let credentials = match row.credentials(&app.sealer) {
            // Sealed with a key that this process does not have: everything else can be shown.
            Err(OpenError::UnknownKey) => Credentials::default(),
            opened => opened.map_err(|error| ApiError::internal(&error))?,
        };
        Ok(Self {
            username: credentials.username,
            aws_role_arn: credentials.aws_role_arn,
            id: row.id,
            name: row.name,
            url: row.url,
            auth_type: row.auth_type,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// Registries.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxRegistryList)]
pub struct RegistryList {
    items: Vec<Registry>,
    next_cursor: Option<String>,
}

/// A registry, or its changes.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxRegistryContent)]
pub struct RegistryInput {
    #[serde(default)]
    #[schema(max_length = 63)]
    name: Option<String>,
    #[serde(default)]
    #[schema(max_length = 512)]
    url: Option<String>,
    #[serde(default)]
    auth_type: Option<String>,
    #[serde(default)]
    username: Option<String>,
    /// Stored encrypted and never returned.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    password: Option<Secret>,
    #[serde(default)]
    aws_role_arn: Option<String>,
}

impl RegistryInput {
    fn check(&self) -> Result<(), Rejection> {
        if let Some(name) = &self.name {
            check_box_name("name", name)?;
        }
        if let Some(url) = &self.url {
            check_text("url", url, 512)?;
            if url.trim().is_empty() || url.chars().any(char::is_whitespace) {
                return Err(Rejection::invalid("url", "expected the address of a registry"));
            }
        }
        match self.auth_type.as_deref() {
            None | Some(DOCKER_CONFIG | AWS_ROLE) => {}
            Some(_) => return Err(Rejection::invalid("auth_type", "expected DOCKER_CONFIG or AWS_ROLE")),
        }
        check_text("username", self.username.as_deref().unwrap_or_default(), 255)?;
        check_text("aws_role_arn", self.aws_role_arn.as_deref().unwrap_or_default(), 2048)?;
        let password = self.password.as_ref().map(Secret::reveal);
        check_text("password", password.unwrap_or_default(), 65_536)
    }
}

/// Create a registry.
#[utoipa::path(post, path = "/v2/sandboxes/registries", tag = "sandbox-registries", request_body = RegistryInput,
    responses((status = 201, description = "The registry", body = Registry),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(sent): Json<RegistryInput>,
) -> Result<Response, ApiError> {
    sent.check()?;
    let required = |field: &'static str| Rejection::invalid(field, "field required");
    let name = sent.name.ok_or_else(|| required("name"))?;
    let url = sent.url.ok_or_else(|| required("url"))?;
    let auth_type = sent.auth_type.unwrap_or_else(|| DOCKER_CONFIG.to_owned());
    let credentials = Credentials {
        username: sent.username,
        password: sent.password,
        aws_role_arn: sent.aws_role_arn,
    };
    check_credentials(&auth_type, &credentials)?;
    let content = RegistryFields {
        name: &name,
        url: &url,
        auth_type: &auth_type,
        credentials: &credentials,
    };
    let most = app.settings.sandbox_quota.registries;
    let made = app.store.write(async |tx| {
        sandboxes::lock_quota(tx, tenant.id).await?;
        if let Err(refusal) = check_count(registries::count(tx, tenant.id).await?, most, "registries") {
            return Ok(Err(refusal));
        }
        Ok(Ok(registries::insert(tx, tenant.id, &app.sealer, content).await?))
    });
    let row = made.await.map_err(name_taken("registry", &name))??;
    Ok((StatusCode::CREATED, Json(Registry::from_row(&app, row)?)).into_response())
}

fn check_credentials(auth_type: &str, credentials: &Credentials) -> Result<(), Rejection> {
    match (auth_type, credentials) {
        (AWS_ROLE, Credentials { aws_role_arn: None, .. }) => {
            Err(Rejection::rule("aws_role_arn", "AWS_ROLE needs aws_role_arn"))
        }
        (DOCKER_CONFIG, Credentials { password: None, .. } | Credentials { username: None, .. }) => {
            Err(Rejection::rule("password", "DOCKER_CONFIG needs username and password"))
        }
        _ => Ok(()),
    }
}

/// List the registries of the workspace, sorted by name.
#[utoipa::path(get, path = "/v2/sandboxes/registries", tag = "sandbox-registries",
    responses((status = 200, description = "Registries", body = RegistryList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant) -> Result<Json<RegistryList>, ApiError> {
    let rows = app.store.read(async |tx| registries::list(tx, tenant.id).await).await?;
    let items = rows.into_iter().map(|row| Registry::from_row(&app, row));
    Ok(Json(RegistryList {
        items: items.collect::<Result<_, _>>()?,
        next_cursor: None,
    }))
}

/// Get one registry by its name or its id.
#[utoipa::path(get, path = "/v2/sandboxes/registries/{name}", tag = "sandbox-registries",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The registry", body = Registry),
              (status = 404, description = "No such registry in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Json<Registry>, ApiError> {
    let found = app
        .store
        .read(async |tx| registries::find(tx, tenant.id, &name).await)
        .await;
    let row = found.map_err(missing("Registry", &name))?;
    Ok(Json(Registry::from_row(&app, row)?))
}

/// Change a registry.
#[utoipa::path(patch, path = "/v2/sandboxes/registries/{name}", tag = "sandbox-registries", request_body = RegistryInput,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Updated", body = Registry),
              (status = 404, description = "No such registry in this workspace"),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(sent): Json<RegistryInput>,
) -> Result<Json<Registry>, ApiError> {
    sent.check()?;
    let found = app
        .store
        .read(async |tx| registries::find(tx, tenant.id, &name).await)
        .await;
    let before = found.map_err(missing("Registry", &name))?;
    let known = before.credentials(&app.sealer);
    let known = known.map_err(|error| ApiError::internal(&error))?;
    let credentials = Credentials {
        username: sent.username.or(known.username),
        password: sent.password.or(known.password),
        aws_role_arn: sent.aws_role_arn.or(known.aws_role_arn),
    };
    let auth_type = sent.auth_type.unwrap_or(before.auth_type);
    check_credentials(&auth_type, &credentials)?;
    let (new_name, url) = (sent.name.unwrap_or(before.name), sent.url.unwrap_or(before.url));
    let content = RegistryFields {
        name: &new_name,
        url: &url,
        auth_type: &auth_type,
        credentials: &credentials,
    };
    let changed = app
        .store
        .write(async |tx| registries::update(tx, tenant.id, &app.sealer, before.id, content).await);
    let row = changed.await.map_err(name_taken("registry", &new_name))?;
    Ok(Json(Registry::from_row(&app, row)?))
}

/// Delete a registry. Pulled images remain.
#[utoipa::path(delete, path = "/v2/sandboxes/registries/{name}", tag = "sandbox-registries",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such registry in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let deleted = app.store.write(async |tx| {
        let row = registries::find(tx, tenant.id, &name).await?;
        registries::delete(tx, tenant.id, row.id).await
    });
    deleted.await.map_err(missing("Registry", &name))?;
    Ok(StatusCode::NO_CONTENT)
}
