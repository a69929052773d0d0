//! What several handlers of sandboxes read and answer.

use std::collections::BTreeMap;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use towpath_domain::sandbox::{BoxStatus, RunConfig};
use towpath_domain::{BoxId, SnapshotId, Timestamp, VolumeId};
use towpath_store::sandboxes::boxes::{Mounted, SandboxBox};
use towpath_store::{self as store};

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::{JSON_BODY_BYTES, Pairs, expect_json, parse_json, read_body};
use crate::platform::exports::MAX_OFFSET;

/// A JSON body, and a digest that tells it from others: a request that is sent again has the same.
#[derive(Debug)]
pub struct Digested<T> {
    /// The body.
    pub body: T,
    /// SHA-256 of what was sent.
    pub digest: [u8; 32],
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Digested<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        expect_json(&request)?;
        let bytes = read_body(request.into_body(), JSON_BODY_BYTES).await?;
        Ok(Self {
            body: parse_json(&bytes)?,
            digest: Sha256::digest(&bytes).into(),
        })
    }
}

/// How commands run.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxRunConfig)]
pub struct RunConfigBody {
    /// `root`, `user`, or a user id.
    #[serde(default)]
    pub user: Option<String>,
    /// Absolute.
    #[serde(default)]
    pub work_dir: Option<String>,
    /// Variables.
    #[serde(default)]
    pub env_vars: Option<BTreeMap<String, String>>,
}

impl From<RunConfigBody> for RunConfig {
    fn from(body: RunConfigBody) -> Self {
        Self {
            user: body.user,
            work_dir: body.work_dir,
            env_vars: body.env_vars,
        }
    }
}

impl From<RunConfig> for RunConfigBody {
    fn from(config: RunConfig) -> Self {
        Self {
            user: config.user,
            work_dir: config.work_dir,
            env_vars: config.env_vars,
        }
    }
}

/// A volume in a box.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SandboxVolume {
    mount_path: String,
    read_only: bool,
    #[schema(value_type = Uuid)]
    volume_id: VolumeId,
    volume_name: String,
}

/// A box.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Sandbox {
    #[schema(value_type = Uuid)]
    id: BoxId,
    name: String,
    /// Name of its template or its snapshot; empty where it has none.
    template_name: String,
    /// Where its files and commands are.
    dataplane_url: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = String, example = "ready")]
    status: BoxStatus,
    status_message: Option<String>,
    idle_ttl_seconds: i64,
    ttl_seconds: i64,
    /// When `ttl_seconds` are over.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    delete_after_stop_seconds: i64,
    #[schema(value_type = Option<String>, format = DateTime)]
    stopped_at: Option<Timestamp>,
    #[schema(value_type = Option<Uuid>)]
    snapshot_id: Option<SnapshotId>,
    vcpus: Option<i64>,
    cpu_millicores: Option<i64>,
    mem_bytes: Option<i64>,
    fs_capacity_bytes: Option<i64>,
    /// Whether its files outlive a stop.
    persistent: bool,
    preserve_memory_on_stop: bool,
    labels: BTreeMap<String, String>,
    env_vars: BTreeMap<String, String>,
    run_config: Option<RunConfigBody>,
    volumes: Vec<SandboxVolume>,
    /// How it is isolated, once it was started.
    isolation: Option<String>,
    created_by: String,
    updated_by: String,
}

