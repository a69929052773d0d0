//! The system under test in one process: store, workers, scheduler, and the clock they share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use towpath_domain::{JobId, TenantId, clock};
use towpath_durable::{Engine, Registry};
use towpath_queue::Queue;
use towpath_scheduler::{Scheduler, Settings};
use towpath_store::baseline::{self, Calendar};
use towpath_store::jobs::{self, Position};
use towpath_store::{Options, Store, gauges, lanes, pools};
use towpath_workers::Workers;

use super::DAY;
use super::recording::DayJobs;
use super::workload::{Job, Meter, POOL};

/// Most connections of the store.
const CONNECTIONS: u32 = 16;
/// Slots of the pool.
const SLOTS: usize = 64;
/// Workspaces that own the jobs.
const TENANTS: usize = 16;
/// How long a finished job stays in `job`. Longer than the real time of a day, so that all jobs of the day are still there when
/// their outcomes are counted.
const ARCHIVE: Duration = Duration::from_secs(12 * 3600);
/// Tick of the scheduler. Shorter than the default because the drain of a day takes seconds and waits for jobs that back off.
const TICK: Duration = Duration::from_millis(100);
/// The drain fails when no job ends for this long.
const STALL: Duration = Duration::from_secs(120);
/// Time limit for the scheduler to catch up after the clock moved.
const CATCH_UP: Duration = Duration::from_secs(15 * 60);
/// Interval between checks whether it has caught up.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Remaining rows are counted up to this number.
const COUNTED: i64 = 10_000;
/// Dashboard refreshes per day.
const REFRESHES: usize = 20;
/// Jobs per page of a list.
const PAGE: i64 = 50;

/// The system under test.
pub struct System {
    store: Store,
    queue: Queue,
    engine: Engine,
    registry: Arc<Registry<Meter>>,
    settings: Settings,
    /// `None` while the clock moves.
    scheduler: Option<Scheduler>,
    calendar: Calendar,
    tenants: Vec<TenantId>,
    /// A job of the previous day, which is in the history by now.
    previous: Option<JobId>,
}

impl System {
    /// Opens the database and continues at the day of its calendar. The history is kept for `keep`.
    pub async fn open(uri: &str, keep: Duration) -> anyhow::Result<Self> {
        let options = Options {
            connections: CONNECTIONS,
            ..Options::default()
        };
        let store = Store::open(uri, options).await?;
        store.migrate().await?;
        let calendar = store
            .write(async |tx| baseline::calendar(tx).await)
            .await
            .context("reading the calendar")?;
        clock::set_offset(calendar.offset_us);
        let queue = Queue::local();
        let hints = queue.clone();
        store.on_hints(move |told| towpath_durable::send_hints(&hints, &told));
        let mut registry = Registry::default().with::<Job>();
        registry.attach(&store);
        let engine = Engine::new(store.clone(), towpath_durable::Settings::default());
        let settings = Settings {
            tick: TICK,
            archive_jobs: ARCHIVE,
            keep_jobs: keep,
            ..Settings::default()
        };
        let scheduler = Scheduler::start(&store, settings).await?;
        Ok(Self {
            store,
            queue,
            engine,
            registry: Arc::new(registry),
            settings,
            scheduler: Some(scheduler),
            calendar,
            tenants: (0..TENANTS).map(|_| TenantId::new()).collect(),
            previous: None,
        })
    }

    /// The number of the day, from 0.
    pub fn day(&self) -> i64 {
        self.calendar.days
    }

    /// The store, and the clock with it.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Records the jobs of a day, then refreshes a dashboard while all of them wait. Returns the time of the recording.
    pub async fn record(&mut self, jobs: &DayJobs) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let recorded = jobs.record(&self.store, &self.tenants).await?;
        let took = began.elapsed();
        let shown: Vec<JobId> = self.previous.into_iter().chain(recorded).collect();
        for _ in 0..REFRESHES {
            self.refresh_dashboard(&shown).await?;
        }
        self.previous = recorded;
        Ok(took)
    }

    async fn refresh_dashboard(&self, shown: &[JobId]) -> anyhow::Result<()> {
        self.store
            .read(async |tx| {
                pools::depths(tx).await?;
                pools::oldest_ready(tx).await?;
                gauges::lanes(tx).await?;
                jobs::list(tx, &jobs::Filter::default(), None, PAGE).await?;
                for id in shown {
                    jobs::get(tx, *id).await?;
                }
                Ok(())
            })
            .await?;
        Ok(())
    }

    /// Starts workers and waits until all jobs of the meter are written. Returns the running workers and the time it took.
    pub async fn drain(&self, meter: &Arc<Meter>) -> anyhow::Result<(Workers, Duration)> {
        let options = towpath_workers::Options::new([(POOL, SLOTS)]);
        let began = Instant::now();
        let workers = Workers::start(self.engine.clone(), &self.queue, &self.registry, meter, &options)?;
        let (mut before, mut progressed) = (0, began);
        loop {
            let performed = meter.performed();
            if performed == meter.jobs() && workers.running_jobs() == 0 {
                return Ok((workers, began.elapsed()));
            }
            if performed > before {
                (before, progressed) = (performed, Instant::now());
            }
            ensure!(
                progressed.elapsed() < STALL,
                "{performed} of {} jobs ended, and none within the last {} s; {} are running",
                meter.jobs(),
                STALL.as_secs(),
                workers.running_jobs()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Moves the clock ahead by one day. Workers must have been drained.
    pub async fn next_day(&mut self) -> anyhow::Result<()> {
        self.stop().await;
        let next = Calendar {
            days: self.calendar.days + 1,
            offset_us: self.calendar.offset_us + i64::try_from(DAY.as_micros())?,
        };
        self.store
            .write(async |tx| baseline::move_clock(tx, next).await)
            .await
            .context("moving the clock")?;
        clock::set_offset(next.offset_us);
        self.calendar = next;
        // A new scheduler prunes at once; one that has caught up rests for half a minute.
        self.scheduler = Some(Scheduler::start(&self.store, self.settings).await?);
        Ok(())
    }

    /// Waits until nothing is left to archive, forget or prune. Returns the time it took.
    pub async fn wait_until_pruned(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let now = self.store.clock().now();
            let (over, old) = (now.minus(ARCHIVE), now.minus(self.settings.keep_jobs));
            let left = self.store.read(async |tx| {
                Ok((
                    jobs::count_unarchived(tx, over, Position::START, COUNTED).await?,
                    jobs::count_deletable(tx, old, COUNTED).await?,
                    lanes::count_behind(tx, "", COUNTED).await?,
                ))
            });
            let (over, old, lanes) = left.await?;
            if (over, old, lanes) == (0, 0, 0) {
                return Ok(began.elapsed());
            }
            ensure!(
                began.elapsed() < CATCH_UP,
                "the scheduler has not caught up within {} s: {over} jobs to archive, {old} to forget, {lanes} lanes \
                 to prune (counted up to {COUNTED})",
                CATCH_UP.as_secs()
            );
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Stops the scheduler.
    async fn stop(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop().await;
        }
    }

    /// Stops the scheduler and closes the database.
    pub async fn close(mut self) {
        self.stop().await;
        self.store.close().await;
    }
}
