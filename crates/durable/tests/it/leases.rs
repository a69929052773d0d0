//! Leases, rescue, draining, pausing.

use std::sync::Arc;

use tokio::sync::Notify;
use towpath_domain::WorkerId;
use towpath_domain::job::{JobState, MAX_LOST_LEASES};
use towpath_durable::{ExpiredLeases, LostWorkerScope};
use towpath_store::{leases, on};

use crate::support::{Database, LEASE, Op, PATIENCE, Script, World};
use crate::{on_each, on_each_form};

on_each! {
    async fn a_step_of_many_leases_runs_once(world) {
        // The handler blocks its thread the whole time; the renewals are in another thread.
        let lease = world.engine.settings().lease;
        let _scheduler = world.scheduler().await;
        let workers = world.workers(2);
        let job = world.start(Script::new("a", [Op::Block("go".into())])).await;
        world.until_noted("a blocks at go", 1).await;
        let until = tokio::time::Instant::now() + lease * 3;
        while tokio::time::Instant::now() < until {
            assert_eq!(world.job(job).await.state, JobState::Running);
            tokio::time::sleep(lease / 10).await;
        }
        world.shared.open("go");
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        assert_eq!(world.shared.count("a starts"), 1);
        workers.drain(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_workers_job_is_taken_over() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let job = world.start(Script::new("a", [Op::Step("one".into())])).await;
    // A worker claims it and never reports again.
    world.claim(1).await;
    let _scheduler = world.scheduler().await;
    let workers = world.workers(1);
    let row = world.until_over(job).await;
    assert_eq!(row.state, JobState::Succeeded);
    assert_eq!(row.attempt, 2, "a lost lease counts as an attempt");
    assert_eq!(row.failures, 0, "but not as a failure");
    workers.drain(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_renew_stops_its_handler_before_the_lease_ends() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    // A tenth of the lease is left when the handler is stopped.
    let world = World::with_lease(database, LEASE * 2).await;
    let workers = world.workers(1);
    world.start(Script::new("a", [Op::Gate("never".into())])).await;
    world.until_noted("a at never", 1).await;
    // A lock on the worker's own row blocks renewals and the rescue.
    let in_time = world
        .store
        .write(async |tx| {
            on!(tx, |conn| sqlx::query("SELECT 1 FROM lease FOR UPDATE")
                .execute(conn)
                .await
                .map(drop))?;
            world.until_noted("a dropped at never", 1).await;
            // When it was dropped, not when the database answers.
            let since = world.shared.noted_at("a dropped at never").unwrap().elapsed();
            let left = on!(tx, |conn| sqlx::query_scalar::<_, f64>(
                "SELECT extract(epoch FROM alive_until - clock_timestamp())::float8 FROM lease"
            )
            .fetch_one(conn)
            .await)?;
            Ok(left + since.as_secs_f64() > 0.0)
        })
        .await
        .unwrap();
    assert!(in_time, "the handler was at work when its lease had ended");
    workers.drain(std::time::Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_a_job_keeps_no_renewal_waiting() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let _scheduler = world.scheduler().await;
    let workers = world.workers(2);
    let id = workers.id();
    let jobs = [
        world.start(Script::new("a", [Op::Gate("go".into())])).await,
        world.start(Script::new("b", [Op::Gate("go".into())])).await,
    ];
    world.until_noted("a at go", 1).await;
    world.until_noted("b at go", 1).await;
    // Like `ctx.commit`, for two leases.
    let began = std::time::Instant::now();
    let first = until(&world, jobs[0]).await;
    let renewed = world
        .store
        .write(async |tx| {
            towpath_store::jobs::lock(tx, &jobs).await?;
            // Each statement belongs to the transaction, which is never idle for long.
            loop {
                let now = leases::until(tx, jobs[0]).await?;
                if began.elapsed() > LEASE * 2 {
                    return Ok(now);
                }
                tokio::time::sleep(LEASE / 20).await;
            }
        })
        .await
        .unwrap();
    assert!(renewed > first, "{renewed:?} is no later than {first:?}");
    for job in jobs {
        let row = world.job(job).await;
        assert_eq!((row.state, row.fence, row.worker_id), (JobState::Running, 1, Some(id)));
    }
    world.shared.open("go");
    world.shared.open("go");
    for job in jobs {
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
    }
    assert_eq!(
        world.count("SELECT count(*) FROM attempt").await,
        0,
        "no lease was lost"
    );
    workers.drain(PATIENCE).await;
}

async fn until(world: &World, job: towpath_domain::JobId) -> Option<towpath_domain::Timestamp> {
    let until = world.store.read(async |tx| leases::until(tx, job).await);
    until.await.unwrap()
}

on_each! {
    async fn a_lease_that_was_ended_is_never_renewed(world) {
        let (worker, lease) = (WorkerId::new(), world.engine.settings().lease);
        let renew = async || world.store.write(async |tx| leases::renew(tx, worker, lease).await).await.unwrap();
        assert!(!renew().await, "it has not begun");
        world.store.write(async |tx| leases::begin(tx, worker, lease).await).await.unwrap();
        world.expire_leases().await;
        assert!(renew().await, "nobody has ended it yet");
        // On SQLite a renewal does not change the time.
        if world.store.dialect() == towpath_store::Dialect::Postgres {
            towpath_durable::rescue(&world.store).await.unwrap();
            assert!(renew().await, "nor could anybody after that");
        }
        world.expire_leases().await;
        let look = async |expired| towpath_durable::lost_workers(&world.store, expired, LostWorkerScope::AllWorkers).await.unwrap();
        let at = look(ExpiredLeases::Keep).await.scanned_at;
        let by = at.minus(std::time::Duration::from_secs(1));
        look(ExpiredLeases::End { by: Some(by) }).await;
        assert!(renew().await, "it was too late to end it");
        world.expire_leases().await;
        look(ExpiredLeases::End { by: None }).await;
        assert!(!renew().await);
    }
}

/// The rescue runs during the renewal, and the renewal during the rescue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_and_the_end_of_a_lease_exclude_each_other() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let job = world.start(Script::new("a", [])).await;
    world.claim(1).await;
    let worker = world.job(job).await.worker_id.unwrap();
    let lease = world.engine.settings().lease;
    world.expire_leases().await;
    world
        .store
        .write(async |tx| {
            assert!(leases::renew(tx, worker, lease).await?);
            // Not committed: others see the old row, and skip it.
            assert_eq!(towpath_durable::rescue(&world.store).await?, 0);
            Ok(())
        })
        .await
        .unwrap();
    world.expire_leases().await;
    let (ended, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let ending = tokio::spawn({
        let (store, ended, release) = (world.store.clone(), ended.clone(), release.clone());
        async move {
            store
                .write(async |tx| {
                    let look =
                        leases::find_lost_workers(tx, ExpiredLeases::End { by: None }, LostWorkerScope::AllWorkers)
                            .await?;
                    crate::support::stand_still(tx).await?;
                    ended.notify_one();
                    release.notified().await;
                    Ok(look.workers)
                })
                .await
        }
    });
    ended.notified().await;
    let renewing = tokio::spawn({
        let store = world.store.clone();
        async move { store.write(async |tx| leases::renew(tx, worker, lease).await).await }
    });
    world.until_somebody_waits_for_a_lock().await;
    release.notify_one();
    assert_eq!(ending.await.unwrap().unwrap(), [worker]);
    assert!(!renewing.await.unwrap().unwrap(), "it was renewed after its end");
    assert_eq!(world.rescue().await, 1);
}

/// A locked row does not block others from being taken back, and is taken back later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_is_passed_by() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        jobs.push(world.start(Script::new(name, [])).await);
    }
    assert_eq!(world.claim(3).await.len(), 3);
    // Two of them must end, which needs more than their rows.
    for job in &jobs[..2] {
        world
            .store
            .write(async |tx| towpath_durable::cancel(tx, *job).await)
            .await
            .unwrap();
    }
    world.expire_leases().await;
    let locked = [jobs[0], jobs[2]];
    world
        .store
        .write(async |tx| {
            towpath_store::jobs::lock(tx, &locked).await?;
            assert_eq!(towpath_durable::rescue(&world.store).await?, 1);
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(world.job(jobs[1]).await.state, JobState::Cancelled);
    assert_eq!(world.rescue().await, 2);
    assert_eq!(world.job(jobs[0]).await.state, JobState::Cancelled);
    assert_eq!(world.job(jobs[2]).await.state, JobState::Ready);
}

on_each! {
    async fn all_jobs_of_a_lost_worker_are_taken_back_in_few_statements(world) {
        world.backlog(6_400).await;
        let claimed = world.claim(6_400).await;
        assert_eq!(claimed.len(), 6_400);
        world.expire_leases().await;
        let before = world.store.statements();
        assert_eq!(towpath_durable::rescue(&world.store).await.unwrap(), 6_400);
        let statements = world.store.statements() - before;
        assert!(statements < 40, "{statements} statements");
        assert_eq!(world.count("SELECT count(*) FROM attempt WHERE outcome = 'lost'").await, 6_400);
        assert_eq!(world.job(claimed[0].id).await.state, JobState::Scheduled);
        // They pause, and not all for the same time.
        assert_eq!(world.count("SELECT count(*) FROM job WHERE state = 'scheduled' AND fence = 2 AND attempt = 1").await, 6_400);
        assert!(world.count("SELECT count(DISTINCT run_at) FROM job").await > 100);
    }
}

/// Jobs claimed by a process of an earlier version have their own lease in the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_an_earlier_version_are_kept_until_they_end() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let [ended, lives] = [
        world.start(Script::new("ended", [])).await,
        world.start(Script::new("lives", [])).await,
    ];
    world.claim(2).await;
    world.execute("DELETE FROM lease").await;
    let set = async |job: towpath_domain::JobId, until: &'static str| {
        world
            .store
            .write(async |tx| {
                Ok(on!(tx, |conn| sqlx::query(until)
                    .bind(job)
                    .execute(conn)
                    .await
                    .map(drop))?)
            })
            .await
            .unwrap();
    };
    set(ended, "UPDATE job SET lease_until = 'epoch' WHERE id = $1").await;
    set(
        lives,
        "UPDATE job SET lease_until = clock_timestamp() + interval '1 hour' WHERE id = $1",
    )
    .await;
    assert_eq!(world.rescue().await, 1);
    assert_eq!(world.job(ended).await.state, JobState::Ready);
    assert_eq!(world.job(lives).await.state, JobState::Running);
    set(lives, "UPDATE job SET lease_until = 'epoch' WHERE id = $1").await;
    assert_eq!(world.rescue().await, 1);
}

on_each_form! {
    async fn a_worker_whose_lease_was_ended_goes_on_under_another_id(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("go".into())])).await;
        world.until_noted("a at go", 1).await;
        let before = workers.id();
        world.expire_leases().await;
        // The renewal may be faster than the rescue.
        while world.rescue().await == 0 {
            world.expire_leases().await;
        }
        // Its handler is signalled, and it claims the job again.
        world.until_noted("a at go", 2).await;
        let after = workers.id();
        assert_ne!(before, after);
        assert_eq!(world.job(job).await.worker_id, Some(after));
        assert_eq!(world.count("SELECT count(*) FROM lease").await, 1);
        assert_eq!(world.count("SELECT count(*) FROM worker").await, 1);
        world.shared.open("go");
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        workers.drain(PATIENCE).await;
        assert_eq!(world.count("SELECT count(*) FROM lease").await, 0, "who leaves well leaves nothing");
    }
}

