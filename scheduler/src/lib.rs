//! The scheduler: everything that depends on time.
//!
//! Guarantees: due jobs become ready, jobs of workers without a lease are taken back, deadlines are enforced, active
//! schedules have a spawn job, and finished jobs move to the history and are later deleted. Each happens within about a
//! second of its time, the history within a minute. This holds with several schedulers at once, or after a day without
//! any. Jobs end through the `end` of their kind, which is attached to the store. Other periodic work, such as
//! recording missing jobs, is registered with [`Scheduler::add`].

use std::pin::Pin;
use std::time::{Duration, Instant};

use rand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use towpath_domain::{Timestamp, WorkerId};
use towpath_durable::{ExpiredLeases, LostWorkerScope};
use towpath_store::{self as store, Dialect, Store};

mod gauges;
pub mod metric;
mod pruning;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub lease: Duration,
    /// Interval of scans for due jobs and deadlines, with a jitter of half.
    pub tick: Duration,
    /// How long a job may run past its deadline before the scheduler ends it.
    pub deadline_grace: Duration,
    /// How long a finished job stays in `job` before it moves to the history.
    pub archive_jobs: Duration,
    /// How long finished jobs are kept. Dead letters are kept for ever.
    pub keep_jobs: Duration,
    /// Delay before a new spawn job is recorded after one ended without advancing its schedule.
    pub spawn_rest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            tick: Duration::from_millis(500),
            deadline_grace: Duration::from_secs(10),
            archive_jobs: Duration::from_secs(10 * 60),
            keep_jobs: Duration::from_secs(14 * 24 * 3600),
            spawn_rest: Duration::from_secs(60),
        }
    }
}

/// The sweeps of one process.
pub struct Scheduler {
    store: Store,
    stop: CancellationToken,
    loops: JoinSet<()>,
}

pub type TickFuture = Pin<Box<dyn Future<Output = store::Result<()>> + Send>>;

impl Scheduler {
    /// Starts the sweeps. On SQLite, jobs of an earlier process life are made ready first.
    pub async fn start(store: &Store, settings: Settings) -> store::Result<Self> {
        if store.dialect() == Dialect::Sqlite {
            let readied = towpath_durable::release_earlier_boots(store).await?;
            if readied > 0 {
                tracing::info!(jobs = readied, "returned jobs of an earlier process life to ready");
            }
        }
        let stop = CancellationToken::new();
        let mut loops = JoinSet::new();
        let tick = settings.tick;
        loops.spawn(run_every(
            "due jobs",
            tick,
            stop.clone(),
            store.clone(),
            async |store: &Store| {
                // A burst is handled without waiting for the next tick.
                while towpath_durable::ready_due(store).await? >= 500 {}
                Ok(())
            },
        ));
        loops.spawn(run_every(
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
        loops.spawn(run_every(
            "schedules",
            tick * 4,
            stop.clone(),
            store.clone(),
            async move |store: &Store| towpath_durable::respawn(store, settings.spawn_rest).await.map(drop),
        ));
        if store.dialect() == Dialect::Postgres {
            let (lost, found) = watch::channel(Vec::new());
            loops.spawn(scan_for_lost_workers(store.clone(), settings.lease, lost, stop.clone()));
            loops.spawn(rescue(store.clone(), found, stop.clone()));
        }
        loops.spawn(pruning::run(store.clone(), settings, stop.clone()));
        loops.spawn(run_every(
            "gauges",
            Duration::from_secs(5),
            stop.clone(),
            store.clone(),
            {
                let gauges = gauges::Gauges::default();
                async move |store: &Store| gauges.record(store).await
            },
        ));
        let store = store.clone();
        Ok(Self { store, stop, loops })
    }

    /// Also runs this work about every `period` until the scheduler stops. `name` is the label of its metrics.
    pub fn add(
        &mut self,
        name: &'static str,
        period: Duration,
        work: impl Fn(Store) -> TickFuture + Send + Sync + 'static,
    ) {
        let work = async move |store: &Store| work(store.clone()).await;
        self.loops
            .spawn(run_every(name, period, self.stop.clone(), self.store.clone(), work));
    }

    /// Stops the sweeps; each finishes its current transaction.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.loops.join_next().await.is_some() {}
    }
}

/// Ends expired leases and reports workers with jobs but no lease. Each scan is one short statement, separate from
/// [`rescue`], which takes the jobs back, so that a slow rescue does not look like downtime. A few times per lease, and
/// during one lease after a worker was lost, a scan covers all workers with jobs.
async fn scan_for_lost_workers(
    store: Store,
    lease: Duration,
    lost: watch::Sender<Vec<WorkerId>>,
    stop: CancellationToken,
) {
    let mut gap = DowntimeDetector::new(lease);
    let beat = (lease / 20).clamp(Duration::from_millis(50), Duration::from_millis(500));
    let mut looked_for_old = Instant::now();
    let mut next_reach = Instant::now();
    let mut found = None::<Instant>;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(beat)) => {}
        }
        let began = Instant::now();
        let expired = gap.lease_policy(began);
        let reach = if began >= next_reach || found.is_some_and(|found| found.elapsed() < lease) {
            LostWorkerScope::AllWorkers
        } else {
            LostWorkerScope::Leases
        };
        match towpath_durable::lost_workers(&store, expired, reach).await {
            Ok(look) => {
                gap.record_answer(Instant::now(), look.scanned_at);
                if reach == LostWorkerScope::AllWorkers {
                    next_reach = began + lease / 3;
                }
                if !look.workers.is_empty() {
                    found = Some(began);
                    lost.send_replace(look.workers);
                }
            }
            // An unavailable database counts as downtime.
            Err(error) => {
                // The wide scan may be what is slow. The narrow ones end leases after the downtime.
                if reach == LostWorkerScope::AllWorkers {
                    found = None;
                    next_reach = Instant::now() + 4 * lease;
                }
                tracing::warn!(error = %error, "cannot scan for lost workers");
            }
        }
        // Only processes of an earlier version have such leases.
        if expired != ExpiredLeases::Keep && looked_for_old.elapsed() >= lease {
            looked_for_old = Instant::now();
            if let Err(error) = towpath_durable::end_old_leases(&store).await {
                tracing::warn!(error = %error, "cannot scan for leases of single jobs");
            }
        }
    }
}

