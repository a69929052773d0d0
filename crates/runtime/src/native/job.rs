//! What a task has at hand while it works.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::llm::ModelCall;
use super::plan::{Body, Node, Plan};
use super::run::Run;
use super::superstep::{Input, Task};
use super::{echo, nested};
use crate::{Goto, GraphError, Shared, StreamMode, ids};

/// A task at work.
pub(super) struct TaskContext<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) plan: &'a Plan,
    pub(super) node: &'a Node,
    pub(super) task: &'a Task,
    pub(super) input: &'a Input,
    pub(super) step: i64,
    /// Which try of the node, from 1.
    pub(super) attempt: u32,
    /// Checkpoints of the graphs around it, by namespace.
    pub(super) parents: &'a BTreeMap<String, String>,
    /// Whether graphs it runs continue where they stopped.
    pub(super) resuming: Option<bool>,
    /// Namespace of its graph, one part per level.
    pub(super) namespace: &'a [String],
    pub(super) answers: &'a InterruptAnswers,
    pub(super) metadata: OnceLock<Box<RawValue>>,
}

/// Answers to a task's interrupts, over all its tries.
#[derive(Debug, Default)]
pub(super) struct InterruptAnswers {
    values: Mutex<Vec<Value>>,
    asked: AtomicUsize,
    used: AtomicBool,
    graphs: AtomicUsize,
}

impl InterruptAnswers {
    pub(super) fn new(given: Vec<Value>) -> Self {
        Self {
            values: Mutex::new(given),
            ..Self::default()
        }
    }

    /// The answers, when the task read one.
    pub(super) fn used(&self) -> Option<Vec<Value>> {
        self.used.load(Ordering::Relaxed).then(|| self.values.lock().clone())
    }

    /// A new try asks from the beginning.
    pub(super) fn restart(&self) {
        self.asked.store(0, Ordering::Relaxed);
        self.graphs.store(0, Ordering::Relaxed);
    }
}

/// What a node wants done.
#[derive(Debug)]
pub(super) struct NodeOutput {
    /// An object of channel to value, or null.
    pub(super) update: Value,
    pub(super) goto: Vec<Goto>,
}

impl NodeOutput {
    pub(super) const fn update(update: Value) -> Self {
        Self {
            update,
            goto: Vec::new(),
        }
    }
}

/// Why a node did not end.
#[derive(Debug)]
pub(super) enum NodeStop {
    /// It waits for answers to these; empty if its graph stopped before or after a node.
    Interrupt(Vec<Value>),
    Error(GraphError),
}

impl From<GraphError> for NodeStop {
    fn from(error: GraphError) -> Self {
        Self::Error(error)
    }
}

