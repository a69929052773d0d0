//! What a graph asks of the server while it runs.

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{Chunk, Put, PutWrites, Save, Saved, TypedSaved};

/// The server's side of one thread. Whatever is saved is fenced by the implementation: a worker that lost its run gets
/// [`HostError::Lost`] and saves nothing.
#[async_trait]
pub trait Host: Send + Sync {
    /// A checkpoint with its pending writes; the latest one when `id` is `None`.
    async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<Saved>, HostError>;

    /// Checkpoints of a namespace with their pending writes, newest first.
    async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<Saved>, HostError>;

    /// As [`Host::load`], of checkpoints whose values the graph encodes itself.
    async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<TypedSaved>, HostError> {
        let _ = (ns, id);
        Err(HostError::typed())
    }

    /// As [`Host::list`], of checkpoints whose values the graph encodes itself.
    async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<TypedSaved>, HostError> {
        let _ = (ns, query);
        Err(HostError::typed())
    }

    /// Saves a checkpoint; returns when it is durable.
    async fn save(&self, put: Put) -> Result<(), HostError>;

    /// Saves writes of a task; returns when they are durable.
    async fn save_writes(&self, put: PutWrites) -> Result<(), HostError>;

    /// Saves several things in this order, at best in one transaction; returns when all are durable. A run with
    /// durability `async` or `exit` calls this with whatever piled up.
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

    /// Sends chunks to who listens, in this order. May wait, to slow a graph down.
    async fn emit(&self, chunks: Vec<Chunk>) -> Result<(), HostError>;

    /// Cancelled when the run shall stop.
    fn cancelled(&self) -> CancellationToken;

    /// A call to the store of items.
    async fn item(&self, call: ItemCall) -> Result<Value, HostError>;

    /// Several calls to the store of items, at best in one transaction; answers in the same order.
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
    /// At most so many.
    pub limit: Option<usize>,
    /// Only those before this checkpoint id.
    pub before: Option<String>,
    /// Only those whose metadata has all these entries.
    pub filter: Map<String, Value>,
}

/// A call to the store of items. Namespaces are lists of labels.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemCall {
    /// Answers the item `{namespace, key, value, created_at, updated_at}`, or null.
    Get {
        /// Where.
        namespace: Vec<String>,
        /// Which.
        key: String,
        /// Whether its time to live begins anew; absent: as the server says.
        refresh: Option<bool>,
    },
    /// Answers null.
    Put {
        /// Where.
        namespace: Vec<String>,
        /// Which.
        key: String,
        /// What.
        value: Map<String, Value>,
        /// Minutes it lives.
        ttl_minutes: Option<f64>,
    },
    /// Answers null.
    Delete {
        /// Where.
        namespace: Vec<String>,
        /// Which.
        key: String,
    },
    /// Answers a list of items.
    Search {
        /// Items in it and below it.
        prefix: Vec<String>,
        /// Entries the value must have.
        filter: Map<String, Value>,
        /// At most so many.
        limit: u32,
        /// After so many.
        offset: u32,
        /// Whether their time to live begins anew; absent: as the server says.
        refresh: Option<bool>,
    },
    /// Answers a list of namespaces.
    Namespaces {
        /// How they begin; `*` is any label.
        prefix: Option<Vec<String>>,
        /// How they end; `*` is any label.
        suffix: Option<Vec<String>>,
        /// Cut to so many labels.
        max_depth: Option<u32>,
        /// At most so many.
        limit: u32,
        /// After so many.
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
        /// Its text.
        message: String,
    },
    /// The run shall stop.
    #[error("the run was cancelled")]
    Cancelled,
    /// The host cannot serve this run any more: another worker has it, or the database is away.
    #[error("{0}")]
    Lost(String),
}

impl HostError {
    /// A host that keeps no checkpoints whose values the graph encodes.
    fn typed() -> Self {
        Self::Invalid {
            class: "NotImplementedError".to_owned(),
            message: "this host keeps no encoded checkpoints".to_owned(),
        }
    }
}
