//! The workflow of the histories: steps, checkpoints with effects, failures, children, and a verdict at any end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{Clock, JobId, Timestamp};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Registry, Start, Workflow};
use towpath_store::{self as store, Tx, on};

/// Actions of handlers, in order.
#[derive(Default)]
pub struct Record {
    events: Mutex<Vec<Event>>,
    noted: Notify,
    clock: Clock,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub at: Timestamp,
    pub job: JobId,
    pub fence: i64,
    pub what: EventKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    Starts,
    /// The body of a step is performed.
    Body(String),
    /// The handler has ended: it returned, or was dropped.
    Gone,
}

impl Record {
    fn note(&self, job: JobId, fence: i64, what: EventKind) {
        let mut events = self.events.lock().unwrap();
        let at = self.clock.now();
        events.push(Event { at, job, fence, what });
        drop(events);
        self.noted.notify_waiters();
    }

    /// Waits until `more` events are recorded, or for `still` without progress.
    pub async fn until_grown(&self, more: usize, still: Duration) {
        let wanted = self.events.lock().unwrap().len() + more;
        let grown = crate::support::until(&self.noted, || self.events.lock().unwrap().len() >= wanted);
        let _ = tokio::time::timeout(still, grown).await;
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

/// Records the end of the handler in any way.
struct HandlerGuard<'a>(&'a Record, JobId, i64);

impl Drop for HandlerGuard<'_> {
    fn drop(&mut self) {
        self.0.note(self.1, self.2, EventKind::Gone);
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RandomWalkJob {
    /// Seed of its failures and its pace.
    pub seed: u64,
    pub steps: u32,
    /// Percentage of attempts that fail.
    pub fails: u64,
    /// Waits to be stopped after its steps.
    pub endless: bool,
    pub children: u32,
}

pub const POOL: &str = "walks";
pub const DELAY: Duration = Duration::from_millis(30);

/// Tables that the walks write.
pub const TABLES: [&str; 2] = [
    "CREATE TABLE effect (job TEXT NOT NULL, name TEXT NOT NULL, fence BIGINT NOT NULL)",
    "CREATE TABLE verdict (job TEXT NOT NULL, what TEXT NOT NULL)",
];

pub fn registry() -> Registry<Record> {
    Registry::default().with::<RandomWalkJob>().with::<KeepPlaceJob>()
}

async fn effect(tx: &mut Tx<'_>, job: JobId, name: &str, fence: i64) -> store::Result<()> {
    Ok(on!(tx, |conn| sqlx::query(
        "INSERT INTO effect (job, name, fence) VALUES ($1, $2, $3)"
    )
    .bind(job.to_string())
    .bind(name)
    .bind(fence)
    .execute(conn)
    .await
    .map(drop))?)
}

async fn verdict(tx: &mut Tx<'_>, job: &str, what: &str) -> store::Result<()> {
    Ok(on!(tx, |conn| sqlx::query(
        "INSERT INTO verdict (job, what) VALUES ($1, $2)"
    )
    .bind(job)
    .bind(what)
    .execute(conn)
    .await
    .map(drop))?)
}

impl RandomWalkJob {
    /// A number below `below`, different for each attempt and place.
    fn dice(&self, fence: i64, place: u32, below: u64) -> u64 {
        let mut mixed = self.seed ^ (fence as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(place) << 32);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }

    async fn walk(&self, ctx: &mut Ctx, record: &Record) -> Outcome {
        let (job, fence, tenant) = (ctx.job(), ctx.fence(), ctx.tenant());
        record.note(job, fence, EventKind::Starts);
        let _here = HandlerGuard(record, job, fence);
        let reached = ctx.cursor::<u32>()?.unwrap_or(0);
        for nth in 0..self.steps {
            let name = format!("step {nth}");
            ctx.step(&name, async || {
                record.note(job, fence, EventKind::Body(name.clone()));
                // The work of the step, so that kills and cancels happen in the middle of it.
                tokio::time::sleep(Duration::from_millis(self.dice(fence, nth, 20))).await;
                Ok(())
            })
            .await?;
            if nth >= reached {
                ctx.checkpoint(&(nth + 1), async |tx| {
                    effect(tx, job, &format!("effect {nth}"), fence).await
                })
                .await?;
            }
            if self.dice(fence, nth + 1000, 100) < self.fails / u64::from(self.steps) {
                return Err(Failure::retry("by chance"));
            }
        }
        if self.children > 0 && ctx.children().await?.is_empty() {
            let lane = Lane::new("exports", 3);
            return ctx
                .wait(std::slice::from_ref(&lane), async |tx| {
                    for nth in 0..self.children {
                        let child = RandomWalkJob {
                            seed: self.seed + 7 + u64::from(nth),
                            children: 0,
                            ..self.clone()
                        };
                        towpath_durable::start(tx, &child, Start::new(tenant).child_of(job).lane(lane.clone())).await?;
                    }
                    Ok(())
                })
                .await;
        }
        if self.endless {
            ctx.cancelled().cancelled().await;
            return Err(Failure::Cancelled);
        }
        ctx.settle(async |tx| verdict(tx, &self.seed.to_string(), "succeeded").await)
            .await
    }

    async fn over(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        verdict(tx, &input.seed.to_string(), ended.state().as_str()).await
    }
}

impl Workflow for RandomWalkJob {
    const KIND: &'static str = "walk";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(20, DELAY);
    type World = Record;

    async fn run(&self, ctx: &mut Ctx, record: &Record) -> Outcome {
        self.walk(ctx, record).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        Self::over(tx, input, ended).await
    }
}

/// A walk that keeps its slot while it backs off, like the runs of a thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeepPlaceJob(pub RandomWalkJob);

impl Workflow for KeepPlaceJob {
    const KIND: &'static str = "thread";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(20, DELAY);
    const KEEP_PLACE: bool = true;
    type World = Record;

    async fn run(&self, ctx: &mut Ctx, record: &Record) -> Outcome {
        self.0.walk(ctx, record).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        RandomWalkJob::over(tx, &input.0, ended).await
    }
}

/// Opens the store once the lease renewer of a killed process has closed it. (A process that is really killed closes
/// everything at once.)
pub async fn open_when_free(uri: &str) -> store::Store {
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        match store::Store::open(uri, store::Options::default()).await {
            Ok(store) => return store,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One process: a runtime with its own store, engine, scheduler and workers.
pub struct Process {
    runtime: Option<tokio::runtime::Runtime>,
    workers: Option<towpath_workers::Workers>,
    scheduler: Option<towpath_scheduler::Scheduler>,
    pub store: store::Store,
    pub id: towpath_domain::WorkerId,
}

impl Process {
    /// Must not be called in a runtime; use `spawn_blocking`.
    pub fn start<World: Send + Sync + 'static>(
        uri: &str,
        lease: Duration,
        queue: &towpath_queue::Queue,
        mut registry: Registry<World>,
        world: impl FnOnce(&store::Store) -> Arc<World>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (store, scheduler, workers) = runtime.block_on(async {
            let store = open_when_free(uri).await;
            store.migrate().await.unwrap();
            registry.attach(&store);
            store.on_hints({
                let queue = queue.clone();
                move |hints| towpath_durable::send_hints(&queue, &hints)
            });
            let settings = towpath_scheduler::Settings {
                lease,
                tick: Duration::from_millis(20),
                deadline_grace: Duration::from_millis(200),
                spawn_rest: Duration::from_millis(100),
                ..Default::default()
            };
            let scheduler = towpath_scheduler::Scheduler::start(&store, settings).await.unwrap();
            let settings = towpath_durable::Settings {
                lease,
                cancel_grace: Duration::from_millis(300),
            };
            let engine = towpath_durable::Engine::new(store.clone(), settings);
            let world = world(&store);
            let mut options = towpath_workers::Options::new([(POOL, 6)]);
            options.poll_interval = Duration::from_millis(200);
            let workers =
                towpath_workers::Workers::start(engine, queue, &Arc::new(registry), &world, &options).unwrap();
            (store, scheduler, workers)
        });
        Self {
            id: workers.id(),
            runtime: Some(runtime),
            workers: Some(workers),
            scheduler: Some(scheduler),
            store,
        }
    }

    /// Like SIGKILL: every task stops where it is, and no lease is renewed any more.
    pub fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        runtime.shutdown_timeout(Duration::from_secs(10));
        drop(self.workers.take());
        drop(self.scheduler.take());
    }

    /// Like a signal to drain.
    pub fn leave(mut self, grace: Duration) -> towpath_workers::DrainReport {
        let runtime = self.runtime.take().unwrap();
        let (workers, scheduler) = (self.workers.take().unwrap(), self.scheduler.take().unwrap());
        let drained = runtime.block_on(async {
            let drained = workers.drain(grace).await;
            scheduler.stop().await;
            drained
        });
        runtime.shutdown_timeout(Duration::from_secs(10));
        drained
    }
}
