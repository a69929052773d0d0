//! Prompts, their commits, tags and likes, and the pages that show them.

use http::Method;
use serde_json::{Value, json};
use towpath_store::prompts;

use crate::dashboard::{cookie, sign_in};
use crate::world::{Answer, Call, KEY, World, on_both_databases};

on_both_databases!(
    each_push_is_a_commit,
    a_commit_has_several_names,
    lists_show_what_is_asked_for,
    a_key_likes_a_prompt_once,
    another_workspace_sees_nothing_of_a_prompt,
    a_deleted_prompt_leaves_nothing,
    pages_show_prompts_and_their_commits,
);

async fn send(world: &World, method: Method, path: &str, body: &Value) -> Answer {
    world
        .call(Call::new(method, path).in_workspace(world.tenant).json(body))
        .await
}

async fn delete(world: &World, path: &str) -> Answer {
    world
        .call(Call::new(Method::DELETE, path).in_workspace(world.tenant))
        .await
}

async fn prompt(world: &World, name: &str) -> Value {
    let new = json!({"repo_handle": name, "description": "", "readme": "", "tags": [], "is_public": false});
    world.post("/repos/", &new).await.expect(200)["repo"].clone()
}

/// Commits a manifest of this text.
async fn commit(world: &World, name: &str, text: &str) -> Value {
    let new = json!({"manifest": {"lc": 1, "id": ["x"], "kwargs": {"text": text}}});
    world.post(&format!("/commits/-/{name}"), &new).await.expect(200)["commit"].clone()
}

async fn text_of(world: &World, name: &str, commit: &str) -> Value {
    let read = world.get(&format!("/commits/-/{name}/{commit}")).await.expect(200);
    read["manifest"]["kwargs"]["text"].clone()
}

async fn each_push_is_a_commit(world: World) {
    let made = prompt(&world, "greeting").await;
    assert_eq!(made["full_name"], "-/greeting");
    assert_eq!(
        (&made["num_commits"], &made["last_commit_hash"]),
        (&json!(0), &Value::Null)
    );
    let taken = json!({"repo_handle": "greeting", "is_public": false});
    world.post("/repos", &taken).await.expect(409);
    world.get("/commits/-/greeting/latest").await.expect(404);

    let first = commit(&world, "greeting", "hello").await;
    let hash = first["commit_hash"].as_str().unwrap();
    assert_eq!(hash.len(), 64);
    assert_eq!(first["parent_commit_hash"], Value::Null);
    // The same JSON in another order and with other spaces.
    let same = r#"{"parent_commit": null, "manifest": { "kwargs": {"text":"hello"}, "id": ["x"], "lc": 1 }}"#;
    let call = Call::new(Method::POST, "/commits/-/greeting").in_workspace(world.tenant);
    let unchanged = world
        .call(call.header("content-type", "application/json").body(same))
        .await;
    let refused = unchanged.expect(409);
    assert!(
        refused["detail"].as_str().unwrap().starts_with("Nothing to commit"),
        "{refused}"
    );

    let second = json!({"manifest": {"kwargs": {"text": "hi"}}, "parent_commit": hash, "description": "shorter"});
    let second = world.post("/commits/-/greeting", &second).await.expect(200)["commit"].clone();
    assert_eq!(second["parent_id"], first["id"]);
    assert_eq!(
        (&second["parent_commit_hash"], &second["description"]),
        (&json!(hash), &json!("shorter"))
    );
    // An earlier content may come again, after another commit.
    let third = commit(&world, "greeting", "hello").await;
    assert_ne!(third["commit_hash"], first["commit_hash"]);
    assert_eq!(third["manifest_sha"], first["manifest_sha"]);

    let listed = world.get("/commits/-/greeting/?limit=2").await.expect(200);
    assert_eq!(listed["total"], 3);
    assert_eq!(listed["commits"], json!([third, second]));
    let rest = world
        .get("/api/v1/commits/-/greeting?limit=2&offset=2")
        .await
        .expect(200);
    assert_eq!(rest["commits"], json!([first]));
    let read = world.get("/repos/-/greeting").await.expect(200)["repo"].clone();
    assert_eq!(
        (&read["num_commits"], &read["last_commit_hash"]),
        (&json!(3), &third["commit_hash"])
    );

    let unknown = json!({"manifest": {}, "parent_commit": "0".repeat(64)});
    let refused = world.post("/commits/-/greeting", &unknown).await.expect(400);
    assert!(
        refused["detail"].as_str().unwrap().contains("parent_commit"),
        "{refused}"
    );
    for wrong in [
        json!({}),
        json!({"manifest": null}),
        json!({"manifest": [1]}),
        json!({"manifest": {}, "description": "x".repeat(1001)}),
        json!({"manifest": {"text": "x".repeat(1024 * 1024)}}),
    ] {
        let refused = send(&world, Method::POST, "/commits/-/greeting", &wrong).await;
        assert_eq!(refused.status, 422, "{:.300}", refused.text);
    }
    world
        .post("/commits/-/nothing", &json!({"manifest": {}}))
        .await
        .expect(404);
    world
        .post("/commits/others/greeting", &json!({"manifest": {}}))
        .await
        .expect(404);
}

