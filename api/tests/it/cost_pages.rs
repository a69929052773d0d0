//! Costs on pages of projects, traces and experiments.

use http::Method;
use serde_json::{Value, json};

use crate::dashboard::{cookie, sign_in};
use crate::world::{Call, KEY, World, on_both_databases};

on_both_databases!(
    a_project_shows_what_its_traces_cost,
    totals_of_a_project_are_the_sums_of_its_list,
    only_the_first_page_of_a_project_has_totals,
    a_trace_shows_the_cost_of_all_its_runs,
    experiments_are_compared_by_scores_latency_and_cost,
);

/// An id whose last digits are the number.
fn id(number: u32) -> String {
    format!("0194fdc2-0000-7000-8000-{number:012}")
}

async fn price(world: &World) {
    let price = json!({
        "name": "barge", "match_pattern": "^barge$", "prompt_cost": "0.000003", "completion_cost": "0.000015",
    });
    world.post("/model-price-map", &price).await.expect(200);
}

/// A run of a chain named `turn` and its call of a model, which starts with it and takes as many seconds.
struct TestTrace<'a> {
    root: u32,
    /// Day of the month, hour, minute: `01T1000`.
    start: &'a str,
    project: Value,
    seconds: u32,
    input_tokens: u32,
    example: Option<String>,
}

impl TestTrace<'_> {
    /// The two runs; the call's id follows that of the root.
    fn runs(&self) -> [Value; 2] {
        let (root, call) = (id(self.root), id(self.root + 1));
        let (day, time) = self.start.split_once('T').unwrap();
        let (hour, minute) = time.split_at(2);
        let at = |second: u32| format!("2026-03-{day}T{hour}:{minute}:{second:02}Z");
        let order = |run: &str| format!("202603{day}T{time}00000000Z{run}");
        let common = json!({
            "trace_id": root, "start_time": at(0), "end_time": at(self.seconds), "inputs": {"text": "low water"},
        });
        let usage =
            json!({"input_tokens": self.input_tokens, "output_tokens": 100, "total_tokens": self.input_tokens + 100});
        let parts = [
            json!({"id": root, "dotted_order": order(&root), "name": "turn", "run_type": "chain",
                   "reference_example_id": self.example}),
            json!({"id": call, "dotted_order": format!("{}.{}", order(&root), order(&call)), "name": "model",
                   "run_type": "llm", "parent_run_id": root, "outputs": {"usage_metadata": usage},
                   "extra": {"metadata": {"ls_provider": "acme", "ls_model_name": "barge"}}}),
        ];
        parts.map(|own| {
            let mut run = common.clone();
            for fields in [&self.project, &own] {
                let fields = fields.as_object().unwrap().clone();
                run.as_object_mut().unwrap().extend(fields);
            }
            run
        })
    }
}

/// A chain that repeats the usage of its call, with this cost.
fn repeated(mut runs: [Value; 2], cost: f64) -> [Value; 2] {
    let [root, call] = &mut runs;
    root["outputs"] = call["outputs"].clone();
    root["outputs"]["usage_metadata"]["total_cost"] = json!(cost);
    runs
}

async fn page(world: &World, session: &str, path: &str) -> String {
    let shown = world.call(Call::new(Method::GET, path).header("cookie", session)).await;
    assert_eq!(shown.status, 200, "{path}: {}", shown.text);
    shown.text
}

/// The part of a page from the element with this id to the end of an element of this name.
#[track_caller]
fn part<'a>(page: &'a str, id: &str, end: &str) -> &'a str {
    let mark = format!("id=\"{id}\"");
    let from = page.find(&mark).unwrap_or_else(|| panic!("no {mark} in {page}"));
    let rest = &page[from..];
    let until = rest.find(&format!("</{end}>")).unwrap_or(rest.len());
    &rest[..until]
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

