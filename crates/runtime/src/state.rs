//! State of a thread, as the API shows it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{CheckpointRef, Command};

/// Which state is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRef {
    pub thread_id: Uuid,
    /// Namespace; empty for the graph itself, `node:task_uuid|…` for a subgraph.
    pub ns: String,
    /// Which checkpoint; the latest one when `None`.
    pub id: Option<String>,
}

impl StateRef {
    /// The latest state of the graph itself.
    #[must_use]
    pub const fn latest(thread_id: Uuid) -> Self {
        Self {
            thread_id,
            ns: String::new(),
            id: None,
        }
    }
}

/// State at one checkpoint. Serializes as the API's thread state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateSnapshot {
    /// Values of the channels.
    pub values: Value,
    /// Nodes that run next.
    #[serde(default)]
    pub next: Vec<String>,
    /// Tasks that run next, with what they did already.
    #[serde(default)]
    pub tasks: Vec<TaskSnapshot>,
    /// Of the checkpoint.
    pub metadata: Option<Map<String, Value>>,
    /// When the checkpoint was made.
    pub created_at: Option<String>,
    pub checkpoint: CheckpointRef,
    /// The one before it.
    pub parent_checkpoint: Option<CheckpointRef>,
    /// Waiting interrupts of all tasks: `[{value, id}]`.
    #[serde(default)]
    pub interrupts: Vec<Value>,
    /// Older form of `checkpoint.checkpoint_id`.
    pub checkpoint_id: Option<String>,
    /// Older form of `parent_checkpoint.checkpoint_id`.
    pub parent_checkpoint_id: Option<String>,
}

/// A task of a state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    pub id: String,
    /// Its node.
    pub name: String,
    /// `["__pregel_pull", node]` or `["__pregel_push", index, false]`.
    #[serde(default)]
    pub path: Vec<Value>,
    /// How it failed.
    pub error: Option<String>,
    #[serde(default)]
    pub interrupts: Vec<Value>,
    /// Where its subgraph keeps its state, when it has one.
    pub checkpoint: Option<CheckpointRef>,
    /// State of its subgraph, when asked for.
    pub state: Option<Box<StateSnapshot>>,
    /// What it wrote.
    pub result: Option<Value>,
}

/// One update of the state from outside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Values as a node would write them; null runs the node's writers without a value.
    pub values: Value,
    /// The node that the update counts as; the last one that ran if `None`. `__start__` counts as input, `__end__`
    /// clears the tasks, `__copy__` creates a fork.
    pub as_node: Option<String>,
    /// A command instead of values (its `update` and `goto`).
    pub command: Option<Command>,
}
