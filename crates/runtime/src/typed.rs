//! Checkpoints whose values are encoded by the graph's own serializer: the server stores them opaquely, in the layout
//! of langgraph's savers.

use bytes::Bytes;

/// A value encoded by a serializer of langgraph: the name of the encoding, and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedValue {
    /// `msgpack`, `json`, `bytes`, `null`, …; `empty` for a channel without a value.
    pub encoding: String,
    /// What it wrote.
    pub bytes: Bytes,
}

/// The value of a channel at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedBlob {
    pub channel: String,
    pub version: String,
    pub value: TypedValue,
}

/// A checkpoint to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedPut {
    /// Namespace.
    pub ns: String,
    pub id: String,
    /// Id of the checkpoint before it.
    pub parent: Option<String>,
    /// JSON object; its `channel_values` hold scalars only.
    pub checkpoint: String,
    /// JSON object.
    pub metadata: String,
    /// Values of changed channels, except scalars.
    pub blobs: Vec<TypedBlob>,
}

/// Writes of one task to save, as [`crate::PutWrites`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedWrites {
    /// Namespace.
    pub ns: String,
    /// The checkpoint the task started from. It may be saved after these writes.
    pub checkpoint_id: String,
    /// Id of the task.
    pub task: String,
    /// Sort key of the task.
    pub path: String,
    /// Index, channel, value.
    pub writes: Vec<(i32, String, TypedValue)>,
}

/// A pending write of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedWrite {
    /// Id of the task.
    pub task: String,
    /// Sort key of the task.
    pub path: String,
    /// Position among the task's writes; negative for marks.
    pub idx: i32,
    /// Channel or mark.
    pub channel: String,
    /// What was written.
    pub value: TypedValue,
}

/// A saved checkpoint with its pending writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTypedCheckpoint {
    /// Namespace.
    pub ns: String,
    pub id: String,
    /// Id of the checkpoint before it.
    pub parent: Option<String>,
    /// JSON object; its `channel_values` hold scalars only.
    pub checkpoint: String,
    /// JSON object.
    pub metadata: String,
    /// The other values of the versions it names.
    pub blobs: Vec<TypedBlob>,
    /// Pending writes: by task path, then task id, then index.
    pub writes: Vec<TypedWrite>,
}

/// Adds writes like the tables do: marks (negative index) replace, others keep the first value. Preserves the order of
/// path, task and index.
pub fn add_writes(writes: &mut Vec<TypedWrite>, new: impl IntoIterator<Item = TypedWrite>) {
    for write in new {
        let same = |other: &TypedWrite| other.task == write.task && other.idx == write.idx;
        match writes.iter().position(same) {
            Some(place) if write.idx < 0 => writes[place] = write,
            Some(_) => {}
            None => writes.push(write),
        }
    }
    writes.sort_by(|a, b| (&a.path, &a.task, a.idx).cmp(&(&b.path, &b.task, b.idx)));
}
