//! `towpath bench threads`: what a thread of an agent server costs, by how many checkpoints it has.
//!
//! The calls are those of the server; there is no HTTP and no graph around them. Each checkpoint has a new value in one channel,
//! and shares that of another with all the others. What is measured is the median of several rounds.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use towpath_domain::agent::ThreadStatus;
use towpath_domain::{RunId, TenantId, ThreadId};
use towpath_runtime::{HistoryQuery, Host as _};
use towpath_store::checkpoints::{self, Batch, Blob, Checkpoint};
use towpath_store::threads::{self, NewThread};
use towpath_store::{Options, Store};
use towpath_workflows::thread_history;
use towpath_workflows::thread_state::StateHost;

use super::database::Database;
use super::report::Report;
use crate::arguments::BenchThreads;

/// Checkpoints of a thread.
const SIZES: [usize; 4] = [10, 100, 1000, 10_000];
/// Rounds of what is measured.
const ROUNDS: usize = 21;
/// The same for what works on a copy of the whole thread.
const COPIES: usize = 3;
/// Checkpoints of the run that is rolled back.
const OF_RUN: usize = 4;
/// Checkpoints of a page of the history.
const PAGE: usize = 10;
/// Checkpoints that are made in one transaction.
const AT_ONCE: usize = 100;

/// Runs it.
pub async fn run(options: &BenchThreads) -> anyhow::Result<()> {
    let database = Database::make(options.database.as_deref()).await?;
    let measured = measure(options, &database.uri).await;
    database.remove().await?;
    measured?.print(options.output)
}

async fn measure(options: &BenchThreads, uri: &str) -> anyhow::Result<Report> {
    let store = Store::open(uri, Options::default()).await?;
    store.migrate().await?;
    let mut report = Report::default();
    let bytes = usize::try_from(options.bytes)?;
    for size in SIZES {
        let thread = ThreadFixture::new(&store, bytes, size).await?;
        for (what, took) in thread.measure(size).await? {
            let name = |size: usize| format!("{what}, {size} checkpoints");
            report.against(name(size), millis(took), "ms", &name(SIZES[0]));
        }
    }
    Ok(report)
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

fn median(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds[rounds.len() / 2]
}

/// A thread with checkpoints.
struct ThreadFixture<'a> {
    store: &'a Store,
    tenant: TenantId,
    id: ThreadId,
    /// Bytes of a value.
    bytes: usize,
}

impl<'a> ThreadFixture<'a> {
    async fn new(store: &'a Store, bytes: usize, size: usize) -> anyhow::Result<Self> {
        let filled = Self {
            store,
            tenant: TenantId::new(),
            id: ThreadId::new(),
            bytes,
        };
        let new = NewThread {
            id: filled.id,
            metadata: "{}",
            config: "{}",
            status: ThreadStatus::Idle,
            temporary: false,
            ttl: None,
        };
        store
            .write(async |tx| threads::insert(tx, filled.tenant, &new).await)
            .await?;
        let run = RunId::new();
        let mut made = 0;
        while made < size {
            let end = size.min(made + AT_ONCE);
            filled.save(run, made, end).await?;
            made = end;
        }
        Ok(filled)
    }

    /// Saves the checkpoints of these numbers, as a run does.
    async fn save(&self, run: RunId, from: usize, to: usize) -> anyhow::Result<()> {
        let mut batch = Batch {
            run: Some(run),
            ..Batch::default()
        };
        for number in from..to {
            let id = version(number);
            let versions = json!({"log": id, "notes": version(0)});
            let checkpoint = json!({
                "v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", "channel_values": {},
                "channel_versions": versions, "versions_seen": {}, "channels_apart": ["log", "notes"],
            });
            let metadata = json!({"source": "loop", "step": number, "run_id": run});
            batch.checkpoints.push(Checkpoint {
                checkpoint_ns: String::new(),
                checkpoint_id: id.clone(),
                parent_checkpoint_id: number.checked_sub(1).map(version),
                checkpoint: checkpoint.to_string(),
                metadata: metadata.to_string(),
            });
            batch.blobs.push((String::new(), self.blob("log", id)));
            if number == 0 {
                batch.blobs.push((String::new(), self.blob("notes", version(0))));
            }
        }
        let id = self.id;
        self.store
            .write(async |tx| checkpoints::save(tx, id, &batch).await)
            .await?;
        Ok(())
    }

    fn blob(&self, channel: &str, version: String) -> Blob {
        Blob {
            channel: channel.to_owned(),
            version,
            r#type: "json".to_owned(),
            blob: Some(json!("x".repeat(self.bytes)).to_string().into_bytes()),
        }
    }

    /// What each call takes while the thread has about `size` checkpoints.
    async fn measure(&self, size: usize) -> anyhow::Result<Vec<(&'static str, Duration)>> {
        let (mut append, mut rollback) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let run = RunId::new();
            for number in size..size + OF_RUN {
                let began = Instant::now();
                self.save(run, number, number + 1).await?;
                append.push(began.elapsed());
            }
            let began = Instant::now();
            let id = self.id;
            let deleted = self
                .store
                .write(async |tx| checkpoints::delete_run(tx, id, run).await)
                .await?;
            rollback.push(began.elapsed());
            ensure!(deleted == OF_RUN as u64, "{deleted} checkpoints were rolled back");
        }
        let (mut state, mut page) = (Vec::new(), Vec::new());
        let query = HistoryQuery {
            limit: Some(PAGE),
            before: Some(version(size / 2 + PAGE / 2)),
            ..HistoryQuery::default()
        };
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let latest = StateHost::new(self.store, self.id).load_typed("", None).await?;
            state.push(began.elapsed());
            let latest = latest.map(|latest| latest.id);
            ensure!(latest == Some(version(size - 1)), "the latest checkpoint is {latest:?}");
            let began = Instant::now();
            let listed = StateHost::new(self.store, self.id).list_typed("", &query).await?;
            page.push(began.elapsed());
            ensure!(
                listed.len() == PAGE.min(size),
                "{} checkpoints are a page",
                listed.len()
            );
        }
        let (mut copy, mut prune) = (Vec::new(), Vec::new());
        for _ in 0..COPIES {
            let (tenant, from, to) = (self.tenant, self.id, ThreadId::new());
            let began = Instant::now();
            self.store
                .write(async |tx| thread_history::copy(tx, tenant, from, to).await)
                .await?;
            copy.push(began.elapsed());
            let began = Instant::now();
            self.store
                .write(async |tx| thread_history::keep_latest(tx, tenant, to).await)
                .await?;
            prune.push(began.elapsed());
        }
        Ok(vec![
            ("append of a checkpoint", median(append)),
            ("latest state", median(state)),
            ("history, a page of 10 from the middle", median(page)),
            ("rollback of a run of 4 checkpoints", median(rollback)),
            ("copy", median(copy)),
            ("prune to the latest", median(prune)),
        ])
    }
}

/// Id and version of the checkpoint of a number; as texts they sort like numbers.
fn version(number: usize) -> String {
    format!("{:032}.0", number + 1)
}
