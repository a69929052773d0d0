//! How a run begins: on a new thread, with input on an old one, with a command, again after a crash, or from an earlier
//! checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Engine, Halt, empty_command, no_input, null_writes};
use crate::native::codec::{self, INTERRUPT, NULL_TASK, RESUME};
use crate::native::plan::{Plan, START};
use crate::native::run::{self, Run};
use crate::native::snapshot::pending;
use crate::native::superstep::{self, Place, State, Writes};
use crate::{Checkpoint, Command, Durability, GraphError, Host, Save, Saved, Versions};

impl<'a> Engine<'a> {
    /// At the checkpoint a run starts from. `around` is given for a graph inside of a task: checkpoints of the graphs
    /// around it, and whether it goes on where it stopped.
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
            stored: checkpoint.channel_versions.clone(),
            updated: checkpoint
                .updated_channels
                .map(BTreeSet::from_iter)
                .filter(|updated| !updated.is_empty()),
            pending: saved.as_ref().map(pending).unwrap_or_default(),
            metadata: saved.as_ref().map_or_else(Map::new, |saved| saved.metadata.clone()),
            before: saved.as_ref().and_then(|saved| saved.parent.clone()),
            saved: saved.is_some().then(|| checkpoint.id.clone()),
            id: checkpoint.id,
            step,
            stop: step + run.limit + 1,
            tasks: Vec::new(),
            wrote: BTreeSet::new(),
            replaying: false,
            superseded,
            addressed,
            beyond_limit: false,
        })
    }

    /// Brings in the input or the command.
    pub(super) async fn begin(&mut self, input: Option<Value>) -> Result<(), Halt> {
        let own_before = self.run.made(&self.metadata);
        // A run that made a checkpoint has used its command up: trying it again would apply it twice.
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
        let travelling = self.addressed && !answers && !(self.nested && self.resuming == Some(true));
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
            self.run.offer_answer(answer.into_value());
        }
        if !known && command.is_some() {
            // A command on a new thread: its update and its targets count as input, beside where the graph starts.
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
            _ if resuming => self.go_on(forks).await?,
            Some(input) => self.take_input(vec![(START.to_owned(), input.into())]).await?,
            None => return Err(no_input().into()),
        }
        if !self.nested {
            self.resuming = Some(resuming);
        }
        Ok(())
    }

    /// A command's writes: saved as nobody's, or handed back when the run starts a branch of its own.
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
            // Only the answer has one slot, so only that may be saved again. That writes of nobody wait here says nothing:
            // a run that was stopped before may have left them.
            writes.retain(|(channel, _)| codec::is_mark(channel));
        }
        self.put_null_writes(writes).await?;
        Ok(Vec::new())
    }

    /// Refuses a resume of which cannot be told whom it answers; a strict run also one that answers nobody.
    fn check_resume(&self, command: &Command) -> Result<(), GraphError> {
        let Some(resume) = &command.resume else {
            return Ok(());
        };
        let waiting: BTreeSet<String> = superstep::statuses(&self.pending)
            .values()
            .flat_map(|status| status.waiting().to_vec())
            .filter_map(|interrupt| interrupt["id"].as_str().map(str::to_owned))
            .collect();
        // On an earlier checkpoint a task that is over asks again, though its interrupt looks answered.
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
        // One answer where nobody asks is fine: it goes on from a node the run was to stop at.
        Ok(())
    }

    async fn put_null_writes(&mut self, mut writes: Writes) -> Result<(), GraphError> {
        if writes.is_empty() {
            return Ok(());
        }
        // Regular writes are kept by position, marks are not: those go last, so that no position moves.
        writes.sort_by_key(|(channel, _)| codec::is_mark(channel));
        self.wrote.insert(NULL_TASK.to_owned());
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
    async fn go_on(&mut self, forks: bool) -> Result<(), GraphError> {
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
        let place = Place {
            plan: self.plan,
            ns: &self.ns,
            checkpoint_id: &self.id,
            step: self.step,
        };
        let given_up = superstep::next_tasks(&place, &self.state, self.updated.as_ref());
        let mut written: Vec<_> = given_up.iter().map(|task| task.written(self.plan)).collect();
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

/// The checkpoint to start from, whether it is this run's own work in place of the named one, and whether the thread
/// has moved past the one that was named.
async fn load(
    run: &Run<'_>,
    ns: &str,
    id: Option<&str>,
    nested: bool,
) -> Result<(Option<(Saved, bool)>, bool), GraphError> {
    let host: &dyn Host = run.host;
    let Some(id) = id else {
        return Ok((host.load(ns, None).await?.map(|saved| (saved, false)), false));
    };
    let latest = host.load(ns, None).await?;
    if latest.as_ref().is_some_and(|latest| latest.checkpoint.id == id) {
        return Ok((latest.map(|saved| (saved, false)), false));
    }
    // A run that is tried again goes on with the branch it started.
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
