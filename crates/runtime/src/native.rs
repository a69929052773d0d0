//! Native graphs, declared as data. For the format see `docs/native-graphs.md`.

mod bench;
mod branch;
mod channel;
mod codec;
mod declare;
mod describe;
mod echo;
mod engine;
mod http;
mod http_client;
mod job;
mod llm;
mod messages;
mod names;
mod nested;
mod plan;
mod run;
mod saver;
mod script;
mod sink;
mod snapshot;
mod superstep;
mod template;
mod tools;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    CheckpointRef, Drawing, Execution, Finish, GraphError, GraphServices, HistoryQuery, Host, Schemas, StateRef,
    StateSnapshot, Update, Xray,
};

/// What langgraph calls a graph without a name.
const UNNAMED: &str = "LangGraph";

/// A native graph.
#[derive(Clone, Debug)]
pub struct Graph {
    id: String,
    name: Option<String>,
    description: Option<String>,
    plan: Arc<plan::Plan>,
    services: GraphServices,
}

impl Graph {
    /// Reads a declaration: the name of a kind, or an object with `kind`.
    pub fn parse(id: &str, name: Option<&str>, description: Option<&str>, native: &Value) -> Result<Self, String> {
        Ok(Self {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            description: description.map(str::to_owned),
            plan: Arc::new(declare::plan(native)?),
            services: GraphServices::default(),
        })
    }

    pub(crate) fn set_services(&mut self, outside: GraphServices) {
        self.services = outside;
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    pub(crate) fn schemas(&self) -> Schemas {
        describe::schemas(&self.plan, Some(&self.id), self.name().unwrap_or(UNNAMED))
    }

    pub(crate) fn drawing(&self, xray: Xray) -> Drawing {
        describe::drawing(&self.plan, xray)
    }

    pub(crate) fn subgraphs(&self, namespace: Option<&str>, recurse: bool) -> BTreeMap<String, Schemas> {
        describe::subgraphs(&self.plan, namespace, recurse)
    }

    pub(crate) fn node_names(&self) -> Vec<String> {
        self.plan.nodes.iter().skip(1).map(|node| node.name.clone()).collect()
    }

    pub(crate) async fn run(&self, execution: &Execution, host: &dyn Host) -> Result<Finish, GraphError> {
        let name = self.name().unwrap_or(UNNAMED);
        run::run(&self.plan, name, &self.services, execution, host).await
    }

    pub(crate) async fn state(
        &self,
        at: &StateRef,
        subgraphs: bool,
        host: &dyn Host,
    ) -> Result<Option<StateSnapshot>, GraphError> {
        snapshot::state(&self.plan, at, subgraphs, host).await
    }

    pub(crate) async fn history(
        &self,
        at: &StateRef,
        query: &HistoryQuery,
        host: &dyn Host,
    ) -> Result<Vec<StateSnapshot>, GraphError> {
        snapshot::history(&self.plan, at, query, host).await
    }

    pub(crate) async fn update_state(
        &self,
        at: &StateRef,
        supersteps: &[Vec<Update>],
        metadata: &Map<String, Value>,
        host: &dyn Host,
    ) -> Result<CheckpointRef, GraphError> {
        update::update_state(&self.plan, &self.services.clock, at, supersteps, metadata, host).await
    }
}
