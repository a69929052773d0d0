//! Deployments whose graphs judge their callers, in place of keys of the platform.

use http::Method;
use serde_json::json;
use towpath_api::Settings;
use towpath_domain::Scope;
use towpath_domain::deployment::SourceConfig;

use crate::gateway::{Upstream, deployment_with, place};
use crate::world::{Call, KEY, World};

const UNKEYED: &str = "x-towpath-gateway-unkeyed";

#[tokio::test]
async fn a_caller_without_a_key_is_the_deployments_to_judge() {
    for allowed in [true, false] {
        let world = World::with(Settings {
            gateway_own_auth: allowed,
            ..Settings::default()
        })
        .await;
        let upstream = Upstream::start().await;
        let mut ids = Vec::new();
        for (name, own_auth) in [("judging", Some(true)), ("plain", None)] {
            let config = SourceConfig {
                own_auth,
                ..SourceConfig::default()
            };
            let id = deployment_with(&world, world.tenant, name, &config).await;
            place(&world, world.tenant, id, &upstream.address.to_string()).await;
            ids.push(id);
        }
        let judging: u16 = if allowed { 200 } else { 401 };
        for (what, path, expected) in [
            ("its deployment", format!("/d/{}/threads", ids[0]), judging),
            ("another one", format!("/d/{}/threads", ids[1]), 401),
            ("a name", "/d/judging/threads".to_owned(), 401),
            ("operators' routes", format!("/d/{}/internal/jobs", ids[0]), 401),
        ] {
            // What only the gateway says is not the caller's to say.
            let call = Call::new(Method::POST, &path)
                .header("authorization", "Bearer theirs")
                .header(UNKEYED, "1.00");
            let before = upstream.asked().len();
            let answer = world.call(call).await;
            assert_eq!(answer.status, expected, "{what}, allowed: {allowed}: {}", answer.text);
            assert_eq!(upstream.asked().len(), before + usize::from(expected == 200), "{what}");
        }
        if allowed {
            let asked = upstream.asked().pop().expect("it was asked");
            assert_ne!(asked.headers[UNKEYED], "1.00");
            assert_eq!(asked.headers["authorization"], "Bearer theirs");
            assert!(
                !asked.headers.contains_key("x-towpath-gateway"),
                "it counts as a caller with a key"
            );
        }
        // Who shows a key is asked for a good one, as at every deployment.
        let path = format!("/d/{}/threads", ids[0]);
        let lacking = world.limited_key(&[Scope::TracesRead]).await;
        for (key, expected) in [(KEY, 200_u16), ("wrong", 401), (lacking.reveal(), 403)] {
            let call = Call::new(Method::POST, &path)
                .header("x-api-key", key)
                .header(UNKEYED, "1.00");
            let answer = world.call(call).await;
            assert_eq!(answer.status, expected, "{}", answer.text);
        }
        let asked = upstream.asked().pop().expect("it was asked");
        assert!(!asked.headers.contains_key(UNKEYED) && asked.headers.contains_key("x-towpath-gateway"));
    }
}

/// It changes at once, and makes no revision.
#[tokio::test]
async fn an_operator_allows_it_before_a_deployment_may() {
    let world = World::with(Settings {
        gateway_own_auth: true,
        ..Settings::default()
    })
    .await;
    let new = json!({
        "name": "agent", "source": "external_docker", "secrets": [], "source_config": {"own_auth": true},
        "source_revision_config": {"image_uri": "registry.example/agent:1"},
    });
    let made = world.post("/v2/deployments", &new).await.expect(201);
    assert_eq!(made["source_config"]["own_auth"], true);
    let path = format!("/v2/deployments/{}", made["id"].as_str().expect("it has an id"));
    let call = Call::new(Method::PATCH, &path).in_workspace(world.tenant);
    let changed = world
        .call(call.json(&json!({"source_config": {"own_auth": null}})))
        .await
        .expect(200);
    assert_eq!(changed["source_config"].get("own_auth"), None);
    assert_eq!(changed["latest_revision_id"], made["latest_revision_id"]);
}
