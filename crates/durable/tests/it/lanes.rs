//! Lanes: limits and order.

use std::collections::HashMap;

use towpath_domain::job::JobState;
use towpath_durable::{Lane, Start};
use towpath_store::{jobs, lanes};

use crate::support::{Database, Op, PATIENCE, Script, World, fenced};
use crate::{on_each, on_each_form};

on_each_form! {
    async fn eight_thousand_jobs_keep_their_order_in_forty_lanes(world) {
        // Eight producers, forty lanes with one slot. A job's number in its lane is the order of recording; jobs must
        // start in that order.
        const LANES: usize = 40;
        const EACH: usize = 25;
        let workers = world.workers(16);
        let mut producers = tokio::task::JoinSet::new();
        for producer in 0..8 {
            let (store, tenant) = (world.store.clone(), world.tenant);
            producers.spawn(async move {
                for nth in 0..LANES * EACH {
                    let lane = Lane::new(format!("thread:{}", (nth * 7 + producer) % LANES), 1);
                    let script = Script::new("ordered", [Op::Done]);
                    store.write(async |tx| towpath_durable::start(tx, &script, Start::new(tenant).lane(lane)).await).await.unwrap();
                }
            });
        }
        producers.join_all().await;
        world.until_drained().await;
        workers.drain(PATIENCE).await;
        let rows: Vec<(String, i64, towpath_domain::Timestamp, towpath_domain::Timestamp)> = world.store.read(async |tx| Ok(towpath_store::on!(tx, |conn| sqlx::query_as(
            "SELECT lane, lane_seq, started_at, finished_at FROM job ORDER BY lane, lane_seq").fetch_all(conn).await)?)).await.unwrap();
        assert_eq!(rows.len(), 8 * LANES * EACH);
        let mut violations = 0;
        let mut last: HashMap<String, (i64, towpath_domain::Timestamp)> = HashMap::new();
        for (lane, seq, started, finished) in rows {
            if let Some((before, ended)) = last.get(&lane) {
                assert_eq!(seq, before + 1, "numbers have no gaps");
                violations += usize::from(started < *ended);
            }
            last.insert(lane, (seq, finished));
        }
        assert_eq!(violations, 0);
        world.check_invariants().await;
    }
}

