//! Commands that talk to a running server over HTTP, as any REST client would.

mod client;
mod deployments;
mod destinations;
mod exports;
mod jobs;
mod limits;
pub mod print;
mod quarantine;
mod queues;
mod retry;
mod revisions;
mod sandbox;
mod schedules;
mod workers;

pub use client::Client;

use crate::arguments::remote::{
    Dead, Deployments, Destinations, Exports, Jobs, Limits, Queues, Revisions, Sandbox, Schedules, Traces,
    TracesCommand, Workers,
};

pub async fn queues(command: Queues) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    queues::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn jobs(command: Jobs) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    jobs::run(&client, command.command, command.server.output).await
}

pub async fn dead(command: Dead) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    jobs::dead(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn workers(command: Workers) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    workers::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn limits(command: Limits) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    limits::run(&client, command.all, command.server.output).await
}

pub async fn schedules(command: Schedules) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    schedules::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn exports(command: Exports) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    exports::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn destinations(command: Destinations) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    destinations::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn deployments(command: Deployments) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    deployments::run(&client, command.command.unwrap_or_default(), command.server.output).await
}

pub async fn revisions(command: Revisions) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    revisions::run(&client, command.command, command.server.output).await
}

pub async fn sandbox(command: Sandbox) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    let output = command.output();
    sandbox::run(&client, command.command.unwrap_or_default(), output).await
}

pub async fn traces(command: Traces) -> anyhow::Result<()> {
    let TracesCommand::Quarantine(command) = command.command;
    let client = Client::new(&command.server)?;
    let (tenant, output) = (command.server.tenant, command.output());
    quarantine::run(&client, command.command.unwrap_or_default(), tenant, output).await
}
