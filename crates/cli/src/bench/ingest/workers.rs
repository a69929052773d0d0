//! Scaling of ingest with workers: the same trace runs into a cluster on PostgreSQL, once for each number of worker
//! processes.
//!
//! Each number gets an empty database, an empty folder of objects, and the same bodies, distributed over many
//! workspaces because flushes of one workspace are sequential. All processes share the machine with the client and the
//! database. With a latency, each process reaches the database through a proxy of this one. There is no Redis: an idle
//! worker polls about once a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use sqlx::{Connection as _, PgConnection};
use towpath_domain::{Secret, TenantId};
use towpath_store::baseline;
use towpath_store::{Options, Store, access};

use super::TIMEOUT;
use super::bodies::{self, BODY};
use super::cluster::{Cluster, Cpu};
use super::latency::Proxy;
use super::sending::{self, Target};
use crate::arguments::BenchIngest;
use crate::bench::report::Report;

/// It limits the precision of the results.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The median of these round trips counts.
const ROUND_TRIPS: usize = 21;
const ROUND_TRIP: &str = "a round trip to the database";
/// A flush inserts its segment rows in one transaction.
const FOLDED: &str = "SELECT CAST(COALESCE(SUM(rows), 0) AS bigint) FROM segment WHERE state = 'live'";

pub async fn run(options: &BenchIngest, server: &str) -> anyhow::Result<()> {
    let mut report = Report::default();
    let made = bodies::render(&super::runs(options.rows), options.rows);
    let bodies = Arc::new(made.packed);
    for &workers in &options.workers {
        let name = format!("towpath_bench_{}", std::process::id());
        let uri = baseline::make_database(server, &name)
            .await
            .context("creating a database for the benchmark")?;
        let measured = measure(options, &uri, workers, &bodies).await;
        baseline::drop_database(server, &name)
            .await
            .context("dropping the benchmark's database")?;
        let measured = measured.with_context(|| format!("measuring {}", row_name(workers)))?;
        measured.note(&mut report, workers, options.workers[0]);
    }
    report.print(options.output)
}

/// Measurements with one number of workers.
struct IngestMeasurement {
    rows: f64,
    round_trip: Duration,
    acknowledged: Duration,
    folded: Duration,
    refused: u64,
    /// CPU time until everything was flushed.
    cpu: Option<Cpu>,
}

impl IngestMeasurement {
    /// Reports the figures with their ratios to those of the first number of workers.
    fn note(&self, report: &mut Report, workers: u64, first: u64) {
        if report.value(ROUND_TRIP).is_none() {
            report.note(ROUND_TRIP, self.round_trip.as_secs_f64() * 1000.0, "ms");
        }
        let mut note = |what: &str, value: f64, unit| {
            let against = format!("{what}, {}", row_name(first));
            report.against(format!("{what}, {}", row_name(workers)), value, unit, &against);
        };
        note("acknowledged", self.rows / self.acknowledged.as_secs_f64(), "runs/s");
        note("until folded", self.folded.as_secs_f64(), "s");
        note("folded", self.rows / self.folded.as_secs_f64(), "runs/s");
        if let Some(cpu) = self.cpu {
            let per_run = |seconds: f64| seconds * 1e6 / self.rows;
            note("CPU of workers", per_run(cpu.workers), "µs/run");
            note("CPU of the API", per_run(cpu.api), "µs/run");
            note("CPU of both", per_run(cpu.workers + cpu.api), "µs/run");
        }
        let refused = format!("refused and sent again, {}", row_name(workers));
        report.note(refused, self.refused as f64, "bodies");
    }
}

fn row_name(workers: u64) -> String {
    match workers {
        1 => "1 worker".to_owned(),
        _ => format!("{workers} workers"),
    }
}

async fn measure(
    options: &BenchIngest,
    uri: &str,
    workers: u64,
    bodies: &Arc<Vec<Bytes>>,
) -> anyhow::Result<IngestMeasurement> {
    let rows = bodies.len() as u64 * BODY;
    let (key, workspaces) = prepare(uri, options.workspaces).await?;
    let proxy = match options.latency_ms {
        Some(ms) => Some(Proxy::start(uri, Duration::from_millis(ms)).await?),
        None => None,
    };
    let reached = proxy.as_ref().map_or(uri, Proxy::uri);
    let round_trip = round_trip(reached).await?;
    let cluster = Cluster::start(reached, workers, options.folds).await?;
    let target = Target {
        http: super::client(key.reveal())?,
        url: format!("{}/runs/multipart", cluster.base()),
        workspaces: workspaces.iter().map(ToString::to_string).collect(),
    };
    // Not through the proxy, so that this query does not count.
    let mut tables = PgConnection::connect(uri).await?;
    let before = cluster.cpu();
    let began = Instant::now();
    let refused = sending::send(target, bodies, options.senders).await?;
    let acknowledged = began.elapsed();
    let folded = wait_until_flushed(&mut tables, rows, began).await?;
    let cpu = spent(before, cluster.cpu());
    cluster.stop().await?;
    Ok(IngestMeasurement {
        rows: rows as f64,
        round_trip,
        acknowledged,
        folded,
        refused,
        cpu,
    })
}

/// Migrates the database and creates the workspaces. The key opens all of them.
async fn prepare(uri: &str, count: u64) -> anyhow::Result<(Secret, Vec<TenantId>)> {
    let store = Store::open(uri, Options::default()).await?;
    store.migrate().await?;
    let key = Secret::new(access::new_key_secret());
    let workspaces = store
        .write(async |tx| {
            let first = TenantId::new();
            let owner = access::ensure_first(tx, &key, first).await?.organization;
            let mut workspaces = vec![first];
            for number in 1..count {
                let workspace = access::create_workspace(tx, owner, &format!("bench-{number}")).await?;
                workspaces.push(workspace.id);
            }
            Ok(workspaces)
        })
        .await
        .context("making workspaces")?;
    store.close().await;
    Ok((key, workspaces))
}

/// Duration of an empty statement.
async fn round_trip(uri: &str) -> anyhow::Result<Duration> {
    let mut database = PgConnection::connect(uri).await.context("connecting to the database")?;
    let mut took = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        sqlx::query("SELECT 1").execute(&mut database).await?;
        took.push(began.elapsed());
    }
    database.close().await?;
    took.sort_unstable();
    Ok(took[ROUND_TRIPS / 2])
}

/// Waits until every run is in a trace segment.
async fn wait_until_flushed(tables: &mut PgConnection, rows: u64, began: Instant) -> anyhow::Result<Duration> {
    loop {
        let count: i64 = sqlx::query_scalar(FOLDED).fetch_one(&mut *tables).await?;
        let count = u64::try_from(count)?;
        ensure!(count <= rows, "{count} runs are flushed and {rows} were sent");
        if count == rows {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < TIMEOUT, "{count} of {rows} runs are flushed");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn spent(before: Option<Cpu>, after: Option<Cpu>) -> Option<Cpu> {
    let (before, after) = (before?, after?);
    Some(Cpu {
        api: after.api - before.api,
        workers: after.workers - before.workers,
    })
}