async fn a_project_shows_what_its_traces_cost(world: World) {
    price(&world).await;
    let turn = |root, start, input_tokens| TestTrace {
        root,
        start,
        project: json!({"session_name": "canal"}),
        seconds: 2,
        input_tokens,
        example: None,
    };
    // The clock of this world stands at noon of the first day of March.
    let today = turn(1, "01T1000", 1000).runs();
    let other = TestTrace {
        project: json!({"session_name": "river"}),
        ..turn(5, "01T1100", 1000)
    };
    world
        .post("/runs/batch", &json!({"post": ([today, other.runs()].concat())}))
        .await
        .expect(202);
    let mut earlier = turn(3, "01T1000", 2000).runs();
    for run in &mut earlier {
        let text = run
            .to_string()
            .replace("2026-03-01", "2026-02-25")
            .replace("20260301T", "20260225T");
        *run = serde_json::from_str(&text).unwrap();
    }
    world.post("/runs/batch", &json!({"post": earlier})).await.expect(202);

    let session = cookie(&sign_in(&world, KEY).await);
    let found = world.get("/sessions?name=canal").await.expect(200);
    let project = format!("/ui/traces/{}", found[0]["id"].as_str().unwrap());
    let day = page(&world, &session, &project).await;
    // The root itself has no tokens.
    has(
        part(&day, &format!("r{}", id(1)), "tr"),
        &["turn", "1\u{202f}100", "$0.0045"],
    );
    has(part(&day, &format!("r{}", id(3)), "tr"), &["2\u{202f}100", "$0.0075"]);
    has(
        part(&day, "totals", "div"),
        &["2 runs", "1\u{202f}100 tokens", "$0.0045"],
    );
    let week = page(&world, &session, &format!("{project}?days=7")).await;
    has(
        part(&week, "totals", "div"),
        &["4 runs", "3\u{202f}200 tokens", "$0.012"],
    );
    // A filter on whole traces chooses by the root, and all runs of the trace count.
    let turns = page(&world, &session, &format!("{project}?filter=eq(name,%22turn%22)")).await;
    has(part(&turns, "totals", "div"), &["2 runs", "$0.0045"]);
    let none = page(&world, &session, &format!("{project}?filter=eq(name,%22model%22)")).await;
    has(part(&none, "totals", "div"), &["0 runs", "0 tokens"]);
    assert!(!part(&none, "totals", "div").contains('$'));
    let calls = page(
        &world,
        &session,
        &format!("{project}?runs=all&days=30&filter=eq(name,%22model%22)"),
    )
    .await;
    has(
        part(&calls, "totals", "div"),
        &["2 runs", "$0.012", "days=30\" aria-current"],
    );
    let roots = page(
        &world,
        &session,
        &format!("{project}?runs=all&filter=eq(name,%22turn%22)"),
    )
    .await;
    has(part(&roots, "totals", "div"), &["1 run ", "0 tokens"]);
    assert!(
        !part(&roots, &format!("r{}", id(1)), "tr").contains('$'),
        "its own cost"
    );
}

async fn totals_of_a_project_are_the_sums_of_its_list(world: World) {
    price(&world).await;
    let turn = |root, start, input_tokens| TestTrace {
        root,
        start,
        project: json!({"session_name": "canal"}),
        seconds: 2,
        input_tokens,
        example: None,
    };
    let both = repeated(turn(1, "01T1000", 1000).runs(), 0.0045);
    // Of this one, only the chain reports usage.
    let mut chain = repeated(turn(3, "01T1100", 2000).runs(), 0.0075);
    chain[1].as_object_mut().unwrap().remove("outputs");
    world
        .post("/runs/batch", &json!({"post": ([both, chain].concat())}))
        .await
        .expect(202);
    let session = cookie(&sign_in(&world, KEY).await);
    let found = world.get("/sessions?name=canal").await.expect(200);
    let project = format!("/ui/traces/{}", found[0]["id"].as_str().unwrap());
    let traces = page(&world, &session, &project).await;
    has(
        part(&traces, &format!("r{}", id(1)), "tr"),
        &["1\u{202f}100", "$0.0045"],
    );
    has(
        part(&traces, &format!("r{}", id(3)), "tr"),
        &["2\u{202f}100", "$0.0075"],
    );
    let total = ["4 runs", "3\u{202f}200 tokens", "$0.012"];
    has(part(&traces, "totals", "div"), &total);
    let runs = page(&world, &session, &format!("{project}?runs=all")).await;
    has(part(&runs, "totals", "div"), &total);
    let of_one = format!("{project}?filter=eq(id,%22{}%22)", id(1));
    let one = page(&world, &session, &of_one).await;
    has(
        part(&one, "totals", "div"),
        &["2 runs", "1\u{202f}100 tokens", "$0.0045"],
    );
}

async fn only_the_first_page_of_a_project_has_totals(world: World) {
    let roots = (0..51).map(|number| {
        let turn = TestTrace {
            root: 100 + number * 2,
            start: "01T1000",
            project: json!({"session_name": "canal"}),
            seconds: 2,
            input_tokens: 1000,
            example: None,
        };
        let [root, _] = turn.runs();
        root
    });
    let roots: Vec<Value> = roots.collect();
    world.post("/runs/batch", &json!({"post": roots})).await.expect(202);
    let session = cookie(&sign_in(&world, KEY).await);
    let found = world.get("/sessions?name=canal").await.expect(200);
    let project = format!("/ui/traces/{}", found[0]["id"].as_str().unwrap());
    let first = page(&world, &session, &project).await;
    has(part(&first, "totals", "div"), &["51 runs"]);
    let (_, older) = first.split_once("&cursor=").unwrap();
    let (cursor, _) = older.split_once('"').unwrap();
    let second = page(&world, &session, &format!("{project}?cursor={cursor}")).await;
    has(&second, &[&format!("id=\"r{}\"", id(100))]);
    assert!(!second.contains("id=\"totals\""), "{second}");
}

