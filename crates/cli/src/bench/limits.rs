//! `towpath bench limits`: the cost of counting a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use towpath_domain::Clock;
use towpath_queue::{CountingMode, WindowRequest, Windows};
use uuid::Uuid;

use super::report::Report;
use crate::arguments::BenchLimits;

/// The limit with the widest window in the rules of the hosted platform, and so the longest log.
const COUNT: u32 = 6000;
const LENGTH: Duration = Duration::from_secs(10);
/// Identities in rotation.
const IDENTITIES: usize = 64;
/// Concurrent callers.
const CALLERS: [usize; 2] = [1, 64];

pub async fn run(options: &BenchLimits) -> anyhow::Result<()> {
    let mut report = Report::default();
    let calls = usize::try_from(options.calls)?;
    let embedded = Arc::new(Windows::local(Clock::system()));
    for callers in CALLERS {
        measure(&mut report, "in memory", &embedded, calls, callers).await?;
    }
    if let Some(uri) = &options.redis {
        let options = towpath_queue::Options {
            // Unique keys, which expire with their window.
            prefix: format!("towpath-bench:{}:", Uuid::now_v7()),
            ..towpath_queue::Options::default()
        };
        let shared = Arc::new(Windows::redis(uri, options).await?);
        for callers in CALLERS {
            if shared.counting_mode() != CountingMode::Shared {
                bail!("Redis is unavailable");
            }
            measure(&mut report, "over Redis", &shared, calls, callers).await?;
        }
        if shared.counting_mode() != CountingMode::Shared {
            bail!("Redis did not answer in time");
        }
    }
    report.print(options.output)
}

async fn measure(
    report: &mut Report,
    place: &str,
    windows: &Arc<Windows>,
    calls: usize,
    callers: usize,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut tasks = Vec::with_capacity(callers);
    for caller in 0..callers {
        let windows = Arc::clone(windows);
        tasks.push(tokio::spawn(async move {
            let mut costs = Vec::with_capacity(calls / callers);
            for call in 0..calls / callers {
                let mut who = [0; 16];
                who[..8].copy_from_slice(&(((caller + call) % IDENTITIES) as u64).to_be_bytes());
                let ask = WindowRequest {
                    window: 0,
                    name: "bench",
                    identity: who,
                    limit: COUNT,
                    length: LENGTH,
                };
                let asked = Instant::now();
                let verdict = windows.take(std::slice::from_ref(&ask)).await;
                costs.push(asked.elapsed());
                drop(verdict);
            }
            costs
        }));
    }
    let mut costs = Vec::with_capacity(calls);
    for task in tasks {
        costs.extend(task.await?);
    }
    let took = begun.elapsed();
    costs.sort_unstable();
    let micros = |part: usize| {
        let at = (costs.len() * part / 1000).min(costs.len().saturating_sub(1));
        costs.get(at).map_or(0.0, |cost| cost.as_secs_f64() * 1e6)
    };
    let many = if callers == 1 { "caller" } else { "callers" };
    let what = format!("counted {place}, {callers} {many}");
    report.note(format!("{what}, median"), micros(500), "µs");
    report.note(format!("{what}, p99"), micros(990), "µs");
    report.note(what, costs.len() as f64 / took.as_secs_f64(), "requests/s");
    Ok(())
}
