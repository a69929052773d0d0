//! Changes sandboxes.

use axum::extract::State;
use serde::Deserialize;
use towpath_domain::Rejection;
use towpath_domain::sandbox::{BoxConfig, BoxStatus, Lifetime, ProxySecrets, StoredProxy, check_box_name, check_ttl};
use towpath_store::sandboxes::boxes::{self, BoxUpdate, SandboxBox};
use towpath_store::sandboxes::network::{self, BoxNetwork};
use towpath_store::sealing::OpenError;
use towpath_store::{self as store, Tx};

use super::create::parse_network;
use super::model::{HiddenJson, RunConfigBody, Sandbox, missing};
use super::readiness::apply_network;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// Changes of a sandbox. Resources, `run_config` and variables of proxy rules apply from the next start.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxChange)]
pub struct UpdateSandbox {
    #[serde(default)]
    #[schema(max_length = 63)]
    name: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    idle_ttl_seconds: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    ttl_seconds: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    delete_after_stop_seconds: Option<i64>,
    #[serde(default)]
    run_config: Option<RunConfigBody>,
    #[serde(default, deserialize_with = "whole")]
    vcpus: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    cpu_millicores: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    mem_bytes: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    fs_capacity_bytes: Option<i64>,
    /// Replaces what the sandbox may call, for new connections. It must be `ready`. Opaque headers without a value keep
    /// the stored one.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    proxy_config: Option<HiddenJson>,
}

impl UpdateSandbox {
    fn admit(&self) -> Result<(), Rejection> {
        if let Some(name) = &self.name {
            check_box_name("name", name)?;
        }
        check_ttl("idle_ttl_seconds", self.idle_ttl_seconds)?;
        check_ttl("ttl_seconds", self.ttl_seconds)?;
        check_ttl("delete_after_stop_seconds", self.delete_after_stop_seconds)?;
        self.apply_to(BoxConfig::default()).check()
    }

    fn apply_to(&self, before: BoxConfig) -> BoxConfig {
        let is_cpu_changed = self.vcpus.is_some() || self.cpu_millicores.is_some();
        BoxConfig {
            vcpus: if is_cpu_changed { self.vcpus } else { before.vcpus },
            cpu_millicores: if is_cpu_changed {
                self.cpu_millicores
            } else {
                before.cpu_millicores
            },
            mem_bytes: self.mem_bytes.or(before.mem_bytes),
            fs_capacity_bytes: self.fs_capacity_bytes.or(before.fs_capacity_bytes),
            run_config: self.run_config.clone().map(Into::into).or(before.run_config),
            ..before
        }
    }
}

/// Change a sandbox.
#[utoipa::path(patch, path = "/v2/sandboxes/boxes/{name}", tag = "sandboxes", request_body = UpdateSandbox,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Updated", body = Sandbox),
              (status = 400, description = "Its network can only be changed while it is ready"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(update): Json<UpdateSandbox>,
) -> Result<Json<Sandbox>, ApiError> {
    update.admit()?;
    let sent = update.proxy_config.as_ref();
    let by = tenant.key.to_string();
    let changed = app.store.write(async |tx| {
        let found = boxes::find(tx, tenant.id, &name).await?;
        let before = boxes::lock(tx, tenant.id, found.id).await?;
        let config = update.apply_to(before.config()?);
        let change = BoxUpdate {
            name: update.name.as_deref().unwrap_or(&before.name),
            config: &config,
            lifetime: Lifetime {
                idle_ttl_seconds: update.idle_ttl_seconds.unwrap_or(before.idle_ttl_seconds),
                ttl_seconds: update.ttl_seconds.unwrap_or(before.ttl_seconds),
                delete_after_stop_seconds: update
                    .delete_after_stop_seconds
                    .unwrap_or(before.delete_after_stop_seconds),
            },
            updated_by: &by,
        };
        let network = match sent {
            Some(sent) => match change_network(tx, &app, &before, sent).await? {
                Ok(network) => Some(network),
                Err(refusal) => return Ok(Err(refusal)),
            },
            None => None,
        };
        Ok(Ok((boxes::update(tx, tenant.id, before.id, change).await?, network)))
    });
    let changed = changed.await.map_err(|error| match error {
        store::Error::Conflict { .. } => {
            let text = "another sandbox of this workspace has this name";
            ApiError::with_name(http::StatusCode::CONFLICT, "NameConflict", text)
        }
        error => missing("Sandbox", &name)(error),
    })?;
    let (row, network) = changed?;
    if let Some(network) = network {
        apply_network(&app, &row, &network).await?;
    }
    Ok(Json(Sandbox::load(&app, row).await?))
}

/// Replaces the network of a locked sandbox.
async fn change_network(
    tx: &mut Tx<'_>,
    app: &App,
    row: &SandboxBox,
    sent: &HiddenJson,
) -> store::Result<Result<BoxNetwork, ApiError>> {
    if row.status != BoxStatus::Ready {
        let text = format!(
            "sandbox '{}' is {}; its proxy_config can be changed while it is ready",
            row.name,
            row.status.as_str()
        );
        // Clients tell by this name that the sandbox has to be started first.
        let refusal = ApiError::with_name(http::StatusCode::BAD_REQUEST, "InvalidRequest", text);
        return Ok(Err(refusal));
    }
    let mut known = StoredProxy::default();
    if let Some(stored) = network::find(tx, row.tenant_id, row.id).await? {
        known.config = stored.config()?;
        known.secrets = match stored.secrets(&app.sealer) {
            Ok(secrets) => secrets,
            // Sealed with a key that this process does not have: the request has to bring every value.
            Err(OpenError::UnknownKey) => ProxySecrets::default(),
            Err(error) => return Ok(Err(ApiError::internal(&error))),
        };
    }
    let (config, secrets) = match parse_network(sent, &known) {
        Ok(parsed) => parsed,
        Err(rejection) => return Ok(Err(rejection.into())),
    };
    let saved = network::save(tx, row.tenant_id, &app.sealer, row.id, &config, &secrets).await?;
    Ok(Ok(saved))
}
