//! The graphs of a config file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::{Map, Value, json};

use crate::hosted::Pool;
use crate::{Graph, GraphServices, hosted, native};

/// All graphs a server offers.
#[derive(Clone, Debug, Default)]
pub struct Graphs {
    graphs: BTreeMap<String, Graph>,
    /// Graphs that a child process loads, by id, with their paths from the file.
    hosted_paths: BTreeMap<String, String>,
    /// The children, if there are any.
    pool: Option<Arc<Pool>>,
}

/// An invalid config file or graph. The message names the graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("the config file is not JSON: {0}")]
    Json(String),
    /// The `graphs` entry is missing or of the wrong shape.
    #[error("`graphs` must be an object with at least one graph")]
    Graphs,
    /// One graph cannot be used.
    #[error("graph {id:?}: {message}")]
    Graph {
        id: String,
        /// Why.
        message: String,
    },
}

impl Graphs {
    /// A single echo graph `agent`, the default without a config file.
    #[must_use]
    pub fn echo() -> Self {
        let graph = native::Graph::parse("agent", None, None, &json!("echo")).expect("the echo graph is well declared");
        Self {
            graphs: BTreeMap::from([("agent".to_owned(), Graph::Native(graph))]),
            ..Self::default()
        }
    }

    /// Parses a config file. Paths in it are relative to `folder`. Graphs of users' code are listed in
    /// [`Graphs::hosted_paths`]; they become available with [`Graphs::with_hosts`].
    pub fn from_config(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let config: Value = serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        let entries = config.get("graphs").and_then(Value::as_object);
        let entries = entries
            .filter(|entries| !entries.is_empty())
            .ok_or(ConfigError::Graphs)?;
        let mut all = Self::default();
        for (id, entry) in entries {
            let declared = read(id, entry, folder).map_err(|message| ConfigError::Graph {
                id: id.clone(),
                message,
            })?;
            match declared {
                DeclaredGraph::Native(graph) => {
                    all.graphs.insert(id.clone(), Graph::Native(*graph));
                }
                DeclaredGraph::Code(path) => {
                    all.hosted_paths.insert(id.clone(), path);
                }
            }
        }
        Ok(all)
    }

    /// Graphs of users' code: id and path from the config file.
    #[must_use]
    pub fn hosted_paths(&self) -> &BTreeMap<String, String> {
        &self.hosted_paths
    }

    /// Adds the graphs that the children of a pool have loaded.
    #[must_use]
    pub fn with_hosts(mut self, pool: Pool) -> Self {
        let pool = Arc::new(pool);
        for graph in hosted::Graph::of_pool(&pool) {
            let graph = Graph::Hosted(graph);
            self.graphs.insert(graph.id().to_owned(), graph);
        }
        self.pool = Some(pool);
        self
    }

    /// The child processes that run users' graphs, if there are such graphs.
    #[must_use]
    pub fn host_pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// The same graphs with what they need of the process.
    #[must_use]
    pub fn with_services(mut self, outside: &GraphServices) -> Self {
        for graph in self.graphs.values_mut() {
            match graph {
                Graph::Native(graph) => graph.set_services(outside.clone()),
                // Its code reaches outside by itself.
                Graph::Hosted(_) => {}
            }
        }
        self
    }

    /// A graph by its key in the config file.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Graph> {
        self.graphs.get(id)
    }

    /// Keys of all graphs, sorted.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.graphs.keys().map(String::as_str)
    }

    /// All graphs.
    pub fn iter(&self) -> impl Iterator<Item = &Graph> {
        self.graphs.values()
    }
}

/// The graphs that a server currently offers. They can be replaced at run time: callers keep the set they took, and the
/// children of a set end when nothing holds it any more.
#[derive(Clone, Debug, Default)]
pub struct GraphSet(Arc<RwLock<Arc<Graphs>>>);

impl GraphSet {
    /// Offers these.
    #[must_use]
    pub fn new(graphs: Graphs) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(graphs))))
    }

    /// The current graphs. A caller holds them while it runs one of them.
    #[must_use]
    pub fn current(&self) -> Arc<Graphs> {
        self.0.read().clone()
    }

    /// A graph that is offered now.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Graph> {
        self.current().get(id).cloned()
    }

    /// Whether a graph is offered now.
    #[must_use]
    pub fn contains(&self, id: &str) -> bool {
        self.current().get(id).is_some()
    }

    /// Replaces the graphs for future runs; active runs finish on the old ones, which are returned.
    pub fn replace(&self, graphs: Graphs) -> Arc<Graphs> {
        let mut current = self.0.write();
        std::mem::replace(&mut current, Arc::new(graphs))
    }
}

impl From<Graphs> for GraphSet {
    fn from(graphs: Graphs) -> Self {
        Self::new(graphs)
    }
}

enum DeclaredGraph {
    Native(Box<native::Graph>),
    Code(String),
}

fn read(id: &str, entry: &Value, folder: &Path) -> Result<DeclaredGraph, String> {
    match entry {
        Value::String(path) => from_path(id, path, None, folder),
        Value::Object(entry) => match (entry.get("native"), entry.get("path").and_then(Value::as_str)) {
            (Some(_), _) => declared(id, entry, None).map(|graph| DeclaredGraph::Native(Box::new(graph))),
            (None, Some(path)) => from_path(id, path, text(entry, "description")?, folder),
            (None, None) => Err(EXPECTED.to_owned()),
        },
        _ => Err(EXPECTED.to_owned()),
    }
}

const EXPECTED: &str =
    "expected \"./file.py:variable\", {\"path\": …}, {\"native\": …} or a path ending in .graph.json";

/// A file holds `{"native": …, "name"?, "description"?}`.
fn from_path(id: &str, path: &str, description: Option<&str>, folder: &Path) -> Result<DeclaredGraph, String> {
    if !path.ends_with(".graph.json") {
        return code(path).map(DeclaredGraph::Code);
    }
    let text = std::fs::read_to_string(folder.join(path)).map_err(|error| format!("cannot read {path:?}: {error}"))?;
    let file: Value = serde_json::from_str(&text).map_err(|error| format!("{path:?} is not JSON: {error}"))?;
    let file = file.as_object().filter(|file| file.contains_key("native"));
    let file = file.ok_or_else(|| format!("{path:?} must hold an object with `native`"))?;
    declared(id, file, description).map(|graph| DeclaredGraph::Native(Box::new(graph)))
}

/// `./file.py:name` or `package.module:name`.
fn code(path: &str) -> Result<String, String> {
    let (module, name) = path.rsplit_once(':').unwrap_or((path, ""));
    let extension = Path::new(module).extension().and_then(|extension| extension.to_str());
    if matches!(extension, Some("js" | "mjs" | "cjs" | "ts" | "mts" | "tsx" | "jsx")) {
        return Err(format!(
            "{path:?} is JavaScript; this build runs only Python graphs and native graphs"
        ));
    }
    if module.is_empty() || name.is_empty() {
        return Err(format!(
            "{path:?} must name a file and a variable in it, such as \"./agent.py:graph\""
        ));
    }
    Ok(path.to_owned())
}

fn declared(id: &str, entry: &Map<String, Value>, description: Option<&str>) -> Result<native::Graph, String> {
    if let Some(unknown) = entry
        .keys()
        .find(|key| !matches!(key.as_str(), "native" | "name" | "description"))
    {
        return Err(format!("unknown key {unknown:?} beside `native`"));
    }
    let description = description.or(text(entry, "description")?);
    native::Graph::parse(id, text(entry, "name")?, description, &entry["native"])
}

fn text<'a>(entry: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, String> {
    match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{key}` must be a string")),
    }
}
