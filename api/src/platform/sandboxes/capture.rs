//! Saves the files of a sandbox as a snapshot.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use towpath_domain::sandbox::{BoxStatus, GIB, RunConfig};
use towpath_domain::{KeyId, Rejection, SnapshotId};
use towpath_sandbox::RootFileSystem;
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::sandboxes::snapshots::{self, NewSnapshot, Snapshot as Row};
use towpath_store::{self as store};
use towpath_workflows::capture_snapshot;
use towpath_workflows::capture_snapshot::MAX_LAYERS;

use super::model::{DigestedJson, RunConfigBody, missing};
use super::readiness::require_node_of;
use super::snapshots::{Snapshot, SnapshotContent, find_duplicate};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// A snapshot to save.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CaptureSandbox)]
pub struct CaptureSnapshot {
    #[schema(max_length = 63)]
    name: String,
    #[serde(default)]
    tag: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    fs_capacity_bytes: Option<i64>,
    #[serde(default)]
    run_config: Option<RunConfigBody>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    description: Option<String>,
    /// `labels` is supported in addition to files and `run_config`. Other values are rejected.
    #[serde(default)]
    include: Option<Vec<String>>,
    /// Refused: not available in this build.
    #[serde(default)]
    docker_image: Option<String>,
    /// Refused: not available in this build.
    #[serde(default)]
    include_memory: Option<bool>,
    /// Refused: not available in this build.
    #[serde(default)]
    checkpoint: Option<String>,
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    image_config: Option<Value>,
}

impl CaptureSnapshot {
    fn refuse(&self) -> Result<(), Rejection> {
        if self.docker_image.is_some() || self.image_config.as_ref().is_some_and(|config| !config.is_null()) {
            return Err(Rejection::unsupported(
                "docker_image",
                "a snapshot of an image built in a sandbox",
            ));
        }
        if self.include_memory == Some(true) {
            return Err(Rejection::unsupported("include_memory", "a snapshot with memory"));
        }
        if self.checkpoint.is_some() {
            return Err(Rejection::unsupported("checkpoint", "a snapshot of a checkpoint"));
        }
        let others = self.include.iter().flatten().find(|part| *part != "labels");
        match others {
            None => Ok(()),
            Some(_) => Err(Rejection::unsupported(
                "include",
                "a snapshot with more than files, run_config and labels",
            )),
        }
    }
}

/// Save the files of a sandbox as a snapshot. The sandbox is frozen meanwhile. Poll the snapshot until it is `ready`.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/snapshot", tag = "sandbox-snapshots", request_body = CaptureSnapshot,
    params(("name" = String, Path, description = "Name or id of the sandbox")),
    responses((status = 201, description = "The snapshot", body = Snapshot),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 429, description = "The workspace has reached its quota"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn capture(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    sent: DigestedJson<CaptureSnapshot>,
) -> Result<Response, ApiError> {
    let DigestedJson { body: asked, digest } = sent;
    asked.refuse()?;
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let source = found.map_err(missing("Sandbox", &name))?;
    let config = source.config()?;
    let included = asked.include.unwrap_or_default();
    let mut labels = if included.is_empty() {
        BTreeMap::new()
    } else {
        config.labels
    };
    labels.extend(asked.labels.unwrap_or_default());
    let content = SnapshotContent {
        name: asked.name,
        tag: asked.tag,
        capacity: asked.fs_capacity_bytes.or(config.fs_capacity_bytes).unwrap_or(16 * GIB),
        // Variables may be secrets: the snapshot only gets those of this request.
        run_config: asked
            .run_config
            .map(Into::into)
            .or(config.run_config.map(|config| RunConfig {
                env_vars: None,
                ..config
            })),
        labels,
        description: asked.description,
    };
    let row = record_snapshot(&app, tenant.key, &source, &content, &included, &digest).await?;
    Ok((StatusCode::CREATED, Json(Snapshot::load(&app, row).await?)).into_response())
}

/// Saves the files of a sandbox under a name, with default settings. Fails if the sandbox is neither running nor
/// stopped, the name is invalid or the quota is reached.
pub(crate) async fn capture_as(app: &App, by: KeyId, source: &SandboxBox, name: &str) -> Result<(), ApiError> {
    let config = source.config()?;
    let content = SnapshotContent {
        name: name.to_owned(),
        tag: None,
        capacity: config.fs_capacity_bytes.unwrap_or(16 * GIB),
        run_config: config.run_config.map(|config| RunConfig {
            env_vars: None,
            ..config
        }),
        labels: BTreeMap::new(),
        description: None,
    };
    // A form that is sent twice creates one snapshot.
    let digest: [u8; 32] = Sha256::digest(format!("form {} {name}", source.id)).into();
    record_snapshot(app, by, source, &content, &[], &digest).await?;
    Ok(())
}

async fn record_snapshot(
    app: &App,
    by: KeyId,
    source: &SandboxBox,
    content: &SnapshotContent,
    included: &[String],
    digest: &[u8; 32],
) -> Result<Row, ApiError> {
    content.check()?;
    require_node_of(app, source).await?;
    if !matches!(source.status, BoxStatus::Ready | BoxStatus::Stopped) {
        let text = format!("sandbox '{}' is {}", source.name, source.status.as_str());
        return Err(ApiError::with_name(StatusCode::BAD_REQUEST, "NotReady", text));
    }
    check_layers(source.root.as_deref())?;
    let (tenant, by) = (source.tenant_id, by.to_string());
    let (id, most) = (SnapshotId::new(), app.settings.sandbox_quota.snapshots);
    let made = app.store.write(async |tx| {
        if let Some(known) = find_duplicate(tx, tenant, digest, &by, most).await? {
            return Ok(known);
        }
        capture_snapshot::start(tx, tenant, source.id, id, content.tag.as_deref()).await?;
        // The sandbox may be deleted at the same time, and then the snapshot below it.
        if boxes::lock(tx, tenant, source.id).await?.status == BoxStatus::Deleting {
            return Err(store::Error::NotFound);
        }
        let row = NewSnapshot {
            id,
            name: &content.name,
            docker_image: None,
            fs_capacity_bytes: content.capacity,
            source: Some(source.id),
            parent: source.snapshot_id,
            node: source.host_id,
            run_config: content.run_config.as_ref(),
            labels: &content.labels,
            description: content.description.as_deref(),
            included,
            request: digest,
            created_by: &by,
        };
        Ok(Ok(snapshots::insert(tx, tenant, row).await?))
    });
    made.await.map_err(missing("Sandbox", &source.name))?
}

/// Each snapshot of a snapshot adds a layer.
fn check_layers(root: Option<&str>) -> Result<(), ApiError> {
    let Some(root) = root else { return Ok(()) };
    let corrupt = |_| ApiError::from(store::Error::corrupt("sandbox_box", "root", "a snapshot's box"));
    let root: RootFileSystem = serde_json::from_str(root).map_err(corrupt)?;
    if root.layers.len() < MAX_LAYERS {
        return Ok(());
    }
    let text = format!("the sandbox is based on {MAX_LAYERS} layers of snapshots, which is the limit");
    Err(ApiError::with_name(StatusCode::BAD_REQUEST, "ValidationError", text))
}
