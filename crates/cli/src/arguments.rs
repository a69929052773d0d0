//! The command line.

mod bench;
mod config;
mod keys;
mod output;
pub mod remote;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{Flag, Inputs, Mode};

pub use bench::{
    Bench, BenchAgent, BenchCommand, BenchDeploy, BenchDispatch, BenchEngine, BenchExport, BenchGraph, BenchIngest,
    BenchLimits, BenchOverload, BenchSandbox, BenchThreads, ExportPhase,
};
pub use config::{ConfigCommand, ConfigTarget, ConfigVerb};
pub use keys::{Keys, KeysCommand};
pub use output::Output;

/// Open, self-hosted platform for AI agents: durable jobs, traces, and exports of traces to Parquet.
#[derive(Debug, Parser)]
#[command(name = "towpath", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a server was not reachable. sandbox exec ends as its command does.";

const MIGRATE_STORE: &str = "\
Moved: every row of towpath.db to --to, and of agent.db to --agent-to. The command creates the tables itself, continues \
where an earlier attempt ended, and compares every row at the end.

Not moved: everything else in the data folder, such as trace segments and the write-ahead log (objects/), files of \
exports, artifacts and databases of deployments, sandboxes, and the keys. The new processes need the same objects \
(TOWPATH_OBJECTS), the same encryption key (TOWPATH_ENCRYPTION_KEY, or encryption.key), and DATABASE_URI. The process \
that runs deployments and sandboxes needs the data folder.

Stop the server first. Once copying has begun, no server starts on the SQLite database any more; a file that ends with \
.moved next to it says so.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the product once: start a server, send trace runs, export them as Parquet, read the files back.
    Demo(Demo),
    /// Run everything in one process on this machine, with all data in one folder.
    Dev(Dev),
    /// Run roles of a cluster.
    Serve(Serve),
    /// Run an agent server: graphs behind assistants, threads, runs, crons and a store.
    Agent(Agent),
    /// Become another program inside of control groups.
    #[command(hide = true)]
    Enter(Enter),
    /// Copy the data folder of an agent server that may be running.
    #[command(hide = true)]
    CopyData(CopyData),
    /// Print the next times of a cron schedule.
    Cron(Cron),
    /// Migrate the database to the current schema.
    Migrate(Migrate),
    /// Move an installation from SQLite to PostgreSQL: every row, resumable, verified.
    #[command(after_help = MIGRATE_STORE)]
    MigrateStore(MigrateStore),
    /// Create, list, rotate and revoke API keys.
    Keys(Keys),
    /// Show pools and their waiting jobs; pause, resume and drain them.
    Queues(remote::Queues),
    /// List, show, explain, retry and cancel jobs.
    Jobs(remote::Jobs),
    /// List and retry dead letters.
    Dead(remote::Dead),
    /// List worker processes, drain and resume them.
    Workers(remote::Workers),
    /// Show rate limits, the callers near one, and refused callers.
    Limits(remote::Limits),
    /// List, pause and resume schedules.
    Schedules(remote::Schedules),
    /// Export traces, and follow exports.
    Exports(remote::Exports),
    /// Create, list and delete destinations of exports.
    Destinations(remote::Destinations),
    /// Manage accepted trace data that could not be flushed.
    Traces(remote::Traces),
    /// Deploy agent servers from repositories and images; change and delete them.
    Deployments(remote::Deployments),
    /// Follow, redeploy and stop revisions of deployments.
    Revisions(remote::Revisions),
    /// Create sandboxes, run commands in them, copy files, stop and delete them.
    #[command(visible_alias = "sandboxes")]
    Sandbox(remote::Sandbox),
    /// Check this installation and report problems.
    Doctor(Doctor),
    /// Back up the data folder as of one moment, also while a server uses it.
    Backup(Backup),
    /// Restore a data folder from a backup.
    Restore(Restore),
    /// Show and check the settings.
    Config(ConfigCommand),
    /// Measure this machine, compared with the same work without Towpath.
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
    /// Configuration file [default: $TOWPATH_CONFIG, else towpath.toml if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Folder for all data kept on this machine [default: .towpath]
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
    /// Log level, as in info or info,towpath_durable=debug [default: info,apalis_core=warn,sqlx=warn]
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
        Inputs::from_process(mode, flags, self.config.clone())
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
    /// Keep all data in this folder instead of a temporary one that is removed at the end.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Log level.
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
    /// The file that declares the agent server's graphs [default: langgraph.json or towpath.json of this folder if it
    /// exists, else one graph that echoes]
    #[arg(long, value_name = "FILE")]
    pub graphs: Option<PathBuf>,
    /// Require an API key from callers of the agent server, also on loopback
    #[arg(long)]
    pub agent_auth: bool,
    /// Rate limits of one caller: us or eu, as on the hosted platform, or a file with rules [default: off]
    #[arg(long, value_name = "us|eu|FILE")]
    pub limits: Option<String>,
}

