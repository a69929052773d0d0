//! `towpath bench dispatch`: how workers learn of ready jobs over Redis, by wakes and scans or by ids of their own.
//!
//! For each number of tenants and worker processes, both forms drain the same backlog alternately and then pick up
//! single jobs. All processes share the machine with the database and Redis.

mod crew;

use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_domain::TenantId;
use towpath_durable::Start;
use towpath_queue::{DispatchMode, Queue};
use towpath_store::baseline;
use towpath_store::{Options, Store, pools};
use uuid::Uuid;

use self::crew::Crew;
pub use self::crew::work;
use super::database::Database;
use super::report::Report;
use super::workload::{Job, POOL};
use crate::arguments::BenchDispatch;

/// Rounds in which the forms alternate; the median counts.
const ROUNDS: usize = 3;

/// Jobs recorded one by one while all workers are idle, and the pause between two of them.
const PICK_UPS: usize = 200;
const PICK_UP_PAUSE: Duration = Duration::from_millis(20);

/// Interval at which the end of a drain is looked for. It limits the precision of the results.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The time limit of a drain, and of the pick-ups.
const LIMIT: Duration = Duration::from_secs(600);

pub async fn run(options: &BenchDispatch) -> anyhow::Result<()> {
    let database = Database::make(Some(&options.database)).await?;
    let measured = measure(options, &database.uri).await;
    database.remove().await?;
    measured?.print(options.output)
}

async fn measure(options: &BenchDispatch, uri: &str) -> anyhow::Result<Report> {
    let scan = Form::open("scan", DispatchMode::Scan, uri, options).await?;
    let directed = Form::open("directed", DispatchMode::Directed, uri, options).await?;
    let mut report = Report::default();
    for &tenants in &options.tenants {
        for &workers in &options.workers {
            let case = format!("{tenants} tenants, {workers} workers");
            let (mut scanned, mut taken) = (FormFigures::default(), FormFigures::default());
            for _ in 0..ROUNDS {
                scan.measure(options, tenants, workers, &mut scanned).await?;
                directed.measure(options, tenants, workers, &mut taken).await?;
            }
            for (what, unit, of_scan, of_directed) in [
                ("drain", "jobs/s", scanned.rates, taken.rates),
                ("pick-up p50", "ms", scanned.p50, taken.p50),
                ("pick-up p99", "ms", scanned.p99, taken.p99),
            ] {
                let against = format!("{what}, {case}, scan");
                report.note(&against, median(of_scan), unit);
                report.against(format!("{what}, {case}, directed"), median(of_directed), unit, &against);
            }
        }
    }
    Ok(report)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Figures of one form, one for each round.
#[derive(Default)]
struct FormFigures {
    rates: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// One form of dispatch, and this process's side of it: the side that records jobs.
struct Form {
    name: &'static str,
    store: Store,
    crew: crew::Options,
    uri: String,
}

impl Form {
    async fn open(
        name: &'static str,
        dispatch: DispatchMode,
        uri: &str,
        options: &BenchDispatch,
    ) -> anyhow::Result<Self> {
        let store = Store::open(
            uri,
            Options {
                connections: 4,
                ..Options::default()
            },
        )
        .await?;
        store.migrate().await?;
        let crew = crew::Options {
            database: uri.to_owned(),
            redis: options.redis.clone(),
            // Keys of its own, which expire.
            prefix: format!("towpath-bench:{}:", Uuid::now_v7()),
            directed: dispatch == DispatchMode::Directed,
            slots: usize::from(options.slots),
        };
        let queue = Queue::redis(&crew.redis, crew.queue_options()).await?;
        ensure!(!queue.health().degraded(), "Redis is unavailable");
        store.on_hints(move |told| towpath_durable::send_hints(&queue, &told));
        Ok(Self {
            name,
            store,
            crew,
            uri: uri.to_owned(),
        })
    }

    async fn measure(
        &self,
        options: &BenchDispatch,
        tenants: u16,
        workers: u16,
        figures: &mut FormFigures,
    ) -> anyhow::Result<()> {
        let owners: Vec<TenantId> = (0..tenants).map(|_| TenantId::new()).collect();
        let each = (options.jobs / u64::from(tenants)).max(1);
        let jobs = each * u64::from(tenants);
        self.clear().await?;
        self.store.write(async |tx| pools::pause(tx, POOL).await).await?;
        self.store
            .write(async |tx| baseline::backlog(tx, "bench", POOL, jobs.cast_signed(), &owners).await)
            .await?;
        baseline::tidy(&self.uri).await?;
        let crew = Crew::start(&self.crew, workers).await?;
        let began = Instant::now();
        self.store.write(async |tx| pools::resume(tx, POOL).await).await?;
        self.until_over().await?;
        figures.rates.push(jobs as f64 / began.elapsed().as_secs_f64());
        self.check_once(jobs).await?;

        self.clear().await?;
        for nth in 0..PICK_UPS {
            tokio::time::sleep(PICK_UP_PAUSE).await;
            let start = Start::new(owners[nth * 7919 % owners.len()]);
            self.store
                .write(async |tx| towpath_durable::start(tx, &Job::default(), start.clone()).await)
                .await?;
        }
        self.until_over().await?;
        self.check_once(PICK_UPS as u64).await?;
        let mut waits = self.store.read(async |tx| baseline::pick_ups(tx).await).await?;
        ensure!(
            waits.len() == PICK_UPS,
            "{} of {PICK_UPS} jobs were picked up",
            waits.len()
        );
        waits.sort_by(f64::total_cmp);
        figures.p50.push(waits[PICK_UPS / 2]);
        figures.p99.push(waits[PICK_UPS * 99 / 100]);
        crew.stop().await
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.store.write(async |tx| baseline::clear(tx).await).await?;
        Ok(baseline::tidy(&self.uri).await?)
    }

    async fn until_over(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let open = self.store.read(async |tx| baseline::open_jobs(tx).await).await?;
            if open == 0 {
                return Ok(());
            }
            ensure!(began.elapsed() < LIMIT, "{}: {open} jobs have not ended", self.name);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Checks that each job ran exactly once.
    async fn check_once(&self, jobs: u64) -> anyhow::Result<()> {
        let once = self.store.read(async |tx| baseline::performed_once(tx).await).await?;
        ensure!(
            once == jobs.cast_signed(),
            "{}: {once} of {jobs} jobs succeeded at their first attempt",
            self.name
        );
        Ok(())
    }
}
