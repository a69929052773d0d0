//! Changes of the state from outside.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use towpath_domain::Clock;

use super::channel::invalid;
use super::engine::{changed, null_writes};
use super::names::{END, START};
use super::plan::Plan;
use super::sink::rfc3339;
use super::snapshot::{inner, pending, step};
use super::superstep::{self, INPUT, State, TaskSite, TaskWrites, Writes};
use super::{codec, run};
use crate::{
    Checkpoint, CheckpointRef, GraphError, Host, Put, PutWrites, SavedCheckpoint, Shared, StateRef, Update, Versions,
    ids,
};

/// Applies supersteps of updates; each makes a checkpoint.
pub(super) async fn update_state(
    plan: &Plan,
    clock: &Clock,
    at: &StateRef,
    supersteps: &[Vec<Update>],
    metadata: &Map<String, Value>,
    host: &dyn Host,
) -> Result<CheckpointRef, GraphError> {
    if supersteps.is_empty() {
        return Err(GraphError::new("ValueError", "No supersteps provided"));
    }
    let plan = inner(plan, &at.ns)?;
    let mut id = at.id.clone();
    for updates in supersteps {
        let saved = host.load(&at.ns, id.as_deref()).await?;
        if saved.is_none() && id.is_some() {
            return Err(GraphError::new("ValueError", "the checkpoint to update was not found"));
        }
        // A fork of an older checkpoint must still sort after everything in the thread.
        let above = match &id {
            Some(_) => host.load(&at.ns, None).await?.map(|latest| latest.checkpoint.id),
            None => saved.as_ref().map(|saved| saved.checkpoint.id.clone()),
        };
        let step = UpdateStep {
            plan,
            clock,
            at,
            metadata,
            host,
            parent_id: above,
        };
        id = Some(step.perform(saved, updates).await?);
    }
    Ok(CheckpointRef {
        thread_id: at.thread_id,
        checkpoint_ns: at.ns.clone(),
        checkpoint_id: id,
        checkpoint_map: None,
    })
}

struct UpdateStep<'a> {
    plan: &'a Plan,
    clock: &'a Clock,
    at: &'a StateRef,
    metadata: &'a Map<String, Value>,
    host: &'a dyn Host,
    parent_id: Option<String>,
}

/// What becomes of a superstep.
struct NextCheckpoint {
    source: &'static str,
    step: i64,
    /// What the id carries.
    sequence: i64,
}

