//! Keeping the files of a box as a snapshot.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use towpath_domain::sandbox::{BoxStatus, GIB};
use towpath_domain::{Rejection, SnapshotId};
use towpath_sandbox::Root;
use towpath_store::sandboxes::boxes;
use towpath_store::sandboxes::snapshots::{self, NewSnapshot};
use towpath_store::{self as store};
use towpath_workflows::snapshot_capture;
use towpath_workflows::snapshot_capture::MOST_LAYERS;

use super::model::{Digested, RunConfigBody, missing};
use super::snapshots::{Content, Snapshot, known, tagged};
use super::wake::machine;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// What is kept of a box.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CaptureSandbox)]
pub struct Capture {
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
    /// `labels`: what is kept beside its files and `run_config`. Others are refused.
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

impl Capture {
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

/// Keep the files of a sandbox as a snapshot. It is frozen meanwhile. Poll the snapshot until it is `ready`.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/snapshot", tag = "sandbox-snapshots", request_body = Capture,
    params(("name" = String, Path, description = "Name or id of the sandbox")),
    responses((status = 201, description = "The snapshot", body = Snapshot),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 429, description = "The workspace has as many as it may"),
              (status = 501, description = "This process has no sandboxes"), ApiError))]
pub async fn capture(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    sent: Digested<Capture>,
) -> Result<Response, ApiError> {
    let Digested { body: asked, digest } = sent;
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
    let content = Content {
        name: asked.name,
        tag: asked.tag,
        capacity: asked.fs_capacity_bytes.or(config.fs_capacity_bytes).unwrap_or(16 * GIB),
        run_config: asked.run_config.map(Into::into).or(config.run_config),
        labels,
        description: asked.description,
    };
    content.check()?;
    machine(&app)?;
    if !matches!(source.status, BoxStatus::Ready | BoxStatus::Stopped) {
        let text = format!("sandbox '{}' is {}", source.name, source.status.as_str());
        return Err(ApiError::named(StatusCode::BAD_REQUEST, "NotReady", text));
    }
    check_layers(source.root.as_deref())?;
    let by = tenant.key.to_string();
    let (id, most) = (SnapshotId::new(), app.settings.sandboxes.snapshots);
    let made = app.store.write(async |tx| {
        if let Some(known) = known(tx, tenant, &digest, &by, most).await? {
            return Ok(known);
        }
        snapshot_capture::start(tx, tenant.id, source.id, id).await?;
        let row = NewSnapshot {
            id,
            name: &content.name,
            docker_image: None,
            fs_capacity_bytes: content.capacity,
            source: Some(source.id),
            parent: source.snapshot_id,
            run_config: content.run_config.as_ref(),
            labels: &content.labels,
            description: content.description.as_deref(),
            included: &included,
            request: &digest,
            created_by: &by,
        };
        let row = snapshots::insert(tx, tenant.id, row).await?;
        tagged(tx, tenant, &row, content.tag.as_deref()).await?;
        Ok(Ok(row))
    });
    let row = made.await??;
    Ok((StatusCode::CREATED, Json(Snapshot::read(&app, row).await?)).into_response())
}

/// A snapshot of a snapshot of a snapshot has a layer for each.
fn check_layers(root: Option<&str>) -> Result<(), ApiError> {
    let Some(root) = root else { return Ok(()) };
    let corrupt = |_| ApiError::from(store::Error::corrupt("sandbox_box", "root", "a snapshot's box"));
    let root: Root = serde_json::from_str(root).map_err(corrupt)?;
    if root.layers.len() < MOST_LAYERS {
        return Ok(());
    }
    let text = format!("the sandbox stands on {MOST_LAYERS} snapshots, one on the other, which is as many as it may");
    Err(ApiError::named(StatusCode::BAD_REQUEST, "ValidationError", text))
}
