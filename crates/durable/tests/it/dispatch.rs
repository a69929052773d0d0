//! Directed dispatch: claims by ids, and Redis that loses them.

use std::time::Duration;

use towpath_domain::job::{JobState, ReadyJob};
use towpath_domain::{JobId, TenantId, WorkerId};
use towpath_durable::{ClaimedJob, JobFence, Start, StateReason, explain};
use towpath_store::jobs::{self, ClaimRequest};
use towpath_store::{Conn, Dialect, pools};

use crate::on_each;
use crate::peers::rows_read;
use crate::support::{Database, LEASE, Op, PATIENCE, RedisServer, Script, World, fenced};

async fn claim(world: &World, named: &[JobId]) -> Vec<ClaimedJob> {
    let claimer = ClaimRequest {
        named: Some(named),
        ..ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), i64::try_from(named.len()).unwrap())
    };
    // One statement, as in a worker.
    let claimed = world.store.write_one(async |tx| jobs::claim(tx, &claimer).await).await;
    claimed.unwrap()
}

async fn turn(world: &World, held: &[JobFence], named: &[JobId]) -> jobs::ClaimOutcome {
    let claimer = ClaimRequest {
        named: Some(named),
        ..ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), i64::try_from(named.len()).unwrap())
    };
    let turned = world
        .store
        .write(async |tx| jobs::complete_and_claim(tx, held, &[], &claimer).await);
    turned.await.unwrap()
}

fn ids(claimed: &[ClaimedJob]) -> Vec<JobId> {
    claimed.iter().map(|job| job.id).collect()
}

async fn ready_jobs(world: &World, last: TenantId, limit: i64) -> Vec<ReadyJob> {
    let read = world
        .store
        .read(async |tx| jobs::ready_jobs(tx, Script::POOL_NAME, last, limit).await);
    read.await.unwrap()
}

async fn record(world: &World, tenant: TenantId, priority: i64) -> JobId {
    world
        .start_as(Script::new("idle", [Op::Done]), Start::new(tenant).priority(priority))
        .await
}

