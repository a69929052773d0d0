//! Thirteen scenarios in which another queue stopped, ran work twice, or waited half a minute, by their numbers.

use std::time::{Duration, Instant};

use towpath_domain::job::JobState;
use towpath_durable::{Lane, Start, StateReason, explain};
use towpath_queue::Queue;
use towpath_store::steps::{self, NewStep};
use towpath_store::{Conn, Error, jobs, on, pools, workers as worker_rows};

use crate::support::{Database, LEASE, Op, PATIENCE, RedisServer, Script, World, fenced};
use crate::{on_each, on_each_form};

/// Records 60 jobs, each after the end of the previous one, and returns the sorted waiting times.
async fn pick_ups(world: &World) -> Vec<Duration> {
    let mut recorded = Vec::new();
    for nth in 0..60 {
        let job = world.start(Script::new(&format!("job {nth}"), [Op::Done])).await;
        recorded.push(Instant::now());
        world.until_over(job).await;
    }
    let mut waits: Vec<Duration> = (0..60)
        .map(|nth| {
            let began = world.shared.noted_at(&format!("job {nth} starts")).unwrap();
            began.saturating_duration_since(recorded[nth])
        })
        .collect();
    waits.sort_unstable();
    waits
}

fn print_waits(what: &str, waits: &[Duration]) {
    println!(
        "{what}: pick-up p50 {:?}, longest {:?}",
        waits[waits.len() / 2],
        waits[waits.len() - 1]
    );
}

on_each_form! {
    async fn r1_a_backlog_of_twenty_thousand_drains(world) {
        world.backlog(20_000).await;
        let began = Instant::now();
        let workers = world.workers(256);
        world.until_drained().await;
        println!("{:?}: 20,000 jobs drained in {:?}", world.store.dialect(), began.elapsed());
        assert_eq!(world.count("SELECT count(*) FROM job WHERE state = 'succeeded' AND attempt = 1").await, 20_000);
        assert_eq!(world.shared.count("idle starts"), 20_000);
        workers.drain(PATIENCE).await;
    }
}

/// For healthy workers on a machine that sometimes stalls for seconds. Handlers of workers that cannot renew for nine
/// tenths of a lease are stopped correctly, which a short [`LEASE`] would trigger.
const LONG_LEASE: Duration = Duration::from_secs(8);

on_each_form! {
    async fn r2_two_healthy_workers_run_each_job_once(world) {
        let world = world.leasing(LONG_LEASE);
        let _scheduler = world.scheduler().await;
        for nth in 0..8 {
            world.start(Script::new(&format!("job {nth}"), [Op::Lasts(LONG_LEASE * 6 / 5)])).await;
        }
        // Two rounds of concurrent operations.
        let workers = [world.workers(2), world.workers(2)];
        world.until_drained().await;
        // The writer of the last end may not have received the result yet.
        for workers in workers {
            workers.drain(PATIENCE).await;
        }
        // First, because it shows why a job was started twice.
        assert_eq!(world.attempts().await, [""; 0], "no lease was lost, and nothing failed");
        for nth in 0..8 {
            assert_eq!(world.shared.count(&format!("job {nth} starts")), 1);
            assert_eq!(world.shared.count(&format!("job {nth} settled")), 1);
        }
    }
}

on_each_form! {
    async fn r3_an_idle_worker_picks_up_at_once(world) {
        // Its polling interval is minutes.
        let workers = world.patient_workers(4);
        print_waits("in one process", &pick_ups(&world).await);
        workers.drain(PATIENCE).await;
    }
}

