//! Payloads of the graph host protocol: what the fields mean is said in `docs/graph-host-protocol.md`.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::frame::FrameError;

/// The versions of the protocol this host speaks.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// JSON text, as MessagePack bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Json(pub String);

impl Json {
    /// The text of a value.
    ///
    /// # Errors
    /// A map whose keys are no texts.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(Self)
    }

    /// The value of the text.
    ///
    /// # Errors
    /// The text is not that.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON as bytes")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Json, E> {
                Ok(Json(text.to_owned()))
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Json, E> {
                let text = str::from_utf8(bytes).map_err(|_| E::custom("JSON is UTF-8"))?;
                Ok(Json(text.to_owned()))
            }
        }
        from.deserialize_bytes(Text)
    }
}

/// What the child says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Versions of the protocol.
    pub protocol: Range,
    /// `python`, `javascript`.
    pub runtime: String,
    /// Of the interpreter.
    #[serde(default)]
    pub runtime_version: String,
    /// Of the process.
    pub pid: i32,
    /// Of the libraries.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Vec<String>,
}

/// From one version to another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Lowest.
    pub min: u32,
    /// Highest.
    pub max: u32,
}

/// What the child has to load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Init {
    /// The version picked.
    pub protocol: u32,
    /// The config file.
    pub config: Json,
    /// What its paths are relative to.
    pub folder: String,
    /// These graphs only.
    pub graphs: Option<Vec<String>>,
    /// Credit of a run at its start.
    pub window_bytes: u64,
    /// Longest frame.
    pub max_frame_bytes: u64,
    /// Where to serve the user's own routes.
    pub http_socket: Option<String>,
    /// Least level of what is logged.
    pub log_level: Option<String>,
    /// Of the server.
    pub host_version: String,
}

/// What the child loaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    /// In the order of the config file.
    pub graphs: Vec<Described>,
    /// The user's own routes are served.
    #[serde(default)]
    pub http: bool,
    /// What the user's auth handles.
    #[serde(default)]
    pub auth: Option<AuthHandlers>,
    /// What the user's encryption handles.
    #[serde(default)]
    pub encryption: Option<Encryption>,
    /// How long the imports took.
    #[serde(default)]
    pub load_ms: u64,
}

/// What a user's encryption handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// What clients sent and will read.
    #[serde(default)]
    pub json: bool,
    /// Values of checkpoints, in the child.
    #[serde(default)]
    pub blob: bool,
}

/// What a user's auth handles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthHandlers {
    /// It says who calls.
    #[serde(default)]
    pub authenticate: bool,
    /// What it judges: `resource.action`, either may be `*`.
    #[serde(default)]
    pub handlers: Vec<String>,
}

/// A graph that was loaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Described {
    /// Key in the config file.
    pub id: String,
    /// Name of the compiled graph.
    #[serde(default)]
    pub name: Option<String>,
    /// What it says about itself.
    #[serde(default)]
    pub description: Option<String>,
    /// It is made anew for each config.
    #[serde(default)]
    pub factory: bool,
    /// Without start and end.
    #[serde(default)]
    pub nodes: Option<Vec<String>>,
    /// As of SCHEMAS.
    #[serde(default)]
    pub schemas: Option<Json>,
    /// As of DRAW.
    #[serde(default)]
    pub drawing: Option<Json>,
    /// As of SUBGRAPHS, all levels.
    #[serde(default)]
    pub subgraphs: Option<Json>,
}

/// Why the child could not load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadError {
    /// The graph, when it is about one.
    #[serde(default)]
    pub graph: Option<String>,
    /// Where.
    #[serde(default)]
    pub file: Option<String>,
    /// Where.
    #[serde(default)]
    pub line: Option<u32>,
    /// Class of the exception.
    #[serde(default)]
    pub error: String,
    /// Its text.
    #[serde(default)]
    pub message: String,
    /// All of it.
    #[serde(default)]
    pub traceback: Option<String>,
}

/// Asks whether the process lives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ping {
    /// Comes back.
    pub t: u64,
}

/// The process lives.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Pong {
    /// Of the ping.
    pub t: u64,
    /// How long the event loop has not answered.
    #[serde(default)]
    pub loop_lag_ms: u64,
    /// Memory of the process.
    #[serde(default)]
    pub rss_bytes: u64,
}

/// A line of the child's log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Log {
    /// `debug`, `info`, `warning`, `error`.
    #[serde(default)]
    pub level: String,
    /// Who says it.
    #[serde(default)]
    pub logger: Option<String>,
    /// What.
    #[serde(default)]
    pub message: String,
    /// In the name of which run.
    #[serde(default)]
    pub run: Option<String>,
    /// On which thread.
    #[serde(default)]
    pub thread: Option<String>,
    /// Of which graph.
    #[serde(default)]
    pub graph: Option<String>,
}

