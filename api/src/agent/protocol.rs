//! The thread-centric streaming protocol: commands, and one stream of typed events for each thread.
//!
//! ```text
//! log of a thread ─► Reader ─► Normalizer ─► Tape ─┬─► Cursor ─► SSE      a request is one subscription
//!   (frames)                   (events)     (shared) └─► Cursor ─► WebSocket   with any number of them
//! ```
//! Events are derived from the frames that runs stream, and nothing else of them is kept. The derivation depends on the frames
//! alone, so an event has the same id and the same number in every process, and whoever comes back with a number goes on
//! behind it.

mod caller;
mod commands;
mod cursor;
mod event;
mod filter;
mod normalizer;
mod replay;
mod sequence;
mod socket;
mod stream;
mod subscriptions;
mod tape;
mod tree;

pub(in crate::agent) use self::commands::starts_a_run;
pub(in crate::agent) use self::tape::Tapes;

use super::app::AgentApp;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(commands::command))
        .routes(routes!(stream::events, socket::connect))
}