/// Takes back the jobs of lost workers, however long that takes.
async fn rescue(store: Store, mut lost: watch::Receiver<Vec<WorkerId>>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = lost.changed() => if changed.is_err() { return },
        }
        let workers = lost.borrow_and_update().clone();
        let began = Instant::now();
        let taken = towpath_durable::take_back(&store, &workers).await;
        metrics::histogram!(metric::SWEEP_SECONDS, "sweep" => "lost workers").record(began.elapsed());
        if let Err(error) = taken {
            metrics::counter!(metric::SWEEP_ERRORS, "sweep" => "lost workers").increment(1);
            tracing::warn!(error = %error, "cannot take jobs back from lost workers; retrying at the next scan");
        }
    }
}

/// Detects downtime of this process or of the database. After it, every lease looks expired, and live workers need time
/// for one renewal.
struct DowntimeDetector {
    lease: Duration,
    /// When the database last answered, and its clock at that time.
    last: Option<(Instant, Timestamp)>,
    wait_until: Option<Instant>,
}

impl DowntimeDetector {
    const fn new(lease: Duration) -> Self {
        Self {
            lease,
            last: None,
            wait_until: None,
        }
    }

    /// After the first answer, or a gap of more than a third of a lease by either clock, no lease is ended for one
    /// lease from now.
    fn record_answer(&mut self, now: Instant, says: Timestamp) {
        let third = self.lease / 3;
        let away = |(last, said): (Instant, Timestamp)| now.duration_since(last) > third || says.since(said) > third;
        if self.last.is_none_or(away) {
            self.wait_until = Some(now + self.lease);
        }
        self.last = Some((now, says));
    }

    /// Whether leases may be ended now. The statement may be delayed in the database, so the policy includes the
    /// database's time.
    fn lease_policy(&self, now: Instant) -> ExpiredLeases {
        let third = self.lease / 3;
        match self.last {
            Some((last, said))
                if now.duration_since(last) <= third && self.wait_until.is_none_or(|until| now >= until) =>
            {
                ExpiredLeases::End {
                    by: Some(said.plus(third)),
                }
            }
            _ => ExpiredLeases::Keep,
        }
    }
}

/// Runs `work` every `period`, and logs failures.
async fn run_every<F>(name: &'static str, period: Duration, stop: CancellationToken, store: Store, work: F)
where
    F: AsyncFn(&Store) -> store::Result<()>,
{
    loop {
        let began = Instant::now();
        let done = work(&store).await;
        metrics::histogram!(metric::SWEEP_SECONDS, "sweep" => name).record(began.elapsed());
        if let Err(error) = done {
            metrics::counter!(metric::SWEEP_ERRORS, "sweep" => name).increment(1);
            tracing::warn!(sweep = name, error = %error, "a sweep failed; retrying at its next run");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(period)) => {}
        }
    }
}

/// Prevents several schedulers from running in step.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(rand::rng().random_range(0.5..1.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    /// Records an answer at each of these seconds; returns the policy one second after the last of them.
    fn after(answers: impl IntoIterator<Item = u64>) -> ExpiredLeases {
        let (start, zero) = (Instant::now(), Timestamp::from_micros(0));
        let mut gap = DowntimeDetector::new(LEASE);
        let mut now = start;
        for seconds in answers {
            now = start + Duration::from_secs(seconds);
            gap.record_answer(now, zero.plus(Duration::from_secs(seconds)));
        }
        gap.lease_policy(now + Duration::from_secs(1))
    }

    #[test]
    fn a_scheduler_that_was_away_waits_one_lease() {
        let by = |seconds: i64| ExpiredLeases::End {
            by: Some(Timestamp::from_micros(seconds * 1_000_000)),
        };
        assert_eq!(after([]), ExpiredLeases::Keep, "nobody has answered");
        for last in 0..14 {
            assert_eq!(after(0..=last), ExpiredLeases::Keep, "it has just come");
        }
        assert_eq!(after(0..=14), by(19), "five seconds more than the database said last");
        assert_eq!(after((0..=15).chain([20])), by(25), "five seconds are a third");
        assert_eq!(after((0..=15).chain([21])), ExpiredLeases::Keep, "six seconds are more");
        assert_eq!(after((0..=15).chain(21..=34)), ExpiredLeases::Keep);
        assert_eq!(after((0..=15).chain(21..=35)), by(40));
    }

    #[test]
    fn a_look_that_comes_late_or_a_clock_that_jumps_ends_nothing() {
        let (start, zero) = (Instant::now(), Timestamp::from_micros(0));
        let mut gap = DowntimeDetector::new(LEASE);
        for seconds in 0..=15 {
            gap.record_answer(
                start + Duration::from_secs(seconds),
                zero.plus(Duration::from_secs(seconds)),
            );
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_ne!(gap.lease_policy(at(16)), ExpiredLeases::Keep);
        assert_eq!(gap.lease_policy(at(22)), ExpiredLeases::Keep, "whoever asks was away");
        gap.record_answer(at(16), zero.plus(Duration::from_secs(3600)));
        assert_eq!(
            gap.lease_policy(at(17)),
            ExpiredLeases::Keep,
            "the database's clock says so"
        );
    }
}
