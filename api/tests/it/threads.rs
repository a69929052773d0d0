//! Traces and threads as version 2 of the queries shows them.

use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::world::{Call, World, on_both_databases};

on_both_databases!(
    a_trace_has_the_usage_of_all_its_runs,
    a_run_has_the_usage_of_all_runs_below_it,
    the_runs_of_a_trace_are_listed,
    threads_are_found_by_their_traces,
    a_thread_has_figures,
    a_page_comes_as_a_stream,
    the_execution_order_of_a_root_is_one,
    another_workspace_sees_no_threads,
);

fn id(number: u128) -> Uuid {
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number)
}

/// A trace of a chain and a model call that reports seven tokens. The chain repeats them.
fn trace(number: u128, thread: Option<&str>, error: bool) -> Value {
    let (root, child) = (id(number * 10), id(number * 10 + 1));
    let at = |second: u128| format!("2026-03-01T10:{number:02}:{second:02}.000000Z");
    let link = |second: u128, id: Uuid| format!("20260301T10{number:02}{second:02}000000Z{id}");
    let usage = json!({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "total_cost": 0.25});
    let metadata = thread.map_or_else(|| json!({}), |thread| json!({"thread_id": thread}));
    json!({"post": [
        {
            "id": root, "trace_id": root, "dotted_order": link(0, root), "session_name": "canal", "name": "turn",
            "run_type": "chain", "start_time": at(0), "end_time": at(4), "inputs": {"question": number},
            "outputs": {"answer": number, "usage_metadata": usage}, "extra": {"metadata": metadata},
            "error": if error { json!("boom") } else { Value::Null },
        },
        {
            "id": child, "trace_id": root, "dotted_order": format!("{}.{}", link(0, root), link(1, child)),
            "parent_run_id": root, "session_name": "canal", "name": "model", "run_type": "llm", "start_time": at(1),
            "end_time": at(2), "inputs": {}, "outputs": {"usage_metadata": usage},
            "events": [{"name": "new_token", "time": at(1)}],
        },
    ]})
}

/// Traces 1 to 4 of the threads `a`, `b`, `a` and none; the third failed.
async fn sent(world: &World) -> String {
    for (number, thread, error) in [
        (1, Some("a"), false),
        (2, Some("b"), false),
        (3, Some("a"), true),
        (4, None, false),
    ] {
        world
            .post("/runs/batch", &trace(number, thread, error))
            .await
            .expect(202);
    }
    let found = world.get("/sessions?name=canal").await.expect(200);
    found[0]["id"].as_str().unwrap().to_owned()
}

