//! One trace from a request to the last checkpoint of the job it caused, as a collector gets it; and log lines that
//! say which job they are about.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use towpath_tests::{Layout, World, until};

use crate::load::{PATIENCE, project};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[tokio::test]
async fn one_trace_from_the_request_to_the_last_checkpoint() {
    one_trace(Layout::Embedded).await;
}

/// The request is one process's, the attempts are others': what they share is the job's row.
#[tokio::test]
async fn one_trace_over_all_processes_of_a_cluster() {
    one_trace(Layout::Cluster { workers: 2 }).await;
}

async fn one_trace(layout: Layout) {
    let collector = Collector::start().await;
    let plan = World::plan(layout).env("TOWPATH_OTLP_ENDPOINT", format!("http://{}", collector.address));
    let Some(world) = plan.start().await else { return };
    let destination = world.api.file_destination("traced").await;
    let sent = json!({
        "id": "0199a5c4-0000-7000-8000-000000000001", "name": "root", "run_type": "chain", "session_name": "traced",
        "trace_id": "0199a5c4-0000-7000-8000-000000000001", "inputs": {}, "start_time": "2026-02-01T10:00:00Z",
        "dotted_order": "20260201T100000000000Z0199a5c4-0000-7000-8000-000000000001",
    });
    world.api.post("/runs", &sent).await.expect(202);
    let body = json!({
        "bulk_export_destination_id": destination, "session_id": project(&world.api, "traced").await,
        "start_time": "2026-02-01T00:00:00Z", "end_time": "2026-02-02T00:00:00Z",
    });
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("traceparent", parent.as_str()), ("content-type", "application/json")];
    let asked = world
        .api
        .send("/api/v1/bulk-exports", &headers, Bytes::from(body.to_string()))
        .await
        .unwrap()
        .expect(200);
    let export = asked["id"].as_str().unwrap();
    let ended = world.api.export_ended(export, PATIENCE).await;
    assert_eq!(ended["status"], "COMPLETED", "{ended}");

    // The last span of the story: the parent's settling, after its part's checkpoints.
    let spans = until("the whole trace at the collector", PATIENCE, async || {
        let spans = collector.trace(TRACE);
        let jobs: Vec<_> = spans.values().filter(|span| span.name == "job").collect();
        let settled = jobs.iter().filter(|job| kind(job) == "run_export").any(|job| {
            spans
                .values()
                .any(|span| span.name == "settle" && span.parent_span_id == job.span_id)
        });
        // Each process sends its spans in its own time.
        let whole = spans.values().all(|span| {
            let parent = hex(&span.parent_span_id);
            parent == CALLER || spans.contains_key(&parent)
        });
        let part = jobs.iter().find(|job| kind(job) == "export_part");
        let parted = part.is_some_and(|part| {
            let inside = |name: &str| {
                let mut spans = spans.values();
                spans.any(|span| span.name == name && span.parent_span_id == part.span_id)
            };
            inside("checkpoint") && inside("settle")
        });
        (settled && whole && parted).then_some(spans)
    })
    .await;
    let requests: Vec<_> = spans.values().filter(|span| span.name == "http.request").collect();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(hex(&requests[0].parent_span_id), CALLER);
    assert_eq!(attribute(requests[0], "http.route"), "/api/v1/bulk-exports");
    for span in spans.values() {
        let parent = hex(&span.parent_span_id);
        assert!(
            parent == CALLER || spans.contains_key(&parent),
            "{} hangs on nothing: {parent}",
            span.name
        );
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
    }
    // Every attempt of the export hangs on the request, its part on the attempt that recorded it.
    let export_job = asked_for(&spans, "run_export", &requests[0].span_id);
    let part = asked_for(&spans, "export_part", &export_job);
    let inside = |name: &str| {
        spans
            .values()
            .any(|span| span.name == name && span.parent_span_id == part)
    };
    assert!(inside("checkpoint") && inside("settle"), "{:?}", names(&spans));
    let steps: Vec<_> = spans.values().filter(|span| span.name == "step").collect();
    assert!(
        steps
            .iter()
            .any(|span| attribute(span, "step.name") == "write manifest"),
        "{:?}",
        names(&spans)
    );
    world.stop().await;
}

