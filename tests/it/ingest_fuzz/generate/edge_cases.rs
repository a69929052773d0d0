//! Requests that are damaged, malformed or out of bounds. Each is refused with 4xx, or taken and then in its row; none
//! may hang, be answered with 5xx, or leave anything behind that a flush cannot merge.

use std::sync::Arc;

use towpath_tests::{compact, rfc3339};
use uuid::Uuid;

use super::mass::refused;
use super::{Generator, Link};
use crate::ingest_fuzz::json::quoted;
use crate::ingest_fuzz::operation::{Field, Naming, Operation, Verb};
use crate::ingest_fuzz::spans::Span;
use crate::ingest_fuzz::step::{Key, Keys, Mode, Step, Work};
use crate::ingest_fuzz::values::{self, TIMES};
use crate::ingest_fuzz::wire::{Encoding, Expect, Layout, RawRequest, Route};

/// What is not of the shape that is asked for, or against a rule.
const WRONG: &[u16] = &[400, 422];

impl Generator {
    pub(super) fn odd(&mut self) -> Step {
        match self.dice.below(12) {
            0..4 => self.wrong_value(),
            4 | 5 => self.odd_value(),
            6 => self.wrong_body(),
            7 | 8 => self.wrong_part(),
            9 | 10 => self.wrong_http(),
            _ if self.dice.one_in(2) => self.wrong_spans(),
            _ => self.foreign_project(),
        }
    }

    /// One member of a run that may not be so. The rest of the run is as usual, and nothing of it may be kept.
    fn wrong_value(&mut self) -> Step {
        let id = values::id(&mut self.dice);
        let not_texts = ["1e999", "[1]", "{\"a\":1}", "true", "-0"];
        let not_ids = [
            "1e999",
            "\"\\ud800\"",
            "[1]",
            "\"not an id\"",
            "{}",
            "true",
            "\"\"",
            "\"\\u0000\"",
        ];
        let beyond = |micros: i64| quoted(&rfc3339(micros));
        let link = |time: &str, id: Uuid| quoted(&format!("{time}{id}"));
        let noon = compact(1_772_366_400_000_000);
        let other = values::id(&mut self.dice);
        let mut wrong: Vec<(&str, String)> = Vec::new();
        for name in ["name", "run_type", "status", "session_name", "dotted_order"] {
            wrong.extend(not_texts.map(|raw| (name, raw.to_owned())));
        }
        for name in ["trace_id", "parent_run_id", "reference_example_id", "session_id"] {
            wrong.extend(not_ids.map(|raw| (name, raw.to_owned())));
        }
        for name in ["start_time", "end_time"] {
            let times = [
                "1e999",
                "-1e999",
                "1.5",
                "\"soon\"",
                "{}",
                "true",
                "\"\"",
                "\"\\ud800\"",
                "9200000000001",
            ];
            wrong.extend(times.map(|raw| (name, raw.to_owned())));
            wrong.extend(
                [beyond(TIMES.0 - 1), beyond(TIMES.1 + 1), quoted("9999-12-31T23:59:60Z")].map(|raw| (name, raw)),
            );
        }
        wrong.extend([
            ("session_name", "\"\\u0000\"".to_owned()),
            ("session_name", quoted(&"n".repeat(513))),
            ("dotted_order", "\"\"".to_owned()),
            ("dotted_order", "\"\\ud800\"".to_owned()),
            ("dotted_order", quoted("x")),
            ("dotted_order", link(&noon, other)),
            ("dotted_order", link("20261320T102210210769Z", id)),
            ("dotted_order", link("99991231T235959999999Z", id)),
            ("dotted_order", link("00010101T000000000000Z", id)),
            ("dotted_order", quoted(&format!("{noon}{id}."))),
            ("dotted_order", quoted(&format!("x.{noon}{id}"))),
            ("tags", "\"a\"".to_owned()),
            ("tags", "[1e999]".to_owned()),
            ("tags", "[null]".to_owned()),
            ("tags", "{\"a\":\"b\"}".to_owned()),
            ("extra", "[]".to_owned()),
            ("extra", "1e999".to_owned()),
            ("extra", "\"\\ud800\"".to_owned()),
            ("inputs", values::nested(128)),
            ("inputs", "NaN".to_owned()),
            ("inputs", "1e".to_owned()),
            ("inputs", "\"\\x\"".to_owned()),
            ("inputs", "\"\\ud8\"".to_owned()),
            ("inputs", "\"a\nb\"".to_owned()),
        ]);
        let (name, raw) = self.dice.pick(&wrong).clone();
        let route = *self.dice.pick(&[Route::Run, Route::Batch, Route::Multipart]);
        let head = format!("{{\"id\":\"{id}\",\"name\":\"refused\",\"session_name\":\"refused\",\"{name}\":{raw}}}");
        // The name of a project would be there twice.
        let head = if name == "session_name" || name == "name" {
            format!("{{\"id\":\"{id}\",\"{name}\":{raw}}}")
        } else {
            head
        };
        let mut draft = self.draft(0, route);
        let body = match route {
            Route::Batch => format!("{{\"post\":[{head}]}}").into_bytes(),
            Route::Multipart => multipart(&[(format!("post.{id}"), head.into_bytes())]),
            _ => head.into_bytes(),
        };
        refused(&mut draft.request, body, WRONG);
        self.send(draft)
    }

