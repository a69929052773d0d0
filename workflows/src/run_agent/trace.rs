//! The trace of one attempt: a trace run for the graph, and one below it for each task.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use towpath_domain::agent::TracerChoice;
use towpath_domain::trace::{Link, format_link};
use towpath_domain::{Clock, Timestamp, TraceRunId};
use towpath_runtime::{Chunk, Execution};
use uuid::Uuid;

use super::conclude::Ending;
use super::rfc3339;

/// What is known of an attempt so far.
pub struct Trace {
    clock: Clock,
    id: Uuid,
    start: Timestamp,
    /// Whether somebody streams tasks, who are else asked for the trace alone.
    streamed: bool,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    /// In the order in which they began.
    all: Vec<Task>,
    /// By the id that a graph gives them, which may be the same in another attempt.
    places: HashMap<String, usize>,
}

struct Task {
    id: Uuid,
    /// Of the task whose subgraph it belongs to.
    parent: Option<usize>,
    name: String,
    input: Value,
    start: Timestamp,
    /// When, and what came of it.
    end: Option<(Timestamp, Value, Option<String>)>,
}

impl Trace {
    /// Of an attempt that begins now.
    pub fn begin(clock: Clock, execution: &Execution, streamed: bool) -> Self {
        Self {
            id: root(execution),
            start: clock.now(),
            clock,
            streamed,
            tasks: Mutex::default(),
        }
    }

    /// Whether readers want to see tasks too.
    pub const fn streamed(&self) -> bool {
        self.streamed
    }

    /// A task began or ended: a chunk of the mode `tasks`.
    pub fn task(&self, chunk: &Chunk) {
        let Ok(Value::Object(mut told)) = serde_json::from_str(&chunk.data) else {
            return;
        };
        let Some(Value::String(id)) = told.remove("id") else {
            return;
        };
        let now = self.clock.now();
        let mut tasks = self.tasks();
        if let Some(input) = told.remove("input") {
            // `node:task` of each level of nesting; the last is the task this one runs in.
            let outer = chunk.namespace.last().and_then(|level| level.rsplit(':').next());
            let parent = outer.and_then(|task| tasks.places.get(task).copied());
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
            tasks.places.insert(id, place);
        } else if let Some(&place) = tasks.places.get(&id) {
            let error = told.get("error").filter(|error| !error.is_null()).map(text);
            tasks.all[place].end = Some((now, told.remove("result").unwrap_or_default(), error));
        }
    }

    /// The trace runs of an attempt that came to this end, as the platform's ingest reads them. They go to the project
    /// that the run was `asked` to be traced to, else to `project`.
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
        let root = format_link(&Link {
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
        let tasks = std::mem::take(&mut *self.tasks()).all;
        let mut orders: Vec<(Uuid, String)> = Vec::with_capacity(tasks.len());
        for task in tasks {
            // A task begins before those of its subgraph.
            let (parent, above) = task.parent.map_or((self.id, &root), |at| (orders[at].0, &orders[at].1));
            let link = format_link(&Link {
                start: task.start,
                id: task.id,
            });
            let order = format!("{above}.{link}");
            // What did not end by itself ended with its run.
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

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        // Each change is a push or a replacement.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The id of an attempt's trace. That of the first one goes by the id of its run, as clients expect; processes that run
/// users' own code come to the same ids.
pub fn root(execution: &Execution) -> Uuid {
    match execution.attempt {
        1 => execution.run_id,
        later => Uuid::new_v5(&execution.run_id, later.to_string().as_bytes()),
    }
}

/// Inputs and outputs are objects: anything else stands under a name.
fn object(name: &str, value: Value) -> Value {
    match value {
        Value::Object(_) => value,
        value => Value::Object(Map::from_iter([(name.to_owned(), value)])),
    }
}

/// An error as callers see it, in a line.
fn text(error: &Value) -> String {
    let part = |name: &str| error[name].as_str().unwrap_or_default();
    format!("{}: {}", part("error"), part("message"))
}