impl UpdateStep<'_> {
    async fn perform(&self, saved: Option<SavedCheckpoint>, updates: &[Update]) -> Result<String, GraphError> {
        let Some(first) = updates.first() else {
            return Err(GraphError::new("ValueError", "No updates provided"));
        };
        let state = match &saved {
            Some(saved) => State::new(self.plan, &saved.checkpoint),
            None => State::new(self.plan, &empty()),
        };
        match first.as_node.as_deref() {
            Some(END) if first.values.is_null() && first.command.is_none() => {
                only(updates, "Cannot apply multiple updates when clearing state")?;
                self.clear(saved, state).await
            }
            Some(INPUT) => {
                only(updates, "Cannot apply multiple updates when updating as input")?;
                self.as_input(saved, state, &first.values).await
            }
            Some("__copy__") => {
                only(updates, "Cannot copy checkpoint with multiple updates")?;
                self.copy(saved).await
            }
            _ => self.as_nodes(saved, state, updates).await,
        }
    }

    /// Gives up what would run next.
    async fn clear(&self, saved: Option<SavedCheckpoint>, mut state: State) -> Result<String, GraphError> {
        if let Some(saved) = &saved {
            let mut tasks = self.tasks(saved, &state);
            let pending = pending(saved);
            let nobodys = null_writes(&pending);
            if !nobodys.is_empty() {
                superstep::apply(self.plan, &mut state, vec![superstep::input_writes(&nobodys)], true)?;
            }
            let mut statuses = superstep::statuses(&pending);
            for task in &mut tasks {
                task.writes = statuses
                    .remove(&task.id)
                    .map(|status| status.output)
                    .unwrap_or_default();
            }
            let written = tasks.iter().map(|task| task.as_writes(self.plan)).collect();
            superstep::apply(self.plan, &mut state, written, true)?;
        }
        let step = saved.as_ref().map_or(-1, step);
        let made = NextCheckpoint {
            source: "update",
            step: step + 1,
            sequence: step,
        };
        self.put(saved.as_ref(), &state, made).await
    }

    async fn as_input(
        &self,
        saved: Option<SavedCheckpoint>,
        mut state: State,
        values: &Value,
    ) -> Result<String, GraphError> {
        if values.is_null() {
            return Err(invalid(format!("Received no input writes for {START}")));
        }
        let input = vec![(START.to_owned(), Shared::from(values.clone()))];
        superstep::apply(self.plan, &mut state, vec![superstep::input_writes(&input)], true)?;
        let step = saved.as_ref().map_or(-1, |saved| step(saved) + 1);
        let made = NextCheckpoint {
            source: "input",
            step,
            sequence: step,
        };
        self.put(saved.as_ref(), &state, made).await
    }

    /// The same state once more, beside the checkpoint it is of.
    async fn copy(&self, saved: Option<SavedCheckpoint>) -> Result<String, GraphError> {
        let Some(saved) = saved else {
            return Err(invalid("Cannot copy a non-existent checkpoint".to_owned()));
        };
        let step = step(&saved);
        let mut checkpoint = saved.checkpoint;
        checkpoint.id = self.id(step);
        checkpoint.ts = rfc3339(self.clock.now());
        checkpoint.updated_channels = None;
        let id = checkpoint.id.clone();
        let parents = saved.metadata.get("parents").cloned().unwrap_or_else(|| json!({}));
        let put = Put {
            ns: self.at.ns.clone(),
            checkpoint,
            metadata: self.metadata("fork", step + 1, parents),
            parent: saved.parent,
            changed: Vec::new(),
        };
        self.host.save(put).await?;
        Ok(id)
    }

    async fn as_nodes(
        &self,
        saved: Option<SavedCheckpoint>,
        mut state: State,
        updates: &[Update],
    ) -> Result<String, GraphError> {
        // Results are shown with the tasks they stand for.
        let mut prepared: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        if let Some(saved) = &saved {
            for task in self.tasks(saved, &state).into_iter().rev() {
                prepared.entry(task.node).or_default().push(task.id);
            }
        }
        let trigger = vec![codec::INTERRUPT.to_owned()];
        let mut made: Vec<(usize, String, Writes)> = Vec::new();
        for (at, update) in updates.iter().enumerate() {
            let node = self.node(update, updates.len(), &state)?;
            let (values, goto) = match &update.command {
                Some(command) => {
                    let mut values = command.update.clone().unwrap_or_default();
                    if let (Value::Object(values), Value::Object(more)) = (&mut values, &update.values) {
                        values.extend(more.clone());
                    }
                    (
                        if values.is_null() {
                            update.values.clone()
                        } else {
                            values
                        },
                        command.goto.as_slice(),
                    )
                }
                None => (update.values.clone(), [].as_slice()),
            };
            let writes = superstep::node_writes(self.plan, &state, node, values, goto)?;
            let task = prepared.get_mut(&node).and_then(Vec::pop);
            let id = saved
                .as_ref()
                .map(|saved| saved.checkpoint.id.as_str())
                .unwrap_or_default();
            let task = task.unwrap_or_else(|| ids::task(id, &[codec::INTERRUPT, &at.to_string()]));
            made.push((node, task, writes));
        }
        if let Some(saved) = &saved {
            for (_, task, writes) in made.iter().filter(|(.., writes)| !writes.is_empty()) {
                let writes = writes.iter().enumerate().map(|(at, (channel, value))| {
                    let value = codec::saved_write(channel, value);
                    (codec::index(channel, at), channel.clone(), value)
                });
                let put = PutWrites {
                    ns: self.at.ns.clone(),
                    checkpoint_id: saved.checkpoint.id.clone(),
                    task: task.clone(),
                    path: String::new(),
                    writes: writes.collect(),
                };
                self.host.save_writes(put).await?;
            }
        }
        let written = made.iter().enumerate().map(|(at, (node, _, writes))| TaskWrites {
            name: &self.plan.nodes[*node].name,
            key: format!("~{}, {at:010}", codec::INTERRUPT),
            triggers: &trigger,
            writes,
        });
        superstep::apply(self.plan, &mut state, written.collect(), true)?;
        let step = saved.as_ref().map_or(-1, step);
        let made = NextCheckpoint {
            source: "update",
            step: step + 1,
            sequence: step + 1,
        };
        self.put(saved.as_ref(), &state, made).await
    }

    /// The node an update counts as.
    fn node(&self, update: &Update, of: usize, state: &State) -> Result<usize, GraphError> {
        let name = match &update.as_node {
            Some(name) => name.clone(),
            None if of > 1 => {
                return Err(invalid("as_node is required when applying multiple updates".to_owned()));
            }
            None => self
                .last_node(state)
                .ok_or_else(|| invalid("Ambiguous update, specify as_node".to_owned()))?,
        };
        let found = self.plan.by_name.get(&name).copied();
        found.ok_or_else(|| invalid(format!("Node {name} does not exist")))
    }

    /// The node that changed the state last, when it is one.
    fn last_node(&self, state: &State) -> Option<String> {
        if state.seen.values().all(BTreeMap::is_empty) {
            return Some(START.to_owned());
        }
        let mut seen: Vec<(&String, &String)> = state
            .seen
            .iter()
            .filter(|(node, _)| self.plan.by_name.contains_key(*node))
            .flat_map(|(node, versions)| versions.values().map(move |version| (version, node)))
            .collect();
        seen.sort();
        match seen.as_slice() {
            [.., (before, _), (last, _)] if before == last => None,
            [.., (_, node)] => Some((*node).clone()),
            [] => None,
        }
    }

    fn tasks(&self, saved: &SavedCheckpoint, state: &State) -> Vec<superstep::Task> {
        let place = TaskSite {
            plan: self.plan,
            ns: &self.at.ns,
            checkpoint_id: &saved.checkpoint.id,
            step: step(saved) + 1,
        };
        superstep::next_tasks(&place, state, None)
    }

    fn id(&self, sequence: i64) -> String {
        ids::checkpoint(self.clock.now(), sequence, self.parent_id.as_deref())
    }

    fn metadata(&self, source: &str, step: i64, parents: Value) -> Map<String, Value> {
        let mut metadata = Map::from_iter([
            ("source".to_owned(), Value::from(source)),
            ("step".to_owned(), Value::from(step)),
            ("parents".to_owned(), parents),
        ]);
        run::add_scalars(&mut metadata, self.metadata);
        metadata
    }

    async fn put(
        &self,
        saved: Option<&SavedCheckpoint>,
        state: &State,
        made: NextCheckpoint,
    ) -> Result<String, GraphError> {
        let nothing = Versions::new();
        let stored = saved.map_or(&nothing, |saved| &saved.checkpoint.channel_versions);
        let parents = saved.and_then(|saved| saved.metadata.get("parents").cloned());
        let id = self.id(made.sequence);
        let put = Put {
            ns: self.at.ns.clone(),
            changed: changed(stored, &state.versions),
            checkpoint: Checkpoint {
                id: id.clone(),
                ts: rfc3339(self.clock.now()),
                channel_values: state.values(self.plan),
                channel_versions: state.versions.clone(),
                versions_seen: state.seen.clone(),
                ..empty()
            },
            metadata: self.metadata(made.source, made.step, parents.unwrap_or_else(|| json!({}))),
            parent: saved.map(|saved| saved.checkpoint.id.clone()),
        };
        self.host.save(put).await?;
        Ok(id)
    }
}

fn only(updates: &[Update], otherwise: &str) -> Result<(), GraphError> {
    match updates.len() {
        1 => Ok(()),
        _ => Err(invalid(otherwise.to_owned())),
    }
}

fn empty() -> Checkpoint {
    Checkpoint {
        v: 4,
        id: String::new(),
        ts: String::new(),
        channel_values: BTreeMap::new(),
        channel_versions: Versions::new(),
        versions_seen: BTreeMap::new(),
        updated_channels: None,
    }
}
