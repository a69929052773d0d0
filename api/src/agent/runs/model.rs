//! Runs as they go over the wire.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::agent::{MultitaskStrategy, RunStatus, StreamMode, TracerChoice};
use towpath_domain::{AssistantId, RunId, ThreadId};
use towpath_store::runs as rows;

use crate::agent::answer::{Time, raw};
use crate::agent::errors::AgentError;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Run {
    #[schema(value_type = Uuid)]
    run_id: RunId,
    #[schema(value_type = Uuid)]
    thread_id: ThreadId,
    #[schema(value_type = Uuid)]
    assistant_id: AssistantId,
    /// The assistant, as the Agent Protocol calls it: on routes without a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    agent_id: Option<AssistantId>,
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    /// pending, running, success, error, timeout or interrupted.
    #[schema(value_type = String)]
    status: RunStatus,
    /// What it was asked, as it was understood.
    #[schema(value_type = Object)]
    kwargs: Box<RawValue>,
    #[schema(value_type = String)]
    multitask_strategy: MultitaskStrategy,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
    /// The tracing project, where the run named one.
    langsmith_session_name: Option<String>,
}

/// Fields of a run that can be selected.
pub(crate) const FIELDS: [&str; 10] = [
    "run_id",
    "thread_id",
    "assistant_id",
    "metadata",
    "status",
    "kwargs",
    "multitask_strategy",
    "created_at",
    "updated_at",
    "langsmith_session_name",
];

impl TryFrom<rows::Run> for Run {
    type Error = AgentError;

    fn try_from(row: rows::Run) -> Result<Self, AgentError> {
        Ok(Self {
            run_id: row.id,
            thread_id: row.thread_id,
            assistant_id: row.assistant_id,
            agent_id: None,
            metadata: raw(&row.metadata)?,
            status: row.status,
            kwargs: raw(&row.kwargs)?,
            multitask_strategy: row.multitask_strategy,
            created_at: Time(row.created_at),
            updated_at: Time(row.updated_at),
            langsmith_session_name: session(&row.kwargs)?,
        })
    }
}

impl Run {
    /// With the field of the Agent Protocol.
    pub(crate) fn with_agent(mut self) -> Self {
        self.agent_id = Some(self.assistant_id);
        self
    }
}

/// The project a run asked to be traced to. Few do, so that the others are not read for it.
fn session(kwargs: &str) -> Result<Option<String>, AgentError> {
    #[derive(serde::Deserialize)]
    struct Traced {
        langsmith_tracer: Option<TracerChoice>,
    }
    if !kwargs.contains("\"langsmith_tracer\"") {
        return Ok(None);
    }
    let kwargs: Traced = serde_json::from_str(kwargs).map_err(|error| AgentError::internal(&error))?;
    Ok(kwargs.langsmith_tracer.and_then(|choice| choice.project_name))
}