async fn a_commit_has_several_names(world: World) {
    prompt(&world, "greeting").await;
    let first = commit(&world, "greeting", "hello").await;
    let second = commit(&world, "greeting", "hi").await;
    let hash = first["commit_hash"].as_str().unwrap();
    for name in [hash, &hash[..8]] {
        assert_eq!(text_of(&world, "greeting", name).await, "hello", "{name}");
    }
    assert_eq!(text_of(&world, "greeting", "latest").await, "hi");
    // Too short for a hash.
    world
        .get(&format!("/commits/-/greeting/{}", &hash[..7]))
        .await
        .expect(404);

    let tag = |name: &str, commit: &Value| json!({"tag_name": name, "commit_id": commit["id"]});
    let made = world
        .post("/repos/-/greeting/tags", &tag("production", &first))
        .await
        .expect(200);
    assert_eq!(made["commit_hash"], first["commit_hash"]);
    assert_eq!(text_of(&world, "greeting", "production").await, "hello");
    // A tag moves.
    let moved = world
        .post("/repos/-/greeting/tags", &tag("production", &second))
        .await
        .expect(200);
    assert_eq!(
        (&moved["id"], &moved["commit_hash"]),
        (&made["id"], &second["commit_hash"])
    );
    assert_eq!(text_of(&world, "greeting", "production").await, "hi");
    let back = json!({"commit_id": first["id"]});
    send(&world, Method::PATCH, "/repos/-/greeting/tags/production", &back)
        .await
        .expect(200);
    send(&world, Method::PATCH, "/repos/-/greeting/tags/staging", &back)
        .await
        .expect(404);
    let read = world.get("/repos/-/greeting/tags/production").await.expect(200);
    assert_eq!(read["commit_id"], first["id"]);
    world
        .post("/repos/-/greeting/tags", &tag("a", &second))
        .await
        .expect(200);
    let tags = world.get("/repos/-/greeting/tags").await.expect(200);
    let names: Vec<&Value> = tags.as_array().unwrap().iter().map(|tag| &tag["tag_name"]).collect();
    assert_eq!(names, ["a", "production"]);
    let tagged = world.get("/commits/-/greeting?tag=production").await.expect(200);
    assert_eq!(tagged, json!({"commits": [first], "total": 1}));

    world
        .post("/repos/-/greeting/tags", &tag("latest", &first))
        .await
        .expect(422);
    world
        .post("/repos/-/greeting/tags", &tag("a/b", &first))
        .await
        .expect(422);
    prompt(&world, "farewell").await;
    let foreign = commit(&world, "farewell", "bye").await;
    world
        .post("/repos/-/greeting/tags", &tag("b", &foreign))
        .await
        .expect(400);
    assert_eq!(delete(&world, "/repos/-/greeting/tags/production").await.status, 204);
    delete(&world, "/repos/-/greeting/tags/production").await.expect(404);
    world.get("/commits/-/greeting/production").await.expect(404);
    assert_eq!(text_of(&world, "greeting", hash).await, "hello");

    // A model is read only by those who ask for it.
    let chain = json!({"manifest": {
        "lc": 1, "type": "constructor", "id": ["langchain", "schema", "runnable", "RunnableSequence"],
        "kwargs": {"first": {"id": ["ChatPromptTemplate"]}, "last": {"id": ["ChatOpenAI"]}},
    }});
    world.post("/commits/-/greeting", &chain).await.expect(200);
    let bare = world.get("/commits/-/greeting/latest").await.expect(200);
    assert_eq!(bare["manifest"], json!({"id": ["ChatPromptTemplate"]}));
    for query in ["include_model=true", "include=is_draft,model"] {
        let whole = world
            .get(&format!("/commits/-/greeting/latest?{query}"))
            .await
            .expect(200);
        assert_eq!(whole["manifest"], chain["manifest"], "{query}");
    }
}

