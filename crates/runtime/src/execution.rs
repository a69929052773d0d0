//! A run of a graph: input, output, and end.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{CheckpointRef, Shared};

/// The input of a run. A retried run (its host was lost) gets the same values, with `is_retry` and usually a higher
/// `attempt`: if the latest checkpoint's metadata names the run, the graph continues from there.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Input; `None` continues from the state of the thread.
    pub input: Option<Value>,
    /// Wins over `input`.
    pub command: Option<Command>,
    /// Merged config: `configurable` (with `thread_id`, `run_id`, `graph_id`, `assistant_id`, and `checkpoint_id`,
    /// `checkpoint_ns`, `checkpoint_map` for time travel), `tags`, `recursion_limit`.
    pub config: Map<String, Value>,
    /// Context, for graphs that read it.
    pub context: Option<Value>,
    /// Merged metadata of the run. Scalars reach checkpoints, everything reaches metadata of messages.
    pub metadata: Map<String, Value>,
    /// Which chunks are wanted.
    pub modes: Vec<StreamMode>,
    /// Whether chunks of subgraphs are wanted.
    pub subgraphs: bool,
    /// Stop before these nodes.
    pub interrupt_before: Nodes,
    /// Stop after these nodes.
    pub interrupt_after: Nodes,
    /// When checkpoints are written.
    pub durability: Durability,
    /// A resume that matches no waiting interrupt fails before anything is written.
    pub strict_resume: bool,
    /// The attempt, from 1. Attempts that a draining worker handed back or that another run's crash ended do not count.
    pub attempt: u32,
    /// The run was active before, in this attempt or an earlier one.
    pub is_retry: bool,
    /// The writes of the command are already saved on the start checkpoint: only its answer is given again.
    pub command_saved: bool,
    /// How many of its processes crashed while shared with other runs. Each time, fewer runs share its next process.
    pub shared_crashes: u32,
    pub run_id: Uuid,
    pub thread_id: Uuid,
    /// No one will look at the thread afterwards.
    pub temporary: bool,
    /// The thread has no checkpoints yet.
    pub new_thread: bool,
}

impl Execution {
    /// A run with only an input and the `values` stream; for tests and benchmarks.
    #[must_use]
    pub fn new(thread_id: Uuid, run_id: Uuid, input: Option<Value>) -> Self {
        Self {
            input,
            command: None,
            config: Map::new(),
            context: None,
            metadata: Map::new(),
            modes: vec![StreamMode::Values],
            subgraphs: false,
            interrupt_before: Nodes::default(),
            interrupt_after: Nodes::default(),
            durability: Durability::Async,
            strict_resume: false,
            attempt: 1,
            is_retry: false,
            command_saved: false,
            shared_crashes: 0,
            run_id,
            thread_id,
            temporary: false,
            new_thread: false,
        }
    }

    /// An entry of `config.configurable`.
    #[must_use]
    pub fn configurable(&self, key: &str) -> Option<&Value> {
        self.config.get("configurable")?.get(key)
    }
}

/// A command of a client, besides the input. `goto` is one target or a list; a resume of `null` is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Writes to channels: an object, or a list of `[channel, value]` pairs.
    #[serde(default)]
    pub update: Option<Value>,
    /// Answer to the waiting interrupt, or answers by interrupt id.
    #[serde(default)]
    pub resume: Option<Value>,
    /// Nodes to run next.
    #[serde(default, deserialize_with = "one_or_many")]
    pub goto: Vec<Goto>,
}

/// A target of [`Command::goto`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Goto {
    /// A node, on the state.
    Node(String),
    /// A node, on an input of its own.
    Send(Packet),
}

/// A node with an input of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packet {
    pub node: String,
    #[serde(default)]
    pub input: Value,
}

fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Goto>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        None(()),
        Many(Vec<Goto>),
        One(Goto),
    }
    Form::deserialize(from)
        .map(|form| match form {
            Form::None(()) => Vec::new(),
            Form::Many(many) => many,
            Form::One(one) => vec![one],
        })
        .map_err(|_| serde::de::Error::custom("expected a node name, {\"node\", \"input\"}, or a list of these"))
}

/// A set of nodes to stop at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    All,
    Some(Vec<String>),
}

impl Nodes {
    /// Whether `node` is meant.
    #[must_use]
    pub fn contains(&self, node: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.iter().any(|name| name == node),
        }
    }

    /// Whether it means no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Some(names) if names.is_empty())
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self::Some(Vec::new())
    }
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            None(()),
            All(String),
            Some(Vec<String>),
        }
        let expected = || serde::de::Error::custom("expected \"*\" or a list of node names");
        match Form::deserialize(from).map_err(|_| expected())? {
            Form::None(()) => Ok(Self::default()),
            Form::All(star) if star == "*" => Ok(Self::All),
            Form::All(_) => Err(expected()),
            Form::Some(names) if names.iter().any(|name| name == "*") => Ok(Self::All),
            Form::Some(names) => Ok(Self::Some(names)),
        }
    }
}

