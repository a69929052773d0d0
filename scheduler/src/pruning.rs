//! Cleanup: finished jobs leave the busy tables, and are deleted after their retention.
//!
//! Each sweep works in small transactions until it has caught up or its time budget is used; a metric has the rest.
//! While a sweep is behind, the next run follows soon. A failing sweep does not delay the others, and it uses smaller
//! batches after a timeout of the database.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use towpath_domain::Timestamp;
use towpath_store::jobs::{self, Position};
use towpath_store::{self as store, Dialect, Store, Tx, feedback_tokens, idempotency, lanes, schedules, workers};

use crate::{Settings, jittered, metric};

/// Pause after everything has caught up.
const REST: Duration = Duration::from_secs(30);
/// Pause while something is behind.
const SOON: Duration = Duration::from_secs(1);
/// Time budget of one sweep in a run.
const BUDGET: Duration = Duration::from_secs(5);
/// The walk through finished jobs restarts after this time, because some could not be moved when it passed them.
const ANEW: Duration = Duration::from_secs(5 * 60);
/// Pause before missing indexes are retried that could not be created at the start.
const INDEXES: Duration = Duration::from_secs(60);
/// Maximum pause between two attempts to create an index.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// How long a killed worker is shown as silent.
const SILENT_WORKERS: Duration = Duration::from_secs(3600);
/// Limit of the count of remaining rows.
const COUNTED: i64 = 10_000;

/// Runs until it is stopped; the current transaction finishes.
pub(crate) async fn run(store: Store, settings: Settings, stop: CancellationToken) {
    tokio::join!(prune(&store, settings, &stop), make_indexes(&store, &stop));
}

async fn prune(store: &Store, settings: Settings, stop: &CancellationToken) {
    let mut pruning = Pruner::new(store, settings);
    loop {
        let caught_up = pruning.prune_all(store, stop).await;
        let rest = if caught_up { REST } else { SOON };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(rest)) => {}
        }
    }
}

/// Creates indexes that the start could not create because the database was too busy. Some sweeps need them. Creating
/// one may take long, so a stopping scheduler does not wait: the database finishes it, or the next scheduler does.
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
                // A failed index is built from the start and takes just as long.
                pause = if matches!(made, Ok(0)) { INDEXES } else { (pause * 2).min(LONGEST_PAUSE) };
                log_result("indexes", began, made);
            }
        }
    }
}

/// State kept between runs.
struct Pruner {
    settings: Settings,
    /// Batch size of each sweep.
    archived: BatchSize,
    forgotten: BatchSize,
    lanes: BatchSize,
    answers: BatchSize,
    links: BatchSize,
    schedules: BatchSize,
    /// Position and start of the walk through finished jobs.
    archive_position: Position,
    archive_started: Instant,
    /// Jobs that ended before this are deleted, except some that were locked, and since when that holds.
    history_cutoff: Timestamp,
    history_started: Instant,
    /// Position of the walk through the lanes.
    lane_position: String,
}

/// Rows of one transaction: reduced after a timeout of the database.
#[derive(Clone, Copy)]
struct BatchSize {
    rows: i64,
    max_rows: i64,
}

impl BatchSize {
    const fn new(most: i64) -> Self {
        Self {
            rows: most,
            max_rows: most,
        }
    }

    /// Returns the result of a transaction, and adapts the size of the next one.
    fn adjust<T>(&mut self, done: store::Result<T>) -> store::Result<T> {
        match &done {
            Ok(_) => self.grow(),
            Err(error) if error.is_contended() => self.shrink(),
            Err(_) => {}
        }
        done
    }

    fn grow(&mut self) {
        self.rows = (self.rows + self.rows / 8 + 1).min(self.max_rows);
    }

    fn shrink(&mut self) {
        self.rows = (self.rows / 2).max(1);
    }
}

/// Time budget of a sweep.
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

