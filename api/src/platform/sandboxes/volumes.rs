//! Volumes, in the three formats that clients use.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::sandbox::{
    GIB, VolumeStatus, check_labels, check_text, check_volume_name, format_bytes, parse_bytes,
};
use towpath_domain::{Rejection, Timestamp, VolumeId};
use towpath_store::sandboxes;
use towpath_store::sandboxes::nodes;
use towpath_store::sandboxes::volumes::{self, NewVolume, Volume as Row, VolumeUpdate, VolumeUser};
use towpath_store::{self as store};
use towpath_workflows::sandbox_nodes::{eligible, unavailable_text};
use towpath_workflows::{clone_volume, delete_volume};
use uuid::Uuid;

use super::model::{PageParameters, PageRequest, missing, name_taken, quota_exceeded};
use super::readiness::require_node;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole};

/// The only storage class.
const STANDARD_CLASS: &str = "standard";
/// Default page size.
const DEFAULT_LIMIT: i64 = 1000;
/// Maximum number of users listed in an error.
const MAX_LISTED: usize = 5;

/// A sandbox that has mounted a volume.
#[derive(Serialize, utoipa::ToSchema)]
pub struct VolumeAttachment {
    sandbox_id: Uuid,
    sandbox_name: String,
    mount_path: String,
    read_only: bool,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxVolumeDetails)]
