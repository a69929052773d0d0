//! The start of a run: on a new thread, with input on an existing one, with a command, after a crash, or from an
//! earlier checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Engine, GraphStop, empty_command, no_input, null_writes};
use crate::native::codec::{self, INTERRUPT, NULL_TASK, RESUME};
use crate::native::names::START;
use crate::native::plan::Plan;
use crate::native::run::{self, Run};
use crate::native::snapshot::pending;
use crate::native::superstep::{self, State, TaskSite, Writes};
use crate::{Checkpoint, Command, Durability, GraphError, Host, Save, SavedCheckpoint, Versions};

impl<'a> Engine<'a> {
    /// Opens the checkpoint a run starts from. `around` is set for a subgraph inside a task: the checkpoints of the
    /// outer graphs, and whether it continues where it stopped.
    pub(in crate::native) async fn open(
        run: &'a Run<'a>,
        plan: &'a Plan,
        ns: String,
        around: Option<(BTreeMap<String, String>, Option<bool>)>,
    ) -> Result<Self, GraphError> {
        let nested = around.is_some();
        let (parents, resuming) = around.unwrap_or_default();
        let addressed = address(run, &ns, nested);
        let (saved, superseded) = load(run, &ns, addressed.as_deref(), nested).await?;
        let addressed = addressed.is_some() && saved.as_ref().is_none_or(|(_, moved_on)| !moved_on);
        let saved = saved.map(|(saved, _)| saved);
        let checkpoint = saved.as_ref().map_or_else(empty, |saved| saved.checkpoint.clone());
        let step = saved
            .as_ref()
            .and_then(|saved| saved.metadata.get("step")?.as_i64())
            .unwrap_or(-2)
            + 1;
        Ok(Self {
            run,
            plan,
            namespace: if ns.is_empty() {
                Vec::new()
            } else {
                ns.split('|').map(str::to_owned).collect()
            },
            ns,
            nested,
            parents,
            resuming,
            state: State::new(plan, &checkpoint),
            stored_versions: checkpoint.channel_versions.clone(),
            updated: checkpoint
                .updated_channels
                .map(BTreeSet::from_iter)
                .filter(|updated| !updated.is_empty()),
            pending: saved.as_ref().map(pending).unwrap_or_default(),
            metadata: saved.as_ref().map_or_else(Map::new, |saved| saved.metadata.clone()),
            previous_saved: saved.as_ref().and_then(|saved| saved.parent.clone()),
            saved: saved.is_some().then(|| checkpoint.id.clone()),
            id: checkpoint.id,
            step,
            stop: step + run.limit + 1,
            tasks: Vec::new(),
            written_tasks: BTreeSet::new(),
            replaying: false,
            superseded,
            has_checkpoint_id: addressed,
            beyond_limit: false,
        })
    }

