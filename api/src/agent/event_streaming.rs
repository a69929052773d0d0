//! The thread-centric streaming protocol: commands, and one stream of typed events for each thread.
//!
//! ```text
//! log of a thread ─► Reader ─► Normalizer ─► EventBuffer ─┬─► Cursor ─► SSE      a request is one subscription
//!   (frames)                   (events)     (shared)      └─► Cursor ─► WebSocket   with any number of them
//! ```
//! Events are derived from the frames of runs and not stored. The derivation depends on the frames alone, so an event has
//! the same id and number in every process, and a reader can resume anywhere.

mod buffer_task;
mod command_sender;
pub(super) mod commands;
mod cursor;
mod event;
pub(super) mod event_buffer;
mod filter;
mod normalizer;
mod replay;
mod sequence;
mod socket;
mod stream;
mod subscriptions;
mod tree;

pub(in crate::agent) use self::socket::{FOREIGN_SOCKET, is_allowed_origin};
pub(in crate::agent) use self::stream::{EventStreamRequest, events};

use super::app::AgentApp;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(commands::command))
        .routes(routes!(stream::events, socket::connect))
}
