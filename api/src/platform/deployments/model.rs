//! What deployments look like on the wire.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::deployment::{
    ConfigChange, DeploymentStatus, DeploymentType, EnvSecret, ListenerConfig, MASK, ResourceSpec, Source, SourceConfig,
};
use towpath_domain::{
    DeploymentId, IntegrationId, ListenerId, Patch, ProjectId, Rejection, RevisionId, Scope, Scopes, Secret, TenantId,
    Timestamp,
};
use towpath_store::deployments::Deployment as DeploymentRow;
use towpath_store::placements::Placement;
use towpath_store::revisions::Revision as RevisionRow;
use uuid::Uuid;

use super::resources::ResourceSpecSchema;
use crate::app::App;
use crate::errors::ApiError;
use crate::extract::{object, objects, optional_object, optional_objects};
use crate::platform::names;
use crate::platform::revisions::model::{NewRevisionConfig, RevisionConfigAnswer};
use crate::scopes;

/// A deployment.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Deployment {
    #[schema(value_type = Uuid)]
    id: DeploymentId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    name: String,
    #[schema(value_type = names::DeploymentSource)]
    source: Source,
    #[schema(value_type = SourceConfigAnswer)]
    source_config: SourceConfig,
    /// Of the latest revision.
    source_revision_config: RevisionConfigAnswer,
    /// Of the latest revision. Values are never shown.
    secrets: Vec<MaskedSecret>,
    #[schema(value_type = names::DeploymentState)]
    status: DeploymentStatus,
    #[schema(value_type = Option<Uuid>)]
    latest_revision_id: Option<RevisionId>,
    /// The revision that has the traffic.
    #[schema(value_type = Option<Uuid>)]
    active_revision_id: Option<RevisionId>,
    image_version: Option<String>,
    /// The tracing project of the deployment's name.
    #[schema(value_type = Uuid)]
    tracing_project_id: ProjectId,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// How what is deployed is doing; null until a revision was deployed, and in answers to changes.
    placement: Option<DeploymentPlacement>,
}

/// How what is deployed is doing.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DeploymentPlacement {
    /// `serving`; `switching`: it is replaced or started again, and requests wait; `down`: it does not start, and is tried
    /// again.
    state: &'static str,
    /// Why it does not serve.
    error: Option<String>,
    /// How often it was started again after it had ended by itself, since its revision was deployed.
    restarts: i64,
    /// When any of this last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<Placement> for DeploymentPlacement {
    fn from(placement: Placement) -> Self {
        Self {
            state: placement.state.as_str(),
            error: placement.error,
            restarts: placement.restarts,
            updated_at: placement.updated_at,
        }
    }
}

impl Deployment {
    pub(crate) fn of(app: &App, row: DeploymentRow, latest: &RevisionRow) -> Result<Self, ApiError> {
        let mut config = row.config()?;
        // What is in effect, where nothing was asked for.
        if row.source != Source::Github {
            let spec = config.resource_spec.take().unwrap_or_default();
            config.resource_spec = Some(spec.filled(config.deployment_type));
        }
        if config.custom_url.is_none() {
            config.custom_url = Some(app.settings.deployment_url(row.id));
        }
        let mask = |name| MaskedSecret { name, value: MASK };
        Ok(Self {
            source_config: config,
            source_revision_config: latest.config()?.into(),
            secrets: latest.secret_names()?.into_iter().map(mask).collect(),
            id: row.id,
            tenant_id: row.tenant_id,
            name: row.name,
            source: row.source,
            status: row.status,
            latest_revision_id: row.latest_revision_id,
            active_revision_id: row.active_revision_id,
            image_version: row.image_version,
            tracing_project_id: row.project_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
            placement: None,
        })
    }

    /// With how it is doing.
    pub(crate) fn placed(self, placement: Option<Placement>) -> Self {
        Self {
            placement: placement.map(DeploymentPlacement::from),
            ..self
        }
    }
}

/// A page of deployments.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DeploymentList {
    pub(crate) resources: Vec<Deployment>,
    /// Where the next page begins.
    pub(crate) offset: i64,
}

/// What belongs to a deployment whatever revision it runs.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct SourceConfigAnswer {
    integration_id: Option<Uuid>,
    repo_url: Option<String>,
    #[schema(value_type = Option<names::DeploymentTypeName>)]
    deployment_type: Option<()>,
    build_on_push: Option<bool>,
    /// The address of the deployment: the gateway's, unless one was set.
    custom_url: Option<String>,
    /// With the defaults filled in; null for `github`.
    #[schema(value_type = Option<ResourceSpecSchema>)]
    resource_spec: Option<()>,
    listener_id: Option<Uuid>,
    #[schema(value_type = Option<ListenerConfigSchema>)]
    listener_config: Option<()>,
    install_command: Option<String>,
    build_command: Option<String>,
    /// What the deployment's own key may do beside sending traces; absent where it may nothing else.
    key_scopes: Option<Vec<String>>,
    /// Whether its code judges its callers, who then need no key; absent where they need one.
    own_auth: Option<bool>,
}