/// When checkpoints are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Before the next superstep starts.
    Sync,
    /// While the next superstep runs.
    #[default]
    Async,
    /// When the run ends, however it ends.
    Exit,
}

/// A sort of chunks a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamMode {
    /// The whole state after each superstep.
    Values,
    /// What each node wrote.
    Updates,
    /// `messages/metadata`, `messages/partial`, `messages/complete`: messages as they grow.
    Messages,
    /// `messages`: each token with its metadata.
    MessagesTuple,
    /// What nodes emit.
    Custom,
    /// Starts and results of tasks.
    Tasks,
    Checkpoints,
    /// Tasks and checkpoints with step and time.
    Debug,
    /// Events of the run in the format of langchain's event stream.
    Events,
    /// Tool calls: start, intermediate output and end.
    Tools,
}

impl StreamMode {
    /// Every mode.
    pub const ALL: [Self; 10] = [
        Self::Values,
        Self::Updates,
        Self::Messages,
        Self::MessagesTuple,
        Self::Custom,
        Self::Tasks,
        Self::Checkpoints,
        Self::Debug,
        Self::Events,
        Self::Tools,
    ];

    /// As clients write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Updates => "updates",
            Self::Messages => "messages",
            Self::MessagesTuple => "messages-tuple",
            Self::Custom => "custom",
            Self::Tasks => "tasks",
            Self::Checkpoints => "checkpoints",
            Self::Debug => "debug",
            Self::Events => "events",
            Self::Tools => "tools",
        }
    }
}

impl fmt::Display for StreamMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for StreamMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// Not a stream mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown stream mode {0:?}")]
pub struct UnknownMode(String);

/// One event of a run's stream.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// First part of the event's name: `values`, `updates`, `messages`, `messages/metadata`, `messages/partial`,
    /// `messages/complete`, `custom`, `tasks`, `checkpoints`, `debug`, `events`, `tools`, or `custom:` and a name.
    pub mode: Cow<'static, str>,
    /// Where it comes from: one `node:task_uuid` per level of nesting; empty for the graph itself.
    pub namespace: Vec<String>,
    /// JSON.
    pub data: Box<str>,
}

impl Chunk {
    /// The event's name: the mode, then each level of the namespace after a `|`. The `messages/…` events never carry a
    /// namespace.
    #[must_use]
    pub fn event(&self) -> String {
        if self.namespace.is_empty() || self.mode.starts_with("messages/") {
            return self.mode.clone().into_owned();
        }
        format!("{}|{}", self.mode, self.namespace.join("|"))
    }
}

/// A successful end: the graph finished or stopped at an interrupt.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The state of the thread.
    pub values: Shared,
    /// Nodes that would run next; not empty after an interrupt.
    pub next: Vec<String>,
    /// Task id to its waiting interrupts `[{id, value}]`.
    pub interrupts: Map<String, Value>,
    /// The last checkpoint.
    pub checkpoint: Option<CheckpointRef>,
}

/// Why a run, or a question about a graph, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {message}")]
pub struct GraphError {
    /// Name of the exception for clients: `ValueError`, `GraphRecursionError`, …
    pub class: String,
    /// The text.
    pub message: String,
    /// The graph is not to blame (its host was lost, the run was cancelled), so the run may be retried.
    pub retry: bool,
    /// A traceback of the user's code, for the operator.
    pub traceback: Option<String>,
}

/// The class of [`GraphError::shared_crash`].
const SHARED_CRASH: &str = "SharedHostCrashed";

impl GraphError {
    /// An error of the graph or of its input.
    #[must_use]
    pub fn new(class: &str, message: impl Into<String>) -> Self {
        Self {
            class: class.to_owned(),
            message: message.into(),
            retry: false,
            traceback: None,
        }
    }

    /// The run's token was cancelled.
    #[must_use]
    pub fn cancelled() -> Self {
        Self {
            class: "CancelledError".to_owned(),
            message: "the run was cancelled".to_owned(),
            retry: true,
            traceback: None,
        }
    }

    /// What ran the graph is gone; the run may be retried.
    #[must_use]
    pub fn lost(class: &str, message: impl Into<String>) -> Self {
        Self {
            class: class.to_owned(),
            message: message.into(),
            retry: true,
            traceback: None,
        }
    }

    /// The process of the graph crashed while shared with other runs: any of them may be the cause.
    #[must_use]
    pub fn shared_crash(message: impl Into<String>) -> Self {
        Self::lost(SHARED_CRASH, message)
    }

    /// See [`GraphError::shared_crash`].
    #[must_use]
    pub fn is_shared_crash(&self) -> bool {
        self.retry && self.class == SHARED_CRASH
    }

    /// Whether this says that the run's token was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.retry && self.class == "CancelledError"
    }
}