on_each! {
    async fn a_job_that_its_worker_no_longer_knows_is_given_back(world) {
        let workers = world.workers(1);
        world.until_seen(&workers).await;
        let job = world.start_as(Script::new("a", []), towpath_durable::Start::new(world.tenant).after(PATIENCE)).await;
        // As if the response of a claim was lost.
        world.store.write(async |tx| {
            let now = tx.now();
            let text = towpath_store::sql!(tx,
                sqlite: "UPDATE job SET state = 'running', fence = 1, attempt = 1, worker_id = $2, lease_until = $3 WHERE id = $1",
                postgres: "UPDATE job SET state = 'running', fence = 1, attempt = 1, worker_id = $2, started_at = $3 WHERE id = $1");
            Ok(on!(tx, |conn| sqlx::query(text).bind(job).bind(workers.id()).bind(now).execute(conn).await.map(drop))?)
        }).await.unwrap();
        let row = world.until_state(job, JobState::Scheduled).await;
        assert_eq!((row.fence, row.lost_leases), (2, 1));
        workers.drain(PATIENCE).await;
    }
}

on_each_form! {
    async fn jobs_that_lost_two_leases_run_one_at_a_time(world) {
        let names = ["a", "b", "c"];
        let mut jobs = Vec::new();
        for name in names {
            jobs.push(world.start(Script::new(name, [Op::Gate(name.into())])).await);
        }
        let lose = async || {
            for job in &jobs {
                world.end_lease(*job).await;
            }
            assert_eq!(world.rescue().await, 3);
        };
        // Twice all at once, then one after another.
        for _ in 0..2 {
            assert_eq!(world.claim(3).await.len(), 3);
            lose().await;
        }
        for _ in 0..3 {
            assert_eq!(world.claim(3).await.len(), 1);
        }
        assert_eq!(world.count("SELECT count(*) FROM job WHERE state = 'running' AND lost_leases = 2").await, 3);
        lose().await;
        let workers = world.workers(8);
        let neighbour = world.start(Script::new("neighbour", [])).await;
        assert_eq!(world.until_over(neighbour).await.state, JobState::Succeeded, "others are not kept");
        for done in 0..3 {
            let running = "SELECT count(*) FROM job WHERE state = 'running'";
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while world.shared.log().iter().filter(|event| event.contains(" at ")).count() != done + 1 {
                assert!(tokio::time::Instant::now() < deadline, "no suspect is performed");
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            for name in names {
                if world.shared.count(&format!("{name} at {name}")) == 1 {
                    world.shared.open(name);
                }
            }
            let over = "SELECT count(*) FROM job WHERE state = 'succeeded'";
            while world.count(over).await < i64::try_from(done).unwrap() + 2 {
                assert!(world.count(running).await <= 1, "two at once");
                assert!(tokio::time::Instant::now() < deadline, "it never ends");
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        workers.drain(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_restart_on_sqlite_readies_what_the_last_life_held() {
    let world = World::new(Database::sqlite().await).await;
    let job = world.start(Script::new("a", [])).await;
    world.claim(1).await;
    let scheduler = world.scheduler().await;
    assert_eq!(world.job(job).await.state, JobState::Ready);
    scheduler.stop().await;
}

on_each! {
    async fn a_job_that_keeps_killing_its_worker_ends_as_a_dead_letter(world) {
        let job = world.start(Script::new("a", [])).await;
        for nth in 0..=MAX_LOST_LEASES {
            assert_eq!(world.claim(1).await.len(), 1, "after {nth} lost leases");
            world.end_lease(job).await;
            assert_eq!(world.rescue().await, 1);
        }
        let row = world.job(job).await;
        assert_eq!(row.state, JobState::Failed);
        assert!(row.dead);
        assert!(row.error.unwrap().contains("died 6 times"));
        assert_eq!(world.effects().await, ["a failed"]);
    }
}

on_each! {
    async fn progress_makes_lost_leases_count_anew(world) {
        let job = world.start(Script::new("a", [Op::Checkpoint(1), Op::Gate("never".into())])).await;
        for _ in 0..MAX_LOST_LEASES {
            world.claim(1).await;
            world.end_lease(job).await;
            world.rescue().await;
        }
        assert_eq!(world.job(job).await.lost_leases, i64::from(MAX_LOST_LEASES));
        let workers = world.workers(1);
        world.until_noted("a@1", 1).await;
        assert_eq!(world.job(job).await.lost_leases, 0);
        workers.drain(std::time::Duration::ZERO).await;
    }
}

on_each_form! {
    async fn draining_hands_back_what_does_not_finish_in_time(world) {
        let workers = world.workers(2);
        let slow = world.start(Script::new("slow", [Op::Step("one".into()), Op::Gate("go".into())])).await;
        world.until_noted("slow at go", 1).await;
        let drained = workers.drain(std::time::Duration::ZERO).await;
        assert_eq!(drained.handed_back, 1);
        let row = world.job(slow).await;
        assert_eq!(row.state, JobState::Ready);
        assert_eq!((row.attempt, row.failures, row.lost_leases), (0, 0, 0), "a hand-back is no attempt");
        world.shared.open("go");
        let workers = world.workers(1);
        assert_eq!(world.until_over(slow).await.state, JobState::Succeeded);
        assert_eq!(world.shared.count("slow/one"), 1, "its finished step was kept");
        workers.drain(PATIENCE).await;
    }
}

on_each_form! {
    async fn a_paused_pool_claims_nothing_until_it_is_resumed(world) {
        world.store.write(async |tx| towpath_store::pools::pause(tx, Script::POOL_NAME).await).await.unwrap();
        let job = world.start(Script::new("a", [])).await;
        assert!(world.claim(5).await.is_empty());
        world.store.write(async |tx| towpath_store::pools::resume(tx, Script::POOL_NAME).await).await.unwrap();
        let workers = world.workers(1);
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn tenants_take_turns(world) {
        // One tenant has a backlog, another has one job: it is in the first round.
        for _ in 0..50 {
            world.start(Script::new("big", [Op::Done])).await;
        }
        let small = towpath_domain::TenantId::new();
        let job = world.start_as(Script::new("small", [Op::Done]), towpath_durable::Start::new(small)).await;
        let claimed = world.claim(10).await;
        assert_eq!(claimed.len(), 6, "half of ten for the backlog, one for the other");
        assert!(claimed.iter().any(|claim| claim.id == job));
        assert_eq!(world.claim(4).await.len(), 4, "what was left free is for the asking");
    }
}

on_each! {
    async fn priority_goes_before_age_within_a_tenant(world) {
        world.start(Script::new("old", [Op::Done])).await;
        let urgent = world.start_as(Script::new("urgent", [Op::Done]), towpath_durable::Start::new(world.tenant).priority(5)).await;
        assert_eq!(world.claim(1).await[0].id, urgent);
    }
}

on_each! {
    async fn a_handler_that_blocks_its_thread_does_not_keep_the_worker_from_leaving(world) {
        let workers = world.workers(1);
        world.start(Script::new("a", [Op::Block("go".into())])).await;
        world.until_noted("a blocks at go", 1).await;
        let drained = tokio::time::timeout(PATIENCE, workers.drain(std::time::Duration::ZERO)).await;
        world.shared.open("go");
        assert_eq!(drained.expect("the drain ended").running, 1);
    }
}

on_each_form! {
    async fn workers_that_are_dropped_hand_back_what_they_have(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("never".into())])).await;
        world.until_noted("a at never", 1).await;
        drop(workers);
        world.until_state(job, JobState::Ready).await;
    }
}
