//! Clients that wait for an answer before they ask again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::report::Report;

/// `clients` that do `one` again and again for so long; after one that is not counted, for connections and caches.
///
/// # Errors
/// One of them fails.
pub async fn closed<F, Fut>(clients: usize, phase: Duration, one: F) -> anyhow::Result<Seen>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    one().await?;
    let started = Instant::now();
    many(clients, one, Duration::ZERO, move || started.elapsed() < phase).await
}

/// As [`closed`], but nothing counts that is begun before `settle` has passed: a server that sleeps where there is nothing
/// to do may take long to notice that there is.
///
/// # Errors
/// One of them fails.
pub async fn settled<F, Fut>(clients: usize, settle: Duration, phase: Duration, one: F) -> anyhow::Result<Seen>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let started = Instant::now();
    many(clients, one, settle, move || started.elapsed() < settle + phase).await
}

/// `clients` that do `one` so many times together.
///
/// # Errors
/// One of them fails.
pub async fn times<F, Fut>(clients: usize, times: u64, one: F) -> anyhow::Result<Seen>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let begun = Arc::new(AtomicU64::new(0));
    let more = move || begun.fetch_add(1, Ordering::Relaxed) < times;
    many(clients, one, Duration::ZERO, more).await
}

async fn many<F, Fut, M>(clients: usize, one: F, settle: Duration, more: M) -> anyhow::Result<Seen>
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
    let mut seen = Seen::default();
    while let Some(done) = tasks.join_next().await {
        let (settling, latencies) = done??;
        seen.settling += settling;
        seen.latencies.extend(latencies);
    }
    seen.took = from.elapsed();
    Ok(seen)
}

/// What a phase took.
#[derive(Default)]
pub struct Seen {
    /// How many did not count.
    settling: usize,
    latencies: Vec<Duration>,
    took: Duration,
}

impl Seen {
    /// How many were done.
    pub fn count(&self) -> usize {
        self.latencies.len()
    }

    /// How many were done, with those that did not count.
    pub fn all(&self) -> usize {
        self.settling + self.count()
    }

    /// How many a second.
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.took.as_secs_f64()
    }

    /// Takes another phase of the same kind to this one.
    pub fn add(&mut self, other: Self) {
        self.settling += other.settling;
        self.latencies.extend(other.latencies);
        self.took += other.took;
    }

    /// Notes rate and latencies.
    pub fn note(&self, report: &mut Report, what: &str, unit: &'static str) {
        report.note(what, self.rate(), unit);
        self.note_latencies(report, what);
    }

    /// Notes the rate beside one noted before, and the latencies.
    pub fn note_against(&self, report: &mut Report, what: &str, unit: &'static str, against: &str) {
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
