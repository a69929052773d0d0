//! Each role starts, tells its health, and drains on SIGTERM.

use serde_json::json;
use towpath_tests::{Api, Process, Program, World};

#[tokio::test]
async fn embedded_serves_and_drains() {
    let mut world = World::embedded().await;
    serves_health(&world.processes).await;
    asks_for_a_key(&world.api).await;
    // What was made before a stop is there after the next start.
    let destination = world.api.file_destination("kept").await;
    let dev = world.process("dev");
    dev.kill().await;
    world.revive().await;
    let list = world.api.get("/api/v1/bulk-exports/destinations").await.expect(200);
    assert!(
        list.as_array()
            .unwrap()
            .iter()
            .any(|found| found["id"] == json!(destination)),
        "{list}"
    );
    world.stop().await;
}

#[tokio::test]
async fn every_role_of_a_cluster_serves_and_drains() {
    let Some(world) = World::cluster(2).await else { return };
    serves_health(&world.processes).await;
    asks_for_a_key(&world.api).await;
    world.stop().await;
}

async fn serves_health(processes: &[Process]) {
    for process in processes {
        let Program { name, address, .. } = process.program();
        let address = address.expect("every role of a world listens");
        let api = Api::new(address, "no key is needed for these", "");
        for path in ["/livez", "/readyz", "/readyz?verbose", "/metrics"] {
            let reply = api.get(path).await;
            assert_eq!(reply.status, 200, "{name} {path}: {}", reply.body);
        }
    }
}

async fn asks_for_a_key(api: &Api) {
    api.get("/api/v1/bulk-exports").await.expect(200);
    let base = api.base().strip_prefix("http://").unwrap().parse().unwrap();
    let stranger = Api::new(base, "a-key-that-nobody-made-0123456789", "");
    stranger.get("/api/v1/bulk-exports").await.expect(401);
}