/// What a request for a run may say. Unknown fields are ignored.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "described here, read as the domain's request")]
pub(super) struct RunCreate {
    /// An assistant's id, or the name of a graph.
    assistant_id: String,
    /// Anything; null goes on from the thread's state.
    input: Option<Value>,
    command: Option<RunCommand>,
    /// Merged over that of assistant and thread.
    metadata: Option<Map<String, Value>>,
    config: Option<RunConfig>,
    /// Not together with `config.configurable`.
    context: Option<Map<String, Value>>,
    checkpoint: Option<CheckpointChoice>,
    /// Older form of `checkpoint`.
    checkpoint_id: Option<uuid::Uuid>,
    /// Called once the run is over: an absolute http or https address.
    #[schema(min_length = 1, max_length = 4096)]
    webhook: Option<String>,
    /// `*` or a list of nodes.
    interrupt_before: Option<NodeChoice>,
    /// `*` or a list of nodes.
    interrupt_after: Option<NodeChoice>,
    /// One mode or several; `values` unless said.
    stream_mode: Option<Modes>,
    stream_subgraphs: Option<bool>,
    /// Keep events for some minutes, so that a reader can resume.
    stream_resumable: Option<bool>,
    /// Names under which readers may judge the run: where runs are traced, its stream ends with an event `feedback`, and
    /// what waits for it answers `__feedback__`, an address for each.
    #[schema(value_type = Option<Vec<FeedbackKey>>, max_items = 100)]
    feedback_keys: Option<Vec<String>>,
    multitask_strategy: Option<Strategy>,
    /// What happens when the thread is missing.
    if_not_exists: Option<Missing>,
    /// Delay before it starts.
    #[schema(minimum = 0, maximum = 315_360_000)]
    after_seconds: Option<f64>,
    /// Stateless runs: what becomes of their thread.
    on_completion: Option<Completion>,
    on_disconnect: Option<Disconnect>,
    durability: Option<Saves>,
    /// Older form of `durability`: false is `exit`.
    checkpoint_during: Option<bool>,
    /// Where it is traced to, if not to where its server traces to.
    langsmith_tracer: Option<TracerRequest>,
    /// Fail with `UnknownInterruptError` where `command.resume` answers no waiting interrupt; the thread stays as it was.
    strict_resume: Option<bool>,
}

/// A name under which something is judged.
#[derive(utoipa::ToSchema)]
#[schema(min_length = 1, max_length = 200)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct FeedbackKey(String);

#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct TracerRequest {
    /// The tracing project.
    project_name: Option<String>,
    /// The example of a dataset that the run answers.
    example_id: Option<String>,
}

#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct RunCommand {
    /// An object, or a list of `[key, value]` pairs.
    update: Option<CommandUpdate>,
    /// Answers the waiting interrupt. Not for stateless runs.
    resume: Option<Value>,
    /// A node, `{node, input}`, or a list of these.
    goto: Option<Goto>,
}

#[derive(utoipa::ToSchema, Serialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum CommandUpdate {
    Object(Map<String, Value>),
    Pairs(Vec<(String, Value)>),
}

#[derive(utoipa::ToSchema, Serialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum Goto {
    Node(String),
    Send(Send),
    Many(Vec<GotoOne>),
}

#[derive(utoipa::ToSchema, Serialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum GotoOne {
    Node(String),
    Send(Send),
}

#[derive(utoipa::ToSchema, Serialize)]
pub(super) struct Send {
    node: String,
    input: Option<Value>,
}

#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct RunConfig {
    tags: Option<Vec<String>>,
    recursion_limit: Option<i64>,
    configurable: Option<Map<String, Value>>,
    metadata: Option<Map<String, Value>>,
}

#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct CheckpointChoice {
    thread_id: Option<String>,
    checkpoint_ns: Option<String>,
    checkpoint_id: Option<String>,
    checkpoint_map: Option<Map<String, Value>>,
}

#[derive(utoipa::ToSchema, Serialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum NodeChoice {
    One(String),
    Some(Vec<String>),
}

#[derive(utoipa::ToSchema, Serialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum Modes {
    #[schema(value_type = Mode)]
    One(StreamMode),
    #[schema(value_type = Vec<Mode>)]
    Several(Vec<StreamMode>),
}

macro_rules! choices {
    ($($name:ident { $($choice:ident),* $(,)? })*) => {$(
        #[derive(utoipa::ToSchema, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[expect(dead_code, reason = "only part of the API description")]
        pub(super) enum $name { $($choice),* }
    )*};
}

choices! {
    Mode { Values, Messages, MessagesTuple, Tasks, Checkpoints, Updates, Events, Debug, Custom }
    Strategy { Reject, Rollback, Interrupt, Enqueue }
    Missing { Create, Reject }
    Completion { Delete, Keep }
    Disconnect { Cancel, Continue }
    Saves { Sync, Async, Exit }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunStatusFilter {
    Pending,
    Running,
    Success,
    Error,
    Timeout,
    Interrupted,
}
