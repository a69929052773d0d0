//! Lines to Redis, PostgreSQL and the bucket that are slow, silent or cut.

use std::time::Duration;

use serde_json::json;
use towpath_tests::fault_proxy::{Direction, Mode};
use towpath_tests::{Layout, Moto, Random, World};

use super::round::{ExportTarget, Fault, Ingest, round, start};
use crate::final_state;

/// Shorter than the faults last, so that leases run out meanwhile.
const LEASE_SECONDS: &str = "3";

/// Name, mode, for how long in seconds, whether the process has to notice.
type LineFault = (&'static str, Mode, u64, bool);

/// What a process gets over at once when it ends.
const SLOW_OR_CUT: [LineFault; 5] = [
    ("slow", Mode::Delay(Duration::from_millis(60)), 3, false),
    ("throttled", Mode::Throttle(60_000), 3, false),
    ("sliced", Mode::Slice(37), 3, false),
    ("stalled", Mode::Stall, 7, true),
    ("reset, then refused", Mode::Drop, 5, true),
];
/// What leaves connections behind that stay dead. A caller that waits for an answer there waits until its time is up.
const SILENT: [LineFault; 2] = [
    ("half-open", Mode::HalfOpen(Direction::Both), 7, true),
    ("answers lost", Mode::HalfOpen(Direction::ToClient), 7, true),
];

/// A line, by the name that `/readyz` has for what is behind it.
#[derive(Clone, Copy)]
enum ProxiedDependency {
    Redis,
    Database,
    Objects,
}

#[tokio::test]
async fn the_line_to_redis_may_be_slow_or_cut() {
    harm(ProxiedDependency::Redis, &SLOW_OR_CUT, Random::new(8)).await;
}

#[tokio::test]
async fn the_line_to_redis_may_fall_silent() {
    harm(ProxiedDependency::Redis, &SILENT, Random::new(18)).await;
}

#[tokio::test]
async fn the_line_to_redis_with_ids_of_jobs_may_fall_silent() {
    let env = [("TOWPATH_QUEUE_DISPATCH", "directed")];
    harm_with(ProxiedDependency::Redis, &env, &SILENT, Random::new(28)).await;
}

#[tokio::test]
async fn the_line_to_the_database_may_be_slow_or_cut() {
    harm(ProxiedDependency::Database, &SLOW_OR_CUT, Random::new(9)).await;
}

#[tokio::test]
async fn the_line_to_the_database_may_fall_silent() {
    harm(ProxiedDependency::Database, &SILENT, Random::new(19)).await;
}

#[tokio::test]
async fn the_line_to_the_bucket_may_be_slow_or_cut() {
    harm(ProxiedDependency::Objects, &SLOW_OR_CUT, Random::new(10)).await;
}

#[tokio::test]
async fn the_line_to_the_bucket_may_fall_silent() {
    harm(ProxiedDependency::Objects, &SILENT, Random::new(20)).await;
}

async fn harm(line: ProxiedDependency, harms: &[LineFault], dice: Random) {
    harm_with(line, &[], harms, dice).await;
}

/// Does `harms` to one line of a world of its own, with these settings, one after another.
async fn harm_with(line: ProxiedDependency, env: &[(&str, &str)], harms: &[LineFault], mut dice: Random) {
    let mut plan = World::plan(Layout::Cluster { workers: 2 })
        .env("TOWPATH_ENGINE_LEASE_SECONDS", LEASE_SECONDS)
        .own_postgres()
        .redis_behind_proxy()
        .objects_in_bucket();
    for &(name, value) in env {
        plan = plan.env(name, value);
    }
    let Some(world) = start(plan).await else { return };
    let place = bucket(&world).await;
    let (behind, proxy) = match line {
        ProxiedDependency::Redis => ("redis", &world.redis_proxy),
        ProxiedDependency::Database => ("database", &world.postgres_proxy),
        ProxiedDependency::Objects => ("objects", &world.bucket_proxy),
    };
    let proxy = proxy.as_ref().expect("asked for");
    for &(name, mode, seconds, noticed) in harms {
        let ingest = match line {
            // Nothing can be acknowledged without them.
            ProxiedDependency::Database | ProxiedDependency::Objects if noticed => Ingest::Waits,
            // Without Redis work is found by looking.
            _ => Ingest::Works,
        };
        let fault = Fault {
            name: format!("{behind} {name}"),
            unavailable: if noticed { behind } else { "" },
            ingest,
            lasts: Duration::from_secs(seconds),
        };
        let before = proxy.harmed();
        let begin = async |_: &World| {
            if mode == Mode::Drop {
                // New connections are only made where the old ones are gone.
                proxy.set(Mode::ResetAll);
                towpath_tests::until("connections to be reset", Duration::from_secs(10), async || {
                    (proxy.open() == 0).then_some(())
                })
                .await;
            }
            proxy.set(mode);
        };
        let end = async |_: &World| {
            proxy.set(Mode::Pass);
            proxy.harmed() - before
        };
        round(&world, &place, &mut dice, &fault, begin, end).await;
    }
    final_state::settles(&world).await;
    world.stop().await;
}

/// A destination in the same bucket, over the same line.
async fn bucket(world: &World) -> ExportTarget {
    let endpoint = world.bucket_proxy.as_ref().expect("asked for").addr();
    let body = json!({
        "destination_type": "s3",
        "display_name": "bucket",
        "config": {
            "bucket_name": Moto::BUCKET, "prefix": "out", "region": "us-east-1",
            "endpoint_url": format!("http://{endpoint}"),
        },
        "credentials": { "access_key_id": "anybody", "secret_access_key": "anything" },
    });
    let made = world
        .api
        .post("/api/v1/bulk-exports/destinations", &body)
        .await
        .expect(200);
    ExportTarget {
        destination: made["id"].as_str().expect("a destination has an id").to_owned(),
        prefix: "out",
    }
}
