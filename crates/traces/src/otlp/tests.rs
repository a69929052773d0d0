use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1 as proto;
use prost::Message as _;
use serde_json::{Value, json};

use super::*;

const TRACE: [u8; 16] = [
    0x5b, 0x8e, 0xff, 0xf7, 0x98, 0x03, 0x81, 0x03, 0xd2, 0x69, 0xb6, 0x33, 0x81, 0x3f, 0xc6, 0x0c,
];

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Any::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

fn number(key: &str, value: i64) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Any::IntValue(value)),
        }),
        ..KeyValue::default()
    }
}

fn posts(body: &[u8], format: Format, project: Option<&str>) -> Vec<Value> {
    let (batch, count) = to_batch(body, format, project).unwrap();
    let batch: Value = serde_json::from_slice(&batch).unwrap();
    let posts = batch["post"].as_array().unwrap().clone();
    assert_eq!(posts.len(), count);
    posts
}

#[test]
fn a_span_of_a_model_becomes_an_llm_run() {
    let span = proto::Span {
        trace_id: TRACE.to_vec(),
        span_id: vec![1; 8],
        parent_span_id: vec![2; 8],
        name: "chat".to_owned(),
        start_time_unix_nano: 1_767_225_600_000_000_000,
        end_time_unix_nano: 1_767_225_601_500_000_000,
        attributes: vec![
            text("gen_ai.system", "openai"),
            text("gen_ai.request.model", "m-1"),
            text("gen_ai.prompt.0.role", "user"),
            text("gen_ai.prompt.0.content", "hi"),
            text("gen_ai.completion.0.content", "hello"),
            number("gen_ai.usage.input_tokens", 3),
            number("gen_ai.usage.output_tokens", 4),
            text("langsmith.metadata.user", "u1"),
            text("langsmith.span.tags", "a, b"),
            text("other", "kept"),
        ],
        ..proto::Span::default()
    };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![proto::ResourceSpans {
            scope_spans: vec![proto::ScopeSpans {
                spans: vec![span],
                ..proto::ScopeSpans::default()
            }],
            ..proto::ResourceSpans::default()
        }],
    };
    let posts = posts(&request.encode_to_vec(), Format::Protobuf, Some("mine"));
    let run = &posts[0];
    assert_eq!(run["trace_id"], "5b8efff7-9803-8103-d269-b633813fc60c");
    assert_eq!(run["id"], "5b8efff7-9803-8103-0101-010101010101");
    assert_eq!(run["parent_run_id"], "5b8efff7-9803-8103-0202-020202020202");
    assert_eq!((&run["run_type"], &run["name"]), (&json!("llm"), &json!("chat")));
    assert_eq!(run["session_name"], "mine");
    assert_eq!(run["inputs"], json!({"messages": [{"role": "user", "content": "hi"}]}));
    assert_eq!(run["outputs"], json!({"messages": [{"content": "hello"}]}));
    assert_eq!(run["tags"], json!(["a", "b"]));
    let metadata = &run["extra"]["metadata"];
    assert_eq!(
        metadata["usage_metadata"],
        json!({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7})
    );
    assert_eq!(
        (&metadata["ls_provider"], &metadata["user"], &metadata["other"]),
        (&json!("openai"), &json!("u1"), &json!("kept"))
    );
}

