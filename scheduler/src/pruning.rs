//! Tidying up: what is over leaves the tables that everybody works on, and is forgotten after its time.
//!
//! Each chore goes on in small transactions until it has caught up or its time is up; what it leaves is a metric. While one
//! is behind, the next turn comes at once. A chore that fails holds up none of the others.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use towpath_store::jobs::{self, Position};
use towpath_store::{self as store, Dialect, Store, feedback_tokens, idempotency, lanes, workers};

use crate::{Settings, jittered, metric};

/// Between two turns once all is done.
const REST: Duration = Duration::from_secs(30);
/// Between two turns while something is behind.
const SOON: Duration = Duration::from_secs(1);
/// What one chore may take of a turn.
const BUDGET: Duration = Duration::from_secs(5);
/// A walk through the jobs that are over begins anew after so long: some could not go when it came by.
const ANEW: Duration = Duration::from_secs(5 * 60);
/// A worker that was killed is shown as silent for so long.
const SILENT_WORKERS: Duration = Duration::from_secs(3600);
/// What is left is counted up to here.
const COUNTED: i64 = 10_000;

/// Runs until it is stopped, between two transactions.
pub(crate) async fn run(store: Store, settings: Settings, stop: CancellationToken) {
    let mut pruning = Pruning::new(&store, settings);
    loop {
        let caught_up = pruning.turn(&store, &stop).await;
        let rest = if caught_up { REST } else { SOON };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(rest)) => {}
        }
    }
}

/// What is remembered from turn to turn.
struct Pruning {
    settings: Settings,
    /// Rows of one transaction.
    batch: i64,
    /// How far the walk through the jobs that are over has come, and when it began.
    over: Position,
    over_began: Instant,
    /// How far the walk through the lanes has come.
    lane: String,
}

/// How long a chore may go on.
struct Budget<'a> {
    until: Instant,
    stop: &'a CancellationToken,
}

impl<'a> Budget<'a> {
    fn new(stop: &'a CancellationToken) -> Self {
        Self {
            until: Instant::now() + BUDGET,
            stop,
        }
    }

    fn is_spent(&self) -> bool {
        Instant::now() >= self.until || self.stop.is_cancelled()
    }
}

impl Pruning {
    fn new(store: &Store, settings: Settings) -> Self {
        let batch = match store.dialect() {
            // Everybody else who writes waits for it.
            Dialect::Sqlite => 200,
            Dialect::Postgres => 1000,
        };
        Self {
            settings,
            batch,
            over: Position::START,
            over_began: Instant::now(),
            lane: String::new(),
        }
    }

    /// Whether all has caught up. What failed is tried again at the next turn, like what has.
    async fn turn(&mut self, store: &Store, stop: &CancellationToken) -> bool {
        let mut caught_up = true;
        let began = Instant::now();
        let done = self.archive(store, &Budget::new(stop)).await;
        caught_up &= noted("finished jobs", began, done);
        let began = Instant::now();
        let done = self.forget(store, &Budget::new(stop)).await;
        caught_up &= noted("job history", began, done);
        let began = Instant::now();
        let done = self.prune_lanes(store, &Budget::new(stop)).await;
        caught_up &= noted("lanes", began, done);
        let began = Instant::now();
        let done = self.prune_answers(store, &Budget::new(stop)).await;
        caught_up &= noted("idempotency keys", began, done);
        let began = Instant::now();
        let done = self.prune_links(store, &Budget::new(stop)).await;
        caught_up &= noted("feedback links", began, done);
        let began = Instant::now();
        let done = prune_workers(store).await;
        caught_up &= noted("workers", began, done);
        caught_up
    }

    /// Moves jobs that have been over for a while to the history.
    async fn archive(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.archive_jobs);
        let batch = self.batch;
        loop {
            let from = self.over;
            let step = store
                .write(async |tx| jobs::archive(tx, before, from, batch).await)
                .await?;
            self.over = step.position;
            if step.at_end {
                if self.over_began.elapsed() >= ANEW {
                    self.over = Position::START;
                    self.over_began = Instant::now();
                }
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        let from = self.over;
        store
            .read(async |tx| jobs::unarchived(tx, before, from, COUNTED).await)
            .await
    }

    /// Forgets jobs that have been over for long.
    async fn forget(&self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.keep_jobs);
        let batch = self.batch;
        loop {
            let gone = store.write(async |tx| jobs::forget(tx, before, batch).await).await?;
            if is_less(gone, batch) {
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        store
            .read(async |tx| jobs::unforgotten(tx, before, COUNTED).await)
            .await
    }

    /// Removes lanes that no open job is in. The walk goes through all of them, turn after turn.
    async fn prune_lanes(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let batch = self.batch;
        loop {
            let behind = self.lane.clone();
            let pruned = store
                .write(async |tx| lanes::prune_behind(tx, &behind, batch).await)
                .await?;
            match pruned.last {
                Some(last) => self.lane = last,
                None => {
                    self.lane.clear();
                    return Ok(0);
                }
            }
            if budget.is_spent() {
                break;
            }
        }
        let behind = self.lane.clone();
        store
            .read(async |tx| lanes::count_behind(tx, &behind, COUNTED).await)
            .await
    }

    async fn prune_answers(&self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(idempotency::KEPT);
        let batch = self.batch;
        loop {
            let gone = store
                .write(async |tx| idempotency::prune(tx, before, batch).await)
                .await?;
            if is_less(gone, batch) {
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        store
            .read(async |tx| idempotency::count_before(tx, before, COUNTED).await)
            .await
    }

    async fn prune_links(&self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(feedback_tokens::KEPT);
        let batch = self.batch;
        loop {
            let gone = store
                .write(async |tx| feedback_tokens::prune(tx, before, batch).await)
                .await?;
            if is_less(gone, batch) {
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        store
            .read(async |tx| feedback_tokens::count_before(tx, before, COUNTED).await)
            .await
    }
}

/// There are as many as processes, so they go at once.
async fn prune_workers(store: &Store) -> store::Result<i64> {
    store.write(async |tx| workers::prune(tx, SILENT_WORKERS).await).await?;
    Ok(0)
}

fn is_less(gone: u64, batch: i64) -> bool {
    i64::try_from(gone).is_ok_and(|gone| gone < batch)
}

/// Says what a turn of a chore came to. Whether it has caught up, or failed and had better wait.
fn noted(sweep: &'static str, began: Instant, done: store::Result<i64>) -> bool {
    match done {
        Ok(left) => {
            metric::swept(sweep, began.elapsed(), Some(left));
            left == 0
        }
        Err(error) => {
            metric::swept(sweep, began.elapsed(), None);
            tracing::warn!(sweep, error = %error, "a sweep failed; it is repeated at its next turn");
            true
        }
    }
}
