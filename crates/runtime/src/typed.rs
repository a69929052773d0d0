//! Checkpoints whose values are encoded by the graph's own serializer: the server keeps them without looking inside, in
//! the layout of langgraph's savers.

use bytes::Bytes;

/// A value as a serializer of langgraph writes it: a name of the encoding, and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// `msgpack`, `json`, `bytes`, `null`, …; `empty` for a channel without a value.
    pub encoding: String,
    /// What it wrote.
    pub bytes: Bytes,
}

/// The value of a channel at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedBlob {
    /// Channel.
    pub channel: String,
    /// Version.
    pub version: String,
    /// Value.
    pub value: Typed,
}

/// A checkpoint to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedPut {
    /// Namespace.
    pub ns: String,
    /// Its id.
    pub id: String,
    /// Id of the checkpoint before it.
    pub parent: Option<String>,
    /// JSON object; its `channel_values` hold scalars only.
    pub checkpoint: String,
    /// JSON object.
    pub metadata: String,
    /// Values of the channels that changed, where they are no scalars.
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
    pub writes: Vec<(i32, String, Typed)>,
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
    pub value: Typed,
}

/// A checkpoint as it was saved, with what was saved on it since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedSaved {
    /// Namespace.
    pub ns: String,
    /// Its id.
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

/// Adds writes as the tables do: marks (negative index) replace, others stay as they were first. Keeps the order of
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
