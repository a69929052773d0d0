//! Datasets, their examples and versions, and what experiments made of them.

use http::Method;
use serde_json::{Value, json};
use towpath_api::Settings;

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(
    earlier_versions_are_read_as_they_were,
    files_come_and_go_with_their_examples,
    filters_choose_examples,
    another_workspace_sees_nothing_of_a_dataset,
    a_deleted_dataset_leaves_nothing,
    a_change_of_nothing_makes_no_version,
    versions_without_a_difference_are_removed,
    results_show_runs_with_their_examples,
    a_file_becomes_a_dataset,
);

const BOUNDARY: &str = "a-boundary";

async fn dataset(world: &World, name: &str) -> String {
    let made = world
        .post("/datasets", &json!({"name": name, "data_type": "kv"}))
        .await
        .expect(200);
    made["id"].as_str().unwrap().to_owned()
}

async fn send(world: &World, method: Method, path: &str, body: &Value) -> Answer {
    world
        .call(Call::new(method, path).in_workspace(world.tenant).json(body))
        .await
}

async fn form(world: &World, method: Method, path: &str, parts: &[(&str, &str, &str)]) -> Answer {
    let mut body = String::new();
    for (name, kind, data) in parts {
        body += &format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: {kind}\r\n\r\n{data}\r\n"
        );
    }
    body += &format!("--{BOUNDARY}--\r\n");
    let call = Call::new(method, path)
        .in_workspace(world.tenant)
        .header("content-type", &format!("multipart/form-data; boundary={BOUNDARY}"))
        .body(body);
    world.call(call).await
}

/// An id whose last digits are the number.
fn id(number: u32) -> String {
    format!("0194fdc2-0000-7000-8000-{number:012}")
}

async fn inputs(world: &World, query: &str) -> Vec<Value> {
    let listed = world.get(&format!("/examples?{query}")).await.expect(200);
    let mut inputs: Vec<Value> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["inputs"].clone())
        .collect();
    inputs.sort_by_key(ToString::to_string);
    inputs
}

async fn earlier_versions_are_read_as_they_were(world: World) {
    let dataset = dataset(&world, "canal").await;
    let news: Vec<Value> = (1..=2)
        .map(|n| json!({"id": id(n), "dataset_id": dataset, "inputs": {"n": n}, "outputs": {"a": n}}))
        .collect();
    let made = world.post("/examples/bulk", &json!(news)).await.expect(200);
    assert_eq!(made[0]["id"], id(1));
    assert_eq!(made[0]["metadata"], json!({"dataset_split": ["base"]}));
    let first = made[0]["modified_at"].as_str().unwrap().to_owned();

    let changed = json!({"inputs": {"n": 10}, "split": "test"});
    send(&world, Method::PATCH, &format!("/examples/{}", id(1)), &changed)
        .await
        .expect(200);
    let gone = Call::new(Method::DELETE, &format!("/examples/{}", id(2))).in_workspace(world.tenant);
    world.call(gone).await.expect(200);

    assert_eq!(inputs(&world, &format!("dataset={dataset}")).await, [json!({"n": 10})]);
    let then = format!("dataset={dataset}&as_of={first}");
    assert_eq!(inputs(&world, &then).await, [json!({"n": 1}), json!({"n": 2})]);
    world.get(&format!("/examples/{}", id(2))).await.expect(404);
    world
        .get(&format!("/examples/{}?as_of={first}", id(2)))
        .await
        .expect(200);

    let tag = json!({"as_of": first, "tag": "prod"});
    assert_eq!(
        send(&world, Method::PUT, &format!("/datasets/{dataset}/tags"), &tag)
            .await
            .status,
        204
    );
    let tagged = format!("dataset={dataset}&as_of=prod");
    assert_eq!(inputs(&world, &tagged).await, [json!({"n": 1}), json!({"n": 2})]);
    let version = world
        .get(&format!("/datasets/{dataset}/version?tag=prod"))
        .await
        .expect(200);
    assert_eq!(version, json!({"tags": ["prod"], "as_of": first}));
    let wrong = json!({"as_of": "2020-01-01T00:00:00Z", "tag": "prod"});
    send(&world, Method::PUT, &format!("/datasets/{dataset}/tags"), &wrong)
        .await
        .expect(422);

    let versions = world.get(&format!("/datasets/{dataset}/versions")).await.expect(200);
    assert_eq!(versions.as_array().unwrap().len(), 4, "{versions}");
    assert_eq!(versions[0]["tags"], json!(["latest"]));
    let diff = format!("/datasets/{dataset}/versions/diff?from_version=prod&to_version=latest");
    let expected = json!({"examples_modified": [id(1)], "examples_added": [], "examples_removed": [id(2)]});
    assert_eq!(world.get(&diff).await.expect(200), expected);
    let back = format!("/datasets/{dataset}/versions/diff?from_version=latest&to_version=prod");
    assert_eq!(world.get(&back).await.expect(200)["examples_added"], json!([id(2)]));
    assert_eq!(
        world.get(&format!("/datasets/{dataset}")).await.expect(200)["example_count"],
        1
    );
    assert_eq!(
        world.get(&format!("/datasets/{dataset}/splits")).await.expect(200),
        json!(["test"])
    );

    // For good, so that no version has it.
    let erase = json!({"example_ids": [id(2)], "hard_delete": true});
    let erased = send(&world, Method::POST, "/v1/platform/datasets/examples/delete", &erase).await;
    assert_eq!(erased.status, 204);
    assert_eq!(inputs(&world, &then).await, [json!({"n": 1})]);
}

