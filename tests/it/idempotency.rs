//! A server that dies between the commit and the answer: under an `Idempotency-Key` the client asks again and gets the
//! answer it missed, and the work is there once.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use towpath_tests::{Exit, Layout, Process, Reply, World};

const POINT: &str = "api.committed";
const EXPORTS: &str = "/api/v1/bulk-exports";
const DESTINATIONS: &str = "/api/v1/bulk-exports/destinations";
/// Deaths of each kind of work.
const ROUNDS: usize = 3;

#[tokio::test]
async fn embedded_performs_a_request_once_over_its_death() {
    once(Layout::Embedded).await;
}

#[tokio::test]
async fn a_cluster_performs_a_request_once_over_the_death_of_its_api() {
    once(Layout::Cluster { workers: 1 }).await;
}

async fn once(layout: Layout) {
    let Some(mut world) = World::plan(layout).start().await else {
        return;
    };
    let project = world.api.post("/sessions", &json!({"name": "once"})).await.expect(200);
    let destination = world.api.file_destination("once").await;
    let export = json!({
        "bulk_export_destination_id": destination, "session_id": project["id"],
        "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-02T00:00:00Z",
    });
    let shelf = json!({"destination_type": "file", "display_name": "shelf", "config": {"prefix": "shelf"}});
    for round in 0..ROUNDS {
        for (path, body) in [(EXPORTS, &export), (DESTINATIONS, &shelf)] {
            let key = format!("{path} {round}");
            let before = count(&world, path).await;
            restart(&mut world, Some(POINT)).await;
            let lost = keyed(&world, path, &key, body).await;
            assert!(lost.is_err(), "the server was to die before it answers: {lost:?}");
            assert_eq!(
                server(&mut world).wait(std::time::Duration::from_secs(30)).await,
                Exit::Signal(Signal::SIGABRT as i32)
            );

            restart(&mut world, None).await;
            assert_eq!(count(&world, path).await, before + 1, "it was committed");
            let first = keyed(&world, path, &key, body).await.expect("it lives").expect(200);
            let second = keyed(&world, path, &key, body).await.expect("it lives").expect(200);
            assert_eq!(first, second);
            assert_eq!(count(&world, path).await, before + 1, "asking again made no other");
            let newest = world.api.get(path).await.expect(200)[0]["id"].clone();
            assert_eq!(first["id"], newest);
        }
    }
    world.stop().await;
}

async fn count(world: &World, path: &str) -> usize {
    world.api.get(path).await.expect(200).as_array().expect("a list").len()
}

async fn keyed(world: &World, path: &str, key: &str, body: &Value) -> reqwest::Result<Reply> {
    let headers = [("content-type", "application/json"), ("idempotency-key", key)];
    world.api.send(path, &headers, body.to_string().into()).await
}

/// The process that answers HTTP.
fn server(world: &mut World) -> &mut Process {
    let name = if world.database.is_some() { "api" } else { "dev" };
    world.process(name)
}

async fn restart(world: &mut World, point: Option<&str>) {
    let process = server(world);
    process.kill().await;
    let mut program = process.program().clone();
    program.env.retain(|(name, _)| name != "TOWPATH_FAILPOINT");
    program
        .env
        .extend(point.map(|point| ("TOWPATH_FAILPOINT".to_owned(), point.to_owned())));
    *process = Process::start(&program).await;
}