impl Pruner {
    fn new(store: &Store, settings: Settings) -> Self {
        let batch = BatchSize::new(match store.dialect() {
            // All other writers wait for it.
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
            archive_position: Position::START,
            archive_started: Instant::now(),
            history_cutoff: Timestamp::from_micros(0),
            history_started: Instant::now(),
            lane_position: String::new(),
        }
    }

    /// Whether everything has caught up. A failed sweep counts as caught up and is retried in the next run.
    async fn prune_all(&mut self, store: &Store, stop: &CancellationToken) -> bool {
        let mut caught_up = true;
        let began = Instant::now();
        let done = self.archive(store, &Budget::new(stop)).await;
        caught_up &= log_result("finished jobs", began, done);
        let began = Instant::now();
        let done = self.forget(store, &Budget::new(stop)).await;
        caught_up &= log_result("job history", began, done);
        let began = Instant::now();
        let done = self.prune_lanes(store, &Budget::new(stop)).await;
        caught_up &= log_result("lanes", began, done);
        let began = Instant::now();
        let done = self.prune_answers(store, &Budget::new(stop)).await;
        caught_up &= log_result("idempotency keys", began, done);
        let began = Instant::now();
        let done = self.prune_links(store, &Budget::new(stop)).await;
        caught_up &= log_result("feedback links", began, done);
        let began = Instant::now();
        let done = self.prune_schedules(store, &Budget::new(stop)).await;
        caught_up &= log_result("ended schedules", began, done);
        let began = Instant::now();
        let done = prune_workers(store).await;
        caught_up &= log_result("workers", began, done);
        caught_up
    }

    /// Moves finished jobs to the history.
    async fn archive(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.archive_jobs);
        loop {
            let (from, rows) = (self.archive_position, self.archived.rows);
            let step = store
                .write(async |tx| jobs::archive(tx, before, from, rows).await)
                .await;
            let step = self.archived.adjust(step)?;
            self.archive_position = step.position;
            if step.at_end {
                if self.archive_started.elapsed() >= ANEW {
                    self.archive_position = Position::START;
                    self.archive_started = Instant::now();
                }
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        let from = self.archive_position;
        store
            .read(async |tx| jobs::count_unarchived(tx, before, from, COUNTED).await)
            .await
    }

    /// Deletes old finished jobs.
    async fn forget(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.keep_jobs);
        if self.history_started.elapsed() >= ANEW {
            self.history_cutoff = Timestamp::from_micros(0);
            self.history_started = Instant::now();
        }
        loop {
            let (from, rows) = (self.history_cutoff, self.forgotten.rows);
            let step = store
                .write(async |tx| jobs::delete_old(tx, before, from, rows).await)
                .await;
            let step = self.forgotten.adjust(step)?;
            self.history_cutoff = step.last_finished_at;
            if step.at_end {
                return Ok(0);
            }
            if budget.is_spent() {
                break;
            }
        }
        let from = self.history_cutoff;
        store
            .read(async |tx| jobs::count_deletable_from(tx, before, from, COUNTED).await)
            .await
    }

    /// Deletes lanes without open jobs. The walk covers all of them over several runs.
    async fn prune_lanes(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        loop {
            let (behind, rows) = (self.lane_position.clone(), self.lanes.rows);
            let pruned = store
                .write(async |tx| lanes::prune_behind(tx, &behind, rows).await)
                .await;
            match self.lanes.adjust(pruned)?.last {
                Some(last) => self.lane_position = last,
                None => {
                    self.lane_position.clear();
                    return Ok(0);
                }
            }
            if budget.is_spent() {
                break;
            }
        }
        let behind = self.lane_position.clone();
        store
            .read(async |tx| lanes::count_behind(tx, &behind, COUNTED).await)
            .await
    }

    async fn prune_answers(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(idempotency::RETENTION);
        let prune = async move |tx: &mut Tx<'_>, rows| idempotency::prune(tx, before, rows).await;
        if delete_all(store, &mut self.answers, budget, prune).await? {
            return Ok(0);
        }
        store
            .read(async |tx| idempotency::count_before(tx, before, COUNTED).await)
            .await
    }

    async fn prune_links(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(feedback_tokens::KEPT);
        let prune = async move |tx: &mut Tx<'_>, rows| feedback_tokens::prune(tx, before, rows).await;
        if delete_all(store, &mut self.links, budget, prune).await? {
            return Ok(0);
        }
        store
            .read(async |tx| feedback_tokens::count_before(tx, before, COUNTED).await)
            .await
    }

    /// Deletes ended schedules after the retention of their jobs.
    async fn prune_schedules(&mut self, store: &Store, budget: &Budget<'_>) -> store::Result<i64> {
        let before = store.clock().now().minus(self.settings.keep_jobs);
        let prune = async move |tx: &mut Tx<'_>, rows| schedules::prune(tx, before, rows).await;
        if delete_all(store, &mut self.schedules, budget, prune).await? {
            return Ok(0);
        }
        store
            .read(async |tx| schedules::count_before(tx, before, COUNTED).await)
            .await
    }
}

/// There are few, so all are deleted at once.
async fn prune_workers(store: &Store) -> store::Result<i64> {
    store.write(async |tx| workers::prune(tx, SILENT_WORKERS).await).await?;
    Ok(0)
}

/// Repeats a deletion until a batch is not full or the time budget is used. Returns whether nothing is left.
async fn delete_all(
    store: &Store,
    size: &mut BatchSize,
    budget: &Budget<'_>,
    mut delete: impl AsyncFnMut(&mut Tx<'_>, i64) -> store::Result<u64>,
) -> store::Result<bool> {
    loop {
        let rows = size.rows;
        let gone = store.write(async |tx| delete(tx, rows).await).await;
        if is_less(size.adjust(gone)?, rows) {
            return Ok(true);
        }
        if budget.is_spent() {
            return Ok(false);
        }
    }
}

fn is_less(gone: u64, batch: i64) -> bool {
    i64::try_from(gone).is_ok_and(|gone| gone < batch)
}

/// Records the result of a sweep. Returns whether it has caught up, or failed and should wait.
fn log_result(sweep: &'static str, began: Instant, done: store::Result<i64>) -> bool {
    match done {
        Ok(left) => {
            metric::swept(sweep, began.elapsed(), Some(left));
            left == 0
        }
        Err(error) => {
            metric::swept(sweep, began.elapsed(), None);
            tracing::warn!(sweep, error = %error, "a sweep failed; retrying at its next run");
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_given_up_is_not_repeated_as_it_was() {
        let mut batch = BatchSize::new(1000);
        let sizes: Vec<i64> = (0..11)
            .map(|_| {
                batch.shrink();
                batch.rows
            })
            .collect();
        assert_eq!(sizes, [500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1]);
        // Grown step by step: a sudden increase would time out again.
        batch.grow();
        assert_eq!(batch.rows, 2);
        for _ in 0..100 {
            batch.grow();
        }
        assert_eq!(batch.rows, 1000);
        assert!(batch.adjust(Err::<(), _>(store::Error::NotFound)).is_err());
        assert_eq!(batch.rows, 1000, "no fault of its size");
    }
}
