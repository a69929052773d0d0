//! Closed-loop load: each client waits for a response before its next request.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::report::Report;

/// Runs `one` repeatedly in `clients` loops for the time of the phase. The first call is not counted: it fills
/// connections and caches.
pub async fn run_for<F, Fut>(clients: usize, phase: Duration, one: F) -> anyhow::Result<PhaseResult>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    one().await?;
    let started = Instant::now();
    run_clients(clients, one, Duration::ZERO, move || started.elapsed() < phase).await
}

/// Like [`run_for`], but calls that begin before `settle` has passed are not counted: an idle server may take long to
/// notice work.
pub async fn run_after_settling<F, Fut>(
    clients: usize,
    settle: Duration,
    phase: Duration,
    one: F,
) -> anyhow::Result<PhaseResult>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let started = Instant::now();
    run_clients(clients, one, settle, move || started.elapsed() < settle + phase).await
}

/// Runs `one` for `times` times in all, in `clients` loops.
pub async fn run_count<F, Fut>(clients: usize, times: u64, one: F) -> anyhow::Result<PhaseResult>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let begun = Arc::new(AtomicU64::new(0));
    let more = move || begun.fetch_add(1, Ordering::Relaxed) < times;
    run_clients(clients, one, Duration::ZERO, more).await
}

async fn run_clients<F, Fut, M>(clients: usize, one: F, settle: Duration, more: M) -> anyhow::Result<PhaseResult>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
    M: Fn() -> bool + Clone + Send + 'static,
{
    let from = Instant::now() + settle;
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (one, more) = (one.clone(), more.clone());
        tasks.spawn(async move {
            let (mut settling, mut latencies) = (0, Vec::new());
            while more() {
                let asked = Instant::now();
                one().await?;
                if asked >= from {
                    latencies.push(asked.elapsed());
                } else {
                    settling += 1;
                }
            }
            Ok::<_, anyhow::Error>((settling, latencies))
        });
    }
    let mut seen = PhaseResult::default();
    while let Some(done) = tasks.join_next().await {
        let (settling, latencies) = done??;
        seen.settling += settling;
        seen.latencies.extend(latencies);
    }
    seen.duration = from.elapsed();
    Ok(seen)
}

/// Measurements of a phase.
#[derive(Default)]
pub struct PhaseResult {
    /// Number of uncounted calls.
    settling: usize,
    latencies: Vec<Duration>,
    duration: Duration,
}

impl PhaseResult {
    /// Number of counted calls.
    pub fn count(&self) -> usize {
        self.latencies.len()
    }

    /// Number of all calls.
    pub fn count_with_settling(&self) -> usize {
        self.settling + self.count()
    }

    /// Calls per second.
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.duration.as_secs_f64()
    }

    /// Merges another phase of the same kind.
    pub fn add(&mut self, other: Self) {
        self.settling += other.settling;
        self.latencies.extend(other.latencies);
        self.duration += other.duration;
    }

    /// Reports rate and latencies.
    pub fn note(&self, report: &mut Report, what: &str, unit: &'static str) {
        report.note(what, self.rate(), unit);
        self.note_latencies(report, what);
    }

    /// Reports the rate with its ratio to an earlier one, and the latencies.
    pub fn note_with_ratio(&self, report: &mut Report, what: &str, unit: &'static str, against: &str) {
        report.against(what, self.rate(), unit, against);
        self.note_latencies(report, what);
    }

    fn note_latencies(&self, report: &mut Report, what: &str) {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
            let latency = sorted.get(at).copied().unwrap_or_default();
            report.note(format!("{what}, {name}"), latency.as_secs_f64() * 1000.0, "ms");
        }
    }
}
