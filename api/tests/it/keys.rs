//! Keys, as operators make and revoke them by way of the API.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use towpath_domain::Scope;

use crate::world::{Answer, Call, KEY, World, on_both_databases};

on_both_databases!(
    a_key_is_made_listed_and_revoked,
    operators_make_operators_and_none_revokes_itself,
    a_rotated_key_has_two_secrets_for_a_while,
    the_last_use_of_a_key_is_recorded,
    a_deployment_gets_no_scope_that_its_maker_lacks,
    a_key_calls_one_deployment_and_does_nothing_else,
);

impl World {
    async fn by_operator(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let call = Call::new(method, path).header("x-api-key", KEY);
        self.call(match body {
            Some(body) => call.json(body),
            None => call,
        })
        .await
    }

    async fn made(&self, body: &Value) -> Value {
        let answer = self.by_operator(Method::POST, "/internal/keys", Some(body)).await;
        assert_eq!(answer.headers["cache-control"], "no-store");
        answer.expect(201)
    }

    /// The status that a key gets where a workspace's key is asked for.
    async fn exports_with(&self, key: &str) -> u16 {
        let call = Call::new(Method::GET, "/api/v1/bulk-exports").header("x-api-key", key);
        let call = call.header("x-tenant-id", &self.tenant.to_string());
        self.call(call).await.status.as_u16()
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}"))
}

async fn a_key_is_made_listed_and_revoked(world: World) {
    let made = world.made(&json!({ "name": " ci of  canal " })).await;
    assert_eq!(made["name"], "ci of  canal");
    assert_eq!(made["operator"], false);
    assert_eq!(made["tenant_id"], Value::Null);
    assert_eq!(made["workspaces"], json!([world.tenant]));
    let secret = text(&made, "key");
    assert_eq!(world.exports_with(secret).await, 200, "it opens at once");

    let listed = world.by_operator(Method::GET, "/internal/keys", None).await;
    assert!(
        !listed.text.contains(secret) && !listed.text.contains(KEY),
        "{}",
        listed.text
    );
    let listed = listed.expect(200);
    assert_eq!(listed["items"][0]["id"], made["id"], "the latest first");
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(listed["next_cursor"], Value::Null);

    let path = format!("/internal/keys/{}/revoke", text(&made, "id"));
    let revoked = world.by_operator(Method::POST, &path, None).await.expect(200);
    assert!(
        revoked["revoked_at"].is_string() && revoked.get("key").is_none(),
        "{revoked}"
    );
    assert_eq!(world.exports_with(secret).await, 401, "this process refuses it at once");
    let again = world.by_operator(Method::POST, &path, None).await.expect(200);
    assert_eq!(again, revoked, "the first time stays");
}

#[tokio::test]
async fn a_key_of_one_workspace_opens_that_one() {
    let world = World::new().await;
    let second = world.second_workspace().await;
    let made = world.made(&json!({ "name": "one", "tenant_id": second })).await;
    assert_eq!(
        (&made["tenant_id"], &made["workspaces"]),
        (&json!(second), &json!([second]))
    );
    assert_eq!(world.exports_with(text(&made, "key")).await, 403, "not this one");
    let call = Call::new(Method::GET, "/api/v1/bulk-exports").header("x-api-key", text(&made, "key"));
    world.call(call).await.expect(200);
}

async fn operators_make_operators_and_none_revokes_itself(world: World) {
    let keys = world.by_operator(Method::GET, "/internal/keys", None).await.expect(200);
    let first = format!("/internal/keys/{}/revoke", text(&keys["items"][0], "id"));
    let refused = world.by_operator(Method::POST, &first, None).await.expect(409);
    assert_eq!(
        refused,
        json!({"detail": "a key cannot revoke itself: use another key"})
    );
    let second = world.made(&json!({ "name": "deputy", "operator": true })).await;
    let by_second = Call::new(Method::POST, &first).header("x-api-key", text(&second, "key"));
    world.call(by_second).await.expect(200);
    let gone = world.by_operator(Method::GET, "/internal/keys", None).await;
    gone.expect(401);
}