impl TaskContext<'_> {
    /// Does what the node does.
    pub(super) async fn perform(&self) -> Result<NodeOutput, NodeStop> {
        match &self.node.body {
            Body::Start => Ok(NodeOutput::update(self.input.value().clone())),
            Body::Echo => echo::run(self).await,
            Body::Script(script) => script.run(self).await,
            Body::Llm(llm) => llm.run(self).await,
            Body::Tools(tools) => tools.run(self).await,
            Body::Http(http) => http.run(self).await,
            Body::Bench(bench) => bench.run(self).await,
            Body::Graph(plan) => {
                let input = self.input.value().clone();
                let output = Box::pin(nested::run(self, plan, input)).await?;
                Ok(NodeOutput::update(output))
            }
        }
    }

    /// Runs a graph as part of this task; gives its output.
    pub(super) async fn subgraph(&self, plan: &Arc<Plan>, input: Value) -> Result<Value, NodeStop> {
        Box::pin(nested::run(self, plan, input)).await
    }

    /// Namespace of the next graph this task runs.
    pub(super) fn next_namespace(&self) -> String {
        match self.answers.graphs.fetch_add(1, Ordering::Relaxed) {
            0 => self.task.ns.clone(),
            nth => format!("{}|{nth}", self.task.ns),
        }
    }

    /// Returns the existing answer, or stops the task to wait for one.
    pub(super) fn interrupt(&self, value: &Value) -> Result<Value, NodeStop> {
        let at = self.answers.asked.fetch_add(1, Ordering::Relaxed);
        let mut given = self.answers.values.lock();
        if at >= given.len()
            && let Some(answer) = self.run.take_answer()
        {
            given.push(answer);
        }
        if let Some(answer) = given.get(at) {
            self.answers.used.store(true, Ordering::Relaxed);
            return Ok(answer.clone());
        }
        let id = interrupt_id(&self.task.ns, given.len());
        Err(NodeStop::Interrupt(vec![
            json!({"value": value, "id": id, "response_schema": null}),
        ]))
    }

    /// A custom event.
    pub(super) fn custom(&self, value: &Value) {
        self.run.sink.push(StreamMode::Custom, self.namespace, value);
    }

    /// What a call of a tool is at.
    pub(super) fn stream_tool_event(&self, event: &Value) {
        self.run.sink.push(StreamMode::Tools, self.namespace, event);
    }

    /// A secret that a declaration names.
    pub(super) fn secret(&self, name: &str) -> Result<String, GraphError> {
        let missing = || GraphError::new("KeyError", format!("the secret {name} is not set"));
        self.run.services.secret(name).ok_or_else(missing)
    }

    /// Whether anyone listens to tokens.
    pub(super) fn wants_tokens(&self) -> bool {
        self.run.sink.wants_messages(self.namespace) || self.run.sink.wants(StreamMode::Events, &[])
    }

    /// A piece of a message.
    pub(super) fn token(&self, model: &ModelCall, chunk: &Value, whole: impl FnOnce() -> Value) {
        let metadata = model.metadata.as_deref().unwrap_or_else(|| self.message_metadata());
        self.run.sink.token(self.namespace, chunk, metadata, whole);
        self.event(model, "on_chat_model_stream", || json!({"chunk": chunk}));
    }

    /// A message that is not streamed in pieces, unless it was.
    pub(super) fn message(&self, message: &Value) {
        self.run.sink.message(self.namespace, message, self.message_metadata());
    }

    /// Something that speaks without a model behind it.
    pub(super) fn speech(&self) -> ModelCall {
        ModelCall::new(&self.node.name, None)
    }

    /// A model is called.
    pub(super) fn model_starts(&self, name: &str, messages: &[Value], temperature: Option<f64>) -> ModelCall {
        if !self.wants_tokens() {
            return ModelCall::new(name, None);
        }
        let mut metadata = self.metadata_fields();
        metadata.insert("ls_provider".to_owned(), Value::from("openai"));
        metadata.insert("ls_model_name".to_owned(), Value::from(name));
        metadata.insert("ls_model_type".to_owned(), Value::from("chat"));
        if let Some(temperature) = temperature {
            metadata.insert("ls_temperature".to_owned(), Value::from(temperature));
        }
        let model = ModelCall::new(name, serde_json::value::to_raw_value(&metadata).ok());
        self.event(
            &model,
            "on_chat_model_start",
            || json!({"input": {"messages": [messages]}}),
        );
        model
    }

    /// A model has answered.
    pub(super) fn model_ends(&self, model: &ModelCall, message: &Value) {
        self.event(model, "on_chat_model_end", || json!({"output": message}));
    }

    fn event(&self, model: &ModelCall, event: &str, data: impl FnOnce() -> Value) {
        if self.run.sink.wants(StreamMode::Events, &[]) {
            let metadata = model.metadata.as_deref().unwrap_or_else(|| self.message_metadata());
            let parents = [self.run.execution.run_id.to_string(), self.task.id.clone()];
            self.run
                .event(event, &model.name, &model.id, metadata, &parents, &data());
        }
    }

    /// Metadata of this task's messages, made once.
    pub(super) fn message_metadata(&self) -> &RawValue {
        self.metadata.get_or_init(|| {
            serde_json::value::to_raw_value(&self.metadata_fields()).expect("metadata has text keys only")
        })
    }

    fn metadata_fields(&self) -> Map<String, Value> {
        let mut fields = self.run.metadata.clone();
        for (key, value) in [
            ("langgraph_step", Value::from(self.step)),
            ("langgraph_node", Value::from(self.node.name.as_str())),
            // The name other clients look for.
            ("graph_node", Value::from(self.node.name.as_str())),
            ("langgraph_triggers", Value::from(self.task.triggers.clone())),
            ("langgraph_path", Value::from(self.task.path(self.plan))),
            ("langgraph_checkpoint_ns", Value::from(self.task.ns.as_str())),
            ("checkpoint_ns", Value::from(self.task.ns.as_str())),
            ("thread_id", Value::from(self.run.execution.thread_id.to_string())),
        ] {
            fields.insert(key.to_owned(), value);
        }
        if let Some(tags) = self.run.execution.config.get("tags").and_then(Value::as_array)
            && !tags.is_empty()
        {
            fields.insert("tags".to_owned(), Value::from(tags.clone()));
        }
        fields
    }

    /// Tells messages of the update that no one was told yet.
    pub(super) fn stream_messages(&self, update: &[(String, Shared)]) {
        for message in update.iter().flat_map(|(_, value)| messages_in(value)) {
            self.message(message);
        }
    }

    /// Messages it was given are not news.
    pub(super) fn mark_input_seen(&self) {
        for message in self.input.entries().into_iter().flat_map(messages_in) {
            self.run.sink.mark_seen(message);
        }
    }
}

/// Messages of a channel's value.
fn messages_in(value: &Value) -> impl Iterator<Item = &Value> {
    let list = match value {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    list.iter().filter(|message| {
        message
            .get("type")
            .and_then(Value::as_str)
            .is_some_and(|sort| sort != "remove")
            && message.get("id").is_some_and(Value::is_string)
            && message.get("content").is_some()
    })
}

/// Id of an interrupt of a task that has had so many answers.
pub(super) fn interrupt_id(task_ns: &str, answered: usize) -> String {
    match answered {
        0 => ids::interrupt(task_ns),
        answered => ids::interrupt(&format!("{task_ns}|{answered}")),
    }
}
