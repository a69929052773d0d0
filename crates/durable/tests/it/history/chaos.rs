//! The chaos, on both databases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use towpath_domain::{JobId, TenantId, WorkerId};
use towpath_durable::{Lane, Start, cancel};
use towpath_queue::Queue;
use towpath_store::{Options, Store, on};

use super::check::{History, JobRequest};
use super::walk::{KeepPlaceJob, Process, RandomWalkJob, Record, TABLES, open_when_free, registry};
use crate::support::{Database, LEASE, PATIENCE, RedisServer, broken_invariants, end_lease};

/// How long walks may stand still before the next cancel is sent anyway.
const STILL: Duration = Duration::from_millis(90);

/// Records the jobs of a history and returns what was requested of each.
async fn record_jobs(store: &Store, dice: &mut StdRng) -> Vec<(JobId, JobRequest)> {
    let tenants: Vec<TenantId> = (0..3).map(|_| TenantId::new()).collect();
    let mut asked = Vec::new();
    for nth in 0..240_u64 {
        let mut walk = RandomWalkJob {
            seed: nth * 1000,
            steps: dice.random_range(1..4),
            fails: dice.random_range(0..60),
            endless: false,
            children: 0,
        };
        let mut how = Start::new(tenants[dice.random_range(0..3)]);
        let mut ask = JobRequest::default();
        match nth % 6 {
            0 | 1 => {
                how = how.lane(Lane::new(format!("thread:{}", nth % 9), 1));
                ask.thread = true;
            }
            2 => how = how.lane(Lane::new("exports", 3)),
            3 if nth % 4 == 1 => walk.children = 3,
            4 => how = how.after(Duration::from_millis(dice.random_range(1..400))),
            _ => {}
        }
        if nth % 10 == 7 && !ask.thread {
            walk.endless = true;
            walk.fails = 0;
            if nth % 20 == 7 {
                let deadline = store
                    .clock()
                    .now()
                    .plus(Duration::from_millis(dice.random_range(300..1500)));
                how = how.deadline(deadline);
                ask.deadline = Some(deadline);
            }
        }
        ask.endless = walk.endless;
        let job = store
            .write(async |tx| {
                if ask.thread {
                    towpath_durable::start(tx, &KeepPlaceJob(walk.clone()), how.clone()).await
                } else {
                    towpath_durable::start(tx, &walk, how.clone()).await
                }
            })
            .await
            .unwrap();
        asked.push((job, ask));
    }
    asked
}

/// Cancels some jobs from time to time, and certainly the endless ones without a deadline. Returns when, and how many
/// effects of the job were committed by then.
async fn cancel_some(
    store: &Store,
    record: &Record,
    asked: &[(JobId, JobRequest)],
    mut dice: StdRng,
) -> HashMap<JobId, i64> {
    let mut effects = HashMap::new();
    for (job, ask) in asked {
        let must = ask.endless && ask.deadline.is_none();
        if !must && dice.random_range(0..100) >= 12 {
            continue;
        }
        // If every slot holds a walk that waits to be stopped, only this cancel makes room.
        record.until_grown(dice.random_range(2..40), STILL).await;
        let before = store
            .write(async |tx| {
                cancel(tx, *job).await?;
                Ok(on!(tx, |conn| sqlx::query_scalar(
                    "SELECT count(*) FROM effect WHERE job = $1"
                )
                .bind(job.to_string())
                .fetch_one(conn)
                .await)?)
            })
            .await
            .unwrap();
        effects.insert(*job, before);
    }
    effects
}

async fn open(database: &Database, queue: &Queue) -> Store {
    let store = Store::open(&database.uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    registry().attach(&store);
    store.on_hints({
        let queue = queue.clone();
        move |hints| towpath_durable::send_hints(&queue, &hints)
    });
    for table in TABLES {
        store
            .write(async |tx| Ok(on!(tx, |conn| sqlx::query(table).execute(conn).await.map(drop))?))
            .await
            .unwrap();
    }
    store
}

async fn still_open(store: &Store) -> i64 {
    store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT count(*) FROM job WHERE finished_at IS NULL"
            )
            .fetch_one(conn)
            .await)?)
        })
        .await
        .unwrap()
}

async fn held_by(store: &Store, worker: WorkerId) -> i64 {
    store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT count(*) FROM job WHERE worker_id = $1"
            )
            .bind(worker)
            .fetch_one(conn)
            .await)?)
        })
        .await
        .unwrap()
}

