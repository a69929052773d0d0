//! `towpath bench`: measurements of this machine, compared with the same work without Towpath in the same run.

mod agent;
mod client;
mod closed_loop;
mod comparison;
mod cores;
mod database;
mod deploy;
mod dispatch;
mod engine;
mod export;
mod ingest;
mod limits;
mod overload;
mod process;
mod python;
mod report;
mod runs;
#[cfg(target_os = "linux")]
mod sandbox;
mod server;
mod soak;
mod threads;
mod workload;

use crate::arguments::{Bench, BenchCommand};

pub async fn run(command: Bench) -> anyhow::Result<()> {
    match command.command {
        BenchCommand::Agent(options) => agent::run(&options).await,
        BenchCommand::Deploy(options) => deploy::run(&options).await,
        BenchCommand::Dispatch(options) => dispatch::run(&options).await,
        BenchCommand::DispatchWorker => dispatch::work().await,
        BenchCommand::Engine(options) => engine::run(&options).await,
        BenchCommand::Overload(options) => overload::run(&options).await,
        BenchCommand::Export(options) => export::run(&options).await,
        BenchCommand::Ingest(options) => ingest::run(&options).await,
        BenchCommand::Threads(options) => threads::run(&options).await,
        #[cfg(target_os = "linux")]
        BenchCommand::Sandbox(options) => sandbox::run(&options).await,
        #[cfg(not(target_os = "linux"))]
        BenchCommand::Sandbox(_) => anyhow::bail!("sandboxes need Linux"),
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
