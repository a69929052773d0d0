//! Request and response bodies of deployments.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::deployment::{
    ConfigChange, DeploymentStatus, DeploymentType, EnvSecret, ListenerConfig, MASK, ResourceSpec, Source, SourceConfig,
};
use towpath_domain::{
    DeploymentId, IntegrationId, ListenerId, Patch, ProjectId, Rejection, RevisionId, Scope, Scopes, TenantId,
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
use crate::platform::revisions::model::{NewRevisionConfig, NewSecret, RevisionConfigAnswer};
use crate::scopes;

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
    /// Configuration of the latest revision.
    source_revision_config: RevisionConfigAnswer,
    /// Secrets of the latest revision. Values are never returned.
    secrets: Vec<MaskedSecret>,
    #[schema(value_type = names::DeploymentState)]
    status: DeploymentStatus,
    #[schema(value_type = Option<Uuid>)]
    latest_revision_id: Option<RevisionId>,
    /// The revision that serves requests.
    #[schema(value_type = Option<Uuid>)]
    active_revision_id: Option<RevisionId>,
    image_version: Option<String>,
    /// The tracing project with the deployment's name.
    #[schema(value_type = Uuid)]
    tracing_project_id: ProjectId,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// State of the agent server; null until a revision was deployed, and in responses to changes.
    placement: Option<DeploymentPlacement>,
}

