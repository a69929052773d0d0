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

fn taken(body: &[u8], format: Format, project: Option<&str>) -> Result<(AcceptedRequest, RejectedItems), OtlpError> {
    let request = Request {
        tenant: TenantId::nil(),
        signal: Signal::Traces,
        format,
        body,
        project,
        received_at: Timestamp::from_micros(0),
    };
    accept(&request, &Limits::default())
}

fn posts(body: &[u8], format: Format, project: Option<&str>) -> Vec<Value> {
    let (accepted, rejected) = taken(body, format, project).unwrap();
    assert_eq!(rejected, RejectedItems::default());
    let batch: Value = serde_json::from_slice(&accepted.frame.body).unwrap();
    let posts = batch["post"].as_array().unwrap().clone();
    assert_eq!(posts.len(), accepted.operations);
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
        json!(Timestamp::parse("2026-01-01T00:00:01Z").unwrap())
    );
}

#[test]
fn what_cannot_be_read_is_refused() {
    assert!(matches!(
        taken(b"\xff\xff", Format::Protobuf, None),
        Err(OtlpError::Protobuf { .. })
    ));
    assert!(matches!(taken(b"{", Format::Json, None), Err(OtlpError::Json { .. })));
    let (accepted, rejected) = taken(b"", Format::Protobuf, None).unwrap();
    assert_eq!((accepted.operations, rejected.count()), (0, 0));
    assert!(response(Signal::Traces, Format::Protobuf, &rejected).is_empty());
    // Where spans go is said for all of them.
    let refused = taken(b"", Format::Protobuf, Some(&"x".repeat(10_000)));
    assert!(matches!(&refused, Err(OtlpError::Refused(refusal)) if refusal.kind() == RefusalKind::Invalid));
}

fn spans(spans: &[Value]) -> Vec<u8> {
    let body = json!({"resourceSpans": [{"scopeSpans": [{ "spans": spans }]}]});
    body.to_string().into_bytes()
}

fn span(number: usize) -> Value {
    json!({
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": format!("{number:016x}"), "name": "x",
        "startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": "1767225601000000000",
    })
}

fn attribute(key: &str, value: &Value) -> Value {
    json!([{"key": key, "value": { "stringValue": value }}])
}

#[test]
fn a_span_that_cannot_be_taken_is_the_only_one() {
    let order = attribute("langsmith.span.dotted_order", &json!("nonsense"));
    let project = attribute("langsmith.trace.session_name", &json!("x".repeat(10_000)));
    let deep = (0..140).fold(
        json!({"stringValue": "x"}),
        |inner, _| json!({"arrayValue": {"values": [inner]}}),
    );
    let ends = u64::MAX.to_string();
    let wrong: [(&str, Value, &str); 8] = [
        ("endTimeUnixNano", json!(ends), "`end_time`: time out of range"),
        ("startTimeUnixNano", json!(ends), "`start_time`: time out of range"),
        ("startTimeUnixNano", json!("soon"), "expected nanoseconds since 1970"),
        ("traceId", json!("00"), "expected a trace id of 16 bytes"),
        ("attributes", order, "`dotted_order`: expected <time>Z<id> parts"),
        ("attributes", project, "`session_name`: a project name"),
        ("attributes", json!([{"key": "a", "value": deep}]), ""),
        ("name", json!(["x"]), "invalid type: sequence, expected a string"),
    ];
    for (field, value, why) in wrong {
        let mut all: Vec<Value> = (1..4).map(span).collect();
        all[1][field] = value;
        let (accepted, rejected) = taken(&spans(&all), Format::Json, None).unwrap();
        let kept: Value = serde_json::from_slice(&accepted.frame.body).unwrap();
        let ids: Vec<_> = kept["post"]
            .as_array()
            .unwrap()
            .iter()
            .map(|post| &post["id"])
            .collect();
        assert_eq!(
            ids,
            [
                "5b8efff7-9803-8103-0000-000000000001",
                "5b8efff7-9803-8103-0000-000000000003"
            ],
            "{field}"
        );
        assert_eq!(rejected.count(), 1);
        let message = rejected.message(Signal::Traces);
        assert!(message.contains("span 0000000000000002: "), "{message}");
        assert!(message.contains(why), "{message}");
    }
    let (accepted, rejected) = taken(&spans(&[json!(null), json!(7), json!([])]), Format::Json, None).unwrap();
    assert_eq!((accepted.operations, rejected.count()), (0, 3));
}

