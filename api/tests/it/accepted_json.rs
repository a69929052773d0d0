//! What ingest accepts is found, shown and changed, whatever other readers of JSON think of it.

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use towpath_domain::json::Value as Json;
use towpath_domain::{Timestamp, TraceRunId};
use towpath_store::feedback::{self, Feedback};
use uuid::Uuid;

use crate::world::{Answer, Call, World, call, on_both_databases};

on_both_databases!(
    runs_are_found_and_shown_whatever_is_in_them,
    feedback_is_found_and_shown_whatever_is_in_it,
    changes_keep_what_they_do_not_name,
    feedback_that_cannot_be_read_is_not_overwritten,
    changes_at_once_are_all_kept,
    feedback_that_was_taken_back_stays_so,
    statuses_are_a_closed_set,
);

const RUN: &str = "0194fdc2-0000-7000-8000-00000000000a";
const ORDER: &str = "20260301T100000000000Z0194fdc2-0000-7000-8000-00000000000a";

fn id(number: u128) -> Uuid {
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number)
}

/// As deep as a member of an accepted object may be.
fn deep() -> String {
    format!("{}\"bottom\"{}", "[".repeat(120), "]".repeat(120))
}

async fn sent(world: &World, path: &str, body: String) -> Answer {
    let call = Call::new(Method::POST, path).in_workspace(world.tenant);
    world
        .call(call.header("content-type", "application/json").body(body))
        .await
}

async fn changed(world: &World, feedback: u128, body: &str) -> Answer {
    let path = format!("/feedback/{}", id(feedback));
    let call = Call::new(Method::PATCH, &path).in_workspace(world.tenant);
    let body = body.to_owned();
    world
        .call(call.header("content-type", "application/json").body(body))
        .await
}

/// How many runs pass a filter.
async fn passing(world: &World, filter: &str) -> usize {
    let asked = json!({"id": [RUN], "filter": filter, "select": ["id"]});
    let found = world.post("/runs/query", &asked);
    found.await.expect(200)["runs"].as_array().unwrap().len()
}

