//! What was acknowledged is read back at once: here nobody folds, so all of it comes from open units.

use http::Method;
use serde_json::{Value, json};
use towpath_domain::WalSegmentId;
use towpath_store::projects;
use towpath_store::wal_segments::{self, NewWalSegment};
use uuid::Uuid;

use crate::world::{Call, World, on_both_databases};

on_both_databases!(
    open_units_are_folded_once_for_many_pages,
    what_others_have_sent_delays_nobody,
    runs_come_back_newest_first_page_by_page,
    criteria_and_filters_choose,
    feedback_is_read_changed_and_taken_back,
    projects_are_found_changed_and_deleted,
    runs_are_found_in_the_oldest_of_many_projects,
);

fn id(number: u128) -> Uuid {
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number)
}

/// A trace of a root and two children, with the second one in error.
fn trace(number: u128, minute: u32) -> Value {
    let root = id(number * 10);
    let start = |second: u32| format!("2026-03-01T10:{minute:02}:{second:02}.000000Z");
    let link = |second: u32, id: Uuid| format!("20260301T10{minute:02}{second:02}000000Z{id}");
    let run = |at: u128, second: u32, more: Value| {
        let own = id(number * 10 + at);
        let mut order = link(0, root);
        if at > 0 {
            order = format!("{order}.{}", link(second, own));
        }
        let mut run = json!({
            "id": own, "trace_id": root, "dotted_order": order, "session_name": "canal",
            "name": format!("run-{at}"), "run_type": if at == 0 { "chain" } else { "llm" },
            "start_time": start(second), "end_time": start(second + 2),
            "inputs": {"n": number}, "outputs": {"messages": [{"content": format!("said {number}")}]},
            "extra": {"metadata": {"k": format!("v{number}")}},
        });
        if at > 0 {
            run["parent_run_id"] = json!(root);
        }
        run.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        run
    };
    json!({"post": [
        run(0, 0, json!({"tags": ["top"]})),
        run(1, 1, json!({})),
        run(2, 3, json!({"error": "boom", "outputs": null})),
    ]})
}

async fn sent(world: &World, traces: u32) -> String {
    for number in 1..=traces {
        world
            .post("/runs/batch", &trace(number.into(), number))
            .await
            .expect(202);
    }
    let found = world.get("/sessions?name=canal").await.expect(200);
    found[0]["id"].as_str().unwrap().to_owned()
}

