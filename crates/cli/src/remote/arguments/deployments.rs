//! The command line of deployments and revisions.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use towpath_domain::{IntegrationId, RevisionId};

use super::ServerOptions;

/// `towpath deployments`
#[derive(Debug, Args)]
pub struct Deployments {
    /// Which server.
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
        /// At most so many.
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
    /// Change a deployment; what it is made from and its secrets make a new revision.
    Update(DeploymentUpdate),
    /// Delete a deployment with its database.
    Delete {
        /// Its name or id.
        deployment: String,
        /// Delete its tracing project too.
        #[arg(long)]
        with_project: bool,
        /// Wait until it is torn down.
        #[arg(long)]
        wait: bool,
    },
    /// Let a deployment start on the database that is there, or on an empty one: the one it had is away. Operators may.
    AcceptDatabase {
        /// Its name or id.
        deployment: String,
    },
    /// Show what a deployment says, the latest lines.
    Logs {
        /// Its name or id.
        deployment: String,
        /// How much.
        #[command(flatten)]
        lines: Lines,
    },
}

impl Default for DeploymentsCommand {
    fn default() -> Self {
        Self::Ls { limit: 50 }
    }
}

/// How much of a log.
#[derive(Debug, Args)]
pub struct Lines {
    /// Go on with what comes.
    #[arg(long, short)]
    pub follow: bool,
    /// At most so many lines before that.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub limit: u64,
    /// At least this loud.
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
    /// What it is called, and its tracing project too.
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
    /// Have each push to the branch make a revision.
    #[arg(long, requires = "repo")]
    pub build_on_push: bool,
    /// Sizes.
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
    /// Whether a push makes a revision.
    #[arg(long, value_name = "BOOL")]
    pub build_on_push: Option<bool>,
    /// A file with a line NAME=VALUE for each secret; they replace all there are.
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Build what the branch is now, also if nothing else changes.
    #[arg(long)]
    pub rebuild: bool,
    /// Wait until the new revision is deployed. Exit code 1 unless it is.
    #[arg(long)]
    pub wait: bool,
}

/// `towpath revisions`
#[derive(Debug, Args)]
pub struct Revisions {
    /// Which server.
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
        /// At most so many.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
        limit: u64,
    },
    /// Show a revision.
    Show {
        /// The deployment's name or id.
        deployment: String,
        /// The revision.
        revision: RevisionId,
    },
    /// Deploy what a revision built once more, with the secrets it had.
    Redeploy {
        /// The deployment's name or id.
        deployment: String,
        /// The revision.
        revision: RevisionId,
        /// Wait until it is deployed. Exit code 1 unless it is.
        #[arg(long)]
        wait: bool,
    },
    /// Stop a revision that is not over.
    Interrupt {
        /// The deployment's name or id.
        deployment: String,
        /// The revision.
        revision: RevisionId,
    },
    /// Show what the build of a revision says.
    Logs {
        /// The deployment's name or id.
        deployment: String,
        /// The revision [default: the latest]
        revision: Option<RevisionId>,
        /// Not the build: what it says when it is deployed and while it serves.
        #[arg(long)]
        deploy: bool,
        /// How much.
        #[command(flatten)]
        lines: Lines,
    },
}
