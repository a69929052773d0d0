//! Graphs declared as data, run here.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{
    At, CheckpointRef, Drawing, Execution, Finish, GraphError, HistoryQuery, Host, Outside, Schemas, StateSnapshot,
    Update, Xray,
};

/// A native graph.
#[derive(Clone, Debug)]
pub struct Graph {
    id: String,
    name: Option<String>,
    description: Option<String>,
    outside: Outside,
}

impl Graph {
    /// Reads a declaration.
    ///
    /// # Errors
    /// What is wrong with it, with the place.
    pub fn parse(id: &str, name: Option<&str>, description: Option<&str>, _native: &Value) -> Result<Self, String> {
        Ok(Self { id: id.to_owned(), name: name.map(str::to_owned), description: description.map(str::to_owned), outside: Outside::default() })
    }
    pub(crate) fn set_outside(&mut self, outside: Outside) { self.outside = outside; }
    pub(crate) fn id(&self) -> &str { &self.id }
    pub(crate) fn name(&self) -> Option<&str> { self.name.as_deref() }
    pub(crate) fn description(&self) -> Option<&str> { self.description.as_deref() }
    pub(crate) fn schemas(&self) -> Schemas { Schemas::default() }
    pub(crate) fn drawing(&self, _: Xray) -> Drawing { Drawing::default() }
    pub(crate) fn subgraphs(&self, _: Option<&str>, _: bool) -> BTreeMap<String, Schemas> { BTreeMap::new() }
    pub(crate) fn node_names(&self) -> Vec<String> { Vec::new() }
    pub(crate) async fn run(&self, _: &Execution, _: &dyn Host) -> Result<Finish, GraphError> { Err(GraphError::new("NotReady", "being written")) }
    pub(crate) async fn state(&self, _: &At, _: bool, _: &dyn Host) -> Result<Option<StateSnapshot>, GraphError> { Ok(None) }
    pub(crate) async fn history(&self, _: &At, _: &HistoryQuery, _: &dyn Host) -> Result<Vec<StateSnapshot>, GraphError> { Ok(Vec::new()) }
    pub(crate) async fn update_state(&self, _: &At, _: &[Vec<Update>], _: &Map<String, Value>, _: &dyn Host) -> Result<CheckpointRef, GraphError> { Err(GraphError::new("NotReady", "being written")) }
}
