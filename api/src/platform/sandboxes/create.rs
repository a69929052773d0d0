//! Creates sandboxes.

mod placement;
mod record;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use towpath_domain::sandbox::{
    BoxConfig, BoxStatus, DELETE_AFTER_STOP_SECONDS, IDLE_TTL_SECONDS, Lifetime, ProxyConfig, ProxySecrets,
    SnapshotReference, StoredProxy, check_attachments, check_box_name, check_ttl,
};
use towpath_domain::{BoxId, Rejection};
use towpath_store::sandboxes::boxes::SandboxBox;
use towpath_store::sandboxes::nodes;
use towpath_workflows::fill_pool;
use towpath_workflows::sandbox_host::compile_network;

use super::model::{DigestedJson, HiddenJson, RunConfigBody, Sandbox, name_taken, refuse_field};
use super::readiness::{agent_error, local_host, require_node, wait_for};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::{ApiError, chain};
use crate::extract::{Json, whole};

#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandboxVolume)]
pub struct NewVolumeMount {
    /// Name or id.
    volume: String,
    /// Absolute path.
    mount_path: String,
    #[serde(default)]
    read_only: Option<bool>,
}

/// A sandbox to create from a template or a snapshot; with neither, it has the host's files, read-only.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandbox)]
pub struct CreateSandbox {
    /// Wait until the sandbox is running; default true.
    #[serde(default)]
    wait_for_ready: Option<bool>,
    /// Maximum seconds to wait.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 600, default = 30)]
    timeout: Option<i64>,
    /// Unique in the workspace.
    #[serde(default)]
    #[schema(max_length = 63)]
    name: Option<String>,
    #[serde(default)]
    template_name: Option<String>,
    #[serde(default)]
    snapshot_id: Option<String>,
    /// Id, name, or `name:tag`.
    #[serde(default)]
    snapshot: Option<String>,
    #[serde(default)]
    snapshot_name: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    idle_ttl_seconds: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    ttl_seconds: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    delete_after_stop_seconds: Option<i64>,
    /// Keep files when the sandbox stops; default true.
    #[serde(default)]
    persistent: Option<bool>,
    #[serde(default)]
    preserve_memory_on_stop: Option<bool>,
    #[serde(default)]
    restore_memory: Option<bool>,
    #[serde(default, deserialize_with = "whole")]
    vcpus: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    cpu_millicores: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    mem_bytes: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    fs_capacity_bytes: Option<i64>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    run_config: Option<RunConfigBody>,
    #[serde(default)]
    volumes: Option<Vec<NewVolumeMount>>,
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    mount_config: Option<Value>,
    /// What the sandbox may call, and headers that its proxy adds. Without it the sandbox has no network.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    proxy_config: Option<HiddenJson>,
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    access_delegation: Option<Value>,
}

/// Parses `proxy_config`. It is checked to the last pattern: the proxy can apply it.
pub(super) fn parse_network(sent: &HiddenJson, known: &StoredProxy) -> Result<(ProxyConfig, ProxySecrets), Rejection> {
    let (config, secrets) = ProxyConfig::parse(&sent.0, known)?;
    compile_network(&config, &secrets)?;
    Ok((config, secrets))
}

#[derive(Debug)]
enum SandboxSource {
    HostImage,
    Template(String),
    Snapshot(SnapshotReference),
}

/// A checked request.
#[derive(Debug)]
struct SandboxPlan {
    name: Option<String>,
    source: SandboxSource,
    config: BoxConfig,
    times: Lifetime,
    volumes: Vec<NewVolumeMount>,
    network: ProxyConfig,
    network_secrets: ProxySecrets,
    timeout: Option<Duration>,
}

