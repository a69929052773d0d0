//! Request and response types of several sandbox handlers.

use std::collections::BTreeMap;
use std::fmt;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use towpath_domain::sandbox::{BoxStatus, ProxyConfig, RunConfig};
use towpath_domain::{BoxId, Rejection, SnapshotId, Timestamp, VolumeId};
use towpath_store::sandboxes::boxes::{self, BoxVolume, SandboxBox};
use towpath_store::sandboxes::network::{self, BoxNetwork};
use towpath_store::{self as store};

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::{JSON_BODY_BYTES, Pairs, expect_json, parse_json, read_body};
use crate::platform::paging::MAX_OFFSET;

/// A JSON body with a digest, which identifies repeated requests.
#[derive(Debug)]
pub struct DigestedJson<T> {
    pub body: T,
    /// SHA-256 of the body.
    pub digest: [u8; 32],
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for DigestedJson<T> {
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

/// JSON with secrets, which is not printed.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct HiddenJson(pub(super) Value);

impl fmt::Debug for HiddenJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// User, folder and variables of commands.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxRunConfig)]
pub struct RunConfigBody {
    /// `root`, `user`, or a user id.
    #[serde(default)]
    pub user: Option<String>,
    /// Absolute path.
    #[serde(default)]
    pub work_dir: Option<String>,
    /// Environment variables.
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

/// A mounted volume.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SandboxVolume {
    mount_path: String,
    read_only: bool,
    #[schema(value_type = Uuid)]
    volume_id: VolumeId,
    volume_name: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Sandbox {
    #[schema(value_type = Uuid)]
    id: BoxId,
    name: String,
    /// Name of its template or snapshot; empty if it has none.
    template_name: String,
    /// Base address for files and commands.
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
    /// When `ttl_seconds` expire.
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
    /// Whether files are kept when it stops.
    persistent: bool,
    preserve_memory_on_stop: bool,
    labels: BTreeMap<String, String>,
    env_vars: BTreeMap<String, String>,
    run_config: Option<RunConfigBody>,
    volumes: Vec<SandboxVolume>,
    /// What it may call; nothing without it. Values of opaque headers are not returned.
    #[schema(value_type = Option<Object>)]
    proxy_config: Option<ProxyConfig>,
    /// Bytes that it sent through its proxy, some seconds ago.
    network_sent_bytes: i64,
    network_received_bytes: i64,
    /// Isolation, known after the first start.
    isolation: Option<String>,
    created_by: String,
    updated_by: String,
}

impl Sandbox {
    /// The sandbox as returned to clients.
    pub fn from_row(
        app: &App,
        row: SandboxBox,
        mounted: &[BoxVolume],
        networks: &[BoxNetwork],
    ) -> Result<Self, ApiError> {
        let config = row.config()?;
        let network = networks.iter().find(|network| network.id == row.id);
        let proxy_config = network.map(BoxNetwork::config).transpose()?;
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
            proxy_config: proxy_config.filter(|config| !config.is_empty()),
            network_sent_bytes: network.map_or(0, |network| network.sent_bytes),
            network_received_bytes: network.map_or(0, |network| network.received_bytes),
            isolation: row.isolation,
            created_by: row.created_by,
            updated_by: row.updated_by,
        })
    }

    /// The same, with its volumes and its network from the database.
    pub async fn load(app: &App, row: SandboxBox) -> Result<Self, ApiError> {
        let id = row.id;
        let (mounted, networks) = app
            .store
            .read(async |tx| {
                let mounted = boxes::volumes_of(tx, &[id]).await?;
                Ok((mounted, network::of_boxes(tx, &[id]).await?))
            })
            .await?;
        Self::from_row(app, row, &mounted, &networks)
    }
}

/// 404 that names what is missing.
pub(crate) fn missing(noun: &'static str, name: &str) -> impl Fn(store::Error) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    move |error| match error {
        store::Error::NotFound => ApiError::with_name(
            http::StatusCode::NOT_FOUND,
            "NotFound",
            format!("{noun} '{shown}' not found"),
        ),
        error => error.into(),
    }
}

/// 409 for a name in use.
pub(crate) fn name_taken(noun: &'static str, name: &str) -> impl Fn(store::Error) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    move |error| match error {
        store::Error::Conflict { .. } => ApiError::with_name(
            http::StatusCode::CONFLICT,
            "AlreadyExists",
            format!("a {noun} named '{shown}' already exists"),
        ),
        error => error.into(),
    }
}

/// 429 for a reached quota.
pub(crate) fn quota_exceeded(text: impl Into<String>) -> ApiError {
    ApiError::with_name(http::StatusCode::TOO_MANY_REQUESTS, "QuotaExceeded", text)
        .with_retry_after(std::time::Duration::from_secs(60))
}

/// Refuses another one if the workspace has as many as the setting `sandboxes.<things>_per_workspace` allows.
pub(crate) fn check_count(count: i64, most: i64, things: &str) -> Result<(), ApiError> {
    if most == 0 || count < most {
        return Ok(());
    }
    Err(quota_exceeded(format!(
        "this workspace has reached its limit of {most} {things}, the setting sandboxes.{things}_per_workspace; delete \
         some first"
    )))
}

/// A page: `limit` and `offset` of older clients, `page_size` and `cursor` of newer ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRequest {
    pub limit: i64,
    pub offset: i64,
    /// Whether the response needs a cursor.
    pub is_paged: bool,
}

impl PageRequest {
    pub(crate) fn parse(pairs: &Pairs, usual: i64) -> Result<Self, ApiError> {
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

    /// Cursor of the next page, if this one is full.
    pub(crate) fn next_cursor(&self, found: usize) -> Option<String> {
        let found = i64::try_from(found).unwrap_or(i64::MAX);
        (self.is_paged && found >= self.limit).then(|| (self.offset + found).to_string())
    }
}

#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "names the parameters in the API description")]
pub struct PageParameters {
    /// Maximum number of results.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[param(minimum = 0, maximum = 1000000000)]
    offset: Option<i64>,
    /// Alias of `limit` for newer clients.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Rejects an unsupported field, unless it has no effect.
pub(super) fn refuse_field(field: &'static str, sent: Option<&Value>) -> Result<(), Rejection> {
    let is_empty = match sent {
        None | Some(Value::Null) => true,
        Some(Value::Object(members)) => members.values().all(|value| {
            value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty)
        }),
        Some(_) => false,
    };
    if is_empty {
        Ok(())
    } else {
        Err(Rejection::unsupported(field, format!("{field} of a sandbox")))
    }
}
