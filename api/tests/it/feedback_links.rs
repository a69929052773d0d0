//! Links by which somebody without a key gives feedback.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use towpath_store::query::Query;
use uuid::Uuid;

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(
    a_link_takes_feedback_on_its_run_without_a_key,
    links_are_made_together_listed_and_kept_as_no_reader_of_the_database_can_use_them,
    a_link_of_one_feedback_replaces_what_it_gave,
    a_link_ends,
);

const RUN: &str = "0194fdc2-0000-7000-8000-000000000001";

/// The path of a link, as a browser calls it.
fn path(link: &Value) -> String {
    let url = link["url"].as_str().unwrap();
    let path = url.strip_prefix("http://127.0.0.1:8400").unwrap();
    assert_eq!(
        path,
        format!("/api/v1/feedback/tokens/{}", link["id"].as_str().unwrap())
    );
    path.to_owned()
}

/// Without a key.
async fn send(world: &World, path: &str, body: &Value) -> Answer {
    world.call(Call::new(Method::POST, path).json(body)).await
}

/// What was given, the oldest first.
async fn given(world: &World) -> Vec<Value> {
    let given = world.get(&format!("/feedback?run={RUN}")).await.expect(200);
    given.as_array().unwrap().iter().rev().cloned().collect()
}

async fn a_link_takes_feedback_on_its_run_without_a_key(world: World) {
    let new = json!({"run_id": RUN, "feedback_key": "user_score", "expires_in": {"days": 0, "hours": 3, "minutes": 0}});
    let link = world.post("/feedback/tokens", &new).await.expect(200);
    assert_eq!(link["feedback_key"], "user_score");
    assert!(link["expires_at"].as_str().unwrap().starts_with("2026-03-01T15:00:00"));
    let path = path(&link);

    world
        .open(
            Method::GET,
            &format!("{path}?score=1&value=0&comment=so%20so&correction=%7B%22a%22%3A1%7D&utm=x"),
        )
        .await
        .expect(200);
    let body = json!({"score": false, "value": {"a": 1}, "correction": "b", "metadata": {"page": "chat"}, "more": 1});
    send(&world, &path, &body).await.expect(200);
    // As the clients send it.
    let bare = Call::new(Method::POST, &path).body(r#"{"score": 0.5, "value": null}"#);
    world.call(bare).await.expect(200);

    let given = given(&world).await;
    let scores: Vec<&Value> = given.iter().map(|one| &one["score"]).collect();
    assert_eq!(scores, [&json!(1), &json!(false), &json!(0.5)]);
    assert!(
        given
            .iter()
            .all(|one| one["key"] == "user_score" && one["feedback_source"]["type"] == "api")
    );
    assert_eq!(
        (&given[0]["value"], &given[0]["comment"]),
        (&json!("0"), &json!("so so"))
    );
    assert_eq!(given[0]["correction"], json!({"a": 1}));
    assert_eq!(given[1]["feedback_source"]["metadata"], json!({"page": "chat"}));
    assert_eq!(
        (&given[1]["value"], &given[1]["correction"]),
        (&json!({"a": 1}), &json!("b"))
    );

    let looked = world.open(Method::HEAD, &path).await;
    assert_eq!(looked.status, 200);
    assert_eq!(self::given(&world).await.len(), 3, "who only looks gives nothing");

    let cut = Call::new(Method::POST, &path).body(r#"{"comment": "cut \ud83d"}"#);
    world.call(cut).await.expect(200);
    assert_eq!(self::given(&world).await[3]["comment"], "cut \u{fffd}");
}

async fn links_are_made_together_listed_and_kept_as_no_reader_of_the_database_can_use_them(world: World) {
    let new = |key: &str| json!({"run_id": RUN, "feedback_key": key, "expires_in": null, "feedback_config": null});
    let made = world
        .post("/api/v1/feedback/tokens", &json!([new("liked"), new("disliked")]))
        .await
        .expect(200);
    let mut made = made.as_array().unwrap().clone();
    assert_eq!(
        (&made[0]["feedback_key"], &made[1]["feedback_key"]),
        (&json!("liked"), &json!("disliked"))
    );
    let single = world.post("/feedback/tokens", &new("liked")).await.expect(200);
    made.push(single);
    assert_eq!(world.post("/feedback/tokens", &json!([])).await.expect(200), json!([]));

    let listed = world.get(&format!("/feedback/tokens?run_id={RUN}")).await.expect(200);
    assert_eq!(listed, json!(made));
    let page = world
        .get(&format!("/feedback/tokens?run_id={RUN}&limit=1&offset=1"))
        .await
        .expect(200);
    assert_eq!(page, json!([made[1]]));
    let other = world
        .get(&format!("/feedback/tokens?run_id={}", Uuid::nil()))
        .await
        .expect(200);
    assert_eq!(other, json!([]));
    world.get("/feedback/tokens").await.expect(422);
    let second = world.second_workspace().await;
    let foreign = Call::new(Method::GET, &format!("/feedback/tokens?run_id={RUN}")).in_workspace(second);
    assert_eq!(world.call(foreign).await.expect(200), json!([]));

    for link in &made {
        let token: Uuid = link["id"].as_str().unwrap().parse().unwrap();
        let rows: Vec<(Vec<u8>, Vec<u8>)> = world
            .store
            .read(async |tx| {
                Query::new(tx, "SELECT hash, token FROM feedback_token")
                    .fetch_all(tx)
                    .await
            })
            .await
            .unwrap();
        assert_eq!(rows.len(), 3);
        let plain = |bytes: &[u8]| bytes.windows(16).any(|part| part == token.as_bytes());
        assert!(!rows.iter().any(|(hash, sealed)| plain(hash) || plain(sealed)));
    }
}

async fn a_link_of_one_feedback_replaces_what_it_gave(world: World) {
    let id = Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0042);
    let new = json!({"run_id": RUN, "feedback_key": "liked", "id": id});
    let path = path(&world.post("/feedback/tokens", &new).await.expect(200));
    for score in [1, 0] {
        send(&world, &path, &json!({ "score": score })).await.expect(200);
    }
    assert_eq!(given(&world).await.len(), 1);
    assert_eq!(world.get(&format!("/feedback/{id}")).await.expect(200)["score"], 0);
}

async fn a_link_ends(world: World) {
    let new = json!({"run_id": RUN, "feedback_key": "liked", "expires_at": "2026-03-01T12:30:00Z"});
    let path = path(&world.post("/feedback/tokens", &new).await.expect(200));
    world.clock.advance(Duration::from_secs(30 * 60 - 1));
    world.open(Method::GET, &path).await.expect(200);
    world.clock.advance(Duration::from_secs(1));
    for ended in [
        world.open(Method::GET, &path).await,
        send(&world, &path, &json!({})).await,
    ] {
        assert!(ended.expect(410)["details"].as_str().unwrap().contains("has expired"));
    }
    let listed = world.get(&format!("/feedback/tokens?run_id={RUN}")).await.expect(200);
    assert_eq!(listed, json!([]));
    // It is remembered for a while, and then as one that never was.
    world.clock.advance(towpath_store::feedback_tokens::KEPT);
    let before = world.clock.now().minus(towpath_store::feedback_tokens::KEPT);
    let prune = async |before| {
        let gone = world
            .store
            .write(async |tx| towpath_store::feedback_tokens::prune(tx, before, 200).await);
        gone.await.unwrap()
    };
    assert_eq!(prune(before).await, 0);
    assert_eq!(prune(before.plus(Duration::from_secs(1))).await, 1);
    world.open(Method::GET, &path).await.expect(404);
    let unknown = format!("/feedback/tokens/{}", Uuid::from_u128(7));
    assert_eq!(
        send(&world, &unknown, &json!({})).await.expect(404)["details"],
        "feedback link not found"
    );
    assert_eq!(given(&world).await.len(), 1);
}

#[tokio::test]
async fn what_no_link_takes_is_refused_with_its_place() {
    let world = World::new().await;
    let new = json!({"run_id": RUN, "feedback_key": "stars",
        "feedback_config": {"type": "continuous", "min": 1, "max": 5, "categories": null}});
    let path = path(&world.post("/feedback/tokens", &new).await.expect(200));
    for (body, said) in [
        (json!({"score": "1"}), "body.score: expected a number"),
        (json!({"score": 6}), "body.score: expected a number from 1 to 5"),
        (json!({"score": true, "comment": 5}), "body.comment: expected a string"),
        (json!({"value": [1]}), "body.value: expected"),
        (json!({"correction": 5}), "body.correction: expected"),
        (json!({"metadata": "x"}), "body.metadata: expected"),
        (json!([]), "body: expected an object"),
    ] {
        let refused = send(&world, &path, &body).await.expect(422);
        assert!(
            refused["details"].as_str().unwrap().starts_with(said),
            "{body}: {refused}"
        );
    }
    for (query, said) in [
        ("score=abc", "query.score: expected a number, true or false"),
        ("score=0", "body.score: expected a number from 1 to 5"),
    ] {
        let refused = world.open(Method::GET, &format!("{path}?{query}")).await.expect(422);
        assert!(
            refused["details"].as_str().unwrap().starts_with(said),
            "{query}: {refused}"
        );
    }
    let long = json!({"comment": "x".repeat(64 * 1024)});
    send(&world, &path, &long).await.expect(413);
    let form = Call::new(Method::POST, &path)
        .header("content-type", "text/plain")
        .body("{}");
    world.call(form).await.expect(415);
    assert!(given(&world).await.is_empty());
    send(&world, &path, &json!({"score": 5})).await.expect(200);
    assert_eq!(given(&world).await[0]["feedback_config"]["max"], 5.0);

    let with = |more: Value| {
        let mut new = json!({"run_id": RUN, "feedback_key": "k"});
        new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        new
    };
    for (more, status, said) in [
        (json!({"feedback_key": ""}), 422, "body.feedback_key"),
        (json!({"feedback_key": "a\0"}), 422, "body.feedback_key"),
        (json!({"run_id": "x"}), 422, "body.run_id: expected a UUID"),
        (json!({"expires_at": "2026-03-01T12:00:00Z"}), 422, "body.expires_at"),
        (json!({"expires_in": {"hours": -1}}), 422, "body.expires_in"),
        (json!({"expires_in": [1]}), 422, "body.expires_in"),
        (
            json!({"expires_in": {"hours": 1}, "expires_at": "2026-03-02T12:00:00Z"}),
            400,
            "expires_at",
        ),
        (
            json!({"feedback_config": {"type": "stars"}}),
            422,
            "body.feedback_config.type",
        ),
        (
            json!({"feedback_config": {"type": "categorical"}}),
            400,
            "feedback_config.categories",
        ),
    ] {
        let refused = world.post("/feedback/tokens", &with(more.clone())).await.expect(status);
        assert!(
            refused["details"].as_str().unwrap().starts_with(said),
            "{more}: {refused}"
        );
    }
    let second = json!([with(json!({})), with(json!({"expires_in": {}}))]);
    let refused = world.post("/feedback/tokens", &second).await.expect(422);
    assert!(
        refused["details"].as_str().unwrap().starts_with("body.1.expires_in"),
        "{refused}"
    );
    let many = json!(vec![with(json!({})); 101]);
    world.post("/feedback/tokens", &many).await.expect(400);
    let listed = world.get(&format!("/feedback/tokens?run_id={RUN}")).await.expect(200);
    assert_eq!(
        listed.as_array().unwrap().len(),
        1,
        "nothing was made of what was refused"
    );
}

#[tokio::test]
async fn pages_of_every_origin_may_give_feedback_and_nothing_else() {
    let world = World::new().await;
    let link = world
        .post("/feedback/tokens", &json!({"run_id": RUN, "feedback_key": "liked"}))
        .await
        .expect(200);
    let path = path(&link);
    let asked = |path: &str| {
        Call::new(Method::OPTIONS, path)
            .header("origin", "https://chat.example")
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type")
    };
    let allowed = world.call(asked(&path)).await;
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.headers["access-control-allow-origin"], "*");
    assert_eq!(allowed.headers["access-control-allow-headers"], "content-type");
    assert!(!allowed.headers.contains_key("access-control-allow-credentials"));
    let call = Call::new(Method::POST, &path).header("origin", "https://chat.example");
    let sent = world.call(call.json(&json!({"score": 1}))).await;
    sent.expect(200);
    assert_eq!(sent.headers["access-control-allow-origin"], "*");
    let other = world.call(asked("/feedback/tokens")).await;
    assert!(!other.headers.contains_key("access-control-allow-origin"));
    assert_eq!(given(&world).await.len(), 1);
}
