//! A Python graph of two nodes: through the server, and on the same kind of process without one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use towpath_runtime::hosted::{Launch, Options, Pool, environment, package};
use towpath_runtime::memory::MemoryHost;
use towpath_runtime::{Execution, Graph, Graphs};
use uuid::Uuid;

use super::agent::Seen;
use crate::config::Config;

/// The project that is measured: two channels, one with a reducer, two asynchronous nodes.
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
    let config = json!({"graphs": {"agent": "./agent.py:graph"}, "dependencies": []});
    std::fs::write(folder.join("langgraph.json"), config.to_string())?;
    Ok(())
}

/// The interpreter that was named, or one of an environment that is made below the data folder.
///
/// # Errors
/// There is none, and none can be made.
pub async fn interpreter(named: Option<&Path>, config: &Config, folder: &Path) -> anyhow::Result<PathBuf> {
    if let Some(named) = named.or(config.settings.agent.hosts.python.as_deref()) {
        return Ok(std::path::absolute(named)?);
    }
    let wanted = environment::Wanted {
        folder: folder.to_owned(),
        dependencies: Vec::new(),
        version: None,
        pip_config: None,
    };
    let root = config.settings.data_dir.join("hosts");
    environment::prepare(&wanted, &root, &config.environment)
        .await
        .context("name an interpreter that has langgraph as --python")
}

/// Processes of the graph, without a server.
pub struct Bare(Graph);

impl Bare {
    /// Starts as many as the server of the comparison has.
    ///
    /// # Errors
    /// They cannot be started.
    pub async fn start(python: &Path, folder: &Path, children: usize) -> anyhow::Result<Self> {
        let package = package::write(folder)?;
        let launch = Launch {
            program: python.to_owned(),
            arguments: ["-u", "-m", "towpath_host"].map(Into::into).to_vec(),
            environment: [(
                "PYTHONPATH".to_owned(),
                towpath_domain::Secret::new(package.display().to_string()),
            )]
            .into(),
            clean: true,
            folder: folder.to_owned(),
            config: std::fs::read_to_string(folder.join("langgraph.json"))?,
            graphs: None,
            http: false,
            sockets: folder.to_owned(),
            start_timeout: Duration::from_secs(120),
        };
        let options = Options {
            children,
            ..Options::default()
        };
        let graphs = Graphs::default().with_hosts(Pool::start(launch, options).await?);
        let graph = graphs.get("agent").context("the graph is there")?;
        Ok(Self(graph.clone()))
    }

    /// `clients` that run it again and again for the length of a phase.
    ///
    /// # Errors
    /// A run fails.
    pub async fn closed(&self, clients: usize, phase: Duration) -> anyhow::Result<Seen> {
        let graph = Arc::new(self.0.clone());
        once(&graph).await?;
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let graph = graph.clone();
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < phase {
                    let asked = Instant::now();
                    once(&graph).await?;
                    latencies.push(asked.elapsed());
                }
                Ok::<_, anyhow::Error>(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        Ok(Seen::new(latencies, started.elapsed()))
    }
}

async fn once(graph: &Graph) -> anyhow::Result<()> {
    let (thread, run) = (Uuid::now_v7(), Uuid::now_v7());
    let mut execution = Execution::new(thread, run, Some(input()));
    execution.fresh = true;
    execution.temporary = true;
    execution.config.insert(
        "configurable".to_owned(),
        json!({"thread_id": thread, "run_id": run, "graph_id": "agent"}),
    );
    graph.run(&execution, &MemoryHost::new()).await?;
    Ok(())
}
