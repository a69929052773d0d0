//! Everything at once: parents in one lane, their children in another, retries, cancels, lost leases and deadlines,
//! with several worker sets. Nobody polls, so each finished job was woken; and no transactions deadlock.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use towpath_durable::{Lane, Start, cancel};

use crate::on_each_form;
use crate::support::{Op, PATIENCE, Script, World};

const PARENTS: usize = 90;

/// No progress is possible for the time of a backoff.
const STILL: Duration = Duration::from_millis(60);

fn parent(nth: usize) -> Script {
    let children = (0..5)
        .map(|child| {
            let mut ops = vec![Op::Step("one".into()), Op::Effect(format!("effect {nth}.{child}"))];
            match (nth + child) % 7 {
                0 => ops.push(Op::Fail(2)),
                1 => ops.push(Op::Fatal),
                2 => ops.push(Op::Lasts(Duration::from_millis(15))),
                3 => ops.push(Op::Snooze(1, 5)),
                _ => {}
            }
            Script::new(&format!("child {nth}.{child}"), ops)
        })
        .collect();
    let mut ops = vec![
        Op::Step("plan".into()),
        Op::Children(children, Some(("exports".into(), 6))),
    ];
    if nth.is_multiple_of(2) {
        ops.push(Op::CheckChildren);
    }
    Script::new(&format!("parent {nth}"), ops)
}

async fn disturb(world: &World) {
    let mut dice = StdRng::seed_from_u64(7);
    for _ in 0..60 {
        // Paced by the progress of the jobs.
        world.shared.until_grown(dice.random_range(1..30), STILL).await;
        let open: Vec<towpath_domain::JobId> = world
            .store
            .read(async |tx| {
                Ok(towpath_store::on!(tx, |conn| sqlx::query_scalar(
                    "SELECT id FROM job WHERE finished_at IS NULL ORDER BY id"
                )
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap();
        if open.is_empty() {
            continue;
        }
        let job = open[dice.random_range(0..open.len())];
        match dice.random_range(0..3) {
            0 => drop(world.store.write(async |tx| cancel(tx, job).await).await.unwrap()),
            1 => {
                world.end_lease(job).await;
                towpath_durable::rescue(&world.store).await.unwrap();
            }
            _ => {
                let now = world.store.clock().now();
                world
                    .store
                    .write(async |tx| towpath_store::jobs::set_deadline(tx, job, now).await)
                    .await
                    .unwrap();
            }
        }
        let broken = crate::support::broken_invariants(&world.store).await;
        assert!(broken.is_empty(), "{broken:?}");
    }
}

on_each_form! {
    async fn a_storm_drains_by_wakes_alone_and_nobody_waits_for_each_other(world) {
        let scheduler = world.scheduler().await;
        let workers = [world.patient_workers(8), world.patient_workers(8), world.patient_workers(8)];
        let mut producers = tokio::task::JoinSet::new();
        for producer in 0..4 {
            let (store, tenant) = (world.store.clone(), world.tenant);
            producers.spawn(async move {
                for nth in (producer..PARENTS).step_by(4) {
                    let lane = Lane::new(format!("workspace:{}", nth % 3), 4);
                    store.write(async |tx| towpath_durable::start(tx, &parent(nth), Start::new(tenant).lane(lane)).await).await.unwrap();
                }
            });
        }
        disturb(&world).await;
        producers.join_all().await;
        world.until_drained().await;
        world.check_invariants().await;
        for workers in workers {
            workers.drain(PATIENCE).await;
        }
        scheduler.stop().await;
        let count = async |state| {
            let jobs: Vec<String> = world.store.read(async |tx| Ok(towpath_store::on!(tx, |conn| sqlx::query_scalar("SELECT state FROM job").fetch_all(conn).await)?)).await.unwrap();
            jobs.iter().filter(|one| *one == state).count()
        };
        println!("{:?}: {} succeeded, {} failed, {} cancelled, {} timed out", world.store.dialect(),
            count("succeeded").await, count("failed").await, count("cancelled").await, count("timed_out").await);
        assert_eq!(world.count("SELECT count(*) FROM lane WHERE held <> 0").await, 0);
        if world.store.dialect() == towpath_store::Dialect::Postgres {
            // Sessions report their counters when they end.
            world.store.close().await;
            let store = towpath_store::Store::open(&world._database.uri, towpath_store::Options::default()).await.unwrap();
            let deadlocks: i64 = store.read(async |tx| Ok(towpath_store::on!(tx, |conn| sqlx::query_scalar(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetch_one(conn).await)?)).await.unwrap();
            assert_eq!(deadlocks, 0);
        }
    }
}
