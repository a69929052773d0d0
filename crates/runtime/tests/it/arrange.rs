//! What the tests share: a graph, a thread in memory, and what was told and saved.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use towpath_domain::Clock;
use towpath_outbound::{Guard, Policy};
use towpath_runtime::memory::MemoryHost;
use towpath_runtime::{
    Chunk, Command, Execution, Finish, Graph, GraphError, GraphServices, Graphs, StateRef, StateSnapshot, StreamMode,
    Update,
};
use uuid::Uuid;

pub const THREAD: Uuid = Uuid::from_u128(7);

/// A graph and a thread of it.
pub struct TestThread {
    pub graphs: Graphs,
    pub host: Arc<MemoryHost>,
    runs: std::sync::atomic::AtomicU64,
}

pub fn graphs(native: &Value) -> Result<Graphs, String> {
    let config = json!({"graphs": {"agent": {"native": native}}}).to_string();
    Graphs::from_config(&config, Path::new(".")).map_err(|error| error.to_string())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `json!` gives reads better without a reference"
)]
pub fn arrange(native: Value) -> TestThread {
    TestThread {
        graphs: graphs(&native)
            .unwrap()
            .with_services(&GraphServices::new(Clock::system())),
        host: Arc::new(MemoryHost::new()),
        runs: std::sync::atomic::AtomicU64::new(1),
    }
}

/// With calls to this machine allowed, and one secret.
pub fn arrange_calling(native: Value) -> TestThread {
    // A caller that comes first; a second time is refused, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let outside = GraphServices::new(Clock::system())
        .with_guard(Guard::new(Policy::development()))
        .with_secrets(|name| (name == "TEST_KEY").then(|| "sesame".to_owned()));
    let mut arranged = arrange(native);
    arranged.graphs = arranged.graphs.with_services(&outside);
    arranged
}

impl TestThread {
    pub fn graph(&self) -> &Graph {
        self.graphs.get("agent").unwrap()
    }

    /// A new run with this input.
    pub fn execution(&self, input: Option<Value>) -> Execution {
        let number = self.runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Execution::new(THREAD, Uuid::from_u128(u128::from(number)), input)
    }

    pub fn command(&self, command: Value) -> Execution {
        let mut execution = self.execution(None);
        execution.command = Some(serde_json::from_value::<Command>(command).unwrap());
        execution
    }

    pub async fn try_run(&self, execution: &Execution) -> Result<Finish, GraphError> {
        self.graph().run(execution, &*self.host).await
    }

    pub async fn run(&self, execution: &Execution) -> Finish {
        self.try_run(execution).await.unwrap()
    }

    /// Runs with these modes; gives the events and their data.
    pub async fn stream(&self, mut execution: Execution, modes: &[StreamMode]) -> Vec<(String, Value)> {
        execution.modes = modes.to_vec();
        let _ = self.host.take_chunks();
        self.run(&execution).await;
        self.told()
    }

    /// Events since the last look.
    pub fn told(&self) -> Vec<(String, Value)> {
        self.host.take_chunks().iter().map(told).collect()
    }

    pub async fn state(&self) -> StateSnapshot {
        self.graph()
            .state(&StateRef::latest(THREAD), &*self.host)
            .await
            .unwrap()
            .unwrap()
    }

    pub async fn history(&self) -> Vec<StateSnapshot> {
        self.graph()
            .history(&StateRef::latest(THREAD), &Default::default(), &*self.host)
            .await
            .unwrap()
    }

    pub async fn update(&self, values: Value, as_node: Option<&str>) -> Result<String, GraphError> {
        let update = Update {
            values,
            as_node: as_node.map(str::to_owned),
            command: None,
        };
        let at = StateRef::latest(THREAD);
        let made = self
            .graph()
            .update_state(&at, &[vec![update]], &Map::new(), &*self.host)
            .await?;
        Ok(made.checkpoint_id.unwrap())
    }
}

fn told(chunk: &Chunk) -> (String, Value) {
    (chunk.event(), serde_json::from_str(&chunk.data).unwrap())
}

/// Data of the events of one name.
pub fn of<'a>(told: &'a [(String, Value)], name: &str) -> Vec<&'a Value> {
    told.iter()
        .filter(|(event, _)| event == name)
        .map(|(_, data)| data)
        .collect()
}

/// Names of events.
pub fn names(told: &[(String, Value)]) -> Vec<&str> {
    told.iter().map(|(event, _)| event.as_str()).collect()
}
