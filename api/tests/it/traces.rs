//! Trace ingest.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use towpath_api::Settings;
use towpath_domain::Timestamp;
use towpath_store::{projects, wal_segments};
use towpath_traces::accept::{self, Contents};
use towpath_traces::body::Limits;
use towpath_traces::wal::frame;
use uuid::Uuid;

use crate::world::{Answer, Call, World};

const ID: &str = "01a1f87a-5922-751a-9e7b-b20ac5ab0dc2";
const BOUNDARY: &str = "5a3b";

/// A body as the official Python client builds it: each part says its length.
fn multipart(parts: &[(&str, &Value)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in parts {
        let value = value.to_string();
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            value.len()
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value.as_bytes());
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

fn run(project: &str) -> Value {
    json!({
        "id": ID,
        "trace_id": ID,
        "dotted_order": format!("20260301T120000000000Z{ID}"),
        "session_name": project,
        "name": "lock",
        "run_type": "chain",
        "start_time": "2026-03-01T12:00:00.000000+00:00",
    })
}

impl World {
    async fn send(&self, path: &str, body: impl Into<Bytes>, encoding: Option<&str>) -> Answer {
        let call = Call::new(Method::POST, path)
            .in_workspace(self.tenant)
            .header("content-type", &format!("multipart/form-data; boundary={BOUNDARY}"))
            .body(body);
        let call = match encoding {
            Some(encoding) => call.header("content-encoding", encoding),
            None => call,
        };
        self.call(call).await
    }

    /// Everything that is in units, in order.
    async fn accepted(&self) -> Vec<Contents> {
        let units = self
            .store
            .read(async |tx| wal_segments::open(tx, i64::MAX).await)
            .await
            .unwrap();
        let mut all = Vec::new();
        for row in units {
            let bytes = std::fs::read(self.folder.path().join("objects").join(&row.path)).unwrap();
            for frame in frame::read(Bytes::from(bytes)) {
                let frame = frame.unwrap();
                assert_eq!(frame.head.tenant, self.tenant);
                all.push(accept::read(&frame, &Limits::default()).unwrap());
            }
        }
        all
    }
}

#[tokio::test]
async fn a_202_is_on_disk_and_registered() {
    let world = World::new().await;
    let (post, outputs) = (run("canal"), json!({"gate": "open"}));
    let body = multipart(&[
        (&format!("post.{ID}"), &post),
        (&format!("post.{ID}.inputs"), &json!({"boat": 1})),
        (
            &format!("patch.{ID}"),
            &json!({"end_time": "2026-03-01T12:00:01Z", "dotted_order": post["dotted_order"]}),
        ),
        (&format!("patch.{ID}.outputs"), &outputs),
    ]);
    let zstd = zstd::encode_all(&body[..], 3).unwrap();
    for (path, body, encoding) in [
        ("/runs/multipart", body.clone(), None),
        ("/api/v1/runs/multipart", zstd.clone(), Some("zstd")),
        // The same again: no 409, folding knows it by its id.
        ("/runs/multipart", zstd, Some("zstd")),
    ] {
        let answer = world.send(path, body, encoding).await;
        assert_eq!(answer.expect(202), json!({"message": "Runs batch ingested"}));
    }
    let all = world.accepted().await;
    assert_eq!(all.len(), 3);
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0].operations.len(), 2);
    assert_eq!(
        all[0].operations[1].fields.outputs.as_deref(),
        Some(outputs.to_string().as_str())
    );
    let project = world
        .store
        .read(async |tx| projects::by_name(tx, world.tenant, "canal").await)
        .await
        .unwrap();
    assert!(project.is_some(), "the project was not made");
    let sessions = world.get("/sessions?name=canal").await.expect(200);
    assert_eq!(sessions[0]["id"], project.unwrap().id.to_string());
}

#[tokio::test]
async fn a_field_that_is_too_large_is_named() {
    let world = World::new().await;
    // It packs well, but not so well that the body is refused for that.
    let noise: String = (0_u32..1 << 16)
        .map(|number| format!("{:08x}", number.wrapping_mul(2_654_435_761)))
        .collect();
    let text = noise + &"a".repeat(64 << 20);
    let body = |field: &str| {
        multipart(&[
            (&format!("post.{ID}"), &run("canal")),
            (&format!("post.{ID}.{field}"), &json!({ "text": &text })),
        ])
    };
    for field in ["inputs", "extra"] {
        let packed = zstd::encode_all(&body(field)[..], 1).unwrap();
        let refused = world.send("/runs/multipart", packed, Some("zstd")).await.expect(413);
        let error = refused["details"].as_str().unwrap();
        assert!(
            error.starts_with(&format!("post.{ID} `{field}`: larger than 67108864 bytes")),
            "{refused}"
        );
    }
    assert!(world.accepted().await.is_empty());
}