/// Makes some leases look expired while their holders are running: they continue until they are signalled or try to
/// write. Returns the number.
async fn end_leases(store: &Store, dice: &mut StdRng) -> i64 {
    let mut ended = 0;
    let held: Vec<JobId> = store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT id FROM job WHERE state = 'running' ORDER BY id"
            )
            .fetch_all(conn)
            .await)?)
        })
        .await
        .unwrap();
    for job in held {
        if dice.random_range(0..4) > 0 {
            continue;
        }
        ended += 1;
        end_lease(store, job).await;
    }
    towpath_durable::rescue(store).await.unwrap();
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_killed_workers_leave_is_whole_on_postgres() {
    if let Some(database) = Database::postgres().await {
        kill_workers(&database, &Queue::local()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_killed_workers_leave_is_whole_with_directed_dispatch() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    if let Some(redis) = RedisServer::start().await {
        kill_workers(&database, &redis.directed_queue().await).await;
    }
}

async fn kill_workers(database: &Database, queue: &Queue) {
    let store = open(database, queue).await;
    let record = Arc::new(Record::default());
    let mut dice = StdRng::seed_from_u64(1);
    let start = |record: &Arc<Record>| {
        let (uri, queue, record) = (database.uri.clone(), queue.clone(), record.clone());
        tokio::task::spawn_blocking(move || Process::start(&uri, LEASE, &queue, registry(), |_| record))
    };
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(start(&record).await.unwrap());
    }
    let asked = record_jobs(&store, &mut dice).await;
    let cancelling = tokio::spawn({
        let (store, record, asked) = (store.clone(), record.clone(), asked.clone());
        async move { cancel_some(&store, &record, &asked, StdRng::seed_from_u64(2)).await }
    });
    let (mut killed, mut left, mut held) = (HashSet::new(), HashSet::new(), 0);
    let (mut looks, mut forced) = (0, 0);
    let deadline = tokio::time::Instant::now() + PATIENCE * 2;
    let mut next = tokio::time::Instant::now();
    loop {
        let broken = broken_invariants(&store).await;
        assert!(broken.is_empty(), "{broken:?}");
        looks += 1;
        if cancelling.is_finished() && still_open(&store).await == 0 {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} jobs are stranded",
            still_open(&store).await
        );
        if tokio::time::Instant::now() >= next && killed.len() + left.len() < 12 {
            let process = processes.remove(dice.random_range(0..processes.len()));
            let id = process.id;
            if dice.random_range(0..3) == 0 {
                left.insert(id);
                tokio::task::spawn_blocking(move || process.leave(Duration::ZERO))
                    .await
                    .unwrap();
            } else {
                killed.insert(id);
                tokio::task::spawn_blocking(move || process.kill()).await.unwrap();
                held += held_by(&store, id).await;
            }
            processes.push(start(&record).await.unwrap());
            forced += end_leases(&store, &mut dice).await;
            next = tokio::time::Instant::now() + Duration::from_millis(dice.random_range(100..500));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for process in processes {
        let id = process.id;
        left.insert(id);
        tokio::task::spawn_blocking(move || process.leave(PATIENCE))
            .await
            .unwrap();
    }
    let history = History {
        asked,
        cancelled: cancelling.await.unwrap(),
        events: record.events(),
        killed,
        left,
        held,
        forced,
        looks,
    };
    history.check(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_leaves_is_whole_on_sqlite() {
    let database = Database::sqlite().await;
    let queue = Queue::local();
    let record = Arc::new(Record::default());
    let mut dice = StdRng::seed_from_u64(3);
    let asked = {
        let store = open(&database, &queue).await;
        record_jobs(&store, &mut dice).await
    };
    // A single process: it is killed as a whole, and its next life finds its jobs.
    let (mut killed, mut left, mut held, mut looks, mut forced) = (HashSet::new(), HashSet::new(), 0, 0, 0);
    let mut cancelled = HashMap::new();
    for life in 0..8 {
        let (uri, queue, world) = (database.uri.clone(), queue.clone(), record.clone());
        let process = tokio::task::spawn_blocking(move || Process::start(&uri, LEASE, &queue, registry(), |_| world))
            .await
            .unwrap();
        let id = process.id;
        let store = process.store.clone();
        let until = if life == 7 {
            PATIENCE * 2
        } else {
            Duration::from_millis(dice.random_range(40..250))
        };
        let until = tokio::time::Instant::now() + until;
        if life == 6 {
            cancelled = cancel_some(&store, &record, &asked, StdRng::seed_from_u64(4)).await;
        }
        while tokio::time::Instant::now() < until && still_open(&store).await > 0 {
            let broken = broken_invariants(&store).await;
            assert!(broken.is_empty(), "{broken:?}");
            looks += 1;
            if looks % 8 == 0 {
                forced += end_leases(&store, &mut dice).await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(store);
        if life == 7 || dice.random_range(0..4) == 0 {
            left.insert(id);
            tokio::task::spawn_blocking(move || process.leave(Duration::ZERO))
                .await
                .unwrap();
        } else {
            killed.insert(id);
            tokio::task::spawn_blocking(move || process.kill()).await.unwrap();
            let store = open_when_free(&database.uri).await;
            held += held_by(&store, id).await;
        }
    }
    let store = open_when_free(&database.uri).await;
    let history = History {
        asked,
        cancelled,
        events: record.events(),
        killed,
        left,
        held,
        forced,
        looks,
    };
    history.check(&store).await;
}
