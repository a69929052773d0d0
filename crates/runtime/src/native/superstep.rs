//! The rules of a superstep: which tasks run next, and how their writes apply.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::channel::{Channel, invalid};
use super::codec::{ERROR, INTERRUPT, NO_WRITES, NULL_TASK, RESUME};
use super::names::{END, START, TASKS};
use super::plan::{Body, Plan};
use crate::{Checkpoint, GraphError, Nodes, Shared, Versions, ids};

pub(super) const PULL: &str = "__pregel_pull";
pub(super) const PUSH: &str = "__pregel_push";
/// Counts as the name of who applies input.
pub(super) const INPUT: &str = "__input__";

/// Channels with their versions.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) channels: Vec<Channel>,
    pub(super) versions: Versions,
    pub(super) seen: BTreeMap<String, Versions>,
}

/// Channel and value.
pub(super) type Writes = Vec<(String, Shared)>;

/// A task of a superstep.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) id: String,
    pub(super) node: usize,
    pub(super) path: Path,
    pub(super) triggers: Vec<String>,
    pub(super) input: Input,
    /// Not empty once it is done.
    pub(super) writes: Writes,
    /// Namespace of what it runs: `parent|node:id`.
    pub(super) ns: String,
}

/// What made a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// A channel its node waits for.
    Pull,
    /// A packet.
    Push(usize),
}

impl Task {
    /// As clients see it.
    pub(super) fn path(&self, plan: &Plan) -> Vec<Value> {
        match self.path {
            Path::Pull => vec![Value::from(PULL), Value::from(plan.nodes[self.node].name.as_str())],
            Path::Push(at) => vec![Value::from(PUSH), Value::from(at), Value::from(false)],
        }
    }

    /// The sort key of tasks in a superstep, stored with their writes.
    pub(super) fn sort_key(&self, plan: &Plan) -> String {
        match self.path {
            Path::Pull => format!("~{PULL}, {}", plan.nodes[self.node].name),
            Path::Push(at) => format!("~{PUSH}, {at:010}, 0000000000"),
        }
    }
}

/// The input of a task. A state is shared between tasks, and only converted into one value on demand.
#[derive(Clone, Debug)]
pub(super) enum Input {
    State(Arc<StateInput>),
    Whole(Shared),
}

#[derive(Debug, Default)]
pub(super) struct StateInput {
    parts: Vec<(String, Shared)>,
    value: OnceLock<Value>,
}

impl Input {
    pub(super) fn value(&self) -> &Value {
        match self {
            Self::Whole(value) => value,
            Self::State(state) => state.value.get_or_init(|| {
                let parts = state
                    .parts
                    .iter()
                    .map(|(key, value)| (key.clone(), value.value().clone()));
                Value::Object(parts.collect())
            }),
        }
    }

    /// The values, without making one of them.
    pub(super) fn entries(&self) -> Vec<&Value> {
        match self {
            Self::Whole(value) => value.as_object().into_iter().flat_map(Map::values).collect(),
            Self::State(state) => state.parts.iter().map(|(_, value)| value.value()).collect(),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Self::Whole(value) => value.value().get(key),
            Self::State(state) => state
                .parts
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value.value()),
        }
    }
}

impl Deref for Input {
    type Target = Value;

    fn deref(&self) -> &Value {
        self.value()
    }
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Whole(value) => value.serialize(to),
            Self::State(state) => to.collect_map(state.parts.iter().map(|(key, value)| (key, value))),
        }
    }
}

impl State {
    pub(super) fn new(plan: &Plan, checkpoint: &Checkpoint) -> Self {
        let channel = |(name, sort): &(String, _)| {
            let saved = checkpoint.channel_values.get(name).cloned();
            let saved = saved.map(|saved| super::codec::loaded(name, saved));
            Channel::new(sort, saved.as_ref())
        };
        Self {
            channels: plan.channels.iter().map(channel).collect(),
            versions: checkpoint.channel_versions.clone(),
            seen: checkpoint.versions_seen.clone(),
        }
    }

    /// Values of these channels, of those that have one.
    pub(super) fn read(&self, plan: &Plan, keys: &[String]) -> BTreeMap<String, Shared> {
        keys.iter()
            .filter_map(|key| Some((key.clone(), self.channels[*plan.index.get(key)?].get()?.clone())))
            .collect()
    }

    pub(super) fn read_value(&self, plan: &Plan, keys: &[String]) -> Value {
        let values = self.read(plan, keys);
        Value::Object(
            values
                .into_iter()
                .map(|(key, value)| (key, value.into_value()))
                .collect(),
        )
    }