#[tokio::test]
async fn the_list_goes_on_by_its_cursor() {
    let world = World::new().await;
    for n in 0..4 {
        // Some of the same moment: the clock stands still.
        world.made(&json!({ "name": format!("key {n}") })).await;
    }
    let mut seen = Vec::new();
    let mut path = "/internal/keys?limit=2".to_owned();
    loop {
        let page = world.by_operator(Method::GET, &path, None).await.expect(200);
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|key| text(key, "id").to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/internal/keys?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 5, "each once");
    for wrong in ["limit=0", "limit=1001", "cursor=x", "colour=red"] {
        let answer = world
            .by_operator(Method::GET, &format!("/internal/keys?{wrong}"), None)
            .await;
        answer.expect(422);
    }
}

#[tokio::test]
async fn refusals_say_where() {
    let world = World::new().await;
    for (body, place) in [
        (json!({}), "name"),
        (json!({ "name": "  " }), "name"),
        (json!({ "name": "a\nb" }), "name"),
        (json!({ "name": "x".repeat(256) }), "name"),
        (json!({ "name": "x", "tenant_id": "secret-text" }), "tenant_id"),
        (json!({ "name": "x", "operator": "yes" }), "operator"),
        (json!({ "name": "x", "key": "my own" }), "key"),
        (json!({ "name": "x", "scopes": [] }), "scopes"),
        (json!({ "name": "x", "expires_in_days": 0 }), "expires_in_days"),
    ] {
        let answer = world.by_operator(Method::POST, "/internal/keys", Some(&body)).await;
        assert!(!answer.text.contains("secret-text"), "{}", answer.text);
        let issue = answer.expect(422)["detail"][0].clone();
        assert_eq!(issue["loc"], json!(["body", place]), "{body}");
    }
    let nowhere = json!({ "name": "x", "tenant_id": "00000000-0000-4000-8000-000000000009" });
    let answer = world.by_operator(Method::POST, "/internal/keys", Some(&nowhere)).await;
    assert_eq!(answer.expect(404), json!({"detail": "workspace not found"}));
    let unknown = "/internal/keys/00000000-0000-4000-8000-000000000009/revoke";
    world.by_operator(Method::POST, unknown, None).await.expect(404);
}

async fn a_rotated_key_has_two_secrets_for_a_while(world: World) {
    let made = world.made(&json!({ "name": "ci", "scopes": ["exports"] })).await;
    assert_eq!(made["scopes"], json!(["exports"]));
    let path = format!("/internal/keys/{}/rotate", text(&made, "id"));
    let body = json!({ "overlap_hours": 1 });
    let rotated = world.by_operator(Method::POST, &path, Some(&body)).await.expect(200);
    assert_eq!(rotated["id"], made["id"]);
    assert_ne!(rotated["key"], made["key"]);
    for key in [text(&made, "key"), text(&rotated, "key")] {
        assert_eq!(world.exports_with(key).await, 200, "both work during the overlap");
    }
    world.clock.advance(Duration::from_secs(3600));
    assert_eq!(world.exports_with(text(&made, "key")).await, 401, "the overlap is over");
    assert_eq!(world.exports_with(text(&rotated, "key")).await, 200);

    let revoke = format!("/internal/keys/{}/revoke", text(&made, "id"));
    world.by_operator(Method::POST, &revoke, None).await.expect(200);
    assert_eq!(world.exports_with(text(&rotated, "key")).await, 401);
    world.by_operator(Method::POST, &path, Some(&body)).await.expect(400);
}

async fn the_last_use_of_a_key_is_recorded(world: World) {
    let made = world.made(&json!({ "name": "ci" })).await;
    assert_eq!(made["last_used_at"], Value::Null);
    assert_eq!(world.exports_with(text(&made, "key")).await, 200);
    world.app.record_key_uses().await.unwrap();
    let listed = world.by_operator(Method::GET, "/internal/keys", None).await.expect(200);
    let found = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["id"] == made["id"]);
    assert!(found.unwrap()["last_used_at"].is_string(), "{listed}");
}

#[tokio::test]
async fn an_expired_key_opens_nothing() {
    let world = World::new().await;
    let made = world.made(&json!({ "name": "short", "expires_in_days": 1 })).await;
    assert!(made["expires_at"].is_string(), "{made}");
    assert_eq!(world.exports_with(text(&made, "key")).await, 200);
    world.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(
        world.exports_with(text(&made, "key")).await,
        401,
        "not for the moment of the cache either"
    );
}