#[test]
fn json_says_the_same_and_a_failure_is_told() {
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
        "scopeSpans": [{"spans": [{
            "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "name": "work",
            "startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": 1_767_225_601_000_000_000_u64,
            "status": {"code": 2, "message": "boom"},
            "attributes": [
                {"key": "langsmith.span.kind", "value": {"stringValue": "TOOL"}},
                {"key": "langsmith.trace.session_name", "value": {"stringValue": "own"}},
                {"key": "input.value", "value": {"stringValue": "{\"q\": 1}"}},
                {"key": "output.value", "value": {"stringValue": "plain"}},
                {"key": "n", "value": {"intValue": "7"}},
            ],
            "events": [{"timeUnixNano": "1767225600500000000", "name": "exception",
                "attributes": [{"key": "exception.message", "value": {"stringValue": "boom: it broke"}}]}],
        }]}],
    }]});
    let posts = posts(body.to_string().as_bytes(), Format::Json, Some("mine"));
    let run = &posts[0];
    assert_eq!(run["id"], "5b8efff7-9803-8103-0101-010101010101");
    assert!(run.get("parent_run_id").is_none());
    assert_eq!(
        (&run["run_type"], &run["session_name"]),
        (&json!("tool"), &json!("own"))
    );
    assert_eq!(
        (&run["inputs"], &run["outputs"]),
        (&json!({"q": 1}), &json!({"output": "plain"}))
    );
    assert_eq!(run["error"], "boom: it broke");
    assert_eq!(run["events"][0]["name"], "exception");
    assert_eq!(run["extra"]["metadata"]["n"], 7);
    assert_eq!(run["extra"]["runtime"]["service.name"], "shop");
    assert_eq!(
        run["end_time"],
        json!(towpath_domain::Timestamp::parse("2026-01-01T00:00:01Z").unwrap())
    );
}

#[test]
fn what_cannot_be_read_is_refused() {
    assert!(matches!(
        to_batch(b"\xff\xff", Format::Protobuf, None),
        Err(OtlpError::Protobuf(_))
    ));
    assert!(matches!(to_batch(b"{", Format::Json, None), Err(OtlpError::Json(_))));
    let without = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x", "traceId": "00"}]}]}]});
    assert!(matches!(
        to_batch(without.to_string().as_bytes(), Format::Json, None),
        Err(OtlpError::Ids)
    ));
    assert_eq!(to_batch(b"", Format::Protobuf, None).unwrap().1, 0);
}

#[test]
fn null_is_a_field_that_is_not_set() {
    let body = json!({"resourceSpans": [{"resource": null, "scopeSpans": [{"spans": [{
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "parentSpanId": null,
        "name": "x", "startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": null,
        "attributes": null, "events": null, "status": null,
    }]}, null]}]});
    // A list has no place for nothing.
    assert!(to_batch(body.to_string().as_bytes(), Format::Json, None).is_err());
    let body = body.to_string().replace(",null]", "]");
    let run = &posts(body.as_bytes(), Format::Json, None)[0];
    assert_eq!((run.get("parent_run_id"), run.get("end_time")), (None, None));
}

#[test]
fn json_that_other_readers_refuse_is_taken() {
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let with = |input: &str| {
        let span = json!({
            "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "name": "NAME",
            "events": [{"name": "said", "attributes": [{"key": "value", "value": {"stringValue": input}}]}],
            "attributes": [
                {"key": "input.value", "value": {"stringValue": input}},
                {"key": "langsmith.metadata.said", "value": {"stringValue": input}},
            ],
        });
        let body = json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).to_string();
        // A name that was cut inside an emoji.
        let body = body.replace("NAME", "cut \\ud83d");
        let (batch, _) = to_batch(body.as_bytes(), Format::Json, None).unwrap();
        crate::json::check(&batch).unwrap();
        let batch: Value = serde_json::from_slice(&batch).unwrap();
        batch["post"][0].clone()
    };
    let run = with(r#"{"text": "cut \ud83d", "n": 1e999}"#);
    assert_eq!(run["name"], "cut \u{fffd}");
    let meant = json!({"text": "cut \u{fffd}", "n": f64::MAX});
    assert_eq!(run["inputs"], meant);
    assert_eq!(run["extra"]["metadata"]["said"], meant);
    assert_eq!(run["events"][0]["kwargs"]["value"], meant);
    // One that is too deep to stand inside a batch stays a text.
    for (levels, meant) in [
        (100, serde_json::from_str(&deep(100)).unwrap()),
        (120, json!(deep(120))),
    ] {
        assert_eq!(with(&deep(levels))["inputs"], json!({ "input": meant }), "{levels}");
    }
}
