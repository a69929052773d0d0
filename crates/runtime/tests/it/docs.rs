//! The examples of docs/native-graphs.md are declarations that load.

use std::path::Path;

use serde_json::{Value, json};
use towpath_runtime::Xray;

use crate::arrange::graphs;

const PAGE: &str = include_str!("../../../../docs/native-graphs.md");

/// The blocks marked as JSON, with the line each begins on.
fn blocks() -> Vec<(usize, Value)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in PAGE.lines().enumerate() {
        match (&mut open, line) {
            (None, "```json") => open = Some((number + 1, String::new())),
            (Some(_), "```") => {
                let (begin, text) = open.take().unwrap();
                let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("line {begin}: {error}"));
                found.push((begin, value));
            }
            (Some((_, text)), line) => {
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    found
}

#[tokio::test]
async fn every_example_loads() {
    let mut kinds = Vec::new();
    for (line, block) in blocks() {
        let natives: Vec<&Value> = match block.get("graphs") {
            Some(all) => all
                .as_object()
                .unwrap()
                .values()
                .filter_map(|graph| graph.get("native"))
                .collect(),
            None => vec![
                block
                    .get("native")
                    .unwrap_or_else(|| panic!("line {line}: no `native`")),
            ],
        };
        for native in natives {
            let graphs = graphs(native).unwrap_or_else(|error| panic!("line {line}: {error}"));
            graphs.get("agent").unwrap().drawing(Xray::All).await.unwrap();
            kinds.push(native.get("kind").unwrap_or(native).clone());
        }
    }
    for kind in ["echo", "script", "llm", "react", "http", "workflow", "bench"] {
        assert!(kinds.contains(&json!(kind)), "no example of {kind}");
    }
}

#[test]
fn every_step_is_described() {
    for step in [
        "set",
        "append",
        "say",
        "sleep_ms",
        "spin_us",
        "emit",
        "fail",
        "interrupt",
        "goto",
        "if",
        "fanout",
        "subgraph",
        "item",
    ] {
        assert!(PAGE.contains(&format!("| `{step}` |")), "{step} is not described");
    }
    assert!(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/native-graphs.md")).exists());
}