async fn a_trace_shows_the_cost_of_all_its_runs(world: World) {
    price(&world).await;
    let turn = TestTrace {
        root: 1,
        start: "01T1000",
        project: json!({"session_name": "canal"}),
        seconds: 2,
        input_tokens: 1000,
        example: None,
    };
    let [root, call] = turn.runs();
    // A second call, of an embedding model.
    let mut embedding = call.clone();
    let order = call["dotted_order"].as_str().unwrap().replace(&id(2), &id(3));
    embedding["id"] = json!(id(3));
    embedding["dotted_order"] = json!(order);
    embedding["run_type"] = json!("embedding");
    world
        .post("/runs/batch", &json!({"post": [root, call, embedding]}))
        .await
        .expect(202);
    let session = cookie(&sign_in(&world, KEY).await);
    let found = world.get("/sessions?name=canal").await.expect(200);
    let project = found[0]["id"].as_str().unwrap();
    let shown = page(&world, &session, &format!("/ui/traces/{project}/{}", id(1))).await;
    has(&shown, &["3 runs", "· $0.009<"]);
    has(part(&shown, &format!("t{}", id(2)), "a"), &["$0.0045"]);
    let listed = page(&world, &session, &format!("/ui/traces/{project}")).await;
    has(part(&listed, &format!("r{}", id(1)), "tr"), &["$0.009"]);
}

async fn experiments_are_compared_by_scores_latency_and_cost(world: World) {
    price(&world).await;
    let made = world
        .post("/datasets", &json!({"name": "questions", "data_type": "kv"}))
        .await
        .expect(200);
    let dataset = made["id"].as_str().unwrap().to_owned();
    let example = json!({"id": id(50), "dataset_id": dataset, "inputs": {"q": 1}, "outputs": {"a": 1}});
    world.post("/examples", &example).await.expect(200);
    for (project, name) in [(id(8), "first"), (id(9), "second")] {
        let new = json!({"name": name, "id": project, "reference_dataset_id": dataset});
        world.post("/sessions", &new).await.expect(200);
    }
    let turn = |root, project, seconds, input_tokens| TestTrace {
        root,
        start: "01T1000",
        project: json!({"session_id": project}),
        seconds,
        input_tokens,
        example: Some(id(50)),
    };
    // The second experiment is better, slower and cheaper.
    let runs = [
        repeated(turn(1, id(8), 2, 1000).runs(), 0.0045),
        repeated(turn(3, id(9), 4, 500).runs(), 0.003),
    ]
    .concat();
    world.post("/runs/batch", &json!({"post": runs})).await.expect(202);
    for (feedback, run, score) in [(21, 1, 0.25), (22, 3, 0.75)] {
        let judged = json!({"id": id(feedback), "run_id": id(run), "key": "right", "score": score});
        world.post("/feedback", &judged).await.expect(202);
    }
    let session = cookie(&sign_in(&world, KEY).await);
    let path = format!("/ui/datasets/{dataset}?experiments={},{}", id(8), id(9));
    let shown = page(&world, &session, &path).await;
    let results = part(&shown, "summaries", "table");
    let (first, second) = results.split_once(">second<").unwrap();
    has(
        first,
        &[">first<", "pill \">right 0.25", "pill \">$0.0045", "1\u{202f}100"],
    );
    has(second, &["pill good\">right 0.75", "pill good\">$0.003", "600"]);
    assert!(
        second.contains("1 better, 0 worse") && !first.contains("better"),
        "{results}"
    );
    // A median has an error of one percent.
    let slower = second.split("pill bad\">").nth(1).unwrap();
    assert!(slower.starts_with("4.0 s") || slower.starts_with("3.9 s"), "{slower}");
    let row = part(&shown, &format!("e{}", id(50)), "tr");
    has(row, &["pill good\">right 0.75", "2.0 s", "4.0 s", "$0.0045", "$0.003"]);

    // Later pages of examples do not read all runs again.
    let later = page(&world, &session, &format!("{path}&offset=50")).await;
    assert!(!later.contains("id=\"summaries\""), "{later}");

    let alone = page(
        &world,
        &session,
        &format!("/ui/datasets/{dataset}?experiments={}", id(9)),
    )
    .await;
    has(part(&alone, "summaries", "table"), &["pill \">right 0.75", "$0.003"]);
    let none = page(&world, &session, &format!("/ui/datasets/{dataset}")).await;
    assert!(!none.contains("id=\"summaries\""));
}
