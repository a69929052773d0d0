//! Subgraphs of a run: when each begins and ends, as its tasks tell.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::super::event::{Channel, DraftEvent};

/// Namespaces of one run that are followed; those beyond are not shown.
const MAX_NAMESPACES: usize = 10_000;

/// Where a graph stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    #[default]
    Started,
    Running,
    Completed,
    Failed,
    Interrupted,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The graph of a run, and those below it.
#[derive(Debug)]
pub(super) struct Namespaces {
    graph: String,
    status: Status,
    subgraphs: BTreeMap<Vec<String>, Subgraph>,
    /// Task to the call of a tool that it performs.
    tool_calls: HashMap<String, String>,
}

#[derive(Debug)]
struct Subgraph {
    graph: String,
    status: Status,
}

/// A subgraph that began or ended.
#[derive(Debug)]
pub(super) struct SubgraphChange {
    pub path: Vec<String>,
    data: Value,
}

impl SubgraphChange {
    pub fn draft(&self) -> Option<DraftEvent> {
        DraftEvent::serialize(Channel::Lifecycle, &self.path, &self.data)
    }
}

impl Namespaces {
    pub fn new(graph: &str) -> Self {
        Self {
            graph: graph.to_owned(),
            status: Status::Started,
            subgraphs: BTreeMap::new(),
            tool_calls: HashMap::new(),
        }
    }

    pub fn graph(&self) -> &str {
        &self.graph
    }

    /// Where the graph itself stands.
    pub const fn status(&self) -> Status {
        self.status
    }

    pub const fn set_status(&mut self, status: Status) {
        self.status = status;
    }

    /// Forgets the subgraphs.
    pub fn restart(&mut self) {
        self.subgraphs.clear();
        self.tool_calls.clear();
    }

    /// A task of a graph begins. Answers the subgraph that begins with it.
    pub fn start_task(&mut self, path: &[String], task: &Value) -> Option<SubgraphChange> {
        self.record_tool_call(task);
        let last = path.last()?;
        if self.subgraphs.contains_key(path) || self.subgraphs.len() >= MAX_NAMESPACES {
            return None;
        }
        let (node, parent) = last.split_once(':')?;
        // Agents say their names; other graphs are called as their nodes are.
        let agent = task.pointer("/metadata/lc_agent_name").and_then(Value::as_str);
        let graph = agent.unwrap_or(node).to_owned();
        let mut data = json!({"event": "started", "namespace": path, "graph_name": graph, "trigger_call_id": parent});
        if let Some(call) = self.tool_calls.get(parent).filter(|_| agent.is_some()) {
            data["cause"] = json!({"type": "toolCall", "tool_call_id": call});
        }
        let subgraph = Subgraph {
            graph,
            status: Status::Started,
        };
        self.subgraphs.insert(path.to_vec(), subgraph);
        Some(SubgraphChange {
            path: path.to_vec(),
            data,
        })
    }

    /// A task of a graph has ended. Answers the subgraphs that end with it.
    pub fn end_task(&mut self, path: &[String], result: &Value) -> Vec<SubgraphChange> {
        let Some(task) = result.get("id").and_then(Value::as_str) else {
            return Vec::new();
        };
        let error = result.get("error").filter(|error| !error.is_null()).map(error_text);
        let waits = result
            .get("interrupts")
            .and_then(Value::as_array)
            .is_some_and(|interrupts| !interrupts.is_empty());
        let (status, error) = match error {
            _ if waits => (Status::Interrupted, None),
            Some(error) => (Status::Failed, Some(error)),
            None => (Status::Completed, None),
        };
        let is_of_task = |last: &String| last.split_once(':').is_some_and(|(_, of)| of == task);
        self.close(status, error.as_deref(), |child| {
            child
                .split_last()
                .is_some_and(|(last, parents)| parents == path && is_of_task(last))
        })
    }

    /// The run has ended. Answers the subgraphs that end with it, the innermost first.
    pub fn close_all(&mut self, status: Status) -> Vec<SubgraphChange> {
        let mut closed = self.close(status, None, |_| true);
        closed.sort_by_key(|change| std::cmp::Reverse(change.path.len()));
        closed
    }