impl CreateSandbox {
    fn admit(self) -> Result<SandboxPlan, Rejection> {
        if let Some(name) = &self.name {
            check_box_name("name", name)?;
        }
        check_ttl("idle_ttl_seconds", self.idle_ttl_seconds)?;
        check_ttl("ttl_seconds", self.ttl_seconds)?;
        check_ttl("delete_after_stop_seconds", self.delete_after_stop_seconds)?;
        refuse_field("mount_config", self.mount_config.as_ref())?;
        refuse_field("access_delegation", self.access_delegation.as_ref())?;
        for (field, sent) in [
            ("preserve_memory_on_stop", self.preserve_memory_on_stop),
            ("restore_memory", self.restore_memory),
        ] {
            if sent == Some(true) {
                return Err(Rejection::unsupported(field, "memory that outlives a stop"));
            }
        }
        let timeout = self.timeout.unwrap_or(30);
        if !(1..=600).contains(&timeout) {
            return Err(Rejection::invalid("timeout", "expected 1 to 600 seconds"));
        }
        let snapshots = [
            ("snapshot_id", self.snapshot_id),
            ("snapshot", self.snapshot),
            ("snapshot_name", self.snapshot_name),
        ];
        let mut snapshots = snapshots.into_iter().filter_map(|(field, sent)| Some((field, sent?)));
        let snapshot = snapshots.next();
        let source = match (self.template_name, snapshot) {
            (None, None) => SandboxSource::HostImage,
            (Some(template), None) => SandboxSource::Template(template),
            (None, Some((field, text))) => SandboxSource::Snapshot(SnapshotReference::parse(field, &text)?),
            (Some(_), Some(_)) => {
                let text = "send either template_name or a snapshot";
                return Err(Rejection::rule("template_name", text));
            }
        };
        if let Some((field, _)) = snapshots.next() {
            let text = "send one of snapshot_id, snapshot and snapshot_name";
            return Err(Rejection::rule(field, text));
        }
        let config = BoxConfig {
            image: None,
            vcpus: self.vcpus,
            cpu_millicores: self.cpu_millicores,
            mem_bytes: self.mem_bytes,
            fs_capacity_bytes: self.fs_capacity_bytes,
            run_config: self.run_config.map(Into::into),
            env_vars: self.env_vars.unwrap_or_default(),
            labels: self.labels.unwrap_or_default(),
            is_temporary: self.persistent == Some(false),
        };
        config.check()?;
        let (network, network_secrets) = match &self.proxy_config {
            Some(sent) => parse_network(sent, &StoredProxy::default())?,
            None => Default::default(),
        };
        let volumes = self.volumes.unwrap_or_default();
        check_attachments("volumes", volumes.iter().map(|volume| volume.mount_path.as_str()))?;
        Ok(SandboxPlan {
            name: self.name,
            source,
            config,
            times: Lifetime {
                idle_ttl_seconds: self.idle_ttl_seconds.unwrap_or(IDLE_TTL_SECONDS),
                ttl_seconds: self.ttl_seconds.unwrap_or(0),
                delete_after_stop_seconds: self.delete_after_stop_seconds.unwrap_or(DELETE_AFTER_STOP_SECONDS),
            },
            volumes,
            network,
            network_secrets,
            timeout: (self.wait_for_ready != Some(false)).then(|| Duration::from_secs(timeout.unsigned_abs())),
        })
    }
}

/// Create a sandbox. A repeated request with the same name within two minutes returns the first sandbox.
#[utoipa::path(post, path = "/v2/sandboxes/boxes", tag = "sandboxes", request_body = CreateSandbox,
    responses((status = 201, description = "The sandbox", body = Sandbox),
              (status = 408, description = "It is not ready in time; it is still starting"),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    sent: DigestedJson<CreateSandbox>,
) -> Result<Response, ApiError> {
    let DigestedJson { body, digest } = sent;
    let plan = body.admit()?;
    require_node(&app).await?;
    check_machine(&app, &plan).await?;
    let name = match &plan.name {
        Some(name) => name.clone(),
        None => format!("sandbox-{}", &BoxId::new().0.simple().to_string()[20..]),
    };
    let by = tenant.key.to_string();
    let made = app
        .store
        .write(async |tx| record::record(tx, tenant, &plan, &name, &by, &digest, &app).await);
    let (row, pool) = made.await.map_err(name_taken("sandbox", &name))??;
    if let Some(pool) = pool {
        let fill = app.store.write(async |tx| fill_pool::start(tx, tenant.id, pool).await);
        if let Err(error) = fill.await {
            // The caller has its sandbox; the sweep of the machine fills pools too.
            tracing::warn!(error = %chain(&error), "cannot refill a pool of sandboxes at once");
        }
    }
    let row = match plan.timeout {
        Some(patience) => wait_ready(&app, row, patience).await?,
        None => row,
    };
    let answer = Sandbox::load(&app, row).await?;
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// Refuses what this machine cannot do, if it is the only node. Others refuse it when the sandbox starts.
async fn check_machine(app: &App, plan: &SandboxPlan) -> Result<(), ApiError> {
    let Some(machine) = local_host(app) else {
        return Ok(());
    };
    if app.store.read(async |tx| nodes::count_alive(tx).await).await? > 1 {
        return Ok(());
    }
    let capabilities = machine.capabilities().await;
    let capabilities = capabilities.map_err(|error| with_unschedulable(&agent_error(&error)))?;
    let limits = machine.limits(&plan.config, capabilities);
    limits.map_err(|error| with_unschedulable(&agent_error(&error)))?;
    Ok(())
}

fn with_unschedulable(error: &ApiError) -> ApiError {
    ApiError::with_name(StatusCode::UNPROCESSABLE_ENTITY, "Unschedulable", error.plain())
}

async fn wait_ready(app: &App, row: SandboxBox, patience: Duration) -> Result<SandboxBox, ApiError> {
    let name = row.name.clone();
    let (row, _) = wait_for(app, row, patience, |row| row.status != BoxStatus::Provisioning).await?;
    match row.status {
        BoxStatus::Provisioning => {
            let text = format!(
                "sandbox '{name}' is not ready after {} seconds; it is still starting",
                patience.as_secs()
            );
            Err(ApiError::with_name(StatusCode::REQUEST_TIMEOUT, "Timeout", text))
        }
        BoxStatus::Failed => {
            let why = row.status_message.as_deref().unwrap_or("it could not be started");
            let text = format!("sandbox '{name}' failed: {why}");
            Err(ApiError::with_name(
                StatusCode::UNPROCESSABLE_ENTITY,
                "SandboxConfig",
                text,
            ))
        }
        _ => Ok(row),
    }
}
