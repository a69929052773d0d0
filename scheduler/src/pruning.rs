//! Tidying up: what is over leaves the tables that everybody works on, and is forgotten after its time.
//!
//! Each chore goes on in small transactions until it has caught up or its time is up; what it leaves is a metric. While one
//! is behind, the next turn comes at once. A chore that fails holds up none of the others, and takes smaller steps from then on
//! where the database gave one up.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use towpath_domain::Timestamp;
use towpath_store::jobs::{self, Position};
use towpath_store::{self as store, Dialect, Store, feedback_tokens, idempotency, lanes, schedules, workers};

use crate::{Settings, jittered, metric};

/// Between two turns once all is done.
const REST: Duration = Duration::from_secs(30);
/// Between two turns while something is behind.
const SOON: Duration = Duration::from_secs(1);
/// What one chore may take of a turn.
const BUDGET: Duration = Duration::from_secs(5);
/// A walk through the jobs that are over begins anew after so long: some could not go when it came by.
const ANEW: Duration = Duration::from_secs(5 * 60);
/// Between two looks for indexes that could not be made when this build came.
const INDEXES: Duration = Duration::from_secs(60);
/// The longest pause between two tries to make an index.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// A worker that was killed is shown as silent for so long.
const SILENT_WORKERS: Duration = Duration::from_secs(3600);
/// What is left is counted up to here.
const COUNTED: i64 = 10_000;

/// Runs until it is stopped, between two transactions.
pub(crate) async fn run(store: Store, settings: Settings, stop: CancellationToken) {
    tokio::join!(prune(&store, settings, &stop), make_indexes(&store, &stop));
}

async fn prune(store: &Store, settings: Settings, stop: &CancellationToken) {
    let mut pruning = Pruning::new(store, settings);
    loop {
        let caught_up = pruning.turn(store, stop).await;
        let rest = if caught_up { REST } else { SOON };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(rest)) => {}
        }
    }
}

/// Makes indexes that a start could not make because the database was too busy. Some chores wait for theirs. Making one takes as
/// long as its table is large, so nothing waits for it when the scheduler stops: the database finishes it, or the next one does.
async fn make_indexes(store: &Store, stop: &CancellationToken) {
    if store.dialect() == Dialect::Sqlite {
        return;
    }
    let mut pause = INDEXES;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(pause)) => {}
        }
        let began = Instant::now();
        tokio::select! {
            () = stop.cancelled() => return,
            made = store.make_indexes() => {
                // An index that could not be finished is built anew, and takes as long again.
                pause = if matches!(made, Ok(0)) { INDEXES } else { (pause * 2).min(LONGEST_PAUSE) };
                noted("indexes", began, made);
            }
        }
    }
}

/// What is remembered from turn to turn.
struct Pruning {
    settings: Settings,
    /// Rows of one transaction of each chore.
    archived: Batch,
    forgotten: Batch,
    lanes: Batch,
    answers: Batch,
    links: Batch,
    schedules: Batch,
    /// How far the walk through the jobs that are over has come, and when it began.
    over: Position,
    over_began: Instant,
    /// Jobs that were over before this are forgotten, but for some that were locked, and since when that holds.
    history: Timestamp,
    history_began: Instant,
    /// How far the walk through the lanes has come.
    lane: String,
}

/// Rows of one transaction: fewer after one that the database gave up, since it would take as long again.
#[derive(Clone, Copy)]
struct Batch {
    rows: i64,
    most: i64,
}

impl Batch {
    const fn new(most: i64) -> Self {
        Self { rows: most, most }
    }

    /// Passes on what came of a transaction, and takes more or fewer rows in the next.
    fn learn<T>(&mut self, done: store::Result<T>) -> store::Result<T> {
        match &done {
            Ok(_) => self.grow(),
            Err(error) if error.is_contended() => self.shrink(),
            Err(_) => {}
        }
        done
    }

    fn grow(&mut self) {
        self.rows = (self.rows + self.rows / 8 + 1).min(self.most);
    }

    fn shrink(&mut self) {
        self.rows = (self.rows / 2).max(1);
    }
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
        let batch = Batch::new(match store.dialect() {
            // Everybody else who writes waits for it.
            Dialect::Sqlite => 200,
            Dialect::Postgres => 1000,
        });
        Self {
            settings,
            archived: batch,
            forgotten: batch,
            lanes: batch,
            answers: batch,
            links: batch,
            schedules: batch,
            over: Position::START,
            over_began: Instant::now(),
            history: Timestamp::from_micros(0),
            history_began: Instant::now(),
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
        let done = self.prune_schedules(store, &Budget::new(stop)).await;
        caught_up &= noted("ended schedules", began, done);
        let began = Instant::now();
        let done = prune_workers(store).await;
        caught_up &= noted("workers", began, done);
        caught_up
    }

    /// Moves jobs that have been over for a while to the history.
    async fn archive(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.archive_jobs);
        loop {
            let (from, rows) = (self.over, self.archived.rows);
            let step = store
                .write(async |tx| jobs::archive(tx, before, from, rows).await)
                .await;
            let step = self.archived.learn(step)?;
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
    async fn forget(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.keep_jobs);
        if self.history_began.elapsed() >= ANEW {
            self.history = Timestamp::from_micros(0);
            self.history_began = Instant::now();
        }
        loop {
            let (from, rows) = (self.history, self.forgotten.rows);
            let step = store.write(async |tx| jobs::forget(tx, before, from, rows).await).await;
            let step = self.forgotten.learn(step)?;
            self.history = step.reached;
            if step.at_end {
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        let from = self.history;
        store
            .read(async |tx| jobs::unforgotten_from(tx, before, from, COUNTED).await)
            .await
    }

    /// Removes lanes that no open job is in. The walk goes through all of them, turn after turn.
    async fn prune_lanes(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        loop {
            let (behind, rows) = (self.lane.clone(), self.lanes.rows);
            let pruned = store
                .write(async |tx| lanes::prune_behind(tx, &behind, rows).await)
                .await;
            match self.lanes.learn(pruned)?.last {
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

    async fn prune_answers(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(idempotency::KEPT);
        loop {
            let rows = self.answers.rows;
            let gone = store.write(async |tx| idempotency::prune(tx, before, rows).await).await;
            if is_less(self.answers.learn(gone)?, rows) {
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

    async fn prune_links(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(feedback_tokens::KEPT);
        loop {
            let rows = self.links.rows;
            let gone = store
                .write(async |tx| feedback_tokens::prune(tx, before, rows).await)
                .await;
            if is_less(self.links.learn(gone)?, rows) {
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

    /// Forgets schedules that have ended, as long after it as their jobs.
    async fn prune_schedules(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.keep_jobs);
        loop {
            let rows = self.schedules.rows;
            let gone = store.write(async |tx| schedules::prune(tx, before, rows).await).await;
            if is_less(self.schedules.learn(gone)?, rows) {
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        store
            .read(async |tx| schedules::count_before(tx, before, COUNTED).await)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_given_up_is_not_repeated_as_it_was() {
        let mut batch = Batch::new(1000);
        let sizes: Vec<i64> = (0..11)
            .map(|_| {
                batch.shrink();
                batch.rows
            })
            .collect();
        assert_eq!(sizes, [500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1]);
        // It comes back step by step: at once it would be given up again.
        batch.grow();
        assert_eq!(batch.rows, 2);
        for _ in 0..100 {
            batch.grow();
        }
        assert_eq!(batch.rows, 1000);
        assert!(batch.learn(Err::<(), _>(store::Error::NotFound)).is_err());
        assert_eq!(batch.rows, 1000, "no fault of its size");
    }
}
