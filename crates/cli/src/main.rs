//! The binary: configuration, wiring and signals.

#![expect(
    clippy::print_stdout,
    reason = "a command talks to people and programs through its output"
)]

mod agent;
mod arguments;
mod backup;
mod bench;
mod config;
mod config_command;
mod cron;
mod data_dir;
mod demo;
mod dev;
mod doctor;
mod enter;
mod exit;
mod first_key;
mod graph_file;
mod graph_hosting;
mod keys;
mod migrate;
mod migrate_store;
mod reload;
mod remote;
mod serve;
mod shell;
mod signals;
mod storage;
mod telemetry;
mod threads;
mod tls;
mod wiring;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Command};
use threads::Threads;

/// Handles short-lived buffers of many sizes on many threads (bodies in, Parquet out) better than the system's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before any thread starts: these commands become the first processes of a sandbox.
    #[cfg(target_os = "linux")]
    if let Some(code) = towpath_sandbox::program::run(std::env::args_os().skip(1)) {
        return code;
    }
    // There is one TLS provider; it must be installed before any connection is opened.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("error: a TLS provider was installed already");
        return ExitCode::FAILURE;
    }
    exit::exit_when_pipe_closed();
    let arguments = Arguments::parse();
    // The new program gets no secrets of the platform.
    if !matches!(arguments.command, Command::Enter(_)) {
        hide_memory();
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// Keeps other processes of this user, among them users' code, from reading the memory and environment of this one, and
/// the kernel from writing them into a core file.
fn hide_memory() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        eprintln!("warning: other processes of this user can read the memory and environment of this one: {error}");
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Config(command) => config_command::run(&command),
        Command::Version(command) => version(command.output),
        Command::Demo(command) => block_on(demo::run(command)),
        Command::Dev(command) => block_on(dev::run(command)),
        Command::Serve(command) => block_on(serve::run(command)),
        Command::Agent(command) => agent::run(command),
        Command::Enter(command) => enter::run(command),
        Command::CopyData(command) => block_on(backup::copy_data(command)),
        Command::Cron(command) => cron::run(&command),
        Command::Migrate(command) => block_on(migrate::run(command)),
        Command::MigrateStore(command) => block_on(migrate_store::run(command)),
        Command::Keys(command) => block_on(keys::run(command)),
        Command::Queues(command) => block_on(remote::queues(command)),
        Command::Jobs(command) => block_on(remote::jobs(command)),
        Command::Dead(command) => block_on(remote::dead(command)),
        Command::Workers(command) => block_on(remote::workers(command)),
        Command::Limits(command) => block_on(remote::limits(command)),
        Command::Schedules(command) => block_on(remote::schedules(command)),
        Command::Exports(command) => block_on(remote::exports(command)),
        Command::Destinations(command) => block_on(remote::destinations(command)),
        Command::Traces(command) => block_on(remote::traces(command)),
        Command::Deployments(command) => block_on(remote::deployments(command)),
        Command::Revisions(command) => block_on(remote::revisions(command)),
        Command::Sandbox(command) => block_on(remote::sandbox(command)),
        Command::Doctor(command) => block_on(doctor::run(command)),
        Command::Backup(command) => block_on(backup::create(command)),
        Command::Restore(command) => block_on(backup::restore(command)),
        Command::Completions(command) => shell::completions(&command),
        Command::Man(command) => shell::man(&command),
        Command::Bench(command) => block_on(bench::run(command)),
    }
}

fn block_on(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    threads::block_on(Threads::AllProcessors, command)
}

fn version(output: arguments::Output) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    match output {
        arguments::Output::Table => println!("towpath {version}"),
        arguments::Output::Json => println!("{}", serde_json::json!({ "name": "towpath", "version": version })),
    }
    Ok(())
}
