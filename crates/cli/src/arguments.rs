//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use towpath_domain::{KeyId, TenantId};

use crate::config::{Flag, Inputs, Mode};
use crate::remote;

/// Open, self-hosted platform for AI agents: durable jobs, traces, and exports of traces to Parquet.
#[derive(Debug, Parser)]
#[command(name = "towpath", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a server was not reachable.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show it all once: start a server, send trace runs, export them as Parquet, read the files back.
    Demo(Demo),
    /// Run everything in one process on this machine, kept in one folder.
    Dev(Dev),
    /// Run roles of a cluster.
    Serve(Serve),
    /// Run an agent server: graphs behind assistants, threads, runs, crons and a store.
    Agent(Agent),
    /// Say when a cron schedule fires.
    Cron(Cron),
    /// Bring the database's schema up to date.
    Migrate(Migrate),
    /// Make, list and revoke API keys.
    Keys(Keys),
    /// Show pools and what waits in them; pause, resume and drain them.
    Queues(remote::Queues),
    /// List, show, explain, retry and cancel jobs.
    Jobs(remote::Jobs),
    /// List dead letters and try them again.
    Dead(remote::Dead),
    /// List worker processes and drain them.
    Workers(remote::Workers),
    /// List, pause and resume schedules.
    Schedules(remote::Schedules),
    /// Export traces, and follow exports.
    Exports(remote::Exports),
    /// Make and list destinations of exports.
    Destinations(remote::Destinations),
    /// Deploy agent servers from repositories and images, change and delete them.
    Deployments(remote::Deployments),
    /// Follow, repeat and stop revisions of deployments.
    Revisions(remote::Revisions),
    /// Look at everything this installation needs, and say what is wrong with it.
    Doctor(Doctor),
    /// Copy the data folder as it is at one moment, also while a server uses it.
    Backup(Backup),
    /// Make a data folder from a backup.
    Restore(Restore),
    /// Show and check the settings.
    Config(ConfigCommand),
    /// Measure this machine, beside the same work done by hand.
    Bench(Bench),
    /// Print the completions of a shell.
    Completions(Completions),
    /// Print the manual page, or write one for each command.
    Man(Man),
    /// Print the version.
    Version(Version),
}

/// Options every command that reads settings has.
#[derive(Debug, Clone, Default, Args)]
pub struct Common {
    /// Configuration file [default: $TOWPATH_CONFIG, else towpath.toml where there is one]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Folder for everything that is kept on this machine [default: .towpath]
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
    /// How much is logged, as in info or info,towpath_durable=debug [default: info,apalis_core=warn,sqlx=warn]
    #[arg(long, value_name = "FILTER", global = true)]
    pub log: Option<String>,
}

impl Common {
    /// Where settings come from when these options and `more` were given.
    pub fn inputs(&self, mode: Mode, more: Vec<Flag>) -> Inputs {
        let own = [
            flag(
                "data_dir",
                "--data-dir",
                self.data_dir.as_ref().map(|path| path.display()),
            ),
            flag("log.filter", "--log", self.log.as_ref()),
        ];
        let flags = own.into_iter().flatten().chain(more).collect();
        Inputs::of_process(mode, flags, self.config.clone())
    }
}

/// A flag that was given, as a setting.
pub fn flag(key: &'static str, name: &'static str, value: Option<impl ToString>) -> Option<Flag> {
    value.map(|value| Flag {
        key,
        name,
        value: value.to_string(),
    })
}

/// `towpath demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// Trace runs to send.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub runs: u64,
    /// Connections that send at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub connections: u64,
    /// Keep everything in this folder instead of a temporary one that is removed at the end.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// How much is logged.
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub log: String,
}

/// `towpath dev`
#[derive(Debug, Args)]
pub struct Dev {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// Address of the platform API [default: 127.0.0.1:8400]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Address of the agent server [default: 127.0.0.1:8123]
    #[arg(long, value_name = "ADDR")]
    pub agent_listen: Option<SocketAddr>,
    /// The file that declares the agent server's graphs [default: langgraph.json or towpath.json of this folder where
    /// there is one, else one graph that echoes]
    #[arg(long, value_name = "FILE")]
    pub graphs: Option<PathBuf>,
    /// Ask callers of the agent server for an API key, also on loopback
    #[arg(long)]
    pub agent_auth: bool,
}

