//! Graphs and how they run.
//!
//! A graph runs in supersteps over channels and creates one checkpoint per superstep, with the names, ids and shapes of
//! langgraph 1.2, so that state, history, forks, streams and resumption look the same for all graphs. Checkpoints,
//! events and items go through a [`Host`]; a task whose writes the host acknowledged is not run again. **Native
//! graphs** are declared as data and run here; **hosted graphs** are users' code, run by a pool of child processes.
//! SQL, statuses of runs and threads, and scheduling are elsewhere.

mod checkpoint;
mod config;
mod description;
mod embedding;
mod execution;
mod graph;
mod host;
pub mod hosted;
mod ids;
pub mod memory;
pub mod native;
mod services;
mod shared;
mod state;
mod typed;

pub use checkpoint::{Checkpoint, CheckpointRef, Put, PutWrites, Save, SavedCheckpoint, Versions, Write};
pub use config::{ConfigError, GraphSet, Graphs};
pub use description::{Drawing, DrawnEdge, DrawnNode, NodeData, Schemas, Xray};
pub use embedding::{EmbedError, Embedder, EmbeddingEndpoint};
pub use execution::{Chunk, Command, Durability, Execution, Finish, Goto, GraphError, Nodes, Packet, StreamMode};
pub use graph::Graph;
pub use host::{HistoryQuery, Host, HostError, ItemCall};
pub use ids::first_checkpoint_at;
pub use services::GraphServices;
pub use shared::Shared;
pub use state::{StateRef, StateSnapshot, TaskSnapshot, Update};
pub use typed::{SavedTypedCheckpoint, TypedBlob, TypedPut, TypedValue, TypedWrite, TypedWrites, add_writes};