/// Two queues on one Redis act as two processes: jobs recorded on one side wake the workers of the other.
async fn apart(server: &RedisServer) -> Option<(World, Queue)> {
    let database = Database::postgres().await?;
    let world = World::build(database, LEASE, server.queue().await).await;
    Some((world, server.queue().await))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_a_wake_through_redis_reaches_an_idle_worker_at_once() {
    let Some(server) = RedisServer::start().await else {
        return;
    };
    let Some((world, there)) = apart(&server).await else {
        return;
    };
    let workers = world.workers_with(4, PATIENCE * 4, &there);
    world.until_seen(&workers).await;
    print_waits("through Redis", &pick_ups(&world).await);
    workers.drain(PATIENCE).await;
}

on_each! {
    async fn r5_a_start_repeated_leaves_one_job(world) {
        // A business table enforces uniqueness; the job is recorded in its transaction or not at all.
        world.execute("CREATE TABLE wish (name TEXT PRIMARY KEY)").await;
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (store, tenant) = (world.store.clone(), world.tenant);
            callers.spawn(async move {
                store
                    .write(async |tx| {
                        let how = Start::new(tenant).lane(Lane::new("thread:1", 1));
                        towpath_durable::start(tx, &Script::new("once", []), how).await?;
                        on!(tx, |conn| sqlx::query("INSERT INTO wish (name) VALUES ('once')").execute(conn).await.map(drop))?;
                        Ok(())
                    })
                    .await
            });
        }
        let answers = callers.join_all().await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
        assert_eq!(answers.iter().filter(|answer| matches!(answer, Err(Error::Conflict { .. }))).count(), 7);
        let workers = world.workers(4);
        world.until_drained().await;
        assert_eq!(world.shared.count("once starts"), 1);
        assert_eq!(world.count("SELECT count(*) FROM job").await, 1);
        workers.drain(PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn r6_retries_keep_their_number_and_their_delay(world) {
        let _scheduler = world.scheduler().await;
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Fail(1000)])).await;
        assert_eq!(world.until_over(job).await.state, JobState::Failed);
        assert_eq!(world.shared.count("a starts"), 21);
        let attempts = world.store.read(async |tx| towpath_store::attempts::list(tx, job).await).await.unwrap();
        for pair in attempts.windows(2) {
            assert!(pair[1].at.since(pair[0].at) >= Duration::from_millis(30), "{pair:?}");
        }
        workers.drain(PATIENCE).await;
    }
}