/// `towpath agent`
#[derive(Debug, Args)]
pub struct Agent {
    /// The file that declares the graphs [default: langgraph.json or towpath.json of this folder where there is one,
    /// else one graph that echoes]
    #[arg(long, visible_alias = "graphs", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address it listens on [default: 127.0.0.1:8123]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// What this process does, with commas between several. Only with PostgreSQL can there be several processes.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1.., default_value = "all")]
    pub role: Vec<Role>,
    /// Ask callers for an API key, also on loopback
    #[arg(long)]
    pub agent_auth: bool,
    /// Configuration file of Towpath itself [default: $TOWPATH_CONFIG, else towpath.toml where there is one]
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Folder for everything that is kept on this machine [default: .towpath]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// How much is logged, as in info or info,towpath_durable=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Write the address it listens on to this file once it does, for whoever chose port 0
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,
    /// Drain and stop when standard input ends, as it does when the process that holds it is killed
    #[arg(long)]
    pub while_stdin_is_open: bool,
}

/// `towpath cron`
#[derive(Debug, Args)]
pub struct Cron {
    /// Five fields: minute, hour, day of month, month, day of week.
    pub schedule: String,
    /// IANA name of the zone the fields are read in.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub timezone: String,
    /// Begin after this time [default: now]
    #[arg(long, value_name = "TIME")]
    pub after: Option<towpath_domain::Timestamp>,
    /// How many times are printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub count: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// What this process does, with commas between several.
    #[arg(long, value_enum, value_delimiter = ',', required = true, num_args = 1..)]
    pub role: Vec<Role>,
    /// Address of the API, or of health and metrics without it [default: 127.0.0.1:8400; worker 8401, scheduler 8402]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
}

/// What a process of a cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Answers HTTP.
    Api,
    /// Performs jobs.
    Worker,
    /// Keeps the clock: due jobs, dead leases, deadlines.
    Scheduler,
    /// All of them.
    All,
}

/// `towpath migrate`
#[derive(Debug, Args)]
pub struct Migrate {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
}

/// `towpath keys`
#[derive(Debug, Args)]
pub struct Keys {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What `towpath keys` does.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key and print it, once. Makes the first organization and workspace where there is none.
    Create {
        /// What people call it.
        #[arg(long, default_value = "cli")]
        name: String,
        /// The one workspace it shall open [default: all of its organization]
        #[arg(long, value_name = "UUID")]
        workspace: Option<TenantId>,
        /// Let it also run the place: /internal, the dashboard, jobs of every workspace. The first key of all may.
        #[arg(long)]
        operator: bool,
        /// Table for people or JSON for programs.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// List the keys, without their secrets.
    List {
        /// Table for people or JSON for programs.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Take a key's power away, for good.
    Revoke {
        /// The key's id, as `keys list` shows it.
        key: KeyId,
    },
}

/// `towpath config`
#[derive(Debug, Args)]
pub struct ConfigCommand {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// The command whose settings are meant; a few defaults differ.
    #[arg(long = "for", value_enum, default_value_t = For::Dev, global = true)]
    pub command_of: For,
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigVerb,
}

/// Whose settings.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum For {
    /// `towpath dev`
    Dev,
    /// `towpath serve --role api` or `all`
    Api,
    /// `towpath serve --role worker`
    Worker,
    /// `towpath serve --role scheduler`
    Scheduler,
    /// `towpath agent`
    Agent,
}

impl From<For> for Mode {
    fn from(command: For) -> Self {
        match command {
            For::Dev => Self::Dev,
            For::Api => Self::Api,
            For::Worker => Self::Worker,
            For::Scheduler => Self::Scheduler,
            For::Agent => Self::Agent,
        }
    }
}

/// What `towpath config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print each setting with where it comes from; secrets are hidden.
    Show {
        /// Table for people or JSON for programs.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Say what is wrong with the settings; exit code 2 when something is.
    Check,
}

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
    /// An agent server: runs created and waited for, first events, background runs, threads.
    Agent(BenchAgent),
    /// A server under twice the load it can take: goodput, refusals, latency.
    Overload(BenchOverload),
    /// Exports: trace runs to Parquet files, copied and scanned, beside DuckDB where it is at hand.
    Export(BenchExport),
    /// Ingest: trace runs acknowledged, and folded, per second.
    Ingest(BenchIngest),
}