    /// Brings in the input or the command.
    pub(super) async fn begin(&mut self, input: Option<Value>) -> Result<(), GraphStop> {
        let own_before = self.run.made(&self.metadata);
        // A run that created a checkpoint has consumed its command: applying it again would apply it twice.
        let command = self
            .run
            .execution
            .command
            .as_ref()
            .filter(|_| !self.nested && !own_before);
        let known = !self.state.versions.is_empty();
        let resuming = known
            && match (self.nested, self.resuming) {
                (true, Some(resuming)) => resuming,
                (true, None) => input.is_none(),
                (false, _) => input.is_none() || self.run.execution.command.is_some() || own_before,
            };
        let answers = command.is_some_and(|command| command.resume.is_some());
        let travelling = self.has_checkpoint_id && !answers && !(self.nested && self.resuming == Some(true));
        self.replaying = travelling || self.superseded;
        if travelling {
            self.pending.retain(|(_, channel, _)| channel != RESUME);
        }
        let source = self.metadata.get("source").and_then(Value::as_str).unwrap_or_default();
        let forks = resuming && travelling && (!matches!(source, "update" | "fork") || self.superseded);
        let mut carried = Vec::new();
        if let Some(command) = command {
            carried = self.take_command(command, forks).await?;
        }
        let mut nobodys = null_writes(&self.pending);
        nobodys.extend(carried);
        let answer = nobodys
            .iter()
            .position(|(channel, _)| channel == RESUME)
            .map(|at| nobodys.remove(at));
        if let Some((_, answer)) = answer {
            self.run.set_answer(answer.into_value());
        }
        if !known && command.is_some() {
            // A command on a new thread: its update and targets count as input, in addition to the graph's start.
            nobodys.push((START.to_owned(), serde_json::json!({}).into()));
            self.take_input(nobodys).await?;
            self.resuming = Some(false);
            return Ok(());
        }
        if !nobodys.is_empty() {
            let more = superstep::apply(
                self.plan,
                &mut self.state,
                vec![superstep::input_writes(&nobodys)],
                true,
            )?;
            if let Some(updated) = &mut self.updated {
                updated.extend(more);
            }
        }
        match input {
            _ if resuming => self.resume(forks).await?,
            Some(input) => self.take_input(vec![(START.to_owned(), input.into())]).await?,
            None => return Err(no_input().into()),
        }
        if !self.nested {
            self.resuming = Some(resuming);
        }
        Ok(())
    }

    /// The writes of a command: saved without a task, or returned when the run starts a branch.
    async fn take_command(&mut self, command: &Command, forks: bool) -> Result<Writes, GraphError> {
        let by_name = run::resume_map(Some(command)).is_some();
        self.check_resume(command)?;
        let mut writes = run::command_writes(self.plan, command)?;
        if writes.is_empty() && !by_name {
            return Err(empty_command());
        }
        if forks {
            return Ok(writes);
        }
        if self.run.execution.command_saved {
            // Only the answer has a fixed slot and can be saved again. Existing writes without a task mean nothing: a
            // run that was stopped earlier may have left them.
            writes.retain(|(channel, _)| codec::is_mark(channel));
        }
        self.put_null_writes(writes).await?;
        Ok(Vec::new())
    }

    /// Refuses an ambiguous resume; in a strict run also one that matches no interrupt.
    fn check_resume(&self, command: &Command) -> Result<(), GraphError> {
        let Some(resume) = &command.resume else {
            return Ok(());
        };
        let waiting: BTreeSet<String> = superstep::statuses(&self.pending)
            .values()
            .flat_map(|status| status.waiting().to_vec())
            .filter_map(|interrupt| interrupt["id"].as_str().map(str::to_owned))
            .collect();
        // On an earlier checkpoint a finished task asks again, although its interrupt looks answered.
        let strict = self.run.execution.strict_resume && !self.superseded;
        let unknown = |message: &str| Err(GraphError::new("UnknownInterruptError", message));
        if let Some(answers) = run::resume_map(Some(command)) {
            return match answers.keys().find(|id| !waiting.contains(*id)) {
                Some(id) if strict => unknown(&format!("Unknown or already-consumed interrupt: {id}")),
                _ => Ok(()),
            };
        }
        if strict && resume.as_object().is_some_and(Map::is_empty) {
            return unknown("The resume map names no interrupt");
        }
        if waiting.len() > 1 {
            let class = if strict {
                "UnknownInterruptError"
            } else {
                "RuntimeError"
            };
            return Err(GraphError::new(
                class,
                "When there are multiple pending interrupts, you must specify the interrupt id when resuming. Docs: \
                 https://docs.langchain.com/oss/python/langgraph/interrupts#handling-multiple-interrupts.",
            ));
        }
        // An answer without an interrupt is fine: it continues from a node at which the run was to stop.
        Ok(())
    }

