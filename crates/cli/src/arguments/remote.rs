//! The command line of commands that talk to a server.

mod deployments;
mod quarantine;
mod sandbox;

use std::convert::Infallible;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use towpath_domain::{ExportId, JobId, Secret, TenantId, WorkerId};
use uuid::Uuid;

use super::output::Output;

pub use deployments::{
    DeploymentKind, DeploymentUpdate, Deployments, DeploymentsCommand, Level, LogOptions, NewDeployment, Revisions,
    RevisionsCommand,
};

pub use quarantine::{EntrySelection, QuarantineCommand, Traces, TracesCommand};

#[cfg(test)]
pub use sandbox::VolumeMount;
pub use sandbox::{CopyPath, Exec, NewSandbox, Sandbox, SandboxCommand, SandboxStatus};

/// Which server, and who asks.
#[derive(Debug, Clone, Args)]
pub struct ServerOptions {
    /// Address of the server.
    #[arg(
        long,
        value_name = "URL",
        env = "TOWPATH_SERVER",
        default_value = "http://127.0.0.1:8400",
        global = true
    )]
    pub server: String,
    /// API key; prefer the environment, because arguments are visible in process lists [default: for a server on this
    /// machine, the key that `towpath dev` keeps in its data folder]
    #[arg(long, value_name = "KEY", env = "TOWPATH_API_KEY", hide_env_values = true, value_parser = secret, global = true)]
    pub api_key: Option<Secret>,
    /// Workspace; required if the key opens several.
    #[arg(long, value_name = "UUID", env = "TOWPATH_TENANT_ID", global = true)]
    pub tenant: Option<TenantId>,
    /// Data folder of `towpath dev`, which contains its key [default: .towpath]
    #[arg(long, value_name = "DIR", env = "TOWPATH_DATA_DIR", global = true)]
    pub data_dir: Option<PathBuf>,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t, global = true)]
    pub output: Output,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

/// `towpath queues`
#[derive(Debug, Args)]
pub struct Queues {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<QueuesCommand>,
}

/// What `towpath queues` does.
#[derive(Debug, Default, Subcommand)]
pub enum QueuesCommand {
    /// List pools with their waiting jobs.
    #[default]
    Ls,
    /// Show one pool.
    Show {
        /// Name, as `towpath queues` shows it.
        pool: String,
    },
    /// Stop claiming jobs of a pool; running jobs continue.
    Pause {
        /// Name, as `towpath queues` shows it.
        pool: String,
    },
    /// Claim jobs of a pool again.
    Resume {
        /// Name, as `towpath queues` shows it.
        pool: String,
    },
    /// Stop claiming jobs of a pool, to wait until none runs.
    Drain {
        /// Name, as `towpath queues` shows it.
        pool: String,
        /// Wait until its last running job has ended.
        #[arg(long)]
        wait: bool,
    },
}

/// `towpath jobs`
#[derive(Debug, Args)]
pub struct Jobs {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: JobsCommand,
}

/// What `towpath jobs` does.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// List jobs, the latest first.
    Ls {
        #[command(flatten)]
        which: JobFilter,
        /// Maximum number of rows.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        limit: u64,
    },
    /// Show a job with its steps, attempts and children.
    Show {
        /// The job; at an agent server also a run, for its job.
        job: JobId,
        /// Also show its input, which may contain user data.
        #[arg(long)]
        input: bool,
    },
    /// Explain why a job is not running.
    Explain {
        /// Id, as `towpath jobs` shows it.
        job: JobId,
    },
    /// Retry jobs that failed or wait for a retry.
    Retry(JobSelection),
    /// Cancel jobs and the jobs they started.
    Cancel(JobSelection),
}

/// Jobs named, or found.
#[derive(Debug, Args)]
pub struct JobSelection {
    /// Ids, as `towpath jobs` shows them.
    #[arg(value_name = "JOB", required_unless_present_any = ["pool", "kind", "state", "lane", "of"], conflicts_with_all = ["pool", "kind", "state", "lane", "of"])]
    pub jobs: Vec<JobId>,
    /// All matching jobs.
    #[command(flatten)]
    pub which: JobFilter,
}

#[derive(Debug, Default, Args)]
pub struct JobFilter {
    /// Only jobs of this pool.
    #[arg(long)]
    pub pool: Option<String>,
    /// Only jobs of this kind, such as `run_export`.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only jobs in this state.
    #[arg(long, value_enum)]
    pub state: Option<State>,
    /// Only jobs of this lane.
    #[arg(long)]
    pub lane: Option<String>,
    /// Of this workspace.
    #[arg(long = "workspace", value_name = "UUID")]
    pub of: Option<TenantId>,
}

/// States of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum State {
    Scheduled,
    Blocked,
    Ready,
    Running,
    Waiting,
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
}

/// `towpath dead`
#[derive(Debug, Args)]
pub struct Dead {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<DeadCommand>,
}

/// What `towpath dead` does.
#[derive(Debug, Subcommand)]
pub enum DeadCommand {
    /// List dead letters, the most recent first.
    Ls {
        /// Maximum number of rows.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        limit: u64,
    },
    /// Retry dead letters.
    Retry {
        /// Ids, as `towpath dead` shows them.
        #[arg(required = true)]
        jobs: Vec<JobId>,
    },
}

impl Default for DeadCommand {
    fn default() -> Self {
        Self::Ls { limit: 50 }
    }
}

/// `towpath workers`
#[derive(Debug, Args)]
pub struct Workers {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<WorkersCommand>,
}