/// End.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    /// How long runs may go on.
    pub grace_ms: u64,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub run: String,
    /// Its thread.
    pub thread: String,
    /// Key of the graph.
    pub graph: String,
    /// From 1.
    pub attempt: u32,
    /// What goes in.
    pub input: Option<Json>,
    /// Wins over the input.
    pub command: Option<Json>,
    /// Merged.
    pub config: Json,
    /// Context.
    pub context: Option<Json>,
    /// As clients write them.
    pub modes: Vec<String>,
    /// Chunks of subgraphs are wanted.
    pub subgraphs: bool,
    /// Stop before.
    pub interrupt_before: Nodes,
    /// Stop after.
    pub interrupt_after: Nodes,
    /// `sync`, `async`, `exit`.
    pub durability: String,
    /// Nobody will look at the thread afterwards.
    pub temporary: bool,
    /// The thread has no checkpoint yet.
    pub fresh: bool,
}

/// Nodes to stop at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Nodes {
    /// `*`.
    All(String),
    /// By name.
    Some(Vec<String>),
}

/// More bytes may be sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Credit {
    /// So many.
    pub bytes: u64,
}

/// Stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// `interrupt`, `rollback`.
    pub action: String,
}

/// A run is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// `success`, `error`, `cancelled`, `retry`, `fenced`.
    pub status: String,
    /// What the user's code raised.
    #[serde(default)]
    pub error: Option<Raised>,
    /// Where the thread stands.
    #[serde(default)]
    pub state: Option<DoneState>,
    /// Tasks that were run.
    #[serde(default)]
    pub nodes: u64,
    /// Processor time.
    #[serde(default)]
    pub cpu_us: u64,
}

/// Where a run left its thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoneState {
    /// Values.
    pub values: Json,
    /// Nodes that would run next.
    #[serde(default)]
    pub next: Vec<String>,
    /// Task id to interrupts.
    #[serde(default)]
    pub interrupts: Option<Json>,
    /// The last checkpoint.
    #[serde(default)]
    pub checkpoint: Option<Json>,
}

/// An exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// What sort of failure, where the protocol says one.
    #[serde(default)]
    pub kind: Option<String>,
    /// Its class.
    #[serde(default)]
    pub error: String,
    /// Its text.
    #[serde(default)]
    pub message: String,
    /// Where it came from.
    #[serde(default)]
    pub traceback: Option<String>,
    /// For clients.
    #[serde(default)]
    pub status: Option<u16>,
    /// For clients.
    #[serde(default)]
    pub headers: Option<BTreeMap<String, String>>,
}

/// Answer to a question. `T` is absent or nil where nothing was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer<T> {
    /// What was asked.
    #[serde(default = "none")]
    pub value: Option<T>,
    /// Why there is none.
    #[serde(default)]
    pub error: Option<Raised>,
}

const fn none<T>() -> Option<T> {
    None
}

/// Answer to a call of the child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply<T> {
    /// Of the call.
    pub call: u64,
    /// What was asked.
    pub value: Option<T>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failed>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// `invalid`, `unsupported`, `cancelled`, `lost`, `fenced`.
    pub kind: String,
    /// Class of an exception.
    pub error: String,
    /// Its text.
    pub message: String,
}

/// A question about a thread or a graph. Fields that a question does not know stay away.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Question {
    /// Key of the graph.
    pub graph: String,
    /// The thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns: Option<String>,
    /// Checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// STATE_GET: with the state of subgraphs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subgraphs: bool,
    /// STATE_UPDATE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supersteps: Option<Json>,
    /// STATE_UPDATE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
    /// HISTORY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// HISTORY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// HISTORY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Json>,
    /// DRAW.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xray: Option<Depth>,
    /// SUBGRAPHS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// SUBGRAPHS.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recurse: bool,
    /// What a factory is called with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Json>,
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How deep a drawing goes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Depth {
    /// Not at all, or all levels.
    All(bool),
    /// So many levels.
    Levels(u32),
}

/// Who calls?
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Authenticate {
    /// `GET`, …
    pub method: String,
    /// Of the request.
    pub path: String,
    /// Of the request.
    pub query: String,
    /// Of the request.
    pub headers: Vec<(String, String)>,
    /// Of the route.
    pub path_params: BTreeMap<String, String>,
}

/// May they?
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Authorize {
    /// `threads`, …
    pub resource: String,
    /// `create`, …
    pub action: String,
    /// What it is about.
    pub value: Json,
    /// Who.
    pub user: Json,
}

/// They may, or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Authorized {
    /// Whether.
    pub allowed: bool,
    /// Only rows whose metadata have this.
    #[serde(default)]
    pub filter: Option<Json>,
    /// What the handlers made of the value.
    #[serde(default)]
    pub value: Option<Json>,
}

/// A checkpoint is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpGet {
    /// Number of the call.
    pub call: u64,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// The latest when absent.
    #[serde(default)]
    pub id: Option<String>,
    /// Of another thread.
    #[serde(default)]
    pub thread: Option<String>,
}

