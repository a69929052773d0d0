//! `towpath bench overload`: behaviour of a server under twice the load that it can handle.
//!
//! Accepting is several times as fast as flushing, and accepted data waits for its flush. So the server is first filled
//! until it refuses a request. The peak is what closed-loop senders then get accepted, with a short pause after each
//! refusal: the rate that the server can sustain.
//!
//! Then an open loop offers twice the peak: requests are sent at scheduled times, whether or not earlier ones were
//! answered, and latencies count from these times. A closed loop would slow down with the server and never overload it.
//!
//! The generator must not take CPU time from the server. So a server of the benchmark gets one half of the cores and
//! the generator the other half. With a single core, the figures mean little.

mod load;

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::cores;
use super::report::Report;
use super::server::Child;
use crate::arguments::BenchOverload;
use load::{Load, LoadResult};

/// Requests per second to an almost idle server.
const IDLE_RATE: f64 = 50.0;
/// Senders that search for the peak. The largest number comes first: a full backlog can then only shrink, so no
/// accepted data is counted that the server does not flush.
const SENDERS: [usize; 5] = [64, 32, 16, 8, 4];
/// Backlog limit of the benchmark's server; small, so that it is soon full.
const BACKLOG: (&str, &str) = ("TOWPATH_INGEST_BACKLOG_MB", "256");
/// Senders that fill the server.
const FILLING: usize = 64;
const LONGEST_FILLING: Duration = Duration::from_secs(120);
/// Additional filling time, until the pace of the server has settled.
const SETTLING: Duration = Duration::from_secs(8);
/// The minimum share of the peak under twice the load.
const GOODPUT: f64 = 0.9;

pub async fn run(options: &BenchOverload) -> anyhow::Result<()> {
    let child = match options.server {
        Some(_) => None,
        None => Some(
            Child::dev_with(Some(cores::Half::Lower), &[(BACKLOG.0, BACKLOG.1.to_owned())])
                .await
                .context("starting a server of its own")?,
        ),
    };
    let (base, key) = match (&child, &options.server) {
        (Some(child), _) => (child.base(), child.key().await?),
        (None, Some(server)) => (
            server.trim_end_matches('/').to_owned(),
            options.api_key.clone().context("--api-key is required with --server")?,
        ),
        (None, None) => unreachable!("without a server one was started"),
    };
    let load = Load::new(&base, &key, options)?;
    let seconds = options.seconds;
    let half = child.as_ref().map(|_| cores::Half::Upper);
    let measured = cores::run_on(half, async move || measure(&load, seconds).await).await;
    if let Some(child) = child {
        child.stop().await?;
    }
    let (report, goodput, unsent) = measured?;
    report.print(options.output)?;
    ensure!(
        unsent == 0,
        "invalid run: {unsent} requests of twice the load could not be sent. Use more cores for the load, or a \
         smaller server with --server"
    );
    ensure!(
        goodput >= GOODPUT,
        "goodput under twice the load is {:.0} % of the peak, less than {:.0} %",
        goodput * 100.0,
        GOODPUT * 100.0
    );
    Ok(())
}

async fn measure(load: &Load, seconds: u64) -> anyhow::Result<(Report, f64, u64)> {
    let mut report = Report::default();
    let phase = Duration::from_secs(seconds);
    // Warm-up: connections, caches and the first project.
    load.offer(IDLE_RATE, Duration::from_secs(2)).await;

    let idle = load.offer(IDLE_RATE, phase.min(Duration::from_secs(5))).await;
    ensure!(
        idle.accepted() > 0,
        "the server accepts no requests: {}",
        idle.rejections()
    );
    report.note("idle, p50", idle.quantile(0.5), "ms");
    report.note("idle, p99", idle.quantile(0.99), "ms");

    let filled = load.fill(FILLING, LONGEST_FILLING).await;
    ensure!(
        filled.refused() > 0,
        "the server refused no request for {} s: more senders are needed to fill it",
        LONGEST_FILLING.as_secs()
    );
    report.note("until it is full", filled.goodput(), "accepted/s");
    report.note("until it is full, took", filled.duration().as_secs_f64(), "s");
    load.saturate(FILLING, SETTLING).await;

    let mut peak: f64 = 0.0;
    for senders in SENDERS {
        let folded = load.flushed_requests().await?;
        let seen = load.saturate(senders, phase / 3).await;
        let folded = (load.flushed_requests().await? - folded) / seen.duration().as_secs_f64();
        report.note(format!("full, {senders} senders"), seen.goodput(), "accepted/s");
        report.note(format!("full, {senders} senders, folded"), folded, "requests/s");
        peak = peak.max(seen.goodput());
    }
    report.note("peak", peak, "accepted/s");

    let folded = load.flushed_requests().await?;
    let over = load.offer(peak * 2.0, phase).await;
    let folded = (load.flushed_requests().await? - folded) / over.duration().as_secs_f64();
    overloaded(&mut report, &over);
    report.note("2x, folded", folded, "requests/s");

    let after = load.offer(IDLE_RATE, Duration::from_secs(5)).await;
    report.against("after, p99", after.quantile(0.99), "ms", "idle, p99");
    report.note("after, refused", after.refused() as f64, "requests");
    let rested = load.wait_until_flushed(LONGEST_FILLING).await?;
    report.note("until nothing waits to be folded", rested.as_secs_f64(), "s");
    Ok((report, over.goodput() / peak, over.unsent()))
}

fn overloaded(report: &mut Report, over: &LoadResult) {
    report.note("2x, offered", over.offered_rate(), "requests/s");
    report.against("2x, goodput", over.goodput(), "accepted/s", "peak");
    report.note("2x, refused (429, 503)", over.refused() as f64, "requests");
    report.note(
        "2x, refused without Retry-After",
        over.without_retry_after() as f64,
        "requests",
    );
    report.note("2x, longest Retry-After", over.longest_wait() as f64, "s");
    report.note("2x, other answers", over.others() as f64, "requests");
    report.note("2x, no answer", over.lost() as f64, "requests");
    report.note("2x, not sent by this generator", over.unsent() as f64, "requests");
    report.note("2x, p50 of accepted", over.quantile(0.5), "ms");
    report.against("2x, p99 of accepted", over.quantile(0.99), "ms", "idle, p99");
    if over.others() > 0 || over.lost() > 0 {
        eprintln!("2x: {}", over.rejections());
    }
}
