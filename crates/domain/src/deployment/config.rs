//! What a deployment and a revision are made from, as it is kept.

use serde::{Deserialize, Serialize};

use super::{DeploymentType, ResourceSpec};
use crate::{IntegrationId, ListenerId, Scope};

/// What belongs to a deployment whatever revision it runs. Kept as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceConfig {
    /// The way into the repository.
    pub integration_id: Option<IntegrationId>,
    /// The repository.
    pub repo_url: Option<String>,
    /// Default sizes.
    pub deployment_type: Option<DeploymentType>,
    /// Whether a push makes a revision.
    pub build_on_push: Option<bool>,
    /// The address the deployment is reached at, if not the gateway's.
    pub custom_url: Option<String>,
    /// Sizes, as they were asked for.
    pub resource_spec: Option<ResourceSpec>,
    /// Who runs it, if not the built-in listener.
    pub listener_id: Option<ListenerId>,
    /// Where the listener puts it.
    pub listener_config: Option<ListenerConfig>,
    /// Run at the repository's root, of JavaScript projects.
    pub install_command: Option<String>,
    /// Run in the folder of the graph configuration, of JavaScript projects.
    pub build_command: Option<String>,
    /// What the deployment's own key may do beside sending traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_scopes: Option<Vec<Scope>>,
    /// Whether its code judges its callers, who then need no key of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_auth: Option<bool>,
}

/// Where a listener puts a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    /// Of listeners of compute type `k8s`.
    pub k8s_namespace: Option<String>,
}

/// What a revision is made from. Kept as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RevisionConfig {
    /// A branch by its bare name, or a tag as `refs/tags/…`.
    pub repo_ref: Option<String>,
    /// The graph configuration file, from the root of the repository or archive.
    pub graph_config_path: Option<String>,
    /// An image.
    pub image_uri: Option<String>,
    /// A source archive that was sent before.
    pub source_tarball_path: Option<String>,
    /// The commit `repo_ref` was found to be.
    pub repo_commit_sha: Option<String>,
}

impl RevisionConfig {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This one, with what `change` says in its place. What was found out about the old one is gone.
    #[must_use]
    pub fn with(self, change: Self) -> Self {
        Self {
            repo_ref: change.repo_ref.or(self.repo_ref),
            graph_config_path: change.graph_config_path.or(self.graph_config_path),
            image_uri: change.image_uri.or(self.image_uri),
            source_tarball_path: change.source_tarball_path.or(self.source_tarball_path),
            repo_commit_sha: None,
        }
    }

    /// Whether `repo_ref` is a tag.
    #[must_use]
    pub fn is_tag(&self) -> bool {
        self.repo_ref
            .as_deref()
            .is_some_and(|name| name.starts_with("refs/tags/"))
    }
}
