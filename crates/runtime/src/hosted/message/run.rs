//! Runs: what is asked for, and how they end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::value::Json;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub run: String,
    pub thread: String,
    /// Key of the graph.
    pub graph: String,
    /// From 1.
    pub attempt: u32,
    /// It was at work before.
    #[serde(default)]
    pub repeated: bool,
    /// What goes in.
    pub input: Option<Json>,
    /// Wins over the input.
    pub command: Option<Json>,
    /// Merged.
    pub config: Json,
    pub context: Option<Json>,
    /// As clients write them.
    pub modes: Vec<String>,
    /// Chunks of subgraphs are wanted.
    pub subgraphs: bool,
    /// Stop before.
    pub interrupt_before: Nodes,
    /// Stop after.
    pub interrupt_after: Nodes,
    /// `sync`, `async`, `exit`.
    pub durability: String,
    /// A resume that answers no waiting interrupt fails.
    #[serde(default)]
    pub strict_resume: bool,
    /// No one will look at the thread afterwards.
    pub temporary: bool,
    /// The thread has no checkpoint yet.
    pub fresh: bool,
}

/// Nodes to stop at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Nodes {
    /// `*`.
    All(String),
    /// By name.
    Some(Vec<String>),
}

/// More bytes may be sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Credit {
    /// So many.
    pub bytes: u64,
}

/// Stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// `interrupt`, `rollback`.
    pub action: String,
}

/// A run is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// `success`, `error`, `cancelled`, `retry`, `fenced`.
    pub status: String,
    /// What the user's code raised.
    pub error: Option<Raised>,
    /// Where the thread is.
    pub state: Option<DoneState>,
    /// Tasks that were run.
    #[serde(default)]
    pub nodes: u64,
    /// Processor time.
    #[serde(default)]
    pub cpu_us: u64,
}

/// Where a run left its thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoneState {
    pub values: Json,
    /// Nodes that would run next.
    #[serde(default)]
    pub next: Vec<String>,
    /// Task id to interrupts.
    pub interrupts: Option<Json>,
    /// The last checkpoint.
    pub checkpoint: Option<Json>,
}

/// An exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// What sort of failure, where the protocol says one.
    pub kind: Option<String>,
    /// Its class.
    #[serde(default)]
    pub error: String,
    /// Its text.
    #[serde(default)]
    pub message: String,
    /// Where it came from.
    pub traceback: Option<String>,
    /// For clients.
    pub status: Option<u16>,
    /// For clients.
    pub headers: Option<BTreeMap<String, String>>,
}