on_each_form! {
    async fn r7_a_worker_restarts_under_its_old_name(world) {
        // Same host and process id, but each process life is a different worker.
        for nth in 0..3 {
            let workers = world.patient_workers(1);
            let job = world.start(Script::new(&format!("life {nth}"), [])).await;
            assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
            workers.drain(PATIENCE).await;
        }
        let (old, new) = (world.patient_workers(1), world.patient_workers(1));
        world.until_seen(&old).await;
        world.until_seen(&new).await;
        assert_ne!(old.id(), new.id());
        old.drain(PATIENCE).await;
        let job = world.start(Script::new("afterwards", [])).await;
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        new.drain(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_a_redis_that_stalls_stops_no_worker() {
    let Some(server) = RedisServer::start().await else {
        return;
    };
    let Some((world, there)) = apart(&server).await else {
        return;
    };
    let workers = world.workers_with(4, PATIENCE * 4, &there);
    world.until_seen(&workers).await;
    for (round, millis) in ["400", "800", "800"].into_iter().enumerate() {
        server.command(&["CLIENT", "PAUSE", millis, "ALL"]).await;
        for nth in 0..10 {
            world.start(Script::new(&format!("{round}/{nth}"), [])).await;
        }
        // Nobody polls, so the hints of the stall must arrive afterwards.
        world.until_drained().await;
        for nth in 0..10 {
            assert_eq!(world.shared.count(&format!("{round}/{nth} starts")), 1);
        }
    }
    workers.drain(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_a_redis_that_is_emptied_loses_nothing() {
    let Some(server) = RedisServer::start().await else {
        return;
    };
    let Some((world, there)) = apart(&server).await else {
        return;
    };
    // Emptied between two jobs: the next wake arrives.
    let workers = world.workers_with(2, PATIENCE * 4, &there);
    world.until_seen(&workers).await;
    for nth in 0..10 {
        server.command(&["FLUSHALL"]).await;
        let job = world.start(Script::new(&format!("job {nth}"), [])).await;
        world.until_over(job).await;
    }
    workers.drain(PATIENCE).await;
    // Emptied while wakes are in transit: polling finds the jobs.
    let workers = world.workers_with(2, Duration::from_millis(200), &there);
    for nth in 10..200 {
        world.start(Script::new(&format!("job {nth}"), [])).await;
        if nth % 10 == 0 {
            server.command(&["FLUSHALL"]).await;
        }
    }
    world.until_drained().await;
    for nth in 0..200 {
        assert_eq!(world.shared.count(&format!("job {nth} starts")), 1);
    }
    assert_eq!(world.count("SELECT count(*) FROM effect").await, 200);
    workers.drain(PATIENCE).await;
}

on_each! {
    async fn r10_lists_and_counts_answer(world) {
        let workers = world.workers(1);
        world.until_seen(&workers).await;
        let running = world.start(Script::new("running", [Op::Gate("go".into())])).await;
        world.until_noted("running at go", 1).await;
        let lane = || Lane::new("thread:1", 1);
        let ready = world.start_as(Script::new("ready", []), Start::new(world.tenant).lane(lane())).await;
        let blocked = world.start_as(Script::new("blocked", []), Start::new(world.tenant).lane(lane())).await;
        let scheduled = world.start_as(Script::new("later", []), Start::new(world.tenant).after(PATIENCE)).await;

        finished(&world, 5_000).await;
        let read = world.store.read(async |tx| {
            let before = rows_read(tx).await?;
            pools::depths(tx).await?;
            Ok(rows_read(tx).await? - before)
        }).await.unwrap();
        assert!(read < 500, "counting what is open read {read} rows");
        let mut depths: Vec<(String, String, i64)> = world.store.read(async |tx| pools::depths(tx).await).await.unwrap()
            .into_iter().map(|depth| (depth.pool, depth.state, depth.jobs)).collect();
        depths.sort_unstable();
        let expected = ["blocked", "ready", "running", "scheduled"].map(|state| (Script::POOL_NAME.to_owned(), state.to_owned(), 1));
        assert_eq!(depths, expected);
        let oldest = world.store.read(async |tx| pools::oldest_ready(tx).await).await.unwrap();
        assert_eq!(oldest.len(), 1);
        assert_eq!(oldest[0].run_at, world.job(ready).await.run_at);
        let alive = world.store.read(async |tx| worker_rows::alive(tx, PATIENCE).await).await.unwrap();
        assert_eq!(alive.iter().map(|worker| worker.id).collect::<Vec<_>>(), [workers.id()]);
        assert_eq!(workers.running_jobs(), 1);
        for (job, expected) in [(running, "running"), (ready, "workers_busy"), (blocked, "lane_full"), (scheduled, "scheduled")] {
            let told = world.store.read(async |tx| explain(tx, job).await).await.unwrap().unwrap();
            assert_eq!(serde_json::to_value(&told).unwrap()["reason"], expected, "{}", told.text);
        }
        world.shared.open("go");
        world.store.write(async |tx| towpath_durable::cancel(tx, scheduled).await).await.unwrap();
        world.until_drained().await;
        workers.drain(PATIENCE).await;
        assert!(world.store.read(async |tx| pools::depths(tx).await).await.unwrap().is_empty());
    }
}

/// Records finished jobs.
pub async fn finished(world: &World, count: i64) {
    world
        .store
        .write(async |tx| {
            let now = tx.now();
            let text = towpath_store::sql!(tx,
                sqlite: "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < $3)
                         INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at, finished_at)
                         SELECT randomblob(16), $1, 'script', 'scripts', 'succeeded', $2, '', $2, $2 FROM n",
                postgres: "INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at, finished_at)
                           SELECT gen_random_uuid(), $1, 'script', 'scripts', 'succeeded', $2, '', $2, $2
                           FROM generate_series(1, $3)");
            on!(tx, |conn| sqlx::query(text)
                .bind(world.tenant)
                .bind(now)
                .bind(count)
                .execute(conn)
                .await
                .map(drop))?;
            Ok(())
        })
        .await
        .unwrap();
}

on_each! {
    async fn r11_a_worker_whose_job_was_taken_over_is_told_to_stop(world) {
        let first = world.workers(1);
        let job = world.start(Script::new("a", [Op::Effect("before".into()), Op::Gate("go".into()), Op::Effect("after".into())])).await;
        world.until_noted("a at go", 1).await;
        let lost = world.job(job).await;
        // It registers with its first renewal, which may come after its first claim.
        while !world.store.write(async |tx| worker_rows::drain(tx, first.id()).await).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = first.drain_requested().wait_for(|requested| *requested).await;
        world.end_lease(job).await;
        assert_eq!(world.rescue().await, 1);
        let second = world.workers(1);
        world.until_noted("a at go", 2).await;
        // The first handler has ended without its gate being opened.
        let deadline = Instant::now() + PATIENCE;
        while first.running_jobs() > 0 {
            assert!(Instant::now() < deadline, "the first worker was never told");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.shared.open("go");
        let row = world.until_over(job).await;
        assert_eq!(row.state, JobState::Succeeded);
        let late: i64 = world.store.read(async |tx| Ok(on!(tx, |conn| sqlx::query_scalar(
            "SELECT count(*) FROM effect WHERE name <> 'before' AND fence <= $1").bind(lost.fence).fetch_one(conn).await)?)).await.unwrap();
        assert_eq!(late, 0, "the first worker wrote after its job was taken over");
        assert_eq!(world.effects().await, ["a settled", "after", "before", "before"]);
        let why = world.store.read(async |tx| explain(tx, job).await).await.unwrap().unwrap().why;
        assert_eq!(why, StateReason::Over);
        first.drain(PATIENCE).await;
        second.drain(PATIENCE).await;
    }
}

on_each! {
    async fn r12_a_short_poll_interval_is_kept(world) {
        // No wake reaches these workers, so each pick-up is a poll.
        for millis in [1, 5] {
            let workers = world.workers_with(4, Duration::from_millis(millis), &Queue::local());
            print_waits(&format!("{:?}, looking every {millis} ms", world.store.dialect()), &pick_ups(&world).await);
            workers.drain(PATIENCE).await;
            world.execute("DELETE FROM job").await;
            world.shared.forget();
        }
    }
}

on_each! {
    async fn r13_a_backlog_does_not_slow_the_claim(world) {
        // One connection, whose cached plans are made while the table is nearly empty.
        let store = world.store.with_own_pool(1).unwrap();
        world.backlog(500).await;
        for _ in 0..10 {
            walk_and_count_reads(&world, &store).await;
        }
        let mut reads = Vec::new();
        for size in [1_000_i64, 10_000, 100_000] {
            world.backlog(size).await;
            let backlog = world.count("SELECT count(*) FROM job WHERE state = 'ready'").await;
            let (mut times, mut read) = (Vec::new(), 0);
            for _ in 0..20 {
                let began = Instant::now();
                let counts = walk_and_count_reads(&world, &store).await;
                times.push(began.elapsed());
                read = read.max(counts.into_iter().max().unwrap());
            }
            times.sort_unstable();
            println!("{:?}: backlog {backlog}: claim, look after, step and complete 16 jobs take {:?}; the largest reads {read} rows", store.dialect(), times[10]);
            reads.push(read);
        }
        // The index is read up to the claimed jobs, not through the waiting ones. (SQLite has no counter; its time
        // shows it.)
        assert!(reads.iter().all(|read| *read < 500), "{reads:?}");
    }
}

/// Claims 16 jobs, checks them, records a step of each and completes them; returns how many rows of the job table each
/// of these read, if the database counts them.
pub async fn walk_and_count_reads(world: &World, store: &towpath_store::Store) -> [i64; 4] {
    let others = world.count("SELECT count(*) FROM job WHERE state = 'running'").await;
    let mut held = Vec::new();
    let mut counts = [0; 4];
    let worker = towpath_domain::WorkerId::new();
    for (nth, count) in counts.iter_mut().enumerate() {
        *count = store
            .write(async |tx| {
                let before = rows_read(tx).await?;
                let touched = match nth {
                    0 => {
                        let claimed = jobs::claim(tx, &jobs::ClaimRequest::new(Script::POOL_NAME, worker, 16)).await?;
                        held = claimed.iter().map(fenced).collect();
                        claimed.len()
                    }
                    1 => jobs::running_jobs(tx, worker).await?.len(),
                    2 => {
                        let steps: Vec<_> = held
                            .iter()
                            .map(|job| NewStep {
                                job: *job,
                                name: "one".to_owned(),
                                output: "1".to_owned(),
                            })
                            .collect();
                        steps::record(tx, &steps).await?.len()
                    }
                    _ => jobs::complete(tx, &held, &[]).await?.len(),
                };
                assert_eq!(touched, 16);
                Ok(rows_read(tx).await? - before)
            })
            .await
            .unwrap();
    }
    assert_eq!(
        world.count("SELECT count(*) FROM job WHERE state = 'running'").await,
        others
    );
    counts
}

/// Rows of the job table that this session has read. (Unreported ones are missing, so only differences are meaningful.)
pub async fn rows_read(tx: &mut towpath_store::Tx<'_>) -> towpath_store::Result<i64> {
    let Conn::Postgres(conn) = tx.conn() else { return Ok(0) };
    Ok(sqlx::query_scalar(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
         WHERE relname = 'job'",
    )
    .fetch_one(conn)
    .await?)
}