on_each! {
    async fn a_claim_by_ids_takes_the_ready_ones_of_its_pool(world) {
        let mut recorded = Vec::new();
        for _ in 0..4 {
            recorded.push(record(&world, world.tenant, 0).await);
        }
        let urgent = record(&world, world.tenant, 7).await;
        let later = world.start_as(Script::new("later", []), Start::new(world.tenant).after(PATIENCE)).await;
        let named = [recorded[2], JobId::new(), later, recorded[1], recorded[1], urgent];
        let claimed = claim(&world, &named).await;
        assert_eq!(ids(&claimed), [urgent, recorded[1], recorded[2]], "in the order of their turn");
        assert!(claimed.iter().all(|job| (job.attempt, job.fence) == (1, 1)));
        assert_eq!(ids(&claim(&world, &named).await), [], "none of them is ready any more");
        assert_eq!(world.job(later).await.state, JobState::Scheduled);

        let other_pool = ClaimRequest { named: Some(&recorded), ..ClaimRequest::new("others", WorkerId::new(), 4) };
        let claimed = world.store.write(async |tx| jobs::claim(tx, &other_pool).await).await.unwrap();
        assert_eq!(ids(&claimed), []);
        world.store.write(async |tx| pools::pause(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(ids(&claim(&world, &recorded).await), [], "the pool is paused");
        world.store.write(async |tx| pools::resume(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(ids(&claim(&world, &recorded).await), [recorded[0], recorded[3]]);
    }
}

on_each! {
    async fn a_turn_by_ids_completes_what_is_held(world) {
        let mut recorded = Vec::new();
        for _ in 0..3 {
            recorded.push(record(&world, world.tenant, 0).await);
        }
        let first = turn(&world, &[], &recorded[..2]).await;
        assert_eq!(ids(&first.claimed), recorded[..2]);
        let mut held: Vec<_> = first.claimed.iter().map(fenced).collect();
        held[1].fence += 1;
        let second = turn(&world, &held, &recorded).await;
        assert_eq!(second.not_completed, [held[1]]);
        assert_eq!(ids(&second.claimed), [recorded[2]]);
        assert_eq!(world.job(recorded[0]).await.state, JobState::Succeeded);
        // Without ids only the completions are written.
        held[1].fence -= 1;
        let third = turn(&world, &held[1..], &[]).await;
        assert_eq!((third.not_completed.len(), third.claimed.len()), (0, 0));
        assert_eq!(world.job(recorded[1]).await.state, JobState::Succeeded);
    }
}

on_each! {
    async fn a_claim_by_ids_reads_what_it_takes(world) {
        world.backlog(20_000).await;
        let named: Vec<_> = ready_jobs(&world, TenantId::nil(), 16).await.into_iter().map(|job| job.id).collect();
        assert_eq!(named.len(), 16);
        let store = world.store.with_own_pool(1).unwrap();
        let read = store.write(async |tx| {
            let before = rows_read(tx).await?;
            let claimer = ClaimRequest { named: Some(&named), ..ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), 16) };
            assert_eq!(jobs::claim(tx, &claimer).await?.len(), 16);
            Ok(rows_read(tx).await? - before)
        });
        let read = read.await.unwrap();
        println!("{:?}: a claim of 16 ids reads {read} rows", store.dialect());
        assert!(read < 500, "{read}");
    }
}

on_each! {
    async fn the_ready_jobs_of_a_pool_are_listed_by_turn(world) {
        let mut tenants = [world.tenant, TenantId::new()];
        tenants.sort_unstable();
        let [a, b] = tenants;
        let mut of_a = Vec::new();
        for priority in [0, 0, 3] {
            of_a.push(record(&world, a, priority).await);
        }
        let of_b = record(&world, b, 0).await;
        let listed = |jobs: &[ReadyJob]| jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(listed(&ready_jobs(&world, TenantId::nil(), 2).await), [of_a[2], of_b]);
        assert_eq!(listed(&ready_jobs(&world, a, 1).await), [of_b], "after the last tenant");
        let all = ready_jobs(&world, TenantId::nil(), 100).await;
        let mut seen = listed(&all);
        seen.sort_unstable();
        assert_eq!(seen, [of_a[0], of_a[1], of_a[2], of_b]);
        let row = world.job(of_a[2]).await;
        let first = all.iter().find(|job| job.id == of_a[2]).unwrap();
        assert_eq!((first.tenant, first.priority, first.run_at), (a, 3, row.run_at));
        world.store.write(async |tx| pools::pause(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(listed(&ready_jobs(&world, TenantId::nil(), 100).await), [], "the pool is paused");
    }
}

/// A worker that claims by ids does not wait for a job that another transaction holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_by_ids_skips_locked_jobs() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    assert_eq!(world.store.dialect(), Dialect::Postgres);
    let (locked, free) = (
        record(&world, world.tenant, 0).await,
        record(&world, world.tenant, 0).await,
    );
    let other = world.store.with_own_pool(1).unwrap();
    let claimed = other.write(async |tx| {
        crate::support::stand_still(tx).await?;
        let Conn::Postgres(conn) = tx.conn() else {
            unreachable!("only on PostgreSQL")
        };
        sqlx::query("SELECT FROM job WHERE id = $1 FOR UPDATE")
            .bind(locked)
            .execute(conn)
            .await?;
        Ok(claim(&world, &[locked, free]).await)
    });
    assert_eq!(ids(&claimed.await.unwrap()), [free]);
}

/// What operators read of a job comes from its row, wherever its id is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_in_redis_change_nothing_of_what_is_told() {
    let Some(world) = World::directed().await else { return };
    let job = record(&world, world.tenant, 0).await;
    let why = async || {
        let explained = world.store.read(async |tx| explain(tx, job).await).await;
        explained.unwrap().unwrap().why
    };
    let depth = async || {
        let depths = world.store.read(async |tx| pools::depths(tx).await).await.unwrap();
        depths
            .iter()
            .map(|depth| (depth.state.clone(), depth.jobs))
            .collect::<Vec<_>>()
    };
    assert_eq!(why().await, StateReason::NoWorker);
    assert_eq!(depth().await, [("ready".to_owned(), 1)]);
    // A worker takes the id and dies.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match world.queue.take(Script::POOL_NAME, 8).await {
            Some(taken) if taken.ids == [job] => break,
            Some(_) => {}
            // The answer was late, and the id may be gone.
            None => world.queue.push(&ready_jobs(&world, TenantId::nil(), 8).await),
        }
        assert!(tokio::time::Instant::now() < deadline, "the id never came to Redis");
    }
    assert_eq!(why().await, StateReason::NoWorker, "it is still ready");
    assert_eq!(depth().await, [("ready".to_owned(), 1)]);
    let workers = world.workers(1);
    assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
    workers.drain(PATIENCE).await;
}

