//! The trace of one attempt: a trace run for the graph, and one below it for each task.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use towpath_domain::agent::TracerChoice;
use towpath_domain::trace::{DottedOrderPart, format_part};
use towpath_domain::{Clock, Timestamp, TraceRunId};
use towpath_runtime::{Chunk, Execution};
use uuid::Uuid;

use super::graph_end::Ending;
use crate::text_time::rfc3339;

/// State of a trace.
pub struct Trace {
    clock: Clock,
    id: Uuid,
    start: Timestamp,
    /// Whether readers requested tasks; otherwise tasks are only streamed for the trace.
    streamed: bool,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    /// In order of their starts.
    all: Vec<Task>,
    /// By the id that a graph assigns, which may repeat in another attempt.
    index_by_id: HashMap<String, usize>,
}

struct Task {
    id: Uuid,
    /// The task whose subgraph contains it.
    parent: Option<usize>,
    name: String,
    input: Value,
    start: Timestamp,
    /// End time, output and error.
    end: Option<(Timestamp, Value, Option<String>)>,
}

impl Trace {
    /// Starts the trace of an attempt.
    pub fn begin(clock: Clock, execution: &Execution, streamed: bool) -> Self {
        Self {
            id: root(execution),
            start: clock.now(),
            clock,
            streamed,
            tasks: Mutex::default(),
        }
    }

    /// Whether readers requested tasks.
    pub const fn streamed(&self) -> bool {
        self.streamed
    }

    /// Handles the start or end of a task: a chunk of the mode `tasks`.
    pub fn task(&self, chunk: &Chunk) {
        let Ok(Value::Object(mut told)) = serde_json::from_str(&chunk.data) else {
            return;
        };
        let Some(Value::String(id)) = told.remove("id") else {
            return;
        };
        let now = self.clock.now();
        let mut tasks = self.tasks.lock();
        if let Some(input) = told.remove("input") {
            // `node:task` of each level of nesting; the last one is the parent task.
            let outer = chunk.namespace.last().and_then(|level| level.rsplit(':').next());
            let parent = outer.and_then(|task| tasks.index_by_id.get(task).copied());
            let task = Task {
                id: TraceRunId::new().0,
                parent,
                name: told.get("name").and_then(Value::as_str).unwrap_or("task").to_owned(),
                input,
                start: now,
                end: None,
            };
            let place = tasks.all.len();
            tasks.all.push(task);
            tasks.index_by_id.insert(id, place);
        } else if let Some(&place) = tasks.index_by_id.get(&id) {
            let error = told.get("error").filter(|error| !error.is_null()).map(text);
            tasks.all[place].end = Some((now, told.remove("result").unwrap_or_default(), error));
        }
    }

    /// The trace runs of an ended attempt, in the format of the platform's ingest. They go to the project that the run
    /// requested, else to `project`.
    pub fn end(
        &self,
        name: &str,
        execution: &Execution,
        ending: &Ending,
        asked: Option<&TracerChoice>,
        project: &str,
    ) -> Vec<Value> {
        let project = asked.and_then(|asked| asked.project_name.as_deref()).unwrap_or(project);
        let example = asked.and_then(|asked| asked.example_id.as_deref());
        let now = self.clock.now();
        let root = format_part(&DottedOrderPart {
            start: self.start,
            id: self.id,
        });
        let (outputs, error) = match ending {
            Ending::Done(left) => (object("output", left.values.value().clone()), None),
            Ending::Failed { error, .. } | Ending::TimedOut { error, .. } => (Value::Null, Some(text(error))),
            Ending::Cancelled { .. } => (Value::Null, Some("Cancelled".to_owned())),
        };
        let mut metadata = execution.metadata.clone();
        metadata.insert("thread_id".to_owned(), json!(execution.thread_id));
        metadata.insert("run_id".to_owned(), json!(execution.run_id));
        let tags = execution.config.get("tags").cloned().unwrap_or_else(|| json!([]));
        let input = match &execution.command {
            Some(command) => json!({ "command": command }),
            None => object("input", execution.input.clone().unwrap_or_default()),
        };
        let extra = json!({"metadata": metadata, "runtime": {"sdk": "towpath"}});
        let mut runs = vec![json!({
            "id": self.id, "trace_id": self.id, "dotted_order": root, "name": name, "run_type": "chain",
            "start_time": rfc3339(self.start), "end_time": rfc3339(now), "inputs": input, "outputs": outputs,
            "error": error, "extra": extra, "tags": tags, "session_name": project,
        })];
        if let Some(example) = example {
            runs[0]["reference_example_id"] = json!(example);
        }
        let tasks = std::mem::take(&mut *self.tasks.lock()).all;
        let mut orders: Vec<(Uuid, String)> = Vec::with_capacity(tasks.len());
        for task in tasks {
            // A task begins before those of its subgraph.
            let (parent, above) = task.parent.map_or((self.id, &root), |at| (orders[at].0, &orders[at].1));
            let link = format_part(&DottedOrderPart {
                start: task.start,
                id: task.id,
            });
            let order = format!("{above}.{link}");
            // Unfinished tasks ended with their run.
            let stopped = error.clone().unwrap_or_else(|| "Stopped".to_owned());
            let (end, result, failed) = task.end.unwrap_or((now, Value::Null, Some(stopped)));
            let outputs = if failed.is_some() {
                Value::Null
            } else {
                object("output", result)
            };
            runs.push(json!({
                "id": task.id, "trace_id": self.id, "parent_run_id": parent, "dotted_order": order,
                "name": task.name, "run_type": "chain", "start_time": rfc3339(task.start), "end_time": rfc3339(end),
                "inputs": object("input", task.input), "outputs": outputs, "error": failed, "extra": extra,
                "tags": tags, "session_name": project,
            }));
            orders.push((task.id, order));
        }
        runs
    }
}

/// The id of an attempt's trace. For the first attempt it derives from the run's id, as clients expect; graph hosts
/// derive the same ids.
pub fn root(execution: &Execution) -> Uuid {
    match execution.attempt {
        1 => execution.run_id,
        later => Uuid::new_v5(&execution.run_id, later.to_string().as_bytes()),
    }
}

/// Inputs and outputs must be objects: other values are stored under `name`.
fn object(name: &str, value: Value) -> Value {
    match value {
        Value::Object(_) => value,
        value => Value::Object(Map::from_iter([(name.to_owned(), value)])),
    }
}

/// An error for clients, in one line.
fn text(error: &Value) -> String {
    let part = |name: &str| error[name].as_str().unwrap_or_default();
    format!("{}: {}", part("error"), part("message"))
}
