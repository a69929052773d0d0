//! Sends trace runs over several connections, as SDKs do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::Days;
use tokio::task::JoinSet;
use towpath_domain::{Clock, Timestamp};
use towpath_traces::body::Encoding;
use towpath_traces::sample::{Plan, Sample, SampleOperations};

use super::client::Client;
use super::progress::Progress;

/// Runs in one body, as a busy client collects them.
const BODY: u64 = 250;
/// Days on which the runs start; each becomes an export run.
const DAYS: u32 = 3;

pub struct SentRuns {
    pub project: String,
    pub runs: u64,
    /// Start of the first day.
    pub from: Timestamp,
    /// End of the last day.
    pub until: Timestamp,
}

/// Sends `runs` trace runs over `connections` connections. All are acknowledged when it returns.
pub async fn send(client: &Client, runs: u64, connections: u64) -> anyhow::Result<SentRuns> {
    let today = Clock::system().now().day();
    let first_day = today.checked_sub_days(Days::new(DAYS.into())).unwrap_or(today);
    // Another demo in the same folder must not send the same ids.
    let seed: u64 = rand::random();
    let project = format!("demo-{:08x}", seed >> 32);
    let sample = Arc::new(Sample::new(Plan {
        seed,
        project: project.clone(),
        first_day,
        days: DAYS,
    }));

    let progress = Arc::new(Progress::start("sending", "sent", runs));
    let next = Arc::new(AtomicU64::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..connections {
        senders.spawn(sender(
            client.clone(),
            sample.clone(),
            next.clone(),
            runs,
            progress.clone(),
        ));
    }
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    progress.finish();
    let from = Timestamp::start_of(first_day);
    Ok(SentRuns {
        project,
        runs,
        from,
        until: Timestamp::start_of(today),
    })
}

async fn sender(
    client: Client,
    sample: Arc<Sample>,
    next: Arc<AtomicU64>,
    runs: u64,
    progress: Arc<Progress>,
) -> anyhow::Result<()> {
    loop {
        let first = next.fetch_add(BODY, Ordering::Relaxed);
        if first >= runs {
            return Ok(());
        }
        let range = first..(first + BODY).min(runs);
        let count = range.end - range.start;
        let sample = sample.clone();
        // Writing and compressing a body occupies a core for milliseconds.
        let body =
            tokio::task::spawn_blocking(move || sample.body(range, SampleOperations::Both, Encoding::Zstd)).await?;
        client.ingest("/runs/multipart", body).await?;
        progress.add(count);
    }
}