async fn runs_are_found_and_shown_whatever_is_in_them(world: World) {
    let body = format!(
        r#"{{"post":[{{"id":"{RUN}","trace_id":"{RUN}","dotted_order":"{ORDER}","name":"odd","session_name":"canal",
            "start_time":"2026-03-01T10:00:00Z","error":"broke at \ud83d","tags":["top","cut \ud83d"],
            "inputs":{{"\ud83d":1,"text":"cut \ud83d","out":1e999,"whole":9007199254740993,"k":"v","deep":{deep}}},
            "outputs":{{"\ude00":[1e999],"k":"v","usage_metadata":{{"input_tokens":3,"output_tokens":4,"\ud83d":0}}}},
            "events":[{{"name":"new_token","\ud83d":1e999,"time":"2026-03-01T10:00:01Z"}}],
            "extra":{{"runtime":{{"\ud83d":1e999}},
                "metadata":{{"thread_id":"cut \ud83d","out":-1e999,"whole":9007199254740993,"k":"v"}}}}}}]}}"#,
        deep = deep(),
    );
    assert_eq!(sent(&world, "/runs/batch", body).await.status, 202);
    for filter in [
        r#"and(eq(input_key, "k"), eq(input_value, "v"))"#,
        r#"and(eq(output_key, "k"), eq(output_value, "v"))"#,
        r#"and(eq(metadata_key, "k"), eq(metadata_value, "v"))"#,
        r#"and(eq(metadata_key, "whole"), eq(metadata_value, 9007199254740993))"#,
        r#"and(eq(metadata_key, "out"), lt(metadata_value, -1e308))"#,
        r#"and(eq(input_key, "out"), gt(input_value, 1e308))"#,
        r#"eq(input_value, "bottom")"#,
        r#"has(metadata, '{"k": "v", "whole": 9007199254740993}')"#,
        r#"has(inputs, '{"k": "v"}')"#,
        r#"search(inputs, "CUT")"#,
        r#"search(metadata, "cut")"#,
        r#"has(tags, "top")"#,
        r#"eq(thread_id, "cut \ufffd")"#,
        r#"eq(total_tokens, 7)"#,
        r#"eq(first_token_time, "2026-03-01T10:00:01Z")"#,
    ] {
        assert_eq!(passing(&world, filter).await, 1, "{filter}");
        assert_eq!(passing(&world, &format!("not({filter})")).await, 0, "not {filter}");
    }
    let neighbour = r#"and(eq(metadata_key, "whole"), eq(metadata_value, 9007199254740992))"#;
    assert_eq!(passing(&world, neighbour).await, 0);

    let shown = world.get(&format!("/runs/{RUN}")).await;
    assert_eq!(shown.status, 200);
    let run = Json::parse(&shown.text).unwrap();
    let at = |names: &[&str]| names.iter().fold(&run, |value, name| value.get(name).unwrap()).clone();
    for text in [
        r#""text":"cut \ud83d""#,
        r#""out":1e999"#,
        r#""whole":9007199254740993"#,
        r#""out":-1e999"#,
    ] {
        assert!(shown.text.contains(text), "{text}");
    }
    assert_eq!(at(&["thread_id"]).as_str(), Some("cut \u{fffd}"));
    assert_eq!(at(&["metadata"]), at(&["extra", "metadata"]));
    assert_eq!(at(&["error"]).as_str(), Some("broke at \u{fffd}"));
    let tokens = at(&["total_tokens"]).to_string();
    assert_eq!(tokens, "7");
    let page = world
        .post("/runs/query", &json!({"id": [RUN], "select": ["inputs", "metadata"]}))
        .await;
    assert!(page.text.contains(r#""text":"cut \ud83d""#) && Json::parse(&page.text).is_ok());
    let stats = world.post("/runs/stats", &json!({"id": [RUN]})).await.expect(200);
    assert_eq!((&stats["run_count"], &stats["total_tokens"]), (&json!(1), &json!(7)));
}

/// Feedback `number`, with a member before and one behind what is told.
async fn give(world: &World, number: u128, odd: &str) {
    let body = format!(
        r#"{{"id":"{}","run_id":"{RUN}","key":"good","score":1,{odd},"value":"yes","feedback_source":{{"type":"model"}}}}"#,
        id(number)
    );
    assert_eq!(sent(world, "/feedback", body).await.status, 202, "{odd}");
}

async fn runs(world: &World) {
    let body =
        format!(r#"{{"id":"{RUN}","name":"r","session_name":"canal","dotted_order":"{ORDER}","trace_id":"{RUN}"}}"#);
    assert_eq!(sent(world, "/runs", body).await.status, 202);
}

async fn feedback_is_found_and_shown_whatever_is_in_it(world: World) {
    runs(&world).await;
    let odd = [
        r#""comment":"cut \ud83d""#.to_owned(),
        r#""comment":"c","out":1e999,"\ud83d":12345678901234567890123"#.to_owned(),
        format!(r#""comment":"c","deep":{}"#, deep()),
        format!(r#""correction":{}"#, "[".repeat(126) + &"]".repeat(126)),
    ];
    for (number, odd) in odd.iter().enumerate() {
        give(&world, number as u128, odd).await;
    }
    assert_eq!(world.get("/feedback?source=model&limit=100").await.status, 200);
    let listed = world.get(&format!("/feedback?run={RUN}&source=model")).await;
    let listed = Json::parse(&listed.text).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), odd.len());
    for (number, odd) in odd.iter().enumerate() {
        let one = world.get(&format!("/feedback/{}", id(number as u128))).await;
        assert!(one.text.contains(odd), "{odd} in {}", one.text);
        let one = Json::parse(&one.text).unwrap();
        let text = |name: &str| one.get(name).unwrap().to_string();
        assert_eq!((text("score").as_str(), text("value").as_str()), ("1", "\"yes\""));
    }
    let run = world.get(&format!("/runs/{RUN}")).await.expect(200);
    let stats = &run["feedback_stats"]["good"];
    assert_eq!(
        (&stats["n"], &stats["avg"], &stats["values"], &stats["comments"]),
        (
            &json!(4),
            &json!(1.0),
            &json!({"yes": 4}),
            &json!(["cut \u{fffd}", "c", "c"])
        )
    );
    for filter in [
        r#"and(eq(feedback_key, "good"), gte(feedback_score, 1), eq(feedback_value, "yes"))"#,
        r#"eq(feedback_source, "model")"#,
    ] {
        assert_eq!(passing(&world, filter).await, 1, "{filter}");
    }
    // A value as deep as it may be hides nothing that stands beside it.
    let value = format!(
        r#"{{"id":"{}","run_id":"{RUN}","key":"deep","score":0.5,"value":{}1{}}}"#,
        id(9),
        "[".repeat(126),
        "]".repeat(126)
    );
    assert_eq!(sent(&world, "/feedback", value).await.status, 202);
    let pair = r#"and(eq(feedback_key, "deep"), eq(feedback_score, 0.5))"#;
    assert_eq!(passing(&world, pair).await, 1);
    assert_eq!(passing(&world, r#"eq(feedback_key, "good")"#).await, 1);
}

async fn changes_keep_what_they_do_not_name(world: World) {
    runs(&world).await;
    let odd = r#""comment":"cut \ud83d","out":1e999,"large":12345678901234567890123,"\ud83d":1,"\ude00":2"#;
    give(&world, 1, odd).await;
    let answer = changed(&world, 1, r#"{"comment":"whole", "id": 7, "score" : 0.10}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let kept = r#""out":1e999,"large":12345678901234567890123,"\ud83d":1,"\ude00":2,"value":"yes","feedback_source":{"type":"model"}"#;
    let shown = world.get(&format!("/feedback/{}", id(1))).await;
    for text in [&answer.text, &shown.text] {
        assert!(text.contains(kept) && text.contains(r#""score":0.10"#), "{text}");
        let one = Json::parse(text).unwrap();
        assert_eq!(one.get("comment").and_then(Json::as_str), Some("whole"));
        assert_eq!(one.get("id").and_then(Json::as_str), Some(id(1).to_string().as_str()));
    }
    // A change is as free as what it changes.
    assert_eq!(
        changed(&world, 1, r#"{"comment":"cut \ud83d","score":1e999}"#)
            .await
            .status,
        200
    );
    let shown = world.get(&format!("/feedback/{}", id(1))).await;
    assert!(shown.text.contains(kept) && shown.text.contains(r#""comment":"cut \ud83d","score":1e999"#));
    assert_eq!(world.get("/feedback?source=model").await.status, 200);
    for (body, status) in [("{\"a\":", 422), ("[]", 422), ("\"text\"", 422), ("{\"a\":1}x", 422)] {
        assert_eq!(changed(&world, 1, body).await.status, status, "{body}");
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(127), "]".repeat(127));
    assert_eq!(changed(&world, 1, &deep).await.status, 422);
}

fn row(world: &World, number: u128, body: &str) -> Feedback {
    Feedback {
        tenant_id: world.tenant,
        id: id(number),
        run_id: Some(TraceRunId(RUN.parse().unwrap())),
        key: "good".to_owned(),
        body: body.to_owned(),
        seq: 1,
        created_at: Timestamp::from_micros(0),
        modified_at: None,
        deleted: false,
    }
}

async fn stored(world: &World, number: u128) -> Option<Feedback> {
    let tenant = world.tenant;
    let read = world
        .store
        .read(async |tx| feedback::find(tx, tenant, id(number)).await);
    read.await.unwrap()
}

async fn put(world: &World, row: &Feedback) {
    world
        .store
        .write(async |tx| feedback::put(tx, row).await)
        .await
        .unwrap();
}

async fn feedback_that_cannot_be_read_is_not_overwritten(world: World) {
    put(&world, &row(&world, 1, r#"{"score":1,"comm"#)).await;
    let refused = changed(&world, 1, r#"{"comment":"ok"}"#).await.expect(500);
    let told = refused["details"].as_str().unwrap();
    assert!(
        told.contains("unreadable") && told.contains("was not changed"),
        "{told}"
    );
    assert_eq!(stored(&world, 1).await.unwrap().body, r#"{"score":1,"comm"#);
    let path = format!("/feedback/{}", id(1));
    let gone = Call::new(Method::DELETE, &path).in_workspace(world.tenant);
    world.call(gone.clone()).await.expect(200);
    world.call(gone).await.expect(404);
}

async fn changes_at_once_are_all_kept(world: World) {
    runs(&world).await;
    // One lies in an open unit, one in its table.
    give(&world, 1, r#""comment":"c""#).await;
    put(&world, &row(&world, 2, r#"{"score":1,"value":"yes"}"#)).await;
    let other = world.beside();
    for number in [1, 2] {
        let path = format!("/feedback/{}", id(number));
        let change = |member: usize| {
            let body = json!({ format!("m{member}"): member });
            let change = Call::new(Method::PATCH, &path).in_workspace(world.tenant).json(&body);
            call(
                if member.is_multiple_of(2) {
                    &world.router
                } else {
                    &other
                },
                change,
            )
        };
        for answer in join_all((0..12).map(change)).await {
            answer.expect(200);
        }
        let body = world.get(&path).await.expect(200);
        for member in 0..12 {
            assert_eq!(body[format!("m{member}")], member, "{number}: {body}");
        }
        assert_eq!((&body["score"], &body["value"]), (&json!(1), &json!("yes")));
    }
}

async fn feedback_that_was_taken_back_stays_so(world: World) {
    runs(&world).await;
    give(&world, 1, r#""comment":"c""#).await;
    put(&world, &row(&world, 2, r#"{"score":1}"#)).await;
    // What a change saw before the deletion and the change that came with it were made.
    let tenant = world.tenant;
    let reader = towpath_query::Reader::new(
        world.store.clone(),
        towpath_traces::objects::Objects::folder(&world.folder.path().join("objects")).unwrap(),
    );
    let snapshot = reader.snapshot(tenant).await.unwrap();
    for number in [1, 2] {
        let open = snapshot.unstored_feedback_by_id(id(number));
        assert_eq!(open.is_some(), number == 1);
        let change = |text: &'static str| {
            world.store.write(async move |tx| {
                let change = towpath_domain::json::Object::parse(text).unwrap();
                feedback::update_body(tx, tenant, id(number), open, &change).await
            })
        };
        let first = change(r#"{"comment":"first"}"#).await.unwrap();
        assert!(first.modified_at.is_some());
        let second = change(r#"{"correction":"second"}"#).await.unwrap();
        assert!(second.body.contains("first") && second.body.contains("second"));
        world
            .store
            .write(async |tx| feedback::delete(tx, tenant, id(number), open).await)
            .await
            .unwrap();
        let late = change(r#"{"comment":"late"}"#).await.unwrap_err();
        assert!(matches!(late, towpath_store::Error::NotFound), "{late:?}");
        let again = world
            .store
            .write(async |tx| feedback::delete(tx, tenant, id(number), open).await);
        assert!(matches!(again.await.unwrap_err(), towpath_store::Error::NotFound));
        assert!(stored(&world, number).await.unwrap().deleted);
        assert_eq!(changed(&world, number, r#"{"comment":"late"}"#).await.status, 404);
        world.get(&format!("/feedback/{}", id(number))).await.expect(404);
    }
    // Another one under its id is new feedback.
    give(&world, 1, r#""comment":"again""#).await;
    let path = format!("/feedback/{}", id(1));
    assert_eq!(world.get(&path).await.expect(200)["comment"], "again");
    assert_eq!(changed(&world, 1, r#"{"score":0}"#).await.status, 200);
    assert_eq!(world.get(&path).await.expect(200)["comment"], "again");
}

async fn statuses_are_a_closed_set(world: World) {
    let sent = [
        ("success", "success"),
        ("Completed", "success"),
        ("ERROR", "error"),
        ("failed", "error"),
        ("running", "pending"),
        ("interrupted", "pending"),
        ("cut \u{fffd}", "pending"),
    ];
    let runs: Vec<Value> = sent
        .iter()
        .enumerate()
        .map(|(number, (status, _))| {
            let own = id(100 + number as u128);
            json!({"id": own, "trace_id": own, "dotted_order": format!("20260301T100000000000Z{own}"), "name": "r",
                "session_name": "canal", "status": status})
        })
        .collect();
    world.post("/runs/batch", &json!({ "post": runs })).await.expect(202);
    for (number, (status, shown)) in sent.iter().enumerate() {
        let path = format!("/runs/{}", id(100 + number as u128));
        assert_eq!(world.get(&path).await.expect(200)["status"], *shown, "{status}");
    }
    // A status that means nothing changes none.
    let path = format!("/runs/{}", id(100));
    for (change, shown) in [
        (json!({"status": "interrupted"}), "success"),
        (json!({"status": "Failed"}), "error"),
        (json!({"end_time": "2026-03-01T10:00:05Z"}), "success"),
        (json!({"error": "it broke", "status": "success"}), "error"),
    ] {
        let call = Call::new(Method::PATCH, &path).in_workspace(world.tenant);
        world.call(call.json(&change)).await.expect(202);
        assert_eq!(world.get(&path).await.expect(200)["status"], shown, "{change}");
    }
}