/// The id of a job whose recorder died never comes: a scan behind the next id finds the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_id_never_came_is_found() {
    let Some(world) = World::directed().await else { return };
    // It never polls.
    let workers = world.patient_workers(1);
    world.start(Script::new("first", [])).await;
    world.until_noted("first starts", 1).await;
    world.backlog(1).await;
    let other = world.start(Script::new("other", [])).await;
    world.until_over(other).await;
    world.until_drained().await;
    assert_eq!(world.shared.count("idle starts"), 1);
    workers.drain(PATIENCE).await;
}

/// What becomes of Redis during a drain.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RedisFault {
    Flushed,
    Frozen,
    Gone,
}

/// Two workers over one Redis, a backlog that is mostly not in Redis, and jobs that are recorded meanwhile.
async fn drain(fault: RedisFault) {
    const BACKLOG: i64 = 20_000;
    const RECORDED: i64 = 300;
    let Some(database) = Database::postgres().await else {
        return;
    };
    let Some(server) = RedisServer::start().await else {
        return;
    };
    let world = World::build(database, LEASE, server.directed_queue().await).await;
    let world = world.leasing(Duration::from_secs(8));
    let there = server.directed_queue().await;
    world.backlog(BACKLOG).await;
    let workers = [
        world.workers_with(16, Duration::from_millis(500), &world.queue),
        world.workers_with(16, Duration::from_millis(500), &there),
    ];
    let mut server = Some(server);
    for nth in 0..RECORDED {
        record(
            &world,
            if nth % 3 == 0 { world.tenant } else { TenantId::new() },
            nth % 5,
        )
        .await;
        let Some(redis) = &server else { continue };
        match fault {
            RedisFault::Flushed if nth % 10 == 0 => redis.command(&["FLUSHALL"]).await,
            RedisFault::Frozen if nth % 100 == 50 => redis.command(&["CLIENT", "PAUSE", "2500", "ALL"]).await,
            RedisFault::Gone if nth == RECORDED / 2 => drop(server.take()),
            _ => {}
        }
    }
    world.until_drained().await;
    for workers in workers {
        workers.drain(PATIENCE).await;
    }
    let once = world
        .count("SELECT count(*) FROM job WHERE state = 'succeeded' AND attempt = 1")
        .await;
    assert_eq!(once, BACKLOG + RECORDED, "{fault:?}");
    assert_eq!(
        world.shared.count("idle starts"),
        usize::try_from(BACKLOG + RECORDED).unwrap()
    );
    world.check_invariants().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_over_a_redis_that_is_flushed_loses_and_doubles_nothing() {
    drain(RedisFault::Flushed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_over_a_redis_that_freezes_loses_and_doubles_nothing() {
    drain(RedisFault::Frozen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_whose_redis_ends_loses_and_doubles_nothing() {
    drain(RedisFault::Gone).await;
}
