//! Commands that talk to a running server over HTTP, as any REST client would.

pub mod arguments;
mod client;
mod deployments;
mod destinations;
mod exports;
mod jobs;
mod limits;
pub mod print;
mod quarantine;
mod queues;
mod revisions;
mod sandbox;
mod schedules;
mod workers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use arguments::{
    Dead, Deployments, Destinations, Exports, Jobs, Limits, Queues, Revisions, Sandbox, Schedules, Traces,
    TracesCommand, Workers,
};
pub use client::Client;

use crate::exit::Unreachable;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a server may be unavailable during a wait: the time of a restart.
const MAX_OUTAGE: Duration = Duration::from_secs(60);

/// Polls for a result. The server's work continues while the server is unavailable, so failures are retried for a
/// minute from the first one.
async fn retry_while_unavailable<T>(ask: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut since: Option<Instant> = None;
    loop {
        let answer = ask().await;
        let Err(why) = &answer else { return answer };
        if !why.is::<Unreachable>() || since.get_or_insert_with(Instant::now).elapsed() >= MAX_OUTAGE {
            return answer;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

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

/// Default path of the first key of `towpath dev`.
fn key_file(data_dir: Option<&PathBuf>) -> PathBuf {
    data_dir.cloned().unwrap_or_else(|| ".towpath".into()).join("api.key")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_server_that_comes_back_is_asked_again() {
        let asked = Cell::new(0);
        let answer = retry_while_unavailable(async || {
            asked.set(asked.get() + 1);
            if asked.get() == 1 {
                Err(anyhow::Error::from(Unreachable("the connection broke".into())))
            } else {
                Ok("deployed")
            }
        })
        .await;
        assert_eq!((answer.unwrap(), asked.get()), ("deployed", 2));
    }

    #[tokio::test]
    async fn a_refusal_is_final() {
        let asked = Cell::new(0);
        let refused = retry_while_unavailable(async || {
            asked.set(asked.get() + 1);
            Err::<(), _>(anyhow::anyhow!("revision not found"))
        })
        .await;
        assert_eq!(
            (refused.unwrap_err().to_string(), asked.get()),
            ("revision not found".to_owned(), 1)
        );
    }
}
