//! Making boxes.

mod record;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use towpath_domain::sandbox::{
    BoxConfig, BoxStatus, DELETE_AFTER_STOP_SECONDS, IDLE_TTL_SECONDS, SnapshotReference, Times, check_attachments,
    check_box_name, check_ttl,
};
use towpath_domain::{BoxId, Rejection};
use towpath_store::sandboxes::boxes::SandboxBox;
use towpath_workflows::pool_fill;

use super::model::{Digested, RunConfigBody, Sandbox, taken};
use super::wake::{failed, machine, wait};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, whole};

/// A volume in a box.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandboxVolume)]
pub struct NewVolumeMount {
    /// Its name or its id.
    volume: String,
    /// Absolute.
    mount_path: String,
    #[serde(default)]
    read_only: Option<bool>,
}

/// A box to make. A template, a snapshot, or neither: then it has the files of the platform's machine, read-only.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandbox)]
pub struct New {
    /// Whether the answer comes when it runs; so unless this is false.
    #[serde(default)]
    wait_for_ready: Option<bool>,
    /// How many seconds the answer may take.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 600, default = 30)]
    timeout: Option<i64>,
    /// Free among the sandboxes of the workspace.
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
    /// Whether its files outlive a stop; so unless this is false.
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
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    proxy_config: Option<Value>,
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    access_delegation: Option<Value>,
}

/// Refuses what is meant to do something that this build does not do.
pub(super) fn refuse(field: &'static str, sent: Option<&Value>) -> Result<(), Rejection> {
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

/// What a box is made of.
#[derive(Debug)]
enum Source {
    Machine,
    Template(String),
    Snapshot(SnapshotReference),
}

/// A request that may be performed.
#[derive(Debug)]
struct Plan {
    name: Option<String>,
    source: Source,
    config: BoxConfig,
    times: Times,
    volumes: Vec<NewVolumeMount>,
    patience: Option<Duration>,
}

impl New {
    fn admit(self) -> Result<Plan, Rejection> {
        if let Some(name) = &self.name {
            check_box_name("name", name)?;
        }
        check_ttl("idle_ttl_seconds", self.idle_ttl_seconds)?;
        check_ttl("ttl_seconds", self.ttl_seconds)?;
        check_ttl("delete_after_stop_seconds", self.delete_after_stop_seconds)?;
        refuse("mount_config", self.mount_config.as_ref())?;
        refuse("proxy_config", self.proxy_config.as_ref())?;
        refuse("access_delegation", self.access_delegation.as_ref())?;
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
            (None, None) => Source::Machine,
            (Some(template), None) => Source::Template(template),
            (None, Some((field, text))) => Source::Snapshot(SnapshotReference::parse(field, &text)?),
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
        let volumes = self.volumes.unwrap_or_default();
        check_attachments("volumes", volumes.iter().map(|volume| volume.mount_path.as_str()))?;
        Ok(Plan {
            name: self.name,
            source,
            config,
            times: Times {
                idle_ttl_seconds: self.idle_ttl_seconds.unwrap_or(IDLE_TTL_SECONDS),
                ttl_seconds: self.ttl_seconds.unwrap_or(0),
                delete_after_stop_seconds: self.delete_after_stop_seconds.unwrap_or(DELETE_AFTER_STOP_SECONDS),
            },
            volumes,
            patience: (self.wait_for_ready != Some(false)).then(|| Duration::from_secs(timeout.unsigned_abs())),
        })
    }
}

/// Make a sandbox. Sent again under the same name within two minutes, it makes none, and answers with the first.
#[utoipa::path(post, path = "/v2/sandboxes/boxes", tag = "sandboxes", request_body = New,
    responses((status = 201, description = "The sandbox", body = Sandbox),
              (status = 408, description = "It does not run in time; it is still being started"),
              (status = 409, description = "The name is taken"),
              (status = 429, description = "The workspace has as many as it may"),
              (status = 501, description = "This process has no sandboxes"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, sent: Digested<New>) -> Result<Response, ApiError> {
    let Digested { body, digest } = sent;
    let plan = body.admit()?;
    let machine = machine(&app)?;
    let capabilities = machine.capabilities().await;
    let capabilities = capabilities.map_err(|error| unschedulable(&failed(&error)))?;
    let limits = machine.limits(&plan.config, capabilities);
    limits.map_err(|error| unschedulable(&failed(&error)))?;
    let name = match &plan.name {
        Some(name) => name.clone(),
        None => format!("sandbox-{}", &BoxId::new().0.simple().to_string()[20..]),
    };
    let by = tenant.key.to_string();
    let made = app.store.write(async |tx| {
        let most = app.settings.sandboxes.boxes;
        record::record(tx, tenant, &plan, &name, &by, &digest, most).await
    });
    let (row, pool) = made.await.map_err(taken("sandbox", &name))??;
    if let Some(pool) = pool {
        let fill = app.store.write(async |tx| pool_fill::start(tx, tenant.id, pool).await);
        fill.await?;
    }
    let row = match plan.patience {
        Some(patience) => ready(&app, row, patience).await?,
        None => row,
    };
    let answer = Sandbox::read(&app, row).await?;
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

fn unschedulable(error: &ApiError) -> ApiError {
    ApiError::named(StatusCode::UNPROCESSABLE_ENTITY, "Unschedulable", error.plain())
}

async fn ready(app: &App, row: SandboxBox, patience: Duration) -> Result<SandboxBox, ApiError> {
    let name = row.name.clone();
    let (row, _) = wait(app, row, patience, |row| row.status != BoxStatus::Provisioning).await?;
    match row.status {
        BoxStatus::Provisioning => {
            let text = format!(
                "sandbox '{name}' is not ready after {} seconds; it is provisioning and goes on being started",
                patience.as_secs()
            );
            Err(ApiError::named(StatusCode::REQUEST_TIMEOUT, "Timeout", text))
        }
        BoxStatus::Failed => {
            let why = row.status_message.as_deref().unwrap_or("it could not be started");
            let text = format!("sandbox '{name}' failed: {why}");
            Err(ApiError::named(StatusCode::UNPROCESSABLE_ENTITY, "SandboxConfig", text))
        }
        _ => Ok(row),
    }
}