#[test]
fn what_was_left_out_is_told_in_both_forms() {
    let all: Vec<Value> = (1..9)
        .map(|number| {
            let mut span = span(number);
            span["traceId"] = json!("");
            span
        })
        .collect();
    let (_, rejected) = taken(&spans(&all), Format::Json, None).unwrap();
    let message = rejected.message(Signal::Traces);
    assert!(message.starts_with("rejected spans: 8. span 0000000000000001: expected"));
    assert!(message.ends_with("; and 3 more"), "{message}");
    let json: Value = serde_json::from_slice(&response(Signal::Traces, Format::Json, &rejected)).unwrap();
    assert_eq!(
        json,
        json!({"partialSuccess": {"rejectedSpans": "8", "errorMessage": message}})
    );
    let protobuf =
        ExportTraceServiceResponse::decode(response(Signal::Traces, Format::Protobuf, &rejected).as_slice()).unwrap();
    let partial = protobuf.partial_success.unwrap();
    assert_eq!((partial.rejected_spans, partial.error_message), (8, message));
    assert_eq!(response(Signal::Traces, Format::Json, &RejectedItems::default()), b"{}");
}

#[test]
fn tokens_are_summed_up_to_what_a_number_can_say() {
    let mut one = span(1);
    one["attributes"] = json!([
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": i64::MAX.to_string()}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "5"}},
    ]);
    let run = &posts(&spans(&[one]), Format::Json, None)[0];
    assert_eq!(
        run["extra"]["metadata"]["usage_metadata"],
        json!({"input_tokens": i64::MAX, "output_tokens": 5, "total_tokens": i64::MAX})
    );
}

#[test]
fn null_is_a_field_that_is_not_set() {
    let body = json!({"resourceSpans": [{"resource": null, "scopeSpans": [{"spans": [{
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101", "parentSpanId": null,
        "name": "x", "startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": null,
        "attributes": null, "events": null, "status": null,
    }]}, null]}]});
    // A list has no place for nothing.
    assert!(taken(body.to_string().as_bytes(), Format::Json, None).is_err());
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
        let (accepted, rejected) = taken(body.as_bytes(), Format::Json, None).unwrap();
        assert_eq!((accepted.operations, rejected.count()), (1, 0));
        posts(body.as_bytes(), Format::Json, None).remove(0)
    };
    let run = with(r#"{"text": "cut \ud83d", "n": 1e999}"#);
    assert_eq!(run["name"], "cut \u{fffd}");
    let meant = json!({"text": "cut \u{fffd}", "n": f64::MAX});
    assert_eq!(run["inputs"], meant);
    assert_eq!(run["extra"]["metadata"]["said"], meant);
    assert_eq!(run["events"][0]["kwargs"]["value"], meant);
    // One that is too deep to be inside a batch stays a text.
    for (levels, meant) in [
        (100, serde_json::from_str(&deep(100)).unwrap()),
        (120, json!(deep(120))),
    ] {
        assert_eq!(with(&deep(levels))["inputs"], json!({ "input": meant }), "{levels}");
    }
}

/// The run of a span with `attributes`, whose values are texts, numbers or lists of texts.
fn with_attributes(attributes: &Value) -> Value {
    let value = |value: &Value| match value {
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().map(|item| json!({ "stringValue": item })).collect();
            json!({"arrayValue": { "values": items }})
        }
        Value::Number(number) if number.is_f64() => json!({ "doubleValue": number }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
        other => json!({ "stringValue": other }),
    };
    let pairs = attributes.as_object().unwrap().iter();
    let mut one = span(1);
    one["attributes"] = pairs
        .map(|(key, own)| json!({"key": key, "value": value(own)}))
        .collect();
    posts(&spans(&[one]), Format::Json, None).remove(0)
}