/// What `towpath workers` does.
#[derive(Debug, Default, Subcommand)]
pub enum WorkersCommand {
    /// List worker processes.
    #[default]
    Ls,
    /// Stop a worker from claiming jobs.
    Drain {
        /// Id, as `towpath workers` shows it.
        worker: WorkerId,
        /// Wait until its last job has ended.
        #[arg(long)]
        wait: bool,
    },
    /// Let a drained worker claim jobs again.
    Resume {
        /// Its id, as `towpath workers` shows it.
        worker: WorkerId,
    },
}

/// `towpath limits`
#[derive(Debug, Args)]
pub struct Limits {
    #[command(flatten)]
    pub server: ServerOptions,
    /// Also list limits without counted requests
    #[arg(long)]
    pub all: bool,
}

/// `towpath schedules`
#[derive(Debug, Args)]
pub struct Schedules {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<SchedulesCommand>,
}

/// What `towpath schedules` does.
#[derive(Debug, Default, Subcommand)]
pub enum SchedulesCommand {
    /// List schedules that have not ended.
    #[default]
    Ls,
    /// Record no more jobs until it is resumed.
    Pause {
        /// Id, as `towpath schedules` shows it.
        schedule: Uuid,
    },
    /// Resume a schedule.
    Resume {
        /// Id, as `towpath schedules` shows it.
        schedule: Uuid,
    },
}

/// `towpath exports`
#[derive(Debug, Args)]
pub struct Exports {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<ExportsCommand>,
}

/// What `towpath exports` does.
#[derive(Debug, Subcommand)]
pub enum ExportsCommand {
    /// List exports, the latest first.
    Ls {
        /// Maximum number of rows.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
    },
    /// Show an export with its day partitions.
    Show {
        /// Id, as `towpath exports` shows it.
        export: ExportId,
    },
    /// Export the trace runs of a project.
    Create(NewExport),
    /// Cancel an export; finished files stay.
    Cancel {
        /// Id, as `towpath exports` shows it.
        export: ExportId,
    },
}

impl Default for ExportsCommand {
    fn default() -> Self {
        Self::Ls { limit: 50 }
    }
}

/// An export to be made.
#[derive(Debug, Args)]
pub struct NewExport {
    /// The destination, as shown by `destinations ls`.
    #[arg(long, value_name = "UUID")]
    pub destination: Uuid,
    /// The tracing project, by name or id.
    #[arg(long, value_name = "NAME")]
    pub project: String,
    /// Trace runs that started at this time or later, as in 2026-03-01 or 2026-03-01T08:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub start: String,
    /// … and before this one.
    #[arg(long, value_name = "TIME", required_unless_present = "every")]
    pub end: Option<String>,
    /// Create a schedule instead: one export for every HOURS hours (1 to 168), beginning at --start.
    #[arg(long, value_name = "HOURS", conflicts_with_all = ["end", "wait"], value_parser = clap::value_parser!(u32).range(1..=168))]
    pub every: Option<u32>,
    /// v1 or v2_beta [default: the server's]
    #[arg(long, value_name = "VERSION")]
    pub format_version: Option<String>,
    /// zstandard, gzip, snappy or none [default: the server's]
    #[arg(long, value_name = "NAME")]
    pub compression: Option<String>,
    /// Only these fields, separated by commas.
    #[arg(long, value_name = "FIELDS", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Wait until it ends, and show its progress. Exit code 1 unless it completes.
    #[arg(long)]
    pub wait: bool,
}

/// `towpath destinations`
#[derive(Debug, Args)]
pub struct Destinations {
    #[command(flatten)]
    pub server: ServerOptions,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<DestinationsCommand>,
}

/// What `towpath destinations` does.
#[derive(Debug, Default, Subcommand)]
pub enum DestinationsCommand {
    /// List destinations.
    #[default]
    Ls,
    /// Show a destination.
    Show {
        /// Id of the destination.
        destination: Uuid,
    },
    /// Create a destination. The server tests it before it stores it.
    Create(NewDestination),
    /// Delete a destination and its credentials. Unfinished exports fail and schedules stop; finished files stay.
    Delete {
        /// Id of the destination.
        destination: Uuid,
    },
}

/// A destination to be made.
#[derive(Debug, Args)]
pub struct NewDestination {
    /// Name of the destination.
    #[arg(long)]
    pub name: String,
    /// What it writes to: a bucket or a folder.
    #[arg(long = "type", value_enum, default_value_t)]
    pub kind: DestinationType,
    /// The bucket, for s3.
    #[arg(long, required_if_eq("kind", "s3"))]
    pub bucket: Option<String>,
    /// Prefix of all files.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Region of the bucket.
    #[arg(long)]
    pub region: Option<String>,
    /// Address of a store other than the native one.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Name the bucket in the path, not in the host name.
    #[arg(long)]
    pub path_style: bool,
    /// Source of the bucket's credentials. They are never read from the command line.
    #[arg(long, value_enum, default_value_t)]
    pub credentials: CredentialsFrom,
}

/// Kinds of destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DestinationType {
    /// A bucket of an S3-compatible store.
    #[default]
    S3,
    /// A folder below the one the server's operator configured.
    File,
}

/// Where credentials are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CredentialsFrom {
    /// The server's own, if its operator allows that.
    #[default]
    Server,
    /// The environment of this command: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.
    Environment,
    /// Standard input: JSON with access_key_id, secret_access_key and optionally session_token.
    Stdin,
}
