//! `Idempotency-Key`: the same request is performed once.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(a_deployment_and_a_revision_are_made_once,);

const EXPORTS: &str = "/api/v1/bulk-exports";
const DESTINATIONS: &str = "/api/v1/bulk-exports/destinations";

async fn keyed(world: &World, path: &str, key: &str, body: &Value) -> Answer {
    let call = Call::new(Method::POST, path).in_workspace(world.tenant);
    world.call(call.header("idempotency-key", key).json(body)).await
}

fn destination(name: &str) -> Value {
    json!({"destination_type": "file", "display_name": name, "config": {"prefix": "a"}})
}

async fn export(world: &World) -> Value {
    let project = world.post("/sessions", &json!({"name": "canal"})).await.expect(200);
    let destination = world.post(DESTINATIONS, &destination("d")).await.expect(200);
    json!({
        "bulk_export_destination_id": destination["id"], "session_id": project["id"],
        "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-02T00:00:00Z",
    })
}

async fn count(world: &World, path: &str) -> usize {
    world.get(path).await.expect(200).as_array().unwrap().len()
}

#[tokio::test]
async fn the_same_request_is_performed_once() {
    let world = World::new().await;
    let body = export(&world).await;
    let first = keyed(&world, EXPORTS, "one", &body).await;
    assert!(!first.headers.contains_key("idempotency-replayed"));
    first.expect(200);
    // What happened since does not change what was answered.
    let path = format!("{EXPORTS}/{}", first.json()["id"].as_str().unwrap());
    let cancel = Call::new(Method::PATCH, &path).in_workspace(world.tenant);
    world
        .call(cancel.json(&json!({"status": "Cancelled"})))
        .await
        .expect(200);

    let again = keyed(&world, EXPORTS, "one", &body).await;
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!((again.status, &again.text), (first.status, &first.text));
    assert_eq!(count(&world, EXPORTS).await, 1);

    // Another key, or none, is another request.
    keyed(&world, EXPORTS, "two", &body).await.expect(200);
    world.post(EXPORTS, &body).await.expect(200);
    assert_eq!(count(&world, EXPORTS).await, 3);
}

