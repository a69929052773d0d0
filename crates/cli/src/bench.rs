//! `towpath bench`: what this machine does, beside what the same work costs by hand in the same run.

mod agent;
mod client;
mod closed;
mod cores;
mod database;
mod deploy;
mod engine;
mod export;
mod ingest;
mod limits;
mod overload;
mod peer;
mod process;
mod python;
mod report;
mod runs;
mod server;
mod soak;
mod threads;
mod workload;

use crate::arguments::{Bench, BenchCommand};

/// Runs a benchmark and prints its table.
///
/// # Errors
/// When a database cannot be made, a measurement loses a job, or a bound is not kept.
pub async fn run(command: Bench) -> anyhow::Result<()> {
    match command.command {
        BenchCommand::Agent(options) => agent::run(&options).await,
        BenchCommand::Deploy(options) => deploy::run(&options).await,
        BenchCommand::Engine(options) => engine::run(&options).await,
        BenchCommand::Overload(options) => overload::run(&options).await,
        BenchCommand::Export(options) => export::run(&options).await,
        BenchCommand::Ingest(options) => ingest::run(&options).await,
        BenchCommand::Threads(options) => threads::run(&options).await,
        BenchCommand::Limits(options) => limits::run(&options).await,
        BenchCommand::Soak(options) => {
            let plan = soak::Plan::new(options.jobs, options.lanes, options.days)?;
            let database = match options.database {
                None => soak::Database::Sqlite { folder: options.keep },
                Some(server) => soak::Database::Postgres {
                    server,
                    name: options.database_name,
                },
            };
            soak::run(&database, &plan, options.output).await
        }
    }
}
