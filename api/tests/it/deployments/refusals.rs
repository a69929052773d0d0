//! What is refused beside the table of [`super::rules`]: every reserved name, every way to a shell, paths, queries.

use http::Method;
use serde_json::json;
use towpath_api::Settings;
use towpath_domain::deployment::RESERVED;

use super::{github, with};
use crate::world::{Call, World, on_both_databases};

on_both_databases!(a_taken_name_is_one_on_every_database,);

#[tokio::test]
async fn of_names_and_commands() {
    let world = World::new().await;
    for name in RESERVED {
        let body = with(github(), "/secrets", json!([{"name": name, "value": "s3cret"}]));
        let text = format!("secrets: {name} is a reserved name and is set by the platform");
        assert_eq!(
            world.post("/v2/deployments", &body).await.expect(400),
            json!({"detail": text})
        );
    }
    for command in [
        "npm ci; x",
        "npm ci && x",
        "a | b",
        "a > b",
        "$(x)",
        "`x`",
        "a 'b'",
        "a\nb",
    ] {
        let body = with(github(), "/source_config/install_command", json!(command));
        let refused = world.post("/v2/deployments", &body).await.expect(400);
        assert!(
            refused["detail"]
                .as_str()
                .unwrap()
                .starts_with("source_config.install_command"),
            "{refused}"
        );
    }
    // Nothing was kept of all that.
    assert_eq!(world.get("/v2/deployments").await.expect(200)["resources"], json!([]));
}

async fn a_taken_name_is_one_on_every_database(world: World) {
    world.post("/v2/deployments", &github()).await.expect(201);
    let taken = world.post("/v2/deployments", &github()).await.expect(400);
    assert_eq!(
        taken,
        json!({"detail": "name: this workspace already has a deployment named agent"})
    );
}

#[tokio::test]
async fn a_second_workspace_has_no_processes_beside_the_first() {
    let world = World::with(Settings {
        one_workspace: true,
        ..Settings::default()
    })
    .await;
    let other = world.second_workspace().await;
    let mine = world.post("/v2/deployments", &github()).await.expect(201);
    let create = Call::new(Method::POST, "/v2/deployments");
    let refused = world.call(create.in_workspace(other).json(&github())).await.expect(400);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("deployments.trust = all"), "{detail}");
    // What the first workspace has goes on, and it may have more.
    let more = with(github(), "/name", json!("another"));
    world.post("/v2/deployments", &more).await.expect(201);
    let id = mine["id"].as_str().unwrap();
    world.get(&format!("/v2/deployments/{id}")).await.expect(200);
}

#[tokio::test]
async fn of_paths_queries_and_kinds_of_body() {
    let world = World::new().await;
    let bad = world.get("/v2/deployments/nonsense").await.expect(422);
    assert_eq!(bad["detail"][0]["loc"], json!(["path", "deployment_id"]));
    let bad = world
        .get(&format!(
            "/v2/deployments/{}/revisions/x",
            towpath_domain::DeploymentId::new()
        ))
        .await;
    assert_eq!(bad.expect(422)["detail"][0]["loc"], json!(["path", "revision_id"]));
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("offset=-1", "offset"),
        ("status=DONE", "status"),
        ("deployment_ids=x", "deployment_ids"),
        ("deployment_type=big", "deployment_type"),
    ] {
        let refused = world.get(&format!("/v2/deployments?{query}")).await.expect(422);
        assert_eq!(
            refused["detail"][0]["loc"],
            json!(["query", field]),
            "{query}: {refused}"
        );
    }
    for field in ["tag_value_ids", "remote_reconciled", "agent_id", "agent_environment"] {
        let refused = world.get(&format!("/v2/deployments?{field}=x")).await.expect(400);
        assert_eq!(
            refused["detail"],
            format!("the filter {field} is not available in this build")
        );
    }
    let text = Call::new(Method::POST, "/v2/deployments").in_workspace(world.tenant);
    world
        .call(text.header("content-type", "text/plain").body("{}"))
        .await
        .expect(415);
    let open = world.open(Method::GET, "/v2/deployments").await;
    assert_eq!(open.status, 401);
}