    /// One member of a run that is odd and may be so, or of which no one has decided yet. Such a run is its own.
    fn odd_value(&mut self) -> Step {
        let tenant = self.tenant();
        let route = *self.dice.pick(&[Route::Run, Route::Batch, Route::Multipart]);
        let mut draft = self.draft(tenant, route);
        draft.request.layout = Layout::Together;
        let id = values::id(&mut self.dice);
        let mut post = Operation::new(self.step, Verb::Post, id, &draft.request.acceptance);
        post.naming = self.naming(&draft);
        let start = self.start();
        post.start = Some(values::moment(&mut self.dice, start));
        let any = [
            "1e999",
            "-1e999",
            "\"\\ud83d\"",
            "{\"\\ud800\":\"\\udc00\"}",
            "[1e999,\"\\ud800\"]",
            "\"\\u0000\"",
        ];
        match self.dice.below(8) {
            0 => {
                for field in [
                    Field::Inputs,
                    Field::Outputs,
                    Field::Events,
                    Field::Serialized,
                    Field::Error,
                ] {
                    post.fields.insert(field, (*self.dice.pick(&any)).to_owned());
                }
                let extra = "{\"\\ud800\":1e999,\"metadata\":{\"\\udc00\":\"\\ud800\",\"n\":1e999},\"\\u0000\":[]}";
                let extra = if self.features.odd_json {
                    extra
                } else {
                    "{\"\\ud800\":1e999,\"\\u0000\":[]}"
                };
                post.fields.insert(Field::Extra, extra.to_owned());
            }
            1 => {
                // As deep as may be: a part stands by itself, the others are in two or three levels.
                let levels = match route {
                    Route::Multipart => 127,
                    Route::Batch => 124,
                    _ => 126,
                };
                post.fields.insert(Field::Inputs, values::nested(levels));
            }
            2 => {
                for field in [Field::Name, Field::RunType] {
                    post.fields.insert(
                        field,
                        (*self.dice.pick(&["\"\\ud83d\"", "\"\\u0000\"", "\"\\udc00\\ud800\""])).to_owned(),
                    );
                }
                post.fields
                    .insert(Field::Tags, "[\"\\ud800\",\"\\u0000\",\"\"]".to_owned());
            }
            3 => {
                post.start = None;
                let start = *self.dice.pick(&[TIMES.0, TIMES.1, -1, 0]);
                post.order = Some(values::order(&mut self.dice, vec![Link { start, id }]));
                post.end = Some(values::moment(&mut self.dice, TIMES.1));
            }
            4 => {
                // Nothing but an id.
                post.start = None;
                post.naming = Naming::default();
            }
            // Whether a name may come twice, or be half of a surrogate pair, is the server's to say.
            5 | 6 => {
                let odd = [("\"id\"", quoted(&id.to_string())), ("\"\\ud800\"", "1e999".to_owned())];
                let (name, raw) = self.dice.pick(&odd).clone();
                // It must not make a project that is there or not.
                if let Some(handle) = self.common_project(tenant) {
                    post.naming = Naming {
                        id: Some(handle),
                        name: None,
                    };
                    post.unknown.push((name.to_owned(), raw));
                    post.certain = false;
                }
            }
            _ => {
                post.unknown.push((quoted(&"k".repeat(100_000)), "1e-999".to_owned()));
                post.fields.insert(Field::Name, quoted(&"n".repeat(100_000)));
            }
        }
        post.project = self.address(&mut draft, &post.naming, Verb::Post);
        if !post.certain {
            draft.request.expect = Expect::Either(WRONG);
        }
        let run = (tenant, id);
        draft.keys.add(Key::Run(run), Mode::Exclusive);
        let post = Arc::new(post);
        self.oracle.say(tenant, &post);
        draft.request.operations.push(post);
        self.send(draft)
    }

