//! What operators do to pools, workers and schedules.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, ScheduleId, WorkerId};
use towpath_store::lanes;
use towpath_store::schedules::{self, Schedule};
use towpath_store::workers::{self, Worker};

use crate::world::{World, on_both_databases};

use super::ids;

on_both_databases!(
    a_pool_is_paused_drained_and_resumed,
    a_worker_is_drained,
    a_paused_schedule_spawns_nothing_until_it_goes_on,
);

async fn a_pool_is_paused_drained_and_resumed(world: World) {
    world.worker(json!({"flushes": 3, "exports": 2})).await;
    let ready = world.job("flush_wal", "flushes", JobState::Ready).await;
    let queue = |path: &str| format!("/internal/queues/flushes{path}");
    let shown = world.shown(&queue("")).await;
    assert_eq!(
        (&shown["status"], &shown["ready"], &shown["slots"], &shown["workers"]),
        (&json!("active"), &json!(1), &json!(3), &json!(1))
    );
    let scaling = world.shown("/internal/scaling/flushes").await;
    assert_eq!(
        (&scaling["depth"], &scaling["slots"], &scaling["running"]),
        (&json!(1), &json!(3), &json!(0))
    );

    assert_eq!(scaling["load"], 1);

    assert_eq!(world.done(&queue("/pause")).await["status"], "paused");
    let told = world.shown(&format!("/internal/jobs/{ready}")).await;
    assert_eq!(told["explanation"]["reason"], "pool_paused");
    assert_eq!(
        world.shown("/internal/scaling/flushes").await["depth"],
        0,
        "further workers would have nothing to do"
    );

    assert_eq!(
        world.done(&queue("/drain")).await["status"],
        "drained",
        "nothing is at work"
    );
    let told = world.shown(&format!("/internal/jobs/{ready}")).await;
    assert_eq!(told["explanation"]["reason"], "pool_draining");
    assert_eq!(world.done(&queue("/resume")).await["status"], "active");

    // Known by its kind of job alone, and not at all.
    let idle = world.shown("/internal/scaling/export_parts").await;
    assert_eq!(
        idle,
        json!({"pool": "export_parts", "depth": 0, "load": 0, "oldest_ready_age_seconds": 0.0, "running": 0, "slots": 0})
    );
    for path in ["/internal/queues/fold", "/internal/scaling/fold"] {
        assert_eq!(
            world.operator(Method::GET, path).await.expect(404),
            json!({"detail": "pool not found"})
        );
    }
    world
        .operator(Method::POST, "/internal/queues/fold/pause")
        .await
        .expect(404);
    let names = world.shown("/internal/queues").await;
    let names: Vec<_> = names["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pool| pool["pool"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["exports", "flushes"]);
}

async fn a_worker_is_drained(world: World) {
    let id = world.worker(json!({"flushes": 3})).await;
    let shown = world.shown("/internal/workers").await;
    assert_eq!(shown["items"][0]["status"], "active");
    assert_eq!(shown["items"][0]["pools"], json!({"flushes": 3}));
    let drained = world.done(&format!("/internal/workers/{id}/drain")).await;
    assert_eq!(drained["status"], "draining", "it has not heard of it");
    // As its next sign of life tells, from the database's own clock where there is one.
    world.clock.advance(Duration::from_secs(1));
    let heard = Worker {
        seen_at: world.clock.now(),
        ..world
            .store
            .read(async |tx| workers::get(tx, id).await)
            .await
            .unwrap()
            .unwrap()
    };
    assert!(
        world
            .store
            .write(async |tx| workers::heartbeat(tx, &heard).await)
            .await
            .unwrap()
    );
    assert_eq!(world.shown("/internal/workers").await["items"][0]["status"], "drained");
    let job = world.job("flush_wal", "flushes", JobState::Ready).await;
    let told = world.shown(&format!("/internal/jobs/{job}")).await;
    assert_eq!(told["explanation"]["reason"], "workers_draining");
    assert_eq!(world.shown("/internal/queues/flushes").await["slots"], 0);
    let drained = || {
        world
            .store
            .read(async |tx| workers::drained_pools(tx, workers::HEARTBEAT_WINDOW).await)
    };
    assert_eq!(drained().await.unwrap(), ["flushes"]);
    let resumed = world.done(&format!("/internal/workers/{id}/resume")).await;
    assert_eq!(resumed["status"], "active");
    assert!(drained().await.unwrap().is_empty());
    assert_eq!(world.shown("/internal/queues/flushes").await["slots"], 3);
    for action in ["drain", "resume"] {
        let missing = format!("/internal/workers/{}/{action}", WorkerId::new());
        assert_eq!(
            world.operator(Method::POST, &missing).await.expect(404),
            json!({"detail": "worker not found"})
        );
    }
}

async fn a_paused_schedule_spawns_nothing_until_it_goes_on(world: World) {
    world
        .store
        .write(async |tx| lanes::lock(tx, "fold", 1).await.map(drop))
        .await
        .unwrap();
    let spawn = world.job("flush_wal", "flushes", JobState::Scheduled).await;
    let now = world.clock.now();
    let schedule = Schedule {
        id: ScheduleId::new(),
        tenant_id: world.tenant,
        kind: "flush_wal".to_owned(),
        pool: "flushes".to_owned(),
        input: json!({"mark": JobId::new(), "barrier": null}).to_string(),
        next_at: now,
        paused: false,
        spawn_job: Some(spawn),
        created_at: now,
        ended_at: None,
    };
    let id = schedule.id;
    world
        .store
        .write(async |tx| schedules::insert(tx, &schedule).await)
        .await
        .unwrap();
    let listed = world.shown("/internal/schedules").await;
    assert_eq!(
        (ids(&listed), &listed["items"][0]["paused"]),
        (vec![id.to_string()], &json!(false))
    );

    let paused = world.done(&format!("/internal/schedules/{id}/pause")).await;
    assert_eq!(paused["paused"], true);
    assert_eq!(world.state(spawn).await, JobState::Cancelled);
    towpath_durable::respawn(&world.store, Duration::ZERO).await.unwrap();
    assert_eq!(
        world.shown("/internal/schedules").await["items"][0]["spawn_job"],
        Value::Null
    );
    let moved = world
        .store
        .write(async |tx| schedules::advance(tx, id, now, now.plus(Duration::from_secs(1)), None).await);
    assert!(
        !moved.await.unwrap(),
        "a spawn that was under way moves a paused schedule no more"
    );

    assert_eq!(
        world.done(&format!("/internal/schedules/{id}/resume")).await["paused"],
        false
    );
    assert_eq!(
        towpath_durable::respawn(&world.store, Duration::from_secs(60))
            .await
            .unwrap(),
        1
    );
    assert!(world.shown("/internal/schedules").await["items"][0]["spawn_job"].is_string());
    let missing = format!("/internal/schedules/{}/pause", ScheduleId::new());
    assert_eq!(
        world.operator(Method::POST, &missing).await.expect(404),
        json!({"detail": "schedule not found"})
    );
}
