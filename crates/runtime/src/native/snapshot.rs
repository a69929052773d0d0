//! State of a thread from what is saved.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::codec;
use super::engine::{Engine, null_writes};
use super::plan::Plan;
use super::superstep::{self, Pending, State, Status, Task, TaskSite};
use crate::{
    CheckpointRef, Finish, GraphError, HistoryQuery, Host, SavedCheckpoint, StateRef, StateSnapshot, TaskSnapshot,
};

/// How a run ended, from where the graph is.
pub(super) fn finish(engine: Engine<'_>, values: Value) -> Finish {
    let statuses = superstep::statuses(&engine.pending);
    let next = engine.tasks.iter().filter(|task| task.writes.is_empty());
    let next = next.map(|task| engine.plan.nodes[task.node].name.clone()).collect();
    let mut interrupts = Map::new();
    for task in &engine.tasks {
        let waiting = statuses.get(&task.id).map(Status::waiting).unwrap_or_default();
        if !waiting.is_empty() {
            interrupts.insert(task.id.clone(), waiting.iter().cloned().map(plain).collect());
        }
    }
    Finish {
        values: values.into(),
        next,
        interrupts,
        checkpoint: engine.saved.map(|id| CheckpointRef {
            thread_id: engine.run.execution.thread_id,
            checkpoint_ns: String::new(),
            checkpoint_id: Some(id),
            checkpoint_map: None,
        }),
    }
}

/// An interrupt without what it does not have.
fn plain(mut interrupt: Value) -> Value {
    if let Some(fields) = interrupt.as_object_mut() {
        fields.retain(|key, value| key != "response_schema" || !value.is_null());
    }
    interrupt
}

/// State at a checkpoint; by default the current one.
pub(super) async fn state(
    plan: &Plan,
    at: &StateRef,
    subgraphs: bool,
    host: &dyn Host,
) -> Result<Option<StateSnapshot>, GraphError> {
    let plan = inner(plan, &at.ns)?;
    let Some(saved) = host.load(&at.ns, at.id.as_deref()).await? else {
        return Ok(None);
    };
    let live = at.id.is_none();
    let mut snapshot = snapshot(plan, at, &saved, live)?;
    if subgraphs {
        fill(plan, at, &mut snapshot, host).await?;
    }
    Ok(Some(snapshot))
}

/// States, newest first.
pub(super) async fn history(
    plan: &Plan,
    at: &StateRef,
    query: &HistoryQuery,
    host: &dyn Host,
) -> Result<Vec<StateSnapshot>, GraphError> {
    let plan = inner(plan, &at.ns)?;
    let saved = host.list(&at.ns, query).await?;
    saved.iter().map(|saved| snapshot(plan, at, saved, false)).collect()
}

/// Adds the states of graphs inside tasks.
async fn fill(plan: &Plan, at: &StateRef, snapshot: &mut StateSnapshot, host: &dyn Host) -> Result<(), GraphError> {
    for task in &mut snapshot.tasks {
        let Some(place) = task.checkpoint.take() else { continue };
        let Some(inside) = plan.subgraph(&task.name, 0) else {
            continue;
        };
        let inside_at = StateRef {
            thread_id: at.thread_id,
            ns: place.checkpoint_ns.clone(),
            id: None,
        };
        let state = match host.load(&inside_at.ns, None).await? {
            Some(saved) => {
                let mut state = self::snapshot(inside, &inside_at, &saved, true)?;
                Box::pin(fill(inside, &inside_at, &mut state, host)).await?;
                state
            }
            None => empty(&inside_at),
        };
        task.state = Some(Box::new(state));
    }
    Ok(())
}

/// The state of a thread that has none.
fn empty(at: &StateRef) -> StateSnapshot {
    StateSnapshot {
        values: Value::Object(Map::new()),
        next: Vec::new(),
        tasks: Vec::new(),
        metadata: None,
        created_at: None,
        checkpoint: reference(at, None, None),
        parent_checkpoint: None,
        interrupts: Vec::new(),
        checkpoint_id: None,
        parent_checkpoint_id: None,
    }
}

/// The graph that keeps its state in a namespace.
pub(super) fn inner<'a>(plan: &'a Plan, ns: &str) -> Result<&'a Plan, GraphError> {
    let mut here = plan;
    let mut parts = ns.split('|').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        let node = part.split(':').next().unwrap_or_default();
        // `node:task|1` is the second graph of one task.
        let nth = parts.next_if(|next| next.bytes().all(|byte| byte.is_ascii_digit()));
        let nth = nth.and_then(|nth| nth.parse().ok()).unwrap_or(0);
        here = here
            .subgraph(node, nth)
            .ok_or_else(|| GraphError::new("ValueError", format!("Subgraph {ns} not found")))?;
    }
    Ok(here)
}

