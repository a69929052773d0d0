//! `towpath bench limits`: what it costs a request to be counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use towpath_domain::Clock;
use towpath_queue::{Ask, Counted, Windows};
use uuid::Uuid;

use super::report::Report;
use crate::arguments::BenchLimits;

/// The widest window of the hosted platform's rules: its log is the longest.
const COUNT: u32 = 6000;
const LENGTH: Duration = Duration::from_secs(10);
/// Identities that take turns.
const IDENTITIES: usize = 64;
/// Callers at the same time.
const CALLERS: [usize; 2] = [1, 64];

/// Measures, and prints the table.
///
/// # Errors
/// When Redis does not answer.
pub async fn run(options: &BenchLimits) -> anyhow::Result<()> {
    let mut report = Report::default();
    let calls = usize::try_from(options.calls)?;
    let embedded = Arc::new(Windows::local(Clock::system()));
    for callers in CALLERS {
        measure(&mut report, "in memory", &embedded, calls, callers).await?;
    }
    if let Some(uri) = &options.redis {
        let options = towpath_queue::Options {
            // Keys of its own, which expire with their window.
            prefix: format!("towpath-bench:{}:", Uuid::now_v7()),
            ..towpath_queue::Options::default()
        };
        let shared = Arc::new(Windows::redis(uri, options).await?);
        for callers in CALLERS {
            if shared.counted() != Counted::Shared {
                bail!("Redis does not answer");
            }
            measure(&mut report, "over Redis", &shared, calls, callers).await?;
        }
        if shared.counted() != Counted::Shared {
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
                let ask = Ask {
                    slot: 0,
                    name: "bench",
                    who,
                    count: COUNT,
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
