//! `towpath workers`

use anyhow::bail;
use serde_json::Value;

use super::client::Client;
use super::print;
use super::retry::{POLL_INTERVAL, retry_while_unavailable};
use crate::arguments::Output;
use crate::arguments::remote::WorkersCommand;

pub async fn run(client: &Client, command: WorkersCommand, output: Output) -> anyhow::Result<()> {
    match command {
        WorkersCommand::Ls => {
            let answer = client.get("/internal/workers", &[]).await?;
            match output {
                Output::Json => print::json(&answer["items"]),
                Output::Table => table(answer["items"].as_array().into_iter().flatten()),
            }
        }
        WorkersCommand::Drain { worker, wait } => {
            let id = worker.to_string();
            let mut told = client.post(&format!("/internal/workers/{id}/drain"), None).await?;
            while wait && told["status"] == "draining" {
                tokio::time::sleep(POLL_INTERVAL).await;
                let answer = retry_while_unavailable(async || client.get("/internal/workers", &[]).await).await?;
                let found = answer["items"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|worker| worker["id"] == id.as_str());
                match found {
                    Some(worker) => told = worker.clone(),
                    // It was stopped meanwhile.
                    None => told["status"] = "gone".into(),
                }
            }
            match output {
                Output::Json => print::json(&told),
                Output::Table => table([&told]),
            }
            if told["status"] == "silent" {
                bail!("the worker does not respond: other workers get its jobs when its lease expires");
            }
        }
        WorkersCommand::Resume { worker } => {
            let told = client.post(&format!("/internal/workers/{worker}/resume"), None).await?;
            match output {
                Output::Json => print::json(&told),
                Output::Table => table([&told]),
            }
        }
    }
    Ok(())
}

fn table<'a>(workers: impl IntoIterator<Item = &'a Value>) {
    let rows = workers.into_iter().map(|worker| {
        [
            print::text(&worker["id"]),
            print::text(&worker["status"]),
            format!("{}:{}", print::text(&worker["host"]), print::text(&worker["pid"])),
            print::text(&worker["pools"]),
            print::text(&worker["running"]),
            print::moment(&worker["started_at"]),
            print::moment(&worker["seen_at"]),
            print::text(&worker["version"]),
        ]
    });
    let header = [
        "worker",
        "status",
        "process",
        "slots",
        "running jobs",
        "started",
        "seen",
        "version",
    ];
    print::table(
        header,
        rows,
        "there are no workers; start one with: towpath serve --role worker",
    );
}
