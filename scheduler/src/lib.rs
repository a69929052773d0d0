//! The clock.
//!
//! Promises: a job that is due becomes ready, the jobs of a worker whose lease ended are taken back, a deadline is enforced, an active
//! schedule has a spawn job, what is over leaves for the history and is forgotten after its time; each within about a second
//! of its time, history within a minute, and right when several schedulers run at once or none has run for a day. Leaves to others: what any of these jobs do. Jobs
//! it ends, it ends through the `end` of their kind, which is attached to the store. What else is to be looked after again
//! and again, such as jobs that should be there and are not, is handed in ([`Scheduler::add`]).

use std::pin::Pin;
use std::time::{Duration, Instant};

use rand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use towpath_domain::{Timestamp, WorkerId};
use towpath_durable::{Expired, Reach};
use towpath_store::{self as store, Dialect, Store};

mod gauges;
pub mod metric;
mod pruning;

/// Times of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The engine's lease.
    pub lease: Duration,
    /// How often due jobs and deadlines are looked at. Jittered by half either way.
    pub tick: Duration,
    /// How long a running job may go on past its deadline before it is ended over its worker's head.
    pub deadline_grace: Duration,
    /// How long a job that is over stays among the open ones. Then it leaves for the history.
    pub archive_jobs: Duration,
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
            archive_jobs: Duration::from_secs(10 * 60),
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
            let (lost, found) = watch::channel(Vec::new());
            loops.spawn(look_for_lost(store.clone(), settings.lease, lost, stop.clone()));
            loops.spawn(rescue(store.clone(), found, stop.clone()));
        }
        loops.spawn(pruning::run(store.clone(), settings, stop.clone()));
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

/// Ends leases that have passed their time, and says who has jobs and no lease. Each look is one short statement, and [`rescue`]
/// takes the jobs back: so being away is told from being busy. A few times in a lease, and for one lease after a worker was lost, a
/// look reaches everybody who has jobs.
async fn look_for_lost(store: Store, lease: Duration, lost: watch::Sender<Vec<WorkerId>>, stop: CancellationToken) {
    let mut gap = Gap::new(lease);
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
        let expired = gap.expired(began);
        let reach = if began >= next_reach || found.is_some_and(|found| found.elapsed() < lease) {
            Reach::Holders
        } else {
            Reach::Leases
        };
        match towpath_durable::lost_workers(&store, expired, reach).await {
            Ok(look) => {
                gap.answered(Instant::now(), look.at);
                if reach == Reach::Holders {
                    next_reach = began + lease / 3;
                }
                if !look.lost.is_empty() {
                    found = Some(began);
                    lost.send_replace(look.lost);
                }
            }
            // A database that does not answer is a gap.
            Err(error) => {
                // The far look may be what takes too long. The near ones end leases once the gap is over.
                if reach == Reach::Holders {
                    found = None;
                    next_reach = Instant::now() + 4 * lease;
                }
                tracing::warn!(error = %error, "cannot look for lost workers");
            }
        }
        // Only processes of an earlier version have those.
        if expired != Expired::Leave && looked_for_old.elapsed() >= lease {
            looked_for_old = Instant::now();
            if let Err(error) = towpath_durable::end_old_leases(&store).await {
                tracing::warn!(error = %error, "cannot look for leases of single jobs");
            }
        }
    }
}

/// Takes the jobs of lost workers back, as long as that takes.
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
            tracing::warn!(error = %error, "cannot take jobs back from lost workers; it is repeated at the next look");
        }
    }
}

/// Notices that its owner was away, or the database: then every lease looks over, and workers that live need one renewal to show
/// it.
struct Gap {
    lease: Duration,
    /// When the database answered, and what its clock said.
    last: Option<(Instant, Timestamp)>,
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

    /// The first answer, or one that is more than a third of a lease behind the one before, by either clock: nothing is ended for
    /// one lease from now.
    fn answered(&mut self, now: Instant, says: Timestamp) {
        let third = self.lease / 3;
        let away = |(last, said): (Instant, Timestamp)| now.duration_since(last) > third || says.since(said) > third;
        if self.last.is_none_or(away) {
            self.wait_until = Some(now + self.lease);
        }
        self.last = Some((now, says));
    }

    /// Whether leases may be ended now. The database may be stopped before it gets to it; its own clock tells it.
    fn expired(&self, now: Instant) -> Expired {
        let third = self.lease / 3;
        match self.last {
            Some((last, said))
                if now.duration_since(last) <= third && self.wait_until.is_none_or(|until| now >= until) =>
            {
                Expired::End {
                    by: Some(said.plus(third)),
                }
            }
            _ => Expired::Leave,
        }
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

    const LEASE: Duration = Duration::from_secs(15);

    /// The gap after an answer at each of these seconds, and what may be ended a second after the last of them.
    fn after(answers: impl IntoIterator<Item = u64>) -> Expired {
        let (start, zero) = (Instant::now(), Timestamp::from_micros(0));
        let mut gap = Gap::new(LEASE);
        let mut now = start;
        for seconds in answers {
            now = start + Duration::from_secs(seconds);
            gap.answered(now, zero.plus(Duration::from_secs(seconds)));
        }
        gap.expired(now + Duration::from_secs(1))
    }

    #[test]
    fn a_scheduler_that_was_away_waits_one_lease() {
        let by = |seconds: i64| Expired::End {
            by: Some(Timestamp::from_micros(seconds * 1_000_000)),
        };
        assert_eq!(after([]), Expired::Leave, "nobody has answered");
        for last in 0..14 {
            assert_eq!(after(0..=last), Expired::Leave, "it has just come");
        }
        assert_eq!(after(0..=14), by(19), "five seconds more than the database said last");
        assert_eq!(after((0..=15).chain([20])), by(25), "five seconds are a third");
        assert_eq!(after((0..=15).chain([21])), Expired::Leave, "six seconds are more");
        assert_eq!(after((0..=15).chain(21..=34)), Expired::Leave);
        assert_eq!(after((0..=15).chain(21..=35)), by(40));
    }

    #[test]
    fn a_look_that_comes_late_or_a_clock_that_jumps_ends_nothing() {
        let (start, zero) = (Instant::now(), Timestamp::from_micros(0));
        let mut gap = Gap::new(LEASE);
        for seconds in 0..=15 {
            gap.answered(
                start + Duration::from_secs(seconds),
                zero.plus(Duration::from_secs(seconds)),
            );
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_ne!(gap.expired(at(16)), Expired::Leave);
        assert_eq!(gap.expired(at(22)), Expired::Leave, "whoever asks was away");
        gap.answered(at(16), zero.plus(Duration::from_secs(3600)));
        assert_eq!(gap.expired(at(17)), Expired::Leave, "the database's clock says so");
    }
}
