//! The project that is measured.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};
use towpath_runtime::hosted::environment;

use crate::config::{Config, Inputs, Mode};

/// Two channels, one with a reducer, two asynchronous nodes.
const GRAPH: &str = r#"from operator import add
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    items: Annotated[list[str], add]
    last: str


async def a(state: State) -> State:
    return {"items": ["a"], "last": "a"}


async def b(state: State) -> State:
    return {"items": ["b"], "last": "b"}


builder = StateGraph(State)
builder.add_node("a", a)
builder.add_node("b", b)
builder.add_edge(START, "a")
builder.add_edge("a", "b")
builder.add_edge("b", END)
graph = builder.compile()
"#;

/// Its graph.
pub const ID: &str = "agent";
/// Its config file.
pub const CONFIG: &str = "langgraph.json";

/// What a run is given.
pub fn input() -> Value {
    json!({"items": ["start"]})
}

/// Writes the project into a folder.
///
/// # Errors
/// The folder cannot be written.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join("agent.py"), GRAPH)?;
    // The official server takes no config file without a dependency.
    let config = json!({"graphs": {ID: "./agent.py:graph"}, "dependencies": ["."]});
    std::fs::write(folder.join(CONFIG), config.to_string())?;
    Ok(())
}

/// The interpreter that was named, or one of an environment that is made below the data folder.
///
/// # Errors
/// There is none, and none can be made.
pub async fn interpreter(named: Option<&Path>, folder: &Path) -> anyhow::Result<PathBuf> {
    let config = Config::load(&Inputs::of_process(Mode::Agent, Vec::new(), None))?;
    if let Some(named) = named.or(config.settings.agent.hosts.python.as_deref()) {
        return Ok(std::path::absolute(named)?);
    }
    let wanted = environment::Wanted {
        folder: folder.to_owned(),
        dependencies: Vec::new(),
        version: None,
        pip_config: None,
        workspace: None,
    };
    let root = config.settings.data_dir.join("hosts");
    environment::prepare(&wanted, &root, &config.environment)
        .await
        .context("name an interpreter that has langgraph as --python")
}
