//! Tracing projects.

use http::Method;
use serde_json::json;

use crate::world::{Call, World};

#[tokio::test]
async fn a_project_is_made_found_and_upserted() {
    let world = World::new().await;
    let made = world
        .post(
            "/sessions",
            &json!({"name": "canal", "extra": {"a": 1}, "description": null, "ignored_by_us": true}),
        )
        .await
        .expect(200);
    assert_eq!(made["tenant_id"], world.tenant.to_string());
    assert_eq!(made["extra"], json!({"a": 1}));
    let id = made["id"].as_str().unwrap();
    assert_eq!(world.get(&format!("/api/v1/sessions/{id}")).await.expect(200), made);
    assert_eq!(
        world
            .get("/sessions?name=canal&limit=1&include_stats=False")
            .await
            .expect(200),
        json!([made])
    );
    assert_eq!(world.get("/sessions?name=other").await.expect(200), json!([]));

    let taken = world.post("/sessions", &json!({"name": "canal"})).await.expect(409);
    assert_eq!(taken, json!({"error": "conflict", "details": "name is taken already"}));
    let changed = world
        .post(
            "/sessions?upsert=true",
            &json!({"name": "canal", "description": "boats"}),
        )
        .await
        .expect(200);
    assert_eq!(changed["id"], made["id"]);
    assert_eq!(changed["description"], "boats");
}

#[tokio::test]
async fn another_workspace_sees_nothing_of_it() {
    let world = World::new().await;
    let made = world.post("/sessions", &json!({"name": "canal"})).await.expect(200);
    let other = world.second_workspace().await;
    let path = format!("/sessions/{}", made["id"].as_str().unwrap());
    let foreign = Call::new(Method::GET, &path).in_workspace(other);
    let answer = world.call(foreign).await.expect(404);
    assert_eq!(answer, json!({"error": "not found", "details": "session not found"}));
    let list = Call::new(Method::GET, "/sessions").in_workspace(other);
    assert_eq!(world.call(list).await.expect(200), json!([]));
}

#[tokio::test]
async fn refusals_say_where() {
    let world = World::new().await;
    let refused = async |body: &str| {
        let call = Call::new(Method::POST, "/sessions").in_workspace(world.tenant);
        world
            .call(call.header("content-type", "application/json").body(body.to_owned()))
            .await
    };
    for (body, details) in [
        ("{", "body: the body is not valid JSON (line 1, column 1)"),
        ("{}", "body.name: field required"),
        (r#"{"name": 7}"#, "body.name: expected a string"),
        (r#"{"name": ""}"#, "body.name: a project name must not be empty"),
        (r#"{"name": "x", "id": "secret-text"}"#, "body.id: expected a UUID"),
        (r#"{"name": "x", "extra": [1]}"#, "body.extra: expected a map"),
        (
            r#"{"name": "x"} x"#,
            "body: the body is not valid JSON (line 1, column 15)",
        ),
    ] {
        let answer = refused(body).await.expect(422);
        assert_eq!(
            answer,
            json!({"error": "invalid request", "details": details}),
            "{body}"
        );
    }
    let deep = format!(
        r#"{{"name": "x", "extra": {{"a": {}{} }}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    assert_eq!(refused(&deep).await.expect(422)["details"], "body: nested too deeply");

    let call = Call::new(Method::POST, "/sessions")
        .in_workspace(world.tenant)
        .header("content-type", "text/plain");
    world.call(call.body(r#"{"name": "x"}"#)).await.expect(415);
    let huge = format!(r#"{{"name": "x", "description": "{}"}}"#, "x".repeat(2 << 20));
    refused(&huge).await.expect(413);

    assert_eq!(
        world.get("/sessions/42").await.expect(422)["details"],
        "path.session_id: expected a UUID"
    );
    assert_eq!(world.get("/sessions?limit=x").await.status, 422);
    assert_eq!(
        world.get("/sessions?limit=0").await.expect(422)["details"],
        "query.limit: expected 1 to 100"
    );
    // A filter this build does not have would change the answer, so it is refused.
    assert_eq!(
        world.get("/sessions?colour=red").await.expect(422)["details"],
        "query.colour: no such field"
    );
}
