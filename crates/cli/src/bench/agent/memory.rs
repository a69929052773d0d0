//! Measures whether the memory of an agent server stays constant over many runs.
//!
//! A third of the runs each: stateless and waited for, stateless and streamed, on a kept thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::bench::client::Client;
use crate::bench::report::Report;
use crate::bench::server::Child;

/// Samples, spread over the runs.
const LOOKS: u64 = 10;
/// Closed-loop clients.
const CLIENTS: u64 = 16;

/// Performs `runs` runs, and reports memory and rate after each tenth.
pub(super) async fn measure(client: &Client, child: &Child, runs: u64, report: &mut Report) -> anyhow::Result<()> {
    let memory = || child.memory_mb().context("the memory of the server cannot be read");
    let done = Arc::new(AtomicU64::new(0));
    let mut first = None;
    let mut last = 0.0;
    for look in 1..=LOOKS {
        let until = runs * look / LOOKS;
        let (began, before) = (Instant::now(), runs * (look - 1) / LOOKS);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (client, done) = (client.clone(), done.clone());
            clients.spawn(async move {
                // Claims one of the remaining runs.
                loop {
                    let number = done.fetch_add(1, Ordering::Relaxed);
                    if number >= until {
                        done.fetch_sub(1, Ordering::Relaxed);
                        return anyhow::Ok(());
                    }
                    one(&client, number).await.with_context(|| format!("run {number}"))?;
                }
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        let rate = (until - before) as f64 / began.elapsed().as_secs_f64();
        last = memory()?;
        first.get_or_insert(last);
        report.note(format!("memory after {until} runs"), last, "MB");
        report.note(format!("the last {} of them", until - before), rate, "runs/s");
    }
    let grown = last - first.unwrap_or(last);
    report.note("grown since the first tenth", grown, "MB");
    Ok(())
}

async fn one(client: &Client, number: u64) -> anyhow::Result<()> {
    match number % 3 {
        0 => client.clone().create_and_wait().await,
        1 => client.clone().stream().await,
        _ => client.run_on_thread().await,
    }
}