/// Where a listener puts a deployment.
#[derive(utoipa::ToSchema)]
#[schema(as = ListenerConfig)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct ListenerConfigSchema {
    /// Only for listeners of compute type `k8s`.
    k8s_namespace: Option<String>,
}

/// The name of a secret.
#[derive(Serialize, utoipa::ToSchema)]
pub struct MaskedSecret {
    name: String,
    #[schema(value_type = String, example = "********")]
    value: &'static str,
}

/// A secret: an environment variable of the deployment. Kept sealed and never shown.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeploymentSecret)]
pub struct NewSecret {
    /// The name of an environment variable, not one of those the platform sets itself.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z_][A-Za-z0-9_]*$")]
    name: String,
    /// In a change, `********` keeps the value that is stored.
    #[schema(value_type = String, write_only)]
    value: Secret,
}

/// What belongs to a deployment, as it is sent. Which fields may be set depends on the source.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SourceConfig)]
pub struct NewSourceConfig {
    /// `github`: the integration that may read the repository. Cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    integration_id: Option<IntegrationId>,
    /// `github`: the repository. Cannot be changed.
    #[serde(default)]
    repo_url: Option<String>,
    /// Default sizes. Not of `external_docker`. Cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<names::DeploymentTypeName>)]
    deployment_type: Option<DeploymentType>,
    /// `github`: whether a push to `repo_ref`, a branch, makes a revision.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    build_on_push: Patch<bool>,
    /// `external_docker`: the address of the deployment, if it is not the gateway's. Read-only for the others.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    custom_url: Patch<String>,
    /// Not of `github`. In a change it replaces the one that is there, and makes a revision.
    #[serde(default, deserialize_with = "optional_object")]
    #[schema(value_type = Option<ResourceSpecSchema>)]
    resource_spec: Option<ResourceSpec>,
    /// `external_docker`: who runs it; the built-in listener unless said. Cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    listener_id: Option<ListenerId>,
    #[serde(default, deserialize_with = "optional_object")]
    #[schema(value_type = Option<ListenerConfigSchema>)]
    listener_config: Option<ListenerConfig>,
    /// JavaScript projects: run at the root of the repository. One command of plain words; no shell reads it.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    install_command: Patch<String>,
    /// JavaScript projects: run in the folder of the graph configuration file.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    build_command: Patch<String>,
    /// What the deployment's own key may do in this workspace beside sending traces: `traces:read`, `sandboxes`,
    /// `agents:invoke`, `agents:invoke:<deployment id>`. Only scopes of the key that asks can be given. In a change it
    /// makes a revision.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    key_scopes: Patch<Vec<Scope>>,
    /// Whether the graphs' own auth judges callers, who then need no key of the platform; by the deployment's id only.
    /// Refused unless the operator allows it.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    own_auth: Patch<bool>,
}

impl NewSourceConfig {
    /// Refuses to take a deployment's key away from the gateway, where the operator does not allow that.
    pub(crate) fn check_auth(&self, app: &App) -> Result<(), ApiError> {
        if self.own_auth == Patch::Value(true) && !app.settings.gateway_own_auth {
            let text = "source_config.own_auth: this server asks for its own keys at every deployment; its operator may allow \
                        others with the setting gateway.own_auth = allow";
            return Err(Rejection::rule("source_config.own_auth", text).into());
        }
        Ok(())
    }

    /// Refuses to give a deployment's key what the caller's own key may not do.
    pub(crate) fn check_scopes(&self, granted: &Scopes) -> Result<(), ApiError> {
        let Patch::Value(wanted) = &self.key_scopes else {
            return Ok(());
        };
        // The key of each deployment has this one.
        let mut added = wanted.iter().filter(|scope| **scope != Scope::TracesWrite);
        added.try_for_each(|scope| scopes::require(granted, *scope))
    }
}

fn value<T>(patch: Patch<T>) -> Option<T> {
    match patch {
        Patch::Value(value) => Some(value),
        Patch::Absent | Patch::Null => None,
    }
}

impl From<NewSourceConfig> for SourceConfig {
    fn from(sent: NewSourceConfig) -> Self {
        Self {
            integration_id: sent.integration_id,
            repo_url: sent.repo_url,
            deployment_type: sent.deployment_type,
            build_on_push: value(sent.build_on_push),
            custom_url: value(sent.custom_url),
            resource_spec: sent.resource_spec,
            listener_id: sent.listener_id,
            listener_config: sent.listener_config,
            install_command: value(sent.install_command),
            build_command: value(sent.build_command),
            key_scopes: value(sent.key_scopes),
            own_auth: value(sent.own_auth),
        }
    }
}