    fn close(&mut self, status: Status, error: Option<&str>, ends: impl Fn(&[String]) -> bool) -> Vec<SubgraphChange> {
        let mut closed = Vec::new();
        for (path, subgraph) in &mut self.subgraphs {
            if subgraph.status != Status::Started || !ends(path) {
                continue;
            }
            subgraph.status = status;
            let mut data = json!({"event": status.as_str(), "namespace": path, "graph_name": subgraph.graph});
            if let Some(error) = error {
                data["error"] = json!(error);
            }
            closed.push(SubgraphChange {
                path: path.clone(),
                data,
            });
        }
        closed
    }

    /// Keeps which call of a tool a task performs: what it runs was begun by that call.
    fn record_tool_call(&mut self, task: &Value) {
        let input = task.get("input");
        let call = match input {
            Some(Value::Array(calls)) => calls.iter().find_map(|call| call.get("id")),
            Some(input) => input.pointer("/tool_call/id"),
            None => None,
        };
        if let (Some(task), Some(call)) = (task.get("id").and_then(Value::as_str), call.and_then(Value::as_str))
            && self.tool_calls.len() < MAX_NAMESPACES
        {
            self.tool_calls.insert(task.to_owned(), call.to_owned());
        }
    }

    pub fn tree(&self) -> Value {
        let mut tree = json!({"namespace": [], "status": self.status.as_str(), "graph_name": self.graph});
        let children = self.children(&[]);
        if !children.is_empty() {
            tree["children"] = json!(children);
        }
        tree
    }

    fn children(&self, of: &[String]) -> Vec<Value> {
        let level = of.len() + 1;
        let direct = self
            .subgraphs
            .iter()
            .filter(|(path, _)| path.len() == level && path.starts_with(of));
        let shown = direct.map(|(path, subgraph)| {
            let mut node = json!({"namespace": path, "status": subgraph.status.as_str(), "graph_name": subgraph.graph});
            let children = self.children(path);
            if !children.is_empty() {
                node["children"] = json!(children);
            }
            node
        });
        shown.collect()
    }
}

/// The text of an error, which some hosts write as `{error, message}`.
fn error_text(error: &Value) -> String {
    let text = error.get("message").unwrap_or(error);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(segments: &[&str]) -> Vec<String> {
        segments.iter().map(|&segment| segment.to_owned()).collect()
    }

    #[test]
    fn a_subgraph_begins_with_its_first_task_and_ends_with_that_of_its_node() {
        let mut namespaces = Namespaces::new("g");
        assert!(
            namespaces
                .start_task(
                    &[],
                    &json!({"id": "t1", "name": "tools",
            "input": {"tool_call": {"id": "call_1"}}})
                )
                .is_none()
        );
        let inner = path(&["tools:t1"]);
        let started = namespaces.start_task(&inner, &json!({"id": "t2", "metadata": {"lc_agent_name": "helper"}}));
        let data = started.unwrap().data;
        assert_eq!(
            (&data["graph_name"], &data["cause"]["tool_call_id"]),
            (&json!("helper"), &json!("call_1"))
        );
        assert!(namespaces.start_task(&inner, &json!({"id": "t3"})).is_none());
        let deep = path(&["tools:t1", "x:t2"]);
        assert!(namespaces.start_task(&deep, &json!({"id": "t4"})).is_some());
        let tree = namespaces.tree();
        assert_eq!(tree["children"][0]["children"][0]["namespace"], json!(deep));
        assert!(namespaces.end_task(&[], &json!({"id": "t9", "result": {}})).is_empty());
        let ended = namespaces.end_task(&inner, &json!({"id": "t2", "error": "broken", "interrupts": []}));
        assert_eq!((ended.len(), &ended[0].data["error"]), (1, &json!("broken")));
        let left = namespaces.close_all(Status::Completed);
        assert_eq!((left.len(), &left[0].data["event"]), (1, &json!("completed")));
    }
}
