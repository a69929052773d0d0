//! The command line of deployments and revisions.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use towpath_domain::{IntegrationId, RevisionId};

use super::ServerOptions;

/// `towpath deployments`
#[derive(Debug, Args)]
pub struct Deployments {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<DeploymentsCommand>,
}

/// What `towpath deployments` does.
#[derive(Debug, Subcommand)]
pub enum DeploymentsCommand {
    /// List deployments, the latest first.
    Ls {
        /// Maximum number of rows.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100))]
        limit: u64,
    },
    /// Show a deployment.
    Show {
        /// Its name or id.
        deployment: String,
    },
    /// Deploy a repository or an image.
    Create(NewDeployment),
    /// Change a deployment; changes of its source or secrets create a new revision.
    Update(DeploymentUpdate),
    /// Delete a deployment with its database.
    Delete {
        /// Its name or id.
        deployment: String,
        /// Delete its tracing project too.
        #[arg(long)]
        with_project: bool,
        /// Wait until the deletion has finished.
        #[arg(long)]
        wait: bool,
    },
    /// Let a deployment whose database is missing start on the existing one, or on an empty one. Operators only.
    AcceptDatabase {
        /// Its name or id.
        deployment: String,
    },
    /// Show the latest log lines of a deployment.
    Logs {
        /// Its name or id.
        deployment: String,
        /// How much.
        #[command(flatten)]
        lines: LogOptions,
    },
}

impl Default for DeploymentsCommand {
    fn default() -> Self {
        Self::Ls { limit: 50 }
    }
}

/// How much of a log.
#[derive(Debug, Args)]
pub struct LogOptions {
    /// Follow new lines.
    #[arg(long, short)]
    pub follow: bool,
    /// Maximum number of earlier lines.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub limit: u64,
    /// Minimum level.
    #[arg(long, value_enum)]
    pub level: Option<Level>,
}

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

/// A deployment to be made.
#[derive(Debug, Args)]
pub struct NewDeployment {
    /// Name of the deployment and of its tracing project.
    #[arg(long)]
    pub name: String,
    /// A git repository to build it from.
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "image",
        required_unless_present = "image"
    )]
    pub repo: Option<String>,
    /// A branch by its name, or a tag as refs/tags/…
    #[arg(long = "ref", value_name = "REF", default_value = "main")]
    pub repo_ref: String,
    /// The graph configuration file in the repository.
    #[arg(long, value_name = "PATH", default_value = "langgraph.json")]
    pub graph_config: String,
    /// The integration that may read the repository.
    #[arg(long, value_name = "UUID", requires = "repo")]
    pub integration: Option<IntegrationId>,
    /// Create a revision at each push to the branch.
    #[arg(long, requires = "repo")]
    pub build_on_push: bool,
    /// Default sizes.
    #[arg(long = "type", value_enum, requires = "repo")]
    pub kind: Option<DeploymentKind>,
    /// An image to run.
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
    /// A file with a line NAME=VALUE for each secret.
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Wait until it is deployed. Exit code 1 unless it is.
    #[arg(long)]
    pub wait: bool,
}

/// Default sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeploymentKind {
    /// One replica of 1 CPU and 1 GB.
    Dev,
    /// Up to ten replicas of 2 CPU and 2 GB.
    Prod,
}

/// A change of a deployment.
#[derive(Debug, Args)]
pub struct DeploymentUpdate {
    /// Its name or id.
    pub deployment: String,
    /// Another branch or tag.
    #[arg(long = "ref", value_name = "REF")]
    pub repo_ref: Option<String>,
    /// Another graph configuration file.
    #[arg(long, value_name = "PATH")]
    pub graph_config: Option<String>,
    /// Another image.
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
    /// Whether a push creates a revision.
    #[arg(long, value_name = "BOOL")]
    pub build_on_push: Option<bool>,
    /// A file with a line NAME=VALUE for each secret; they replace all existing ones.
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Build the current state of the branch, even if nothing else changes.
    #[arg(long)]
    pub rebuild: bool,
    /// Wait until the new revision is deployed. Exit code 1 unless it is.
    #[arg(long)]
    pub wait: bool,
}

/// `towpath revisions`
#[derive(Debug, Args)]
pub struct Revisions {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: RevisionsCommand,
}

/// What `towpath revisions` does.
#[derive(Debug, Subcommand)]
pub enum RevisionsCommand {
    /// List revisions of a deployment, the latest first.
    Ls {
        /// The deployment's name or id.
        deployment: String,
        /// Maximum number of rows.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
        limit: u64,
    },
    /// Show a revision.
    Show {
        /// The deployment's name or id.
        deployment: String,
        /// Id, as `towpath revisions` shows it.
        revision: RevisionId,
    },
    /// Deploy again what a revision built, with the secrets it had.
    Redeploy {
        /// The deployment's name or id.
        deployment: String,
        /// Id, as `towpath revisions` shows it.
        revision: RevisionId,
        /// Wait until it is deployed. Exit code 1 unless it is.
        #[arg(long)]
        wait: bool,
    },
    /// Stop an unfinished revision.
    Interrupt {
        /// The deployment's name or id.
        deployment: String,
        /// Id, as `towpath revisions` shows it.
        revision: RevisionId,
    },
    /// Show the build log of a revision.
    Logs {
        /// The deployment's name or id.
        deployment: String,
        /// The revision [default: the latest]
        revision: Option<RevisionId>,
        /// The deploy log instead: lines of the rollout and of the running agent server.
        #[arg(long)]
        deploy: bool,
        /// How much.
        #[command(flatten)]
        lines: LogOptions,
    },
}