pub struct Volume {
    #[schema(value_type = Uuid)]
    id: VolumeId,
    name: String,
    /// Such as `1Gi`.
    size: String,
    size_bytes: i64,
    storage_class: String,
    #[schema(value_type = String, example = "ready")]
    status: VolumeStatus,
    status_message: Option<String>,
    description: Option<String>,
    labels: BTreeMap<String, String>,
    #[schema(value_type = Option<Uuid>)]
    source_volume_id: Option<VolumeId>,
    /// Sandboxes that have mounted it.
    attachments: Vec<VolumeAttachment>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Volume {
    fn from_row(row: Row, holders: &[VolumeUser]) -> Result<Self, ApiError> {
        let own = holders
            .iter()
            .filter(|holder| holder.volume_id == row.id && holder.kind == "box");
        let attachments = own.map(|holder| VolumeAttachment {
            sandbox_id: holder.id,
            sandbox_name: holder.name.clone(),
            mount_path: holder.mount_path.clone(),
            read_only: holder.read_only,
        });
        Ok(Self {
            labels: row.labels()?,
            attachments: attachments.collect(),
            id: row.id,
            name: row.name,
            size: format_bytes(row.size_bytes),
            size_bytes: row.size_bytes,
            storage_class: row.storage_class,
            status: row.status,
            status_message: row.status_message,
            description: row.description,
            source_volume_id: row.source_volume_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }

    async fn load(app: &App, row: Row) -> Result<Self, ApiError> {
        let ids = [row.id];
        let holders = app.store.read(async |tx| volumes::users(tx, &ids).await).await?;
        Self::from_row(row, &holders)
    }
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxVolumeList)]
pub struct VolumeList {
    volumes: Vec<Volume>,
    offset: i64,
    next_cursor: Option<String>,
}

/// A volume to create: its size as text or in bytes.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewVolume)]
pub struct CreateVolume {
    /// Lower-case letters, digits and `-`.
    #[schema(max_length = 63)]
    name: String,
    #[serde(default)]
    #[schema(example = "1Gi")]
    size: Option<String>,
    /// Rounded up to whole gibibytes.
    #[serde(default, deserialize_with = "whole")]
    size_bytes: Option<i64>,
    /// Only `standard`.
    #[serde(default)]
    storage_class: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

fn parse_size(text: Option<&str>, bytes: Option<i64>) -> Result<Option<i64>, Rejection> {
    match (text, bytes) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Rejection::rule("size", "send either size or size_bytes")),
        (Some(text), None) => match parse_bytes(text) {
            None => Err(Rejection::invalid(
                "size",
                "expected an amount of bytes such as 512Mi or 1Gi",
            )),
            bytes => Ok(bytes),
        },
        (None, Some(bytes)) if (1..=1 << 50).contains(&bytes) => Ok(Some((bytes + GIB - 1) / GIB * GIB)),
        (None, Some(_)) => Err(Rejection::invalid("size_bytes", "expected 1 to 2^50")),
    }
}

/// Create a volume. It can be used at once. Its size counts towards the workspace quota; whether the host enforces it
/// depends on the driver.
#[utoipa::path(post, path = "/v2/sandboxes/volumes", tag = "sandbox-volumes", request_body = CreateVolume,
    responses((status = 201, description = "The volume", body = Volume),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(new): Json<CreateVolume>,
) -> Result<Response, ApiError> {
    check_volume_name("name", &new.name)?;
    if new
        .storage_class
        .as_deref()
        .is_some_and(|class| class != STANDARD_CLASS)
    {
        return Err(Rejection::invalid("storage_class", "expected standard").into());
    }
    check_text("description", new.description.as_deref().unwrap_or_default(), 1000)?;
    let labels = new.labels.unwrap_or_default();
    check_labels("labels", &labels)?;
    let size = parse_size(new.size.as_deref(), new.size_bytes)?;
    let size = size.ok_or_else(|| Rejection::invalid("size", "field required: size or size_bytes"))?;
    let row = NewVolume {
        id: VolumeId::new(),
        name: &new.name,
        size_bytes: size,
        storage_class: STANDARD_CLASS,
        description: new.description.as_deref(),
        labels: &labels,
        source: None,
        node: None,
    };
    let made = app.store.write(async |tx| {
        sandboxes::lock_quota(tx, tenant.id).await?;
        match check_quota(&app, volumes::usage(tx, tenant.id).await?, size) {
            Ok(()) => Ok(Ok(volumes::insert(tx, tenant.id, row).await?)),
            Err(refusal) => Ok(Err(refusal)),
        }
    });
    let row = made.await.map_err(name_taken("volume", &new.name))??;
    Ok((StatusCode::CREATED, Json(Volume::from_row(row, &[])?)).into_response())
}

/// Checks the storage quota of the workspace.
fn check_quota(app: &App, (count, bytes): (i64, i64), more: i64) -> Result<(), ApiError> {
    let most = app.settings.sandbox_quota;
    if most.volumes > 0 && count >= most.volumes {
        return Err(quota_exceeded(format!(
            "this workspace has reached its limit of {} volumes",
            most.volumes
        )));
    }
    check_bytes(app, bytes, more)
}

fn check_bytes(app: &App, bytes: i64, more: i64) -> Result<(), ApiError> {
    let most = app.settings.sandbox_quota.volume_bytes;
    if most > 0 && bytes.saturating_add(more) > most {
        let text = format!(
            "the storage of this workspace's volumes is limited to {}",
            format_bytes(most)
        );
        return Err(quota_exceeded(text));
    }
    Ok(())
}

/// List the volumes of the workspace, sorted by name.
#[utoipa::path(get, path = "/v2/sandboxes/volumes", tag = "sandbox-volumes",
    params(PageParameters, ("name_contains" = Option<String>, Query, description = "Text in the name, in any case")),
    responses((status = 200, description = "Volumes", body = VolumeList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, pairs: Pairs) -> Result<Json<VolumeList>, ApiError> {
    let page = PageRequest::parse(&pairs, DEFAULT_LIMIT)?;
    let part = pairs.all("name_contains").last();
    let (rows, holders) = app
        .store
        .read(async |tx| {
            let rows = volumes::list(tx, tenant.id, part, page.limit, page.offset).await?;
            let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            let holders = volumes::users(tx, &ids).await?;
            Ok((rows, holders))
        })
        .await?;
    let next_cursor = page.next_cursor(rows.len());
    let volumes = rows.into_iter().map(|row| Volume::from_row(row, &holders));
    Ok(Json(VolumeList {
        volumes: volumes.collect::<Result<_, _>>()?,
        offset: page.offset,
        next_cursor,
    }))
}

/// Get one volume by its name or its id.
#[utoipa::path(get, path = "/v2/sandboxes/volumes/{name}", tag = "sandbox-volumes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The volume", body = Volume),
              (status = 404, description = "No such volume in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Json<Volume>, ApiError> {
    let found = app
        .store
        .read(async |tx| volumes::find(tx, tenant.id, &name).await)
        .await;
    let row = found.map_err(missing("Volume", &name))?;
    Ok(Json(Volume::load(&app, row).await?))
}

/// Changes of a volume. A volume can only grow.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = VolumeChange)]
pub struct UpdateVolume {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    size: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    size_bytes: Option<i64>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// Change a volume.
#[utoipa::path(patch, path = "/v2/sandboxes/volumes/{name}", tag = "sandbox-volumes", request_body = UpdateVolume,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Updated", body = Volume),
              (status = 404, description = "No such volume in this workspace"),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(update): Json<UpdateVolume>,
) -> Result<Json<Volume>, ApiError> {
    if let Some(name) = &update.name {
        check_volume_name("name", name)?;
    }
    check_text("description", update.description.as_deref().unwrap_or_default(), 1000)?;
    if let Some(labels) = &update.labels {
        check_labels("labels", labels)?;
    }
    let size = parse_size(update.size.as_deref(), update.size_bytes)?;
    let changed = app.store.write(async |tx| {
        sandboxes::lock_quota(tx, tenant.id).await?;
        let before = volumes::lock(tx, tenant.id, &name).await?;
        let size_bytes = size.unwrap_or(before.size_bytes);
        if size_bytes < before.size_bytes {
            let text = format!(
                "volume '{}' has {}, and a volume cannot become smaller",
                before.name,
                format_bytes(before.size_bytes)
            );
            return Ok(Err(ApiError::with_name(StatusCode::BAD_REQUEST, "VolumeResize", text)));
        }
        let more = size_bytes - before.size_bytes;
        if more > 0 {
            let (_, used) = volumes::usage(tx, tenant.id).await?;
            if let Err(refusal) = check_bytes(&app, used, more) {
                return Ok(Err(refusal));
            }
        }
        let labels = match &update.labels {
            Some(labels) => labels.clone(),
            None => before.labels()?,
        };
        let change = VolumeUpdate {
            name: update.name.as_deref().unwrap_or(&before.name),
            size_bytes,
            description: update.description.as_deref().or(before.description.as_deref()),
            labels: &labels,
        };
        Ok(Ok(volumes::update(tx, tenant.id, before.id, change).await?))
    });
    let row = changed.await.map_err(|error| match error {
        store::Error::Conflict { .. } => {
            let text = "another volume of this workspace has this name";
            ApiError::with_name(StatusCode::CONFLICT, "NameConflict", text)
        }
        error => missing("Volume", &name)(error),
    })??;
    Ok(Json(Volume::load(&app, row).await?))
}

/// Delete a volume that no template and no sandbox uses.
#[utoipa::path(delete, path = "/v2/sandboxes/volumes/{name}", tag = "sandbox-volumes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such volume in this workspace"),
              (status = 409, description = "`VolumeInUse`: the message names what uses it"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let deleted = app.store.write(async |tx| {
        let row = volumes::find(tx, tenant.id, &name).await?;
        let holders = volumes::users(tx, &[row.id]).await?;
        if !holders.is_empty() {
            return Ok(Err(in_use_error(&row.name, &holders)));
        }
        if row.status == VolumeStatus::Provisioning {
            let text = format!(
                "the files of volume '{}' are still being copied; delete it after that",
                row.name
            );
            return Err(Rejection::conflict("", text).into());
        }
        // The lane is locked before any row.
        delete_volume::start(tx, tenant.id, row.id).await?;
        let row = volumes::lock(tx, tenant.id, &row.id.to_string()).await?;
        if !volumes::users(tx, &[row.id]).await?.is_empty() {
            return Err(Rejection::conflict("", "the volume is now in use").into());
        }
        volumes::set_status(tx, tenant.id, row.id, VolumeStatus::Deleting, None).await?;
        Ok(Ok(()))
    });
    deleted.await.map_err(missing("Volume", &name))??;
    Ok(StatusCode::NO_CONTENT)
}

fn in_use_error(name: &str, holders: &[VolumeUser]) -> ApiError {
    let of = |kind: &str| {
        let names = holders.iter().filter(|holder| holder.kind == kind);
        let mut names: Vec<_> = names.map(|holder| format!("'{}'", holder.name)).collect();
        let more = names.len().saturating_sub(MAX_LISTED);
        names.truncate(MAX_LISTED);
        let names = names.join(", ");
        if more > 0 {
            format!("{names} and {more} more")
        } else {
            names
        }
    };
    let (templates, boxes) = (of("template"), of("box"));
    let text = match (templates.as_str(), boxes.as_str()) {
        (templates, "") => format!("volume '{name}' is referenced by templates: {templates}"),
        ("", boxes) => format!("volume '{name}' is attached to sandboxes: {boxes}"),
        (templates, boxes) => {
            format!("volume '{name}' is referenced by templates: {templates}; it is attached to sandboxes: {boxes}")
        }
    };
    ApiError::with_name(
        StatusCode::CONFLICT,
        "VolumeInUse",
        format!("{text}; delete or change those first"),
    )
}

/// A copy to create.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CloneVolume)]
pub struct CloneVolume {
    #[schema(max_length = 63)]
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// Create a copy of a volume that no sandbox may write to meanwhile. The copy is `provisioning` until its files are
/// copied.
#[utoipa::path(post, path = "/v2/sandboxes/volumes/{name}/clone", tag = "sandbox-volumes", request_body = CloneVolume,
    params(("name" = String, Path, description = "Name or id of the volume to copy")),
    responses((status = 201, description = "The new volume", body = Volume),
              (status = 404, description = "No such volume in this workspace"),
              (status = 409, description = "The name is taken, or a sandbox may write to the volume"),
              (status = 429, description = "The workspace has reached its quota"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn clone(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(asked): Json<CloneVolume>,
) -> Result<Response, ApiError> {
    check_volume_name("name", &asked.name)?;
    check_text("description", asked.description.as_deref().unwrap_or_default(), 1000)?;
    let labels = asked.labels.unwrap_or_default();
    check_labels("labels", &labels)?;
    let found = app
        .store
        .read(async |tx| volumes::find(tx, tenant.id, &name).await)
        .await;
    let from = found.map_err(missing("Volume", &name))?;
    require_node(&app).await?;
    let id = VolumeId::new();
    let made = app.store.write(async |tx| {
        sandboxes::lock_quota(tx, tenant.id).await?;
        if let Err(refusal) = check_quota(&app, volumes::usage(tx, tenant.id).await?, from.size_bytes) {
            return Ok(Err(refusal));
        }
        // A volume without files gets its node here, so that no other node creates it meanwhile.
        let node = match from.host_id {
            Some(node) => Some(node),
            None => eligible(tx, None).await?.first().copied(),
        };
        if let Some(node) = node
            && let Some(node) = nodes::find(tx, node).await?.filter(|node| !node.is_alive)
        {
            let text = unavailable_text(&node);
            return Ok(Err(ApiError::unavailable(text, Duration::from_secs(10))));
        }
        clone_volume::start(tx, tenant.id, from.id, id, node).await?;
        let source = volumes::lock(tx, tenant.id, &from.id.to_string()).await?;
        if source.status != VolumeStatus::Ready {
            let text = format!("volume '{}' is {}", source.name, source.status.as_str());
            return Err(Rejection::conflict("", text).into());
        }
        if source.host_id.is_some() && source.host_id != node {
            return Err(Rejection::conflict(
                "",
                "the volume was just mounted for the first time; send the request again",
            )
            .into());
        }
        if let Some(node) = node {
            volumes::set_node(tx, tenant.id, source.id, node).await?;
        }
        let holders = volumes::users(tx, &[source.id]).await?;
        if let Some(holder) = holders.iter().find(|holder| holder.kind == "box" && !holder.read_only) {
            let text = format!("sandbox '{}' may write to the volume; delete it first", holder.name);
            return Err(Rejection::conflict("", text).into());
        }
        let new = NewVolume {
            id,
            name: &asked.name,
            size_bytes: source.size_bytes,
            storage_class: STANDARD_CLASS,
            description: asked.description.as_deref().or(source.description.as_deref()),
            labels: &labels,
            source: Some(source.id),
            node,
        };
        Ok(Ok(volumes::insert(tx, tenant.id, new).await?))
    });
    let row = made.await.map_err(name_taken("volume", &asked.name))??;
    Ok((StatusCode::CREATED, Json(Volume::from_row(row, &[])?)).into_response())
}
