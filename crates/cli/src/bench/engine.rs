//! `towpath bench engine`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_domain::{TenantId, WorkerId};
use towpath_durable::{Engine, Lane, Registry, Settings, Start};
use towpath_queue::Queue;
use towpath_store::baseline::{self, Baseline};
use towpath_store::{Options, Store, jobs};
use towpath_workers::Workers;

use super::database::Database;
use super::report::Report;
use super::workload::{Job, Meter, POOL};
use crate::arguments::BenchEngine;

/// Numbers of slots to measure.
const SLOTS: [usize; 4] = [1, 16, 64, 256];

/// Rounds that alternate with the comparison; the median counts.
const ROUNDS: usize = 5;

pub async fn run(options: &BenchEngine) -> anyhow::Result<()> {
    let database = Database::make(options.database.as_deref()).await?;
    let measured = measure(options, &database.uri).await;
    database.remove().await?;
    measured?.print(options.output)
}

async fn measure(options: &BenchEngine, uri: &str) -> anyhow::Result<Report> {
    let bench = Bench::open(uri, options.redis.as_deref()).await?;
    let mut by_hand = Baseline::open(uri).await?;
    let mut report = Report::default();
    let wanted = |name: &str| name.starts_with(&options.only) || options.only.starts_with(name);
    let commits = 1000;
    let took = by_hand.commits(commits.try_into()?).await?;
    report.note("plain commits, 1 connection", rate(commits, took), "commits/s");
    if wanted("enqueue") {
        bench.enqueue(options.jobs, &mut report).await?;
    }
    for slots in SLOTS {
        let name = format!("drain, {slots} slots");
        if wanted(&name) {
            let jobs = share(options.jobs, slots);
            // They alternate, because the speed of the disk changes from minute to minute.
            let (mut hand, mut ours) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let took = by_hand.drain(jobs.cast_signed(), i64::try_from(slots)?).await?;
                hand.push(rate(jobs, took));
                ours.push(bench.drain(jobs, slots, 1, 0).await?);
            }
            let against = format!("by hand, {slots} slots");
            report.note(&against, median(hand), "jobs/s");
            report.against(name, median(ours), "jobs/s", &against);
        }
    }
    for (tenants, lanes) in [(50, 0), (5000, 0), (1, 1000), (50, 1000)] {
        let mut name = "drain, 64 slots".to_owned();
        if tenants > 1 {
            write!(name, ", {tenants} tenants")?;
        }
        if lanes > 0 {
            write!(name, ", {lanes} lanes of 1")?;
        }
        if wanted(&name) {
            let jobs = options.jobs / if lanes > 0 { 4 } else { 1 };
            let rate = bench.drain(jobs, 64, tenants, lanes).await?;
            report.against(name, rate, "jobs/s", "drain, 64 slots");
        }
    }
    if wanted("pick-up") {
        bench.pick_up(&mut report).await?;
    }
    for (workflows, steps) in [(1, 1000), (16, 250)] {
        let name = format!("steps, {workflows} workflows");
        if wanted(&name) {
            let (mut plain, mut ours) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let took = by_hand.commits(commits.try_into()?).await?;
                plain.push(rate(commits, took));
                ours.push(bench.steps(workflows, steps).await?);
            }
            let against = format!("plain commits beside {workflows}");
            report.note(&against, median(plain), "commits/s");
            report.against(name, median(ours), "steps/s", &against);
        }
    }
    for ready in [10_000, 100_000, options.backlog] {
        let name = format!("claim of 64, {ready} ready");
        if wanted(&name) {
            let millis = bench.claim_time(i64::try_from(ready)?).await?;
            report.against(name, millis, "ms", "claim of 64, 10000 ready");
        }
    }
    Ok(report)
}

/// Fewer jobs for few slots, so that a run takes minutes.
fn share(jobs: u64, slots: usize) -> u64 {
    match slots {
        1 => jobs / 20,
        16 => jobs / 4,
        _ => jobs,
    }
    .max(100)
}

