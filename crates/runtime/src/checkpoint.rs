//! Checkpoints, as langgraph's savers keep them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{Shared, TypedPut, TypedWrites};

/// Channel name to version. Versions are sortable texts: 32 digits, a point, and a random fraction (so that two forks
/// of a checkpoint never share the key of a stored value).
pub type Versions = BTreeMap<String, String>;

/// State after a superstep. Serializes as the JSON langgraph 1.2 keeps (`v` 4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Version of the format: 4.
    pub v: u32,
    /// A version 6 UUID. Ids within a namespace of a thread strictly increase, also as texts.
    pub id: String,
    /// When it was made: RFC 3339 with microseconds and `+00:00`.
    pub ts: String,
    /// Values by channel; a channel without a value is absent.
    #[serde(default)]
    pub channel_values: BTreeMap<String, Shared>,
    /// Version of each channel that was ever written.
    #[serde(default)]
    pub channel_versions: Versions,
    /// Node to the versions it last ran on; `__interrupt__` holds those of the last interrupt.
    #[serde(default)]
    pub versions_seen: BTreeMap<String, Versions>,
    /// Channels the superstep changed.
    #[serde(default)]
    pub updated_channels: Option<Vec<String>>,
}

/// A saved checkpoint with its pending writes.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedCheckpoint {
    /// Namespace: empty for the graph itself, `node:task_uuid|…` for subgraphs.
    pub ns: String,
    /// The checkpoint with all its channel values.
    pub checkpoint: Checkpoint,
    /// `source`, `step`, `parents`, `run_id`, and the scalar entries of the run's metadata and configurable.
    pub metadata: Map<String, Value>,
    /// Id of the checkpoint before it.
    pub parent: Option<String>,
    /// Pending writes: by task path, then task id, then index.
    pub writes: Vec<Write>,
}

/// One pending write of a task on a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// Id of the task; all zeros for what a command wrote.
    pub task: String,
    /// Sort key of the task in its superstep.
    pub path: String,
    /// Position among the task's writes; negative for the marks `__error__` (-1), `__scheduled__` (-2),
    /// `__interrupt__` (-3) and `__resume__` (-4).
    pub idx: i32,
    /// Channel or mark.
    pub channel: String,
    /// What was written.
    pub value: Shared,
}

/// A checkpoint to save.
#[derive(Clone, Debug, PartialEq)]
pub struct Put {
    /// Namespace.
    pub ns: String,
    /// The checkpoint with all its channel values; those outside `changed` are already stored.
    pub checkpoint: Checkpoint,
    /// See [`SavedCheckpoint::metadata`].
    pub metadata: Map<String, Value>,
    /// Id of the checkpoint before it.
    pub parent: Option<String>,
    /// Channels whose version is not stored yet; only these values are written. A channel that is listed but absent
    /// from `channel_values` is empty at this version.
    pub changed: Vec<String>,
}

/// Writes of one task. Marks (negative index) replace an existing write at their index; other existing writes stay.
#[derive(Clone, Debug, PartialEq)]
pub struct PutWrites {
    /// Namespace.
    pub ns: String,
    /// The checkpoint the task started from. It may be saved after these writes.
    pub checkpoint_id: String,
    /// Id of the task.
    pub task: String,
    /// Sort key of the task.
    pub path: String,
    /// Index, channel, value.
    pub writes: Vec<(i32, String, Shared)>,
}

/// Something to save.
#[derive(Clone, Debug, PartialEq)]
pub enum Save {
    Checkpoint(Put),
    /// Writes on a checkpoint.
    Writes(PutWrites),
    /// A checkpoint whose values the graph encoded.
    TypedCheckpoint(TypedPut),
    /// Writes that the graph encoded.
    TypedWrites(TypedWrites),
}

/// Names one checkpoint, as the API writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRef {
    pub thread_id: Uuid,
    /// Namespace; empty for the graph itself.
    #[serde(default)]
    pub checkpoint_ns: String,
    /// Which checkpoint; absent where the latest one is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_id: Option<String>,
    /// Namespace to checkpoint id, for checkpoints of subgraphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_map: Option<BTreeMap<String, String>>,
}

impl Save {
    /// The namespace it belongs to.
    #[must_use]
    pub fn ns(&self) -> &str {
        match self {
            Self::Checkpoint(put) => &put.ns,
            Self::Writes(put) => &put.ns,
            Self::TypedCheckpoint(put) => &put.ns,
            Self::TypedWrites(put) => &put.ns,
        }
    }
}
