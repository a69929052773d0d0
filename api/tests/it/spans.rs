//! Spans of OpenTelemetry, read back as trace runs.

use http::Method;
use serde_json::{Value, json};

use crate::world::{Call, World};

#[tokio::test]
async fn spans_become_runs() {
    let world = World::new().await;
    let span = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "name": "chat",
        "startTimeUnixNano": "1772366400000000000", "endTimeUnixNano": "1772366401000000000",
        "attributes": [
            {"key": "gen_ai.request.model", "value": {"stringValue": "m-1"}},
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "4"}},
        ],
    }]}]}]});
    let call = Call::new(Method::POST, "/otel/v1/traces")
        .in_workspace(world.tenant)
        .header("langsmith-project", "spans")
        .json(&span);
    assert_eq!(world.call(call).await.expect(200), json!({}));
    let run = world
        .get("/runs/5b8efff7-9803-8103-0101-010101010101")
        .await
        .expect(200);
    assert_eq!(
        (&run["run_type"], &run["total_tokens"], &run["status"]),
        (&json!("llm"), &json!(7), &json!("success"))
    );
    assert_eq!(run["trace_id"], "5b8efff7-9803-8103-d269-b633813fc60c");
    // One that cannot be taken is the only one.
    let mut two = span.clone();
    let spans = two["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array_mut()
        .unwrap();
    spans[0]["spanId"] = json!("0202020202020202");
    spans.push(spans[0].clone());
    spans[1]["spanId"] = json!("0303030303030303");
    spans[1]["endTimeUnixNano"] = json!(u64::MAX.to_string());
    let call = Call::new(Method::POST, "/otel/v1/traces").in_workspace(world.tenant);
    let answer = world.call(call.json(&two)).await.expect(200);
    assert_eq!(answer["partialSuccess"]["rejectedSpans"], "1");
    let message = answer["partialSuccess"]["errorMessage"].as_str().unwrap();
    assert!(
        message.contains("span 0303030303030303: ") && message.contains("`end_time`: time out of range"),
        "{message}"
    );
    let run = |id: &str| format!("/runs/5b8efff7-9803-8103-{id}");
    world.get(&run("0202-020202020202")).await.expect(200);
    world.get(&run("0303-030303030303")).await.expect(404);
    let wrong = Call::new(Method::POST, "/api/v1/otel/v1/traces").in_workspace(world.tenant);
    let text = wrong.clone().header("content-type", "text/plain").body("x");
    world.call(text).await.expect(415);
    let broken = wrong.header("content-type", "application/x-protobuf").body("x");
    world.call(broken).await.expect(400);
}

#[tokio::test]
async fn spans_in_any_order_become_one_tree() {
    let world = World::new().await;
    let span = |own: u8, parent: Option<u8>| {
        let id = |of: u8| format!("{of:02x}").repeat(8);
        let (start, end) = (1_772_366_400 + i64::from(own), 1_772_366_500);
        json!({"resourceSpans": [{"scopeSpans": [{"spans": [{
            "traceId": "5b8efff798038103d269b633813fc60c", "spanId": id(own), "parentSpanId": parent.map(id),
            "name": format!("span {own}"),
            "startTimeUnixNano": format!("{start}000000000"), "endTimeUnixNano": format!("{end}000000000"),
        }]}]}]})
    };
    let send = async |span: Value| {
        let call = Call::new(Method::POST, "/otel/v1/traces").in_workspace(world.tenant);
        world.call(call.json(&span)).await.expect(200);
    };
    let run = |own: u8| {
        let own = format!("{own:02x}").repeat(8);
        format!("5b8efff7-9803-8103-{}-{}", &own[..4], &own[4..])
    };
    let link = |own: u8| format!("20260301T1200{own:02}000000Z{}", run(own));
    // The leaf comes first: nobody knows yet what is above its parent.
    send(span(3, Some(2))).await;
    let leaf = world.get(&format!("/runs/{}", run(3))).await.expect(200);
    assert_eq!(leaf["dotted_order"], link(3));
    assert_eq!(
        (&leaf["is_root"], &leaf["parent_run_ids"]),
        (&json!(false), &json!([run(2)]))
    );
    send(span(1, None)).await;
    send(span(2, Some(1))).await;
    let leaf = world.get(&format!("/runs/{}", run(3))).await.expect(200);
    assert_eq!(leaf["dotted_order"], [link(1), link(2), link(3)].join("."));
    assert_eq!(leaf["parent_run_ids"], json!([run(1), run(2)]));
    let root = world.get(&format!("/runs/{}", run(1))).await.expect(200);
    assert_eq!(
        (&root["is_root"], &root["dotted_order"]),
        (&json!(true), &json!(link(1)))
    );

    // What a page shows of a run does not depend on which others are on it.
    let trace = "5b8efff7-9803-8103-d269-b633813fc60c";
    let list = async |more: Value| -> Vec<Value> {
        let mut asked = json!({"trace": trace});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let call = Call::new(Method::POST, "/runs/query")
            .in_workspace(world.tenant)
            .json(&asked);
        let page = world.call(call).await.expect(200);
        page["runs"].as_array().unwrap().clone()
    };
    let all = list(json!({})).await;
    assert_eq!(all.len(), 3);
    assert!(
        all.iter()
            .all(|run| run["dotted_order"].as_str().unwrap().starts_with(&link(1)))
    );
    let roots = list(json!({"is_root": true})).await;
    assert_eq!(roots.iter().map(|run| &run["id"]).collect::<Vec<_>>(), [&json!(run(1))]);
    let below = list(json!({"is_root": false, "limit": 1})).await;
    assert_eq!(below[0], leaf);
}

