//! The measured project.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};
use towpath_runtime::hosted::environment;

use crate::config::{Config, Inputs, Mode};

/// Two channels, one with a reducer, and two asynchronous nodes.
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

pub const ID: &str = "agent";
pub const CONFIG: &str = "langgraph.json";

/// Input of a run.
pub fn input() -> Value {
    json!({"items": ["start"]})
}

/// Writes the project to a folder.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join("agent.py"), GRAPH)?;
    // The official server requires a dependency in the config file.
    let config = json!({"graphs": {ID: "./agent.py:graph"}, "dependencies": ["."]});
    std::fs::write(folder.join(CONFIG), config.to_string())?;
    Ok(())
}

/// The configured interpreter, or one of a new environment below the data folder.
pub async fn interpreter(named: Option<&Path>, folder: &Path) -> anyhow::Result<PathBuf> {
    let config = Config::load(&Inputs::from_process(Mode::Agent, Vec::new(), None))?;
    if let Some(named) = named.or(config.settings.agent.hosts.python.as_deref()) {
        return Ok(std::path::absolute(named)?);
    }
    let wanted = environment::EnvironmentSpec {
        folder: folder.to_owned(),
        dependencies: Vec::new(),
        version: None,
        pip_config: None,
        uv: None,
        workspace: None,
    };
    let root = config.settings.data_dir.join("hosts");
    environment::prepare(&wanted, &root, &config.environment)
        .await
        .context("name an interpreter that has langgraph as --python")
}
