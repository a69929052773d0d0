//! `towpath bench ingest`: trace runs that a server acknowledges and flushes per second, compared with the same trace
//! runs in DuckDB and with PostgreSQL's COPY, if available.
//!
//! Bodies are built before the measurement. The client shares the machine with the server; its CPU time is reported
//! separately.
//!
//! With `--workers`, it measures a cluster on PostgreSQL instead, see [`workers`].

mod bodies;
mod cluster;
mod copy;
mod duckdb;
mod latency;
mod sending;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use towpath_domain::Timestamp;

use super::process::{cpu_seconds, peak_memory_mb};
use super::report::Report;
use super::runs::Runs;
use super::server::Child;
use crate::arguments::BenchIngest;
use bodies::{BODY, BOUNDARY};
use sending::Target;

/// Time limit for the server to flush everything it accepted.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The allocator returns freed memory after this time.
const MEMORY_RELEASE_DELAY: Duration = Duration::from_secs(30);

pub async fn run(options: &BenchIngest) -> anyhow::Result<()> {
    if let (Some(server), false) = (&options.database, options.workers.is_empty()) {
        return workers::run(options, server).await;
    }
    let mut report = Report::default();
    let runs = runs(options.rows);
    // Only one of them runs at a time.
    if let Some(python) = &options.peer {
        duckdb::measure(python, &runs, options.rows, &mut report).await?;
    }
    if let Some(server) = &options.database {
        copy::measure(server, &runs, options.rows, &mut report).await?;
    }
    let made = bodies::render(&runs, options.rows);
    drop(runs);
    let rows = made.packed.len() as u64 * BODY;
    report.note("a body, plain", made.plain as f64 / rows as f64, "bytes/run");
    let sent: usize = made.packed.iter().map(Bytes::len).sum();
    report.note("a body, as sent (zstd)", sent as f64 / rows as f64, "bytes/run");
    let child = Child::dev(None).await.context("starting a server of its own")?;
    let measured = measure(options, &child, &Arc::new(made.packed), rows, &mut report).await;
    child.stop().await?;
    measured?;
    report.print(options.output)
}

/// Traces of the last hours, whatever their number.
fn runs(rows: u64) -> Runs {
    let now = towpath_domain::Clock::system().now();
    let step = 3_600_000_000 / i64::try_from(rows.max(8)).unwrap_or(i64::MAX) * 8;
    Runs::new(Timestamp::from_micros(now.micros() - 4_000_000_000), step.max(1))
}

async fn measure(
    options: &BenchIngest,
    child: &Child,
    bodies: &Arc<Vec<Bytes>>,
    rows: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let http = client(&child.key().await?)?;
    let target = Target {
        http: http.clone(),
        url: format!("{}/runs/multipart", child.base()),
        workspaces: Vec::new(),
    };
    let pid = child.pid().context("the server has ended")?.to_string();
    let (own, servers) = (cpu_seconds("self"), cpu_seconds(&pid));
    let began = Instant::now();
    let refused = sending::send(target, bodies, options.senders).await?;
    let acknowledged = began.elapsed();
    let (own_after, servers_after) = (cpu_seconds("self"), cpu_seconds(&pid));
    let folded = wait_until_flushed(&http, &child.base(), rows, began).await?;
    let (acknowledged, folded) = (acknowledged.as_secs_f64(), folded.as_secs_f64());
    report.against("acknowledged", rows as f64 / acknowledged, "runs/s", copy::NAME);
    report.against("sustained until folded", rows as f64 / folded, "runs/s", duckdb::BEST);
    report.note("refused and sent again", refused as f64, "bodies");
    let spent = |after: Option<f64>, before: Option<f64>| Some(after? - before?);
    if let Some(spent) = spent(own_after, own) {
        report.note("CPU of the client while it sent", spent, "s");
    }
    if let Some(spent) = spent(servers_after, servers) {
        report.note("CPU of the server meanwhile", spent, "s");
    }
    if let Some(spent) = spent(cpu_seconds(&pid), servers) {
        report.note("CPU of the server until folded", spent, "s");
    }
    report.note(
        "on disk in segments",
        child.stored("objects/segments")? as f64 / rows as f64,
        "bytes/run",
    );
    if let Some(mb) = child.pid().and_then(peak_memory_mb) {
        report.note("memory of the server, at most", mb, "MB");
    }
    tokio::time::sleep(MEMORY_RELEASE_DELAY).await;
    if let Some(mb) = child.memory_mb() {
        report.note("memory of the server, half a minute later", mb, "MB");
    }
    Ok(())
}

/// Waits until every run is in a trace segment.
async fn wait_until_flushed(http: &reqwest::Client, base: &str, rows: u64, began: Instant) -> anyhow::Result<Duration> {
    loop {
        let text = http.get(format!("{base}/metrics")).send().await?.text().await?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("towpath_flushed_operations_total"))
            .and_then(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
        if count.is_some_and(|count| count >= rows as f64) {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < TIMEOUT, "{count:?} of {rows} runs are flushed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn client(key: &str) -> anyhow::Result<reqwest::Client> {
    let mut headers = HeaderMap::new();
    let mut key = HeaderValue::from_str(key).context("the API key")?;
    key.set_sensitive(true);
    headers.insert("x-api-key", key);
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_str(&format!("multipart/form-data; boundary={BOUNDARY}"))?,
    );
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
    Ok(reqwest::Client::builder()
        .default_headers(headers)
        .no_proxy()
        .timeout(Duration::from_secs(60))
        .build()?)
}