async fn lists_show_what_is_asked_for(world: World) {
    for (name, tags) in [
        ("canal-lock", json!(["water", "gate"])),
        ("boat", json!(["water"])),
        ("bridge", json!([])),
    ] {
        let new = json!({"repo_handle": name, "description": format!("Of {name}"), "tags": tags});
        world.post("/repos", &new).await.expect(200);
    }
    commit(&world, "boat", "hello").await;
    let change = json!({"readme": "# Bridge", "is_archived": true});
    let changed = send(&world, Method::PATCH, "/repos/-/bridge", &change)
        .await
        .expect(200);
    assert_eq!(
        (&changed["repo"]["readme"], &changed["repo"]["description"]),
        (&json!("# Bridge"), &json!("Of bridge"))
    );
    world
        .post("/likes/-/canal-lock", &json!({"like": true}))
        .await
        .expect(200);
    for (query, found) in [
        ("is_archived=false", vec!["boat", "canal-lock"]),
        ("is_archived=true", vec!["bridge"]),
        ("is_archived=allow", vec!["boat", "bridge", "canal-lock"]),
        ("query=LOCK&match_prefix=true", vec!["canal-lock"]),
        ("query=of+b", vec!["boat"]),
        ("tags=water&tags=gate", vec!["canal-lock"]),
        ("has_commits=true", vec!["boat"]),
        ("has_commits=False", vec!["canal-lock"]),
        ("is_public=true", vec![]),
        ("is_public=false&repo_type=prompt", vec!["boat", "canal-lock"]),
        ("repo_type=agent", vec![]),
        ("query=%00", vec![]),
    ] {
        let listed = world.get(&format!("/repos/?{query}")).await.expect(200);
        let mut names: Vec<&str> = listed["repos"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["repo_handle"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, found, "{query}");
        assert_eq!(listed["total"], found.len(), "{query}");
    }
    let liked = world.get("/repos?sort_field=num_likes&limit=1").await.expect(200);
    assert_eq!(liked["repos"][0]["repo_handle"], "canal-lock");
    assert_eq!(
        (&liked["repos"][0]["liked_by_auth_user"], &liked["total"]),
        (&json!(true), &json!(2))
    );
    let least = world
        .get("/repos?sort_field=num_likes&sort_direction=asc")
        .await
        .expect(200);
    assert_eq!(least["repos"][0]["repo_handle"], "boat");
    for (query, status) in [
        ("sort_field=size", 422_u16),
        ("limit=0", 422),
        ("nothing=1", 422),
        ("is_archived=maybe", 422),
        ("with_latest_manifest=true", 400),
        ("source=external", 400),
    ] {
        let refused = world.get(&format!("/repos?{query}")).await;
        assert_eq!(refused.status, status, "{query}: {}", refused.text);
    }
    for (wrong, status) in [
        (json!({"repo_handle": "a b"}), 422_u16),
        (json!({"repo_handle": ""}), 422),
        (json!({"repo_handle": "x", "tags": ["a\u{0}"]}), 422),
        (json!({"repo_handle": "x", "readme": "x".repeat(100_001)}), 422),
        (json!({"repo_handle": "x", "is_public": true}), 400),
        (json!({"repo_handle": "x", "repo_type": "agent"}), 400),
    ] {
        let refused = world.post("/repos", &wrong).await;
        assert_eq!(refused.status, status, "{:.200}: {}", wrong.to_string(), refused.text);
    }
    let public = send(&world, Method::PATCH, "/repos/-/boat", &json!({"is_public": true})).await;
    assert_eq!(public.status, 400, "{}", public.text);
}

async fn a_key_likes_a_prompt_once(world: World) {
    prompt(&world, "greeting").await;
    let other = world.key(Some(world.tenant)).await;
    let like = async |key: &str, like: bool| {
        let call = Call::new(Method::POST, "/likes/-/greeting")
            .header("x-api-key", key)
            .header("x-tenant-id", &world.tenant.to_string())
            .json(&json!({"like": like}));
        world.call(call).await.expect(200)["likes"].clone()
    };
    assert_eq!(like(KEY, true).await, 1);
    assert_eq!(like(KEY, true).await, 1);
    assert_eq!(like(other.reveal(), true).await, 2);
    assert_eq!(like(KEY, false).await, 1);
    assert_eq!(like(KEY, false).await, 1);
    let read = world.get("/repos/-/greeting").await.expect(200)["repo"].clone();
    assert_eq!(
        (&read["num_likes"], &read["liked_by_auth_user"]),
        (&json!(1), &json!(false))
    );
    world.post("/likes/-/nothing", &json!({"like": true})).await.expect(404);
}

async fn another_workspace_sees_nothing_of_a_prompt(world: World) {
    prompt(&world, "greeting").await;
    let made = commit(&world, "greeting", "hello").await;
    let tag = json!({"tag_name": "production", "commit_id": made["id"]});
    world.post("/repos/-/greeting/tags", &tag).await.expect(200);
    let other = world.second_workspace().await;
    let ask = |method: Method, path: &str| Call::new(method, path).in_workspace(other);
    let hash = made["commit_hash"].as_str().unwrap();
    for call in [
        ask(Method::GET, "/repos/-/greeting"),
        ask(Method::PATCH, "/repos/-/greeting").json(&json!({"readme": "x"})),
        ask(Method::DELETE, "/repos/-/greeting"),
        ask(Method::GET, "/repos/-/greeting/tags"),
        ask(Method::POST, "/repos/-/greeting/tags").json(&tag),
        ask(Method::GET, "/repos/-/greeting/tags/production"),
        ask(Method::DELETE, "/repos/-/greeting/tags/production"),
        ask(Method::GET, "/commits/-/greeting"),
        ask(Method::POST, "/commits/-/greeting").json(&json!({"manifest": {}})),
        ask(Method::GET, &format!("/commits/-/greeting/{hash}")),
        ask(Method::POST, "/likes/-/greeting").json(&json!({"like": true})),
    ] {
        world.call(call).await.expect(404);
    }
    let listed = world.call(ask(Method::GET, "/repos")).await.expect(200);
    assert_eq!(listed, json!({"repos": [], "total": 0}));
    // The same name is free there, and the commits of one are none of the other.
    let own = ask(Method::POST, "/repos").json(&json!({"repo_handle": "greeting"}));
    world.call(own).await.expect(200);
    world
        .call(ask(Method::GET, &format!("/commits/-/greeting/{hash}")))
        .await
        .expect(404);
    let foreign = ask(Method::POST, "/repos/-/greeting/tags").json(&tag);
    world.call(foreign).await.expect(400);
    assert_eq!(text_of(&world, "greeting", "latest").await, "hello");
}

async fn a_deleted_prompt_leaves_nothing(world: World) {
    prompt(&world, "greeting").await;
    // More bytes than go at once.
    let half = "x".repeat(900_000);
    for number in 0..20 {
        commit(&world, "greeting", &format!("{number} {half}")).await;
    }
    let newest = commit(&world, "greeting", "hello").await;
    let tag = json!({"tag_name": "production", "commit_id": newest["id"]});
    world.post("/repos/-/greeting/tags", &tag).await.expect(200);
    world
        .post("/likes/-/greeting", &json!({"like": true}))
        .await
        .expect(200);
    let tenant = world.tenant;
    let stored = async || {
        let read = world
            .store
            .read(async |tx| prompts::stored_bytes(tx, tenant).await)
            .await;
        read.unwrap()
    };
    assert!(stored().await > 18_000_000);
    let some = world
        .store
        .write(async |tx| prompts::commits::delete_batch(tx, tenant, "greeting").await);
    assert!(some.await.unwrap());
    let read = world.get("/repos/-/greeting").await.expect(200)["repo"].clone();
    let left = read["num_commits"].as_i64().unwrap();
    assert!((1..21).contains(&left), "{left}");
    assert_eq!(text_of(&world, "greeting", "latest").await, "hello");

    assert_eq!(delete(&world, "/repos/-/greeting").await.expect(200), json!({}));
    delete(&world, "/repos/-/greeting").await.expect(404);
    assert_eq!(stored().await, 0);
    // Nothing comes back with the name.
    let anew = prompt(&world, "greeting").await;
    assert_eq!((&anew["num_likes"], &anew["num_commits"]), (&json!(0), &json!(0)));
    assert_eq!(world.get("/repos/-/greeting/tags").await.expect(200), json!([]));
    world.get("/commits/-/greeting/latest").await.expect(404);
}

async fn pages_show_prompts_and_their_commits(world: World) {
    let session = cookie(&sign_in(&world, KEY).await);
    let page = async |path: &str| {
        world
            .call(Call::new(Method::GET, path).header("cookie", &session))
            .await
    };
    assert!(page("/ui/prompts").await.text.contains("No prompts yet"));
    prompt(&world, "greeting").await;
    let at = format!("/ui/prompts/{}/greeting", world.tenant);
    assert!(page(&at).await.text.contains("No commits"));
    let first = commit(&world, "greeting", "<b>hello</b>").await;
    commit(&world, "greeting", "hi").await;
    let tag = json!({"tag_name": "production", "commit_id": first["id"]});
    world.post("/repos/-/greeting/tags", &tag).await.expect(200);
    assert!(page("/ui/prompts?name=GREET").await.text.contains(&at));
    assert!(!page("/ui/prompts?name=other").await.text.contains(&at));
    let newest = page(&at).await;
    assert_eq!(newest.status, 200);
    assert!(
        newest.text.contains("production") && newest.text.contains("hi"),
        "{}",
        newest.text
    );
    let hash = first["commit_hash"].as_str().unwrap();
    // The address that clients print.
    let printed = format!("/prompts/greeting/{}?organizationId={}", &hash[..8], world.tenant);
    let leads = page(&printed).await;
    assert_eq!(leads.status, 303);
    let shown = page(leads.headers["location"].to_str().unwrap()).await;
    assert!(
        shown.text.contains(hash) && shown.text.contains("hello"),
        "{}",
        shown.text
    );
    assert!(!shown.text.contains("<b>hello"), "{}", shown.text);
    let unknown = page(&format!("{at}?commit=nothing")).await;
    assert_eq!(unknown.status, 404);
    let leads = page("/prompts/greeting").await;
    assert_eq!(leads.headers["location"], "/ui/prompts?name=greeting");
}

#[tokio::test]
async fn what_other_hubs_have_is_refused_by_name() {
    let world = World::new().await;
    prompt(&world, "keeper").await;
    for (method, path, text) in [
        (
            Method::GET,
            "/v1/platform/hub/repos/-/keeper/directories?repo_type=agent",
            "agents and skills",
        ),
        (
            Method::DELETE,
            "/api/v1/platform/hub/repos/-/keeper/directories",
            "agents and skills",
        ),
        (
            Method::POST,
            "/v1/platform/hub/repos/-/keeper/directories/commits",
            "agents and skills",
        ),
        (Method::GET, "/repos/someone/keeper", "use its name alone"),
        (Method::GET, "/commits/someone/keeper/latest", "use its name alone"),
    ] {
        let call = Call::new(method, path).in_workspace(world.tenant);
        let refused = world.call(call).await;
        assert_eq!(refused.status, 404, "{path}");
        assert!(refused.text.contains(text), "{path}: {}", refused.text);
    }
    let agent = json!({"repo_handle": "other", "repo_type": "agent"});
    let refused = world.post("/repos", &agent).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("type agent is not available"), "{}", refused.text);
    let listed = world.get("/repos?repo_type=agent").await.expect(200);
    assert_eq!(listed, json!({"repos": [], "total": 0}));
    world.get("/repos/-/keeper").await.expect(200);
}
