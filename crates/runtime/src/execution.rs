//! One run of a graph: what it is given, what it tells, how it ends.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{CheckpointRef, HostError, Shared};

/// What a run is given. A run that is tried again (the host was lost) gets the same values, with `repeated` and mostly a
/// higher `attempt`: when the latest checkpoint's metadata names the same run, the graph goes on from there by itself.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Input; `None` goes on from the state of the thread.
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
    /// A resume that answers no waiting interrupt fails before anything is written.
    pub strict_resume: bool,
    /// Which attempt at this run, from 1. One that a leaving worker handed back, and one that another run's crash ended, do
    /// not count.
    pub attempt: u32,
    /// The run was at work before, in this attempt or in an earlier one.
    pub repeated: bool,
    /// What the command writes is saved already, on the checkpoint the run starts from: only its answer is given again.
    pub command_saved: bool,
    /// How often a process ended in which this run was not alone. Each time it is run beside fewer others.
    pub shared_crashes: u32,
    /// The run.
    pub run_id: Uuid,
    /// The thread.
    pub thread_id: Uuid,
    /// Nobody will look at the thread afterwards.
    pub temporary: bool,
    /// The thread has no checkpoints yet.
    pub fresh: bool,
}

impl Execution {
    /// A run with nothing but an input and the `values` stream; for tests and for benchmarks.
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
            repeated: false,
            command_saved: false,
            shared_crashes: 0,
            run_id,
            thread_id,
            temporary: false,
            fresh: false,
        }
    }

    /// An entry of `config.configurable`.
    #[must_use]
    pub fn configurable(&self, key: &str) -> Option<&Value> {
        self.config.get("configurable")?.get(key)
    }
}

/// What a client says beside an input. `goto` is one target or a list of them; a resume of `null` is none.
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
    /// The node.
    pub node: String,
    /// Its input.
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
    /// `"*"`.
    All,
    /// These.
    Some(Vec<String>),
}

impl Nodes {
    /// Whether `node` is meant.
    #[must_use]
    pub fn holds(&self, node: &str) -> bool {
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
    /// Checkpoints.
    Checkpoints,
    /// Tasks and checkpoints with step and time.
    Debug,
    /// Every event of the run, in the shape of langchain's event stream.
    Events,
    /// Calls of tools: when each begins, what it says meanwhile, how it ends.
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

/// How a run ended well: it reached its end, or stopped at an interrupt.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The state of the thread.
    pub values: Shared,
    /// Nodes that would run next; not empty when it stopped at an interrupt.
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
    /// Name of the exception, as clients know it: `ValueError`, `GraphRecursionError`, …
    pub class: String,
    /// The text.
    pub message: String,
    /// Not the graph's fault (the host was lost, the run was cancelled): the run may be tried again.
    pub retry: bool,
    /// Where it came from, for the operator: a traceback of the user's code.
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

    /// What ran the graph is gone; the run may be tried again.
    #[must_use]
    pub fn lost(class: &str, message: impl Into<String>) -> Self {
        Self {
            class: class.to_owned(),
            message: message.into(),
            retry: true,
            traceback: None,
        }
    }

    /// The process that ran the graph ended, and other runs were in it: any of them may have been the cause.
    #[must_use]
    pub fn shared_crash(message: impl Into<String>) -> Self {
        Self::lost(SHARED_CRASH, message)
    }

    /// Whether the process ended in which the run was not alone: see [`GraphError::shared_crash`].
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