async fn files_come_and_go_with_their_examples(world: World) {
    let dataset = dataset(&world, "canal").await;
    let path = format!("/api/v1/platform/datasets/{dataset}/examples");
    let example = id(1);
    let part = |name: &str| format!("{example}{name}");
    let parts = [
        (
            part(""),
            "application/json",
            r#"{"split": ["test"], "metadata": {"a": 1}}"#,
        ),
        (part(".inputs"), "application/json", r#"{"q": "\ud83d cut"}"#),
        (part(".outputs"), "application/json", r#"{"a": 1e400}"#),
        (part(".attachment.a.txt"), "text/plain", "one"),
        (part(".attachment.b"), "text/plain", "two"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .map(|(name, kind, data)| (name.as_str(), *kind, *data))
        .collect();
    let made = form(&world, Method::POST, &path, &parts).await.expect(201);
    assert_eq!((&made["count"], &made["example_ids"]), (&json!(1), &json!([example])));
    form(&world, Method::POST, &path, &parts).await.expect(409);

    let other = id(2);
    let file = format!("{other}.attachment.a");
    let odd = [
        (other.as_str(), "application/json", "{}"),
        (file.as_str(), "text/\0", "one"),
    ];
    form(&world, Method::PATCH, &path, &odd).await.expect(404);
    let needed = format!("{other}.inputs");
    let odd = [odd[0], (needed.as_str(), "application/json", "{}"), odd[1]];
    form(&world, Method::POST, &path, &odd).await.expect(422);

    let shown = world.get(&format!("/examples/{example}")).await;
    assert!(shown.text.contains(r#""inputs":{"q": "\ud83d cut"}"#), "{}", shown.text);
    assert!(shown.text.contains(r#""outputs":{"a": 1e400}"#), "{}", shown.text);
    let operations = part(".attachments_operations");
    let changes = [
        (example.as_str(), "application/json", "{}"),
        (
            operations.as_str(),
            "application/json",
            r#"{"rename": {"b": "c"}, "retain": []}"#,
        ),
    ];
    form(&world, Method::PATCH, &path, &changes).await.expect(200);
    let listed = world
        .get(&format!(
            "/examples?dataset={dataset}&select=attachment_urls&exclude_default_fields=true"
        ))
        .await
        .expect(200);
    let links = listed[0]["attachment_urls"].as_object().unwrap();
    assert_eq!(links.keys().collect::<Vec<_>>(), ["attachment.c"]);
    let link = links["attachment.c"]["presigned_url"].as_str().unwrap();
    let file = world.open(Method::GET, link).await;
    assert_eq!((file.status.as_u16(), file.text.as_str()), (200, "two"));
    assert_eq!(file.headers["content-type"], "text/plain");

    let missing = [
        (example.as_str(), "application/json", "{}"),
        (operations.as_str(), "application/json", r#"{"retain": ["b"]}"#),
    ];
    let refused = form(&world, Method::PATCH, &path, &missing).await.expect(400);
    assert!(
        refused["detail"].as_str().unwrap().contains("attachments_operations"),
        "{refused}"
    );
    let erase = json!({"example_ids": [example], "hard_delete": true});
    let erased = send(
        &world,
        Method::POST,
        "/api/v1/platform/datasets/examples/delete",
        &erase,
    )
    .await;
    assert_eq!(erased.status, 204);
    assert_eq!(world.open(Method::GET, link).await.status, 404);
}

async fn filters_choose_examples(world: World) {
    let dataset = dataset(&world, "canal").await;
    let news = json!([
        {"dataset_id": dataset, "inputs": {"n": 1}, "metadata": {"lock": {"deep": true}}, "split": "train"},
        {"dataset_id": dataset, "inputs": {"n": 2}, "metadata": {"lock": 2}, "split": ["train", "test"]},
        {"dataset_id": dataset, "inputs": {"n": 3}},
    ]);
    world.post("/examples/bulk", &news).await.expect(200);
    let encoded = |name: &str, value: &str| {
        let pairs: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("dataset", &dataset)
            .append_pair(name, value)
            .finish();
        pairs
    };
    for (name, value, found) in [
        ("splits", "train", vec![1, 2]),
        ("splits", "base", vec![3]),
        ("metadata", r#"{"lock": {"deep": true}}"#, vec![1]),
        ("filter", r#"exists(metadata, "lock")"#, vec![1, 2]),
        ("filter", r#"not(has(metadata, '{"lock": 2}'))"#, vec![1, 3]),
    ] {
        let expected: Vec<Value> = found.into_iter().map(|n: u32| json!({"n": n})).collect();
        assert_eq!(inputs(&world, &encoded(name, value)).await, expected, "{name}={value}");
    }
    let nul = world
        .get(&format!("/examples?{}", encoded("metadata", r#"{"a": "\u0000"}"#)))
        .await;
    assert_eq!(nul.status, 422, "{}", nul.text);
    for (name, value) in [
        ("filter", "exists(inputs, 'a')"),
        ("full_text_contains", "a"),
        ("order", "random"),
    ] {
        let refused = world.get(&format!("/examples?{}", encoded(name, value))).await;
        assert_eq!(refused.status, 400, "{name}: {}", refused.text);
    }
}

async fn another_workspace_sees_nothing_of_a_dataset(world: World) {
    let dataset = dataset(&world, "canal").await;
    let new = json!({"id": id(1), "dataset_id": dataset, "inputs": {}});
    world.post("/examples", &new).await.expect(200);
    let other = world.second_workspace().await;
    let ask = |method: Method, path: String| Call::new(method, &path).in_workspace(other);
    for call in [
        ask(Method::GET, format!("/datasets/{dataset}")),
        ask(Method::DELETE, format!("/datasets/{dataset}")),
        ask(Method::GET, format!("/datasets/{dataset}/versions")),
        ask(Method::GET, format!("/datasets/{dataset}/splits")),
        ask(Method::GET, format!("/examples?dataset={dataset}")),
        ask(Method::GET, format!("/examples/{}", id(1))),
        ask(Method::DELETE, format!("/examples/{}", id(1))),
        ask(Method::PATCH, format!("/examples/{}", id(1))).json(&json!({"inputs": {}})),
        ask(Method::POST, "/examples".to_owned()).json(&new),
        ask(Method::POST, format!("/datasets/{dataset}/runs")).json(&json!({"session_ids": [id(2)]})),
    ] {
        world.call(call).await.expect(404);
    }
    assert_eq!(
        world.call(ask(Method::GET, "/datasets".to_owned())).await.expect(200),
        json!([])
    );
    // The same ids are free there.
    let own = ask(Method::POST, "/datasets".to_owned()).json(&json!({"id": dataset, "name": "canal"}));
    world.call(own).await.expect(200);
    world
        .call(ask(Method::POST, "/examples".to_owned()).json(&new))
        .await
        .expect(200);
}

async fn versions_without_a_difference_are_removed(world: World) {
    let dataset = dataset(&world, "canal").await;
    let path = format!("/datasets/{dataset}/versions");
    let new = |n: u32| json!({"id": id(n), "dataset_id": dataset, "inputs": {"n": n}});
    world.post("/examples", &new(1)).await.expect(200);
    let kept = world.get(&path).await.expect(200)[0]["as_of"].clone();
    for n in 2..6 {
        world.post("/examples", &new(n)).await.expect(200);
        if n == 2 {
            let latest = world.get(&path).await.expect(200)[0]["as_of"].clone();
            let tag = json!({"as_of": latest, "tag": "prod"});
            let tagged = send(&world, Method::PUT, &format!("/datasets/{dataset}/tags"), &tag).await;
            assert_eq!(tagged.status, 204);
        }
        let erase = json!({"example_ids": [id(n)], "hard_delete": true});
        let erased = send(&world, Method::POST, "/v1/platform/datasets/examples/delete", &erase).await;
        assert_eq!(erased.status, 204);
    }
    let versions = world.get(&path).await.expect(200);
    let shown: Vec<(&Value, &Value)> = versions
        .as_array()
        .unwrap()
        .iter()
        .map(|version| (&version["as_of"], &version["tags"]))
        .collect();
    assert_eq!(
        shown.len(),
        4,
        "the newest, a tagged one, one with an example, the first: {versions}"
    );
    assert_eq!(shown[0].1, &json!(["latest"]));
    assert_eq!(shown[1].1, &json!(["prod"]));
    assert_eq!(shown[2].0, &kept);
    let now = world.get(&format!("/examples?dataset={dataset}")).await.expect(200);
    assert_eq!(now.as_array().unwrap().len(), 1, "{now}");
}

async fn a_change_of_nothing_makes_no_version(world: World) {
    let dataset = dataset(&world, "canal").await;
    let new = json!({"id": id(1), "dataset_id": dataset, "inputs": {}});
    world.post("/examples", &new).await.expect(200);
    let split = json!({"split_name": "base", "examples": [id(1)]});
    let put = send(&world, Method::PUT, &format!("/datasets/{dataset}/splits"), &split).await;
    assert_eq!(put.status, 204);
    let path = format!("/v1/platform/datasets/{dataset}/examples");
    let same = json!({
        "example_ids": [id(1), id(2)],
        "operations": [{"key": "tags", "operation": "ARRAY_REMOVE", "values": ["a"]}],
    });
    let said = send(&world, Method::PATCH, &format!("{path}/metadata"), &same)
        .await
        .expect(207);
    let expected = json!([{"id": id(1), "status": "UPDATED"}, {"id": id(2), "status": "NOT_FOUND"}]);
    assert_eq!(said["statuses"], expected);
    assert_eq!(form(&world, Method::POST, &path, &[]).await.expect(201)["count"], 0);
    assert_eq!(form(&world, Method::PATCH, &path, &[]).await.expect(200)["count"], 0);
    let versions = world.get(&format!("/datasets/{dataset}/versions")).await.expect(200);
    assert_eq!(versions.as_array().unwrap().len(), 2, "{versions}");
    let shown = world.get(&format!("/examples/{}", id(1))).await.expect(200);
    assert_eq!(shown["metadata"], json!({"dataset_split": ["base"]}));
}

async fn a_deleted_dataset_leaves_nothing(world: World) {
    let dataset = dataset(&world, "canal").await;
    // More than go at once.
    let many: Vec<Value> = (0..600)
        .map(|n| json!({"dataset_id": dataset, "inputs": {"n": n}}))
        .collect();
    world.post("/examples/bulk", &json!(many)).await.expect(200);
    let tenant = world.tenant;
    let shrunk: towpath_domain::DatasetId = dataset.parse().unwrap();
    let some = world
        .store
        .write(async |tx| towpath_store::datasets::delete_batch(tx, tenant, shrunk).await);
    assert!(some.await.unwrap());
    assert_eq!(
        world.get(&format!("/datasets/{dataset}")).await.expect(200)["example_count"],
        100
    );
    world
        .post("/examples", &json!({"id": id(1), "dataset_id": dataset, "inputs": {}}))
        .await
        .expect(200);
    let experiment = json!({"name": "first", "id": id(9), "reference_dataset_id": dataset});
    world.post("/sessions", &experiment).await.expect(200);
    assert_eq!(
        world.get(&format!("/datasets/{dataset}")).await.expect(200)["session_count"],
        1
    );
    let taken = world.post("/datasets", &json!({"name": "canal"})).await;
    assert_eq!(taken.status, 409);
    let gone = Call::new(Method::DELETE, &format!("/datasets/{dataset}")).in_workspace(world.tenant);
    assert_eq!(world.call(gone).await.status, 204);
    world.get(&format!("/examples/{}", id(1))).await.expect(404);
    let bytes = world
        .store
        .read(async |tx| towpath_store::datasets::stored_bytes(tx, world.tenant).await)
        .await
        .unwrap();
    assert_eq!(bytes, 0);
    let kept = world.get(&format!("/sessions/{}", id(9))).await.expect(200);
    assert_eq!(kept["reference_dataset_id"], Value::Null);
}

async fn results_show_runs_with_their_examples(world: World) {
    let dataset = dataset(&world, "canal").await;
    for n in 1..=2 {
        let new = json!({"id": id(n), "dataset_id": dataset, "inputs": {"n": n}});
        world.post("/examples", &new).await.expect(200);
    }
    for (project, name) in [(id(8), "first"), (id(9), "second")] {
        let new = json!({"name": name, "id": project, "reference_dataset_id": dataset});
        world.post("/sessions", &new).await.expect(200);
    }
    let run = json!({
        "id": id(5), "trace_id": id(5), "dotted_order": format!("20260301T120000000000Z{}", id(5)), "session_id": id(8),
        "name": "target", "run_type": "chain", "inputs": {"n": 1}, "outputs": {"a": 1},
        "start_time": "2026-03-01T12:00:00Z", "end_time": "2026-03-01T12:00:01Z", "reference_example_id": id(1),
    });
    world.post("/runs", &run).await.expect(202);
    let child = json!({
        "id": id(10), "trace_id": id(5), "parent_run_id": id(5), "session_id": id(8), "name": "tool", "run_type": "tool",
        "dotted_order": format!("20260301T120000000000Z{}.20260301T120000100000Z{}", id(5), id(10)), "inputs": {},
        "start_time": "2026-03-01T12:00:00.1Z",
    });
    world.post("/runs", &child).await.expect(202);
    for judged in [
        json!({"id": id(6), "run_id": id(5), "key": "right", "score": 1}),
        json!({"id": id(7), "session_id": id(8), "key": "all right", "score": 0.5}),
    ] {
        world.post("/feedback", &judged).await.expect(202);
    }
    let asked = json!({"session_ids": [id(8), id(9)], "limit": 100, "offset": 0, "preview": false, "filters": null});
    let results = world
        .post(&format!("/datasets/{dataset}/runs"), &asked)
        .await
        .expect(200);
    assert_eq!(results.as_array().unwrap().len(), 2);
    let first = results
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["id"] == id(1))
        .unwrap();
    assert_eq!(first["runs"][0]["outputs"], json!({"a": 1}));
    assert_eq!(first["runs"][0]["feedback_stats"]["right"]["avg"], 1.0);
    // The newest example has no run that passes, and a page is filled with those that have one.
    for (filter, found) in [("eq(name, \"target\")", vec![id(1)]), ("eq(name, \"other\")", vec![])] {
        let mut filters = serde_json::Map::new();
        filters.insert(id(8), json!([filter]));
        let asked = json!({"session_ids": [id(8)], "limit": 1, "filters": filters});
        let results = world
            .post(&format!("/datasets/{dataset}/runs"), &asked)
            .await
            .expect(200);
        let ids: Vec<&Value> = results.as_array().unwrap().iter().map(|row| &row["id"]).collect();
        assert_eq!(json!(ids), json!(found), "{filter}");
    }
    let read = world
        .get(&format!("/sessions/{}?include_stats=true", id(8)))
        .await
        .expect(200);
    assert_eq!(read["feedback_stats"]["right"]["n"], 1, "{read}");
    assert_eq!(read["session_feedback_stats"]["all right"]["avg"], 0.5);
    assert_eq!(read["run_count"], 1, "the run of a tool is not a result");
    // An experiment has statistics if it is named, unless they are declined.
    for (query, count) in [
        ("name=first", Some(1)),
        ("name=first&include_stats=False", None),
        ("name_contains=first", None),
    ] {
        let found = world.get(&format!("/sessions?{query}")).await.expect(200);
        assert_eq!(found[0].get("run_count").cloned(), count.map(Value::from), "{query}");
    }

    let compared =
        json!({"id": id(4), "experiment_ids": [id(8), id(9)], "reference_dataset_id": dataset, "name": "both"});
    let made = world.post("/datasets/comparative", &compared).await.expect(200);
    assert_eq!(made["experiments_info"].as_array().unwrap().len(), 2);
    let foreign = json!({"experiment_ids": [id(3)], "reference_dataset_id": dataset});
    world.post("/datasets/comparative", &foreign).await.expect(400);
    let listed = world.get(&format!("/datasets/{dataset}/comparative")).await.expect(200);
    assert_eq!(listed, json!([made]));
}

async fn a_file_becomes_a_dataset(world: World) {
    let parts = [
        ("name", "text/plain", "from a file"),
        ("input_keys", "text/plain", "q"),
        ("output_keys", "text/plain", "a"),
        ("file", "text/csv", "q,a,other\r\nx,1,-\r\ny,2,-\r\n"),
    ];
    let made = form(&world, Method::POST, "/datasets/upload", &parts).await.expect(200);
    assert_eq!(
        (&made["name"], &made["example_count"]),
        (&json!("from a file"), &json!(2))
    );
    let listed = inputs(&world, &format!("dataset={}", made["id"].as_str().unwrap())).await;
    assert_eq!(listed, [json!({"q": "x"}), json!({"q": "y"})]);
    form(&world, Method::POST, "/datasets/upload", &parts).await.expect(409);
    let wrong = [("input_keys", "text/plain", "no"), ("file", "text/csv", "q\r\n1\r\n")];
    form(&world, Method::POST, "/datasets/upload", &wrong).await.expect(400);
}

/// One run must not be multiplied by the examples that are made of it.
#[tokio::test]
async fn examples_take_of_their_source_runs_what_a_request_may_bring() {
    let world = World::with(Settings {
        ingest_body_bytes: 4096,
        ..Settings::default()
    })
    .await;
    let dataset = dataset(&world, "canal").await;
    let inputs = json!({"text": "x".repeat(1000)});
    let run = json!({
        "id": id(5), "trace_id": id(5), "dotted_order": format!("20260301T120000000000Z{}", id(5)), "session_name": "canal",
        "name": "target", "run_type": "chain", "inputs": inputs, "start_time": "2026-03-01T12:00:00Z",
    });
    world.post("/runs", &run).await.expect(202);
    let made_of_it = |count: usize| {
        let new = json!({"dataset_id": dataset, "source_run_id": id(5), "use_source_run_io": true});
        Value::from(vec![new; count])
    };
    let made = world.post("/examples/bulk", &made_of_it(3)).await.expect(200);
    assert_eq!(made[2]["inputs"], inputs);
    let refused = world.post("/examples/bulk", &made_of_it(5)).await.expect(400);
    assert!(
        refused["detail"].as_str().unwrap().contains("source_run_id"),
        "{refused}"
    );
}

#[tokio::test]
async fn configs_of_feedback_keys_are_kept() {
    let world = World::new().await;
    let new = json!({"feedback_key": "topic", "feedback_config": {
        "type": "categorical", "allows_multiple_categories": true,
        "categories": [{"value": 0, "label": "locks"}, {"value": 1, "label": "boats"}],
    }});
    let made = world.post("/feedback-configs", &new).await.expect(200);
    assert_eq!(made["feedback_config"]["allows_multiple_categories"], true);
    assert_eq!(world.post("/feedback-configs", &new).await.expect(200), made);
    let other = json!({"feedback_key": "topic", "feedback_config": {"type": "continuous"}});
    world.post("/feedback-configs", &other).await.expect(400);
    let more = json!({"feedback_key": "topic", "add_categories": [{"value": 2, "label": "paths"}]});
    let changed = send(&world, Method::PATCH, "/feedback-configs", &more)
        .await
        .expect(200);
    assert_eq!(changed["feedback_config"]["categories"].as_array().unwrap().len(), 3);
    let few = json!({"feedback_key": "topic", "remove_categories": [0.0, 1.0]});
    send(&world, Method::PATCH, "/feedback-configs", &few).await.expect(422);
    let gone = Call::new(Method::DELETE, "/feedback-configs?feedback_key=topic").in_workspace(world.tenant);
    assert_eq!(world.call(gone).await.status, 204);
    assert_eq!(world.get("/feedback-configs").await.expect(200), json!([]));
}

#[tokio::test]
async fn rubric_items_of_a_queue_are_objects() {
    let world = World::new().await;
    for items in [json!({}), json!([1]), json!([[null, null]])] {
        let queue = json!({"name": "to look at", "rubric_items": items});
        let refused = world.post("/annotation-queues", &queue).await.expect(422);
        assert_eq!(refused["detail"][0]["msg"], "expected a list of objects", "{refused}");
    }
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let queue = json!({"name": "to look at", "rubric_items": [{"feedback_key": deep}]});
    let refused = world.post("/annotation-queues", &queue).await;
    refused.expect(422);
    assert!(
        refused.text.contains("rubric_items") && refused.text.contains("nested too deeply"),
        "{}",
        refused.text
    );
    let queue = json!({"name": "to look at", "rubric_items": [{"feedback_key": "depth"}]});
    let made = world.post("/annotation-queues", &queue).await.expect(200);
    assert_eq!(made["rubric_items"], queue["rubric_items"]);
}

#[tokio::test]
async fn a_queue_keeps_the_order_of_its_runs() {
    let world = World::new().await;
    let made = world
        .post("/annotation-queues", &json!({"name": "to look at"}))
        .await
        .expect(200);
    let queue = format!("/annotation-queues/{}", made["id"].as_str().unwrap());
    for n in 1..=2 {
        let run = json!({
            "id": id(n), "trace_id": id(n), "dotted_order": format!("20260301T12000{n}000000Z{}", id(n)),
            "session_name": "canal", "name": "run", "run_type": "chain", "inputs": {},
            "start_time": format!("2026-03-01T12:00:0{n}Z"),
        });
        world.post("/runs", &run).await.expect(202);
    }
    world
        .post(&format!("{queue}/runs"), &json!([id(2), id(1)]))
        .await
        .expect(200);
    let listed = world.get(&format!("{queue}/runs")).await.expect(200);
    // They came together, so their ids decide.
    assert_eq!(listed[0]["id"], id(1));
    assert_eq!(world.get(&format!("{queue}/run/1")).await.expect(200)["id"], id(2));
    let gone = Call::new(Method::DELETE, &format!("{queue}/runs/{}", id(1))).in_workspace(world.tenant);
    assert_eq!(world.call(gone).await.status, 204);
    assert_eq!(world.get(&format!("{queue}/run/0")).await.expect(200)["id"], id(2));
    world.get(&format!("{queue}/run/1")).await.expect(404);
}
