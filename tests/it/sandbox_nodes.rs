//! Two nodes of sandboxes, and an API process that runs none: requests reach both, and a killed node is lost until it
//! returns.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Api, Layout, Process, World, free_address, until};

/// The machine can stall for half a minute.
const PATIENCE: Duration = Duration::from_secs(180);
const BOXES: &str = "/v2/sandboxes/boxes";

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_sandboxes_on_every_node() {
    let plan = World::plan(Layout::Cluster { workers: 0 })
        .env("TOWPATH_ENCRYPTION_KEY", "01".repeat(32))
        .env("TOWPATH_SANDBOXES_NODE_LOST_SECONDS", "10")
        .env("TOWPATH_SANDBOXES_UNENFORCED_LIMITS", "allow")
        .env("TOWPATH_SANDBOXES_STOP_GRACE_SECONDS", "1");
    let Some(mut world) = plan.start().await else { return };
    let refused = world.api.post(BOXES, &json!({"name": "early"})).await;
    assert!(
        refused
            .body
            .to_string()
            .contains("no process of this installation runs sandboxes")
    );
    refused.expect(501);
    for name in ["node-a", "node-b"] {
        start_node(&mut world, name).await;
    }
    let Some(first) = create(&world.api, "one").await else {
        world.stop().await;
        return;
    };
    let second = create(&world.api, "two").await.expect("the first was created");
    let is_on = |node: &str, id: &str| world.folder().join(node).join("sandboxes/boxes").join(id).is_dir();
    // The second goes to the node without one.
    let (of_a, of_b) = if is_on("node-a", &first) {
        (("one", first), ("two", second))
    } else {
        (("two", second), ("one", first))
    };
    assert!(is_on("node-a", &of_a.1) && is_on("node-b", &of_b.1));
    for (name, id) in [&of_a, &of_b] {
        let said = run(&world.api, id, &format!("echo {name} > ~/name; seq 1 200000"))
            .await
            .expect(200);
        assert_eq!(said["stdout"].as_str().map(str::len), Some(1_288_895));
        let listed = world
            .api
            .get(&format!("/v2/sandboxes/dp/{id}/commands"))
            .await
            .expect(200);
        assert_eq!(listed["commands"].as_array().map(Vec::len), Some(1), "{listed}");
    }

    world.process("node-a").kill().await;
    let status = format!("{BOXES}/{}/status", of_a.0);
    let lost = until("the sandbox of the killed node is stopped", PATIENCE, async || {
        let found = world.api.get(&status).await.expect(200);
        (found["status"] == "stopped").then_some(found)
    });
    let lost = lost.await;
    let why = lost["status_message"].as_str().unwrap_or_default();
    assert!(why.contains("was lost"), "{lost}");
    let unavailable = run(&world.api, &of_a.1, "cat ~/name").await;
    assert!(
        unavailable.body.to_string().contains("has not reported since"),
        "{}",
        unavailable.body
    );
    unavailable.expect(503);
    let other = run(&world.api, &of_b.1, "cat ~/name").await.expect(200);
    assert_eq!(other["stdout"], format!("{}\n", of_b.0));
    let third = create(&world.api, "three").await.expect("one node is left");
    assert!(world.folder().join("node-b/sandboxes/boxes").join(&third).is_dir());

    world.revive().await;
    let back = until("the sandbox of the returned node runs again", PATIENCE, async || {
        let said = run(&world.api, &of_a.1, "cat ~/name").await;
        said.status.is_success().then_some(said.body)
    });
    assert_eq!(back.await["stdout"], format!("{}\n", of_a.0), "its files are kept");

    for name in ["one", "two", "three"] {
        let deleted = world
            .api
            .request(Method::DELETE, &format!("{BOXES}/{name}"), None)
            .await;
        deleted.expect("the server is there").expect(204);
    }
    for (node, id) in [("node-a", &of_a.1), ("node-b", &of_b.1), ("node-b", &third)] {
        let upper = world.folder().join(node).join("sandboxes/boxes").join(id).join("upper");
        until("the files of a deleted sandbox are gone", PATIENCE, async || {
            (!upper.exists()).then_some(())
        })
        .await;
    }
    world.stop().await;
}

/// A worker with a data folder of its own, as on another machine.
async fn start_node(world: &mut World, name: &str) {
    let mut program = world.processes[0].program().clone();
    let address = free_address();
    let data = world.folder().join(name);
    let own = [
        ("TOWPATH_DATA_DIR", data.display().to_string()),
        ("TOWPATH_SANDBOXES_ENABLED", "on".to_owned()),
        ("TOWPATH_SANDBOXES_NODE_LISTEN", free_address().to_string()),
    ];
    let own = own.map(|(variable, value)| (variable.to_owned(), value));
    program.env.extend(own);
    let args = ["serve", "--role", "worker", "--listen", &address.to_string()];
    program.args = args.map(str::to_owned).to_vec();
    program.name = name.to_owned();
    program.address = Some(address);
    world.processes.push(Process::start(&program).await);
}

/// Creates a sandbox and returns its id; `None`, said aloud, on a machine without user namespaces.
async fn create(api: &Api, name: &str) -> Option<String> {
    let made = api.post(BOXES, &json!({"name": name, "timeout": 50})).await;
    if made.status.is_success() {
        return made.body["id"].as_str().map(str::to_owned);
    }
    let mut unshare = std::process::Command::new("unshare");
    let namespaces = unshare.args(["--user", "--map-root-user", "--mount", "true"]).output();
    let has_namespaces = namespaces.is_ok_and(|done| done.status.success());
    assert!(!has_namespaces, "this machine has user namespaces: {}", made.body);
    eprintln!("skipped: this machine has no sandboxes: {}", made.body);
    None
}

async fn run(api: &Api, id: &str, command: &str) -> towpath_tests::Reply {
    let body: Value = json!({"command": command, "timeout": 50});
    api.post(&format!("/v2/sandboxes/dp/{id}/execute"), &body).await
}
