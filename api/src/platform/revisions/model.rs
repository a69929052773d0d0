//! Request and response bodies of revisions.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use towpath_domain::deployment::{RevisionConfig, RevisionStatus, Source};
use towpath_domain::{DeploymentId, Rejection, RevisionId, Secret, Timestamp};
use towpath_store::revisions::Revision as RevisionRow;

use crate::errors::ApiError;
use crate::extract::{optional_object, optional_objects};
use crate::platform::names;

/// A secret: an environment variable of the deployment. Stored encrypted and never returned.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeploymentSecret)]
pub struct NewSecret {
    /// Name of an environment variable that the platform does not set itself.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z_][A-Za-z0-9_]*$")]
    pub(crate) name: String,
    /// In a change, `********` keeps the stored value.
    #[schema(value_type = String, write_only)]
    pub(crate) value: Secret,
}

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
    /// The revision whose artifact and secrets it redeploys.
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
    /// Offset of the next page.
    pub(crate) offset: i64,
}

/// Source of a revision.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SourceRevisionConfigAnswer)]
pub struct RevisionConfigAnswer {
    repo_ref: Option<String>,
    graph_config_path: Option<String>,
    /// Same as `graph_config_path`, under the name that `langgraph deploy` uses.
    langgraph_config_path: Option<String>,
    image_uri: Option<String>,
    source_tarball_path: Option<String>,
    /// Commit of `repo_ref`.
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

/// Source of a revision. The allowed fields depend on the source of the deployment.
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
    /// Alias of `graph_config_path`; send one of the two.
    #[serde(default)]
    langgraph_config_path: Option<String>,
    /// `external_docker` and `internal_docker`: the image.
    #[serde(default)]
    image_uri: Option<String>,
    /// `internal_source`: the `object_path` from `upload-url`.
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
                "source_revision_config.graph_config_path and langgraph_config_path are aliases and must agree",
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

/// A revision to create.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRevision)]
pub struct NewRevision {
    #[serde(default, deserialize_with = "optional_object")]
    pub(crate) source_revision_config: Option<NewRevisionConfig>,
    /// Replaces all secrets.
    #[serde(default, deserialize_with = "optional_objects")]
    #[schema(max_items = 1000)]
    pub(crate) secrets: Option<Vec<NewSecret>>,
    /// Source of this revision only, for `internal_docker` and `internal_source`.
    #[serde(default)]
    #[schema(value_type = Option<names::DeploymentSource>)]
    pub(crate) revision_source: Option<Source>,
}