impl Sandbox {
    /// As it is told.
    ///
    /// # Errors
    /// The row cannot be read.
    pub fn of(app: &App, row: SandboxBox, mounted: &[Mounted]) -> Result<Self, ApiError> {
        let config = row.config()?;
        let span = u64::try_from(row.ttl_seconds).ok().filter(|seconds| *seconds > 0);
        let volumes = mounted.iter().filter(|volume| volume.box_id == row.id);
        let volumes = volumes.map(|volume| SandboxVolume {
            mount_path: volume.mount_path.clone(),
            read_only: volume.read_only,
            volume_id: volume.volume_id,
            volume_name: volume.volume_name.clone(),
        });
        Ok(Self {
            dataplane_url: format!("{}/v2/sandboxes/dp/{}", app.settings.public_url, row.id),
            expires_at: span.map(|seconds| row.created_at.plus(std::time::Duration::from_secs(seconds))),
            volumes: volumes.collect(),
            id: row.id,
            name: row.name,
            template_name: row.template_name,
            created_at: row.created_at,
            updated_at: row.updated_at,
            status: row.status,
            status_message: row.status_message,
            idle_ttl_seconds: row.idle_ttl_seconds,
            ttl_seconds: row.ttl_seconds,
            delete_after_stop_seconds: row.delete_after_stop_seconds,
            stopped_at: row.stopped_at,
            snapshot_id: row.snapshot_id,
            vcpus: config.vcpus,
            cpu_millicores: config.cpu_millicores,
            mem_bytes: config.mem_bytes,
            fs_capacity_bytes: config.fs_capacity_bytes,
            persistent: !config.is_temporary,
            preserve_memory_on_stop: false,
            labels: config.labels,
            env_vars: config.env_vars,
            run_config: config.run_config.map(Into::into),
            isolation: row.isolation,
            created_by: row.created_by,
            updated_by: row.updated_by,
        })
    }

    /// The same, with its volumes read.
    ///
    /// # Errors
    /// The database does not answer, or the row cannot be read.
    pub async fn read(app: &App, row: SandboxBox) -> Result<Self, ApiError> {
        let id = row.id;
        let mounted = app
            .store
            .read(async |tx| store::sandboxes::boxes::attachments(tx, &[id]).await)
            .await?;
        Self::of(app, row, &mounted)
    }
}

/// 404 with a sentence that names what is missing.
pub(crate) fn missing(noun: &'static str, name: &str) -> impl Fn(store::Error) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    move |error| match error {
        store::Error::NotFound => ApiError::named(
            http::StatusCode::NOT_FOUND,
            "NotFound",
            format!("{noun} '{shown}' not found"),
        ),
        error => error.into(),
    }
}

/// 409 for a name that is taken.
pub(crate) fn taken(noun: &'static str, name: &str) -> impl Fn(store::Error) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    move |error| match error {
        store::Error::Conflict { .. } => ApiError::named(
            http::StatusCode::CONFLICT,
            "AlreadyExists",
            format!("a {noun} named '{shown}' exists already"),
        ),
        error => error.into(),
    }
}

/// 429 for what a workspace has enough of.
pub(crate) fn quota(text: impl Into<String>) -> ApiError {
    ApiError::named(http::StatusCode::TOO_MANY_REQUESTS, "QuotaExceeded", text)
        .after(std::time::Duration::from_secs(60))
}

/// A page of a list: `limit` and `offset` of older clients, `page_size` and `cursor` of newer ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub limit: i64,
    pub offset: i64,
    /// Whether the answer is one that newer clients page through.
    pub is_paged: bool,
}

impl Page {
    /// # Errors
    /// A number is out of its range.
    pub(crate) fn of(pairs: &Pairs, usual: i64) -> Result<Self, ApiError> {
        let limit = pairs.number("limit", 1..=1000)?;
        let size = pairs.number("page_size", 1..=1000)?;
        let offset = pairs.number("offset", 0..=MAX_OFFSET)?;
        let cursor = pairs.number("cursor", 0..=MAX_OFFSET)?;
        Ok(Self {
            limit: limit.or(size).unwrap_or(usual),
            offset: offset.or(cursor).unwrap_or(0),
            is_paged: size.is_some() || cursor.is_some(),
        })
    }

    /// Where the next page begins, where this one is full.
    pub(crate) fn next(&self, found: usize) -> Option<String> {
        let found = i64::try_from(found).unwrap_or(i64::MAX);
        (self.is_paged && found >= self.limit).then(|| (self.offset + found).to_string())
    }
}

/// A page of a list.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "names the parameters in the API description")]
pub struct PageParameters {
    /// At most this many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// After leaving out this many.
    #[param(minimum = 0, maximum = 1000000000)]
    offset: Option<i64>,
    /// `limit`, as newer clients call it.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<i64>,
    /// What `next_cursor` was.
    cursor: Option<String>,
}
