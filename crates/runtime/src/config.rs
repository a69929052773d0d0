//! The graphs of a config file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Graph, Outside, native};

/// All graphs a server offers.
#[derive(Clone, Debug, Default)]
pub struct Graphs {
    graphs: BTreeMap<String, Graph>,
}

/// A config file, or a graph of it, that cannot be used. The text names the graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("the config file is not JSON: {0}")]
    Json(String),
    /// The `graphs` entry is missing or of the wrong shape.
    #[error("`graphs` must be an object of at least one graph")]
    Graphs,
    /// One graph cannot be used.
    #[error("graph {id:?}: {message}")]
    Graph {
        /// Which.
        id: String,
        /// Why.
        message: String,
    },
}

impl Graphs {
    /// One graph, `agent`, of kind echo: what a server without a config file offers.
    #[must_use]
    pub fn echo() -> Self {
        let graph = native::Graph::parse("agent", None, None, &json!("echo")).expect("the echo graph is well declared");
        Self {
            graphs: BTreeMap::from([("agent".to_owned(), Graph::Native(graph))]),
        }
    }

    /// Reads a config file's text. Paths in it are relative to `folder`.
    ///
    /// # Errors
    /// The text is no config file, or a graph of it cannot be used.
    pub fn from_config(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let config: Value = serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        let entries = config.get("graphs").and_then(Value::as_object);
        let entries = entries
            .filter(|entries| !entries.is_empty())
            .ok_or(ConfigError::Graphs)?;
        let mut graphs = BTreeMap::new();
        for (id, entry) in entries {
            let graph = read(id, entry, folder).map_err(|message| ConfigError::Graph {
                id: id.clone(),
                message,
            })?;
            graphs.insert(id.clone(), Graph::Native(graph));
        }
        Ok(Self { graphs })
    }

    /// The same graphs with what they need of the process.
    #[must_use]
    pub fn with(mut self, outside: &Outside) -> Self {
        for graph in self.graphs.values_mut() {
            match graph {
                Graph::Native(graph) => graph.set_outside(outside.clone()),
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

fn read(id: &str, entry: &Value, folder: &Path) -> Result<native::Graph, String> {
    match entry {
        Value::String(path) => from_path(id, path, None, folder),
        Value::Object(entry) => match (entry.get("native"), entry.get("path").and_then(Value::as_str)) {
            (Some(_), _) => declared(id, entry, None),
            (None, Some(path)) => from_path(id, path, text(entry, "description")?, folder),
            (None, None) => Err("expected {\"native\": …} or a path ending in .graph.json".to_owned()),
        },
        _ => Err("expected {\"native\": …} or a path ending in .graph.json".to_owned()),
    }
}

/// A file holds `{"native": …, "name"?, "description"?}`.
fn from_path(id: &str, path: &str, description: Option<&str>, folder: &Path) -> Result<native::Graph, String> {
    if !path.ends_with(".graph.json") {
        return Err(format!(
            "{path:?} names code; this build runs native graphs only: {{\"native\": …}} or a path ending in .graph.json"
        ));
    }
    let text = std::fs::read_to_string(folder.join(path)).map_err(|error| format!("cannot read {path:?}: {error}"))?;
    let file: Value = serde_json::from_str(&text).map_err(|error| format!("{path:?} is not JSON: {error}"))?;
    let file = file.as_object().filter(|file| file.contains_key("native"));
    let file = file.ok_or_else(|| format!("{path:?} must hold an object with `native`"))?;
    declared(id, file, description)
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
        Some(_) => Err(format!("`{key}` must be a text")),
    }
}
