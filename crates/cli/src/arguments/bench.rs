//! The command line of `towpath bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// `towpath bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What `towpath bench` measures.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The engine: enqueue, drain, pick-up, steps, claim.
    Engine(BenchEngine),
    /// An agent server: create and wait, first events, background runs, threads.
    Agent(BenchAgent),
    /// A server under twice the load it can take: goodput, refusals, latency.
    ///
    /// The server is filled first, until its first refusal. The peak is what it then accepts from senders that wait for
    /// their responses: the sustained rate, not the rate of a burst. The load is twice the peak.
    Overload(BenchOverload),
    /// Exports: trace runs to Parquet files, copied and scanned, compared with DuckDB if it is available.
    Export(BenchExport),
    /// Ingest: trace runs acknowledged, and flushed, per second.
    Ingest(BenchIngest),
    /// Deployments: from the request to the serving agent server, step by step.
    Deploy(BenchDeploy),
    /// Sandboxes: create, commands, wake, pools, forks, idle boxes, files, output whose connection is cut.
    ///
    /// The driver is measured first, without a server, then `towpath dev` with SQLite in a temporary folder.
    Sandbox(BenchSandbox),
    /// Threads of an agent server with 10 to 10,000 checkpoints: append, state, history, rollback, copy, prune.
    Threads(BenchThreads),
    /// Rate limits: the cost of counting a request, in memory and over Redis.
    Limits(BenchLimits),
    /// Dispatch over Redis: worker processes that scan after a wake, against ones that take ids of ready jobs.
    Dispatch(BenchDispatch),
    /// A worker process of `dispatch`.
    #[command(hide = true)]
    DispatchWorker,
    /// Months of load on the engine: whether tables, database, memory and statement costs stay bounded.
    ///
    /// The clock of the database moves ahead day by day. The last quarter of the days is compared with the second quarter.
    /// The command fails when a bound is exceeded or when a job did not succeed exactly once. Statement costs are measured
    /// on a PostgreSQL server that loads pg_stat_statements.
    Soak(BenchSoak),
}

/// `towpath bench threads`
#[derive(Debug, Args)]
pub struct BenchThreads {
    /// A PostgreSQL server; a temporary database is created there [default: SQLite in a temporary folder]
    #[arg(long, value_name = "URI")]
    pub database: Option<String>,
    /// Bytes of the new value of each checkpoint.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub bytes: u32,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench dispatch`
#[derive(Debug, Args)]
pub struct BenchDispatch {
    /// A PostgreSQL server; a temporary database is created there.
    #[arg(long, value_name = "URI")]
    pub database: String,
    /// A Redis server.
    #[arg(long, value_name = "URI")]
    pub redis: String,
    /// Jobs of each drain.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub jobs: u64,
    /// Numbers of worker processes, one measurement each.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1_u16, 4, 16],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Vec<u16>,
    /// Numbers of tenants that share the jobs.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1_u16, 5000],
          value_parser = clap::value_parser!(u16).range(1..))]
    pub tenants: Vec<u16>,
    /// Slots of each worker process.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: u16,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench soak`
