//! The clock.
//!
//! Promises: a job that is due becomes ready, a lease that ended is taken back, a deadline is enforced, an active
//! schedule has a spawn job, what is over long enough is forgotten; each within about a second of its time, and right
//! when several schedulers run at once or none has run for a day. Leaves to others: what any of these jobs do. Jobs
//! it ends, it ends through the `end` of their kind, which is attached to the store. What else is to be looked after again
//! and again, such as jobs that should be there and are not, is handed in ([`Scheduler::add`]).

use std::pin::Pin;
use std::time::{Duration, Instant};

use rand::Rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use towpath_store::{self as store, Dialect, Store};

mod gauges;
pub mod metric;

/// A worker that was killed is shown as silent for so long.
const SILENT_WORKERS: Duration = Duration::from_secs(3600);

/// Times of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The engine's lease.
    pub lease: Duration,
    /// How often due jobs, leases and deadlines are looked at. Jittered by half either way.
    pub tick: Duration,
    /// How long a running job may go on past its deadline before it is ended over its worker's head.
    pub deadline_grace: Duration,
    /// How long jobs that are over are kept. Dead letters stay.
    pub keep_jobs: Duration,
    /// How long after a spawn job ended without advancing its schedule another one is recorded.
    pub spawn_rest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            tick: Duration::from_millis(500),
            deadline_grace: Duration::from_secs(10),
            keep_jobs: Duration::from_secs(14 * 24 * 3600),
            spawn_rest: Duration::from_secs(60),
        }
    }
}

/// The loops of one process.
pub struct Scheduler {
    store: Store,
    stop: CancellationToken,
    loops: JoinSet<()>,
}

/// What one turn of a loop comes to.
pub type Turn = Pin<Box<dyn Future<Output = store::Result<()>> + Send>>;

impl Scheduler {
    /// Starts the loops.
    ///
    /// # Errors
    /// On SQLite, when the jobs an earlier life of this process held cannot be readied.
    pub async fn start(store: &Store, settings: Settings) -> store::Result<Self> {
        if store.dialect() == Dialect::Sqlite {
            let readied = towpath_durable::ready_earlier_boots(store).await?;
            if readied > 0 {
                tracing::info!(jobs = readied, "readied the jobs an earlier start of this process held");
            }
        }
        let stop = CancellationToken::new();
        let mut loops = JoinSet::new();
        let tick = settings.tick;
        loops.spawn(every(
            "due jobs",
            tick,
            stop.clone(),
            store.clone(),
            async |store: &Store| {
                // A burst is worked off without waiting for the next tick.
                while towpath_durable::ready_due(store).await? >= 500 {}
                Ok(())
            },
        ));
        loops.spawn(every(
            "deadlines",
            tick * 2,
            stop.clone(),
            store.clone(),
            async move |store: &Store| {
                towpath_durable::end_overdue(store, settings.deadline_grace)
                    .await
                    .map(drop)
            },
        ));
        loops.spawn(every(
            "schedules",
            tick * 4,
            stop.clone(),
            store.clone(),
            async move |store: &Store| towpath_durable::respawn(store, settings.spawn_rest).await.map(drop),
        ));
        if store.dialect() == Dialect::Postgres {
            loops.spawn(rescue(store.clone(), settings, stop.clone()));
        }
        loops.spawn(every(
            "pruning",
            Duration::from_secs(30),
            stop.clone(),
            store.clone(),
            async move |store: &Store| {
                let before = store.clock().now().minus(settings.keep_jobs);
                // Small batches, so that on SQLite no writer waits long.
                while store
                    .write(async |tx| store::jobs::forget(tx, before, 200).await)
                    .await?
                    == 200
                {}
                let before = store.clock().now().minus(store::idempotency::KEPT);
                while store
                    .write(async |tx| store::idempotency::prune(tx, before, 200).await)
                    .await?
                    == 200
                {}
                let before = store.clock().now().minus(store::feedback_tokens::KEPT);
                while store
                    .write(async |tx| store::feedback_tokens::prune(tx, before, 200).await)
                    .await?
                    == 200
                {}
                store.write(async |tx| store::lanes::prune(tx, 200).await).await?;
                store
                    .write(async |tx| store::workers::prune(tx, SILENT_WORKERS).await)
                    .await
                    .map(drop)
            },
        ));
        loops.spawn(every("gauges", Duration::from_secs(5), stop.clone(), store.clone(), {
            let gauges = gauges::Gauges::default();
            async move |store: &Store| gauges.record(store).await
        }));
        let store = store.clone();
        Ok(Self { store, stop, loops })
    }

