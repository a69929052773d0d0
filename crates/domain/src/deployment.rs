//! Deployments: their sources, their states, and the rules for both.

mod config;
mod log;
mod push;
mod request;
mod resources;
mod secrets;

use serde::{Deserialize, Serialize};
use uuid::uuid;

use crate::ListenerId;

pub use config::{ListenerConfig, RevisionConfig, SourceConfig};
pub use log::{Level, LogKind};
pub use push::{PushEvent, repo_key};
pub use request::{
    ConfigChange, CurrentDeployment, DeploymentChange, DeploymentRequest, RevisionPolicy, RevisionRequest, check_name,
};
pub use resources::{Container, LocalReference, Quantity, ResourceSpec, Volume, VolumeMount};
pub use secrets::{EnvSecret, MASK, RESERVED, check_secrets, merge_secrets};

/// The listener that is part of the platform. Every workspace has it.
pub const BUILT_IN_LISTENER: ListenerId = ListenerId(uuid!("00000000-0000-7000-8000-000000000001"));

/// Size limit of a source archive, in bytes.
pub const LARGEST_ARCHIVE: u64 = 200 << 20;

/// The source of a deployment. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names clients send")]
pub enum Source {
    /// A git repository.
    Github,
    /// An image in a registry of the user.
    ExternalDocker,
    /// An image that the client pushes to the platform's registry.
    InternalDocker,
    /// A source archive that the client uploads.
    InternalSource,
}

impl Source {
    /// Whether the platform builds the image.
    #[must_use]
    pub const fn is_built(self) -> bool {
        matches!(self, Self::Github | Self::InternalSource)
    }

    /// Whether the client uploads the content after creating the deployment.
    #[must_use]
    pub const fn is_internal(self) -> bool {
        matches!(self, Self::InternalDocker | Self::InternalSource)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::ExternalDocker => "external_docker",
            Self::InternalDocker => "internal_docker",
            Self::InternalSource => "internal_source",
        }
    }
}

/// The default size of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum DeploymentType {
    /// As [`DeploymentType::Dev`].
    DevFree,
    /// One replica of 1 CPU and 1 GB.
    Dev,
    /// Up to ten replicas of 2 CPU and 2 GB.
    Prod,
    /// As [`DeploymentType::Dev`]; the default of `langgraph deploy`.
    DevZero,
}

impl DeploymentType {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DevFree => "dev_free",
            Self::Dev => "dev",
            Self::Prod => "prod",
            Self::DevZero => "dev_zero",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[sqlx(type_name = "text", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DeploymentStatus {
    /// Created; its database is not ready yet.
    AwaitingDatabase,
    /// Ready to use once a revision is deployed.
    Ready,
    /// Reserved.
    Unused,
    /// Being torn down.
    AwaitingDelete,
    /// Its listener does not report.
    Unknown,
}

impl DeploymentStatus {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AwaitingDatabase => "AWAITING_DATABASE",
            Self::Ready => "READY",
            Self::Unused => "UNUSED",
            Self::AwaitingDelete => "AWAITING_DELETE",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// Where a revision is.
///
/// ```text
/// CREATING ──► QUEUED ──┬─► AWAITING_BUILD ──► BUILDING ──┐
///     │                 └──────────► AWAITING_DEPLOY ◄────┘
///     ▼                                     │
/// CREATE_FAILED, BUILD_FAILED               ▼
/// SKIPPED (from what waits)             DEPLOYING ──► DEPLOYED, DEPLOY_FAILED
/// INTERRUPTED (from all that is not over)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[sqlx(type_name = "text", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RevisionStatus {
    /// Recorded.
    Creating,
    /// Recorded; another revision of the deployment is in progress.
    Queued,
    /// Waits for a builder.
    AwaitingBuild,
    Building,
    /// Waits for its listener.
    AwaitingDeploy,
    /// Its listener deploys it.
    Deploying,
    /// It passed its health check and got the traffic. Stays in this state when a later revision replaces it.
    Deployed,
    /// It failed before its build began.
    CreateFailed,
    BuildFailed,
    /// It was built but did not become healthy.
    DeployFailed,
    /// A newer revision replaced it, or it had nothing to deploy.
    Skipped,
    /// A user stopped it.
    Interrupted,
    Unknown,
}

impl RevisionStatus {
    pub const ALL: [Self; 13] = [
        Self::Creating,
        Self::Queued,
        Self::AwaitingBuild,
        Self::Building,
        Self::AwaitingDeploy,
        Self::Deploying,
        Self::Deployed,
        Self::CreateFailed,
        Self::BuildFailed,
        Self::DeployFailed,
        Self::Skipped,
        Self::Interrupted,
        Self::Unknown,
    ];

    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Deployed
                | Self::CreateFailed
                | Self::BuildFailed
                | Self::DeployFailed
                | Self::Skipped
                | Self::Interrupted
        )
    }

    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use RevisionStatus as S;
        if self.is_final() {
            return false;
        }
        match next {
            S::Creating => false,
            S::Queued => matches!(self, S::Creating),
            S::AwaitingBuild => matches!(self, S::Creating | S::Queued),
            S::Building => matches!(self, S::AwaitingBuild),
            S::AwaitingDeploy => matches!(self, S::Creating | S::Queued | S::Building),
            S::Deploying => matches!(self, S::AwaitingDeploy),
            S::Deployed => matches!(self, S::Deploying),
            S::CreateFailed => matches!(self, S::Creating | S::Queued),
            S::BuildFailed => matches!(self, S::AwaitingBuild | S::Building),
            S::DeployFailed => matches!(self, S::AwaitingDeploy | S::Deploying),
            S::Skipped => matches!(self, S::Creating | S::Queued | S::AwaitingBuild | S::AwaitingDeploy),
            S::Interrupted | S::Unknown => true,
        }
    }

