//! Config files, and what is wrong with them.

use std::path::Path;

use serde_json::{Value, json};
use towpath_runtime::{Command, Goto, Graphs, Nodes};

use crate::arrange::graphs;

fn config(text: &str) -> Result<Graphs, String> {
    Graphs::from_config(text, Path::new("/nowhere")).map_err(|error| error.to_string())
}

#[test]
fn graphs_stand_in_the_file_or_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("b.graph.json"),
        r#"{"native": "echo", "name": "Bee", "description": "own"}"#,
    )
    .unwrap();
    let text = json!({"graphs": {
        "a": {"native": {"kind": "echo"}, "description": "inline"},
        "b": "./b.graph.json",
        "c": {"path": "b.graph.json", "description": "given"},
    }, "dependencies": ["."]});
    let graphs = Graphs::from_config(&text.to_string(), folder.path()).unwrap();
    assert_eq!(graphs.ids().collect::<Vec<_>>(), ["a", "b", "c"]);
    let told = |id: &str| {
        let graph = graphs.get(id).unwrap();
        (graph.name().map(str::to_owned), graph.description().map(str::to_owned))
    };
    assert_eq!(told("a"), (None, Some("inline".to_owned())));
    assert_eq!(told("b"), (Some("Bee".to_owned()), Some("own".to_owned())));
    assert_eq!(told("c"), (Some("Bee".to_owned()), Some("given".to_owned())));
    assert!(graphs.get("d").is_none());
}

#[test]
fn code_is_named_and_what_cannot_run_is_refused_with_the_reason() {
    for path in ["./graph.py:graph", "pkg.mod:graph"] {
        for entry in [json!(path), json!({"path": path})] {
            let graphs = config(&json!({"graphs": {"agent": entry}}).to_string()).unwrap();
            assert_eq!(graphs.hosted_paths()["agent"], path);
            assert!(graphs.get("agent").is_none());
        }
    }
    for (path, expected) in [
        ("./src/graph.ts:graph", "JavaScript"),
        ("./graph.py", "a variable in it"),
    ] {
        let error = config(&json!({"graphs": {"agent": path}}).to_string()).unwrap_err();
        assert!(
            error.starts_with("graph \"agent\": ") && error.contains(expected),
            "{error}"
        );
    }
    let missing = config(r#"{"graphs": {"agent": "x.graph.json"}}"#).unwrap_err();
    assert!(
        missing.starts_with("graph \"agent\": cannot read \"x.graph.json\""),
        "{missing}"
    );
    assert!(config("{").unwrap_err().starts_with("the config file is not JSON"));
    assert!(config("{}").unwrap_err().starts_with("`graphs` must be"));
    assert!(
        config(r#"{"graphs": {"a": {"native": "echo", "nmae": 1}}}"#)
            .unwrap_err()
            .contains("\"nmae\"")
    );
}

#[test]
fn wrong_declarations_are_told_with_their_place() {
    let node = |steps: Value| json!({"kind": "workflow", "nodes": {"n": {"kind": "script", "steps": steps}}});
    for (native, expected) in [
        (json!("ecko"), "unknown kind \"ecko\""),
        (json!({"steps": []}), "`kind` must be"),
        (json!({"kind": "echo", "loud": true}), "unknown field `loud`"),
        (
            node(json!([{"set": {"y": 1}}])),
            "node \"n\": it writes \"y\", which is not declared in `channels`",
        ),
        (
            node(json!([{"set": {}, "emit": 1}])),
            "node \"n\": step 0: expected exactly one of",
        ),
        (
            node(json!([{"emit": 1}, {"if": {"at": "/x"}, "then": [{"nap": 1}]}])),
            "node \"n\": step 1: then: step 0: expected",
        ),
        (
            node(json!([{"goto": "m"}])),
            "node \"n\" goes to \"m\", which is not a node",
        ),
        (
            node(json!([{"emit": 1, "into": "x"}])),
            "unknown field `into` beside `emit`",
        ),
        (
            json!({"kind": "workflow", "nodes": {"a": "echo"}, "edges": [["__start__", "b"]]}),
            "an edge leads to \"b\"",
        ),
        (
            json!({"kind": "workflow", "nodes": {"a": "echo"}, "edges": [["a", "a"]]}),
            "no edge starts at \"__start__\"",
        ),
        (
            json!({"kind": "workflow", "nodes": {"a": "echo"}, "edges": [{"from": "a"}]}),
            "edge 0: expected `to`",
        ),
        (
            json!({"kind": "workflow", "nodes": {"__a": "echo"}}),
            "node name \"__a\"",
        ),
        (
            json!({"kind": "echo", "channels": {"x": "sum"}}),
            "channel \"x\": unknown reducer \"sum\"",
        ),
        (
            json!({"kind": "echo", "channels": {"x": "append"}}),
            "echo needs the channel `messages`",
        ),
        (
            json!({"kind": "echo", "interrupt_before": ["x"]}),
            "it interrupts at \"x\"",
        ),
        (
            json!({"kind": "llm", "base_url": "ftp://x", "model": "m"}),
            "`base_url` must be",
        ),
        (
            json!({"kind": "llm", "base_url": "http://x", "model": "m", "provider": "p"}),
            "unknown provider",
        ),
        (
            json!({"kind": "http", "url": "http://x", "map": {"reply": "a"}}),
            "\"a\" is not a JSON pointer",
        ),
        (
            json!({"kind": "http", "url": "http://x", "map": {"z": "/a"}}),
            "it writes \"z\"",
        ),
        (json!({"kind": "bench", "step": 1}), "unknown field `step`"),
    ] {
        let error = graphs(&native).map(drop).unwrap_err();
        assert!(error.contains(expected), "{native}: {error}");
    }
}

#[test]
fn commands_and_stops_are_read_as_the_api_writes_them() {
    let command = |value: Value| serde_json::from_value::<Command>(value).map_err(|error| error.to_string());
    assert_eq!(
        command(json!({"goto": "a"})).unwrap().goto,
        [Goto::Node("a".to_owned())]
    );
    assert_eq!(
        command(json!({"goto": ["a", {"node": "b", "input": 1}]}))
            .unwrap()
            .goto
            .len(),
        2
    );
    assert_eq!(
        command(json!({"goto": null, "resume": null, "update": null})).unwrap(),
        Command::default()
    );
    assert_eq!(command(json!({"resume": false})).unwrap().resume, Some(json!(false)));
    assert!(
        command(json!({"goto": 1}))
            .unwrap_err()
            .contains("expected a node name")
    );
    let nodes = |value: Value| serde_json::from_value::<Nodes>(value);
    assert_eq!(nodes(json!("*")).unwrap(), Nodes::All);
    assert_eq!(nodes(json!(["a"])).unwrap(), Nodes::Some(vec!["a".to_owned()]));
    assert!(nodes(json!(null)).unwrap().is_empty());
    assert!(nodes(json!("a")).is_err());
}
