//! The Agent2Agent protocol: its tasks are runs, its contexts are threads.
//!
//! Two versions are spoken, 0.3 and 1.0. They say the same in other words: names of states and roles, shapes of parts, envelopes
//! of events. [`Dialect`] decides how a value is written; values are read in either.

mod events;
mod message;
mod outcome;
mod part;
mod refusal;
mod task;

pub use events::{artifact_update, status_update, task_event};
pub use message::{Message, Role};
pub use outcome::{Interrupt, Outcome, reply};
pub use part::{Part, Source};
pub use refusal::{Code, Refusal};
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