#[test]
fn messages_of_open_inference_are_nested() {
    let run = with_attributes(&json!({
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.type": "text",
        "llm.input_messages.0.message.contents.0.message_content.text": "what is it?",
        "llm.input_messages.0.message.contents.1.message_content.type": "image",
        "llm.input_messages.0.message.contents.1.message_content.image.image.url": "https://images.test/1",
        "llm.input_messages.10.message.role": "tool",
        "llm.input_messages.2.message.role": "assistant",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{\"at\": 1}",
        "llm.tools.0.tool.json_schema": "{\"type\": \"function\", \"function\": {\"name\": \"look\"}}",
        "llm.invocation_parameters": "{\"temperature\": 0.5}",
        "llm.token_count.prompt": 100,
        "llm.token_count.completion": 20,
        "llm.token_count.prompt_details.cache_read": 60,
        "llm.token_count.completion_details.reasoning": 8,
        "metadata": "{\"team\": \"blue\"}",
        "tag.tags": ["a", "b"],
    }));
    assert_eq!(
        run["inputs"],
        json!({"messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": "https://images.test/1"}},
            ]},
            {"role": "assistant"},
            {"role": "tool"},
        ]})
    );
    assert_eq!(
        run["outputs"],
        json!({"messages": [{"role": "assistant", "tool_calls": [
            {"id": "c1", "function": {"name": "look", "arguments": "{\"at\": 1}"}},
        ]}]})
    );
    assert_eq!(
        run["extra"]["invocation_params"],
        json!({"temperature": 0.5, "tools": [{"type": "function", "function": {"name": "look"}}]})
    );
    let metadata = &run["extra"]["metadata"];
    assert_eq!(
        metadata["usage_metadata"],
        json!({
            "input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
            "input_token_details": {"cache_read": 60}, "output_token_details": {"reasoning": 8},
        })
    );
    assert_eq!((&metadata["team"], &run["tags"]), (&json!("blue"), &json!(["a", "b"])));
    let names: Vec<&String> = metadata.as_object().unwrap().keys().collect();
    assert!(
        !names
            .iter()
            .any(|name| name.contains("messages") || name.contains("tools"))
    );
}

