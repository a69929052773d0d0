//! The Agent2Agent protocol: its tasks are runs, its contexts are threads.
//!
//! Versions 0.3 and 1.0 are supported. They differ in names of states and roles, shapes of parts and envelopes of
//! events. [`Dialect`] decides how a value is written; both are accepted when reading.

mod error;
mod events;
mod fields;
mod message;
mod outcome;
mod part;
mod task;

pub use error::{A2aError, ErrorCode};
pub use events::{artifact_update, message_event, status_update, task_event};
pub use fields::field;
pub use message::{MediaType, Message, Role};
pub use outcome::{Interrupt, Outcome, reply_parts};
pub use part::{Part, Source};
pub use task::{Task, TaskId, TaskState, history};

use serde::{Deserialize, Serialize};

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[sqlx(type_name = "text")]
pub enum Dialect {
    /// 0.3: `message/send`, lower-case states, `kind` in every object.
    #[serde(rename = "0.3")]
    #[sqlx(rename = "0.3")]
    V03,
    /// 1.0: `SendMessage`, states as protobuf writes them.
    #[serde(rename = "1.0")]
    #[sqlx(rename = "1.0")]
    V10,
}
