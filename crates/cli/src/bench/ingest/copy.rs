//! The same trace runs with PostgreSQL's COPY.

use anyhow::Context as _;
use serde_json::json;
use towpath_store::baseline::{self, CopyResult, CopyWriters};

use super::bodies::extra;
use crate::bench::report::Report;
use crate::bench::runs::Runs;

/// Name of its row in the report.
pub const NAME: &str = "PostgreSQL, COPY";

/// Trace runs of one COPY, which is one transaction.
const TRANSACTION: u64 = 1000;
/// Copies rendered before the measurement.
const AHEAD: u64 = 40;

pub async fn measure(server: &str, runs: &Runs, rows: u64, report: &mut Report) -> anyhow::Result<()> {
    let name = format!("towpath_bench_{}", std::process::id());
    let uri = baseline::make_database(server, &name)
        .await
        .context("creating a database for the benchmark")?;
    let copied = copy(&uri, runs, rows).await;
    baseline::drop_database(server, &name)
        .await
        .context("dropping the benchmark's database")?;
    let copied = copied.context("copying into PostgreSQL")?;
    report.note(NAME, rows as f64 / copied.took.as_secs_f64(), "runs/s");
    report.note(
        format!("{NAME}: on disk"),
        copied.bytes as f64 / rows as f64,
        "bytes/run",
    );
    Ok(())
}

async fn copy(uri: &str, runs: &Runs, rows: u64) -> anyhow::Result<CopyResult> {
    let connections = std::thread::available_parallelism().map_or(1, usize::from);
    let mut copies = CopyWriters::open(uri, connections).await?;
    for first in (0..rows).step_by(usize::try_from(TRANSACTION * AHEAD)?) {
        let last = (first + TRANSACTION * AHEAD).min(rows);
        let texts = (first..last)
            .step_by(usize::try_from(TRANSACTION)?)
            .map(|from| text(runs, from, (from + TRANSACTION).min(last)));
        copies.copy(texts.collect()).await?;
    }
    Ok(copies.finish().await?)
}

/// Rows in the format of COPY, in the order of the table's columns.
fn text(runs: &Runs, from: u64, to: u64) -> Vec<u8> {
    let mut text = String::new();
    for index in from..to {
        let post = runs.post(index);
        let fields = &post.fields;
        let values = [
            Some(post.id.to_string()),
            fields.trace_id.map(|id| id.to_string()),
            fields.parent_run_id.map(|id| id.to_string()),
            fields.dotted_order.clone(),
            fields.name.clone(),
            fields.run_type.clone(),
            fields.start_time.map(|time| time.to_string()),
            fields.end_time.map(|time| time.to_string()),
            fields.error.clone(),
            Some(json!(fields.tags).to_string()),
            fields.inputs.clone(),
            fields.outputs.clone(),
            fields.events.clone(),
            Some(extra(fields)),
        ];
        for (at, value) in values.into_iter().enumerate() {
            if at > 0 {
                text.push('\t');
            }
            match value {
                None => text.push_str("\\N"),
                Some(value) => value.chars().for_each(|letter| match letter {
                    '\\' => text.push_str("\\\\"),
                    '\t' => text.push_str("\\t"),
                    '\n' => text.push_str("\\n"),
                    '\r' => text.push_str("\\r"),
                    letter => text.push(letter),
                }),
            }
        }
        text.push('\n');
    }
    text.into_bytes()
}