fn ids(page: &Value) -> Vec<String> {
    let runs = page["runs"].as_array().unwrap().iter();
    runs.map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

/// Who reads page after page of what was just sent has it folded once.
async fn open_units_are_folded_once_for_many_pages(world: World) {
    let session = sent(&world, 3).await;
    let asked = json!({"session": [session], "limit": 4});
    let first = world.post("/runs/query", &asked).await.expect(200);
    let units = world.folder.path().join("objects");
    assert!(units.is_dir());
    std::fs::rename(&units, world.folder.path().join("elsewhere")).unwrap();
    assert_eq!(world.post("/runs/query", &asked).await.expect(200), first);
    std::fs::rename(world.folder.path().join("elsewhere"), &units).unwrap();
    // What comes after is seen all the same.
    world.post("/runs/batch", &trace(9, 9)).await.expect(202);
    let next = world.post("/runs/query", &asked).await.expect(200);
    assert_eq!(ids(&next)[2], id(90).to_string());
}

/// Of an object that several workspaces share, each reads and counts its own part.
async fn what_others_have_sent_delays_nobody(world: World) {
    let session = sent(&world, 1).await;
    let own = world
        .store
        .read(async |tx| wal_segments::open_of(tx, world.tenant).await)
        .await
        .unwrap()
        .remove(0);
    let file = world.folder.path().join("objects").join(&own.path);
    let mut object = std::fs::read(&file).unwrap();
    let (end, more) = (object.len(), 10_usize << 20);
    // What would be no frame to whoever read it.
    object.resize(end + more, b'x');
    std::fs::write(&file, object).unwrap();
    let other = NewWalSegment {
        id: WalSegmentId::new(),
        tenant: world.second_workspace().await,
        byte_offset: end as i64,
        bytes: more as i64,
        decoded_bytes: 1 << 30,
        operations: 1,
    };
    world
        .store
        .write(async |tx| wal_segments::register(tx, &own.path, &[other], &[]).await)
        .await
        .unwrap();
    let asked = json!({"session": [session]});
    let page = world.post("/runs/query", &asked).await.expect(200);
    assert_eq!(ids(&page).len(), 3);
}

async fn runs_come_back_newest_first_page_by_page(world: World) {
    let session = sent(&world, 4).await;
    let all = world
        .post("/runs/query", &json!({"session": [session]}))
        .await
        .expect(200);
    assert_eq!(all["runs"].as_array().unwrap().len(), 12);
    assert_eq!(all["cursors"]["next"], Value::Null);
    let starts: Vec<&str> = all["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["start_time"].as_str().unwrap())
        .collect();
    assert!(starts.is_sorted_by(|a, b| a >= b), "{starts:?}");
    let pages = async |order: &str| {
        let (mut pages, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let asked = json!({"session": [session], "limit": 5, "order": order, "cursor": cursor, "select": ["id"]});
            let page = world.post("/api/v1/runs/query", &asked).await.expect(200);
            pages.extend(ids(&page));
            cursor = page["cursors"]["next"].clone();
            if cursor.is_null() {
                return pages;
            }
            if order == "desc" {
                // What comes in meanwhile, and is newer, does not move the pages.
                world.post("/runs/batch", &trace(50, 50)).await.expect(202);
            }
        }
    };
    let mut expected = ids(&all);
    let mut oldest = expected.clone();
    oldest.reverse();
    assert_eq!(pages("asc").await, oldest);
    assert_eq!(pages("desc").await, expected);
    expected.splice(0..0, [52, 51, 50].map(|last| id(500 + last - 50).to_string()));
    assert_eq!(pages("desc").await, expected);
}

#[tokio::test]
async fn a_run_shows_all_of_it() {
    let world = World::new().await;
    let session = sent(&world, 1).await;
    let patch = json!({"outputs": {"late": true}, "extra": {"metadata": {"more": 1}}});
    let path = format!("/runs/{}", id(12));
    let call = Call::new(Method::PATCH, &path).in_workspace(world.tenant).json(&patch);
    world.call(call).await.expect(202);
    let run = world.get(&path).await.expect(200);
    assert_eq!(run["status"], "error");
    assert_eq!(run["outputs"], json!({"late": true}));
    assert_eq!(
        (&run["session_id"], &run["trace_id"]),
        (&json!(session), &json!(id(10)))
    );
    assert_eq!(run["parent_run_id"], json!(id(10)));
    assert_eq!(run["parent_run_ids"], json!([id(10)]));
    let root = world.get(&format!("/api/v1/runs/{}", id(10))).await.expect(200);
    assert_eq!(
        (&root["is_root"], &root["tags"], &root["latency_seconds"]),
        (&json!(true), &json!(["top"]), &json!(2.0))
    );
    world.get(&format!("/runs/{}", id(999))).await.expect(404);
    let second = world.second_workspace().await;
    world
        .call(Call::new(Method::GET, &path).in_workspace(second))
        .await
        .expect(404);
}

async fn criteria_and_filters_choose(world: World) {
    let session = sent(&world, 3).await;
    let count = async |mut asked: Value| {
        asked["session"] = json!([session]);
        ids(&world.post("/runs/query", &asked).await.expect(200)).len()
    };
    assert_eq!(count(json!({"is_root": true})).await, 3);
    assert_eq!(count(json!({"error": true})).await, 3);
    assert_eq!(count(json!({"run_type": "llm", "error": false})).await, 3);
    assert_eq!(count(json!({"trace": id(20)})).await, 3);
    assert_eq!(count(json!({"parent_run": id(20)})).await, 2);
    assert_eq!(count(json!({"id": [id(20), id(31), id(999)]})).await, 2);
    assert_eq!(count(json!({"query": "SAID 2"})).await, 2);
    assert_eq!(
        count(json!({"start_time": "2026-03-01T10:02:00Z", "end_time": "2026-03-01T10:03:00Z"})).await,
        3
    );
    assert_eq!(
        count(json!({"filter": "and(eq(metadata_key, \"k\"), eq(metadata_value, \"v2\"))"})).await,
        3
    );
    assert_eq!(
        count(json!({"filter": "eq(output_key, \"messages.content\")"})).await,
        6
    );
    assert_eq!(count(json!({"filter": "has(tags, \"top\")"})).await, 3);
    assert_eq!(
        count(json!({"filter": "eq(run_type, \"llm\")", "trace_filter": "eq(input_value, 2)"})).await,
        2
    );
    assert_eq!(
        count(json!({"is_root": true, "tree_filter": "neq(error, null)"})).await,
        3
    );
    assert_eq!(
        count(json!({"is_root": true, "tree_filter": "eq(name, \"none\")"})).await,
        0
    );
}

#[tokio::test]
async fn a_filter_that_is_none_is_refused_where_it_breaks() {
    let world = World::new().await;
    let session = sent(&world, 1).await;
    for (path, asked) in [
        ("/api/v1/runs/query/validate", json!({"filter": "eq(nam, \"x\")"})),
        ("/runs/query", json!({"session": [session], "filter": "eq(nam, \"x\")"})),
        ("/runs/stats", json!({"session": [session], "filter": "eq(nam, \"x\")"})),
    ] {
        let refused = world.post(path, &asked).await.expect(400);
        let told = refused["details"].as_str().unwrap();
        assert!(
            told.starts_with("filter: at character 4: unknown field `nam`"),
            "{told}"
        );
    }
    let fine = json!({"filter": "eq(name, \"x\")", "tree_filter": null});
    assert_eq!(
        world.post("/runs/query/validate", &fine).await.expect(200),
        json!({"valid": true})
    );
    world
        .post("/runs/query", &json!({"filter": "eq(name, \"x\")"}))
        .await
        .expect(400);
    world
        .post("/runs/query", &json!({"session": [id(1)]}))
        .await
        .expect(404);
    world
        .post("/runs/query", &json!({"session": [session], "limit": 101}))
        .await
        .expect(422);
    world
        .post("/runs/query", &json!({"session": [session], "cursor": "x"}))
        .await
        .expect(400);
}

#[tokio::test]
async fn statistics_count_what_matches() {
    let world = World::new().await;
    let session = sent(&world, 3).await;
    let stats = world
        .post("/runs/stats", &json!({"session": [session]}))
        .await
        .expect(200);
    assert_eq!(
        (&stats["run_count"], &stats["last_run_start_time"]),
        (&json!(9), &json!("2026-03-01T10:03:03.000000Z"))
    );
    assert!((stats["error_rate"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
    assert!((stats["latency_p50"].as_f64().unwrap() - 2.0).abs() < 0.03);
    let roots = json!({"session": [session], "is_root": true});
    assert_eq!(world.post("/runs/stats", &roots).await.expect(200)["run_count"], 3);
    let project = world
        .get(&format!("/sessions/{session}?include_stats=True"))
        .await
        .expect(200);
    assert_eq!(project["run_count"], 9);
}

#[tokio::test]
async fn the_second_interface_speaks_its_own_names() {
    let world = World::new().await;
    let session = sent(&world, 2).await;
    let asked =
        json!({"project_ids": [session], "is_root": true, "selects": ["NAME", "PROJECT_ID", "STATUS"], "page_size": 1});
    let page = world.post("/api/v2/runs/query", &asked).await.expect(200);
    let expected = json!([{"id": id(20), "name": "run-0", "status": "SUCCESS", "project_id": session}]);
    assert_eq!(page["items"], expected);
    assert!(page["next_cursor"].is_string());
    let one = world
        .get(&format!("/api/v2/runs/{}?selects=NAME&selects=RUN_TYPE", id(11)))
        .await
        .expect(200);
    assert_eq!(one, json!({"id": id(11), "name": "run-1", "run_type": "LLM"}));
    let missing = world.get(&format!("/api/v2/runs/{}", id(999))).await.expect(404);
    assert_eq!(
        (&missing["status"], &missing["detail"]),
        (&json!(404), &json!("run not found"))
    );
}

async fn feedback_is_read_changed_and_taken_back(world: World) {
    sent(&world, 1).await;
    let run = id(10);
    for (number, key, score) in [
        (1, "good", json!(1)),
        (2, "good", json!(0.5)),
        (3, "other", json!(null)),
    ] {
        let new = json!({"id": id(100 + number), "run_id": run, "key": key, "score": score,
            "feedback_source": {"type": if number == 2 { "model" } else { "api" }}});
        world.post("/feedback", &new).await.expect(202);
    }
    let listed = world.get(&format!("/feedback?run={run}")).await.expect(200);
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert_eq!(listed[0]["id"], json!(id(103)));
    let models = world.get("/api/v1/feedback?source=model&limit=5").await.expect(200);
    assert_eq!(
        (models.as_array().unwrap().len(), &models[0]["key"]),
        (1, &json!("good"))
    );

    let path = format!("/feedback/{}", id(101));
    let call = |method, body: &Value| Call::new(method, &path).in_workspace(world.tenant).json(body);
    let changed = world
        .call(call(Method::PATCH, &json!({"score": 0, "comment": "no"})))
        .await
        .expect(200);
    assert_eq!(
        (&changed["score"], &changed["comment"], &changed["key"]),
        (&json!(0), &json!("no"), &json!("good"))
    );
    assert_eq!(world.get(&path).await.expect(200)["score"], 0);
    let stats = world.get(&format!("/runs/{run}")).await.expect(200)["feedback_stats"].clone();
    assert_eq!((&stats["good"]["n"], &stats["good"]["avg"]), (&json!(2), &json!(0.25)));

    let with = |filter: &str| json!({"id": [run], "filter": filter});
    let pair = with("and(eq(feedback_key, \"good\"), gte(feedback_score, 0.5))");
    assert_eq!(ids(&world.post("/runs/query", &pair).await.expect(200)).len(), 1);
    world.call(call(Method::DELETE, &json!({}))).await.expect(200);
    world.get(&path).await.expect(404);
    let second = format!("/feedback/{}", id(102));
    let gone = Call::new(Method::DELETE, &second).in_workspace(world.tenant);
    world.call(gone).await.expect(200);
    assert_eq!(ids(&world.post("/runs/query", &pair).await.expect(200)).len(), 0);
    assert_eq!(world.get("/feedback").await.expect(200).as_array().unwrap().len(), 1);
}

async fn projects_are_found_changed_and_deleted(world: World) {
    let session = sent(&world, 1).await;
    let other = json!({"name": "Other_100%", "extra": {"metadata": {"team": "a"}}});
    let other = world.post("/sessions", &other).await.expect(200);
    let names = async |query: &str| {
        let found = world.get(&format!("/sessions?{query}")).await.expect(200);
        let names = found
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names("name_contains=other_1").await, ["Other_100%"]);
    assert_eq!(names("name_contains=100%25x").await, Vec::<String>::new());
    assert_eq!(names(&format!("id={session}&id={}", id(5))).await, ["canal"]);
    assert_eq!(names("metadata=%7B%22team%22%3A%22a%22%7D").await, ["Other_100%"]);
    assert_eq!(names("reference_free=True&limit=1&offset=1").await.len(), 1);
    world.get("/sessions?colour=red").await.expect(422);

    let path = format!("/sessions/{session}");
    let patch = |body: Value| Call::new(Method::PATCH, &path).in_workspace(world.tenant).json(&body);
    let changed = json!({"name": "river", "end_time": "2026-03-02T00:00:00Z", "extra": {"a": 1}});
    let changed = world.call(patch(changed)).await.expect(200);
    assert_eq!(
        (&changed["name"], &changed["extra"]),
        (&json!("river"), &json!({"a": 1}))
    );
    assert!(changed["end_time"].as_str().unwrap().starts_with("2026-03-02"));
    world.call(patch(json!({"name": other["name"]}))).await.expect(409);

    let gone = Call::new(Method::DELETE, &path).in_workspace(world.tenant);
    assert_eq!(world.call(gone.clone()).await.status, 204);
    world.call(gone).await.expect(404);
    world.get(&path).await.expect(404);
    world.get(&format!("/runs/{}", id(10))).await.expect(404);
    world
        .post("/sessions", &json!({"name": "again", "id": session}))
        .await
        .expect(409);
}

#[tokio::test]
async fn attachments_are_read_by_their_links() {
    let world = World::new().await;
    sent(&world, 1).await;
    let boundary = "x7f";
    let body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"attachment.{}.photo\"\r\nContent-Type: image/png; length=4\r\n\r\n\
         \u{1}\u{2}ab\r\n--{boundary}--\r\n",
        id(10)
    );
    let call = Call::new(Method::POST, "/runs/multipart")
        .in_workspace(world.tenant)
        .header("content-type", &format!("multipart/form-data; boundary={boundary}"))
        .body(body);
    world.call(call).await.expect(202);
    let run = world.get(&format!("/runs/{}", id(10))).await.expect(200);
    let link = run["s3_urls"]["attachment.photo"]["presigned_url"]
        .as_str()
        .unwrap()
        .to_owned();
    let file = world.open(Method::GET, &link).await;
    assert_eq!((file.status.as_u16(), file.text.as_str()), (200, "\u{1}\u{2}ab"));
    assert_eq!(
        file.headers["content-type"],
        "image/png; length=4".split(';').next().unwrap()
    );
    world.open(Method::GET, "/attachments/AAAA").await.expect(404);
    world.clock.advance(std::time::Duration::from_secs(3601));
    world.open(Method::GET, &link).await.expect(404);
}

/// The root of a trace of OpenTelemetry has another id than the trace, so nothing says in which project it lies.
async fn runs_are_found_in_the_oldest_of_many_projects(world: World) {
    let example = id(7);
    let body = json!({"post": [{
        "id": id(1), "name": "of an example", "run_type": "chain", "session_name": "spans",
        "start_time": "2026-03-01T10:00:00Z", "reference_example_id": example,
    }]});
    world.post("/runs/batch", &body).await.expect(202);
    let span = |own: u8, parent: Option<u8>| {
        let id = |of: u8| format!("{of:02x}").repeat(8);
        let start = 1_772_366_400 + i64::from(own);
        json!({"traceId": "5b8efff798038103d269b633813fc60c", "spanId": id(own), "parentSpanId": parent.map(id),
               "name": format!("span {own}"), "startTimeUnixNano": format!("{start}000000000"),
               "endTimeUnixNano": format!("{}000000000", start + i64::from(own))})
    };
    let send = async |spans: &[Value]| {
        let body = json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]});
        let call = Call::new(Method::POST, "/otel/v1/traces")
            .in_workspace(world.tenant)
            .header("langsmith-project", "spans")
            .json(&body);
        world.call(call).await.expect(200);
    };
    // The root has not come.
    send(&[span(2, Some(1)), span(3, Some(2))]).await;
    world.clock.advance(std::time::Duration::from_secs(60));
    let newer = world.store.write(async |tx| {
        for number in 0..1005 {
            let new = projects::NewProject {
                name: format!("newer {number}"),
                ..projects::NewProject::default()
            };
            projects::create(tx, world.tenant, &new).await?;
        }
        Ok(())
    });
    newer.await.unwrap();
    let trace = "5b8efff7-9803-8103-d269-b633813fc60c";
    let query = async |more: Value| {
        let mut asked = json!({"order": "asc"});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let page = world.post("/runs/query", &asked).await.expect(200);
        let runs = page["runs"].as_array().unwrap().iter();
        let names = runs.map(|run| run["name"].as_str().unwrap().to_owned());
        (names.collect::<Vec<_>>(), page["cursors"]["next"].clone())
    };
    let names = async |more: Value| query(more).await.0;
    assert_eq!(names(json!({"trace": trace})).await, ["span 2", "span 3"]);
    let lost = format!("5b8efff7-9803-8103-{0}-{0}{0}{0}", "0101");
    assert_eq!(names(json!({"parent_run": lost})).await, ["span 2"]);
    send(&[span(1, None)]).await;
    assert_eq!(names(json!({"trace": trace})).await, ["span 1", "span 2", "span 3"]);
    assert_eq!(
        names(json!({"trace": trace, "is_root": false, "filter": "gt(latency, 2)"})).await,
        ["span 3"]
    );
    assert_eq!(
        names(json!({"trace": trace, "start_time": "2026-03-01T12:00:02Z"})).await,
        ["span 2", "span 3"]
    );
    // The root starts before the range.
    let later = json!({"trace": trace, "start_time": "2026-03-01T12:00:02Z", "trace_filter": "eq(name, \"span 1\")"});
    assert_eq!(names(later).await, ["span 2", "span 3"]);
    let none = json!({"trace": trace, "trace_filter": "eq(name, \"span 2\")"});
    assert_eq!(names(none).await, Vec::<String>::new());
    let (first, next) = query(json!({"trace": trace, "limit": 2})).await;
    assert_eq!(first, ["span 1", "span 2"]);
    assert_eq!(
        names(json!({"trace": trace, "limit": 2, "cursor": next})).await,
        ["span 3"]
    );
    let session = world.get("/sessions?name=spans").await.expect(200)[0]["id"].clone();
    let filter = format!("and(eq(trace_id, \"{trace}\"), neq(name, \"span 2\"))");
    assert_eq!(
        names(json!({"session": [session], "filter": filter})).await,
        ["span 1", "span 3"]
    );
    let counted = world.post("/runs/stats", &json!({"trace": trace})).await.expect(200);
    assert_eq!(counted["run_count"], 3);
    // Nothing says where these lie: all projects are looked through.
    assert_eq!(names(json!({"reference_example": [example]})).await, ["of an example"]);
    assert_eq!(names(json!({"parent_run": lost})).await, ["span 2"]);
    assert_eq!(names(json!({"trace": id(99)})).await, Vec::<String>::new());
}