#[tokio::test]
async fn requests_that_race_are_performed_once() {
    let world = World::new().await;
    let body = export(&world).await;
    let answers = futures::future::join_all((0..20).map(|_| keyed(&world, EXPORTS, "race", &body))).await;
    let ids: std::collections::BTreeSet<String> = answers
        .iter()
        .map(|answer| answer.expect(200)["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 1);
    let fresh = answers
        .iter()
        .filter(|answer| !answer.headers.contains_key("idempotency-replayed"));
    assert_eq!(fresh.count(), 1);
    assert_eq!(count(&world, EXPORTS).await, 1);
}

#[tokio::test]
async fn a_destination_is_not_written_to_again() {
    let world = World::new().await;
    let first = keyed(&world, DESTINATIONS, "d", &destination("d")).await;
    first.expect(200);
    // It cannot be written to any more, and it need not be.
    let root = world.folder.path().join("exports");
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::write(&root, "in the way").unwrap();
    let again = keyed(&world, DESTINATIONS, "d", &destination("d")).await;
    again.expect(200);
    assert_eq!(again.text, first.text);
    keyed(&world, DESTINATIONS, "e", &destination("d")).await.expect(400);
}

#[tokio::test]
async fn a_key_belongs_to_its_request() {
    let world = World::new().await;
    keyed(&world, DESTINATIONS, "k", &destination("d")).await.expect(200);
    let other = keyed(&world, DESTINATIONS, "k", &destination("e")).await;
    let text = other.expect(409)["detail"].to_string();
    assert!(text.contains("Idempotency-Key"), "{text}");
    let elsewhere = keyed(&world, EXPORTS, "k", &export(&world).await).await;
    elsewhere.expect(409);

    // To another workspace it is free.
    let second = world.second_workspace().await;
    let call = Call::new(Method::POST, DESTINATIONS).in_workspace(second);
    world
        .call(call.header("idempotency-key", "k").json(&destination("e")))
        .await
        .expect(200);
}

#[tokio::test]
async fn a_refusal_is_not_remembered() {
    let world = World::new().await;
    let mut body = export(&world).await;
    let project = body["session_id"].take();
    body["session_id"] = json!("0194fdc2-fa2f-7cc0-81d3-ff120745ac1d");
    keyed(&world, EXPORTS, "k", &body).await.expect(404);
    body["session_id"] = project;
    keyed(&world, EXPORTS, "k", &body).await.expect(200);
}

#[tokio::test]
async fn keys_are_free_again_after_a_day_and_pruned() {
    let world = World::new().await;
    let first = keyed(&world, DESTINATIONS, "k", &destination("d")).await.expect(200);
    world.clock.advance(Duration::from_secs(24 * 3600 - 60));
    assert_eq!(
        keyed(&world, DESTINATIONS, "k", &destination("d")).await.expect(200),
        first
    );
    world.clock.advance(Duration::from_secs(120));
    let second = keyed(&world, DESTINATIONS, "k", &destination("d")).await.expect(200);
    assert_ne!(second["id"], first["id"]);

    let prune = async || {
        let before = world.clock.now().minus(towpath_store::idempotency::RETENTION);
        world
            .store
            .write(async |tx| towpath_store::idempotency::prune(tx, before, 200).await)
            .await
            .unwrap()
    };
    assert_eq!(prune().await, 0, "the old row was replaced, the new one is young");
    world.clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(prune().await, 1);
}

#[tokio::test]
async fn keys_are_short_and_plain() {
    let world = World::new().await;
    for key in ["", &"k".repeat(256), "ü"] {
        let refused = keyed(&world, DESTINATIONS, key, &destination("d")).await;
        assert_eq!(
            refused.expect(422)["detail"][0]["loc"],
            json!(["header", "idempotency-key"]),
            "{key}"
        );
    }
    let call = Call::new(Method::POST, DESTINATIONS).in_workspace(world.tenant);
    let twice = call.header("idempotency-key", "a").header("idempotency-key", "b");
    world.call(twice.json(&destination("d"))).await.expect(400);
    assert_eq!(count(&world, DESTINATIONS).await, 0);
    keyed(&world, DESTINATIONS, &"k".repeat(255), &destination("d"))
        .await
        .expect(200);
}

/// A request for a deployment, and how many there are.
async fn deployments(world: &World) -> usize {
    let answer = world.get("/v2/deployments").await.expect(200);
    answer["resources"].as_array().unwrap().len()
}

async fn a_deployment_and_a_revision_are_made_once(world: World) {
    let body = json!({
        "name": "agent", "source": "github", "secrets": [{"name": "MODEL_KEY", "value": "s3cret"}],
        "source_config": {"repo_url": "https://github.com/acme/agent"},
        "source_revision_config": {"repo_ref": "main", "graph_config_path": "langgraph.json"},
    });
    let first = keyed(&world, "/v2/deployments", "d", &body).await;
    let made = first.expect(201);
    let again = keyed(&world, "/v2/deployments", "d", &body).await;
    // Without the key the name would be taken.
    again.expect(201);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(again.text, first.text);
    assert!(!again.text.contains("s3cret"), "{}", again.text);
    assert_eq!(deployments(&world).await, 1);

    let path = |id: &Value| format!("/v2/deployments/{}/revisions", id.as_str().unwrap());
    let one = keyed(&world, &path(&made["id"]), "r", &json!({})).await;
    let same = keyed(&world, &path(&made["id"]), "r", &json!({})).await;
    assert_eq!(one.expect(201)["id"], same.expect(201)["id"]);
    let list = world.get(&path(&made["id"])).await.expect(200);
    assert_eq!(list["resources"].as_array().unwrap().len(), 2);

    // The same body for another deployment is another request.
    let mut other = body.clone();
    other["name"] = json!("other");
    let other = keyed(&world, "/v2/deployments", "e", &other).await.expect(201);
    keyed(&world, &path(&other["id"]), "r", &json!({})).await.expect(409);
    let gone = json!("0194fdc2-fa2f-7cc0-81d3-ff120745ac1d");
    let missing = keyed(&world, &path(&gone), "x", &json!({})).await.expect(404);
    let text = "Deployment ID 0194fdc2-fa2f-7cc0-81d3-ff120745ac1d not found.";
    assert_eq!(missing, json!({"detail": text}));
}