on_each_form! {
    async fn no_more_jobs_are_at_work_than_the_lane_has_places(world) {
        let workers = world.workers(8);
        let lane = || Lane::new("export:1", 3);
        let mut jobs = Vec::new();
        for nth in 0..8 {
            jobs.push(world.start_as(Script::new(&format!("job {nth}"), [Op::Gate("go".into())]), Start::new(world.tenant).lane(lane())).await);
        }
        for nth in 0..3 {
            world.until_noted(&format!("job {nth} at go"), 1).await;
        }
        for job in &jobs[3..] {
            assert_eq!(world.job(*job).await.state, JobState::Blocked);
        }
        for _ in &jobs {
            world.shared.open("go");
            world.check_invariants().await;
        }
        for job in jobs {
            assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        }
        workers.drain(PATIENCE).await;
        assert_eq!(world.effects().await.len(), 8);
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_job_that_backs_off_gives_up_its_place(world) {
        // Script does not keep its slot, like export runs.
        let workers = world.workers(2);
        let lane = || Lane::new("export:1", 1);
        let failing = world.start_as(Script::new("a", [Op::Fail(1), Op::Gate("go".into())]), Start::new(world.tenant).lane(lane())).await;
        let next = world.start_as(Script::new("b", []), Start::new(world.tenant).lane(lane())).await;
        // Without a scheduler the first stays in its backoff; the second must run anyway.
        world.until_over(next).await;
        assert_eq!(world.job(failing).await.state, JobState::Scheduled);
        let _scheduler = world.scheduler().await;
        world.until_noted("a at go", 1).await;
        world.shared.open("go");
        world.until_over(failing).await;
        workers.drain(PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_lane_that_grows_lets_in_those_who_waited_first(world) {
        let lane = |places| Lane::new("export:1", places);
        let start = async |name: &str, places| world.start_as(Script::new(name, []), Start::new(world.tenant).lane(lane(places))).await;
        let first = start("first", 1).await;
        let second = start("second", 1).await;
        let third = start("third", 1).await;
        let fourth = start("fourth", 3).await;
        for job in [first, second, third] {
            assert_eq!(world.job(job).await.state, JobState::Ready);
        }
        assert_eq!(world.job(fourth).await.state, JobState::Blocked, "it came last");
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_lane_stays_as_long_as_a_job_is_to_enter_it(world) {
        let how = Start::new(world.tenant).lane(Lane::new("export:1", 1)).after(PATIENCE);
        let job = world.start_as(Script::new("a", []), how).await;
        let prune = async || world.store.write(async |tx| lanes::prune(tx, 10).await).await.unwrap();
        assert_eq!(prune().await, 0);
        world.store.write(async |tx| towpath_durable::cancel(tx, job).await).await.unwrap();
        assert_eq!(prune().await, 1);
    }
}

/// An idle lane is pruned while a scheduled job is recorded in it, which the pruning cannot see yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_a_job_is_being_recorded_in_is_not_pruned() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let how = Start::new(world.tenant).lane(Lane::new("export:1", 1)).after(PATIENCE);
    let first = world.start_as(Script::new("a", []), how.clone()).await;
    let cancelled = world
        .store
        .write(async |tx| towpath_durable::cancel(tx, first).await)
        .await;
    cancelled.unwrap();
    let pruning = world
        .store
        .write(async |tx| {
            towpath_durable::start(tx, &Script::new("b", []), how).await?;
            let store = world.store.clone();
            let mut pruning = tokio::spawn(async move { store.write(async |tx| lanes::prune(tx, 10).await).await });
            // It skips the lane. If it waited, it would still consider the lane idle afterwards.
            Ok(tokio::select! {
                pruned = &mut pruning => Ok(pruned),
                () = world.until_somebody_waits_for_a_lock() => Err(pruning),
            })
        })
        .await
        .unwrap();
    let pruned = match pruning {
        Ok(pruned) => pruned,
        Err(pruning) => pruning.await,
    };
    assert_eq!(pruned.unwrap().unwrap(), 0);
    assert_eq!(world.count("SELECT count(*) FROM lane").await, 1);
}

/// Two sessions record jobs in one lane at once. The first round creates the lane, the second finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_recorded_at_once_have_numbers_of_their_own() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let how = Start::new(world.tenant).lane(Lane::new("thread:1", 1));
    let mut recorded = Vec::new();
    for _round in 0..2 {
        let (first, recording) = world
            .store
            .write(async |tx| {
                let first = towpath_durable::start(tx, &Script::new("a", []), how.clone()).await?;
                let (store, how) = (world.store.clone(), how.clone());
                let recording = tokio::spawn(async move {
                    store
                        .write(async |tx| towpath_durable::start(tx, &Script::new("b", []), how).await)
                        .await
                });
                world.until_somebody_waits_for_a_lock().await;
                Ok((first, recording))
            })
            .await
            .unwrap();
        recorded.extend([first, recording.await.unwrap().unwrap()]);
    }
    let mut numbers = Vec::new();
    for job in recorded {
        numbers.push(world.job(job).await.lane_seq);
    }
    assert_eq!(numbers, [1, 2, 3, 4].map(Some));
    world.check_invariants().await;
}

/// The job that holds the lane ends while another is being recorded behind it, which its end cannot see yet. The end
/// must wait, or the slot is never passed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_recorded_while_the_one_before_it_ends_gets_its_place() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    for kind in ["complete", "settle"] {
        let key = format!("thread:{kind}");
        let how = Start::new(world.tenant).lane(Lane::new(key.clone(), 1));
        world.start_as(Script::new("a", []), how.clone()).await;
        let held = world.claim(1).await.remove(0);
        let (next, ending) = world
            .store
            .write(async |tx| {
                let next = towpath_durable::start(tx, &Script::new("b", []), how).await?;
                let (store, engine) = (world.store.clone(), world.engine.clone());
                let (registry, shared) = (world.registry.clone(), world.shared.clone());
                let ending = tokio::spawn(async move {
                    if kind == "complete" {
                        let ended = store.write(async |tx| jobs::complete(tx, &[fenced(&held)], &[key]).await);
                        assert_eq!(ended.await.unwrap().len(), 1);
                    } else {
                        let (_signal, receiver) = tokio::sync::watch::channel(towpath_durable::Signal::Run);
                        towpath_durable::perform(&engine, &registry, &*shared, held, receiver).await;
                    }
                });
                world.until_somebody_waits_for_a_lock().await;
                Ok((next, ending))
            })
            .await
            .unwrap();
        ending.await.unwrap();
        assert_eq!(world.job(next).await.state, JobState::Ready, "{kind}");
        world.check_invariants().await;
        world
            .store
            .write(async |tx| towpath_durable::cancel(tx, next).await)
            .await
            .unwrap();
    }
}
