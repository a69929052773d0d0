//! What a graph asks of the server while it runs.

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{Chunk, GraphError, Put, PutWrites, Save, SavedCheckpoint, SavedTypedCheckpoint};

/// The server's side of one thread. The implementation fences all writes: a worker that lost its run gets
/// [`HostError::Lost`] and saves nothing.
#[async_trait]
pub trait Host: Send + Sync {
    /// A checkpoint with its pending writes; the latest if `id` is `None`.
    async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedCheckpoint>, HostError>;

    /// Checkpoints of a namespace with their pending writes, newest first.
    async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedCheckpoint>, HostError>;

    /// As [`Host::load`], for checkpoints whose values the graph encodes.
    async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedTypedCheckpoint>, HostError> {
        let _ = (ns, id);
        Err(HostError::typed())
    }

    /// As [`Host::list`], for checkpoints whose values the graph encodes.
    async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedTypedCheckpoint>, HostError> {
        let _ = (ns, query);
        Err(HostError::typed())
    }

    /// Saves a checkpoint; returns when it is durable.
    async fn save(&self, put: Put) -> Result<(), HostError>;

    /// Saves writes of a task; returns when they are durable.
    async fn save_writes(&self, put: PutWrites) -> Result<(), HostError>;

    /// Saves several things in this order, preferably in one transaction; returns when all are durable. A run with
    /// durability `async` or `exit` passes everything accumulated so far.
    async fn save_all(&self, batch: Vec<Save>) -> Result<(), HostError> {
        for save in batch {
            match save {
                Save::Checkpoint(put) => self.save(put).await?,
                Save::Writes(put) => self.save_writes(put).await?,
                Save::TypedCheckpoint(_) | Save::TypedWrites(_) => return Err(HostError::typed()),
            }
        }
        Ok(())
    }

    /// Sends chunks to the listeners, in this order. May wait, as backpressure.
    async fn emit(&self, chunks: Vec<Chunk>) -> Result<(), HostError>;

    /// Cancelled when the run shall stop.
    fn cancelled(&self) -> CancellationToken;

    /// A call to the store of items.
    async fn item(&self, call: ItemCall) -> Result<Value, HostError>;

    /// Several calls to the item store, preferably in one transaction; results in the same order.
    async fn items(&self, calls: Vec<ItemCall>) -> Result<Vec<Value>, HostError> {
        let mut answers = Vec::with_capacity(calls.len());
        for call in calls {
            answers.push(self.item(call).await?);
        }
        Ok(answers)
    }
}

/// Which checkpoints are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryQuery {
    pub limit: Option<usize>,
    /// Only those before this checkpoint id.
    pub before: Option<String>,
    /// Only those whose metadata has all these entries.
    pub filter: Map<String, Value>,
}

/// A call to the store of items. Namespaces are lists of labels.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemCall {
    /// Returns the item `{namespace, key, value, created_at, updated_at}`, or null.
    Get {
        namespace: Vec<String>,
        key: String,
        /// Whether to restart its time to live; defaults to the server's setting.
        refresh: Option<bool>,
    },
    /// Answers null.
    Put {
        namespace: Vec<String>,
        key: String,
        value: Map<String, Value>,
        /// Minutes it lives.
        ttl_minutes: Option<f64>,
        /// Paths to what is embedded, none for nothing; defaults to the server's setting.
        index: Option<Vec<String>>,
    },
    /// Answers null.
    Delete { namespace: Vec<String>, key: String },
    /// Returns a list of items.
    Search {
        /// Items in it and below it.
        prefix: Vec<String>,
        /// Entries the value must have.
        filter: Map<String, Value>,
        /// Ranks the items by their likeness to it; each then has a `score`.
        query: Option<String>,
        limit: u32,
        offset: u32,
        /// Whether to restart their time to live; defaults to the server's setting.
        refresh: Option<bool>,
    },
    /// Returns a list of namespaces.
    Namespaces {
        /// How they begin; `*` is any label.
        prefix: Option<Vec<String>>,
        /// How they end; `*` is any label.
        suffix: Option<Vec<String>>,
        /// Cut to so many labels.
        max_depth: Option<u32>,
        limit: u32,
        offset: u32,
    },
}

/// Why the server did not do what a graph asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The call was wrong; the run fails with this.
    #[error("{class}: {message}")]
    Invalid {
        /// Name of the exception.
        class: String,
        message: String,
    },
    /// The run shall stop.
    #[error("the run was cancelled")]
    Cancelled,
    /// The host cannot continue this run: another worker has it, or the database is unavailable.
    #[error("{0}")]
    Lost(String),
}

impl HostError {
    /// The error of a host without support for graph-encoded checkpoints.
    fn typed() -> Self {
        Self::Invalid {
            class: "NotImplementedError".to_owned(),
            message: "this host does not keep encoded checkpoints".to_owned(),
        }
    }
}

impl From<HostError> for GraphError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Invalid { class, message } => Self {
                class,
                message,
                retry: false,
                traceback: None,
            },
            HostError::Cancelled => Self::cancelled(),
            HostError::Lost(message) => Self {
                class: "HostLost".to_owned(),
                message,
                retry: true,
                traceback: None,
            },
        }
    }
}