#[test]
fn instructions_tools_and_tokens_of_the_cache_have_their_fields() {
    let run = with_attributes(&json!({
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.system_instructions": "[{\"type\": \"text\", \"content\": \"be brief\"}]",
        "gen_ai.input.messages": "[{\"role\": \"user\", \"parts\": [{\"type\": \"text\", \"content\": \"hi\"}]}]",
        "gen_ai.tool.definitions": "[{\"type\": \"function\", \"name\": \"look\"}]",
        "gen_ai.usage.input_tokens": 50,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.usage.cache_creation.input_tokens": 10,
    }));
    assert_eq!(
        run["inputs"],
        json!({"messages": [
            {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
            {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
        ]})
    );
    assert_eq!(
        run["extra"]["invocation_params"],
        json!({"tools": [{"type": "function", "name": "look"}]})
    );
    assert_eq!(
        run["extra"]["metadata"]["usage_metadata"],
        json!({
            "input_tokens": 50, "output_tokens": 5, "total_tokens": 55,
            "input_token_details": {"cache_read": 30, "cache_creation": 10},
        })
    );
    assert!(run["extra"]["metadata"].get("gen_ai.system_instructions").is_none());

    // Beside inputs in one attribute, the instructions are not lost.
    let run = with_attributes(&json!({"input.value": "hi", "gen_ai.system_instructions": "be brief"}));
    assert_eq!(run["inputs"], json!({"input": "hi"}));
    assert_eq!(run["extra"]["metadata"]["gen_ai.system_instructions"], "be brief");
}

#[test]
fn messages_may_be_in_an_event() {
    let mut one = span(1);
    one["events"] = json!([{
        "name": "gen_ai.client.inference.operation.details", "timeUnixNano": "1767225600500000000",
        "attributes": [
            {"key": "gen_ai.system_instructions", "value": {"stringValue": "be brief"}},
            {"key": "gen_ai.input.messages", "value": {"stringValue": "[{\"role\": \"user\"}]"}},
            {"key": "gen_ai.output.messages", "value": {"stringValue": "[{\"role\": \"assistant\"}]"}},
        ],
    }]);
    let run = &posts(&spans(&[one]), Format::Json, None)[0];
    assert_eq!(
        run["inputs"],
        json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user"}]})
    );
    assert_eq!(run["outputs"], json!({"messages": [{"role": "assistant"}]}));
}

#[test]
fn a_retrieval_has_a_query_and_documents() {
    let found = json!({"documents": [
        {"type": "Document", "id": "d1", "page_content": "first", "metadata": {"score": 0.5, "from": "book"}},
        {"type": "Document", "page_content": "", "metadata": {"score": 0.25}},
    ]});
    let run = with_attributes(&json!({
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": "where?",
        "gen_ai.retrieval.documents": json!([
            {"id": "d1", "content": "first", "score": 0.5, "metadata": {"from": "book"}},
            {"score": 0.25},
        ]).to_string(),
    }));
    assert_eq!(
        (&run["run_type"], &run["inputs"], &run["outputs"]),
        (&json!("retriever"), &json!({"query": "where?"}), &found)
    );
    let run = with_attributes(&json!({
        "openinference.span.kind": "RETRIEVER",
        "input.value": "where?",
        "retrieval.documents.0.document.id": "d1",
        "retrieval.documents.0.document.content": "first",
        "retrieval.documents.0.document.score": 0.5,
        "retrieval.documents.0.document.metadata": "{\"from\": \"book\"}",
        "retrieval.documents.1.document.score": 0.25,
    }));
    assert_eq!(
        (&run["run_type"], &run["inputs"], &run["outputs"]),
        (&json!("retriever"), &json!({"input": "where?"}), &found)
    );
    let run = with_attributes(&json!({
        "openinference.span.kind": "RERANKER",
        "reranker.query": "where?",
        "reranker.input_documents.0.document.content": "first",
        "reranker.output_documents.0.document.content": "second",
    }));
    let document = |text: &str| json!({"type": "Document", "page_content": text, "metadata": {}});
    assert_eq!(
        (&run["run_type"], &run["inputs"], &run["outputs"]),
        (
            &json!("retriever"),
            &json!({"query": "where?", "documents": [document("first")]}),
            &json!({"documents": [document("second")]})
        )
    );
}

#[test]
fn functions_of_the_older_convention_are_tools() {
    let run = with_attributes(&json!({
        "llm.request.type": "chat",
        "llm.request.functions.0.name": "look",
        "llm.request.functions.0.parameters": "{\"type\": \"object\"}",
        "gen_ai.completion.0.tool_calls.0.name": "look",
        "gen_ai.completion.0.tool_calls.0.arguments": "{}",
    }));
    assert_eq!(
        run["extra"]["invocation_params"],
        json!({"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]})
    );
    assert_eq!(
        run["outputs"],
        json!({"messages": [{"tool_calls": [{"name": "look", "arguments": "{}"}]}]})
    );
}

/// A log record of the first span with `event` and `attributes`.
fn record(event: &str, attributes: &[(&str, Value)], body: Value) -> Value {
    let attributes: Vec<Value> = attributes
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    json!({
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "0101010101010101",
        "timeUnixNano": "1767225600000000000", "eventName": event, "attributes": attributes, "body": body,
    })
}

fn taken_logs(records: &[Value]) -> (AcceptedRequest, RejectedItems) {
    let body = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).to_string();
    let request = Request {
        tenant: TenantId::nil(),
        signal: Signal::Logs,
        format: Format::Json,
        body: body.as_bytes(),
        project: None,
        received_at: Timestamp::from_micros(0),
    };
    accept(&request, &Limits::default()).unwrap()
}

/// Patches of a request without feedback.
fn patches(records: &[Value]) -> Vec<Value> {
    let (accepted, rejected) = taken_logs(records);
    assert_eq!(rejected, RejectedItems::default());
    let mut batch: Value = serde_json::from_slice(&accepted.frame.body).unwrap();
    assert_eq!(batch["post"], json!([]));
    serde_json::from_value(batch["patch"].take()).unwrap()
}

fn feedback_of(accepted: &AcceptedRequest) -> Vec<Value> {
    let contents = crate::accept::read(&accepted.frame, &Limits::default()).unwrap();
    let bodies = contents.feedback.iter();
    bodies
        .map(|feedback| serde_json::from_str(&feedback.body).unwrap())
        .collect()
}

const RUN: &str = "5b8efff7-9803-8103-0101-010101010101";

#[test]
fn details_in_a_log_record_are_a_patch_of_the_run() {
    let said = |value: &str| json!({ "stringValue": value });
    let messages = json!({"arrayValue": {"values": [{"kvlistValue": {"values": [
        {"key": "role", "value": said("user")},
    ]}}]}});
    let details = record(
        "gen_ai.client.inference.operation.details",
        &[
            ("gen_ai.request.model", said("m-1")),
            ("gen_ai.system_instructions", said("be brief")),
            ("gen_ai.input.messages", messages),
            ("gen_ai.output.messages", said("[{\"role\": \"assistant\"}]")),
            ("gen_ai.tool.definitions", said("[{\"name\": \"look\"}]")),
        ],
        Value::Null,
    );
    assert_eq!(
        patches(&[details]),
        [json!({
            "id": RUN,
            "inputs": {"messages": [{"role": "system", "content": "be brief"}, {"role": "user"}]},
            "outputs": {"messages": [{"role": "assistant"}]},
            "extra": {
                "metadata": {"gen_ai.request.model": "m-1", "ls_model_name": "m-1"},
                "invocation_params": {"tools": [{"name": "look"}]},
            },
        })]
    );
}

#[test]
fn messages_in_log_records_are_gathered_by_span_and_time() {
    let said = |text: &str| json!({"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": text}}]}});
    let mut later = record("gen_ai.user.message", &[], said("and then?"));
    later["timeUnixNano"] = json!("1767225601000000000");
    // The name of an event was an attribute once, and a record may have only the time at which it was seen.
    let mut first = record(
        "",
        &[("event.name", json!({"stringValue": "gen_ai.system.message"}))],
        said("be brief"),
    );
    first["timeUnixNano"] = Value::Null;
    first["observedTimeUnixNano"] = json!("1767225600000000000");
    let choice = json!({"kvlistValue": {"values": [
        {"key": "index", "value": {"intValue": "0"}},
        {"key": "finish_reason", "value": {"stringValue": "stop"}},
        {"key": "message", "value": {"kvlistValue": {"values": [
            {"key": "role", "value": {"stringValue": "assistant"}},
            {"key": "content", "value": {"stringValue": "ok"}},
        ]}}},
    ]}});
    let mut other = record("gen_ai.user.message", &[], said("hi"));
    other["spanId"] = json!("0202020202020202");
    let sent = [later, other, first, record("gen_ai.choice", &[], choice)];
    assert_eq!(
        patches(&sent),
        [
            json!({
                "id": RUN,
                "inputs": {"messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": "and then?"},
                ]},
                "outputs": {"messages": [
                    {"index": 0, "finish_reason": "stop", "role": "assistant", "content": "ok"},
                ]},
            }),
            json!({
                "id": "5b8efff7-9803-8103-0202-020202020202",
                "inputs": {"messages": [{"role": "user", "content": "hi"}]},
            }),
        ]
    );
}

