//! One run of a graph: what all its levels share.

use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, GraphStop};
use super::plan::Plan;
use super::saver::{self, Saver};
use super::sink::Sink;
use super::{codec, snapshot};
use crate::{Command, Execution, Finish, GraphError, GraphServices, Host, StreamMode, ids};

/// Keys of config and metadata that name a place, not a run.
const PLACES: [&str; 9] = [
    "thread_id",
    "checkpoint_id",
    "checkpoint_ns",
    "checkpoint_map",
    "langgraph_step",
    "langgraph_node",
    "langgraph_triggers",
    "langgraph_path",
    "langgraph_checkpoint_ns",
];
/// As langgraph 1.2 has it.
const RECURSION_LIMIT: i64 = 10_007;

/// What all levels of a run share.
pub(super) struct Run<'a> {
    pub(super) host: &'a dyn Host,
    pub(super) services: &'a GraphServices,
    pub(super) execution: &'a Execution,
    pub(super) sink: Sink<'a>,
    pub(super) saver: Saver,
    pub(super) token: CancellationToken,
    /// Scalars of metadata and configurable, stored with checkpoints and messages.
    pub(super) metadata: Map<String, Value>,
    pub(super) limit: i64,
    pub(super) name: String,
    /// Answers by interrupt id.
    pub(super) answers: Map<String, Value>,
    /// The answer to the caller that asks first.
    answer: Mutex<Option<Value>>,
}

/// Runs a graph from its outside.
pub(super) async fn run(
    plan: &Plan,
    name: &str,
    outside: &GraphServices,
    execution: &Execution,
    host: &dyn Host,
) -> Result<Finish, GraphError> {
    let limit = execution.config.get("recursion_limit").filter(|limit| !limit.is_null());
    let limit = match limit {
        Some(limit) => limit
            .as_i64()
            .ok_or_else(|| GraphError::new("ValueError", "recursion_limit must be an integer"))?,
        None => plan.recursion_limit.unwrap_or(RECURSION_LIMIT),
    };
    if limit < 1 {
        return Err(GraphError::new("ValueError", "recursion_limit must be at least 1"));
    }
    let (saver, drain) = saver::saver_and_loop();
    let run = Run {
        host,
        services: outside,
        execution,
        sink: Sink::new(host, &outside.clock, execution),
        saver,
        token: host.cancelled(),
        metadata: scalars(execution),
        limit,
        name: name.to_owned(),
        answers: resume_map(execution.command.as_ref()).cloned().unwrap_or_default(),
        answer: Mutex::default(),
    };
    let steps = async {
        // Dropped at the end, which lets the drain end.
        let run = run;
        let ended = through(&run, plan).await;
        let flushed = run.sink.flush().await;
        let finish = ended?;
        flushed.map(|()| finish)
    };
    let (ended, saved) = futures::join!(steps, drain.run(host));
    // If saving failed, other failures are consequences.
    saved?;
    ended
}

async fn through(run: &Run<'_>, plan: &Plan) -> Result<Finish, GraphError> {
    run.chain("on_chain_start", || json!({"input": run.execution.input}));
    let mut engine = Engine::open(run, plan, String::new(), None).await?;
    let halt = match engine.run_to_end(run.execution.input.clone()).await {
        Ok(()) => None,
        Err(GraphStop::Interrupt(waiting)) => Some(waiting),
        Err(GraphStop::Error(error)) => return Err(error),
    };
    if let Some(waiting) = halt {
        engine.stopped(waiting.is_empty())?;
    }
    let values = engine.output();
    run.chain("on_chain_end", || json!({"output": values}));
    Ok(snapshot::finish(engine, values))
}