impl From<NewSourceConfig> for ConfigChange {
    fn from(sent: NewSourceConfig) -> Self {
        Self {
            integration_id: sent.integration_id,
            repo_url: sent.repo_url,
            deployment_type: sent.deployment_type,
            build_on_push: sent.build_on_push,
            custom_url: sent.custom_url,
            resource_spec: sent.resource_spec,
            listener_id: sent.listener_id,
            listener_config: sent.listener_config,
            install_command: sent.install_command,
            build_command: sent.build_command,
            key_scopes: sent.key_scopes,
            own_auth: sent.own_auth,
        }
    }
}

/// What is sent of a deployment: with what is read-only in it, which those send back who send what they were answered.
macro_rules! sent {
    ($(#[$about:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $(#[$about])*
        pub struct $name {
            $($fields)*
            #[serde(default, rename = "id")]
            #[schema(ignore)]
            _id: IgnoredAny,
            #[serde(default, rename = "tenant_id")]
            #[schema(ignore)]
            _tenant_id: IgnoredAny,
            #[serde(default, rename = "status")]
            #[schema(ignore)]
            _status: IgnoredAny,
            #[serde(default, rename = "latest_revision_id")]
            #[schema(ignore)]
            _latest_revision_id: IgnoredAny,
            #[serde(default, rename = "active_revision_id")]
            #[schema(ignore)]
            _active_revision_id: IgnoredAny,
            #[serde(default, rename = "image_version")]
            #[schema(ignore)]
            _image_version: IgnoredAny,
            #[serde(default, rename = "tracing_project_id")]
            #[schema(ignore)]
            _tracing_project_id: IgnoredAny,
            #[serde(default, rename = "placement")]
            #[schema(ignore)]
            _placement: IgnoredAny,
            #[serde(default, rename = "created_at")]
            #[schema(ignore)]
            _created_at: IgnoredAny,
            #[serde(default, rename = "updated_at")]
            #[schema(ignore)]
            _updated_at: IgnoredAny,
        }
    };
}

sent! {
    /// A deployment to be made.
    #[derive(Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    #[schema(as = NewDeployment)]
    pub struct New {
        /// Unique in the workspace. A tracing project of this name is made, or used. Cannot be changed.
        #[serde(default)]
        #[schema(required, value_type = String, min_length = 1, max_length = 255)]
        pub(crate) name: Option<String>,
        /// Cannot be changed.
        #[schema(value_type = names::DeploymentSource)]
        pub(crate) source: Source,
        #[serde(deserialize_with = "object")]
        pub(crate) source_config: NewSourceConfig,
        #[serde(deserialize_with = "object")]
        pub(crate) source_revision_config: NewRevisionConfig,
        #[serde(deserialize_with = "objects")]
        #[schema(max_items = 1000)]
        pub(crate) secrets: Vec<NewSecret>,
        /// Refused: not available in this build.
        #[serde(default)]
        #[schema(value_type = Option<Object>)]
        pub(crate) agent: Option<Value>,
        /// Refused unless it is empty: not available in this build.
        #[serde(default)]
        #[schema(value_type = Option<Vec<Object>>)]
        pub(crate) secret_references: Option<Vec<Value>>,
        /// What the client has packed, as `name:version`. Kept, and not looked at.
        #[serde(default)]
        pub(crate) tracked_packages: Option<Vec<String>>,
    }
}

sent! {
    /// A change of a deployment.
    #[derive(Default, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    #[schema(as = DeploymentChange)]
    pub struct Change {
        /// Cannot be changed; the same name is no change.
        #[serde(default)]
        pub(crate) name: Option<String>,
        /// Cannot be changed; the same source is no change.
        #[serde(default)]
        #[schema(value_type = Option<names::DeploymentSource>)]
        pub(crate) source: Option<Source>,
        #[serde(default, deserialize_with = "optional_object")]
        pub(crate) source_config: Option<NewSourceConfig>,
        /// What is not null makes a revision.
        #[serde(default, deserialize_with = "optional_object")]
        pub(crate) source_revision_config: Option<NewRevisionConfig>,
        /// Replaces the list, and makes a revision.
        #[serde(default, deserialize_with = "optional_objects")]
        #[schema(max_items = 1000)]
        pub(crate) secrets: Option<Vec<NewSecret>>,
        /// Where this one revision comes from, of `internal_docker` and `internal_source`.
        #[serde(default)]
        #[schema(value_type = Option<names::DeploymentSource>)]
        pub(crate) revision_source: Option<Source>,
        /// Refused unless it is empty: not available in this build.
        #[serde(default)]
        #[schema(value_type = Option<Vec<Object>>)]
        pub(crate) secret_references: Option<Vec<Value>>,
        /// What the client has packed, as `name:version`. Kept, and not looked at.
        #[serde(default)]
        pub(crate) tracked_packages: Option<Vec<String>>,
    }
}

pub(crate) fn secrets(sent: Vec<NewSecret>) -> Vec<EnvSecret> {
    sent.into_iter()
        .map(|secret| EnvSecret {
            name: secret.name,
            value: secret.value,
        })
        .collect()
}
