//! What a graph tells while it runs.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Engine;
use crate::native::codec::{ERROR, INTERRUPT};
use crate::native::plan::Body;
use crate::native::superstep::{self, Input, Status, Task};
use crate::{GraphError, Shared, StreamMode};

#[derive(Serialize)]
struct TaskStart<'a> {
    id: &'a str,
    name: &'a str,
    input: &'a Input,
    triggers: &'a [String],
    #[serde(skip_serializing_if = "Map::is_empty")]
    metadata: &'a Map<String, Value>,
}

impl Engine<'_> {
    /// The state.
    pub(super) fn show_values(&self) {
        if self.run.sink.wants(StreamMode::Values, &self.namespace) {
            let values = self.state.read(self.plan, &self.plan.output);
            self.run.sink.push(StreamMode::Values, &self.namespace, &values);
        }
    }

    /// The checkpoint it is at, with the tasks that follow.
    pub(super) fn show_checkpoint(&self) {
        if !self.run.sink.wants_debug(StreamMode::Checkpoints, &self.namespace) {
            return;
        }
        let statuses = superstep::statuses(&self.pending);
        let parent = match self.saved.as_deref() == Some(&self.id) {
            true => self.previous_saved.as_deref(),
            false => self.saved.as_deref(),
        };
        let (config, parent_config) = (self.config(Some(&self.id)), self.config(parent));
        let next: Vec<&str> = self
            .tasks
            .iter()
            .map(|task| self.plan.nodes[task.node].name.as_str())
            .collect();
        let tasks: Vec<Value> = self
            .tasks
            .iter()
            .map(|task| self.shown_task(task, statuses.get(&task.id)))
            .collect();
        let keys: Vec<String> = self.plan.keys().map(str::to_owned).collect();
        let payload = json!({
            "config": config, "parent_config": parent_config, "values": self.state.read(self.plan, &keys),
            "metadata": self.metadata, "next": next, "tasks": tasks,
        });
        let debug = || {
            let mut payload = payload.clone();
            payload["checkpoint"] = payload["config"]["configurable"].clone();
            payload["parent_checkpoint"] = payload["parent_config"]["configurable"].clone();
            for key in ["checkpoint", "parent_checkpoint"] {
                if let Some(fields) = payload[key].as_object_mut() {
                    fields.retain(|key, _| {
                        matches!(
                            key.as_str(),
                            "thread_id" | "checkpoint_id" | "checkpoint_ns" | "checkpoint_map"
                        )
                    });
                }
            }
            for task in payload["tasks"].as_array_mut().into_iter().flatten() {
                if task["state"].is_object()
                    && let Some(fields) = task.as_object_mut()
                    && let Some(mut state) = fields.remove("state")
                {
                    fields.insert("checkpoint".to_owned(), state["configurable"].take());
                }
            }
            (self.step - 1, "checkpoint", payload)
        };
        self.run
            .sink
            .push_debug(StreamMode::Checkpoints, &self.namespace, &payload, debug);
    }

    /// Config that names a checkpoint of this graph.
    fn config(&self, id: Option<&str>) -> Value {
        let Some(id) = id else { return Value::Null };
        let mut fields = Map::new();
        if let Some(own) = self.run.execution.config.get("configurable").and_then(Value::as_object) {
            let own = own
                .iter()
                .filter(|(key, _)| !key.starts_with("__pregel_") && *key != "checkpoint_map");
            fields.extend(own.map(|(key, value)| (key.clone(), value.clone())));
        }
        fields.insert(
            "thread_id".to_owned(),
            Value::from(self.run.execution.thread_id.to_string()),
        );
        fields.insert("checkpoint_ns".to_owned(), Value::from(self.ns.as_str()));
        fields.insert("checkpoint_id".to_owned(), Value::from(id));
        if !self.parents.is_empty() {
            let mut map: BTreeMap<&str, &str> =
                self.parents.iter().map(|(ns, id)| (ns.as_str(), id.as_str())).collect();
            map.insert(&self.ns, id);
            fields.insert("checkpoint_map".to_owned(), json!(map));
        }
        json!({"configurable": fields})
    }

    fn shown_task(&self, task: &Task, status: Option<&Status>) -> Value {
        let nothing = Status::default();
        let status = status.unwrap_or(&nothing);
        let name = &self.plan.nodes[task.node].name;
        let state = self.plan.subgraph(name, 0).map(|_| {
            let thread = self.run.execution.thread_id.to_string();
            json!({"configurable": {"thread_id": thread, "checkpoint_ns": task.ns}})
        });
        let mut shown = json!({"id": task.id, "name": name, "state": state});
        let result = superstep::result(self.plan, &status.output);
        if let Some(error) = &status.error {
            shown["error"] = Value::from(error.as_str());
            return shown;
        }
        if !result.is_empty() {
            shown["result"] = json!(result);
        }
        shown["interrupts"] = Value::from(status.interrupts.clone());
        shown
    }

    /// A task begins.
    pub(super) fn show_task(&self, task: &Task) {
        let node = &self.plan.nodes[task.node];
        if matches!(node.body, Body::Start) || !self.run.sink.wants_debug(StreamMode::Tasks, &self.namespace) {
            return;
        }
        let started = TaskStart {
            id: &task.id,
            name: &node.name,
            input: &task.input,
            triggers: &task.triggers,
            metadata: &self.run.metadata,
        };
        let debug = || (self.step, "task", json!(started));
        self.run
            .sink
            .push_debug(StreamMode::Tasks, &self.namespace, &started, debug);
    }

    /// The writes of a task, or that it waits. `cached` if they come from an earlier run.
    pub(super) fn show_writes(&self, task: &Task, writes: &[(String, Shared)], cached: bool) {
        let node = &self.plan.nodes[task.node];
        if matches!(node.body, Body::Start) {
            return;
        }
        let sink = &self.run.sink;
        let waiting = writes
            .first()
            .filter(|(channel, _)| channel == INTERRUPT)
            .map(|(_, value)| value);
        if let Some(waiting) = waiting {
            sink.push(StreamMode::Updates, &self.namespace, &json!({"__interrupt__": waiting}));
            if sink.wants(StreamMode::Values, &self.namespace) {
                let mut values = self.state.read(self.plan, &self.plan.output);
                values.insert("__interrupt__".to_owned(), waiting.clone());
                sink.push(StreamMode::Values, &self.namespace, &values);
            }
        } else if sink.wants(StreamMode::Updates, &self.namespace) {
            let update: BTreeMap<&str, &Shared> = writes
                .iter()
                .filter(|(channel, _)| self.plan.output.contains(channel))
                .map(|(channel, value)| (channel.as_str(), value))
                .collect();
            let update = (!update.is_empty()).then_some(update);
            let mut shown = BTreeMap::from([(node.name.as_str(), json!(update))]);
            if cached {
                shown.insert("__metadata__", json!({"cached": true}));
            }
            sink.push(StreamMode::Updates, &self.namespace, &shown);
        }
        if !cached {
            let waiting = waiting.map_or_else(|| json!([]), |waiting| waiting.value().clone());
            self.show_result(task, &Value::Null, writes, &waiting);
        }
    }

    /// A task failed.
    pub(super) fn show_failure(&self, task: &Task, error: &GraphError) {
        let error = json!({"error": error.class, "message": error.message});
        self.show_result(task, &error, &[], &json!([]));
    }

    fn show_result(&self, task: &Task, error: &Value, writes: &[(String, Shared)], interrupts: &Value) {
        let sink = &self.run.sink;
        if !sink.wants_debug(StreamMode::Tasks, &self.namespace) {
            return;
        }
        let writes = writes.iter().filter(|(channel, _)| channel != ERROR);
        let ended = json!({
            "id": task.id, "name": self.plan.nodes[task.node].name, "error": error,
            "result": superstep::result(self.plan, writes), "interrupts": interrupts,
        });
        let debug = || (self.step, "task_result", ended.clone());
        sink.push_debug(StreamMode::Tasks, &self.namespace, &ended, debug);
    }
}
