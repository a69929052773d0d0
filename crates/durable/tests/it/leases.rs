//! Leases, rescue, draining, pausing.

use towpath_domain::job::{JobState, MAX_LOST_LEASES};
use towpath_store::on;

use crate::on_each;
use crate::support::{Database, LEASE, Op, PATIENCE, Script, World};

on_each! {
    async fn a_step_of_many_leases_runs_once(world) {
        // The handler blocks its thread the whole time; the renewals come from another.
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
    // A worker claims it and is never heard of again.
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
    // A tenth of it is what is left when the handler is stopped.
    let world = World::with_lease(database, LEASE * 4).await;
    let workers = world.workers(1);
    let job = world.start(Script::new("a", [Op::Gate("never".into())])).await;
    world.until_noted("a at never", 1).await;
    // Whoever holds the row keeps renewals waiting, and the rescue too.
    let in_time = world
        .store
        .write(async |tx| {
            on!(tx, |conn| sqlx::query("SELECT 1 FROM job WHERE id = $1 FOR UPDATE")
                .bind(job)
                .execute(conn)
                .await
                .map(drop))?;
            world.until_noted("a dropped at never", 1).await;
            // When it was dropped, not when the database answers.
            let since = world.shared.noted_at("a dropped at never").unwrap().elapsed();
            let left = on!(tx, |conn| sqlx::query_scalar::<_, f64>(
                "SELECT extract(epoch FROM lease_until - clock_timestamp())::float8 FROM job WHERE id = $1"
            )
            .bind(job)
            .fetch_one(conn)
            .await)?;
            Ok(left + since.as_secs_f64() > 0.0)
        })
        .await
        .unwrap();
    assert!(in_time, "the handler was at work when its lease had ended");
    workers.drain(std::time::Duration::ZERO).await;
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
            assert_eq!(world.job(job).await.state, JobState::Ready, "after {nth} lost leases");
            world.claim(1).await;
            world.end_lease(job).await;
            assert_eq!(towpath_durable::rescue(&world.store).await.unwrap(), 1);
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
            towpath_durable::rescue(&world.store).await.unwrap();
        }
        assert_eq!(world.job(job).await.lost_leases, i64::from(MAX_LOST_LEASES));
        let workers = world.workers(1);
        world.until_noted("a@1", 1).await;
        assert_eq!(world.job(job).await.lost_leases, 0);
        workers.drain(std::time::Duration::ZERO).await;
    }
}

on_each! {
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

on_each! {
    async fn a_paused_pool_claims_nothing_until_it_is_resumed(world) {
        world.store.write(async |tx| towpath_store::pools::pause(tx, Script::POOL_NAME, true).await).await.unwrap();
        let job = world.start(Script::new("a", [])).await;
        assert!(world.claim(5).await.is_empty());
        world.store.write(async |tx| towpath_store::pools::pause(tx, Script::POOL_NAME, false).await).await.unwrap();
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
        assert_eq!(drained.expect("the drain ended").at_work, 1);
    }
}

on_each! {
    async fn workers_that_are_dropped_hand_back_what_they_have(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("never".into())])).await;
        world.until_noted("a at never", 1).await;
        drop(workers);
        world.until_state(job, JobState::Ready).await;
    }
}