    /// A body that is no JSON object, or not what its headers say.
    fn wrong_body(&mut self) -> Step {
        let route = *self
            .dice
            .pick(&[Route::Run, Route::Patch, Route::Batch, Route::Feedback]);
        let bodies: [&[u8]; 15] = [
            b"",
            b" ",
            b"[]",
            b"1",
            b"\"x\"",
            b"null",
            b"{",
            b"{\"id\"}",
            b"{\"id\":\"x\"} more",
            b"\xff\xfe",
            b"{\"name\":\"\xff\"}",
            b"\0",
            b"{\"id\":1e999,\"post\":1}",
            b"{\"post\":{},\"id\":[]}",
            b"{\"id\":\"\\ud800\",\"post\":[1e999],\"key\":1e999}",
        ];
        let body = self.dice.pick(&bodies).to_vec();
        let mut draft = self.draft(0, route);
        refused(&mut draft.request, body, WRONG);
        self.send(draft)
    }

    /// A multipart body that is damaged, or says something impossible.
    fn wrong_part(&mut self) -> Step {
        let id = values::id(&mut self.dice);
        let run = format!("{{\"id\":\"{id}\",\"session_name\":\"refused\"}}");
        let head = |name: &str| format!("Content-Disposition: form-data; name=\"{name}\"");
        let whole = |heads: String, data: &str| format!("--b\r\n{heads}\r\n\r\n{data}\r\n--b--\r\n").into_bytes();
        let post = head(&format!("post.{id}"));
        let file = format!("attachment.{id}.boat");
        let named = |name: &str| whole(head(name), "{}");
        let mut wrong: Vec<(&str, Vec<u8>)> = vec![
            ("a body without its boundary", b"--c--\r\n".to_vec()),
            (
                "a body that is cut off",
                format!("--b\r\n{post}\r\n\r\n{run}").into_bytes(),
            ),
            (
                "a part without a name",
                whole("Content-Disposition: form-data".to_owned(), &run),
            ),
            ("a part without headers", whole(String::new(), &run)),
            ("a header without a colon", whole(format!("{post}\r\nnonsense"), &run)),
            ("a NUL in a name", named(&format!("attachment.{id}.a\0b"))),
            ("a line feed in a name", named(&format!("attachment.{id}.a\nb"))),
            (
                "a length that is too short",
                whole(format!("{post}\r\nContent-Length: 3"), &run),
            ),
            (
                "a length that is too long",
                whole(format!("{post}\r\nContent-Length: 99999"), &run),
            ),
            (
                "a length that is none",
                whole(format!("{post}\r\nContent-Length: \0"), &run),
            ),
            (
                "an endless length",
                whole(format!("{post}\r\nContent-Length: {}", "9".repeat(40)), &run),
            ),
            (
                "two lengths",
                whole(
                    format!("{post}\r\nContent-Length: {}\r\nContent-Type: a; length=1", run.len()),
                    &run,
                ),
            ),
            (
                "an encoded part",
                whole(format!("{post}\r\nContent-Encoding: gzip"), &run),
            ),
            (
                "headers that are too long",
                whole(format!("{post}\r\nX-Long: {}", "x".repeat(9_000)), &run),
            ),
            ("an unknown part", named(&format!("nonsense.{id}"))),
            ("an unknown field", named(&format!("post.{id}.nonsense"))),
            ("a name without an id", named("post.nonsense")),
            ("a field without its run", named(&format!("post.{id}.inputs"))),
            ("feedback without a key", named(&format!("feedback.{id}"))),
            ("a file without a name", named(&format!("attachment.{id}"))),
            (
                "a file with a long name",
                named(&format!("attachment.{id}.{}", "n".repeat(256))),
            ),
            ("an empty part", whole(post.clone(), "")),
            (
                "a part that is no text",
                [b"--b\r\n".as_slice(), post.as_bytes(), b"\r\n\r\n\xff\r\n--b--\r\n"].concat(),
            ),
            (
                "a header that is no text",
                [
                    b"--b\r\nX: \xff\r\n".as_slice(),
                    post.as_bytes(),
                    b"\r\n\r\n{}\r\n--b--\r\n",
                ]
                .concat(),
            ),
            (
                "another id in the run",
                whole(head(&format!("post.{}", Uuid::max())), &run),
            ),
            (
                "a part twice",
                [
                    format!("--b\r\n{}\r\n\r\n{run}\r\n", head(&format!("post.{id}"))),
                    format!("--b\r\n{}\r\n\r\n{{}}\r\n", head(&format!("post.{id}.inputs"))),
                    format!("--b\r\n{}\r\n\r\n{{}}\r\n--b--\r\n", head(&format!("post.{id}.inputs"))),
                ]
                .concat()
                .into_bytes(),
            ),
        ];
        if self.features.content_types {
            for kind in ["a\0b", "image/\u{7f}", "été", "a\tb\u{1}"] {
                wrong.push((
                    "an odd content type",
                    whole(format!("{}\r\nContent-Type: {kind}", head(&file)), "x"),
                ));
            }
        }
        let mut taken: Vec<(&str, Vec<u8>)> = vec![
            ("no part at all", b"--b--\r\n".to_vec()),
            (
                "a NUL in a header of no use",
                whole(format!("{}\r\nX-Other: a\0b", head(&file)), "x"),
            ),
            (
                "a NUL in the name of a file",
                whole(format!("{}; filename=\"a\0b\"", head(&file)), "x"),
            ),
            ("an empty file", whole(head(&file), "")),
        ];
        let refuse = !self.dice.one_in(6);
        let (name, body) = if refuse {
            let at = self.dice.index(wrong.len());
            wrong.swap_remove(at)
        } else {
            let at = self.dice.index(taken.len());
            taken.swap_remove(at)
        };
        let request = RawRequest::new(name, "POST", "/runs/multipart", &body)
            .header("Content-Type", b"multipart/form-data; boundary=b");
        self.raw(
            request,
            if refuse {
                Expect::Refused(WRONG)
            } else {
                Expect::Accepted
            },
        )
    }