#[tokio::test]
async fn json_routes_are_read_too() {
    let world = World::new().await;
    let batch =
        json!({"post": [run("canal")], "patch": [{"id": ID, "trace_id": ID, "end_time": "2026-03-01T12:00:01Z"}]});
    world.post("/runs/batch", &batch).await.expect(202);
    world.post("/api/v1/runs", &run("other")).await.expect(202);
    let patch = Call::new(Method::PATCH, &format!("/runs/{ID}")).in_workspace(world.tenant);
    world
        .call(patch.json(&json!({"end_time": "2026-03-01T12:00:02Z"})))
        .await
        .expect(202);
    let feedback = json!({"id": Uuid::from_u128(7), "run_id": ID, "key": "taste", "score": 1});
    world.post("/feedback", &feedback).await.expect(202);
    // As curl users forget it.
    let bare = Call::new(Method::POST, "/runs")
        .in_workspace(world.tenant)
        .body(run("canal").to_string());
    world.call(bare).await.expect(202);

    let all = world.accepted().await;
    assert_eq!(all.iter().map(|contents| contents.operations.len()).sum::<usize>(), 5);
    assert_eq!(all.iter().map(|contents| contents.feedback.len()).sum::<usize>(), 1);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_not_kept() {
    let world = World::new().await;
    let good = multipart(&[(&format!("post.{ID}"), &run("canal"))]);
    let cut = &good[..good.len() - 20];
    let unknown = multipart(&[(&format!("put.{ID}"), &json!({}))]);
    for (status, body, encoding) in [
        (400, cut.to_vec(), None),
        (400, b"not zstd".to_vec(), Some("zstd")),
        (415, good.clone(), Some("br")),
        (422, unknown, None),
        (422, multipart(&[("post.not-an-id", &json!({}))]), None),
    ] {
        let answer = world.send("/runs/multipart", body, encoding).await;
        let body = answer.expect(status);
        assert!(body["error"].is_string() && body["details"].is_string(), "{body}");
    }
    let text = Call::new(Method::POST, "/runs/multipart")
        .in_workspace(world.tenant)
        .header("content-type", "text/plain");
    world.call(text.body(good)).await.expect(415);
    world.post("/runs", &json!([1])).await.expect(422);
    assert_eq!(world.accepted().await, []);
}

/// A project is made by its name; an id has to be that of one that is there.
#[tokio::test]
async fn a_project_named_by_its_id_is_one_of_the_workspace() {
    let world = World::new().await;
    let other = world.second_workspace().await;
    let made = async |tenant| {
        let call = Call::new(Method::POST, "/sessions").in_workspace(tenant);
        let project = world.call(call.json(&json!({"name": "canal"}))).await.expect(200);
        project["id"].as_str().unwrap().to_owned()
    };
    let (own, foreign) = (made(world.tenant).await, made(other).await);
    let with = |id: &str| {
        let mut run = run("ignored");
        run["session_id"] = json!(id);
        run
    };
    world.post("/runs", &with(&own)).await.expect(202);
    let unknown = Uuid::from_u128(77).to_string();
    let span = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "lock",
        "startTimeUnixNano": "1772359200000000000", "endTimeUnixNano": "1772359201000000000",
        "attributes": [{"key": "langsmith.trace.session_id", "value": {"stringValue": unknown}}],
    }]}]}]});
    for (path, body, id) in [
        ("/runs", with(&unknown), &unknown),
        ("/runs/batch", json!({"post": [with(&own), with(&foreign)]}), &foreign),
        ("/otel/v1/traces", span, &unknown),
    ] {
        assert_eq!(
            world.post(path, &body).await.expect(404),
            json!({"error": "not found", "details": format!("project {id} is not in this workspace")}),
            "{path}"
        );
    }
    let patch = Call::new(Method::PATCH, &format!("/runs/{ID}")).in_workspace(world.tenant);
    let patched = world.call(patch.json(&json!({"session_id": foreign}))).await;
    patched.expect(404);
    let call = Call::new(Method::DELETE, &format!("/sessions/{own}")).in_workspace(world.tenant);
    assert!(world.call(call).await.status.is_success());
    world.post("/runs", &with(&own)).await.expect(404);
    assert_eq!(world.accepted().await.len(), 1);
}