async fn a_trace_has_the_usage_of_all_its_runs(world: World) {
    let project = sent(&world).await;
    let asked = json!({"project_id": project, "selects": ["NAME", "TOTAL_TOKENS", "FIRST_TOKEN_TIME"], "page_size": 3});
    let page = world.post("/api/v2/traces/query", &asked).await.expect(200);
    let items = page["items"].as_array().unwrap();
    assert_eq!(items.len(), 3);
    assert_eq!(
        items[0],
        json!({
            "root_run": {"id": id(40), "name": "turn"},
            "trace_aggregates": {"total_tokens": 7, "first_token_time": "2026-03-01T10:04:01.000000Z"},
            "query_metadata": null,
        })
    );
    let mut next = asked.clone();
    next["cursor"] = page["next_cursor"].clone();
    let page = world.post("/api/v2/traces/query", &next).await.expect(200);
    assert_eq!(page["items"][0]["root_run"]["id"], json!(id(10)));

    let of = async |more: Value| {
        let mut asked = json!({"project_id": project});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let page = world.post("/api/v2/traces/query", &asked).await.expect(200);
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| item["root_run"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(
        of(json!({"trace_ids": [id(10), id(30), id(999)]})).await,
        [json!({"id": id(30)}), json!({"id": id(10)})]
    );
    assert_eq!(
        of(json!({"trace_filter": "eq(status, \"error\")"})).await,
        [json!({"id": id(30)})]
    );
    assert_eq!(
        of(json!({"tree_filter": "eq(name, \"other\")"})).await,
        [] as [Value; 0]
    );
    assert_eq!(of(json!({"tree_filter": "eq(name, \"model\")"})).await.len(), 4);
    assert_eq!(
        of(json!({"max_start_time": "2026-03-01T10:02:00Z"})).await,
        [json!({"id": id(10)})]
    );
    let costs = world
        .post(
            "/api/v2/traces/query",
            &json!({"project_id": project, "selects": ["TOTAL_COST"], "trace_ids": [id(10)]}),
        )
        .await
        .expect(200);
    assert_eq!(costs["items"][0]["trace_aggregates"], json!({"total_cost": 0.25}));
    for (wrong, status) in [
        (json!({}), 422_u16),
        (json!({"project_id": id(7)}), 404),
        (json!({"project_id": project, "page_size": 101}), 422),
        (json!({"project_id": project, "ai_search": "x"}), 400),
        (json!({"project_id": project, "trace_filter": "eq("}), 400),
        (json!({"project_id": project, "cursor": "x"}), 400),
    ] {
        let refused = world.post("/api/v2/traces/query", &wrong).await;
        assert_eq!(refused.status, status, "{wrong}: {}", refused.text);
        assert_eq!(refused.json()["status"], status, "{}", refused.text);
    }
}

async fn a_run_has_the_usage_of_all_runs_below_it(world: World) {
    let at = |second: u128| format!("2026-03-01T10:00:{second:02}.000000Z");
    let link = |step: &u128| format!("20260301T1000{step:02}000000Z{}", id(*step));
    let run = |path: &[u128], kind: &str, outputs: Value| {
        let number = path[path.len() - 1];
        let order: Vec<String> = path.iter().map(link).collect();
        json!({
            "id": id(number), "trace_id": id(1), "dotted_order": order.join("."), "session_name": "canal", "name": kind,
            "parent_run_id": path.len().checked_sub(2).map(|above| id(path[above])), "run_type": kind,
            "start_time": at(number), "end_time": at(9), "inputs": {}, "outputs": outputs,
            "events": if number == 3 { json!([{"name": "new_token", "time": at(5)}]) } else { json!([]) },
        })
    };
    let usage =
        json!({"usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "total_cost": 0.25}});
    let runs = json!({"post": [
        run(&[1], "chain", json!({})),
        run(&[1, 2], "chain", json!({})),
        run(&[1, 2, 3], "llm", usage.clone()),
        run(&[1, 4], "embedding", usage),
    ]});
    world.post("/runs/batch", &runs).await.expect(202);
    let found = world.get("/sessions?name=canal").await.expect(200);
    let items = async |more: Value| {
        let mut asked = json!({
            "project_ids": [found[0]["id"]],
            "selects": ["TOTAL_TOKENS", "PROMPT_TOKENS", "TOTAL_COST", "FIRST_TOKEN_TIME"],
        });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.post("/api/v2/runs/query", &asked).await.expect(200)["items"].clone()
    };
    let row = |number: u128, tokens: Value, prompt: Value, cost: Value, first: Option<u128>| {
        json!({"id": id(number), "total_tokens": tokens, "prompt_tokens": prompt, "total_cost": cost,
               "first_token_time": first.map(at)})
    };
    let none = || Value::Null;
    let own = [
        row(4, json!(7), json!(3), json!(0.25), None),
        row(3, json!(7), json!(3), json!(0.25), Some(5)),
        row(2, none(), none(), none(), None),
        row(1, none(), none(), none(), None),
    ];
    assert_eq!(items(json!({})).await, json!(own));
    assert_eq!(items(json!({"include_subtree_usage": false})).await, json!(own));
    let middle = row(2, json!(7), json!(3), json!(0.25), Some(5));
    let root = row(1, json!(14), json!(6), json!(0.5), Some(5));
    let all = items(json!({"include_subtree_usage": true})).await;
    assert_eq!(all, json!([own[0], own[1], middle, root]));
    // Neither filters nor the range of times change what is below.
    let narrow = json!({"include_subtree_usage": true, "is_root": true, "max_start_time": at(2)});
    assert_eq!(items(narrow).await, json!([root]));
    let names = items(json!({"include_subtree_usage": true, "selects": ["NAME"], "is_root": true})).await;
    assert_eq!(names, json!([{"id": id(1), "name": "chain"}]));
}

async fn the_runs_of_a_trace_are_listed(world: World) {
    let project = sent(&world).await;
    let path = format!("/api/v2/traces/{}/runs?project_id={project}", id(10));
    let listed = world.get(&path).await.expect(200);
    assert_eq!(listed, json!({"items": [{"id": id(10)}, {"id": id(11)}]}));
    let models = world
        .get(&format!(
            "{path}&filter=eq(run_type,%22llm%22)&selects=NAME&selects=INPUTS_PREVIEW"
        ))
        .await
        .expect(200);
    assert_eq!(
        models,
        json!({"items": [{"id": id(11), "name": "model", "inputs_preview": "{}"}]})
    );
    let until = "max_start_time=2026-03-01T10:01:00Z&min_start_time=2026-03-01T10:00:00Z";
    let first = world.get(&format!("{path}&{until}")).await.expect(200);
    assert_eq!(first, json!({"items": [{"id": id(10)}]}));
    world.get(&format!("/api/v2/traces/{}/runs", id(10))).await.expect(422);
    let elsewhere = format!("/api/v2/traces/{}/runs?project_id={}", id(10), id(7));
    world.get(&elsewhere).await.expect(404);
    let address = world
        .get(&format!("/api/v2/runs/{}/url?project_id={project}", id(11)))
        .await
        .expect(200);
    let page = format!("/ui/traces/{project}/{}?workspace={}", id(11), world.tenant);
    assert!(address["url"].as_str().unwrap().ends_with(&page), "{address}");
    let unknown = format!("/api/v2/runs/{}/url?project_id={project}", id(999));
    world.get(&unknown).await.expect(404);
}

async fn threads_are_found_by_their_traces(world: World) {
    let project = sent(&world).await;
    let judged = json!({"id": id(500), "run_id": id(10), "key": "right", "score": 1});
    world.post("/feedback", &judged).await.expect(202);
    let asked = json!({"project_id": project, "page_size": 1});
    let page = world.post("/api/v2/threads/query", &asked).await.expect(200);
    let thread = &page["items"][0];
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    assert_eq!((&thread["thread_id"], &thread["count"]), (&json!("a"), &json!(2)));
    assert_eq!(
        (&thread["num_errored_turns"], &thread["last_error"]),
        (&json!(1), &json!("boom"))
    );
    assert_eq!(thread["first_trace_id"], json!(id(10)));
    assert_eq!(
        (&thread["trace_id"], &thread["last_trace_id"]),
        (&json!(id(30)), &json!(id(30)))
    );
    assert_eq!(thread["min_start_time"], "2026-03-01T10:01:00.000000Z");
    assert_eq!(thread["max_start_time"], "2026-03-01T10:03:00.000000Z");
    assert_eq!(
        (&thread["total_tokens"], &thread["total_cost"]),
        (&json!(14), &json!(0.5))
    );
    assert!((thread["latency_p50"].as_f64().unwrap() - 4.0).abs() < 0.05, "{thread}");
    assert_eq!(thread["first_inputs"], r#"{"question":1}"#);
    assert!(
        thread["last_outputs"].as_str().unwrap().starts_with(r#"{"answer":3"#),
        "{thread}"
    );
    assert_eq!(thread["feedback_stats"]["right"]["n"], 1);
    let mut next = asked.clone();
    next["cursor"] = page["next_cursor"].clone();
    let page = world.post("/api/v2/threads/query", &next).await.expect(200);
    assert_eq!(page["items"][0]["thread_id"], "b");
    assert_eq!(page["next_cursor"], Value::Null);

    for (name, value, found) in [
        ("filter", "eq(status, \"error\")", vec![("a", 2)]),
        ("trace_filter", "eq(status, \"success\")", vec![("b", 1), ("a", 2)]),
        ("tree_filter", "eq(name, \"other\")", vec![]),
        ("min_start_time", "2026-03-01T10:03:00Z", vec![("a", 1)]),
        ("max_start_time", "2026-03-01T10:02:00Z", vec![("a", 1)]),
    ] {
        let mut asked = json!({"project_id": project});
        asked[name] = json!(value);
        let page = world.post("/api/v2/threads/query", &asked).await.expect(200);
        let threads = page["items"].as_array().unwrap().iter();
        let threads: Vec<Value> = threads.map(|one| json!([one["thread_id"], one["count"]])).collect();
        let found: Vec<Value> = found
            .into_iter()
            .map(|(thread, count)| json!([thread, count]))
            .collect();
        assert_eq!(threads, found, "{name}={value}");
    }
    let refused = world
        .post(
            "/api/v2/threads/query",
            &json!({"project_id": project, "thread_filter": "gt(count, 1)"}),
        )
        .await;
    assert_eq!(refused.status, 400, "{}", refused.text);
}

async fn a_thread_has_figures(world: World) {
    let project = sent(&world).await;
    let path = format!("/api/v2/threads/a/traces?project_id={project}");
    let listed = world
        .get(&format!(
            "{path}&page_size=1&selects=NAME&selects=TOTAL_TOKENS&selects=LATENCY&selects=ERROR_PREVIEW"
        ))
        .await
        .expect(200);
    assert_eq!(
        listed["items"],
        json!([{"trace_id": id(30), "name": "turn", "error_preview": "boom", "total_tokens": 7, "latency": 4.0}])
    );
    let cursor = listed["next_cursor"].as_str().unwrap();
    let rest = world.get(&format!("{path}&cursor={cursor}")).await.expect(200);
    assert_eq!(rest["items"], json!([{"trace_id": id(10)}]));

    let path = format!("/api/v2/threads/a/stats?session_id={project}");
    let figures = world
        .get(&format!(
            "{path}&selects=TURNS&selects=LATENCY_P50&selects=TOTAL_TOKENS&selects=LAST_END_TIME&selects=TOTAL_COST"
        ))
        .await
        .expect(200);
    assert_eq!((&figures["turns"], &figures["total_tokens"]), (&json!(2), &json!(14)));
    assert_eq!(figures["total_cost"], json!(0.5));
    assert_eq!(figures["last_end_time"], "2026-03-01T10:03:04.000000Z");
    assert!(
        (figures["latency_p50_seconds"].as_f64().unwrap() - 4.0).abs() < 0.05,
        "{figures}"
    );
    assert_eq!(figures.as_object().unwrap().len(), 5, "{figures}");
    world.get(&path).await.expect(422);
    let unknown = format!("/api/v2/threads/c/stats?session_id={project}&selects=TURNS");
    world.get(&unknown).await.expect(404);

    let asked = json!({
        "project_id": project,
        "select": ["THREAD_COUNT", "TRACE_COUNT", "TOTAL_TOKENS", "MEDIAN_TOKENS", "ERROR_RATE", "COMPLETION_COST"],
    });
    let all = world.post("/api/v2/threads/stats", &asked).await.expect(200);
    assert_eq!((&all["thread_count"], &all["trace_count"]), (&json!(2), &json!(3)));
    assert_eq!((&all["total_tokens"], &all["median_tokens"]), (&json!(21), &json!(7)));
    assert_eq!(all["completion_cost"], Value::Null);
    assert!((all["error_rate"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
    for (wrong, status) in [
        (json!({"project_id": project, "select": []}), 422_u16),
        (
            json!({"project_id": project, "select": ["THREAD_COUNT"], "stride": {"unit": "DAY", "value": 1}}),
            400,
        ),
        (json!({"project_id": id(7), "select": ["THREAD_COUNT"]}), 404),
    ] {
        let refused = world.post("/api/v2/threads/stats", &wrong).await;
        assert_eq!(refused.status, status, "{wrong}: {}", refused.text);
    }
}

async fn a_page_comes_as_a_stream(world: World) {
    let project = sent(&world).await;
    for (path, asked) in [
        ("/api/v2/runs/query", json!({"project_ids": [project]})),
        ("/api/v2/traces/query", json!({"project_id": project})),
        ("/api/v2/threads/query", json!({"project_id": project})),
    ] {
        let page = world.post(path, &asked).await.expect(200);
        let call = Call::new(Method::POST, path)
            .in_workspace(world.tenant)
            .header("accept", "text/event-stream")
            .json(&asked);
        let answer = world.call(call).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let data = answer
            .text
            .lines()
            .find_map(|line| line.strip_prefix("data: "))
            .unwrap();
        let patch: Value = serde_json::from_str(data).unwrap();
        assert_eq!(patch, json!([{"op": "add", "path": "", "value": page}]), "{path}");
    }
}

async fn the_execution_order_of_a_root_is_one(world: World) {
    let project = sent(&world).await;
    let asked = json!({"session": [project], "execution_order": 1, "select": ["id"]});
    let roots = world.post("/runs/query", &asked).await.expect(200);
    let roots: Vec<&Value> = roots["runs"].as_array().unwrap().iter().map(|run| &run["id"]).collect();
    assert_eq!(json!(roots), json!([id(40), id(30), id(20), id(10)]));
    let counted = world.post("/runs/stats", &asked).await.expect(200);
    assert_eq!(counted["run_count"], 4);
    for wrong in [
        json!({"session": [project], "execution_order": 2}),
        json!({"session": [project], "execution_order": 1, "is_root": false}),
    ] {
        let refused = world.post("/runs/query", &wrong).await.expect(400);
        assert!(
            refused["details"].as_str().unwrap().contains("execution_order"),
            "{refused}"
        );
    }
}

async fn another_workspace_sees_no_threads(world: World) {
    let project = sent(&world).await;
    let other = world.second_workspace().await;
    let ask = |method: Method, path: String| Call::new(method, &path).in_workspace(other);
    for call in [
        ask(Method::POST, "/api/v2/traces/query".to_owned()).json(&json!({"project_id": project})),
        ask(Method::POST, "/api/v2/threads/query".to_owned()).json(&json!({"project_id": project})),
        ask(Method::POST, "/api/v2/threads/stats".to_owned())
            .json(&json!({"project_id": project, "select": ["THREAD_COUNT"]})),
        ask(
            Method::GET,
            format!("/api/v2/traces/{}/runs?project_id={project}", id(10)),
        ),
        ask(Method::GET, format!("/api/v2/threads/a/traces?project_id={project}")),
        ask(
            Method::GET,
            format!("/api/v2/threads/a/stats?session_id={project}&selects=TURNS"),
        ),
        ask(Method::GET, format!("/api/v2/runs/{}/url?project_id={project}", id(10))),
    ] {
        world.call(call).await.expect(404);
    }
}