#[test]
fn results_of_evaluations_are_feedback() {
    let text = |value: &str| json!({ "stringValue": value });
    let attributes = [
        ("gen_ai.evaluation.name", text("Relevance")),
        ("gen_ai.evaluation.score.value", json!({"doubleValue": 0.25})),
        ("gen_ai.evaluation.score.label", text("poor")),
        ("gen_ai.evaluation.explanation", text("off topic")),
        ("gen_ai.response.id", text("r-1")),
    ];
    let result = record("gen_ai.evaluation.result", &attributes, Value::Null);
    let failed = record(
        "gen_ai.evaluation.result",
        &[
            ("gen_ai.evaluation.name", text("Relevance")),
            ("error.type", text("timeout")),
        ],
        Value::Null,
    );
    let (accepted, rejected) = taken_logs(&[result.clone(), failed]);
    assert_eq!((accepted.operations, accepted.feedback, rejected.count()), (0, 2, 0));
    let mut given = feedback_of(&accepted);
    let ids: Vec<Value> = given.iter_mut().map(|feedback| feedback["id"].take()).collect();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(
        given,
        [
            json!({
                "id": null, "run_id": RUN, "trace_id": "5b8efff7-9803-8103-d269-b633813fc60c", "key": "Relevance",
                "score": 0.25, "value": "poor", "comment": "off topic", "created_at": "2026-01-01T00:00:00.000000Z",
                "feedback_source": {"type": "model", "metadata": {"gen_ai.response.id": "r-1"}},
            }),
            json!({
                "id": null, "run_id": RUN, "trace_id": "5b8efff7-9803-8103-d269-b633813fc60c", "key": "Relevance",
                "error": true, "created_at": "2026-01-01T00:00:00.000000Z",
                "feedback_source": {"type": "model", "metadata": {"error.type": "timeout"}},
            }),
        ]
    );
    // The same request again is the same feedback.
    let again = feedback_of(&taken_logs(&[result]).0);
    assert_eq!(again[0]["id"], ids[0]);

    // In an event of the span, it is feedback next to the run.
    let mut one = span(1);
    one["spanId"] = json!("0101010101010101");
    one["events"] = json!([
        {"name": "gen_ai.evaluation.result", "timeUnixNano": "1767225600000000000",
         "attributes": attributes.map(|(key, value)| json!({"key": key, "value": value}))},
        {"name": "gen_ai.evaluation.result", "attributes": []},
    ]);
    let (accepted, rejected) = taken(&spans(&[one.clone()]), Format::Json, None).unwrap();
    assert_eq!((accepted.operations, accepted.feedback, rejected.count()), (1, 1, 0));
    let given = feedback_of(&accepted);
    assert_eq!((&given[0]["id"], &given[0]["run_id"]), (&ids[0], &json!(RUN)));
    // A rejected span leaves no feedback.
    one["endTimeUnixNano"] = json!(u64::MAX.to_string());
    let (accepted, rejected) = taken(&spans(&[one]), Format::Json, None).unwrap();
    assert_eq!((accepted.operations, accepted.feedback, rejected.count()), (0, 0, 1));
}