    /// HTTP that no client makes.
    fn wrong_http(&mut self) -> Step {
        const REFUSED: &[u16] = &[400, 401, 403, 404, 405, 408, 411, 413, 415, 422, 431, 501, 505];
        let id = values::id(&mut self.dice);
        let run = format!("{{\"id\":\"{id}\",\"session_name\":\"refused\"}}");
        let run = run.as_bytes();
        let post = |name: &'static str| RawRequest::new(name, "POST", "/runs", run);
        let multipart = |kind: &[u8]| {
            RawRequest::new("a multipart content type", "POST", "/runs/multipart", b"--b--\r\n")
                .header("Content-Type", kind)
        };
        let zstd = crate::ingest_fuzz::wire::encoded(Encoding::Zstd, run.to_vec());
        let mut all = vec![
            post("a NUL in the content type").header("Content-Type", b"application/json\0"),
            post("a NUL in the encoding").header("Content-Encoding", b"gz\0ip"),
            post("a NUL in another header").header("User-Agent", b"a\0b"),
            post("a NUL in a header's name").header("X\0Y", b"b"),
            post("a content type that is no text").header("Content-Type", b"application/\xff"),
            post("another content type").header("Content-Type", b"text/plain"),
            post("two content types")
                .header("Content-Type", b"application/json")
                .header("Content-Type", b"application/json"),
            post("an unknown encoding").header("Content-Encoding", b"br"),
            post("two encodings").header("Content-Encoding", b"gzip, zstd"),
            post("no gzip").header("Content-Encoding", b"gzip"),
            RawRequest::new("a cut frame", "POST", "/runs", &zstd[..zstd.len() - 3])
                .header("Content-Encoding", b"zstd"),
            post("another workspace too").header("X-Tenant-Id", b"\0"),
            multipart(b"multipart/form-data"),
            multipart(b"multipart/form-data; boundary="),
            multipart(b"multipart/form-data; boundary=\"a\0b\""),
            multipart(b"multipart/mixed; boundary=b"),
            multipart(format!("multipart/form-data; boundary={}", "b".repeat(71)).as_bytes()),
            RawRequest::new("an odd path", "PATCH", "/runs/nonsense", b"{}"),
            RawRequest::new("a NUL in a path", "PATCH", "/runs/%00", b"{}"),
            RawRequest::new("half a surrogate in a path", "PATCH", "/runs/%ED%A0%80", b"{}"),
            RawRequest::new("another method", "PUT", "/runs", run),
            RawRequest::new(
                "another id in the body",
                "PATCH",
                &format!("/runs/{}", Uuid::max()),
                run,
            ),
            RawRequest::new("a large header", "POST", "/runs", run).header("X-Large", "x".repeat(1 << 20).as_bytes()),
            RawRequest::new("spans of another kind", "POST", "/otel/v1/traces", b"x")
                .header("Content-Type", b"text/plain"),
            RawRequest::new("spans that are none", "POST", "/otel/v1/traces", b"\xff\xff")
                .header("Content-Type", b"application/x-protobuf"),
            RawRequest::new(
                "spans that are no JSON",
                "POST",
                "/otel/v1/traces",
                b"{\"resourceSpans\":[",
            )
            .header("Content-Type", b"application/json"),
        ];
        // A length that is not kept, and a body that breaks off.
        let mut large = post("a body that is announced too large");
        (large.body, large.length) = (Vec::new(), Some(30 << 20));
        let mut short = post("a body that breaks off");
        (short.length, short.closes) = (Some(run.len() + 10), true);
        let mut chunks = post("chunks that are none").header("Transfer-Encoding", b"chunked");
        (chunks.length, chunks.closes) = (None, true);
        all.extend([large, short, chunks]);
        let at = self.dice.index(all.len());
        let request = all.swap_remove(at);
        self.raw(request, Expect::Refused(REFUSED))
    }

