//! What the official clients sent, read to the last field.

use bytes::Bytes;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{TenantId, Timestamp, TraceRunId};
use towpath_traces::accept::{self, AcceptedRequest, Contents, Refusal, RefusalKind, Request, Route};
use towpath_traces::body::Limits;
use towpath_traces::operation::Verb;

macro_rules! recorded {
    ($name:literal) => {
        (
            include_bytes!(concat!("../../data/", $name, ".bin")),
            include_str!(concat!("../../data/", $name, ".json")),
        )
    };
}

fn accept(route: Route, (body, about): (&'static [u8], &str)) -> AcceptedRequest {
    let about: serde_json::Value = serde_json::from_str(about).unwrap();
    let header = |name: &str| about["headers"][name].as_str();
    let request = Request {
        tenant: TenantId::nil(),
        route,
        content_type: header("content-type").unwrap(),
        content_encoding: header("content-encoding"),
        body: Bytes::from_static(body),
        received_at: Timestamp::from_micros(7),
    };
    accept::accept(request, &Limits::default()).unwrap()
}

fn read(accepted: &AcceptedRequest) -> Contents {
    let contents = accept::read(&accepted.frame, &Limits::NONE).unwrap();
    assert_eq!(contents.operations.len(), accepted.operations);
    assert_eq!(contents.feedback.len(), accepted.feedback);
    assert_eq!(contents.attachments.len(), accepted.attachments);
    assert_eq!(contents.items(), accepted.frame.head.items as usize);
    contents
}

fn canal() -> Vec<ProjectRef> {
    vec![ProjectRef::Name("canal".into())]
}

#[test]
fn python_multipart_plain() {
    let (body, about) = recorded!("python-identity");
    let accepted = accept(Route::Multipart, (body, about));
    assert_eq!(accepted.projects, canal());
    let contents = read(&accepted);
    assert_eq!(
        (
            contents.operations.len(),
            contents.feedback.len(),
            contents.attachments.len()
        ),
        (11, 1, 1)
    );
    let [root, retrieve, model] = &contents.operations[..3] else {
        panic!()
    };
    assert_eq!(root.verb, Verb::Post);
    assert_eq!(root.fields.name.as_deref(), Some("answer"));
    assert_eq!(
        root.fields.inputs.as_deref(),
        Some(r#"{"question":"What is a towpath?","attachment_demo":false}"#)
    );
    assert_eq!(root.fields.tags, Some(vec!["demo".into()]));
    assert_eq!(root.fields.trace_id, Some(root.id.0));
    assert!(root.fields.end_time > root.fields.start_time);
    assert_eq!(root.sort_time(), root.fields.start_time);
    let keys: Vec<_> = root
        .fields
        .extra
        .iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect();
    assert_eq!(keys, ["metadata", "runtime"]);
    assert_eq!(retrieve.fields.parent_run_id, Some(root.id.0));
    assert!(
        retrieve
            .fields
            .outputs
            .as_deref()
            .unwrap()
            .contains(r"a NUL \u0000 in the middle")
    );
    assert_eq!(model.fields.serialized.as_deref(), Some(r#"{"name":"llm"}"#));
    let failed = contents
        .operations
        .iter()
        .find_map(|operation| operation.fields.error.as_deref())
        .unwrap();
    assert!(
        failed.starts_with("ValueError('cannot count \"fail\"\\nsecond line')\n\nTraceback"),
        "{failed}"
    );
}

#[test]
fn python_multipart_zstd() {
    let (body, about) = recorded!("python-zstd");
    let contents = read(&accept(Route::Multipart, (body, about)));
    assert_eq!(contents.attachments.len(), 1);
    let boat = &contents.attachments[0];
    assert_eq!((boat.name.as_str(), boat.content_type.as_str()), ("boat", "image/png"));
    assert_eq!(&boat.data[..], b"\x89PNG\r\n\x1a\n--not a boundary\r\n\x00\x01");
    let feedback = &contents.feedback[0];
    assert_eq!((feedback.key.as_str(), feedback.run), ("helpful", Some(boat.run)));
    assert!(feedback.body.contains(r#""comment":"good""#));
    // Its patch is in the same body.
    let verbs: Vec<_> = contents
        .operations
        .iter()
        .filter(|operation| operation.id == boat.run)
        .map(|operation| operation.verb)
        .collect();
    assert_eq!(verbs, [Verb::Post, Verb::Patch]);
}

#[test]
fn javascript_multipart_gzip() {
    let (body, about) = recorded!("js-gzip");
    let accepted = accept(Route::Multipart, (body, about));
    assert_eq!(accepted.projects, [ProjectRef::Name("canal-js".into())]);
    let contents = read(&accepted);
    assert_eq!(contents.operations.len(), 6);
    // It sends the end as a number.
    for operation in &contents.operations {
        let (start, end) = (operation.fields.start_time.unwrap(), operation.fields.end_time.unwrap());
        assert_eq!(end.micros() % 1000, 0);
        assert!((end.micros() - start.micros()).abs() < 60_000_000);
    }
    assert!(
        contents
            .operations
            .iter()
            .any(|operation| operation.fields.error.as_deref() == Some("Error: no water"))
    );
}

#[test]
fn python_batch_and_single() {
    let (body, about) = recorded!("python-batch");
    let batch = read(&accept(Route::Batch, (body, about)));
    assert!(
        batch.operations.len() >= 10
            && batch
                .operations
                .iter()
                .all(|operation| operation.fields.inputs.is_some())
    );

    let (body, about) = recorded!("python-run");
    let post = read(&accept(Route::Run, (body, about))).operations.remove(0);
    assert_eq!((post.verb, post.fields.dotted_order.as_deref()), (Verb::Post, None));
    assert_eq!(post.sort_time(), post.fields.start_time);

    let (body, about) = recorded!("python-patch");
    let accepted = accept(Route::Patch(post.id), (body, about));
    assert!(accepted.projects.is_empty());
    let patch = read(&accepted).operations.remove(0);
    assert_eq!(
        (patch.id, patch.project.as_ref(), patch.sort_time()),
        (post.id, None, None)
    );
    assert_eq!(patch.fields.outputs.as_deref(), Some(r#"{"n":2}"#));
    assert_eq!(patch.fields.name, None);
}

#[test]
fn a_post_that_says_little_is_completed_from_when_it_came() {
    let id = TraceRunId::new();
    let accepted = json(Route::Run, &format!(r#"{{"id":"{id}","name":"bare"}}"#)).unwrap();
    assert_eq!(accepted.projects, [ProjectRef::Name("default".into())]);
    let post = read(&accepted).operations.remove(0);
    assert_eq!(post.project, Some(ProjectRef::Name("default".into())));
    assert_eq!(post.sort_time(), Some(Timestamp::from_micros(7)));
}

fn json(route: Route, body: &str) -> Result<AcceptedRequest, Refusal> {
    let request = Request {
        tenant: TenantId::nil(),
        route,
        content_type: "application/json; charset=utf-8",
        content_encoding: None,
        body: Bytes::from(body.to_owned()),
        received_at: Timestamp::from_micros(7),
    };
    accept::accept(
        request,
        &Limits {
            parts: 3,
            ..Limits::default()
        },
    )
}

#[test]
fn both_ways_to_name_a_project_and_the_odd_texts() {
    let id = TraceRunId::new();
    let project = TraceRunId::new();
    let both = format!(
        r#"{{"id":"{id}","session_id":"{project}","session_name":"x","error":{{"a":1}},"name":"half \ud83d moon \ud83d\ude00","tags":null}}"#
    );
    let post = read(&json(Route::Run, &both).unwrap()).operations.remove(0);
    assert_eq!(post.project, Some(ProjectRef::Id(project.0.into())));
    assert_eq!(post.fields.error.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!(post.fields.name.as_deref(), Some("half \u{fffd} moon \u{1f600}"));
    assert_eq!(post.fields.tags, None);
    let address = format!(r#"{{"id":"{id}","address":"lrn:agents/a/environments/b"}}"#);
    assert_eq!(
        json(Route::Run, &address).unwrap().projects,
        [ProjectRef::Name("lrn:agents/a/environments/b".into())]
    );
}

#[test]
fn refusals_name_the_place() {
    let id = TraceRunId::new();
    let other = TraceRunId::new();
    let run = |rest: &str| format!(r#"{{"id":"{id}",{rest}}}"#);
    let order = format!("20260301T000000000000Z{other}");
    for (body, expected) in [
        ("{".to_owned(), "body: unexpected end of text at byte 1".to_owned()),
        ("[]".into(), "body: expected a JSON object".into()),
        ("{}".into(), "body: `id` is missing".into()),
        (r#"{"id":"x"}"#.into(), "body `id`: expected a UUID".into()),
        (run(r#""name":5"#), format!("post.{id} `name`: expected a string")),
        (
            run(r#""start_time":"soon""#),
            format!("post.{id} `start_time`: expected an ISO 8601 date-time or whole milliseconds since 1970"),
        ),
        (
            run(r#""end_time":1.5"#),
            format!("post.{id} `end_time`: expected an ISO 8601 date-time or whole milliseconds since 1970"),
        ),
        (
            run(r#""start_time":"9999-01-01T00:00:00Z""#),
            format!("post.{id} `start_time`: time out of range"),
        ),
        (
            run(r#""tags":"a""#),
            format!("post.{id} `tags`: expected a list of strings"),
        ),
        (
            run(r#""extra":[1]"#),
            format!("post.{id} `extra`: expected a JSON object"),
        ),
        (
            run(r#""session_name":"a\u0000b""#),
            format!("post.{id} `session_name`: a project name must not contain a NUL character"),
        ),
        (
            run(r#""dotted_order":"x""#),
            format!("post.{id} `dotted_order`: expected <time>Z<id> parts joined by dots"),
        ),
        (
            run(&format!(r#""dotted_order":"{order}""#)),
            format!("post.{id} `dotted_order`: it does not end with the run's own id"),
        ),
    ] {
        let refusal = json(Route::Run, &body).unwrap_err();
        assert_eq!(refusal.to_string(), expected);
        // What is well-formed by itself breaks a rule.
        let rule = expected.contains("out of range") || expected.contains("dotted_order");
        let kind = if rule { RefusalKind::Rule } else { RefusalKind::Invalid };
        assert_eq!(refusal.kind(), kind, "{expected}");
    }
    let deep = run(&format!(r#""inputs":{}1{}"#, "[".repeat(200), "]".repeat(200)));
    assert!(
        json(Route::Run, &deep)
            .unwrap_err()
            .to_string()
            .starts_with("body: nesting too deep")
    );
    let four = format!(r#"{{"post":[{0},{0},{0},{0}]}}"#, run("\"name\":null"));
    assert_eq!(json(Route::Batch, &four).unwrap_err().kind(), RefusalKind::TooLarge);
    let wrong = format!(r#"{{"patch":[{{"id":"{id}"}},{{"id":7}}]}}"#);
    assert_eq!(
        json(Route::Batch, &wrong).unwrap_err().to_string(),
        "patch[1] `id`: expected a UUID"
    );
    assert!(json(Route::Patch(other), &run("\"name\":null")).is_err());
}

#[test]
fn a_field_has_a_limit() {
    let id = TraceRunId::new();
    let limits = Limits {
        field_bytes: 20,
        ..Limits::default()
    };
    let accept = |route, content_type: &str, body: String| {
        let request = Request {
            tenant: TenantId::nil(),
            route,
            content_type,
            content_encoding: None,
            body: Bytes::from(body),
            received_at: Timestamp::from_micros(7),
        };
        accept::accept(request, &limits)
    };
    let json = |route, body: String| accept(route, "application/json", body);
    for field in [
        "inputs",
        "outputs",
        "events",
        "extra",
        "error",
        "serialized",
        "name",
        "run_type",
        "status",
        "tags",
        "dotted_order",
    ] {
        let value = |length: usize| match field {
            "extra" => format!(r#"{{"a":"{}"}}"#, "x".repeat(length - 8)),
            "tags" => format!(r#"["{}"]"#, "x".repeat(length - 4)),
            _ => format!(r#""{}""#, "x".repeat(length - 2)),
        };
        let large =
            format!("post.{id} `{field}`: larger than 20 bytes, the limit per field; send files as attachments");
        let body = |length| format!(r#"{{"id":"{id}","{field}":{}}}"#, value(length));
        let refused = json(Route::Run, body(21)).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string()),
            (RefusalKind::TooLarge, large.clone())
        );
        let batch = format!(r#"{{"post":[{{"id":"{}"}},{}]}}"#, TraceRunId::new(), body(21));
        assert_eq!(json(Route::Batch, batch).unwrap_err().to_string(), large);
        let patched = json(Route::Patch(id), body(21)).unwrap_err().to_string();
        assert_eq!(patched, large.replace("post", "patch"));
        // Such an order is refused for what it says.
        assert!(field == "dotted_order" || json(Route::Run, body(20)).is_ok());
        let part = |length| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"post.{id}\"\r\n\r\n{{}}\r\n\
                 --b\r\nContent-Disposition: form-data; name=\"post.{id}.{field}\"\r\n\r\n{}\r\n--b--\r\n",
                value(length)
            )
        };
        if !["name", "run_type", "status", "tags", "dotted_order"].contains(&field) {
            let multipart = |length| accept(Route::Multipart, "multipart/form-data; boundary=b", part(length));
            assert_eq!(multipart(21).unwrap_err().to_string(), large);
            // What was acknowledged when there was no limit is read.
            let accepted = multipart(20).unwrap();
            assert_eq!(
                accept::read(&accepted.frame, &Limits::NONE).unwrap().operations.len(),
                1
            );
        }
    }
}

fn multipart(parts: &[(&str, &str)]) -> Result<AcceptedRequest, Refusal> {
    let mut body = String::new();
    for (name, data) in parts {
        body += &format!(
            "--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Length: {}\r\n\r\n{data}\r\n",
            data.len()
        );
    }
    body += "--b--\r\n";
    let request = Request {
        tenant: TenantId::nil(),
        route: Route::Multipart,
        content_type: "multipart/form-data; boundary=b",
        content_encoding: None,
        body: body.into(),
        received_at: Timestamp::from_micros(7),
    };
    accept::accept(request, &Limits::default())
}

#[test]
fn parts_find_their_operation() {
    let (a, b) = (TraceRunId::new(), TraceRunId::new());
    let name = |verb: &str, id: TraceRunId, field: &str| format!("{verb}.{id}{field}");
    // Interleaved, a part before its head, and one run changed twice.
    let parts = [
        (name("post", a, ".inputs"), "1"),
        (name("post", a, ""), "{}"),
        (name("patch", b, ""), r#"{"name":"first"}"#),
        (name("post", a, ".outputs"), "2"),
        (name("patch", b, ".outputs"), "3"),
        (name("patch", b, ""), r#"{"name":"second"}"#),
        (name("patch", b, ".outputs"), "4"),
    ];
    let parts: Vec<_> = parts.iter().map(|(name, data)| (name.as_str(), *data)).collect();
    let contents = read(&multipart(&parts).unwrap());
    let [post, first, second] = &contents.operations[..] else {
        panic!("{contents:?}")
    };
    assert_eq!(
        (post.fields.inputs.as_deref(), post.fields.outputs.as_deref()),
        (Some("1"), Some("2"))
    );
    assert_eq!(
        (first.fields.name.as_deref(), first.fields.outputs.as_deref()),
        (Some("first"), Some("3"))
    );
    assert_eq!(
        (second.fields.name.as_deref(), second.fields.outputs.as_deref()),
        (Some("second"), Some("4"))
    );

    for (parts, expected) in [
        (
            vec![(name("post", a, ".inputs"), "1")],
            format!("post.{a}: the part with the trace run is missing"),
        ),
        (
            vec![(name("post", a, ""), "{}"), (name("post", a, ".colour"), "1")],
            format!("post.{a}.colour: unknown part of a trace run"),
        ),
        (
            vec![(name("post", a, ""), "{}"), (name("post", a, ".inputs"), "{x}")],
            format!("post.{a}.inputs: expected a key at byte 1"),
        ),
        (vec![("post.5".into(), "{}")], "post.5: its name has no id".into()),
        (vec![(name("put", a, ""), "{}")], format!("put.{a}: unknown part name")),
        (
            vec![
                (name("post", a, ""), "{}"),
                (name("post", a, ".events"), "[]"),
                (name("post", a, ".events"), "[]"),
            ],
            format!("post.{a}.events: duplicate part"),
        ),
    ] {
        let parts: Vec<_> = parts.iter().map(|(name, data)| (name.as_str(), *data)).collect();
        assert_eq!(multipart(&parts).unwrap_err().to_string(), expected);
    }
}
