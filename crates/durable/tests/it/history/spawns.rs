//! I9: each time of a schedule is spawned once, whatever happens to schedulers, workers, spawn jobs and clocks.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{ScheduleId, TenantId, Timestamp};
use towpath_durable::{Ctx, IntoFailure, Outcome, Registry, Start, Workflow, cancel};
use towpath_queue::Queue;
use towpath_store::schedules::{self, Schedule};
use towpath_store::{self as store, Dialect, Options, Store, Tx, on};

use super::walk::{POOL, Process};
use crate::support::{Database, LEASE, PATIENCE};

const EVERY: Duration = Duration::from_millis(40);

/// Spawns for the time of its schedule, and records the spawn of the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spawn {
    schedule: ScheduleId,
}

struct World {
    store: Store,
}

impl Workflow for Spawn {
    const KIND: &'static str = "spawn";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(20, Duration::from_millis(20));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let schedule = world
            .store
            .read(async |tx| schedules::get(tx, self.schedule).await)
            .await
            .retry()?
            .expect("a schedule is never deleted");
        let (job, tenant) = (ctx.job(), ctx.tenant());
        if schedule.ended_at.is_some() || schedule.spawn_job != Some(job) {
            // Another job handles this time.
            return ctx.complete();
        }
        let next = schedule.next_at.plus(EVERY);
        ctx.settle(async |tx| {
            let following = towpath_durable::start(tx, self, Start::new(tenant).at(next)).await?;
            fire(tx, schedule.next_at).await?;
            if schedules::advance(tx, self.schedule, schedule.next_at, next, Some(following)).await? {
                Ok(())
            } else {
                Err(store::Error::Stale)
            }
        })
        .await
    }

    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}

/// This table allows duplicates.
async fn fire(tx: &mut Tx<'_>, instant: Timestamp) -> store::Result<()> {
    Ok(on!(tx, |conn| sqlx::query("INSERT INTO fired (instant) VALUES ($1)")
        .bind(instant.micros())
        .execute(conn)
        .await
        .map(drop))?)
}

async fn execute(store: &Store, text: &'static str) {
    store
        .write(async |tx| Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?))
        .await
        .unwrap();
}

async fn fired(store: &Store) -> Vec<i64> {
    store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT instant FROM fired ORDER BY instant"
            )
            .fetch_all(conn)
            .await)?)
        })
        .await
        .unwrap()
}

async fn schedule(store: &Store) -> Schedule {
    let schedule = Schedule {
        id: ScheduleId::new(),
        tenant_id: TenantId::new(),
        kind: Spawn::KIND.to_owned(),
        pool: POOL.to_owned(),
        input: String::new(),
        next_at: store.clock().now(),
        paused: false,
        // None is recorded: the scheduler must notice that.
        spawn_job: None,
        created_at: store.clock().now(),
        ended_at: None,
    };
    let schedule = Schedule {
        input: serde_json::to_string(&Spawn { schedule: schedule.id }).unwrap(),
        ..schedule
    };
    store
        .write(async |tx| schedules::insert(tx, &schedule).await)
        .await
        .unwrap();
    schedule
}

async fn each_instant_is_spawned_once(database: Database) {
    let queue = Queue::local();
    let registry = || Registry::default().with::<Spawn>();
    // A separate process on PostgreSQL; on SQLite there is only one.
    let start = || {
        let (uri, queue) = (database.uri.clone(), queue.clone());
        let world = |store: &Store| Arc::new(World { store: store.clone() });
        tokio::task::spawn_blocking(move || Process::start(&uri, LEASE, &queue, registry(), world))
    };
    let mut processes = vec![start().await.unwrap()];
    let store = if processes[0].store.dialect() == Dialect::Postgres {
        let store = Store::open(&database.uri, Options::default()).await.unwrap();
        registry().attach(&store);
        processes.push(start().await.unwrap());
        store
    } else {
        processes[0].store.clone()
    };
    execute(&store, "CREATE TABLE fired (instant BIGINT NOT NULL)").await;
    let schedule = schedule(&store).await;
    let mut dice = StdRng::seed_from_u64(5);
    let (mut cancelled, mut killed, mut jumped) = (0, 0, false);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while fired(&store).await.len() < 60 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "only {} instants fired",
            fired(&store).await.len()
        );
        tokio::time::sleep(Duration::from_millis(dice.random_range(10..120))).await;
        let now = store
            .read(async |tx| schedules::get(tx, schedule.id).await)
            .await
            .unwrap()
            .unwrap();
        if let (Some(job), 0) = (now.spawn_job, dice.random_range(0..3)) {
            // The spawn is cancelled: the scheduler records another.
            store.write(async |tx| cancel(tx, job).await).await.unwrap();
            cancelled += 1;
        }
        if processes.len() > 1 && dice.random_range(0..6) == 0 {
            let process = processes.remove(0);
            tokio::task::spawn_blocking(move || process.kill()).await.unwrap();
            processes.push(start().await.unwrap());
            killed += 1;
        }
        if processes.len() > 1 && !jumped && fired(&store).await.len() > 20 {
            // The database's clock jumps: missed times are spawned, and every lease looks expired.
            jumped = true;
            execute(
                &store,
                "CREATE OR REPLACE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz LANGUAGE sql
                 STABLE PARALLEL SAFE AS $$ SELECT coalesce(known, clock_timestamp()) + interval '800 milliseconds' $$",
            )
            .await;
        }
    }
    store
        .write(async |tx| schedules::end(tx, schedule.id).await)
        .await
        .unwrap();
    let instants = fired(&store).await;
    for (nth, instant) in instants.iter().enumerate() {
        let expected = schedule.next_at.plus(EVERY * u32::try_from(nth).unwrap());
        assert_eq!(
            *instant,
            expected.micros(),
            "instant {nth} is missing or was spawned twice"
        );
    }
    println!(
        "{:?}: {} instants, each once; {cancelled} spawn jobs cancelled, {killed} processes killed",
        store.dialect(),
        instants.len()
    );
    drop(store);
    for process in processes {
        tokio::task::spawn_blocking(move || process.leave(PATIENCE))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_instant_is_spawned_once_on_sqlite() {
    each_instant_is_spawned_once(Database::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_instant_is_spawned_once_on_postgres() {
    if let Some(database) = Database::postgres().await {
        each_instant_is_spawned_once(database).await;
    }
}