    /// The channel values of a checkpoint: channels that were ever written.
    pub(super) fn values(&self, plan: &Plan) -> BTreeMap<String, Shared> {
        plan.channels
            .iter()
            .zip(&self.channels)
            .filter(|((name, _), _)| self.versions.contains_key(name))
            .filter_map(|((name, _), channel)| {
                let value = channel.checkpoint()?;
                Some((name.clone(), super::codec::saved_value(name, &value)))
            })
            .collect()
    }

    fn packets(&self, plan: &Plan) -> Vec<Value> {
        let packets = self.channels[plan.index[TASKS]].get().map(Shared::value);
        packets.and_then(Value::as_array).cloned().unwrap_or_default()
    }
}

/// Where tasks are made.
pub(super) struct TaskSite<'a> {
    pub(super) plan: &'a Plan,
    pub(super) ns: &'a str,
    pub(super) checkpoint_id: &'a str,
    pub(super) step: i64,
}

/// The tasks of the next superstep. `updated` are the channels that the last one changed, if known.
pub(super) fn next_tasks(place: &TaskSite<'_>, state: &State, updated: Option<&BTreeSet<String>>) -> Vec<Task> {
    let TaskSite {
        plan,
        ns,
        checkpoint_id,
        step,
    } = *place;
    let step_text = step.to_string();
    let outer = |name: &str| match ns.is_empty() {
        true => name.to_owned(),
        false => format!("{ns}|{name}"),
    };
    let mut tasks = Vec::new();
    for (at, packet) in state.packets(plan).into_iter().enumerate() {
        let name = packet["node"].as_str().unwrap_or_default().to_owned();
        let Some(&node) = plan.by_name.get(&name) else {
            tracing::warn!(node = name, "a packet for an unknown node is ignored");
            continue;
        };
        let here = outer(&name);
        let id = ids::task(checkpoint_id, &[&here, &step_text, &name, PUSH, &at.to_string()]);
        tasks.push(Task {
            ns: format!("{here}:{id}"),
            id,
            node,
            path: Path::Push(at),
            triggers: vec![PUSH.to_owned()],
            input: Input::Whole(packet.get("arg").cloned().unwrap_or_default().into()),
            writes: Vec::new(),
        });
    }
    let mut shared: Option<Arc<StateInput>> = None;
    for node in candidates(plan, state, updated) {
        let this = &plan.nodes[node];
        let seen = state.seen.get(&this.name);
        let woken = this.triggers.iter().any(|trigger| {
            let version = state.versions.get(trigger);
            state.channels[plan.index[trigger]].is_available() && seen.is_none_or(|seen| version > seen.get(trigger))
        });
        if !woken {
            continue;
        }
        let here = outer(&this.name);
        let mut parts = vec![here.as_str(), &step_text, &this.name, PULL];
        parts.extend(this.triggers.iter().map(String::as_str));
        let id = ids::task(checkpoint_id, &parts);
        let input = match this.body {
            Body::Start => match state.channels[plan.index[START]].get() {
                Some(input) => Input::Whole(input.clone()),
                None => continue,
            },
            _ => Input::State(Arc::clone(shared.get_or_insert_with(|| {
                let parts = plan.channels[..plan.state]
                    .iter()
                    .zip(&state.channels)
                    .filter_map(|((name, _), channel)| Some((name.clone(), channel.get()?.clone())))
                    .collect();
                Arc::new(StateInput {
                    parts,
                    value: OnceLock::new(),
                })
            }))),
        };
        tasks.push(Task {
            ns: format!("{here}:{id}"),
            id,
            node,
            path: Path::Pull,
            triggers: this.triggers.clone(),
            input,
            writes: Vec::new(),
        });
    }
    tasks
}

/// Nodes that may be woken, by name where channels say which.
fn candidates(plan: &Plan, state: &State, updated: Option<&BTreeSet<String>>) -> Vec<usize> {
    match updated.filter(|updated| !updated.is_empty()) {
        Some(updated) => {
            let woken: BTreeSet<(&str, usize)> = updated
                .iter()
                .filter_map(|channel| plan.wakes.get(channel))
                .flatten()
                .map(|&node| (plan.nodes[node].name.as_str(), node))
                .collect();
            woken.into_iter().map(|(_, node)| node).collect()
        }
        None if state.versions.is_empty() => Vec::new(),
        None => (0..plan.nodes.len()).collect(),
    }
}

