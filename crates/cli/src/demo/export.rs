//! Creates a destination and an export, and waits for the export.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::client::Client;
use super::ingest::SentRuns;
use super::progress::Progress;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub struct Export {
    pub id: String,
    /// Id of the project.
    pub session: String,
    /// Path below the folder of `file` destinations.
    pub prefix: String,
}

impl Export {
    pub fn folder(&self, file_root: &Path) -> PathBuf {
        file_root.join(&self.prefix).join(format!("export_id={}", self.id))
    }
}

/// Exports what was sent and waits for the end. Fails unless the export ends as COMPLETED.
pub async fn make(client: &Client, sent: &SentRuns) -> anyhow::Result<Export> {
    let prefix = "demo".to_owned();
    let sessions = client.get(&format!("/api/v1/sessions?name={}", sent.project)).await?;
    let session = text(&sessions[0], "id").context("the project created by ingest")?;
    let destination = json!({ "destination_type": "file", "display_name": "demo", "config": { "prefix": prefix } });
    let destination = text(
        &client.post("/api/v1/bulk-exports/destinations", &destination).await?,
        "id",
    )?;
    let progress = Progress::start("exporting", "exported", sent.runs);
    let export = json!({
        "bulk_export_destination_id": destination,
        "session_id": session,
        "start_time": sent.from,
        "end_time": sent.until,
    });
    let id = text(&client.post("/api/v1/bulk-exports", &export).await?, "id")?;
    follow(client, &id, &progress).await?;
    progress.finish();
    Ok(Export { id, session, prefix })
}

async fn follow(client: &Client, id: &str, progress: &Progress) -> anyhow::Result<()> {
    loop {
        let runs = client.get(&format!("/api/v1/bulk-exports/{id}/runs")).await?;
        progress.set(
            runs.as_array()
                .into_iter()
                .flatten()
                .filter_map(|run| run["rows_exported"].as_u64())
                .sum(),
        );
        let status = text(&client.get(&format!("/api/v1/bulk-exports/{id}")).await?, "status")?;
        match status.as_str() {
            "COMPLETED" => return Ok(()),
            "CREATED" | "RUNNING" => tokio::time::sleep(POLL_INTERVAL).await,
            ended => {
                let errors: Vec<String> = runs
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|run| run["errors"].to_string())
                    .collect();
                bail!("the export ended as {ended}: {}", errors.join(" "));
            }
        }
    }
}

fn text(value: &Value, field: &str) -> anyhow::Result<String> {
    value[field]
        .as_str()
        .map(str::to_owned)
        .with_context(|| format!("no {field} in {value}"))
}
