//! A separate database for each test, a scripted workflow, and a record of its actions.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, WorkerId};
use towpath_durable::{Engine, JobFence, Registry, Settings, Start};
use towpath_queue::Queue;
use towpath_store::jobs::{self, Job};
use towpath_store::{Conn, Options, Store, Tx, leases, on};

mod database;
mod redis;
mod script;

pub use database::Database;
pub use redis::RedisServer;
pub use script::{Op, Script};

/// Short enough for a test to see a lease expire, long enough for a busy machine to renew it.
pub const LEASE: Duration = Duration::from_millis(1500);

/// Time limit of every wait.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Runs one body on each available database.
#[macro_export]
macro_rules! on_each {
    ($(#[$meta:meta])* async fn $name:ident($world:ident) $body:block) => {
        mod $name {
            use super::*;

            async fn body($world: $crate::support::World) $body

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                body($crate::support::World::new($crate::support::Database::sqlite().await).await).await;
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(database) = $crate::support::Database::postgres().await else { return };
                body($crate::support::World::new(database).await).await;
            }
        }
    };
}

/// As [`on_each`], and on PostgreSQL with directed dispatch over a separate Redis.
#[macro_export]
macro_rules! on_each_form {
    ($(#[$meta:meta])* async fn $name:ident($world:ident) $body:block) => {
        mod $name {
            use super::*;

            async fn body($world: $crate::support::World) $body

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                body($crate::support::World::new($crate::support::Database::sqlite().await).await).await;
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(database) = $crate::support::Database::postgres().await else { return };
                body($crate::support::World::new(database).await).await;
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn directed() {
                let Some(world) = $crate::support::World::directed().await else { return };
                body(world).await;
            }
        }
    };
}

/// Lets this transaction be idle as long as a test holds its locks: a busy machine takes longer than the server's
/// limit.
pub async fn stand_still(tx: &mut Tx<'_>) -> towpath_store::Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SET LOCAL idle_in_transaction_session_timeout = 0")
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// State that the scripts of one test share.
#[derive(Default)]
pub struct Shared {
    log: Mutex<Vec<(Instant, String)>>,
    noted: Notify,
    gates: Mutex<HashMap<String, Arc<Semaphore>>>,
    counts: Mutex<HashMap<String, u32>>,
}

impl Shared {
    pub fn note(&self, event: impl Into<String>) {
        self.log.lock().push((Instant::now(), event.into()));
        self.noted.notify_waiters();
    }

    /// Waits until `event` was recorded `times` times.
    async fn until_noted(&self, event: &str, times: usize) {
        until(&self.noted, || self.count(event) >= times).await;
    }

    /// Waits until `more` events are recorded, or for `still` without progress.
    pub async fn until_grown(&self, more: usize, still: Duration) {
        let wanted = self.log.lock().len() + more;
        let grown = until(&self.noted, || self.log.lock().len() >= wanted);
        let _ = tokio::time::timeout(still, grown).await;
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().iter().map(|(_, event)| event.clone()).collect()
    }

    /// Starts a new record.
    pub fn forget(&self) {
        self.log.lock().clear();
    }

    /// When `event` was first recorded.
    pub fn noted_at(&self, event: &str) -> Option<Instant> {
        self.log
            .lock()
            .iter()
            .find(|(_, noted)| noted == event)
            .map(|(at, _)| *at)
    }

    /// How often `event` was recorded.
    pub fn count(&self, event: &str) -> usize {
        self.log.lock().iter().filter(|(_, noted)| noted == event).count()
    }

    /// Increments and returns a counter.
    pub fn nth(&self, what: &str) -> u32 {
        let mut counts = self.counts.lock();
        let count = counts.entry(what.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// A closed gate; each `open` lets one through.
    pub fn gate(&self, name: &str) -> Arc<Semaphore> {
        self.gates
            .lock()
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(0)))
            .clone()
    }

    pub fn open(&self, name: &str) {
        self.gate(name).add_permits(1);
    }
}

/// Waits until `enough` returns true, checked after each recorded event.
pub async fn until(noted: &Notify, enough: impl Fn() -> bool) {
    loop {
        let mut more = pin!(noted.notified());
        // Registered before the check, so that no event is missed.
        more.as_mut().enable();
        if enough() {
            return;
        }
        more.await;
    }
}

pub struct World {
    pub store: Store,
    pub engine: Engine,
    pub queue: Queue,
    pub registry: Arc<Registry<Shared>>,
    pub shared: Arc<Shared>,
    pub tenant: TenantId,
    /// With directed dispatch.
    pub _redis: Option<RedisServer>,
    /// Dropped last, with the database.
    pub _database: Database,
}

impl World {
    pub async fn new(database: Database) -> Self {
        Self::with_lease(database, LEASE).await
    }

    pub async fn with_lease(database: Database, lease: Duration) -> Self {
        Self::build(database, lease, Queue::local()).await
    }

    /// On PostgreSQL, with directed dispatch over a separate Redis, if both are there.
    pub async fn directed() -> Option<Self> {
        let database = Database::postgres().await?;
        let redis = RedisServer::start().await?;
        let mut world = Self::build(database, LEASE, redis.directed_queue().await).await;
        world._redis = Some(redis);
        Some(world)
    }

    /// With its own queue, which reports the jobs recorded here.
    pub async fn build(database: Database, lease: Duration, queue: Queue) -> Self {
        let store = Store::open(&database.uri, Options::default()).await.unwrap();
        store.migrate().await.unwrap();
        store
            .write(async |tx| {
                on!(tx, |conn| sqlx::query(
                    "CREATE TABLE IF NOT EXISTS effect (job TEXT NOT NULL, name TEXT NOT NULL, fence BIGINT NOT NULL)"
                )
                .execute(conn)
                .await
                .map(drop))?;
                Ok(())
            })
            .await
            .unwrap();
        let mut registry = Registry::default().with::<Script>();
        registry.attach(&store);
        store.on_hints({
            let queue = queue.clone();
            move |hints| towpath_durable::send_hints(&queue, &hints)
        });
        let settings = Settings {
            lease,
            cancel_grace: Duration::from_millis(300),
        };
        let engine = Engine::new(store.clone(), settings);
        Self {
            store,
            engine,
            queue,
            registry: Arc::new(registry),
            shared: Arc::default(),
            tenant: TenantId::new(),
            _redis: None,
            _database: database,
        }
    }

    /// Sets the length of leases from now on.
    pub fn leasing(mut self, lease: Duration) -> Self {
        let settings = Settings {
            lease,
            ..self.engine.settings()
        };
        self.engine = Engine::new(self.store.clone(), settings);
        self
    }

    /// Workers with this number of slots.
    pub fn workers(&self, slots: usize) -> towpath_workers::Workers {
        self.workers_with(slots, Duration::from_millis(200), &self.queue)
    }

    /// Workers that poll so rarely that only wakes explain their actions within a test.
    pub fn patient_workers(&self, slots: usize) -> towpath_workers::Workers {
        self.workers_with(slots, PATIENCE * 4, &self.queue)
    }

    pub fn workers_with(&self, slots: usize, fallback: Duration, queue: &Queue) -> towpath_workers::Workers {
        let mut options = towpath_workers::Options::new([(Script::POOL_NAME, slots)]);
        options.poll_interval = fallback;
        towpath_workers::Workers::start(self.engine.clone(), queue, &self.registry, &self.shared, &options).unwrap()
    }

    /// Waits until the workers have sent a heartbeat.
    pub async fn until_seen(&self, workers: &towpath_workers::Workers) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self
            .store
            .read(async |tx| towpath_store::workers::get(tx, workers.id()).await)
            .await
            .unwrap()
            .is_none()
        {
            assert!(
                tokio::time::Instant::now() < deadline,
                "the worker never said that it is there"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Counts with one statement.
    pub async fn count(&self, text: &'static str) -> i64 {
        self.store
            .read(async |tx| Ok(on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?))
            .await
            .unwrap()
    }

    /// Runs one statement.
    pub async fn execute(&self, text: &'static str) {
        self.store
            .write(async |tx| Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?))
            .await
            .unwrap();
    }

    /// Records `count` empty jobs in one statement.
    pub async fn backlog(&self, count: i64) {
        let script = serde_json::to_string(&Script::new("idle", [Op::Done])).unwrap();
        let record = self.store.write(async |tx| {
            if let Conn::Postgres(conn) = tx.conn() {
                // The default statement timeout of the server is shorter than this may take.
                sqlx::query("SET LOCAL statement_timeout = 0").execute(conn).await?;
            }
            let now = tx.now();
            let text = towpath_store::sql!(tx,
                sqlite: "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < $4)
                         INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at)
                         SELECT randomblob(16), $1, 'script', 'scripts', 'ready', $2, $3, $2 FROM n",
                postgres: "INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at)
                           SELECT gen_random_uuid(), $1, 'script', 'scripts', 'ready', $2, $3, $2
                           FROM generate_series(1, $4)");
            on!(tx, |conn| sqlx::query(text)
                .bind(self.tenant)
                .bind(now)
                .bind(&script)
                .bind(count)
                .execute(conn)
                .await
                .map(drop))?;
            Ok(())
        });
        record.await.unwrap();
    }

    /// Waits until no job is open.
    pub async fn until_drained(&self) {
        let deadline = tokio::time::Instant::now() + PATIENCE * 2;
        loop {
            let open = self.count("SELECT count(*) FROM job WHERE finished_at IS NULL").await;
            if open == 0 {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{open} jobs are stranded");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Performs a claimed job here, like its worker.
    pub async fn perform(&self, job: towpath_durable::ClaimedJob) {
        let (_signal, receiver) = tokio::sync::watch::channel(towpath_durable::Signal::Run);
        towpath_durable::perform(&self.engine, &self.registry, &*self.shared, job, receiver).await;
    }

    /// Waits until some session waits for a lock. PostgreSQL only.
    pub async fn until_somebody_waits_for_a_lock(&self) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self
            .count(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
            )
            .await
            == 0
        {
            assert!(tokio::time::Instant::now() < deadline, "nothing waits for a lock");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// On SQLite before any worker: a starting scheduler assumes that running jobs belong to an earlier process life.
    pub async fn scheduler(&self) -> towpath_scheduler::Scheduler {
        let settings = towpath_scheduler::Settings {
            lease: self.engine.settings().lease,
            tick: Duration::from_millis(20),
            deadline_grace: Duration::from_millis(100),
            ..Default::default()
        };
        towpath_scheduler::Scheduler::start(&self.store, settings)
            .await
            .unwrap()
    }

    pub async fn start(&self, script: Script) -> JobId {
        self.start_as(script, Start::new(self.tenant)).await
    }

    pub async fn start_as(&self, script: Script, how: Start) -> JobId {
        self.store
            .write(async |tx| towpath_durable::start(tx, &script, how).await)
            .await
            .unwrap()
    }

    pub async fn job(&self, id: JobId) -> Job {
        self.store
            .read(async |tx| jobs::get(tx, id).await)
            .await
            .unwrap()
            .unwrap()
    }

    /// Claims as a separate worker: ready jobs, or else one that is claimed alone.
    pub async fn claim(&self, n: i64) -> Vec<towpath_durable::ClaimedJob> {
        let (worker, lease) = (WorkerId::new(), self.engine.settings().lease);
        self.store
            .write(async |tx| {
                leases::begin(tx, worker, lease).await?;
                let claimed = jobs::claim(tx, &jobs::ClaimRequest::new(Script::POOL_NAME, worker, n)).await?;
                if !claimed.is_empty() {
                    return Ok(claimed);
                }
                jobs::claim_suspects(tx, &jobs::ClaimRequest::new(Script::POOL_NAME, worker, 1)).await
            })
            .await
            .unwrap()
    }

    /// Takes back jobs without a lease, and ends their pause. Returns the number.
    pub async fn rescue(&self) -> usize {
        let rescued = towpath_durable::rescue(&self.store).await.unwrap();
        self.execute("UPDATE job SET run_at = created_at WHERE state = 'scheduled' AND lost_leases > 0")
            .await;
        towpath_durable::ready_due(&self.store).await.unwrap();
        rescued
    }

    /// Waits until the job's row satisfies `wish`.
    pub async fn until(&self, id: JobId, what: &str, wish: impl Fn(&Job) -> bool) -> Job {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let job = self.job(id).await;
            if wish(&job) {
                return job;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited too long for {what}; the job is {job:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn until_state(&self, id: JobId, state: JobState) -> Job {
        self.until(id, state.as_str(), |job| job.state == state).await
    }

    pub async fn until_over(&self, id: JobId) -> Job {
        self.until(id, "its end", |job| job.state.is_final()).await
    }

    /// Waits until `event` was recorded `times` times.
    pub async fn until_noted(&self, event: &str, times: usize) {
        let noted = tokio::time::timeout(PATIENCE, self.shared.until_noted(event, times)).await;
        assert!(noted.is_ok(), "waited too long for {event}: {:?}", self.shared.log());
    }

    /// Attempts that did not succeed, as `outcome: error`.
    pub async fn attempts(&self) -> Vec<String> {
        self.store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_scalar(
                    "SELECT outcome || ': ' || error FROM attempt ORDER BY at"
                )
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap()
    }

    /// Names of the committed effects, in order.
    pub async fn effects(&self) -> Vec<String> {
        self.store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_scalar(
                    "SELECT name FROM effect ORDER BY name"
                )
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap()
    }

    /// Makes the worker of only this job look lost.
    pub async fn end_lease(&self, id: JobId) {
        end_lease(&self.store, id).await;
    }

    /// Makes all leases look expired, as if time had passed. Live workers renew them.
    pub async fn expire_leases(&self) {
        self.store
            .write(async |tx| {
                let text = towpath_store::sql!(tx,
                    sqlite: "UPDATE lease SET alive_until = 1",
                    postgres: "UPDATE lease SET alive_until = 'epoch'");
                Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?)
            })
            .await
            .unwrap();
    }

    /// Checks the invariants of committed states.
    pub async fn check_invariants(&self) {
        let broken = broken_invariants(&self.store).await;
        assert!(broken.is_empty(), "{broken:?}");
    }
}

/// Gives a running job to a worker that never had a lease.
pub async fn end_lease(store: &Store, id: JobId) {
    store
        .write(async |tx| {
            Ok(on!(tx, |conn| sqlx::query(
                "UPDATE job SET worker_id = $2 WHERE id = $1 AND state = 'running'"
            )
            .bind(id)
            .bind(WorkerId::new())
            .execute(conn)
            .await
            .map(drop))?)
        })
        .await
        .unwrap();
}

/// Violations of the invariants of committed states: lanes count their holders, no job is stranded, families end
/// together.
pub async fn broken_invariants(store: &Store) -> Vec<String> {
    store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT 'lane ' || l.key || ' counts wrong' FROM lane l
                     WHERE l.held <> (SELECT count(*) FROM job j WHERE j.lane = l.key AND j.lane_held)
                     UNION ALL
                     SELECT 'lane ' || l.key || ' is over its limit' FROM lane l WHERE l.held > l.places
                     UNION ALL
                     SELECT 'lane ' || l.key || ' strands a job' FROM lane l WHERE l.held < l.places
                       AND EXISTS (SELECT 1 FROM job j WHERE j.lane = l.key AND j.state = 'blocked'
                                   AND j.finished_at IS NULL)
                     UNION ALL
                     SELECT 'a waiting job has no open child' FROM job p WHERE p.state = 'waiting'
                       AND NOT EXISTS (SELECT 1 FROM job c WHERE c.parent_id = p.id AND c.finished_at IS NULL)
                     UNION ALL
                     SELECT 'a parent that is over has open children' FROM job p WHERE p.finished_at IS NOT NULL
                       AND EXISTS (SELECT 1 FROM job c WHERE c.parent_id = p.id AND c.finished_at IS NULL
                                   AND c.cancel_at IS NULL)"
            )
            .fetch_all(conn)
            .await)?)
        })
        .await
        .unwrap()
}

/// Writes an effect row, like a workflow's business row.
pub async fn write_effect(tx: &mut Tx<'_>, job: JobId, name: &str, fence: i64) -> towpath_store::Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO effect (job, name, fence) VALUES ($1, $2, $3)"
    )
    .bind(job.to_string())
    .bind(name)
    .bind(fence)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

pub fn fenced(job: &towpath_durable::ClaimedJob) -> JobFence {
    JobFence {
        id: job.id,
        fence: job.fence,
    }
}