#[tokio::test]
async fn a_body_names_a_thousand_projects_and_no_more() {
    let world = World::new().await;
    let named = |projects: u128| {
        let runs = (0..projects).map(|number| {
            json!({"id": Uuid::from_u128(number + 1), "name": "lock", "session_name": format!("canal {number}"),
                   "start_time": "2026-03-01T12:00:00Z"})
        });
        json!({"post": runs.collect::<Vec<_>>()})
    };
    let refused = world.post("/runs/batch", &named(1001)).await.expect(400);
    assert_eq!(
        refused["details"],
        "session_name: a body may name at most 1000 projects; send the others in another request"
    );
    assert_eq!(world.get("/sessions?limit=1").await.expect(200), json!([]));
    world.post("/runs/batch", &named(1000)).await.expect(202);
    let offset = world.get("/sessions?limit=1&offset=999").await.expect(200);
    assert_eq!(offset.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_runs_of_a_body_start_on_so_many_days_and_no_more() {
    let world = World::new().await;
    let sent = |days: i64| {
        // The last one is of no other day.
        let runs = (0..=days).map(|number| {
            let start = Timestamp::from_micros(number.min(days - 1) * 86_400_000_000);
            json!({"id": Uuid::from_u128(number.unsigned_abs().into()), "session_name": "canal",
                   "start_time": start.to_string()})
        });
        json!({"post": runs.collect::<Vec<_>>()})
    };
    let refused = world.post("/runs/batch", &sent(4097)).await.expect(422);
    assert_eq!(
        refused["details"],
        "start_time: the trace runs of a body may start on at most 4096 days; send the others in another request"
    );
    assert!(world.accepted().await.is_empty());
    world.post("/runs/batch", &sent(4096)).await.expect(202);
}

#[tokio::test]
async fn too_much_is_refused_with_the_right_words() {
    let settings = Settings {
        ingest_body_bytes: 64 * 1024,
        ingest_memory_bytes: 16 * 1024,
        ..Settings::default()
    };
    let world = World::with(settings).await;
    let body = |bytes: usize| {
        multipart(&[
            (&format!("post.{ID}"), &run("canal")),
            (&format!("post.{ID}.inputs"), &json!("x".repeat(bytes))),
        ])
    };
    let too_large = world.send("/runs/multipart", body(80_000), None).await;
    assert_eq!(
        too_large.expect(413),
        json!({"error": "payload too large", "details": "the body is larger than 65536 bytes"})
    );
    let no_memory = world.send("/runs/multipart", body(40_000), None).await;
    assert_eq!(no_memory.headers["retry-after"], "2");
    assert_eq!(
        no_memory.expect(429),
        json!({"error": "too many requests", "details": "too much trace data is arriving at once"})
    );
    // Memory is given back, also that of refused bodies.
    for _ in 0..10 {
        world.send("/runs/multipart", body(10_000), None).await.expect(202);
    }
}

#[tokio::test]
async fn a_log_that_is_closed_says_when_to_come_back() {
    let world = World::new().await;
    world.wal.close().await;
    let answer = world.post("/runs", &run("canal")).await;
    assert_eq!(answer.headers["retry-after"], "2");
    assert_eq!(
        answer.expect(503),
        json!({"error": "unavailable", "details": "the server is shutting down"})
    );
}

#[tokio::test]
async fn twice_the_same_header_is_no_guess() {
    let world = World::new().await;
    let call = Call::new(Method::POST, "/runs")
        .in_workspace(world.tenant)
        .json(&run("canal"));
    let twice = call
        .header("content-encoding", "gzip")
        .header("content-encoding", "zstd");
    world.call(twice).await.expect(400);
}

/// What official clients really sent, headers and all; `crates/traces/tests/data/README.md` says how it was recorded.
#[tokio::test]
async fn recorded_requests_of_official_clients_are_accepted() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/traces/tests/data");
    let world = World::new().await;
    let mut sent = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let head = entry.unwrap().path();
        if head.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let body = std::fs::read(head.with_extension("bin")).unwrap();
        let head: Value = serde_json::from_slice(&std::fs::read(&head).unwrap()).unwrap();
        let method = Method::from_bytes(head["method"].as_str().unwrap().as_bytes()).unwrap();
        let path = head["path"].as_str().unwrap();
        let mut call = Call::new(method, path).in_workspace(world.tenant).body(body);
        for name in ["content-type", "content-encoding"] {
            let given = head["headers"]
                .as_object()
                .unwrap()
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            if let Some((_, value)) = given {
                call = call.header(name, value.as_str().unwrap());
            }
        }
        world.call(call).await.expect(202);
        sent += 1;
    }
    assert!(sent > 0, "there are no recorded requests in {}", folder.display());
    assert_eq!(world.accepted().await.len(), sent);
}
