//! `towpath bench agent`: throughput and latency of an agent server under closed-loop load.
//!
//! The clients share the machine with the server.

mod memory;

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::json;

use super::client::{BACKGROUND, Client};
use super::closed_loop::run_for;
use super::python;
use super::report::Report;
use super::server::Child;
use crate::arguments::{BenchAgent, BenchGraph};

const CLIENTS: [usize; 3] = [1, 16, 64];
/// Concurrent clients of the thread phases.
const THREAD_CLIENTS: usize = 16;

pub async fn run(options: &BenchAgent) -> anyhow::Result<()> {
    if options.graph == BenchGraph::Python {
        return python::run(options).await;
    }
    ensure!(options.official.is_none(), "--official requires --graph python");
    let child = match options.server {
        Some(_) => None,
        None => Some(Child::agent().await.context("starting a server of its own")?),
    };
    let base = match (&child, &options.server) {
        (Some(child), _) => child.base(),
        (None, Some(server)) => server.trim_end_matches('/').to_owned(),
        (None, None) => unreachable!("without a server one was started"),
    };
    let input = json!({"messages": [{"role": "user", "content": "hello"}]});
    let client = Client::new(base, &options.assistant, &input)?;
    let mut report = Report::default();
    let memory = |report: &mut Report, what: &str| {
        if let Some(mb) = child.as_ref().and_then(Child::memory_mb) {
            report.note(what, mb, "MB");
        }
    };
    memory(&mut report, "memory, idle");
    let measured = match (options.runs, &child) {
        (Some(runs), Some(child)) => memory::measure(&client, child, runs, &mut report).await,
        (Some(_), None) => bail!("--runs measures the memory of its own server and excludes --server"),
        (None, _) => {
            let measured = measure(&client, Duration::from_secs(options.seconds), &mut report).await;
            memory(&mut report, "memory, after");
            measured
        }
    };
    if let Some(child) = child {
        child.stop().await?;
    }
    measured?;
    report.print(options.output)
}

async fn measure(client: &Client, phase: Duration, report: &mut Report) -> anyhow::Result<()> {
    for clients in CLIENTS {
        let asks = client.clone();
        let seen = run_for(clients, phase, move || asks.clone().create_and_wait()).await?;
        seen.note(report, &format!("create and wait, {clients} clients"), "runs/s");
    }
    let asks = client.clone();
    let seen = run_for(1, phase, move || asks.clone().first_event()).await?;
    seen.note(report, "first event, 1 client", "runs/s");
    let rate = client.background(BACKGROUND).await?;
    report.note(format!("{BACKGROUND} background runs"), rate, "runs/s");
    let thread = client.thread().await?;
    let asks = client.clone();
    let seen = run_for(THREAD_CLIENTS, phase, move || {
        let asks = asks.clone();
        async move { asks.thread().await.map(drop) }
    });
    seen.await?.note(report, "threads created, 16 clients", "1/s");
    let asks = client.clone();
    let seen = run_for(THREAD_CLIENTS, phase, move || {
        let (asks, path) = (asks.clone(), format!("/threads/{thread}/state"));
        async move { Ok(asks.get(&path).await?.bytes().await.map(drop)?) }
    });
    seen.await?.note(report, "thread state read, 16 clients", "1/s");
    let asks = client.clone();
    let seen = run_for(THREAD_CLIENTS, phase, move || {
        let asks = asks.clone();
        async move {
            let found = asks.post("/threads/search", &json!({"limit": 10})).await?;
            Ok(found.bytes().await.map(drop)?)
        }
    });
    seen.await?.note(report, "threads searched, 16 clients", "1/s");
    Ok(())
}