#[tokio::test]
async fn log_records_change_the_run_of_their_span() {
    let world = World::new().await;
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let record = |event: &str, attributes: &Value| {
        json!({
            "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "eventName": event,
            "timeUnixNano": "1772366400500000000", "attributes": attributes,
        })
    };
    let logs = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [
        record("gen_ai.client.inference.operation.details", &json!([
            text("gen_ai.input.messages", r#"[{"role": "user"}]"#),
            text("gen_ai.output.messages", r#"[{"role": "assistant"}]"#),
        ])),
        record("gen_ai.evaluation.result", &json!([
            text("gen_ai.evaluation.name", "Relevance"),
            {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}},
        ])),
        record("app.started", &json!([])),
    ]}]}]});
    let send = async |path: &str, body: &Value| {
        let call = Call::new(Method::POST, path).in_workspace(world.tenant);
        world.call(call.json(body)).await.expect(200)
    };
    // They come before their span, which has messages of its own.
    let answer = send("/otel/v1/logs", &logs).await;
    assert_eq!(answer["partialSuccess"]["rejectedLogRecords"], "1");
    let message = answer["partialSuccess"]["errorMessage"].as_str().unwrap();
    assert!(message.contains("not the event `app.started`"), "{message}");
    let span = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "name": "chat",
        "startTimeUnixNano": "1772366400000000000", "endTimeUnixNano": "1772366401000000000",
        "attributes": [text("gen_ai.operation.name", "chat"), text("input.value", "hi")],
    }]}]}]});
    assert_eq!(send("/otel/v1/traces", &span).await, json!({}));
    // A request that is sent again adds no feedback.
    send("/api/v1/otel/v1/logs", &logs).await;

    let id = "5b8efff7-9803-8103-0101-010101010101";
    let run = world.get(&format!("/runs/{id}")).await.expect(200);
    assert_eq!(
        (&run["name"], &run["run_type"], &run["inputs"], &run["outputs"]),
        (
            &json!("chat"),
            &json!("llm"),
            &json!({"messages": [{"role": "user"}]}),
            &json!({"messages": [{"role": "assistant"}]})
        )
    );
    let given = world.get(&format!("/feedback?run={id}")).await.expect(200);
    let given = given.as_array().unwrap();
    assert_eq!(given.len(), 1);
    assert_eq!(
        (
            &given[0]["key"],
            &given[0]["score"],
            &given[0]["feedback_source"]["type"]
        ),
        (&json!("Relevance"), &json!(0.5), &json!("model"))
    );

    let broken = Call::new(Method::POST, "/otel/v1/logs").in_workspace(world.tenant);
    let broken = broken.header("content-type", "application/x-protobuf").body("x");
    let refused = world.call(broken).await.expect(400);
    assert!(refused.to_string().contains("ExportLogsServiceRequest"), "{refused}");
}