/// `towpath agent`
#[derive(Debug, Args)]
pub struct Agent {
    /// The file that declares the graphs [default: langgraph.json or towpath.json of this folder if it exists, else one
    /// graph that echoes]
    #[arg(long, visible_alias = "graphs", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen address [default: 127.0.0.1:8123]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Roles of this process, separated by commas. Several processes need PostgreSQL.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1.., default_value = "all")]
    pub role: Vec<Role>,
    /// Require an API key from callers, also on loopback
    #[arg(long)]
    pub agent_auth: bool,
    /// Configuration file of Towpath itself [default: $TOWPATH_CONFIG, else towpath.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Folder for all data kept on this machine [default: .towpath]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Log level, as in info or info,towpath_durable=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Load the graphs, then wait for SIGUSR1 before opening the database, to replace a server that uses it
    #[arg(long)]
    pub standby: bool,
    /// Create the environment of Python graphs and exit, for image builds
    #[arg(long)]
    pub prepare: bool,
    /// With --prepare: write the path of the environment to this file, outside of image builds
    #[arg(long, value_name = "FILE", requires = "prepare")]
    pub environment_file: Option<PathBuf>,
    /// Write the listen address to this file once the server listens, for port 0
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,
    /// Write a line to standard output once the server listens, to tell it from another server at that address
    #[arg(long)]
    pub tell_listening: bool,
    /// Drain and stop when standard input ends, for example because the parent process was killed
    #[arg(long)]
    pub while_stdin_is_open: bool,
}

/// `towpath enter`
#[derive(Debug, Args)]
pub struct Enter {
    /// The cgroup.procs of each group
    #[arg(long = "group", value_name = "FILE")]
    pub groups: Vec<PathBuf>,
    /// Run as this user, in a cell
    #[arg(long, value_name = "ID", requires = "temporary", value_parser = clap::value_parser!(u32).range(1..))]
    pub user: Option<u32>,
    /// The folder that is /tmp in the cell
    #[arg(long, value_name = "FOLDER", requires = "user")]
    pub temporary: Option<PathBuf>,
    /// Path that is empty in the cell
    #[arg(long = "cover", value_name = "PATH", requires = "user")]
    pub covers: Vec<PathBuf>,
    /// Path that is visible in the cell, read-only
    #[arg(long, value_name = "PATH", requires = "user")]
    pub readable: Vec<PathBuf>,
    /// Path that is visible in the cell
    #[arg(long, value_name = "PATH", requires = "user")]
    pub writable: Vec<PathBuf>,
    /// Folder whose changes are written to --over
    #[arg(long, value_name = "FOLDER", requires = "over")]
    pub layer: Option<PathBuf>,
    /// Folder for the changes of --layer
    #[arg(long, value_name = "FOLDER", requires = "layer")]
    pub over: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `towpath copy-data`
#[derive(Debug, Args)]
pub struct CopyData {
    /// Data folder of an agent server.
    #[arg(value_name = "FOLDER")]
    pub from: PathBuf,
    /// Target of the copy.
    #[arg(value_name = "TO")]
    pub to: PathBuf,
}

/// `towpath cron`
#[derive(Debug, Args)]
pub struct Cron {
    /// Five fields: minute, hour, day of month, month, day of week.
    pub schedule: String,
    /// IANA name of the time zone of the fields.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub timezone: String,
    /// Begin after this time [default: now]
    #[arg(long, value_name = "TIME")]
    pub after: Option<towpath_domain::Timestamp>,
    /// Number of times to print.
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
    /// Roles of this process, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', required = true, num_args = 1..)]
    pub role: Vec<Role>,
    /// Address of the API, else of health and metrics [default: 127.0.0.1:8400; worker 8401, scheduler 8402]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Rate limits of one caller: us or eu, as on the hosted platform, or a file with rules [default: off]
    #[arg(long, value_name = "us|eu|FILE")]
    pub limits: Option<String>,
}

/// What a process of a cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Answers HTTP.
    Api,
    /// Performs jobs.
    Worker,
    /// Handles time: due jobs, dead leases, deadlines.
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

/// `towpath migrate-store`
#[derive(Debug, Args)]
pub struct MigrateStore {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// The data folder of the installation, or one database file as sqlite:///path
    #[arg(long, value_name = "DIR|URL")]
    pub from: String,
    /// Address of an empty PostgreSQL database [default: $DATABASE_URI]
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// Address of another empty database, for the agent server of towpath dev
    #[arg(long, value_name = "URL")]
    pub agent_to: Option<String>,
    /// Leave the database of the agent server where it is
    #[arg(long, conflicts_with = "agent_to")]
    pub without_agent: bool,
    /// Store U+FFFD instead of the character NUL, which PostgreSQL refuses in text
    #[arg(long)]
    pub replace_nul: bool,
}

/// `towpath doctor`
#[derive(Debug, Args)]
pub struct Doctor {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// The command whose settings are used; a few defaults differ.
    #[arg(long = "for", value_enum, default_value_t = ConfigTarget::Dev)]
    pub command_of: ConfigTarget,
    /// Also check this server
    #[arg(long, value_name = "URL", env = "TOWPATH_SERVER")]
    pub server: Option<String>,
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
    /// A folder that does not exist yet; its parents are created, too
    #[arg(value_name = "DIR")]
    pub to: PathBuf,
    /// Leave the encryption key and the first API key out; without the encryption key nothing can be restored
    #[arg(long)]
    pub without_keys: bool,
    /// Leave deployments out, if another machine has their databases
    #[arg(long)]
    pub without_deployments: bool,
}

/// `towpath restore`
#[derive(Debug, Args)]
pub struct Restore {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// A folder created by `towpath backup`.
    #[arg(value_name = "DIR")]
    pub from: PathBuf,
}

/// `towpath completions`
#[derive(Debug, Args)]
pub struct Completions {
    /// Its completions are printed.
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