/// `towpath bench export`
#[derive(Debug, Args)]
pub struct BenchExport {
    /// Trace runs, on 31 days.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub rows: u64,
    /// The share of them that has a late update in another segment.
    #[arg(long, default_value_t = 0.3, value_parser = share)]
    pub late: f64,
    /// file, or s3://bucket/prefix with the usual AWS variables [default: file, in a temporary folder]
    #[arg(long, value_name = "ADDRESS")]
    pub destination: Option<String>,
    /// A Python that has `duckdb`: the same rows by its COPY, in the same run [default: none]
    #[arg(long, value_name = "PYTHON")]
    pub peer: Option<PathBuf>,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
    /// One phase, in a process of its own.
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

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected 0 to 1".to_owned()),
    }
}

/// `towpath bench ingest`
#[derive(Debug, Args)]
pub struct BenchIngest {
    /// Trace runs.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub rows: u64,
    /// Senders that each wait for their answer.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub senders: u64,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath bench agent`
#[derive(Debug, Args)]
pub struct BenchAgent {
    /// Address of a running agent server that asks for no key [default: one of its own, in a temporary folder]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The graph or assistant that is run.
    #[arg(long, default_value = "agent")]
    pub assistant: String,
    /// What the server of its own offers: a graph that echoes, or one of two nodes in Python.
    #[arg(long, value_enum, default_value_t, conflicts_with = "server")]
    pub graph: BenchGraph,
    /// An interpreter that has langgraph, for the Python graph [default: one with an environment made for it]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// Length of each phase.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// In place of the phases: so many runs, and the memory of the server after each tenth of them [default: phases]
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["server", "graph", "seconds"],
          value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub runs: Option<u64>,
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
    /// Two nodes in Python, a checkpoint after each; beside it the same graph without the server.
    Python,
}

/// `towpath bench overload`
#[derive(Debug, Args)]
pub struct BenchOverload {
    /// Address of a running server [default: one of its own, in a temporary folder]
    #[arg(long, value_name = "URL", requires = "api_key")]
    pub server: Option<String>,
    /// A key of that server that opens one workspace.
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Length of the phase under twice the load.
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
    /// A PostgreSQL server; a database of its own is made there and dropped again [default: SQLite in a temporary folder]
    #[arg(long, value_name = "URI")]
    pub database: Option<String>,
    /// A Redis server for wake-ups [default: none]
    #[arg(long, value_name = "URI")]
    pub redis: Option<String>,
    /// Jobs to drain at 64 and 256 slots.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub jobs: u64,
    /// The longest backlog claims are timed against.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub backlog: u64,
    /// Measure only what begins with this, as in drain or "drain, 64"; the figures by hand are always measured.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath doctor`
#[derive(Debug, Args)]
pub struct Doctor {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// The command whose settings are meant; a few defaults differ.
    #[arg(long = "for", value_enum, default_value_t = For::Dev)]
    pub command_of: For,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// `towpath backup`
#[derive(Debug, Args)]
pub struct Backup {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// A folder that does not exist yet.
    #[arg(value_name = "DIR")]
    pub to: PathBuf,
}

/// `towpath restore`
#[derive(Debug, Args)]
pub struct Restore {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// A folder that `towpath backup` made.
    #[arg(value_name = "DIR")]
    pub from: PathBuf,
}

/// `towpath completions`
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `towpath man`
#[derive(Debug, Args)]
pub struct Man {
    /// Write a page for each command into this folder instead of printing the first.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

/// `towpath version`
#[derive(Debug, Args)]
pub struct Version {
    /// Text for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn roles_are_a_list() {
        let arguments = Arguments::try_parse_from(["towpath", "serve", "--role", "api,worker"]).unwrap();
        let Command::Serve(serve) = arguments.command else {
            panic!("{arguments:?}")
        };
        assert_eq!(serve.role, [Role::Api, Role::Worker]);
    }
}
