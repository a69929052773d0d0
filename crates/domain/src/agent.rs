//! The nouns of the agent server and the rules about them: runs on threads, what is streamed, how configurations merge.
//!
//! Field names and defaults are those of the agent protocol that the official clients speak.

pub mod a2a;
pub mod cron;
pub mod frame;
pub mod merge;
pub mod namespace;
pub mod request;
pub mod state;
pub mod stream;
pub mod text_path;
pub mod visibility;

pub use frame::Frame;
pub use merge::{ConfigLayers, MergedConfig, Object, merge};
pub use request::{
    AdmittedRun, Durability, IfNotExists, Kwargs, Nodes, OnCompletion, OnDisconnect, OneOrMany, RunRequest,
    TracerChoice,
};
pub use state::{CancelAction, MultitaskStrategy, RunConflictAction, RunStatus, ThreadStatus, TtlStrategy};
pub use stream::{EventId, EventStart, StreamMode};
