//! The handshake of a child: its identity, what it must load, and what it loaded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::value::Json;

/// What the child says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Versions of the protocol.
    pub protocol: Range,
    /// `python`, `javascript`.
    pub runtime: String,
    /// Of the interpreter.
    #[serde(default)]
    pub runtime_version: String,
    /// Of the process.
    pub pid: i32,
    /// Of the libraries.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Vec<String>,
}

/// From one version to another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Lowest.
    pub min: u32,
    /// Highest.
    pub max: u32,
}

/// What the child has to load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Init {
    /// The version picked.
    pub protocol: u32,
    /// The config file.
    pub config: Json,
    /// What its paths are relative to.
    pub folder: String,
    /// These graphs only.
    pub graphs: Option<Vec<String>>,
    /// Credit of a run at its start.
    pub window_bytes: u64,
    /// Longest frame.
    pub max_frame_bytes: u64,
    /// Where to serve the user's own routes.
    pub http_socket: Option<String>,
    /// Least level of what is logged.
    pub log_level: Option<String>,
    /// Of the server.
    pub host_version: String,
}

/// What the child loaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    /// In the order of the config file.
    pub graphs: Vec<LoadedGraph>,
    /// The user's own routes are served.
    #[serde(default)]
    pub http: bool,
    /// What the user's auth handles.
    pub auth: Option<AuthHandlers>,
    /// What the user's encryption handles.
    pub encryption: Option<Encryption>,
    /// How long the imports took.
    #[serde(default)]
    pub load_ms: u64,
    /// The process may fork: the loaded code has no threads or connections.
    #[serde(default)]
    pub fork_safe: bool,
}

/// Fork a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fork {
    /// Where it is to connect to.
    pub socket: String,
    /// Where its standard output and error go; by default to those of its parent.
    pub output: Option<String>,
}

/// A child was forked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forked {
    /// Of the child.
    pub pid: i32,
    /// As it was asked for.
    pub socket: String,
}

/// A child that was forked ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exited {
    /// Of the child.
    pub pid: i32,
    /// Its exit status, unless a signal ended it.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// What a user's encryption handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// What clients sent and will read.
    #[serde(default)]
    pub json: bool,
    /// Values of checkpoints, in the child.
    #[serde(default)]
    pub blob: bool,
}

/// What a user's auth handles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthHandlers {
    /// It says who calls.
    #[serde(default)]
    pub authenticate: bool,
    /// What it judges: `resource.action`, either may be `*`.
    #[serde(default)]
    pub handlers: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadedGraph {
    /// Key in the config file.
    pub id: String,
    /// Name of the compiled graph.
    pub name: Option<String>,
    /// What it says about itself.
    pub description: Option<String>,
    /// It is made again for each config.
    #[serde(default)]
    pub factory: bool,
    /// Without start and end.
    pub nodes: Option<Vec<String>>,
    /// As the answer to SCHEMAS.
    pub schemas: Option<Json>,
    /// As of DRAW.
    pub drawing: Option<Json>,
    /// As of SUBGRAPHS, all levels.
    pub subgraphs: Option<Json>,
}

/// Why the child could not load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadError {
    /// The graph, when it is about one.
    pub graph: Option<String>,
    /// Where.
    pub file: Option<String>,
    /// Where.
    pub line: Option<u32>,
    /// Class of the exception.
    #[serde(default)]
    pub error: String,
    /// Its text.
    #[serde(default)]
    pub message: String,
    /// All of it.
    pub traceback: Option<String>,
}