    /// Does this work about every `period`, too, until the scheduler stops. `name` is the label of its metrics.
    pub fn add(&mut self, name: &'static str, period: Duration, work: impl Fn(Store) -> Turn + Send + Sync + 'static) {
        let work = async move |store: &Store| work(store.clone()).await;
        self.loops
            .spawn(every(name, period, self.stop.clone(), self.store.clone(), work));
    }

    /// Stops the loops, each between two transactions.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.loops.join_next().await.is_some() {}
    }
}

/// Takes back leases that ended, unless this scheduler was away itself: after a pause of the process or the database
/// every lease looks ended, and workers that live need one renewal to show it.
async fn rescue(store: Store, settings: Settings, stop: CancellationToken) {
    let mut gap = Gap::new(settings.lease);
    let beat = (settings.lease / 10)
        .min(Duration::from_secs(1))
        .max(Duration::from_millis(50));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(beat)) => {}
        }
        // Looking is what counts as being there: a database that does not answer is a gap too.
        let alive = store.read(async |tx| store::jobs::db_now(tx).await).await;
        if let Err(error) = alive {
            tracing::warn!(error = %error, "cannot look for ended leases");
            continue;
        }
        if !gap.may_rescue(Instant::now()) {
            continue;
        }
        if let Err(error) = towpath_durable::rescue(&store).await {
            tracing::warn!(error = %error, "cannot take back ended leases");
        }
    }
}

/// Notices that its owner was away.
struct Gap {
    lease: Duration,
    last: Option<Instant>,
    wait_until: Option<Instant>,
}

impl Gap {
    const fn new(lease: Duration) -> Self {
        Self {
            lease,
            last: None,
            wait_until: None,
        }
    }

    /// Called at each beat. A first beat, or one after more than a third of a lease, waits one lease from now.
    fn may_rescue(&mut self, now: Instant) -> bool {
        let away = self.last.is_none_or(|last| now.duration_since(last) > self.lease / 3);
        self.last = Some(now);
        if away {
            self.wait_until = Some(now + self.lease);
        }
        self.wait_until.is_none_or(|until| now >= until)
    }
}

/// Runs `work` every `period`, logs what fails, and goes on.
async fn every<F>(name: &'static str, period: Duration, stop: CancellationToken, store: Store, work: F)
where
    F: AsyncFn(&Store) -> store::Result<()>,
{
    loop {
        let began = Instant::now();
        let done = work(&store).await;
        metrics::histogram!(metric::SWEEP_SECONDS, "sweep" => name).record(began.elapsed());
        if let Err(error) = done {
            metrics::counter!(metric::SWEEP_ERRORS, "sweep" => name).increment(1);
            tracing::warn!(sweep = name, error = %error, "a sweep failed; it is repeated at its next turn");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(period)) => {}
        }
    }
}

/// Several schedulers must not march in step.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(rand::rng().random_range(0.5..1.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_was_away_waits_one_lease() {
        let lease = Duration::from_secs(15);
        let mut gap = Gap::new(lease);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!gap.may_rescue(at(0)), "it has just come");
        for second in 1..15 {
            assert!(!gap.may_rescue(at(second)));
        }
        assert!(gap.may_rescue(at(15)));
        assert!(gap.may_rescue(at(19)), "four seconds are less than a third");
        assert!(!gap.may_rescue(at(25)), "six seconds are more");
        for second in 26..40 {
            assert!(!gap.may_rescue(at(second)));
        }
        assert!(gap.may_rescue(at(40)));
    }
}
