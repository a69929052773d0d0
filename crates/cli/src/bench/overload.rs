//! `towpath bench overload`: what a server does when twice as much comes as it can take.
//!
//! What a server acknowledges at first says little about what it can take: accepting is several times as fast as folding,
//! and what is accepted waits until it is folded. So the server is filled first, until it refuses for the first time. Only
//! then it is measured how much senders get accepted that each wait for their answer, and a moment after a refusal: the
//! peak is what the server takes and works off.
//!
//! Then twice the peak is offered by an open loop: requests go out at their appointed time, whether or not the ones before
//! were answered, and a latency counts from that time. A closed loop would wait for a slow server, and so never overload
//! it.
//!
//! A generator that takes the processor from the server it overloads would measure itself. So a server of the
//! benchmark's own gets one half of the cores and the generator the other; where there is only one core the figures say
//! little.

mod load;

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::cores;
use super::report::Report;
use super::server::Child;
use crate::arguments::BenchOverload;
use load::{Load, Seen};

/// Requests per second of a server that is hardly busy.
const IDLE_RATE: f64 = 50.0;
/// Senders that look for the peak, each waiting for its answer. The most come first: a backlog that stands at its bound
/// can then only shrink, and nothing counts that was accepted and is not worked off.
const SENDERS: [usize; 5] = [64, 32, 16, 8, 4];
/// What may wait to be folded in a server of the benchmark's own: little, so that it is soon full.
const BACKLOG: (&str, &str) = ("TOWPATH_INGEST_BACKLOG_MB", "256");
/// Senders that fill the server, and how long they may take.
const FILLING: usize = 64;
const LONGEST_FILLING: Duration = Duration::from_secs(120);
/// For how long the full server goes on being filled before anything is measured: its pace has to settle.
const SETTLING: Duration = Duration::from_secs(8);
/// The least share of the peak that has to be left under twice the load.
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
        "this run says nothing: {unsent} requests of twice the load could not be sent. Give the load more cores, or name a \
         smaller server by --server"
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
    // Connections, caches, the first project.
    load.offer(IDLE_RATE, Duration::from_secs(2)).await;

    let idle = load.offer(IDLE_RATE, phase.min(Duration::from_secs(5))).await;
    ensure!(idle.accepted() > 0, "the server accepts nothing: {}", idle.told());
    report.note("idle, p50", idle.quantile(0.5), "ms");
    report.note("idle, p99", idle.quantile(0.99), "ms");

    let filled = load.fill(FILLING, LONGEST_FILLING).await;
    ensure!(
        filled.refused() > 0,
        "the server refuses nothing for {} s: more senders are needed to fill it",
        LONGEST_FILLING.as_secs()
    );
    report.note("until it is full", filled.goodput(), "accepted/s");
    report.note("until it is full, took", filled.took().as_secs_f64(), "s");
    load.saturate(FILLING, SETTLING).await;

    let mut peak: f64 = 0.0;
    for senders in SENDERS {
        let folded = load.folded().await?;
        let seen = load.saturate(senders, phase / 3).await;
        let folded = (load.folded().await? - folded) / seen.took().as_secs_f64();
        report.note(format!("full, {senders} senders"), seen.goodput(), "accepted/s");
        report.note(format!("full, {senders} senders, folded"), folded, "requests/s");
        peak = peak.max(seen.goodput());
    }
    report.note("peak", peak, "accepted/s");

    let folded = load.folded().await?;
    let over = load.offer(peak * 2.0, phase).await;
    let folded = (load.folded().await? - folded) / over.took().as_secs_f64();
    overloaded(&mut report, &over);
    report.note("2x, folded", folded, "requests/s");

    let after = load.offer(IDLE_RATE, Duration::from_secs(5)).await;
    report.against("after, p99", after.quantile(0.99), "ms", "idle, p99");
    report.note("after, refused", after.refused() as f64, "requests");
    let rested = load.rest(LONGEST_FILLING).await?;
    report.note("until nothing waits to be folded", rested.as_secs_f64(), "s");
    Ok((report, over.goodput() / peak, over.unsent()))
}

fn overloaded(report: &mut Report, over: &Seen) {
    report.note("2x, offered", over.offered_rate(), "requests/s");
    report.against("2x, goodput", over.goodput(), "accepted/s", "peak");
    report.note("2x, refused (429, 503)", over.refused() as f64, "requests");
    report.note("2x, refused without Retry-After", over.untold() as f64, "requests");
    report.note("2x, longest Retry-After", over.longest_wait() as f64, "s");
    report.note("2x, other answers", over.others() as f64, "requests");
    report.note("2x, no answer", over.lost() as f64, "requests");
    report.note("2x, not sent by this generator", over.unsent() as f64, "requests");
    report.note("2x, p50 of accepted", over.quantile(0.5), "ms");
    report.against("2x, p99 of accepted", over.quantile(0.99), "ms", "idle, p99");
    if over.others() > 0 || over.lost() > 0 {
        eprintln!("2x: {}", over.told());
    }
}
