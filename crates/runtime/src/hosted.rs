//! Graphs of users' code, run by child processes over the graph host protocol
//! (`docs/internals/graph-host-protocol.md`).
//!
//! Everything durable stays with the server: runs, checkpoints, items, leases, retries. A child holds the user's code
//! and active runs; it may die at any time, and its runs are retried on another child.

mod abandonment;
mod calls;
mod child;
mod connection;
pub mod environment;
mod fork_server;
pub mod frame;
mod launch;
mod logs;
mod maintenance;
pub mod message;
mod options;
pub mod package;
mod pool;
mod process;
mod question;
mod run;
mod selection;
mod spawn_thread;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use launch::{Launch, StartError};
pub use message::{AuthHandlers, LoadError};
pub use options::Options;
pub use pool::Pool;
pub use question::{AuthDenied, Authorization, Caller, Request};

use crate::{
    CheckpointRef, Execution, Finish, GraphError, HistoryQuery, Host, Schemas, StateRef, StateSnapshot, Update, Xray,
};
use message::LoadedGraph;

/// A graph of a user's own code.
#[derive(Clone)]
pub struct Graph {
    loaded: Arc<GraphDescription>,
    pool: Arc<Pool>,
}

/// What was known of a graph when it was loaded.
struct GraphDescription {
    described: LoadedGraph,
    /// From the config file.
    description: Option<String>,
    schemas: Schemas,
    drawing: Option<Value>,
    subgraphs: Option<BTreeMap<String, Schemas>>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Graph {
    /// The graphs that the children of a pool run.
    #[must_use]
    pub fn of_pool(pool: &Arc<Pool>) -> Vec<Self> {
        let of = |described: &LoadedGraph| {
            let mut schemas: Schemas = read(described.schemas.as_ref()).unwrap_or_default();
            schemas.graph_id = Some(described.id.clone());
            let known = GraphDescription {
                schemas,
                drawing: read(described.drawing.as_ref()),
                subgraphs: read(described.subgraphs.as_ref()),
                description: described.description.clone(),
                described: described.clone(),
            };
            Self {
                loaded: Arc::new(known),
                pool: pool.clone(),
            }
        };
        pool.ready().graphs.iter().map(of).collect()
    }

    /// The children that run it.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn id(&self) -> &str {
        &self.loaded.described.id
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.loaded.described.name.as_deref()
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.loaded.description.as_deref()
    }

    pub(crate) fn schemas(&self) -> Schemas {
        self.loaded.schemas.clone()
    }

    pub(crate) fn node_names(&self) -> Vec<String> {
        self.loaded.described.nodes.clone().unwrap_or_default()
    }

    pub(crate) async fn drawing(&self, xray: Xray) -> Result<Value, GraphError> {
        match (&self.loaded.drawing, xray) {
            (Some(drawing), Xray::No) => Ok(drawing.clone()),
            _ => question::drawing(&self.pool, self.id(), xray).await,
        }
    }

    pub(crate) async fn subgraphs(
        &self,
        namespace: Option<&str>,
        recurse: bool,
    ) -> Result<BTreeMap<String, Schemas>, GraphError> {
        match (&self.loaded.subgraphs, namespace, recurse) {
            (Some(all), None, true) => Ok(all.clone()),
            (Some(all), None, false) if all.is_empty() => Ok(BTreeMap::new()),
            _ => question::subgraphs(&self.pool, self.id(), namespace, recurse).await,
        }
    }

    pub(crate) async fn run(&self, execution: &Execution, host: &dyn Host) -> Result<Finish, GraphError> {
        run::run(&self.pool, self.id(), execution, host).await
    }

    pub(crate) async fn state(
        &self,
        at: &StateRef,
        subgraphs: bool,
        host: &dyn Host,
    ) -> Result<Option<StateSnapshot>, GraphError> {
        question::state(&self.pool, self.id(), at, subgraphs, host).await
    }

    pub(crate) async fn history(
        &self,
        at: &StateRef,
        query: &HistoryQuery,
        host: &dyn Host,
    ) -> Result<Vec<StateSnapshot>, GraphError> {
        question::history(&self.pool, self.id(), at, query, host).await
    }

    pub(crate) async fn update_state(
        &self,
        at: &StateRef,
        supersteps: &[Vec<Update>],
        metadata: &Map<String, Value>,
        host: &dyn Host,
    ) -> Result<CheckpointRef, GraphError> {
        question::update_state(&self.pool, self.id(), at, supersteps, metadata, host).await
    }
}

fn read<T: serde::de::DeserializeOwned>(json: Option<&message::Json>) -> Option<T> {
    json.and_then(|json| json.read::<Option<T>>().ok()).flatten()
}
