//! `towpath bench ingest`: how many trace runs a server acknowledges, and how many it has folded into segments in the
//! same time.
//!
//! Bodies are made before the clock runs, as the official SDK sends them: multipart, zstd, a hundred runs each. The
//! client shares the machine with the server; its CPU time is told apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::task::JoinSet;
use towpath_domain::Timestamp;
use towpath_traces::operation::{Fields, Operation};

use super::process::cpu_seconds;
use super::report::Report;
use super::runs::Runs;
use super::server::Child;
use crate::arguments::BenchIngest;

/// Trace runs of one body.
const BODY: u64 = 100;
const BOUNDARY: &str = "7d1b6c0e9b4f4b0a8a2d6f1c3e5b9d70";
/// The longest the server may take to fold what it has accepted.
const PATIENCE: Duration = Duration::from_secs(600);

pub async fn run(options: &BenchIngest) -> anyhow::Result<()> {
    let mut report = Report::default();
    let bodies = Arc::new(render(options.rows));
    let sent: usize = bodies.iter().map(Bytes::len).sum();
    let rows = bodies.len() as u64 * BODY;
    report.note("sent", sent as f64 / rows as f64, "bytes/run");
    let child = Child::dev(None).await.context("starting a server of its own")?;
    let measured = measure(options, &child, bodies, rows, &mut report).await;
    child.stop().await?;
    measured?;
    report.print(options.output)
}

async fn measure(
    options: &BenchIngest,
    child: &Child,
    bodies: Arc<Vec<Bytes>>,
    rows: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let http = client(&child.key().await?)?;
    let url = format!("{}/runs/multipart", child.base());
    let pid = child.pid().context("the server is gone")?.to_string();
    let (own, servers) = (cpu_seconds("self"), cpu_seconds(&pid));
    let began = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..options.senders {
        let (http, url) = (http.clone(), url.clone());
        let (bodies, next) = (Arc::clone(&bodies), Arc::clone(&next));
        senders.spawn(async move {
            let mut again = 0_u64;
            while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                // Refused for a moment is no failure: the client sends it again.
                loop {
                    let answer = http.post(&url).body(body.clone()).send().await?;
                    match answer.status().as_u16() {
                        202 => break,
                        429 | 503 => again += 1,
                        status => anyhow::bail!("{status}: {}", answer.text().await?),
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Ok(again)
        });
    }
    let mut refused = 0;
    while let Some(done) = senders.join_next().await {
        refused += done??;
    }
    let acknowledged = began.elapsed();
    let (own_after, servers_after) = (cpu_seconds("self"), cpu_seconds(&pid));
    let folded = folded(&http, &child.base(), rows, began).await?;
    report.note("acknowledged", rows as f64 / acknowledged.as_secs_f64(), "runs/s");
    report.note("sustained until folded", rows as f64 / folded.as_secs_f64(), "runs/s");
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
    if let Some(mb) = child.memory_mb() {
        report.note("memory of the server, after", mb, "MB");
    }
    Ok(())
}

/// Waits until every run lies in a segment.
async fn folded(http: &reqwest::Client, base: &str, rows: u64, began: Instant) -> anyhow::Result<Duration> {
    loop {
        let text = http.get(format!("{base}/metrics")).send().await?.text().await?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("towpath_folded_operations_total"))
            .and_then(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
        if count.is_some_and(|count| count >= rows as f64) {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < PATIENCE, "{count:?} of {rows} runs are folded");
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

/// All bodies, compressed.
fn render(rows: u64) -> Vec<Bytes> {
    let now = towpath_domain::Clock::system().now();
    let bodies = rows.div_ceil(BODY);
    // Traces of the last hours, whatever their number.
    let step = 3_600_000_000 / i64::try_from(rows.max(8)).unwrap_or(i64::MAX) * 8;
    let runs = Runs::new(Timestamp::from_micros(now.micros() - 4_000_000_000), step.max(1));
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let runs = &runs;
                scope.spawn(move || {
                    (0..bodies)
                        .filter(|body| body % threads == thread)
                        .map(|body| packed(runs, body * BODY))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect()
    })
}

fn packed(runs: &Runs, first: u64) -> Bytes {
    let mut body = Vec::new();
    for index in first..first + BODY {
        write_run(&mut body, &runs.post(index));
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    towpath_traces::sample::as_zstd(&body)
}

fn write_run(to: &mut Vec<u8>, post: &Operation) {
    let name = format!("post.{}", post.id);
    let Fields {
        inputs,
        outputs,
        events,
        extra,
        error,
        ..
    } = &post.fields;
    let extra = extra.iter().flatten().fold(String::new(), |text, (key, value)| {
        let comma = if text.is_empty() { "" } else { "," };
        format!("{text}{comma}\"{key}\":{value}")
    });
    let error = error
        .as_ref()
        .map(|error| serde_json::Value::from(error.as_str()).to_string());
    let big = [
        ("inputs", inputs.clone()),
        ("outputs", outputs.clone()),
        ("events", events.clone()),
        ("extra", Some(format!("{{{extra}}}"))),
        ("error", error),
    ];
    let head = serde_json::json!({
        "id": post.id,
        "trace_id": post.fields.trace_id,
        "parent_run_id": post.fields.parent_run_id,
        "dotted_order": post.fields.dotted_order,
        "session_name": "bench",
        "name": post.fields.name,
        "run_type": post.fields.run_type,
        "start_time": post.fields.start_time,
        "end_time": post.fields.end_time,
        "tags": post.fields.tags,
    });
    part(to, &name, &head.to_string());
    for (field, text) in big {
        if let Some(text) = text {
            part(to, &format!("{name}.{field}"), &text);
        }
    }
}

fn part(to: &mut Vec<u8>, name: &str, data: &str) {
    to.extend_from_slice(
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            data.len()
        )
        .as_bytes(),
    );
    to.extend_from_slice(data.as_bytes());
    to.extend_from_slice(b"\r\n");
}
