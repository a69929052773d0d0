//! Templates: named settings of sandboxes. Used by older clients.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::sandbox::{TemplateMount, TemplateResources, check_attachments, check_box_name, check_text};
use towpath_domain::{Rejection, TemplateId, Timestamp, VolumeId};
use towpath_store::sandboxes::templates::{self, Template as Row, TemplateVolume};
use towpath_store::sandboxes::{self, volumes};
use towpath_store::{self as store, Tx};

use super::boxes::{DeleteSandboxes, DeletedMany};
use super::model::{PageParameters, PageRequest, check_count, missing, name_taken, refuse_field};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};

/// Default page size.
const DEFAULT_LIMIT: i64 = 1000;

/// Resource limits of sandboxes.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxResources)]
pub struct Resources {
    #[serde(default)]
    #[schema(example = "500m")]
    cpu: Option<String>,
    #[serde(default)]
    #[schema(example = "512Mi")]
    memory: Option<String>,
    #[serde(default)]
    #[schema(example = "1Gi")]
    storage: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxVolumeMount)]
pub struct VolumeMount {
    volume_name: String,
    mount_path: String,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxTemplate)]
pub struct Template {
    #[schema(value_type = Uuid)]
    id: TemplateId,
    name: String,
    image: String,
    resources: Resources,
    volume_mounts: Vec<VolumeMount>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Template {
    fn from_row(row: Row, mounts: &[TemplateVolume]) -> Result<Self, ApiError> {
        let resources = row.resources()?;
        let own = mounts.iter().filter(|mount| mount.template_id == row.id);
        let volume_mounts = own.map(|mount| VolumeMount {
            volume_name: mount.volume_name.clone(),
            mount_path: mount.mount_path.clone(),
        });
        Ok(Self {
            volume_mounts: volume_mounts.collect(),
            id: row.id,
            name: row.name,
            image: row.image,
            resources: Resources {
                cpu: Some(resources.cpu),
                memory: Some(resources.memory),
                storage: resources.storage,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }

    async fn load(app: &App, row: Row) -> Result<Self, ApiError> {
        let ids = [row.id];
        let mounts = app.store.read(async |tx| templates::volumes_of(tx, &ids).await).await?;
        Self::from_row(row, &mounts)
    }
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxTemplateList)]
pub struct TemplateList {
    templates: Vec<Template>,
    offset: i64,
    next_cursor: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandboxTemplate)]
pub struct CreateTemplate {
    #[schema(max_length = 63)]
    name: String,
    /// `host` for the host's own system, read-only, or an image of a registry.
    #[schema(max_length = 512)]
    image: String,
    #[serde(default)]
    resources: Option<Resources>,
    #[serde(default)]
    volume_mounts: Option<Vec<VolumeMount>>,
    /// Refused: an image is pulled with the login of the workspace whose registry has it.
    #[serde(default)]
    registry_id: Option<String>,
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    proxy_config: Option<Value>,
}

/// Create a template.
#[utoipa::path(post, path = "/v2/sandboxes/templates", tag = "sandbox-templates", request_body = CreateTemplate,
    responses((status = 201, description = "The template", body = Template),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(new): Json<CreateTemplate>,
) -> Result<Response, ApiError> {
    check_box_name("name", &new.name)?;
    check_text("image", &new.image, 512)?;
    if new.image.trim().is_empty() {
        return Err(Rejection::invalid("image", "must not be empty").into());
    }
    refuse_field("proxy_config", new.proxy_config.as_ref())?;
    if new.registry_id.is_some() {
        return Err(Rejection::unsupported("registry_id", "a registry of a template").into());
    }
    let usual = TemplateResources::default();
    let resources = match new.resources {
        None => usual,
        Some(sent) => TemplateResources {
            cpu: sent.cpu.unwrap_or(usual.cpu),
            memory: sent.memory.unwrap_or(usual.memory),
            storage: sent.storage,
        },
    };
    resources.to_box_config(&new.image)?;
    let mounts = new.volume_mounts.unwrap_or_default().into_iter();
    let mounts: Vec<TemplateMount> = mounts
        .map(|mount| TemplateMount {
            volume_name: mount.volume_name,
            mount_path: mount.mount_path,
        })
        .collect();
    check_attachments("volume_mounts", mounts.iter().map(|mount| mount.mount_path.as_str()))?;
    let most = app.settings.sandbox_quota.templates;
    let made = app.store.write(async |tx| {
        sandboxes::lock_quota(tx, tenant.id).await?;
        if let Err(refusal) = check_count(templates::count(tx, tenant.id).await?, most, "templates") {
            return Ok(Err(refusal));
        }
        let mut found = Vec::with_capacity(mounts.len());
        for mount in &mounts {
            match volumes::find(tx, tenant.id, &mount.volume_name).await {
                Err(store::Error::NotFound) => {
                    let shown: String = mount.volume_name.chars().take(64).collect();
                    return Err(Rejection::rule("volume_mounts", format!("volume '{shown}' not found")).into());
                }
                volume => found.push((volume?.id, mount.mount_path.as_str())),
            }
        }
        // The same order everywhere, so that requests do not deadlock.
        found.sort_unstable();
        let is_same = |pair: &[(VolumeId, &str)]| matches!(pair, [(one, _), (other, _)] if one == other);
        if found.windows(2).any(is_same) {
            return Err(Rejection::rule("volume_mounts", "a volume can be mounted only once per sandbox").into());
        }
        for (volume, _) in &found {
            match volumes::lock(tx, tenant.id, &volume.to_string()).await {
                Err(store::Error::NotFound) => {
                    return Err(Rejection::conflict("volume_mounts", "a volume was just deleted").into());
                }
                locked => drop(locked?),
            }
        }
        let row = templates::insert(tx, tenant.id, &new.name, &new.image, &resources).await?;
        for (volume, path) in found {
            templates::add_volume(tx, row.id, volume, path).await?;
        }
        Ok(Ok(row))
    });
    let row = made.await.map_err(name_taken("template", &new.name))??;
    Ok((StatusCode::CREATED, Json(Template::load(&app, row).await?)).into_response())
}

/// List the templates of the workspace, sorted by name.
#[utoipa::path(get, path = "/v2/sandboxes/templates", tag = "sandbox-templates",
    params(PageParameters, ("name_contains" = Option<String>, Query, description = "Text in the name, in any case")),
    responses((status = 200, description = "Templates", body = TemplateList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, pairs: Pairs) -> Result<Json<TemplateList>, ApiError> {
    let page = PageRequest::parse(&pairs, DEFAULT_LIMIT)?;
    let part = pairs.all("name_contains").last();
    let (rows, mounts) = app
        .store
        .read(async |tx| {
            let rows = templates::list(tx, tenant.id, part, page.limit, page.offset).await?;
            let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            let mounts = templates::volumes_of(tx, &ids).await?;
            Ok((rows, mounts))
        })
        .await?;
    let next_cursor = page.next_cursor(rows.len());
    let templates = rows.into_iter().map(|row| Template::from_row(row, &mounts));
    Ok(Json(TemplateList {
        templates: templates.collect::<Result<_, _>>()?,
        offset: page.offset,
        next_cursor,
    }))
}

/// Get one template by its name or its id.
#[utoipa::path(get, path = "/v2/sandboxes/templates/{name}", tag = "sandbox-templates",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The template", body = Template),
              (status = 404, description = "No such template in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Json<Template>, ApiError> {
    let found = app
        .store
        .read(async |tx| templates::find(tx, tenant.id, &name).await)
        .await;
    let row = found.map_err(missing("Template", &name))?;
    Ok(Json(Template::load(&app, row).await?))
}

/// New name of a template.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxTemplateChange)]
pub struct UpdateTemplate {
    #[serde(default)]
    name: Option<String>,
}

/// Rename a template.
#[utoipa::path(patch, path = "/v2/sandboxes/templates/{name}", tag = "sandbox-templates", request_body = UpdateTemplate,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Updated", body = Template),
              (status = 404, description = "No such template in this workspace"),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(update): Json<UpdateTemplate>,
) -> Result<Json<Template>, ApiError> {
    if let Some(name) = &update.name {
        check_box_name("name", name)?;
    }
    let changed = app.store.write(async |tx| {
        let row = templates::find(tx, tenant.id, &name).await?;
        match &update.name {
            Some(name) => templates::rename(tx, tenant.id, row.id, name).await,
            None => Ok(row),
        }
    });
    let row = changed.await.map_err(|error| match error {
        store::Error::Conflict { .. } => {
            let text = "another template of this workspace has this name";
            ApiError::with_name(StatusCode::CONFLICT, "NameConflict", text)
        }
        error => missing("Template", &name)(error),
    })?;
    Ok(Json(Template::load(&app, row).await?))
}

/// Delete a template that no pool and no sandbox uses.
#[utoipa::path(delete, path = "/v2/sandboxes/templates/{name}", tag = "sandbox-templates",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such template in this workspace"),
              (status = 409, description = "`TemplateInUse`: the message names what uses it"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    delete_template(&app, tenant, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn delete_template(app: &App, tenant: Tenant, name: &str) -> Result<(), ApiError> {
    let removed = app.store.write(async |tx| {
        let row = templates::find(tx, tenant.id, name).await?;
        let users = templates::delete(tx, tenant.id, row.id).await?;
        Ok((row.name, users))
    });
    let (name, users) = removed.await.map_err(missing("Template", name))?;
    if users.is_empty() {
        return Ok(());
    }
    Err(in_use_error("template", "TemplateInUse", &name, &users))
}

/// The template of this name or id, which is not deleted before the transaction ends.
pub(super) async fn held_template(tx: &mut Tx<'_>, tenant: Tenant, name: &str) -> store::Result<Result<Row, ApiError>> {
    let template = match templates::find(tx, tenant.id, name).await {
        // It may be deleted at the same time.
        Ok(template) => templates::hold(tx, tenant.id, template.id).await.map(|()| template),
        Err(error) => Err(error),
    };
    match template {
        Err(store::Error::NotFound) => {
            let shown: String = name.chars().take(64).collect();
            let text = format!("template '{shown}' not found");
            let error = ApiError::with_name(StatusCode::BAD_REQUEST, "TemplateNotFound", text);
            Ok(Err(error))
        }
        template => Ok(Ok(template?)),
    }
}

/// 409 that lists the users of a resource.
pub(super) fn in_use_error(noun: &str, error: &'static str, name: &str, users: &[(String, String)]) -> ApiError {
    let users = users.iter().take(5).map(|(kind, name)| {
        let kind = if kind == "box" { "sandbox" } else { kind };
        format!("{kind} '{name}'")
    });
    let users = users.collect::<Vec<_>>().join(", ");
    let text = format!("{noun} '{name}' is used by {users}; delete those first");
    ApiError::with_name(StatusCode::CONFLICT, error, text)
}

/// Delete several templates.
#[utoipa::path(post, path = "/v2/sandboxes/templates/batch-delete", tag = "sandbox-templates", request_body = DeleteSandboxes,
    responses((status = 200, description = "Deleted and skipped templates", body = DeletedMany), ApiError))]
pub async fn delete_many(
    State(app): State<App>,
    tenant: Tenant,
    Json(asked): Json<DeleteSandboxes>,
) -> Result<Json<DeletedMany>, ApiError> {
    let mut done = DeletedMany::for_names(&asked.names)?;
    for name in asked.names {
        let outcome = delete_template(&app, tenant, &name).await;
        done.record(name, outcome)?;
    }
    Ok(Json(done))
}
