//! Calls of the child and their replies: checkpoints, writes, items.

use serde::{Deserialize, Serialize};

use super::value::{Bin, Json};

/// Answer to a call of the child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply<T> {
    pub call: u64,
    /// What was asked.
    pub value: Option<T>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CallFailure>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    /// `invalid`, `unsupported`, `cancelled`, `lost`, `fenced`.
    pub kind: String,
    /// Class of an exception.
    pub error: String,
    /// Its text.
    pub message: String,
}

/// A checkpoint is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpGet {
    /// Number of the call.
    pub call: u64,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// The latest when absent.
    pub id: Option<String>,
    /// Of another thread.
    pub thread: Option<String>,
}

/// Checkpoints are asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpList {
    /// Number of the call.
    pub call: u64,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// Only those before.
    pub before: Option<String>,
    pub limit: Option<u64>,
    /// Entries of the metadata.
    pub filter: Option<Json>,
    /// Of another thread.
    pub thread: Option<String>,
}

/// A checkpoint to save.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpPut {
    /// Number of the call, when it wants a reply.
    pub call: Option<u64>,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    pub id: String,
    /// The one before.
    pub parent: Option<String>,
    /// With scalars only.
    pub checkpoint: Json,
    pub metadata: Json,
    /// Channel, version, encoding, bytes.
    #[serde(default)]
    pub blobs: Vec<(String, String, String, Option<Bin>)>,
    /// Of another thread.
    pub thread: Option<String>,
}

/// Writes to save.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpWrites {
    /// Number of the call, when it wants a reply.
    pub call: Option<u64>,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// The checkpoint.
    pub id: String,
    /// Id of the task.
    pub task: String,
    /// Sort key of the task.
    #[serde(default)]
    pub path: String,
    /// Index, channel, encoding, bytes.
    pub writes: Vec<(i32, String, String, Option<Bin>)>,
    /// Of another thread.
    pub thread: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpSaved {
    /// Namespace.
    pub ns: String,
    pub id: String,
    /// The one before.
    pub parent: Option<String>,
    /// With scalars only.
    pub checkpoint: Json,
    pub metadata: Json,
    /// Channel, version, encoding, bytes.
    pub blobs: Vec<(String, String, String, Option<Bin>)>,
    /// Task, index, channel, encoding, bytes, path.
    pub writes: Vec<(String, i32, String, String, Option<Bin>, String)>,
}

/// Calls to the store of items.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Store {
    /// Number of the call.
    pub call: u64,
    /// In this order.
    pub ops: Vec<StoreOp>,
}

/// A call to the store of items.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum StoreOp {
    /// An item, or nil.
    Get {
        /// Where.
        namespace: Vec<String>,
        key: String,
        /// Whether its time to live begins again.
        refresh_ttl: Option<bool>,
    },
    /// Nil.
    Put {
        /// Where.
        namespace: Vec<String>,
        key: String,
        /// What; nil deletes.
        value: Option<Json>,
        /// How long it lives.
        ttl_minutes: Option<f64>,
        /// Paths to what is embedded, none for nothing; as the config file has them when absent.
        #[serde(default)]
        index: Option<Vec<String>>,
    },
    /// A list of items.
    Search {
        /// In it and below it.
        prefix: Vec<String>,
        /// Entries of the value.
        filter: Option<Json>,
        limit: Option<u32>,
        offset: Option<u32>,
        /// Ranks them by their likeness to it.
        #[serde(default)]
        query: Option<String>,
        /// Whether their time to live begins again.
        refresh_ttl: Option<bool>,
    },
    /// A list of lists.
    Namespaces {
        /// How they begin.
        prefix: Option<Vec<String>>,
        /// How they end.
        suffix: Option<Vec<String>>,
        /// Cut to so many labels.
        max_depth: Option<u32>,
        limit: Option<u32>,
        offset: Option<u32>,
    },
}

/// Result of a call to the store of items.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoreResult {
    /// Nothing, or not found.
    Nil(()),
    Item(Json),
    Items(Vec<Json>),
    Namespaces(Vec<Vec<String>>),
}
