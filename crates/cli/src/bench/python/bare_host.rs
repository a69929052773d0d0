//! The same kind of process over the same protocol, without a server and its durability.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use towpath_runtime::hosted::{Launch, Options, Pool, package};
use towpath_runtime::memory::MemoryHost;
use towpath_runtime::{Execution, Graph, Graphs, StreamMode};
use uuid::Uuid;

use super::project;

/// A graph process. It ends with the last clone.
#[derive(Clone)]
pub struct BareHost(Graph);

impl BareHost {
    /// Starts as many children as the compared server has.
    pub async fn start(python: &Path, folder: &Path, children: usize) -> anyhow::Result<Self> {
        let package = package::write(folder)?;
        let launch = Launch {
            program: python.to_owned(),
            arguments: ["-u", "-m", "towpath_host"].map(Into::into).to_vec(),
            fork_argument: None,
            environment: [(
                "PYTHONPATH".to_owned(),
                towpath_domain::Secret::new(package.display().to_string()),
            )]
            .into(),
            clean: true,
            folder: folder.to_owned(),
            config: std::fs::read_to_string(folder.join(project::CONFIG))?,
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
        let graph = graphs.get(project::ID).context("the graph is there")?;
        Ok(Self(graph.clone()))
    }

    /// One run on its own thread, with its checkpoints in memory.
    pub async fn once(self) -> anyhow::Result<()> {
        let (thread, run) = (Uuid::now_v7(), Uuid::now_v7());
        let mut execution = Execution::new(thread, run, Some(project::input()));
        execution.new_thread = true;
        execution.temporary = true;
        // The server's default, so that the process does the same work.
        execution.modes = vec![StreamMode::Values];
        execution.config.insert(
            "configurable".to_owned(),
            json!({"thread_id": thread, "run_id": run, "graph_id": project::ID}),
        );
        self.0.run(&execution, &MemoryHost::new()).await?;
        Ok(())
    }
}