#[tokio::test]
async fn lines_of_a_job_say_which_job_and_which_trace() {
    let mut world = World::plan(Layout::Embedded).start().await.unwrap();
    let destination = world.api.file_destination("broken").await;
    // What was a folder is a file: the export fails, and says so in the log.
    let folder = world.exports().join("broken");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::write(&folder, b"in the way").unwrap();
    let sent = json!({
        "id": "0199a5c4-0000-7000-8000-000000000002", "name": "root", "run_type": "chain", "session_name": "broken",
        "trace_id": "0199a5c4-0000-7000-8000-000000000002", "inputs": {}, "start_time": "2026-02-01T10:00:00Z",
        "dotted_order": "20260201T100000000000Z0199a5c4-0000-7000-8000-000000000002",
    });
    world.api.post("/runs", &sent).await.expect(202);
    let body = json!({
        "bulk_export_destination_id": destination, "session_id": project(&world.api, "broken").await,
        "start_time": "2026-02-01T00:00:00Z", "end_time": "2026-02-02T00:00:00Z",
    });
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("traceparent", parent.as_str()), ("content-type", "application/json")];
    let sent = world
        .api
        .send("/api/v1/bulk-exports", &headers, Bytes::from(body.to_string()))
        .await;
    sent.unwrap().expect(200);
    let dev = world.process("dev");
    let line = until("a line about the failed attempt", PATIENCE, async || {
        let text = dev.log_text();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["job.kind"] == "export_part")
    })
    .await;
    assert_eq!(line["trace_id"], TRACE, "{line}");
    assert_eq!(line["job.attempt"], 1, "{line}");
    assert!(line["job.id"].as_str().is_some_and(|id| id.len() == 36), "{line}");
    assert!(line["timestamp"].is_string() && line["message"].is_string(), "{line}");
    world.stop().await;
}

/// The id of the attempt of `kind` that hangs on `parent` and was the last to begin.
fn asked_for(spans: &BTreeMap<String, Span>, kind_wanted: &str, parent: &[u8]) -> Vec<u8> {
    let attempts = spans
        .values()
        .filter(|span| span.name == "job" && kind(span) == kind_wanted);
    let all: Vec<_> = attempts.collect();
    let mut below: Vec<_> = all.iter().filter(|span| span.parent_span_id == parent).collect();
    if below.is_empty() {
        // A part is recorded by one attempt of the export, and the one that settles it is another.
        below = all.iter().collect();
    }
    below.sort_by_key(|span| span.start_time_unix_nano);
    let last = below.last();
    last.unwrap_or_else(|| panic!("no {kind_wanted} among {:?}", names(spans)))
        .span_id
        .clone()
}

fn names(spans: &BTreeMap<String, Span>) -> Vec<(&str, String)> {
    spans.values().map(|span| (span.name.as_str(), kind(span))).collect()
}

fn kind(span: &Span) -> String {
    attribute(span, "job.kind")
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(AnyValue::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A collector of spans that keeps what it gets.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<HashMap<String, BTreeMap<String, Span>>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spans: Arc<Mutex<HashMap<String, BTreeMap<String, Span>>>> = Arc::default();
        let kept = spans.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, kept.clone()));
            }
        });
        Self { address, spans }
    }

    /// The spans of a trace by their ids.
    fn trace(&self, id: &str) -> BTreeMap<String, Span> {
        self.spans.lock().unwrap().get(id).cloned().unwrap_or_default()
    }
}

/// Just enough HTTP/1.1: requests with a length, one after another.
async fn serve(mut stream: TcpStream, kept: Arc<Mutex<HashMap<String, BTreeMap<String, Span>>>>) {
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
        assert!(text.starts_with("post /v1/traces "), "{text}");
        assert!(text.contains("content-type: application/x-protobuf"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.unwrap().trim().parse().unwrap();
        while read.len() < head + length {
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let request = ExportTraceServiceRequest::decode(&read[head..head + length]).unwrap();
        read.drain(..head + length);
        let scopes = request
            .resource_spans
            .into_iter()
            .flat_map(|resource| resource.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let mut kept = kept.lock().unwrap();
            kept.entry(hex(&span.trace_id))
                .or_default()
                .insert(hex(&span.span_id), span);
        }
        if stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .is_err()
        {
            return;
        }
    }
}