/// A caller's writes.
pub(super) struct TaskWrites<'a> {
    pub(super) name: &'a str,
    /// Orders those of one superstep.
    pub(super) key: String,
    pub(super) triggers: &'a [String],
    pub(super) writes: &'a [(String, Shared)],
}

impl Task {
    pub(super) fn as_writes<'a>(&'a self, plan: &'a Plan) -> TaskWrites<'a> {
        TaskWrites {
            name: &plan.nodes[self.node].name,
            key: self.sort_key(plan),
            triggers: &self.triggers,
            writes: &self.writes,
        }
    }
}

/// Writes of no task: input, or what a command wrote.
pub(super) fn input_writes(writes: &[(String, Shared)]) -> TaskWrites<'_> {
    TaskWrites {
        name: INPUT,
        key: String::new(),
        triggers: &[],
        writes,
    }
}

/// Applies the writes of a superstep. Returns the changed channels that have a value. Without `count`, versions stay.
pub(super) fn apply(
    plan: &Plan,
    state: &mut State,
    mut tasks: Vec<TaskWrites<'_>>,
    count: bool,
) -> Result<BTreeSet<String>, GraphError> {
    tasks.sort_by(|a, b| a.key.cmp(&b.key));
    let steps = tasks.iter().any(|task| !task.triggers.is_empty());
    for task in &tasks {
        let seen = state.seen.entry(task.name.to_owned()).or_default();
        for trigger in task.triggers {
            if let Some(version) = state.versions.get(trigger) {
                seen.insert(trigger.clone(), version.clone());
            }
        }
    }
    let next = count.then(|| ids::next_version(state.versions.values().max().map(String::as_str)));
    let bump = |versions: &mut Versions, channel: &str| {
        if let Some(next) = &next {
            versions.insert(channel.to_owned(), next.clone());
        }
    };
    let read: BTreeSet<&String> = tasks.iter().flat_map(|task| task.triggers).collect();
    for trigger in read {
        if let Some(&at) = plan.index.get(trigger)
            && state.channels[at].consume()
        {
            bump(&mut state.versions, trigger);
        }
    }
    let mut by_channel: HashMap<usize, Vec<Shared>> = HashMap::new();
    for (channel, value) in tasks.iter().flat_map(|task| task.writes) {
        match plan.index.get(channel) {
            Some(&at) => by_channel.entry(at).or_default().push(value.clone()),
            None if matches!(channel.as_str(), ERROR | INTERRUPT | RESUME | NO_WRITES) => {}
            None => tracing::warn!(channel, "a write to an unknown channel is ignored"),
        }
    }
    let mut updated = BTreeSet::new();
    let mut written: Vec<usize> = by_channel.keys().copied().collect();
    written.sort_unstable();
    for at in written {
        let name = &plan.channels[at].0;
        let values = by_channel.remove(&at).unwrap_or_default();
        if state.channels[at].update(name, values)? {
            bump(&mut state.versions, name);
            if count && state.channels[at].is_available() {
                updated.insert(name.clone());
            }
        }
    }
    if steps {
        for (at, (name, _)) in plan.channels.iter().enumerate() {
            let channel = &mut state.channels[at];
            if !channel.is_available() || updated.contains(name) {
                continue;
            }
            if channel.update(name, Vec::new())? {
                bump(&mut state.versions, name);
                if count && channel.is_available() {
                    updated.insert(name.clone());
                }
            }
        }
    }
    Ok(updated)
}

/// Whether the graph stops at one of `nodes` among `tasks`: only if a channel changed since the last stop.
pub(super) fn stops(state: &State, nodes: &Nodes, plan: &Plan, tasks: &[Task]) -> bool {
    if nodes.is_empty() {
        return false;
    }
    let nothing = Versions::new();
    let seen = state.seen.get(INTERRUPT).unwrap_or(&nothing);
    let changed = state
        .versions
        .iter()
        .any(|(channel, version)| Some(version) > seen.get(channel));
    let meant = |task: &Task| {
        let node = &plan.nodes[task.node];
        !matches!(node.body, Body::Start) && nodes.contains(&node.name)
    };
    changed && tasks.iter().any(meant)
}

/// What is known of a task from its writes on the checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    /// Not empty once it finished.
    pub(super) output: Writes,
    pub(super) interrupts: Vec<Value>,
    pub(super) error: Option<String>,
}

