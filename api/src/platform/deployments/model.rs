//! What deployments and revisions look like on the wire.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::deployment::{
    ConfigChange, DeploymentStatus, DeploymentType, EnvSecret, ListenerConfig, MASK, ResourceSpec, RevisionConfig,
    RevisionStatus, Source, SourceConfig,
};
use towpath_domain::{
    DeploymentId, IntegrationId, ListenerId, Patch, ProjectId, Rejection, RevisionId, Secret, TenantId, Timestamp,
};
use towpath_store::deployments::Deployment as DeploymentRow;
use towpath_store::revisions::Revision as RevisionRow;
use uuid::Uuid;

use super::resources::ResourceSpecSchema;
use crate::app::App;
use crate::errors::ApiError;
use crate::extract::{object, objects, optional_object, optional_objects};
use crate::platform::names;

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
        })
    }
}

/// A page of deployments.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DeploymentList {
    pub(crate) resources: Vec<Deployment>,
    /// Where the next page begins.
    pub(crate) offset: i64,
}

/// A revision.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Revision {
    #[schema(value_type = Uuid)]
    id: RevisionId,
    #[schema(value_type = Uuid)]
    deployment_id: DeploymentId,
    #[schema(value_type = names::RevisionState)]
    status: RevisionStatus,
    #[schema(value_type = names::DeploymentSource)]
    source: Source,
    source_revision_config: RevisionConfigAnswer,
    /// The revision whose artifact and secrets it deploys again.
    #[schema(value_type = Option<Uuid>)]
    redeploy_of: Option<RevisionId>,
    /// Why it failed, with the last lines of its log, or why it was skipped.
    error: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

impl TryFrom<RevisionRow> for Revision {
    type Error = ApiError;

    fn try_from(row: RevisionRow) -> Result<Self, ApiError> {
        Ok(Self {
            source_revision_config: row.config()?.into(),
            id: row.id,
            deployment_id: row.deployment_id,
            status: row.status,
            source: row.source,
            redeploy_of: row.redeploy_of,
            error: row.error,
            created_at: row.created_at,
            updated_at: row.updated_at,
            finished_at: row.finished_at,
        })
    }
}

/// A page of revisions.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RevisionList {
    pub(crate) resources: Vec<Revision>,
    /// Where the next page begins.
    pub(crate) offset: i64,
}

/// What a revision is made from.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SourceRevisionConfigAnswer)]
pub struct RevisionConfigAnswer {
    repo_ref: Option<String>,
    graph_config_path: Option<String>,
    /// The same, under the name that `langgraph deploy` uses.
    langgraph_config_path: Option<String>,
    image_uri: Option<String>,
    source_tarball_path: Option<String>,
    /// The commit `repo_ref` was found to be.
    repo_commit_sha: Option<String>,
}

impl From<RevisionConfig> for RevisionConfigAnswer {
    fn from(config: RevisionConfig) -> Self {
        Self {
            repo_ref: config.repo_ref,
            langgraph_config_path: config.graph_config_path.clone(),
            graph_config_path: config.graph_config_path,
            image_uri: config.image_uri,
            source_tarball_path: config.source_tarball_path,
            repo_commit_sha: config.repo_commit_sha,
        }
    }
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
        }
    }
}

/// What a revision is made from, as it is sent. Which fields may be set depends on the source.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SourceRevisionConfig)]
pub struct NewRevisionConfig {
    /// `github`: a branch by its bare name, or a tag as `refs/tags/…`.
    #[serde(default)]
    repo_ref: Option<String>,
    /// `github` and `internal_source`: the graph configuration file, from the root.
    #[serde(default)]
    graph_config_path: Option<String>,
    /// The same under another name; send one of the two.
    #[serde(default)]
    langgraph_config_path: Option<String>,
    /// `external_docker` and `internal_docker`: the image.
    #[serde(default)]
    image_uri: Option<String>,
    /// `internal_source`: the `object_path` that `upload-url` answered.
    #[serde(default)]
    source_tarball_path: Option<String>,
    // Read-only.
    #[serde(default, rename = "repo_commit_sha")]
    #[schema(ignore)]
    _repo_commit_sha: IgnoredAny,
}

impl NewRevisionConfig {
    pub(crate) fn admit(self) -> Result<RevisionConfig, Rejection> {
        let both = (self.graph_config_path.as_ref(), self.langgraph_config_path.as_ref());
        if let (Some(ours), Some(theirs)) = both
            && ours != theirs
        {
            return Err(Rejection::rule(
                "source_revision_config.graph_config_path",
                "source_revision_config.graph_config_path and langgraph_config_path are one field and must agree",
            ));
        }
        Ok(RevisionConfig {
            repo_ref: self.repo_ref,
            graph_config_path: self.graph_config_path.or(self.langgraph_config_path),
            image_uri: self.image_uri,
            source_tarball_path: self.source_tarball_path,
            repo_commit_sha: None,
        })
    }
}

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
    // Read-only, and sent back by those who send what they were answered.
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
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: IgnoredAny,
}

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
    // Read-only, and sent back by those who send what they were answered.
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
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: IgnoredAny,
}

/// A revision to be made beside a change.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRevision)]
pub struct NewRevision {
    #[serde(default, deserialize_with = "optional_object")]
    pub(crate) source_revision_config: Option<NewRevisionConfig>,
    /// Replaces the list.
    #[serde(default, deserialize_with = "optional_objects")]
    #[schema(max_items = 1000)]
    pub(crate) secrets: Option<Vec<NewSecret>>,
    /// Where this one revision comes from, of `internal_docker` and `internal_source`.
    #[serde(default)]
    #[schema(value_type = Option<names::DeploymentSource>)]
    pub(crate) revision_source: Option<Source>,
}

pub(crate) fn secrets(sent: Vec<NewSecret>) -> Vec<EnvSecret> {
    sent.into_iter()
        .map(|secret| EnvSecret {
            name: secret.name,
            value: secret.value,
        })
        .collect()
}
