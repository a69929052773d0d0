//! The rules of deployments, row by row: a body, and the answer it gets. `docs/internals/deployment-rules.md` lists the
//! rules; one that no row shows fails here, and so does a row of no rule.

mod changes;
mod requests;
mod sizes;
mod sources;

use std::collections::BTreeSet;
use std::path::Path;

use http::Method;
use serde_json::{Value, json};

use super::{github, image, with};
use crate::world::{Call, World};

/// An integration or a listener that is not there.
const NOBODY: &str = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d";

/// What a rule makes of a request.
struct Row {
    /// As the page names it.
    rule: &'static str,
    /// The deployment it is about, made before; none where it makes one.
    of: Option<Value>,
    body: Value,
    expectation: Expectation,
}

enum Expectation {
    /// 422 about this place of the body, with this word for programs.
    Shape(Vec<&'static str>, &'static str),
    /// 400 with exactly this text.
    Refused(&'static str),
    /// Done, and these pointers of the answer are so.
    Shows(Vec<(&'static str, Value)>),
    /// Done, with one new revision.
    Revision,
    /// Done, without a revision, and these pointers of the answer are so.
    NoRevision(Vec<(&'static str, Value)>),
}

use Expectation::{NoRevision, Refused, Revision, Shape, Shows};

fn new(rule: &'static str, body: Value, then: Expectation) -> Row {
    Row {
        rule,
        of: None,
        body,
        expectation: then,
    }
}

fn change(rule: &'static str, of: Value, body: Value, then: Expectation) -> Row {
    Row {
        rule,
        of: Some(of),
        body,
        expectation: then,
    }
}

fn without(mut body: Value, name: &str) -> Value {
    body.as_object_mut().unwrap().remove(name);
    body
}

fn internal(source: &str) -> Value {
    json!({"name": "agent", "source": source, "secrets": [], "source_config": {}, "source_revision_config": {}})
}

/// `base` with a field of its `source_config`.
fn config(base: Value, name: &str, value: impl Into<Value>) -> Value {
    with(base, &format!("/source_config/{name}"), value.into())
}

/// `base` with a field of its `source_revision_config`.
fn revision(base: Value, name: &str, value: impl Into<Value>) -> Value {
    with(base, &format!("/source_revision_config/{name}"), value.into())
}

fn secrets(list: Value) -> Value {
    with(github(), "/secrets", list)
}

fn spec(spec: Value) -> Value {
    config(image(), "resource_spec", spec)
}

/// The place of a field of the resource specification.
fn sized(rest: &[&'static str]) -> Vec<&'static str> {
    [&["source_config", "resource_spec"], rest].concat()
}

fn rows() -> Vec<Row> {
    [
        requests::shape_of_requests(),
        sources::source_config(),
        sources::source_revision_config(),
        sizes::secrets_and_sizes(),
        changes::changes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The place in a body as answers write it.
fn place(steps: &[&str]) -> Value {
    let step = |step: &&str| step.parse::<u64>().map_or_else(|_| json!(step), |index| json!(index));
    std::iter::once(json!("body")).chain(steps.iter().map(step)).collect()
}

#[tokio::test]
async fn each_row_is_so() {
    let world = World::new().await;
    for (number, row) in rows().into_iter().enumerate() {
        let told = format!("{} {}", row.rule, row.body);
        let before = match row.of {
            None => None,
            Some(of) => Some(world.deploy(&with(of, "/name", json!(format!("row-{number}")))).await),
        };
        let mut body = row.body;
        // Each has a name of its own, unless its name is what it is about.
        if before.is_none() && body["name"] == "agent" {
            body["name"] = json!(format!("row-{number}"));
        }
        let path = before.as_ref().map_or_else(
            || "/v2/deployments".to_owned(),
            |before| format!("/v2/deployments/{}", before["id"].as_str().unwrap()),
        );
        let (method, done) = if before.is_some() {
            (Method::PATCH, 200)
        } else {
            (Method::POST, 201)
        };
        let answer = world
            .call(Call::new(method, &path).in_workspace(world.tenant).json(&body))
            .await;
        assert!(!answer.text.contains("s3cret"), "{told}: {}", answer.text);
        let latest = before.as_ref().map(|before| before["latest_revision_id"].clone());
        let shown = match row.expectation {
            Shape(at, kind) => {
                let answer = answer.expect(422);
                let issues = answer["detail"].as_array().unwrap();
                assert_eq!(
                    (&issues[0]["loc"], &issues[0]["type"]),
                    (&place(&at), &json!(kind)),
                    "{told}: {answer}"
                );
                assert!(
                    issues[0]["msg"].as_str().is_some_and(|msg| !msg.is_empty()),
                    "{told}: {answer}"
                );
                unchanged(&world, before.as_ref()).await;
                continue;
            }
            Refused(text) => {
                assert_eq!(
                    (answer.status.as_u16(), answer.json()),
                    (400, json!({"detail": text})),
                    "{told}"
                );
                unchanged(&world, before.as_ref()).await;
                continue;
            }
            Shows(shown) => shown,
            Revision => {
                let answer = answer.expect(done);
                assert_ne!(Some(&answer["latest_revision_id"]), latest.as_ref(), "{told}");
                let listed = world.get(&format!("{path}/revisions")).await.expect(200);
                assert_eq!(
                    listed["resources"].as_array().unwrap().len(),
                    2,
                    "{told}: one revision was made"
                );
                continue;
            }
            NoRevision(shown) => {
                assert_eq!(Some(&answer.json()["latest_revision_id"]), latest.as_ref(), "{told}");
                shown
            }
        };
        let answer = answer.expect(done);
        for (at, value) in shown {
            assert_eq!(
                answer.pointer(at).unwrap_or(&Value::Null),
                &value,
                "{told}: {at} of {answer}"
            );
        }
        // A deployment answers the same to whoever asks for it.
        let id = answer["id"].as_str().unwrap();
        assert_eq!(
            world.get(&format!("/v2/deployments/{id}")).await.expect(200),
            answer,
            "{told}"
        );
    }
}

/// What was refused left the deployment as it was.
async fn unchanged(world: &World, before: Option<&Value>) {
    if let Some(before) = before {
        let path = format!("/v2/deployments/{}", before["id"].as_str().unwrap());
        assert_eq!(&world.get(&path).await.expect(200), before);
    }
}

#[test]
fn each_rule_has_a_row() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(top.join("docs/internals/deployment-rules.md")).unwrap();
    let rows: BTreeSet<String> = rows().iter().map(|row| row.rule.to_owned()).collect();
    let mut ruled = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [rule, _, seen] = cells[..] else {
            panic!("three cells: {line}")
        };
        let rule = rule.trim_matches('`').to_owned();
        // What other tests see, they see: the test is there.
        let elsewhere: Vec<&str> = seen.split('`').filter(|part| part.contains("::")).collect();
        for test in &elsewhere {
            let (file, name) = test.split_once("::").unwrap();
            let text = std::fs::read_to_string(top.join(file)).unwrap_or_else(|_| panic!("{rule}: there is no {file}"));
            let is_there = ["fn", "def"]
                .iter()
                .any(|word| text.contains(&format!("{word} {name}(")));
            assert!(is_there, "{rule}: {file} has no test {name}");
        }
        let in_rows = seen.contains("a row");
        assert!(in_rows || !elsewhere.is_empty(), "{rule}: nothing is said to see it");
        if in_rows {
            assert!(rows.contains(&rule), "{rule} has no row");
            ruled.insert(rule);
        }
    }
    let unruled: Vec<_> = rows.difference(&ruled).collect();
    assert!(unruled.is_empty(), "rows of no rule: {unruled:?}");
    assert!(ruled.len() > 50, "the page was read");
}
