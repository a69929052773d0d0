//! The interface of graphs, native or hosted.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::description::{Schemas, Xray};
use crate::{
    CheckpointRef, Execution, Finish, GraphError, HistoryQuery, Host, StateRef, StateSnapshot, Update, hosted, native,
};

#[derive(Clone, Debug)]
pub enum Graph {
    /// Declared as data, run here.
    Native(native::Graph),
    /// Written in code, run by a child process.
    Hosted(hosted::Graph),
}

impl Graph {
    /// The key in the config file.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Native(graph) => graph.id(),
            Self::Hosted(graph) => graph.id(),
        }
    }

    /// What to call its assistant, when it says so.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Native(graph) => graph.name(),
            Self::Hosted(graph) => graph.name(),
        }
    }

    /// What it says about itself.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        match self {
            Self::Native(graph) => graph.description(),
            Self::Hosted(graph) => graph.description(),
        }
    }

    /// JSON schemas of what goes in and out.
    #[must_use]
    pub fn schemas(&self) -> Schemas {
        match self {
            Self::Native(graph) => graph.schemas(),
            Self::Hosted(graph) => graph.schemas(),
        }
    }

    /// Nodes and edges.
    pub async fn drawing(&self, xray: Xray) -> Result<Value, GraphError> {
        match self {
            Self::Native(graph) => serde_json::to_value(graph.drawing(xray))
                .map_err(|error| GraphError::new("ValueError", error.to_string())),
            Self::Hosted(graph) => graph.drawing(xray).await,
        }
    }

    /// Schemas of its subgraphs (without `graph_id`) by namespace: node names, joined by `|`.
    pub async fn subgraphs(
        &self,
        namespace: Option<&str>,
        recurse: bool,
    ) -> Result<BTreeMap<String, Schemas>, GraphError> {
        match self {
            Self::Native(graph) => Ok(graph.subgraphs(namespace, recurse)),
            Self::Hosted(graph) => graph.subgraphs(namespace, recurse).await,
        }
    }

    /// Names of its nodes, without start and end.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        match self {
            Self::Native(graph) => graph.node_names(),
            Self::Hosted(graph) => graph.node_names(),
        }
    }

    /// The properties of its context schema, if any: others are dropped from a run's context.
    #[must_use]
    pub fn context_keys(&self) -> Option<Vec<String>> {
        let schema = self.schemas().context_schema?;
        let properties = schema.get("properties")?.as_object()?;
        Some(properties.keys().cloned().collect())
    }

    /// Runs until the end, an interrupt, or an error. Drop the future to stop immediately; cancel the host's token to
    /// stop between tasks and inside waits.
    ///
    /// # Errors
    /// The graph failed, or the host did (`retry`).
    pub async fn run(&self, execution: &Execution, host: &dyn Host) -> Result<Finish, GraphError> {
        match self {
            Self::Native(graph) => graph.run(execution, host).await,
            Self::Hosted(graph) => graph.run(execution, host).await,
        }
    }

    /// State of a thread; `None` when there is no such checkpoint.
    pub async fn state(&self, at: &StateRef, host: &dyn Host) -> Result<Option<StateSnapshot>, GraphError> {
        self.read_state(at, false, host).await
    }

    /// The same, with the states of subgraphs in their tasks.
    pub async fn state_with_subgraphs(
        &self,
        at: &StateRef,
        host: &dyn Host,
    ) -> Result<Option<StateSnapshot>, GraphError> {
        self.read_state(at, true, host).await
    }

    async fn read_state(
        &self,
        at: &StateRef,
        subgraphs: bool,
        host: &dyn Host,
    ) -> Result<Option<StateSnapshot>, GraphError> {
        match self {
            Self::Native(graph) => graph.state(at, subgraphs, host).await,
            Self::Hosted(graph) => graph.state(at, subgraphs, host).await,
        }
    }

    /// States of a thread, newest first. `at` supplies the namespace.
    pub async fn history(
        &self,
        at: &StateRef,
        query: &HistoryQuery,
        host: &dyn Host,
    ) -> Result<Vec<StateSnapshot>, GraphError> {
        match self {
            Self::Native(graph) => graph.history(at, query, host).await,
            Self::Hosted(graph) => graph.history(at, query, host).await,
        }
    }

    /// Updates the state from outside a run: one checkpoint per superstep of updates. `metadata` comes from the caller;
    /// its scalars are stored with the checkpoints.
    pub async fn update_state(
        &self,
        at: &StateRef,
        supersteps: &[Vec<Update>],
        metadata: &Map<String, Value>,
        host: &dyn Host,
    ) -> Result<CheckpointRef, GraphError> {
        match self {
            Self::Native(graph) => graph.update_state(at, supersteps, metadata, host).await,
            Self::Hosted(graph) => graph.update_state(at, supersteps, metadata, host).await,
        }
    }
}
