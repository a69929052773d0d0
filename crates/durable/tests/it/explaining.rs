//! Why a job is not running: each reason.

use std::time::Duration;

use towpath_domain::{JobId, WorkerId};
use towpath_durable::{Lane, Start, StateReason, explain};

use crate::on_each;
use crate::support::{Op, PATIENCE, Script, World};

async fn why(world: &World, job: JobId) -> StateReason {
    let explanation = world
        .store
        .read(async |tx| explain(tx, job).await)
        .await
        .unwrap()
        .unwrap();
    assert!(!explanation.text.is_empty());
    explanation.why
}

on_each! {
    async fn each_reason_is_told(world) {
        let job = world.start(Script::new("a", [Op::Gate("go".into())])).await;
        assert_eq!(why(&world, job).await, StateReason::NoWorker);

        world.store.write(async |tx| towpath_store::pools::pause(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(why(&world, job).await, StateReason::PoolPaused);
        world.store.write(async |tx| towpath_store::pools::drain(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(why(&world, job).await, StateReason::PoolDraining);
        world.store.write(async |tx| towpath_store::pools::resume(tx, Script::POOL_NAME).await).await.unwrap();

        let workers = world.workers(1);
        world.until_seen(&workers).await;
        world.until_noted("a at go", 1).await;
        assert!(matches!(why(&world, job).await, StateReason::Running { worker: Some(_), .. }));
        world.expire_leases().await;
        let told = why(&world, job).await;
        assert!(matches!(told, StateReason::LeaseEnded { .. } | StateReason::Running { .. }), "{told:?}");

        let later = world.start_as(Script::new("later", []), Start::new(world.tenant).after(Duration::from_secs(3600))).await;
        assert!(matches!(why(&world, later).await, StateReason::Scheduled { .. }));

        let lane = || Lane::new("thread:1", 1);
        let first = world.start_as(Script::new("first", []), Start::new(world.tenant).lane(lane())).await;
        let second = world.start_as(Script::new("second", []), Start::new(world.tenant).lane(lane())).await;
        let third = world.start_as(Script::new("third", []), Start::new(world.tenant).lane(lane())).await;
        assert_eq!(why(&world, second).await, StateReason::LaneFull { lane: "thread:1".into(), places: 1, holders: vec![first], ahead: 0 });
        assert_eq!(why(&world, third).await, StateReason::LaneFull { lane: "thread:1".into(), places: 1, holders: vec![first], ahead: 1 });
        let told = why(&world, first).await;
        assert!(matches!(told, StateReason::WorkersBusy { slots: 1, running: 1, .. } | StateReason::AboutToStart { .. }), "{told:?}");

        world.store.write(async |tx| towpath_store::workers::drain(tx, workers.id()).await).await.unwrap();
        assert_eq!(why(&world, first).await, StateReason::WorkersDraining);

        world.shared.open("go");
        world.until_over(job).await;
        assert_eq!(why(&world, job).await, StateReason::Over);
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_backoff_and_a_waiting_parent_are_told(world) {
        let workers = world.workers(1);
        let failing = world.start(Script::new("failing", [Op::Fail(1)])).await;
        world.until(failing, "its backoff", |job| job.failures == 1).await;
        let told = why(&world, failing).await;
        assert!(matches!(told, StateReason::BackingOff { failures: 1, .. } | StateReason::Due), "{told:?}");

        let parent = world.start(Script::new("parent", [Op::Children(vec![Script::new("child", [Op::Gate("never".into())])], None)])).await;
        world.until_noted("child at never", 1).await;
        assert!(matches!(why(&world, parent).await, StateReason::WaitingForChildren { open: 1, .. }));
        workers.drain(Duration::ZERO).await;
    }
}

on_each! {
    async fn busy_and_free_workers_are_told_apart(world) {
        let workers = world.workers(1);
        world.until_seen(&workers).await;
        let running = world.start(Script::new("running", [Op::Gate("go".into())])).await;
        world.until_noted("running at go", 1).await;
        let ready = world.start(Script::new("ready", [])).await;
        assert_eq!(why(&world, ready).await, StateReason::WorkersBusy { slots: 1, running: 1, ready: 1 });
        world.shared.open("go");
        world.until_over(running).await;
        world.until_over(ready).await;
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_long_run_on_sqlite_has_not_lost_its_lease(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("long", [Op::Gate("go".into())])).await;
        world.until_noted("long at go", 1).await;
        // A single process on SQLite renews nothing: the lease in the row is meaningless.
        if world.store.dialect() == towpath_store::Dialect::Sqlite {
            world.expire_leases().await;
        }
        assert!(matches!(why(&world, job).await, StateReason::Running { worker: Some(_), .. }));
        world.shared.open("go");
        world.until_over(job).await;
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_lost_worker_and_a_suspect_are_told(world) {
        let job = world.start(Script::new("a", [])).await;
        for lost in 1..=2 {
            world.claim(1).await;
            world.end_lease(job).await;
            assert!(matches!(why(&world, job).await, StateReason::LeaseEnded { .. }));
            assert_eq!(towpath_durable::rescue(&world.store).await.unwrap(), 1);
            let told = why(&world, job).await;
            // A busy machine may take longer than the pause.
            let rested = matches!(told, StateReason::Due | StateReason::Suspect { .. });
            assert!(rested || matches!(told, StateReason::WorkerLost { lost_leases, .. } if lost_leases == lost), "{told:?}");
            world.rescue().await;
        }
        // Reasons that stop its whole pool stop it, too.
        assert_eq!(why(&world, job).await, StateReason::NoWorker);
        world.store.write(async |tx| towpath_store::pools::pause(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(why(&world, job).await, StateReason::PoolPaused);
        world.store.write(async |tx| towpath_store::pools::drain(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(why(&world, job).await, StateReason::PoolDraining);
        world.store.write(async |tx| towpath_store::pools::resume(tx, Script::POOL_NAME).await).await.unwrap();
        let worker = sign_on(&world).await;
        assert_eq!(why(&world, job).await, StateReason::Suspect { lost_leases: 2 });
        world.store.write(async |tx| towpath_store::workers::drain(tx, worker).await).await.unwrap();
        assert_eq!(why(&world, job).await, StateReason::WorkersDraining);
        sign_on(&world).await;

        // Without its lane slot nobody can claim it yet.
        let lane = Start::new(world.tenant).lane(Lane::new("thread:1", 1));
        let waits = world.start_as(Script::new("waits", []), lane).await;
        world.execute("UPDATE lane SET held = 0").await;
        world.execute("UPDATE job SET state = 'scheduled', lane_held = false, lost_leases = 2 WHERE lane IS NOT NULL").await;
        assert_eq!(why(&world, waits).await, StateReason::Due);
    }
}

/// A worker that sends heartbeats and claims nothing.
async fn sign_on(world: &World) -> WorkerId {
    let worker = towpath_store::workers::Worker {
        id: WorkerId::new(),
        host: "here".to_owned(),
        pid: 1,
        pools: format!("{{\"{}\": 1}}", Script::POOL_NAME),
        version: "1".to_owned(),
        draining: false,
        started_at: world.store.clock().now(),
        seen_at: world.store.clock().now(),
        finished: "{}".to_owned(),
        drain_at: None,
    };
    let seen = world
        .store
        .write(async |tx| towpath_store::workers::heartbeat(tx, &worker).await)
        .await;
    assert!(!seen.unwrap(), "nobody asked it to drain");
    worker.id
}

on_each! {
    async fn a_snooze_is_no_backoff(world) {
        let workers = world.workers(1);
        let _scheduler = world.scheduler().await;
        let job = world.start(Script::new("a", [Op::Fail(1), Op::Snooze(1, 3_600_000)])).await;
        world.until(job, "its snooze", |row| row.failures == 1 && row.run_at > row.created_at.plus(PATIENCE)).await;
        assert!(matches!(why(&world, job).await, StateReason::Snoozing { .. }));
        workers.drain(PATIENCE).await;
        world.store.write(async |tx| towpath_durable::cancel(tx, job).await).await.unwrap();
    }
}
