//! Tracing projects.

use http::Method;
use serde_json::json;

use crate::dashboard::{cookie, sign_in};
use crate::world::{Call, KEY, World, on_both_databases};

on_both_databases!(
    names_are_found_in_upper_and_lower_case,
    an_id_is_taken_in_its_workspace_only,
);

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
    assert_eq!(taken, json!({"error": "conflict", "details": "name is already in use"}));
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

async fn names_are_found_in_upper_and_lower_case(world: World) {
    let names = ["ÉTÉ à Paris", "Straße 100%", "ΑΘΗΝΑ", "москва_*?[x]^.(\\)", "日本"];
    for name in names {
        world.post("/sessions", &json!({ "name": name })).await.expect(200);
    }
    for (part, found) in [
        ("ÉTÉ", Some(0)),
        ("été À", Some(0)),
        ("ete", None),
        ("STRASSE", None),
        ("straße 100%", Some(1)),
        ("100_", None),
        ("αθη", Some(2)),
        ("МОСКВА_", Some(3)),
        ("а_*?[X]^.(\\)", Some(3)),
        ("москва-", None),
        ("本", Some(4)),
        ("x]", Some(3)),
        ("[а-я]", None),
        (".*", None),
    ] {
        let query: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("name_contains", part)
            .finish();
        let listed = world.get(&format!("/sessions?{query}")).await.expect(200);
        let listed: Vec<&str> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        let expected: Vec<&str> = found.map(|at| names[at]).into_iter().collect();
        assert_eq!(listed, expected, "{part}");
    }
    let all = world.get("/sessions?name_contains=").await.expect(200);
    assert_eq!(all.as_array().unwrap().len(), names.len());
    for long in ["%C3%89".repeat(513), "x".repeat(8000)] {
        let none = world.get(&format!("/sessions?name_contains={long}")).await;
        assert_eq!(none.expect(200), json!([]));
    }
}

async fn an_id_is_taken_in_its_workspace_only(world: World) {
    let id = "0194fdc2-0000-7000-8000-000000000001";
    let run = "0194fdc2-0000-7000-8000-000000000002";
    let new = json!({"name": "canal", "id": id});
    let own = world.post("/sessions", &new).await.expect(200);
    let other = world.second_workspace().await;
    let there = |method: Method, path: &str| Call::new(method, path).in_workspace(other);
    let made = world
        .call(there(Method::POST, "/sessions").json(&new))
        .await
        .expect(200);
    assert_eq!((&made["id"], &made["tenant_id"]), (&json!(id), &json!(other)));
    // In the own workspace it is taken, as it would be if nobody else had it.
    let again = json!({"name": "another", "id": id});
    world.post("/sessions", &again).await.expect(409);
    world
        .call(there(Method::POST, "/sessions").json(&again))
        .await
        .expect(409);

    // Each is one of its workspace alone.
    let order = format!("20260301T100000000000Z{run}");
    let sent = json!({"id": run, "trace_id": run, "dotted_order": order, "name": "r", "session_id": id});
    world.post("/runs", &sent).await.expect(202);
    world.get(&format!("/runs/{run}")).await.expect(200);
    world
        .call(there(Method::GET, &format!("/runs/{run}")))
        .await
        .expect(404);
    let asked = json!({"session": [id]});
    let found = world.call(there(Method::POST, "/runs/query").json(&asked)).await;
    assert_eq!(found.expect(200)["runs"], json!([]));
    // The other one may send the same run to its own.
    let same = json!({"id": run, "trace_id": run, "dotted_order": order, "name": "theirs", "session_id": id});
    world.call(there(Method::POST, "/runs").json(&same)).await.expect(202);
    let theirs = world.call(there(Method::GET, &format!("/runs/{run}"))).await;
    assert_eq!(theirs.expect(200)["name"], "theirs");
    assert_eq!(world.get(&format!("/runs/{run}")).await.expect(200)["name"], "r");
    let path = format!("/sessions/{id}");
    let renamed = there(Method::PATCH, &path).json(&json!({"name": "river"}));
    assert_eq!(world.call(renamed).await.expect(200)["name"], "river");
    assert_eq!(world.get(&path).await.expect(200), own);

    // The dashboard shows the one whose workspace is named.
    let cookie = cookie(&sign_in(&world, KEY).await);
    let page = async |path: String| {
        world
            .call(Call::new(Method::GET, &path).header("cookie", &cookie))
            .await
    };
    let project = format!("/ui/traces/{id}");
    assert_eq!(page(project.clone()).await.status, 400);
    for (workspace, name, others) in [(world.tenant, "canal", "river"), (other, "river", "canal")] {
        let shown = page(format!("{project}?workspace={workspace}")).await;
        assert_eq!(shown.status, 200);
        assert!(shown.text.contains(&format!("<h1>{name}</h1>")) && !shown.text.contains(others));
        let listed = page(format!("/ui/traces?name={name}")).await;
        assert!(listed.text.contains(&format!("{project}?workspace={workspace}")));
        let one = page(format!("{project}/{run}?workspace={workspace}")).await;
        assert_eq!(one.status, 200);
        assert_eq!(one.text.contains("theirs"), workspace == other);
    }

    // Its id stays taken where it was deleted, and nowhere else.
    assert_eq!(world.call(there(Method::DELETE, &path)).await.status, 204);
    world
        .call(there(Method::POST, "/sessions").json(&again))
        .await
        .expect(409);
    world
        .call(there(Method::GET, &format!("/runs/{run}")))
        .await
        .expect(404);
    assert_eq!(world.get(&path).await.expect(200), own);
    world.get(&format!("/runs/{run}")).await.expect(200);
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
