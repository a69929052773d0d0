//! Snapshots: saved files of a sandbox or an image, with names and tags.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::sandbox::{
    GIB, RunConfig, SnapshotReference, SnapshotStatus, check_box_name, check_labels, check_tag, check_text,
};
use towpath_domain::{BoxId, Rejection, SnapshotId, TenantId, Timestamp};
use towpath_sandbox::RootFileSystem;
use towpath_store::sandboxes;
use towpath_store::sandboxes::registries;
use towpath_store::sandboxes::snapshots::{self, NewSnapshot, Snapshot as Row, Tag};
use towpath_store::{self as store, Tx};
use towpath_workflows::{build_snapshot, delete_snapshot};

use super::model::{DigestedJson, PageParameters, PageRequest, RunConfigBody, missing, quota_exceeded};
use super::readiness::require_node;
use super::templates::in_use_error;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole};

/// A repeated request within this time gets the snapshot of the first while it is being built.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(120);
/// Default page size.
const DEFAULT_LIMIT: i64 = 50;

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxSnapshot)]
pub struct Snapshot {
    #[schema(value_type = Uuid)]
    id: SnapshotId,
    name: String,
    #[schema(value_type = String, example = "ready")]
    status: SnapshotStatus,
    status_message: Option<String>,
    fs_capacity_bytes: i64,
    fs_used_bytes: Option<i64>,
    docker_image: Option<String>,
    image_digest: Option<String>,
    #[schema(value_type = Option<Uuid>)]
    source_sandbox_id: Option<BoxId>,
    registry_id: Option<String>,
    /// Tags of the snapshot.
    tags: Vec<String>,
    run_config: Option<RunConfigBody>,
    labels: BTreeMap<String, String>,
    description: Option<String>,
    included: Vec<String>,
    memory_snapshot_size_bytes: Option<i64>,
    created_by: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Snapshot {
    fn from_row(row: Row, tags: &[Tag]) -> Result<Self, ApiError> {
        let tags = tags.iter().filter(|tag| tag.snapshot_id == row.id);
        Ok(Self {
            tags: tags.map(|tag| tag.tag.clone()).collect(),
            run_config: row.run_config()?.map(Into::into),
            labels: row.labels()?,
            included: row.included()?,
            id: row.id,
            name: row.name,
            status: row.status,
            status_message: row.status_message,
            fs_capacity_bytes: row.fs_capacity_bytes,
            fs_used_bytes: row.fs_used_bytes,
            docker_image: row.docker_image,
            image_digest: image_digest(row.root.as_deref()),
            source_sandbox_id: row.source_box_id,
            registry_id: None,
            description: row.description,
            memory_snapshot_size_bytes: None,
            created_by: row.created_by,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }

    pub(super) async fn load(app: &App, row: Row) -> Result<Self, ApiError> {
        let ids = [row.id];
        let tags = app.store.read(async |tx| snapshots::tags_of(tx, &ids).await).await?;
        Self::from_row(row, &tags)
    }
}

/// The digest of the image that a snapshot is based on.
fn image_digest(root: Option<&str>) -> Option<String> {
    let root: RootFileSystem = serde_json::from_str(root?).ok()?;
    root.base.split_once('@').map(|(_, digest)| digest.to_owned())
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxSnapshotList)]
pub struct SnapshotList {
    snapshots: Vec<Snapshot>,
    offset: i64,
    next_cursor: Option<String>,
}

/// A snapshot of an image to create.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandboxSnapshot)]
pub struct CreateSnapshot {
    #[schema(max_length = 63)]
    name: String,
    /// `host` for the files of the host, or an image of a registry.
    #[schema(max_length = 512)]
    docker_image: String,
    #[serde(default, deserialize_with = "whole")]
    fs_capacity_bytes: Option<i64>,
    /// When the snapshot is ready, the tag moves to it from the snapshot that has it.
    #[serde(default)]
    tag: Option<String>,
    #[serde(default)]
    run_config: Option<RunConfigBody>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    description: Option<String>,
    /// Name or id of the registry whose login pulls the image. Without it, a login is used whose registry has the image.
    #[serde(default)]
    registry_id: Option<String>,
    /// Refused: create a registry with the login, and name it in `registry_id`.
    #[serde(default)]
    registry_url: Option<String>,
}

/// Content of a new snapshot.
pub(super) struct SnapshotContent {
    pub name: String,
    pub tag: Option<String>,
    pub capacity: i64,
    pub run_config: Option<RunConfig>,
    pub labels: BTreeMap<String, String>,
    pub description: Option<String>,
}

impl SnapshotContent {
    pub(super) fn check(&self) -> Result<(), Rejection> {
        check_box_name("name", &self.name)?;
        if let Some(tag) = &self.tag {
            check_tag("tag", tag)?;
        }
        if !(1..=1 << 50).contains(&self.capacity) {
            return Err(Rejection::invalid("fs_capacity_bytes", "expected 1 to 2^50"));
        }
        if let Some(config) = &self.run_config {
            config.check("run_config")?;
        }
        check_labels("labels", &self.labels)?;
        check_text("description", self.description.as_deref().unwrap_or_default(), 1000)
    }
}

/// Create a snapshot of an image. Poll it until it is `ready`.
#[utoipa::path(post, path = "/v2/sandboxes/snapshots", tag = "sandbox-snapshots", request_body = CreateSnapshot,
    responses((status = 201, description = "The snapshot", body = Snapshot),
              (status = 429, description = "The workspace has reached its quota"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    sent: DigestedJson<CreateSnapshot>,
) -> Result<Response, ApiError> {
    let DigestedJson { body: new, digest } = sent;
    check_text("docker_image", &new.docker_image, 512)?;
    if new.docker_image.trim().is_empty() {
        return Err(Rejection::invalid("docker_image", "must not be empty").into());
    }
    if new.registry_url.is_some() {
        // A registry of the workspace keeps its password sealed.
        return Err(Rejection::unsupported("registry_url", "a login for one image").into());
    }
    let content = SnapshotContent {
        name: new.name,
        tag: new.tag,
        capacity: new.fs_capacity_bytes.unwrap_or(16 * GIB),
        run_config: new.run_config.map(Into::into),
        labels: new.labels.unwrap_or_default(),
        description: new.description,
    };
    content.check()?;
    require_node(&app).await?;
    let by = tenant.key.to_string();
    let (id, most) = (SnapshotId::new(), app.settings.sandbox_quota.snapshots);
    let made = app.store.write(async |tx| {
        if let Some(known) = find_duplicate(tx, tenant.id, &digest, &by, most).await? {
            return Ok(known);
        }
        let registry = match &new.registry_id {
            Some(reference) => match registries::find(tx, tenant.id, reference).await {
                Ok(found) => Some(found.id),
                Err(store::Error::NotFound) => {
                    let text = "this workspace has no such registry";
                    return Ok(Err(Rejection::invalid("registry_id", text).into()));
                }
                Err(error) => return Err(error),
            },
            None => None,
        };
        build_snapshot::start(tx, tenant.id, id, content.tag.as_deref(), registry).await?;
        let row = NewSnapshot {
            id,
            name: &content.name,
            docker_image: Some(&new.docker_image),
            fs_capacity_bytes: content.capacity,
            source: None,
            parent: None,
            node: None,
            run_config: content.run_config.as_ref(),
            labels: &content.labels,
            description: content.description.as_deref(),
            included: &[],
            request: &digest,
            created_by: &by,
        };
        Ok(Ok(snapshots::insert(tx, tenant.id, row).await?))
    });
    let row = made.await??;
    Ok((StatusCode::CREATED, Json(Snapshot::load(&app, row).await?)).into_response())
}

/// The snapshot of an earlier identical request. Checks the quota otherwise.
pub(super) async fn find_duplicate(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    digest: &[u8; 32],
    by: &str,
    most: i64,
) -> store::Result<Option<Result<Row, ApiError>>> {
    sandboxes::lock_quota(tx, tenant).await?;
    let since = tx.now().minus(DEDUPLICATION_WINDOW);
    if let Some(row) = snapshots::find_duplicate(tx, tenant, digest, by, since).await? {
        return Ok(Some(Ok(row)));
    }
    if most > 0 && snapshots::count(tx, tenant).await? >= most {
        let text = format!("this workspace has reached its limit of {most} snapshots; delete some first");
        return Ok(Some(Err(quota_exceeded(text))));
    }
    Ok(None)
}

/// List the snapshots of the workspace, newest first.
#[utoipa::path(get, path = "/v2/sandboxes/snapshots", tag = "sandbox-snapshots",
    params(PageParameters, ("name_contains" = Option<String>, Query, description = "Text in the name, in any case")),
    responses((status = 200, description = "Snapshots", body = SnapshotList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, pairs: Pairs) -> Result<Json<SnapshotList>, ApiError> {
    let page = PageRequest::parse(&pairs, DEFAULT_LIMIT)?;
    let part = pairs.all("name_contains").last();
    let (rows, tags) = app
        .store
        .read(async |tx| {
            let rows = snapshots::list(tx, tenant.id, part, page.limit, page.offset).await?;
            let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            let tags = snapshots::tags_of(tx, &ids).await?;
            Ok((rows, tags))
        })
        .await?;
    let next_cursor = page.next_cursor(rows.len());
    let snapshots = rows.into_iter().map(|row| Snapshot::from_row(row, &tags));
    Ok(Json(SnapshotList {
        snapshots: snapshots.collect::<Result<_, _>>()?,
        offset: page.offset,
        next_cursor,
    }))
}

async fn find_snapshot(app: &App, tenant: Tenant, text: &str) -> Result<Row, ApiError> {
    // An invalid reference matches nothing.
    let Ok(reference) = SnapshotReference::parse("reference", text) else {
        return Err(missing("Snapshot", text)(store::Error::NotFound));
    };
    let found = app
        .store
        .read(async |tx| snapshots::find(tx, tenant.id, &reference).await);
    found.await.map_err(missing("Snapshot", text))
}

/// Get one snapshot by its id, its name, or `name:tag`.
#[utoipa::path(get, path = "/v2/sandboxes/snapshots/{reference}", tag = "sandbox-snapshots",
    params(("reference" = String, Path, description = "Its id, its name, or `name:tag`")),
    responses((status = 200, description = "The snapshot", body = Snapshot),
              (status = 404, description = "No such snapshot in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(reference): Path<String>,
) -> Result<Json<Snapshot>, ApiError> {
    let row = find_snapshot(&app, tenant, &reference).await?;
    Ok(Json(Snapshot::load(&app, row).await?))
}

/// Delete a snapshot that no sandbox and no other snapshot is based on.
#[utoipa::path(delete, path = "/v2/sandboxes/snapshots/{reference}", tag = "sandbox-snapshots",
    params(("reference" = String, Path, description = "Its id, its name, or `name:tag`")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such snapshot in this workspace"),
              (status = 409, description = "`SnapshotInUse`: the message names what uses it"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(reference): Path<String>,
) -> Result<StatusCode, ApiError> {
    let row = find_snapshot(&app, tenant, &reference).await?;
    let deleted = app.store.write(async |tx| {
        let users = snapshots::users(tx, tenant.id, row.id).await?;
        if !users.is_empty() {
            return Ok(Err(in_use_error("snapshot", "SnapshotInUse", &row.name, &users)));
        }
        // The lane is locked before any row.
        delete_snapshot::start(tx, tenant.id, row.id).await?;
        snapshots::lock(tx, tenant.id, row.id).await?;
        if !snapshots::users(tx, tenant.id, row.id).await?.is_empty() {
            return Err(Rejection::conflict("", "the snapshot is now in use").into());
        }
        snapshots::mark_deleting(tx, tenant.id, row.id).await?;
        Ok(Ok(()))
    });
    deleted.await.map_err(missing("Snapshot", &reference))??;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct SnapshotTag {
    tag: String,
    #[schema(value_type = Uuid)]
    snapshot_id: SnapshotId,
}

/// The tags of a name.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SnapshotTagList {
    name: String,
    tags: Vec<SnapshotTag>,
}

/// List the tags of a snapshot name.
#[utoipa::path(get, path = "/v2/sandboxes/snapshots-by-name/{name}", tag = "sandbox-snapshots",
    params(("name" = String, Path, description = "The name")),
    responses((status = 200, description = "Its tags", body = SnapshotTagList),
              (status = 404, description = "No snapshot in this workspace has this name"), ApiError))]
pub async fn tags(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
) -> Result<Json<SnapshotTagList>, ApiError> {
    let Ok(reference @ SnapshotReference::Name(_, None)) = SnapshotReference::parse("name", &name) else {
        return Err(missing("Snapshot", &name)(store::Error::NotFound));
    };
    let found = app.store.read(async |tx| {
        snapshots::find(tx, tenant.id, &reference).await?;
        snapshots::tags(tx, tenant.id, &name).await
    });
    let tags = found.await.map_err(missing("Snapshot", &name))?;
    let tags = tags.into_iter().map(|tag| SnapshotTag {
        tag: tag.tag,
        snapshot_id: tag.snapshot_id,
    });
    let tags = tags.collect();
    Ok(Json(SnapshotTagList { name, tags }))
}