#[tokio::test]
async fn an_operator_has_secrets_sealed_anew() {
    let world = World::new().await;
    let started = world.by_operator(Method::POST, "/internal/keys/reseal", None).await;
    let started = started.expect(202);
    let path = format!("/internal/jobs/{}", text(&started, "job_id"));
    let job = world.by_operator(Method::GET, &path, None).await.expect(200);
    assert_eq!(
        (&job["kind"], &job["pool"]),
        (&json!("reseal_secrets"), &json!("sweeps"))
    );
    let refused = Call::new(Method::POST, "/internal/keys/reseal");
    world.call(refused).await.expect(401);
}

async fn a_deployment_gets_no_scope_that_its_maker_lacks(world: World) {
    let ci = world.limited_key(&[Scope::Deployments, Scope::Sandboxes]).await;
    let ask = async |method: Method, path: &str, body: &Value| {
        let call = Call::new(method, path)
            .header("x-api-key", ci.reveal())
            .header("x-tenant-id", &world.tenant.to_string());
        world.call(call.json(body)).await
    };
    let new = |name: &str, scopes: Value| {
        json!({
            "name": name, "source": "external_docker", "secrets": [], "source_config": {"key_scopes": scopes},
            "source_revision_config": {"image_uri": "registry.example/agent:1"},
        })
    };
    let lacking = new("one", json!(["sandboxes", "traces:read"]));
    let refused = ask(Method::POST, "/v2/deployments", &lacking).await;
    assert_eq!(refused.expect(403)["detail"], "the API key lacks the scope traces:read");
    let fitting = new("two", json!(["sandboxes", "traces:write"]));
    let made = ask(Method::POST, "/v2/deployments", &fitting).await.expect(201);
    let path = format!("/v2/deployments/{}", text(&made, "id"));
    let change = json!({"source_config": {"key_scopes": ["agents:invoke"]}});
    let refused = ask(Method::PATCH, &path, &change).await;
    assert_eq!(
        refused.expect(403)["detail"],
        "the API key lacks the scope agents:invoke"
    );
    let less = json!({"source_config": {"key_scopes": null}});
    let changed = ask(Method::PATCH, &path, &less).await.expect(200);
    assert_eq!(changed["source_config"].get("key_scopes"), None);
    assert_ne!(changed["latest_revision_id"], made["latest_revision_id"]);
}

async fn a_key_calls_one_deployment_and_does_nothing_else(world: World) {
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        let new = json!({
            "name": name, "source": "external_docker", "secrets": [], "source_config": {},
            "source_revision_config": {"image_uri": "registry.example/agent:1"},
        });
        let made = world.post("/v2/deployments", &new).await.expect(201);
        ids.push(text(&made, "id").to_owned());
    }
    let path = format!("/v2/deployments/{}/keys", ids[0]);
    let answer = world.post(&path, &json!({"expires_in_days": 1})).await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    let made = answer.expect(201);
    assert_eq!(made["name"], "one", "the deployment's name unless another one is given");
    assert_eq!(made["scopes"], json!([format!("agents:invoke:{}", ids[0])]));
    assert_eq!(made["tenant_id"], json!(world.tenant));
    assert!(made["expires_at"].is_string(), "{made}");

    let key = text(&made, "key");
    assert_eq!(world.exports_with(key).await, 403);
    // Neither has a revision that serves: who may call it is told so.
    for (id, status) in [(&ids[0], 503), (&ids[1], 403)] {
        let call = Call::new(Method::GET, &format!("/d/{id}/threads")).header("x-api-key", key);
        let answer = world.call(call).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
    }

    // Who could not call it makes no key that can.
    let ci = world.limited_key(&[Scope::Deployments]).await;
    let call = Call::new(Method::POST, &path)
        .header("x-api-key", ci.reveal())
        .header("x-tenant-id", &world.tenant.to_string());
    let refused = world.call(call.json(&json!({}))).await.expect(403);
    let lacking = format!("the API key lacks the scope agents:invoke:{}", ids[0]);
    assert_eq!(refused["detail"], lacking);
    let wrong = world.post(&path, &json!({"name": " "})).await.expect(422);
    assert_eq!(wrong["detail"][0]["loc"], json!(["body", "name"]));
    let unknown = format!("/v2/deployments/{}/keys", world.tenant);
    world.post(&unknown, &json!({})).await.expect(404);
}
