//! `towpath schedules`

use serde_json::Value;

use super::client::Client;
use super::print;
use crate::arguments::Output;
use crate::arguments::remote::SchedulesCommand;

/// Larger than any real number of schedules.
const MOST: u64 = 10_000;
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

pub async fn run(client: &Client, command: SchedulesCommand, output: Output) -> anyhow::Result<()> {
    let schedules = match command {
        SchedulesCommand::Ls => client.list("/internal/schedules", &[], MOST).await?,
        SchedulesCommand::Pause { schedule } => {
            vec![
                client
                    .post(&format!("/internal/schedules/{schedule}/pause"), None)
                    .await?,
            ]
        }
        SchedulesCommand::Resume { schedule } => {
            vec![
                client
                    .post(&format!("/internal/schedules/{schedule}/resume"), None)
                    .await?,
            ]
        }
    };
    if output == Output::Json {
        print::json(&Value::Array(schedules));
        return Ok(());
    }
    let rows = schedules.iter().map(|schedule| {
        [
            print::text(&schedule["id"]),
            print::text(&schedule["kind"]),
            // Schedules of the installation have no workspace.
            print::text(&schedule["tenant_id"]).replace(NOBODY, "-"),
            print::moment(&schedule["next_at"]),
            if schedule["paused"] == true { "paused" } else { "active" }.to_owned(),
            print::text(&schedule["spawn_job"]),
        ]
    });
    let header = ["schedule", "kind", "workspace", "next", "status", "spawn job"];
    print::table(header, rows, "there are no schedules");
    Ok(())
}