fn rate(n: u64, took: Duration) -> f64 {
    n as f64 / took.as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

struct Bench {
    uri: String,
    store: Store,
    queue: Queue,
    engine: Engine,
    registry: Arc<Registry<Meter>>,
}

impl Bench {
    async fn open(uri: &str, redis: Option<&str>) -> anyhow::Result<Self> {
        let store = Store::open(
            uri,
            Options {
                connections: 16,
                ..Options::default()
            },
        )
        .await?;
        store.migrate().await?;
        let queue = match redis {
            None => Queue::local(),
            Some(uri) => Queue::redis(uri, towpath_queue::Options::default()).await?,
        };
        let hints = queue.clone();
        store.on_hints(move |told| towpath_durable::send_hints(&hints, &told));
        let mut registry = Registry::default().with::<Job>();
        registry.attach(&store);
        let engine = Engine::new(store.clone(), Settings::default());
        Ok(Self {
            uri: uri.to_owned(),
            store,
            queue,
            engine,
            registry: Arc::new(registry),
        })
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.store.write(async |tx| baseline::clear(tx).await).await?;
        baseline::tidy(&self.uri).await?;
        Ok(())
    }

    fn workers(&self, slots: usize, meter: &Arc<Meter>) -> anyhow::Result<Workers> {
        let options = towpath_workers::Options::new([(POOL, slots)]);
        Ok(Workers::start(
            self.engine.clone(),
            &self.queue,
            &self.registry,
            meter,
            &options,
        )?)
    }

    async fn enqueue(&self, jobs: u64, report: &mut Report) -> anyhow::Result<()> {
        for (callers, jobs) in [(1, jobs / 20), (64, jobs)] {
            self.clear().await?;
            let started = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..callers {
                let (store, each) = (self.store.clone(), jobs / callers);
                tasks.spawn(async move {
                    let tenant = TenantId::new();
                    for _ in 0..each {
                        store
                            .write(async |tx| towpath_durable::start(tx, &Job::default(), Start::new(tenant)).await)
                            .await?;
                    }
                    Ok::<_, towpath_store::Error>(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            report.note(
                format!("enqueue, {callers} callers"),
                rate(jobs / callers * callers, started.elapsed()),
                "jobs/s",
            );
        }
        Ok(())
    }

    /// Drains a backlog, from the start of the workers to the last written row.
    async fn drain(&self, jobs: u64, slots: usize, tenants: usize, lanes: u64) -> anyhow::Result<f64> {
        self.clear().await?;
        let owners: Vec<TenantId> = (0..tenants).map(|_| TenantId::new()).collect();
        let jobs = if lanes == 0 {
            let each = (jobs / tenants as u64).max(1);
            let all = each * tenants as u64;
            self.store
                .write(async |tx| baseline::backlog(tx, "bench", POOL, all.cast_signed(), &owners).await)
                .await?;
            all
        } else {
            for first in (0..jobs).step_by(200) {
                let last = (first + 200).min(jobs);
                self.store
                    .write(async |tx| {
                        for nth in first..last {
                            let lane = Lane::new(format!("lane:{}", nth % lanes), 1);
                            let owner = owners[usize::try_from(nth).unwrap_or_default() % owners.len()];
                            towpath_durable::start(tx, &Job::default(), Start::new(owner).lane(lane)).await?;
                        }
                        Ok(())
                    })
                    .await?;
            }
            jobs
        };
        baseline::tidy(&self.uri).await?;
        let meter = Arc::new(Meter::default());
        let started = Instant::now();
        let workers = self.workers(slots, &meter)?;
        while meter.entered.load(Ordering::Relaxed) < jobs {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Ends when the rows of the last jobs are written.
        while workers.running_jobs() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = started.elapsed();
        workers.drain(Duration::from_secs(30)).await;
        let left = self.store.read(async |tx| baseline::open_jobs(tx).await).await?;
        ensure!(left == 0, "{left} of {jobs} jobs have not ended");
        ensure!(meter.entered.load(Ordering::Relaxed) == jobs, "jobs ran more than once");
        Ok(rate(jobs, took))
    }

    async fn pick_up(&self, report: &mut Report) -> anyhow::Result<()> {
        self.clear().await?;
        let meter = Arc::new(Meter::default());
        let workers = self.workers(16, &meter)?;
        let tenant = TenantId::new();
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let enqueued = u64::try_from(meter.start.elapsed().as_nanos())?;
            let job = Job { steps: 0, enqueued };
            self.store
                .write(async |tx| towpath_durable::start(tx, &job, Start::new(tenant)).await)
                .await?;
        }
        while meter.entered.load(Ordering::Relaxed) < 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        workers.drain(Duration::from_secs(30)).await;
        let mut latencies = std::mem::take(&mut *meter.latencies.lock());
        ensure!(latencies.len() == 200, "{} of 200 jobs were picked up", latencies.len());
        latencies.sort_unstable();
        let commit = report
            .value("plain commits, 1 connection")
            .map_or(0.0, |rate| 1000.0 / rate);
        report.note("2 plain commits", 2.0 * commit, "ms");
        for (name, nth) in [("p50", 100), ("p99", 198)] {
            report.against(
                format!("pick-up {name}"),
                latencies[nth].as_secs_f64() * 1000.0,
                "ms",
                "2 plain commits",
            );
        }
        Ok(())
    }

    async fn steps(&self, workflows: u64, steps: u32) -> anyhow::Result<f64> {
        self.clear().await?;
        let meter = Arc::new(Meter::default());
        let tenant = TenantId::new();
        for _ in 0..workflows {
            let job = Job { steps, enqueued: 0 };
            self.store
                .write(async |tx| towpath_durable::start(tx, &job, Start::new(tenant)).await)
                .await?;
        }
        let started = Instant::now();
        let workers = self.workers(usize::try_from(workflows)?, &meter)?;
        while meter.entered.load(Ordering::Relaxed) < workflows || workers.running_jobs() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = started.elapsed();
        workers.drain(Duration::from_secs(30)).await;
        let left = self.store.read(async |tx| baseline::open_jobs(tx).await).await?;
        ensure!(left == 0, "{left} of {workflows} workflows have not ended");
        Ok(rate(workflows * u64::from(steps), took))
    }

    /// Median time of a claim of 64 jobs while `ready` jobs are ready.
    async fn claim_time(&self, ready: i64) -> anyhow::Result<f64> {
        self.clear().await?;
        let tenant = TenantId::new();
        self.store
            .write(async |tx| baseline::backlog(tx, "bench", POOL, ready, &[tenant]).await)
            .await?;
        baseline::tidy(&self.uri).await?;
        let mut took = Vec::new();
        for _ in 0..50 {
            let started = Instant::now();
            let claimed = self
                .store
                .write(async |tx| jobs::claim(tx, &jobs::ClaimRequest::new(POOL, WorkerId::new(), 64)).await)
                .await?;
            took.push(started.elapsed());
            ensure!(claimed.len() == 64, "a claim found {} of 64", claimed.len());
        }
        took.sort_unstable();
        Ok(took[took.len() / 2].as_secs_f64() * 1000.0)
    }
}