pub(super) fn pending(saved: &SavedCheckpoint) -> Vec<Pending> {
    let write = |write: &crate::Write| {
        let value = codec::loaded(&write.channel, write.value.clone());
        (write.task.clone(), write.channel.clone(), value)
    };
    saved.writes.iter().map(write).collect()
}

/// The step of a checkpoint.
pub(super) fn step(saved: &SavedCheckpoint) -> i64 {
    saved.metadata.get("step").and_then(Value::as_i64).unwrap_or(-1)
}

fn snapshot(plan: &Plan, at: &StateRef, saved: &SavedCheckpoint, live: bool) -> Result<StateSnapshot, GraphError> {
    let mut state = State::new(plan, &saved.checkpoint);
    let pending = pending(saved);
    let place = TaskSite {
        plan,
        ns: &at.ns,
        checkpoint_id: &saved.checkpoint.id,
        step: step(saved) + 1,
    };
    let mut tasks = superstep::next_tasks(&place, &state, None);
    let nobodys = null_writes(&pending);
    if !nobodys.is_empty() {
        superstep::apply(plan, &mut state, vec![superstep::input_writes(&nobodys)], false)?;
    }
    let statuses = superstep::statuses(&pending);
    if live {
        for task in &mut tasks {
            if let Some(status) = statuses.get(&task.id) {
                task.writes.extend(status.output.iter().cloned());
            }
        }
        let done: Vec<_> = tasks.iter().filter(|task| !task.writes.is_empty()).collect();
        if !done.is_empty() {
            let written = done.into_iter().map(|task| task.as_writes(plan)).collect();
            superstep::apply(plan, &mut state, written, false)?;
        }
    }
    let keys: Vec<String> = plan.keys().map(str::to_owned).collect();
    let next = tasks.iter().filter(|task| task.writes.is_empty());
    let next = next.map(|task| plan.nodes[task.node].name.clone()).collect();
    let tasks: Vec<TaskSnapshot> = tasks
        .iter()
        .map(|task| shown(plan, at, task, statuses.get(&task.id), live))
        .collect();
    let parents = saved.metadata.get("parents");
    Ok(StateSnapshot {
        values: state.read_value(plan, &keys),
        next,
        interrupts: tasks.iter().flat_map(|task| task.interrupts.iter().cloned()).collect(),
        tasks,
        metadata: Some(saved.metadata.clone()),
        created_at: Some(saved.checkpoint.ts.clone()),
        checkpoint: reference(at, Some(&saved.checkpoint.id), parents),
        parent_checkpoint: saved.parent.as_deref().map(|id| reference(at, Some(id), parents)),
        checkpoint_id: Some(saved.checkpoint.id.clone()),
        parent_checkpoint_id: saved.parent.clone(),
    })
}

fn shown(plan: &Plan, at: &StateRef, task: &Task, status: Option<&Status>, live: bool) -> TaskSnapshot {
    let nothing = Status::default();
    let status = status.unwrap_or(&nothing);
    let interrupts = if live { status.waiting() } else { &status.interrupts };
    let result = superstep::result(plan, &status.output);
    let name = plan.nodes[task.node].name.clone();
    TaskSnapshot {
        id: task.id.clone(),
        path: task.path(plan),
        error: status.error.clone(),
        interrupts: interrupts.iter().cloned().map(plain).collect(),
        checkpoint: plan.subgraph(&name, 0).map(|_| CheckpointRef {
            thread_id: at.thread_id,
            checkpoint_ns: task.ns.clone(),
            checkpoint_id: None,
            checkpoint_map: None,
        }),
        state: None,
        result: (!result.is_empty()).then(|| serde_json::json!(result)),
        name,
    }
}

fn reference(at: &StateRef, id: Option<&str>, parents: Option<&Value>) -> CheckpointRef {
    let parents = parents.and_then(Value::as_object).filter(|parents| !parents.is_empty());
    let map = parents.zip(id).map(|(parents, id)| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut map: BTreeMap<String, String> = parents.iter().map(|(ns, id)| (ns.clone(), text(id))).collect();
        map.insert(at.ns.clone(), id.to_owned());
        map
    });
    CheckpointRef {
        thread_id: at.thread_id,
        checkpoint_ns: at.ns.clone(),
        checkpoint_id: id.map(str::to_owned),
        checkpoint_map: map,
    }
}