    fn raw(&mut self, request: RawRequest, expect: Expect) -> Step {
        self.sent += 1;
        let work = Work::Raw {
            tenant: 0,
            request,
            expect,
        };
        self.finish(Keys::default(), work)
    }

    /// Spans of which some cannot be taken. They are left out, and the others are taken.
    fn wrong_spans(&mut self) -> Step {
        let tenant = self.tenant();
        let route = *self.dice.pick(&[Route::OtlpJson, Route::OtlpProtobuf]);
        let mut draft = self.draft(tenant, route);
        let trace = values::id(&mut self.dice);
        let start = values::start(&mut self.dice, super::FIRST_DAY, super::DAYS);
        let mut bad = Span::new(&mut self.dice, trace, None, start);
        match self.dice.below(4) {
            0 => bad.span = Vec::new(),
            1 => bad.trace.truncate(7),
            2 => bad.span = vec![1; 9],
            _ => bad.end = TIMES.1 + 1,
        }
        if !self.features.otlp_partial {
            draft.request.spans.push(bad);
            draft.request.expect = Expect::Refused(WRONG);
            return self.send(draft);
        }
        let good = self.dice.below(3);
        for _ in 0..good {
            let span = Span::new(&mut self.dice, trace, None, start);
            let project = self.named(&mut draft, "default".to_owned());
            let post = span.operation(self.step, project, &draft.request.acceptance);
            draft.request.spans.push(span);
            self.say(&mut draft, post);
        }
        draft.request.spans.push(bad);
        draft.request.rejected = 1;
        self.send(draft)
    }

    /// A run of a project that is not there: one that no one made, that was deleted, or of another workspace.
    fn foreign_project(&mut self) -> Step {
        if !self.features.names_at_registration {
            return self.wrong_body();
        }
        let tenant = self.tenant();
        let foreign: Vec<usize> = (0..self.projects.len())
            .filter(|handle| self.projects[*handle].deleted || self.projects[*handle].tenant != tenant)
            .collect();
        let mut draft = self.draft(tenant, Route::Run);
        let id = values::id(&mut self.dice);
        if foreign.is_empty() || self.dice.one_in(3) {
            let body = format!("{{\"id\":\"{id}\",\"session_id\":\"{}\"}}", values::id(&mut self.dice));
            refused(&mut draft.request, body.into_bytes(), &[404]);
            return self.send(draft);
        }
        let handle = *self.dice.pick(&foreign);
        // Its id is known once it was made.
        draft.keys.add(Key::Project(handle), Mode::Shared);
        let mut post = Operation::new(self.step, Verb::Post, id, &draft.request.acceptance);
        post.naming.id = Some(handle);
        draft.request.operations.push(Arc::new(post));
        draft.request.expect = Expect::Refused(&[404]);
        self.send(draft)
    }
}

/// A multipart body with the boundary of [`wire`](crate::ingest_fuzz::wire).
fn multipart(parts: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, data) in parts {
        let head = format!(
            "--fuzz-boundary-1f0c\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Length: {}\r\n\r\n",
            data.len()
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(data);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--fuzz-boundary-1f0c--\r\n");
    body
}