impl Status {
    /// Interrupts that wait for an answer.
    pub(super) fn waiting(&self) -> &[Value] {
        if self.output.is_empty() { &self.interrupts } else { &[] }
    }
}

/// A pending write on a checkpoint: task, channel, value.
pub(super) type Pending = (String, String, Shared);

/// Status of every task that wrote.
pub(super) fn statuses(pending: &[Pending]) -> BTreeMap<String, Status> {
    let mut found: BTreeMap<String, Status> = BTreeMap::new();
    for (task, channel, value) in pending.iter().filter(|(task, ..)| task != NULL_TASK) {
        let status = found.entry(task.clone()).or_default();
        match channel.as_str() {
            INTERRUPT => match value.value() {
                Value::Array(list) => status.interrupts.extend(list.iter().cloned()),
                one => status.interrupts.push(one.clone()),
            },
            ERROR => status.error = Some(super::template::as_text(value)),
            RESUME => {}
            _ => status.output.push((channel.clone(), value.clone())),
        }
    }
    found
}

/// A task's writes to the state, as shown in results: several to one channel become `{"$writes": […]}`.
pub(super) fn result<'a>(
    plan: &Plan,
    writes: impl IntoIterator<Item = &'a (String, Shared)>,
) -> BTreeMap<String, Shared> {
    let mut found: BTreeMap<String, Shared> = BTreeMap::new();
    for (channel, value) in writes {
        if plan.sort(channel).is_none() {
            continue;
        }
        match found.remove(channel) {
            None => found.insert(channel.clone(), value.clone()),
            Some(held) => {
                let mut list = match held.get("$writes").and_then(Value::as_array) {
                    Some(list) => list.clone(),
                    None => vec![held.into_value()],
                };
                list.push(value.value().clone());
                found.insert(channel.clone(), serde_json::json!({"$writes": list}).into())
            }
        };
    }
    found
}

/// The writes of a node's output: its update, its explicit targets, and its edges.
pub(super) fn node_writes(
    plan: &Plan,
    state: &State,
    node: usize,
    update: Value,
    goto: &[crate::Goto],
) -> Result<Writes, GraphError> {
    let this = &plan.nodes[node];
    let mut writes = Writes::new();
    let fields = match update {
        Value::Null => Map::new(),
        Value::Object(fields) => fields,
        other => {
            return Err(invalid(format!(
                "Expected dict, got {}\nFor troubleshooting, visit: \
                 https://docs.langchain.com/oss/python/langgraph/errors/INVALID_GRAPH_NODE_RETURN_VALUE",
                super::messages::kind(&other)
            )));
        }
    };
    for (key, value) in fields {
        if let Some(sort) = plan.sort(&key) {
            writes.push((key, sort.normalized(value)?.into()));
        }
    }
    for target in goto {
        writes.extend(goto_write(plan, target)?);
    }
    writes.extend(this.signals.iter().cloned());
    if !this.branches.is_empty() {
        let view = view(plan, state, &writes)?;
        for branch in &this.branches {
            super::branch::decide(plan, branch, &view, &mut writes)?;
        }
    }
    Ok(writes)
}

/// The write that wakes a target; none for the end.
pub(super) fn goto_write(plan: &Plan, target: &crate::Goto) -> Result<Option<(String, Shared)>, GraphError> {
    let known = |node: &str| match plan.by_name.contains_key(node) && node != START {
        true => Ok(()),
        false => Err(invalid(format!("Branch to unknown node: {node}"))),
    };
    match target {
        crate::Goto::Node(node) if node == END => Ok(None),
        crate::Goto::Node(node) => {
            known(node)?;
            Ok(Some((format!("branch:to:{node}"), Value::Null.into())))
        }
        crate::Goto::Send(packet) => {
            known(&packet.node)?;
            let value = super::codec::packet(&packet.node, packet.input.clone());
            Ok(Some((TASKS.to_owned(), value.into())))
        }
    }
}

/// The state including the node's own writes, on which its edges decide.
fn view(plan: &Plan, state: &State, writes: &[(String, Shared)]) -> Result<Value, GraphError> {
    let mut view = Map::new();
    for ((name, sort), channel) in plan.channels[..plan.state].iter().zip(&state.channels) {
        let mut value = channel.get().map(|value| value.value().clone());
        for (_, write) in writes.iter().filter(|(channel, _)| channel == name) {
            value = Some(sort.preview(value.as_ref(), write)?);
        }
        if let Some(value) = value {
            view.insert(name.clone(), value);
        }
    }
    Ok(Value::Object(view))
}
