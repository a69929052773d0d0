//! Each role starts, tells its health, and drains on SIGTERM.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;
use towpath_tests::{Api, Exit, Process, Program, World, free_address};

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

/// A server whose database takes the connection and says nothing: as with a long migration there is nothing to drain
/// yet.
#[tokio::test]
async fn a_start_that_takes_long_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let database = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = database.local_addr().unwrap();
    let program = Program {
        name: "serve".to_owned(),
        args: ["serve", "--role", "api", "--listen", &free_address().to_string()]
            .map(str::to_owned)
            .to_vec(),
        env: vec![
            (
                "DATABASE_URI".to_owned(),
                format!("postgres://nobody:nothing@{at}/none"),
            ),
            ("TOWPATH_DATA_DIR".to_owned(), folder.path().display().to_string()),
        ],
        address: None,
        folder: folder.path().to_owned(),
    };
    let mut server = Process::spawn(&program);
    let connected = timeout(Duration::from_secs(60), database.accept()).await;
    let _silent = connected
        .expect("the server connects to its database within a minute")
        .unwrap();
    let exit = server.terminate(Duration::from_secs(30)).await;
    assert_eq!(exit, Exit::Code(0), "{}", server.log_text());
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