impl Run<'_> {
    /// Whether this run, perhaps in an earlier attempt, created the checkpoint with these metadata.
    pub(super) fn made(&self, metadata: &Map<String, Value>) -> bool {
        let by = metadata.get("run_id").and_then(Value::as_str);
        by.is_some_and(|by| by == self.execution.run_id.to_string())
    }

    /// An answer that a command gave without saying to what.
    pub(super) fn set_answer(&self, answer: Value) {
        *self.answer.lock() = Some(answer);
    }

    pub(super) fn take_answer(&self) -> Option<Value> {
        self.answer.lock().take()
    }

    /// An event in the shape of langchain's event stream.
    pub(super) fn event(
        &self,
        event: &str,
        name: &str,
        id: &str,
        metadata: &RawValue,
        parents: &[String],
        data: &Value,
    ) {
        let tags = self.execution.config.get("tags").cloned().unwrap_or_else(|| json!([]));
        let event = json!({
            "event": event, "data": data, "name": name, "tags": tags, "run_id": id, "metadata": metadata,
            "parent_ids": parents,
        });
        self.sink.push(StreamMode::Events, &[], &event);
    }

    /// An event of the graph as a whole.
    fn chain(&self, event: &str, data: impl FnOnce() -> Value) {
        if !self.sink.wants(StreamMode::Events, &[]) {
            return;
        }
        let mut metadata = self.metadata.clone();
        metadata.insert(
            "thread_id".to_owned(),
            Value::from(self.execution.thread_id.to_string()),
        );
        if let Ok(metadata) = serde_json::value::to_raw_value(&metadata) {
            let id = self.execution.run_id.to_string();
            self.event(event, &self.name, &id, &metadata, &[], &data());
        }
    }
}

/// The run's metadata and configurable entries that are stored with checkpoints.
fn scalars(execution: &Execution) -> Map<String, Value> {
    let mut found = Map::new();
    add_scalars(&mut found, &execution.metadata);
    if let Some(configurable) = execution.config.get("configurable").and_then(Value::as_object) {
        add_scalars(&mut found, configurable);
    }
    // Retries, rollbacks and deletions identify checkpoints by this, so no other layer may set it.
    found.insert("run_id".to_owned(), Value::from(execution.run_id.to_string()));
    found
}

/// Adds entries that are stored with checkpoints, unless they exist.
pub(super) fn add_scalars(to: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        let scalar = matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
        if scalar && !key.starts_with("__") && !PLACES.contains(&key.as_str()) && !to.contains_key(key) {
            let value = match value {
                Value::String(text) if text.contains('\0') => Value::from(text.replace('\0', "")),
                value => value.clone(),
            };
            to.insert(key.clone(), value);
        }
    }
}

/// A resume that names interrupts.
pub(super) fn resume_map(command: Option<&Command>) -> Option<&Map<String, Value>> {
    let map = command?.resume.as_ref()?.as_object()?;
    (!map.is_empty() && map.keys().all(|key| ids::is_interrupt(key))).then_some(map)
}

/// A command as writes without a task: packets and triggers, the answer, the update.
pub(super) fn command_writes(plan: &Plan, command: &Command) -> Result<super::superstep::Writes, GraphError> {
    let mut writes = Vec::new();
    for target in &command.goto {
        writes.extend(super::superstep::goto_write(plan, target)?);
    }
    if let Some(answer) = &command.resume
        && resume_map(Some(command)).is_none()
    {
        writes.push((codec::RESUME.to_owned(), answer.clone().into()));
    }
    for (key, value) in pairs(command.update.as_ref())? {
        match plan.sort(&key) {
            Some(sort) => writes.push((key, sort.normalized(value)?.into())),
            None => tracing::warn!(channel = key, "a command's update to an unknown channel is ignored"),
        }
    }
    Ok(writes)
}

/// An update as an object, or as pairs in an order of their own.
fn pairs(update: Option<&Value>) -> Result<Vec<(String, Value)>, GraphError> {
    let wrong = || {
        super::channel::invalid("a command's update must be an object, or a list of [channel, value] pairs".to_owned())
    };
    match update {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(fields)) => Ok(fields.clone().into_iter().collect()),
        Some(Value::Array(list)) => list
            .iter()
            .map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([Value::String(key), value]) => Ok((key.clone(), value.clone())),
                _ => Err(wrong()),
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}