    async fn put_null_writes(&mut self, mut writes: Writes) -> Result<(), GraphError> {
        if writes.is_empty() {
            return Ok(());
        }
        // Regular writes are stored by position, marks are not: marks go last, so that positions do not change.
        writes.sort_by_key(|(channel, _)| codec::is_mark(channel));
        self.written_tasks.insert(NULL_TASK.to_owned());
        self.pending
            .retain(|(task, channel, _)| task != NULL_TASK || !codec::is_mark(channel));
        let of = |(channel, value)| (NULL_TASK.to_owned(), channel, value);
        self.pending.extend(writes.into_iter().map(of));
        if self.run.execution.durability == Durability::Exit || self.id.is_empty() {
            return Ok(());
        }
        let put = self.writes_to_save(NULL_TASK, String::new(), &null_writes(&self.pending));
        self.run.saver.push(Save::Writes(put)).await
    }

    /// Goes on from the checkpoint.
    async fn resume(&mut self, forks: bool) -> Result<(), GraphError> {
        let versions = self.state.versions.clone();
        self.state
            .seen
            .entry(INTERRUPT.to_owned())
            .or_default()
            .extend(versions);
        if forks {
            self.pending.retain(|(_, channel, _)| channel != INTERRUPT);
            self.put_checkpoint("fork").await?;
        }
        self.show_values();
        Ok(())
    }

    /// New input on the state: unfinished tasks are given up.
    async fn take_input(&mut self, input: Writes) -> Result<(), GraphError> {
        let place = TaskSite {
            plan: self.plan,
            ns: &self.ns,
            checkpoint_id: &self.id,
            step: self.step,
        };
        let given_up = superstep::next_tasks(&place, &self.state, self.updated.as_ref());
        let mut written: Vec<_> = given_up.iter().map(|task| task.as_writes(self.plan)).collect();
        written.push(superstep::input_writes(&input));
        self.updated = Some(superstep::apply(self.plan, &mut self.state, written, true)?);
        self.put_checkpoint("input").await
    }
}

/// The checkpoint a client named for this namespace.
fn address(run: &Run<'_>, ns: &str, nested: bool) -> Option<String> {
    let execution = run.execution;
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(id) = execution
        .configurable("checkpoint_map")
        .and_then(|map| map.get(ns))
        .and_then(text)
    {
        return Some(id);
    }
    let of = execution
        .configurable("checkpoint_ns")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if nested || !of.is_empty() {
        return None;
    }
    execution.configurable("checkpoint_id").and_then(text)
}

/// The checkpoint to start from, whether it is this run's own progress instead of the named one, and whether the thread
/// has moved past the named one.
async fn load(
    run: &Run<'_>,
    ns: &str,
    id: Option<&str>,
    nested: bool,
) -> Result<(Option<(SavedCheckpoint, bool)>, bool), GraphError> {
    let host: &dyn Host = run.host;
    let Some(id) = id else {
        return Ok((host.load(ns, None).await?.map(|saved| (saved, false)), false));
    };
    let latest = host.load(ns, None).await?;
    if latest.as_ref().is_some_and(|latest| latest.checkpoint.id == id) {
        return Ok((latest.map(|saved| (saved, false)), false));
    }
    // A run that is retried continues with the branch it started.
    if let Some(latest) = latest
        && !nested
        && run.execution.attempt > 1
        && run.made(&latest.metadata)
    {
        return Ok((Some((latest, true)), false));
    }
    let saved = host.load(ns, Some(id)).await?;
    if saved.is_none() && !nested {
        return Err(GraphError::new("ValueError", format!("Checkpoint {id} not found")));
    }
    Ok((saved.map(|saved| (saved, false)), true))
}

/// What a thread without a checkpoint starts from.
fn empty() -> Checkpoint {
    Checkpoint {
        v: super::FORMAT,
        id: String::new(),
        ts: String::new(),
        channel_values: BTreeMap::new(),
        channel_versions: Versions::new(),
        versions_seen: BTreeMap::new(),
        updated_channels: None,
    }
}
