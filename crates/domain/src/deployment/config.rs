//! The stored configuration of deployments and revisions.

use serde::{Deserialize, Serialize};

use super::{DeploymentType, ResourceSpec};
use crate::{IntegrationId, ListenerId, Scope};

/// The configuration of a deployment, independent of its revision. Stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceConfig {
    pub integration_id: Option<IntegrationId>,
    pub repo_url: Option<String>,
    /// Default sizes.
    pub deployment_type: Option<DeploymentType>,
    /// Whether a push creates a revision.
    pub build_on_push: Option<bool>,
    /// The address of the deployment, if not the gateway's.
    pub custom_url: Option<String>,
    pub resource_spec: Option<ResourceSpec>,
    /// The listener that runs it, if not the built-in one.
    pub listener_id: Option<ListenerId>,
    pub listener_config: Option<ListenerConfig>,
    /// JavaScript projects: runs at the root of the repository.
    pub install_command: Option<String>,
    /// JavaScript projects: runs in the folder of the graph configuration.
    pub build_command: Option<String>,
    /// Scopes of the deployment's own key in addition to sending traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_scopes: Option<Vec<Scope>>,
    /// Whether its code authenticates callers, who then need no key of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_auth: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    /// For listeners of compute type `k8s`.
    pub k8s_namespace: Option<String>,
}

/// The configuration of a revision. Stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RevisionConfig {
    /// The bare name of a branch, or `refs/tags/<tag>`.
    pub repo_ref: Option<String>,
    /// The graph configuration file, relative to the root of the repository or archive.
    pub graph_config_path: Option<String>,
    pub image_uri: Option<String>,
    /// An uploaded source archive.
    pub source_tarball_path: Option<String>,
    /// The commit that `repo_ref` resolved to.
    pub repo_commit_sha: Option<String>,
}

impl RevisionConfig {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This configuration with the fields of `change` replaced. Resolved values of the old source are dropped.
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

    #[must_use]
    pub fn is_tag(&self) -> bool {
        self.repo_ref
            .as_deref()
            .is_some_and(|name| name.starts_with("refs/tags/"))
    }
}
