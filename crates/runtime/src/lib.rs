//! Graphs: what they are, and how they run.
//!
//! Promises: a graph runs in supersteps over channels and leaves one checkpoint per superstep, with the names, ids and
//! shapes that langgraph 1.2 gives them, so that state, history, forks, streams and resumption look alike whoever ran
//! the graph. What a run needs from the server (checkpoints, events, items) it asks of a [`Host`]; a task whose writes
//! the host acknowledged is not run again. **Native graphs** are declared as data and run here; **hosted graphs** are
//! users' own code, run by child processes that a pool looks after. Leaves to others: SQL, statuses of runs and threads, which run may start.

mod checkpoint;
mod config;
mod execution;
mod graph;
mod host;
pub mod hosted;
mod ids;
pub mod memory;
pub mod native;
mod outside;
mod shared;
mod state;
mod typed;

pub use checkpoint::{Checkpoint, CheckpointRef, Put, PutWrites, Save, Saved, Versions, Write};
pub use config::{ConfigError, GraphSet, Graphs};
pub use execution::{Chunk, Command, Durability, Execution, Finish, Goto, GraphError, Nodes, Packet, StreamMode};
pub use graph::{Drawing, DrawnEdge, DrawnNode, Graph, NodeData, Schemas, Xray};
pub use host::{HistoryQuery, Host, HostError, ItemCall};
pub use ids::first_checkpoint_at;
pub use outside::Outside;
pub use shared::Shared;
pub use state::{At, StateSnapshot, TaskSnapshot, Update};
pub use typed::{Typed, TypedBlob, TypedPut, TypedSaved, TypedWrite, TypedWrites, add_writes};
