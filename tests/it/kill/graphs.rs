//! The graphs of drills on agent servers.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Supersteps of a run of the graph `steps`, and of one of `walk`.
pub const SHORT: u32 = 3;
pub const LONG: u32 = 24;

/// A file of graphs, gone when this is dropped.
pub struct Graphs {
    folder: TempDir,
}

impl Graphs {
    /// `steps` has a few supersteps. `walk` has many, and takes about as long as `slow` where its input says so.
    pub fn write(slow: Duration) -> Self {
        let pause_ms = u64::try_from((slow / LONG).as_millis()).expect("a pause is short");
        let graphs = json!({"graphs": {
            "steps": {"native": chain(SHORT, 0)},
            "walk": {"native": chain(LONG, pause_ms)},
        }});
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written = Self { folder };
        std::fs::write(written.file(), graphs.to_string()).expect("the folder is ours");
        written
    }

    /// For `TOWPATH_AGENT_GRAPHS`.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("graphs.json")
    }
}

/// Supersteps in a row. Each adds its name to the log, so a superstep that counted twice shows there.
fn chain(length: u32, pause_ms: u64) -> Value {
    let mut nodes = Map::new();
    let mut edges = Vec::new();
    let mut before = "__start__".to_owned();
    for step in 0..length {
        let name = step_name(step);
        let steps = json!([
            {"if": {"at": "/slow"}, "then": [{"sleep_ms": pause_ms}]},
            {"append": {"log": name}},
        ]);
        nodes.insert(name.clone(), json!({"kind": "script", "steps": steps}));
        edges.push(json!([before, name]));
        before = name;
    }
    json!({
        "kind": "workflow",
        "channels": {"log": "append", "slow": "last-value"},
        "nodes": nodes,
        "edges": edges,
    })
}

fn step_name(step: u32) -> String {
    format!("s{step}")
}

/// What the log of a thread says once so many runs are over, each of so many supersteps.
pub fn log(length: u32, runs: i64) -> Value {
    (0..runs).flat_map(|_| (0..length).map(step_name)).collect()
}

/// A request for a run of `steps`.
pub fn steps() -> Value {
    json!({"assistant_id": "steps", "input": {"log": []}})
}

/// A request for a run of `walk` that takes its time.
pub fn slow_walk() -> Value {
    json!({"assistant_id": "walk", "input": {"log": [], "slow": true}, "metadata": {"slow": true}})
}

/// A request for a run of `walk` that does not.
pub fn quick_walk() -> Value {
    json!({"assistant_id": "walk", "input": {"log": [], "slow": false}})
}

/// A text of an answer.
pub fn text(answer: &Value, name: &str) -> String {
    let found = answer[name].as_str();
    found
        .unwrap_or_else(|| panic!("{name} is no text in {answer}"))
        .to_owned()
}