    /// The failed state of a revision that stops in this one.
    #[must_use]
    pub const fn failed(self) -> Self {
        match self {
            Self::AwaitingBuild | Self::Building => Self::BuildFailed,
            Self::AwaitingDeploy | Self::Deploying => Self::DeployFailed,
            _ => Self::CreateFailed,
        }
    }

    /// Whether a newer revision makes this one obsolete: it has not begun.
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Queued)
    }

    /// Whether a revision in this state still reads its source later, and so includes a new push.
    #[must_use]
    pub const fn has_not_begun(self) -> bool {
        matches!(self, Self::Creating | Self::Queued)
    }

    /// Whether its artifact exists and can be deployed again.
    #[must_use]
    pub const fn has_artifact(self) -> bool {
        matches!(self, Self::Deployed | Self::DeployFailed)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Queued => "QUEUED",
            Self::AwaitingBuild => "AWAITING_BUILD",
            Self::Building => "BUILDING",
            Self::AwaitingDeploy => "AWAITING_DEPLOY",
            Self::Deploying => "DEPLOYING",
            Self::Deployed => "DEPLOYED",
            Self::CreateFailed => "CREATE_FAILED",
            Self::BuildFailed => "BUILD_FAILED",
            Self::DeployFailed => "DEPLOY_FAILED",
            Self::Skipped => "SKIPPED",
            Self::Interrupted => "INTERRUPTED",
            Self::Unknown => "UNKNOWN",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_ends_once() {
        for from in RevisionStatus::ALL {
            for to in RevisionStatus::ALL {
                assert!(!(from.is_final() && from.may_become(to)), "{from:?} {to:?}");
            }
            if !from.is_final() {
                assert!(from.may_become(RevisionStatus::Interrupted));
                let failed = from.failed();
                assert!(
                    from == RevisionStatus::Unknown || from.may_become(failed),
                    "{from:?} {failed:?}"
                );
            }
        }
    }

    #[test]
    fn names_are_those_of_the_wire() {
        for status in RevisionStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(RevisionStatus::parse(status.as_str()), Some(status));
        }
        for source in [
            Source::Github,
            Source::ExternalDocker,
            Source::InternalDocker,
            Source::InternalSource,
        ] {
            assert_eq!(serde_json::to_value(source).unwrap(), source.as_str());
        }
        for status in [DeploymentStatus::AwaitingDatabase, DeploymentStatus::AwaitingDelete] {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }

    #[test]
    fn a_build_and_an_image_go_their_ways() {
        use RevisionStatus as S;
        for way in [
            &[
                S::Creating,
                S::AwaitingBuild,
                S::Building,
                S::AwaitingDeploy,
                S::Deploying,
                S::Deployed,
            ][..],
            &[S::Creating, S::Queued, S::AwaitingDeploy, S::Deploying, S::DeployFailed],
        ] {
            assert!(way.windows(2).all(|step| step[0].may_become(step[1])));
        }
        assert!(!S::Building.may_become(S::Skipped));
        assert!(!S::Creating.may_become(S::Deployed));
    }
}