/// State of the agent server.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DeploymentPlacement {
    /// `serving`; `switching`: it is being replaced or restarted and requests wait; `down`: it does not start;
    /// retrying.
    state: &'static str,
    /// Why it is not serving.
    error: Option<String>,
    /// Restarts after unexpected exits since its revision was deployed.
    restarts: i64,
    /// Time of the last change of this state.
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
        // The defaults are shown if nothing was set.
        if row.source != Source::Github {
            let spec = config.resource_spec.take().unwrap_or_default();
            config.resource_spec = Some(spec.with_defaults(config.deployment_type));
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

    /// Adds the state of the agent server.
    pub(crate) fn with_placement(self, placement: Option<Placement>) -> Self {
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
    /// Offset of the next page.
    pub(crate) offset: i64,
}

/// Configuration that does not depend on the revision.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "names the shape in the API description")]
pub(crate) struct SourceConfigAnswer {
    integration_id: Option<Uuid>,
    repo_url: Option<String>,
    #[schema(value_type = Option<names::DeploymentTypeName>)]
    deployment_type: Option<()>,
    build_on_push: Option<bool>,
    /// Address of the deployment; by default the gateway's.
    custom_url: Option<String>,
    /// Includes default values; null for `github`.
    #[schema(value_type = Option<ResourceSpecSchema>)]
    resource_spec: Option<()>,
    listener_id: Option<Uuid>,
    #[schema(value_type = Option<ListenerConfigSchema>)]
    listener_config: Option<()>,
    install_command: Option<String>,
    build_command: Option<String>,
    /// Further scopes of the deployment's own key, in addition to sending traces; absent if it has none.
    key_scopes: Option<Vec<String>>,
    /// True if its code authenticates callers, who then need no key; absent otherwise.
    own_auth: Option<bool>,
}

/// Where a listener runs a deployment.
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

/// Configuration of a deployment. The allowed fields depend on the source.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SourceConfig)]
pub struct NewSourceConfig {
    /// `github`: the integration that can read the repository. Cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    integration_id: Option<IntegrationId>,
    /// `github`: the repository. Cannot be changed.
    #[serde(default)]
    repo_url: Option<String>,
    /// Selects default sizes. Not for `external_docker`. Cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<names::DeploymentTypeName>)]
    deployment_type: Option<DeploymentType>,
    /// `github`: a push to `repo_ref`, a branch, creates a revision.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    build_on_push: Patch<bool>,
    /// `external_docker`: address of the deployment, if it is not the gateway's. Read-only for other sources.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    custom_url: Patch<String>,
    /// Not for `github`. In a change it replaces the current one and creates a revision.
    #[serde(default, deserialize_with = "optional_object")]
    #[schema(value_type = Option<ResourceSpecSchema>)]
    resource_spec: Option<ResourceSpec>,
    /// `external_docker`: the listener that runs it; by default the built-in one. Cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    listener_id: Option<ListenerId>,
    #[serde(default, deserialize_with = "optional_object")]
    #[schema(value_type = Option<ListenerConfigSchema>)]
    listener_config: Option<ListenerConfig>,
    /// JavaScript projects: runs at the root of the repository. One command without shell syntax.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    install_command: Patch<String>,
    /// JavaScript projects: runs in the folder of the graph configuration file.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    build_command: Patch<String>,
    /// Further scopes of the deployment's own key in this workspace: `traces:read`, `sandboxes`, `agents:invoke`,
    /// `agents:invoke:<deployment id>`. Only scopes of the caller's key are allowed. A change creates a revision.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    key_scopes: Patch<Vec<Scope>>,
    /// The graphs' own auth authenticates callers, who then need no platform key; only for calls by deployment id.
    /// Rejected unless the operator allows it.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    own_auth: Patch<bool>,
}

impl NewSourceConfig {
    /// Rejects `own_auth` unless the operator allows it.
    pub(crate) fn check_auth(&self, app: &App) -> Result<(), ApiError> {
        if self.own_auth == Patch::Value(true) && !app.settings.gateway_own_auth {
            let text = "source_config.own_auth: this server asks for its own keys at every deployment; its operator may allow \
                        others with the setting gateway.own_auth = allow";
            return Err(Rejection::rule("source_config.own_auth", text).into());
        }
        Ok(())
    }

    /// Rejects scopes that the caller's own key does not have.
    pub(crate) fn check_scopes(&self, granted: &Scopes) -> Result<(), ApiError> {
        let Patch::Value(wanted) = &self.key_scopes else {
            return Ok(());
        };
        // Every deployment key has this scope.
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

/// Fields of a deployment request. Read-only fields are accepted, since clients send back what they received.
macro_rules! deployment_request {
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

deployment_request! {
    #[derive(Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    #[schema(as = NewDeployment)]
    pub struct CreateDeployment {
        /// Unique in the workspace. A tracing project with this name is created or reused. Cannot be changed.
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
        /// Packages of the client as `name:version`. Stored without checks.
        #[serde(default)]
        pub(crate) tracked_packages: Option<Vec<String>>,
    }
}

deployment_request! {
    /// Changes of a deployment.
    #[derive(Default, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    #[schema(as = DeploymentChange)]
    pub struct UpdateDeployment {
        /// Cannot be changed; sending the current name is allowed.
        #[serde(default)]
        pub(crate) name: Option<String>,
        /// Cannot be changed; sending the current source is allowed.
        #[serde(default)]
        #[schema(value_type = Option<names::DeploymentSource>)]
        pub(crate) source: Option<Source>,
        #[serde(default, deserialize_with = "optional_object")]
        pub(crate) source_config: Option<NewSourceConfig>,
        /// Any non-null field creates a revision.
        #[serde(default, deserialize_with = "optional_object")]
        pub(crate) source_revision_config: Option<NewRevisionConfig>,
        /// Replaces all secrets and creates a revision.
        #[serde(default, deserialize_with = "optional_objects")]
        #[schema(max_items = 1000)]
        pub(crate) secrets: Option<Vec<NewSecret>>,
        /// Source of this revision only, for `internal_docker` and `internal_source`.
        #[serde(default)]
        #[schema(value_type = Option<names::DeploymentSource>)]
        pub(crate) revision_source: Option<Source>,
        /// Refused unless it is empty: not available in this build.
        #[serde(default)]
        #[schema(value_type = Option<Vec<Object>>)]
        pub(crate) secret_references: Option<Vec<Value>>,
        /// Packages of the client as `name:version`. Stored without checks.
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