#[derive(Debug, Args)]
pub struct BenchSoak {
    /// A PostgreSQL server; a temporary database is created there [default: SQLite in a temporary folder]
    #[arg(long, value_name = "URI")]
    pub database: Option<String>,
    /// A database on that server to keep, created if missing; the next run continues there [default: a temporary one]
    #[arg(long, value_name = "NAME", requires = "database", value_parser = database_name)]
    pub database_name: Option<String>,
    /// A folder to keep the SQLite file in; the next run continues there [default: a temporary one]
    #[arg(long, value_name = "DIR", conflicts_with = "database")]
    pub keep: Option<PathBuf>,
    /// Jobs over all days.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub jobs: u64,
    /// Lanes over all days, of one slot each; half of the jobs are in lanes [default: a tenth of --jobs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub lanes: Option<u64>,
    /// Simulated days. Finished jobs are kept for 14 days, or for a quarter of the days if that is less.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(4..=3650))]
    pub days: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// The name is part of statements, so it must need no quotes.
fn database_name(text: &str) -> Result<String, String> {
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    if begins && text.len() <= 63 && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err("expected lower-case letters, digits and underscores".to_owned())
}

/// `towpath bench deploy`
#[derive(Debug, Args)]
pub struct BenchDeploy {
    /// Address of a running server of this machine that reads local repositories (deployments.git_transports = file)
    /// [default: its own, in a temporary folder]
    #[arg(long, value_name = "URL", requires = "api_key")]
    pub server: Option<String>,
    /// A key of that server that opens one workspace.
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Deployments after the first, each with one more revision.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench sandbox`
#[derive(Debug, Args)]
pub struct BenchSandbox {
    /// Repetitions of each operation.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub rounds: u64,
    /// Idle boxes at a time.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub boxes: u64,
    /// MiB of the file that is uploaded and downloaded.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub file_mb: u64,
    /// Megabytes of output over a connection that is cut five times.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=9_000))]
    pub output_mb: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench limits`
#[derive(Debug, Args)]
pub struct BenchLimits {
    /// A Redis server [default: none]
    #[arg(long, value_name = "URI")]
    pub redis: Option<String>,
    /// Requests counted in each phase.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub calls: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench export`
#[derive(Debug, Args)]
pub struct BenchExport {
    /// Trace runs, on 31 days.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub rows: u64,
    /// Percentage of trace runs with a late update in another segment.
    #[arg(long, default_value_t = 30.0, value_parser = percent)]
    pub late: f64,
    /// file, or s3://bucket/prefix in an S3-compatible store [default: file, in a temporary folder]
    ///
    /// The bucket must exist. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are required; AWS_SESSION_TOKEN and
    /// AWS_REGION are optional. AWS_ENDPOINT_URL selects another address than AWS, with the bucket in its path. The
    /// written objects stay in the bucket.
    #[arg(long, value_name = "ADDRESS")]
    pub destination: Option<String>,
    /// A Python with `duckdb`: the same rows with its COPY, in the same run [default: none]
    #[arg(long, value_name = "PYTHON")]
    pub peer: Option<PathBuf>,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
    /// One phase, in its own process.
    #[arg(long, hide = true, value_enum, requires = "folder")]
    pub phase: Option<ExportPhase>,
    /// Where the phases meet.
    #[arg(long, hide = true)]
    pub folder: Option<PathBuf>,
}

/// A part of `towpath bench export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportPhase {
    /// Makes the rows.
    Prepare,
    /// Copies row groups.
    Spliced,
    /// Copies what has the same type in `v2_beta`.
    SplicedV2,
    /// Copies some columns.
    SplicedSubset,
    /// Reads and writes every row.
    Scanned,
    /// Reads and writes some columns.
    ScannedSubset,
    /// With rows that came late.
    Late,
}

impl ExportPhase {
    /// As the command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Spliced => "spliced",
            Self::SplicedV2 => "spliced-v2",
            Self::SplicedSubset => "spliced-subset",
            Self::Scanned => "scanned",
            Self::ScannedSubset => "scanned-subset",
            Self::Late => "late",
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected 0 to 100".to_owned()),
    }
}

/// `towpath bench ingest`
#[derive(Debug, Args)]
pub struct BenchIngest {
    /// Trace runs.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub rows: u64,
    /// Senders that wait for each response.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub senders: u64,
    /// A Python with `duckdb`: the same rows into its file, in the same run [default: none]
    #[arg(long, value_name = "PYTHON")]
    pub peer: Option<PathBuf>,
    /// A PostgreSQL server: the same rows with its COPY, in the same run, or those of --workers. A temporary database
    /// is created there [default: none]
    #[arg(long, value_name = "URI")]
    pub database: Option<String>,
    /// Numbers of worker processes of a cluster, separated by commas: only the same rows with each
    ///
    /// For each number, an API, a scheduler and that many workers are started on their own database.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        requires = "database",
        conflicts_with = "peer",
        value_parser = clap::value_parser!(u64).range(1..=64)
    )]
    pub workers: Vec<u64>,
    /// Additional round-trip time between the cluster and its database, in milliseconds [default: none]
    #[arg(long = "latency", value_name = "MS", requires = "workers", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub latency_ms: Option<u64>,
    /// Workspaces of the cluster among which the rows are distributed.
    #[arg(long, value_name = "N", requires = "workers", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub workspaces: u64,
    /// Flushes that one worker of the cluster performs at a time: few, so that other workers find work.
    #[arg(long, value_name = "N", requires = "workers", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub folds: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench agent`
#[derive(Debug, Args)]
pub struct BenchAgent {
    /// Address of a running agent server that requires no key [default: its own, in a temporary folder]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The graph or assistant to run.
    #[arg(long, default_value = "agent")]
    pub assistant: String,
    /// Graph of its own server: one that echoes, or one of two nodes in Python.
    #[arg(long, value_enum, default_value_t, conflicts_with = "server")]
    pub graph: BenchGraph,
    /// An interpreter with langgraph, for the Python graph [default: one with its own environment]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// A Python with `langgraph-cli[inmem]`: its development server on the same graph, in the same run [default: none]
    #[arg(long, value_name = "PYTHON")]
    pub official: Option<PathBuf>,
    /// Only perform this number of runs and measure the memory afterwards.
    #[arg(long, value_name = "N", conflicts_with = "official", value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: Option<u64>,
    /// Length of each phase.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// What `towpath bench agent` runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchGraph {
    /// The native graph that echoes.
    #[default]
    Echo,
    /// Two nodes in Python, a checkpoint after each; compared with the same graph without the server.
    Python,
}

/// `towpath bench overload`
#[derive(Debug, Args)]
pub struct BenchOverload {
    /// Address of a running server [default: its own, in a temporary folder]
    #[arg(long, value_name = "URL", requires = "api_key")]
    pub server: Option<String>,
    /// A key of that server that opens one workspace.
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Length of the phase under twice the load; each phase that searches the peak has a third of it.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub seconds: u64,
    /// Trace runs in one request; the official clients send up to a hundred.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Bytes of text in each trace run.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub body_bytes: u32,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench engine`
#[derive(Debug, Args)]
pub struct BenchEngine {
    /// A PostgreSQL server; a temporary database is created there [default: SQLite in a temporary folder]
    #[arg(long, value_name = "URI")]
    pub database: Option<String>,
    /// A Redis server for wakes [default: none]
    #[arg(long, value_name = "URI")]
    pub redis: Option<String>,
    /// Jobs to drain at 64 and 256 slots.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub jobs: u64,
    /// The longest backlog against which claims are timed.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub backlog: u64,
    /// Measure only figures that begin with this, as in drain or "drain, 64"; hand-written SQL is always measured.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}