/// Checkpoints are asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpList {
    /// Number of the call.
    pub call: u64,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// Only those before.
    #[serde(default)]
    pub before: Option<String>,
    /// At most so many.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Entries of the metadata.
    #[serde(default)]
    pub filter: Option<Json>,
    /// Of another thread.
    #[serde(default)]
    pub thread: Option<String>,
}

/// A checkpoint to save.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpPut {
    /// Number of the call, when it wants a reply.
    #[serde(default)]
    pub call: Option<u64>,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// Its id.
    pub id: String,
    /// The one before.
    #[serde(default)]
    pub parent: Option<String>,
    /// With scalars only.
    pub checkpoint: Json,
    /// Metadata.
    pub metadata: Json,
    /// Channel, version, encoding, bytes.
    #[serde(default)]
    pub blobs: Vec<(String, String, String, Option<Bin>)>,
    /// Of another thread.
    #[serde(default)]
    pub thread: Option<String>,
}

/// Writes to save.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpWrites {
    /// Number of the call, when it wants a reply.
    #[serde(default)]
    pub call: Option<u64>,
    /// Namespace.
    #[serde(default)]
    pub ns: String,
    /// The checkpoint.
    pub id: String,
    /// Id of the task.
    pub task: String,
    /// Sort key of the task.
    #[serde(default)]
    pub path: String,
    /// Index, channel, encoding, bytes.
    pub writes: Vec<(i32, String, String, Option<Bin>)>,
    /// Of another thread.
    #[serde(default)]
    pub thread: Option<String>,
}

/// A checkpoint as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CpSaved {
    /// Namespace.
    pub ns: String,
    /// Its id.
    pub id: String,
    /// The one before.
    pub parent: Option<String>,
    /// With scalars only.
    pub checkpoint: Json,
    /// Metadata.
    pub metadata: Json,
    /// Channel, version, encoding, bytes.
    pub blobs: Vec<(String, String, String, Option<Bin>)>,
    /// Task, index, channel, encoding, bytes, path.
    pub writes: Vec<(String, i32, String, String, Option<Bin>, String)>,
}

/// Calls to the store of items.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Store {
    /// Number of the call.
    pub call: u64,
    /// In this order.
    pub ops: Vec<StoreOp>,
}

/// A call to the store of items.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum StoreOp {
    /// An item, or nil.
    Get {
        /// Where.
        namespace: Vec<String>,
        /// Which.
        key: String,
    },
    /// Nil.
    Put {
        /// Where.
        namespace: Vec<String>,
        /// Which.
        key: String,
        /// What; nil deletes.
        #[serde(default)]
        value: Option<Json>,
        /// How long it lives.
        #[serde(default)]
        ttl_minutes: Option<f64>,
    },
    /// A list of items.
    Search {
        /// In it and below it.
        prefix: Vec<String>,
        /// Entries of the value.
        #[serde(default)]
        filter: Option<Json>,
        /// At most so many.
        #[serde(default)]
        limit: Option<u32>,
        /// After so many.
        #[serde(default)]
        offset: Option<u32>,
    },
    /// A list of lists.
    Namespaces {
        /// How they begin.
        #[serde(default)]
        prefix: Option<Vec<String>>,
        /// How they end.
        #[serde(default)]
        suffix: Option<Vec<String>>,
        /// Cut to so many labels.
        #[serde(default)]
        max_depth: Option<u32>,
        /// At most so many.
        #[serde(default)]
        limit: Option<u32>,
        /// After so many.
        #[serde(default)]
        offset: Option<u32>,
    },
}

/// Result of a call to the store of items.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoreResult {
    /// Nothing, or not found.
    Nil(()),
    /// An item.
    Item(Json),
    /// Items.
    Items(Vec<Json>),
    /// Namespaces.
    Namespaces(Vec<Vec<String>>),
}

/// Bytes, as MessagePack writes them. A text is taken for its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bin(pub Bytes);

impl Serialize for Bin {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Taken;
        impl<'de> Visitor<'de> for Taken {
            type Value = Bin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bin, E> {
                Ok(Bin(Bytes::copy_from_slice(bytes)))
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Bin, E> {
                Ok(Bin(bytes.into()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bin, E> {
                Ok(Bin(Bytes::copy_from_slice(text.as_bytes())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Bin, A::Error> {
                Err(A::Error::custom("bytes stand as bin, not as an array"))
            }
        }
        from.deserialize_bytes(Taken)
    }
}

/// A payload that is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Not the map it should be.
    #[error("a payload cannot be read: {0}")]
    Payload(String),
    /// Not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads a payload.
///
/// # Errors
/// It is not that.
pub fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, WireError> {
    rmp_serde::from_slice(payload).map_err(|error| WireError::Payload(error.to_string()))
}

/// Writes a payload.
///
/// # Panics
/// Never: what is written has text keys and known lengths.
#[must_use]
pub fn write(payload: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(payload).expect("maps with text keys are MessagePack")
}

/// A JSON value as its text; null is none.
pub(super) fn json_or_none(value: Option<&Value>) -> Option<Json> {
    let value = value.filter(|value| !value.is_null())?;
    Some(Json(value.to_string()))
}
