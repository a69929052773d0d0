//! PostgreSQL restarts, crashes, is unavailable, and ends sessions.

use std::time::Duration;

use towpath_tests::{Layout, Random, World};

use super::round::{Fault, Ingest, folder, round, start};
use crate::final_state;

#[tokio::test]
async fn the_database_may_go_and_come_back() {
    let plan = World::plan(Layout::Cluster { workers: 2 })
        .env("TOWPATH_ENGINE_LEASE_SECONDS", "3")
        .own_postgres();
    let Some(world) = start(plan).await else { return };
    let place = folder(&world, "postgres").await;
    let mut dice = Random::new(88);

    let fault = Fault {
        name: "database sessions ended 20 times".to_owned(),
        unavailable: "",
        ingest: Ingest::Works,
        lasts: Duration::ZERO,
    };
    let ended = std::cell::Cell::new(0);
    let begin = async |world: &World| {
        let database = world.database.as_ref().expect("a cluster has a database");
        let mut connection = database.connect().await;
        // The pace of the fault: nothing is waited for.
        let mut ticks = tokio::time::interval(Duration::from_millis(150));
        for _ in 0..20 {
            ticks.tick().await;
            let question = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
            let count: i64 = sqlx::query_scalar(question)
                .fetch_one(&mut connection)
                .await
                .expect("our own session goes on");
            ended.set(ended.get() + usize::try_from(count).expect("a count"));
        }
    };
    round(&world, &place, &mut dice, &fault, begin, async |_| ended.get()).await;

    for (name, crash, seconds) in [("restarts", false, 0), ("crashes", true, 0), ("is away", false, 20)] {
        let away = seconds > 0;
        let fault = Fault {
            name: format!("database {name}"),
            unavailable: if away { "database" } else { "" },
            ingest: if away { Ingest::Refuses } else { Ingest::Works },
            lasts: Duration::from_secs(seconds),
        };
        let begin = async |world: &World| {
            let server = world.postgres.as_ref().expect("asked for");
            if crash {
                server.crash().await;
            } else {
                server.stop().await;
            }
        };
        let end = async |world: &World| {
            world.postgres.as_ref().expect("asked for").begin().await;
            1
        };
        round(&world, &place, &mut dice, &fault, begin, end).await;
    }
    final_state::settles(&world).await;
    world.stop().await;
}
