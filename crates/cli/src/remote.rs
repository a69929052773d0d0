//! Commands that talk to a running server over HTTP, as any REST client would.

pub mod arguments;
mod client;
mod deployments;
mod destinations;
mod exports;
mod jobs;
pub mod print;
mod quarantine;
mod queues;
mod revisions;
mod schedules;
mod workers;

use std::path::PathBuf;
use std::time::Duration;

pub use arguments::{
    Dead, Deployments, Destinations, Exports, Jobs, Queues, Revisions, Schedules, Traces, TracesCommand, Workers,
};
pub use client::Client;

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(500);

/// `towpath queues`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn queues(command: Queues) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    queues::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath jobs`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn jobs(command: Jobs) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    jobs::run(&client, command.command, command.server.output).await
}

/// `towpath dead`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn dead(command: Dead) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    jobs::dead(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath workers`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn workers(command: Workers) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    workers::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath schedules`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn schedules(command: Schedules) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    schedules::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath exports`
///
/// # Errors
/// What the server refuses, when it cannot be reached, and an export that was waited for and did not complete.
pub async fn exports(command: Exports) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    exports::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath destinations`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn destinations(command: Destinations) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    destinations::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath deployments`
///
/// # Errors
/// What the server refuses, when it cannot be reached, and a revision that was waited for and is not deployed.
pub async fn deployments(command: Deployments) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    deployments::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

/// `towpath revisions`
///
/// # Errors
/// What the server refuses, when it cannot be reached, and a revision that was waited for and is not deployed.
pub async fn revisions(command: Revisions) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    revisions::run(&client, command.command, command.server.output).await
}

/// `towpath traces`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn traces(command: Traces) -> anyhow::Result<()> {
    let TracesCommand::Quarantine(command) = command.command;
    let client = Client::new(&command.server)?;
    let (tenant, output) = (command.server.tenant, command.output());
    quarantine::run(&client, command.command.unwrap_or_default(), tenant, output).await
}

/// Where `towpath dev` keeps its first key, by default.
fn key_file(data_dir: Option<&PathBuf>) -> PathBuf {
    data_dir.cloned().unwrap_or_else(|| ".towpath".into()).join("api.key")
}