#[test]
fn other_log_records_are_left_out() {
    let text = |value: &str| json!({ "stringValue": value });
    let name = ("gen_ai.evaluation.name", text("Relevance"));
    let wrong_score = ("gen_ai.evaluation.score.value", text("high"));
    let mut zeros = record("gen_ai.user.message", &[], Value::Null);
    zeros["spanId"] = json!("0000000000000000");
    let sent = [
        record("", &[], text("listening")),
        zeros,
        record("gen_ai.evaluation.result", &[], Value::Null),
        record("gen_ai.evaluation.result", &[name.clone(), wrong_score], Value::Null),
        json!(7),
        record("gen_ai.evaluation.result", &[name], Value::Null),
    ];
    let (accepted, rejected) = taken_logs(&sent);
    assert_eq!((accepted.operations, accepted.feedback, rejected.count()), (0, 1, 5));
    let message = rejected.message(Signal::Logs);
    for reason in [
        "rejected log records: 5. log record 0101010101010101: expected an event with messages",
        "log record 0000000000000000: the event `gen_ai.user.message` belongs to no span: expected a trace id",
        "gen_ai.evaluation.name: expected 1 to 200 characters",
        "gen_ai.evaluation.score.value: expected a number",
        "log record without an id: ",
    ] {
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let answer = response(Signal::Logs, Format::Json, &rejected);
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["partialSuccess"]["rejectedLogRecords"], "5");
    let answer = response(Signal::Logs, Format::Protobuf, &rejected);
    let partial = ExportLogsServiceResponse::decode(answer.as_slice())
        .unwrap()
        .partial_success
        .unwrap();
    assert_eq!((partial.rejected_log_records, partial.error_message), (5, message));
}

#[test]
fn log_records_in_protobuf_read_the_same() {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};

    let log = LogRecord {
        observed_time_unix_nano: 1_767_225_600_000_000_000,
        trace_id: TRACE.to_vec(),
        span_id: vec![1; 8],
        event_name: "gen_ai.client.inference.operation.details".to_owned(),
        attributes: vec![text("gen_ai.output.messages", "[]")],
        ..LogRecord::default()
    };
    let logs = ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            scope_logs: vec![ScopeLogs {
                log_records: vec![log],
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    };
    let request = Request {
        tenant: TenantId::nil(),
        signal: Signal::Logs,
        format: Format::Protobuf,
        body: &logs.encode_to_vec(),
        project: None,
        received_at: Timestamp::from_micros(0),
    };
    let (accepted, _) = accept(&request, &Limits::default()).unwrap();
    let batch: Value = serde_json::from_slice(&accepted.frame.body).unwrap();
    assert_eq!(
        batch["patch"],
        json!([{"id": RUN, "outputs": {"messages": []}, "extra": {"metadata": {}}}])
    );
    let broken = Request { body: b"x", ..request };
    let error = accept(&broken, &Limits::default()).unwrap_err().to_string();
    assert!(
        error.starts_with("the body is not an ExportLogsServiceRequest: "),
        "{error}"
    );
}
