//! `towpath exports`

use std::io::IsTerminal as _;

use anyhow::{anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::client::Client;
use super::print;
use super::retry::{POLL_INTERVAL, retry_while_unavailable};
use crate::arguments::Output;
use crate::arguments::remote::{ExportsCommand, NewExport};

const PATH: &str = "/api/v1/bulk-exports";

pub async fn run(client: &Client, command: ExportsCommand, output: Output) -> anyhow::Result<()> {
    match command {
        ExportsCommand::Ls { limit } => {
            let answer = client.get(PATH, &[("limit", limit.to_string())]).await?;
            match output {
                Output::Json => print::json(&answer),
                Output::Table => table(answer.as_array().into_iter().flatten()),
            }
        }
        ExportsCommand::Show { export } => show(client, &export.to_string(), output).await?,
        ExportsCommand::Create(new) => create(client, new, output).await?,
        ExportsCommand::Cancel { export } => {
            let cancelled = client
                .patch(&format!("{PATH}/{export}"), &json!({"status": "Cancelled"}))
                .await?;
            match output {
                Output::Json => print::json(&cancelled),
                Output::Table => table([&cancelled]),
            }
        }
    }
    Ok(())
}

async fn create(client: &Client, new: NewExport, output: Output) -> anyhow::Result<()> {
    let mut body = json!({
        "bulk_export_destination_id": new.destination,
        "session_id": project(client, &new.project).await?,
        "start_time": new.start,
    });
    if let Some(end) = new.end {
        body["end_time"] = end.into();
    }
    if let Some(hours) = new.every {
        body["interval_hours"] = hours.into();
    }
    if let Some(version) = new.format_version {
        body["format_version"] = version.into();
    }
    if let Some(compression) = new.compression {
        body["compression"] = compression.into();
    }
    if !new.fields.is_empty() {
        body["export_fields"] = new.fields.into();
    }
    let export = client.post(PATH, Some(&body)).await?;
    let id = print::text(&export["id"]);
    if !new.wait {
        match output {
            Output::Json => print::json(&export),
            Output::Table if new.every.is_some() => {
                println!("schedule {id} is created; stop it with: towpath exports cancel {id}");
            }
            Output::Table => println!("export {id} is created; follow it with: towpath exports show {id}"),
        }
        return Ok(());
    }
    let ended = wait(client, &id).await?;
    show(client, &id, output).await?;
    match ended["status"].as_str() {
        Some("COMPLETED") => Ok(()),
        status => bail!(
            "the export ended {}{}",
            status.unwrap_or("otherwise"),
            ended["error"]
                .as_str()
                .map(|why| format!(": {why}"))
                .unwrap_or_default()
        ),
    }
}

/// Shows progress until the export ends. Uses standard error, because standard output may be piped.
async fn wait(client: &Client, id: &str) -> anyhow::Result<Value> {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{msg:>10} [{bar:40}] {pos}/{len} days  {prefix}")
        .expect("the template is fixed and valid")
        .progress_chars("=> ");
    let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style);
    let path = format!("{PATH}/{id}");
    let path_of_runs = format!("{path}/runs");
    loop {
        let export = retry_while_unavailable(async || client.get(&path, &[]).await).await?;
        let runs = retry_while_unavailable(async || client.get(&path_of_runs, &[]).await).await?;
        let runs = runs.as_array().map(Vec::as_slice).unwrap_or_default();
        let over = runs.iter().filter(|run| !run["finished_at"].is_null()).count();
        let sum = |name: &str| -> u64 {
            let each = runs
                .iter()
                .map(|run| run["metadata"]["result"][name].as_u64().unwrap_or(0));
            each.sum()
        };
        bar.set_length(runs.len() as u64);
        bar.set_position(over as u64);
        bar.set_message(export["status"].as_str().unwrap_or_default().to_lowercase());
        bar.set_prefix(format!(
            "{} trace runs, {}",
            crate::demo::grouped(sum("rows_written")),
            indicatif::HumanBytes(sum("bytes_written"))
        ));
        if !export["finished_at"].is_null() {
            bar.finish_and_clear();
            return Ok(export);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The id of a project by its name or id.
async fn project(client: &Client, given: &str) -> anyhow::Result<String> {
    if given.parse::<Uuid>().is_ok() {
        return Ok(given.to_owned());
    }
    let found = client.get("/api/v1/sessions", &[("name", given.to_owned())]).await?;
    found[0]["id"]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| anyhow!("there is no tracing project of that name in this workspace"))
}

async fn show(client: &Client, id: &str, output: Output) -> anyhow::Result<()> {
    let mut export = client.get(&format!("{PATH}/{id}"), &[]).await?;
    let runs = client.get(&format!("{PATH}/{id}/runs"), &[]).await?;
    if output == Output::Json {
        export["runs"] = runs;
        print::json(&export);
        return Ok(());
    }
    let names = [
        "id",
        "status",
        "session_id",
        "bulk_export_destination_id",
        "start_time",
        "end_time",
        "interval_hours",
        "source_bulk_export_id",
        "format_version",
        "compression",
        "export_fields",
        "created_at",
        "finished_at",
        "error",
    ];
    print::facts(&export, &names);
    let missing = export["metadata"]["result"]["missing_operations"].as_u64();
    if let Some(missing) = missing.filter(|missing| *missing > 0) {
        println!(
            "\n{missing} accepted operations may be missing from it: they could not be flushed when \
             the export was planned"
        );
    }
    let runs = runs.as_array().map(Vec::as_slice).unwrap_or_default();
    if runs.is_empty() {
        return Ok(());
    }
    println!();
    let rows = runs.iter().map(|run| {
        let result = &run["metadata"]["result"];
        let last = run["errors"].as_object().and_then(last_error);
        [
            print::text(&run["start_time"]).chars().take(10).collect(),
            print::text(&run["status"]),
            print::text(&result["rows_written"]),
            print::text(&result["bytes_written"]),
            print::text(&result["files_written"]),
            print::text(&run["retry_number"]),
            last.map(print::short).unwrap_or_default(),
        ]
    });
    print::table(
        ["day", "status", "trace runs", "bytes", "files", "retries", "last error"],
        rows,
        "",
    );
    Ok(())
}

/// The error of the latest attempt: `retry_10` comes after `retry_9`, despite the order of the letters.
fn last_error(errors: &Map<String, Value>) -> Option<&Value> {
    let number = |name: &str| name.rsplit('_').next().and_then(|n| n.parse::<u32>().ok());
    errors
        .iter()
        .max_by_key(|(name, _)| number(name))
        .map(|(_, error)| error)
}

fn table<'a>(exports: impl IntoIterator<Item = &'a Value>) {
    let rows = exports.into_iter().map(|export| {
        [
            print::text(&export["id"]),
            print::text(&export["status"]),
            print::text(&export["session_id"]),
            print::moment(&export["start_time"]),
            print::moment(&export["end_time"]),
            print::moment(&export["created_at"]),
            print::moment(&export["finished_at"]),
            print::short(&export["error"]),
        ]
    });
    let header = [
        "export", "status", "project", "from", "to", "recorded", "ended", "error",
    ];
    print::table(header, rows, "there are no exports in this workspace");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_attempt_is_the_one_of_the_highest_number() {
        let errors = json!({"retry_0": "first", "retry_10": "last", "retry_2": "third", "retry_9": "tenth"});
        assert_eq!(last_error(errors.as_object().unwrap()), Some(&json!("last")));
        assert_eq!(last_error(&Map::new()), None);
    }
}
