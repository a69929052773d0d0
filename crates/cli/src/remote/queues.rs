//! `towpath queues`

use serde_json::Value;

use super::client::{Client, segment};
use super::print;
use super::retry::{POLL_INTERVAL, retry_while_unavailable};
use crate::arguments::Output;
use crate::arguments::remote::QueuesCommand;

pub async fn run(client: &Client, command: QueuesCommand, output: Output) -> anyhow::Result<()> {
    match command {
        QueuesCommand::Ls => {
            let answer = client.get("/internal/queues", &[]).await?;
            match output {
                Output::Json => print::json(&answer["items"]),
                Output::Table => table(answer["items"].as_array().into_iter().flatten()),
            }
            return Ok(());
        }
        QueuesCommand::Show { pool } => show(&client.get(&path(&pool, ""), &[]).await?, output),
        QueuesCommand::Pause { pool } => show(&client.post(&path(&pool, "/pause"), None).await?, output),
        QueuesCommand::Resume { pool } => show(&client.post(&path(&pool, "/resume"), None).await?, output),
        QueuesCommand::Drain { pool, wait } => {
            let mut queue = client.post(&path(&pool, "/drain"), None).await?;
            while wait && queue["status"] == "draining" {
                tokio::time::sleep(POLL_INTERVAL).await;
                queue = retry_while_unavailable(async || client.get(&path(&pool, ""), &[]).await).await?;
            }
            show(&queue, output);
        }
    }
    Ok(())
}

fn path(pool: &str, action: &str) -> String {
    format!("/internal/queues/{}{action}", segment(pool))
}

fn show(queue: &Value, output: Output) {
    match output {
        Output::Json => print::json(queue),
        Output::Table => table([queue]),
    }
}

fn table<'a>(queues: impl IntoIterator<Item = &'a Value>) {
    let rows = queues.into_iter().map(|queue| {
        [
            print::text(&queue["pool"]),
            print::text(&queue["status"]),
            print::text(&queue["ready"]),
            print::age(&queue["oldest_ready_age_seconds"]),
            print::text(&queue["running"]),
            print::text(&queue["waiting"]),
            print::text(&queue["blocked"]),
            print::text(&queue["scheduled"]),
            print::text(&queue["workers"]),
            print::text(&queue["slots"]),
        ]
    });
    let header = [
        "pool",
        "status",
        "ready",
        "oldest",
        "running",
        "waiting",
        "blocked",
        "scheduled",
        "workers",
        "slots",
    ];
    print::table(
        header,
        rows,
        "there are no pools yet: no job was recorded and no worker is running",
    );
}
