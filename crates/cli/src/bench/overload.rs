//! `towpath bench overload`: what a server does when twice as much comes as it can take.
//!
//! An open loop: requests go out at their appointed time, whether or not the ones before were answered, and a latency
//! counts from that time. A closed loop would wait for a slow server, and so never overload it.
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
/// Senders that look for the peak, each waiting for its answer.
const SENDERS: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// The least share of the peak that has to be left under twice the load.
const GOODPUT: f64 = 0.9;

pub async fn run(options: &BenchOverload) -> anyhow::Result<()> {
    let child = match options.server {
        Some(_) => None,
        None => Some(
            Child::dev(Some(cores::Half::Lower))
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
    let (report, goodput) = measured?;
    report.print(options.output)?;
    ensure!(
        goodput >= GOODPUT,
        "goodput under twice the load is {:.0} % of the peak, less than {:.0} %",
        goodput * 100.0,
        GOODPUT * 100.0
    );
    Ok(())
}

async fn measure(load: &Load, seconds: u64) -> anyhow::Result<(Report, f64)> {
    let mut report = Report::default();
    let phase = Duration::from_secs(seconds);
    // Connections, caches, the first project.
    load.offer(IDLE_RATE, Duration::from_secs(2)).await;

    let idle = load.offer(IDLE_RATE, phase.min(Duration::from_secs(5))).await;
    ensure!(idle.accepted() > 0, "the server accepts nothing: {}", idle.told());
    report.note("idle, p50", idle.quantile(0.5), "ms");
    report.note("idle, p99", idle.quantile(0.99), "ms");

    let mut peak: f64 = 0.0;
    for senders in SENDERS {
        let seen = load.saturate(senders, phase / 3).await;
        report.note(format!("{senders} senders"), seen.goodput(), "accepted/s");
        // Beyond the peak more senders only wait longer.
        if seen.goodput() < peak * 0.8 {
            break;
        }
        peak = peak.max(seen.goodput());
    }
    report.note("peak", peak, "accepted/s");

    let over = load.offer(peak * 2.0, phase).await;
    overloaded(&mut report, &over);

    let after = load.offer(IDLE_RATE, Duration::from_secs(5)).await;
    report.against("after, p99", after.quantile(0.99), "ms", "idle, p99");
    report.note("after, refused", after.refused() as f64, "requests");
    Ok((report, over.goodput() / peak))
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
