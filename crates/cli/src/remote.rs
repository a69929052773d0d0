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
mod schedules;
mod workers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use arguments::{
    Dead, Deployments, Destinations, Exports, Jobs, Limits, Queues, Revisions, Schedules, Traces, TracesCommand,
    Workers,
};
pub use client::Client;

use crate::exit::Unreachable;

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(500);
/// How long a server may be away while something is waited for: as long as a restart takes.
const AWAY: Duration = Duration::from_secs(60);

/// Asks about something that is waited for. While the server is away what it does goes on, so it is asked again, for a
/// minute from the first failure.
///
/// # Errors
/// What the server refuses, and when it stays away.
async fn patiently<T>(ask: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut since: Option<Instant> = None;
    loop {
        let answer = ask().await;
        let Err(why) = &answer else { return answer };
        if !why.is::<Unreachable>() || since.get_or_insert_with(Instant::now).elapsed() >= AWAY {
            return answer;
        }
        tokio::time::sleep(LOOK).await;
    }
}

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

/// `towpath limits`
///
/// # Errors
/// What the server refuses, and when it cannot be reached.
pub async fn limits(command: Limits) -> anyhow::Result<()> {
    let client = Client::new(&command.server)?;
    limits::run(&client, command.all, command.server.output).await
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_server_that_comes_back_is_asked_again() {
        let asked = Cell::new(0);
        let answer = patiently(async || {
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
        let refused = patiently(async || {
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
