//! The superstep loop of one graph in one namespace of a thread.

mod begin;
mod stream_events;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Map, Value, json};

use super::channel::invalid;
use super::codec::{self, ERROR, INTERRUPT, NO_WRITES, NULL_TASK, RESUME};
use super::job::{InterruptAnswers, NodeOutput, NodeStop, TaskContext, interrupt_id};
use super::plan::{Body, Plan};
use super::run::Run;
use super::sink::rfc3339;
use super::superstep::{self, Pending, State, Task, TaskSite, Writes};
use crate::{Checkpoint, Durability, GraphError, Nodes, Put, PutWrites, Save, Shared, StreamMode, Versions, ids};

/// Version of the checkpoint format.
const FORMAT: u32 = 4;

/// A graph in the middle of a run.
pub(super) struct Engine<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) plan: &'a Plan,
    pub(super) ns: String,
    /// The namespace's parts.
    namespace: Vec<String>,
    nested: bool,
    /// Checkpoints of the graphs around it, by namespace.
    parents: BTreeMap<String, String>,
    /// Whether subgraphs continue where they stopped, during this first superstep.
    resuming: Option<bool>,
    pub(super) state: State,
    pub(super) metadata: Map<String, Value>,
    pub(super) pending: Vec<Pending>,
    stored_versions: Versions,
    /// The checkpoint the graph is at, saved or not.
    pub(super) id: String,
    /// The last one that is saved.
    pub(super) saved: Option<String>,
    /// The one before that.
    previous_saved: Option<String>,
    step: i64,
    stop: i64,
    pub(super) tasks: Vec<Task>,
    updated: Option<BTreeSet<String>>,
    /// Tasks that wrote in this run, for what is saved at the exit.
    written_tasks: BTreeSet<String>,
    /// Writes of earlier runs are not reused: everything runs again.
    replaying: bool,
    /// A checkpoint was named, and the thread has moved past it.
    superseded: bool,
    has_checkpoint_id: bool,
    beyond_limit: bool,
}

/// Why a graph stopped.
#[derive(Debug)]
pub(super) enum GraphStop {
    /// Interrupts that wait; none at a stop before or after a node.
    Interrupt(Vec<Value>),
    Error(GraphError),
}

impl From<GraphError> for GraphStop {
    fn from(error: GraphError) -> Self {
        Self::Error(error)
    }
}

impl From<GraphStop> for NodeStop {
    fn from(halt: GraphStop) -> Self {
        match halt {
            GraphStop::Interrupt(waiting) => Self::Interrupt(waiting),
            GraphStop::Error(error) => Self::Error(error),
        }
    }
}

/// How a task ended.
enum TaskResult {
    Done(NodeOutput),
    Interrupt(Vec<Value>),
    Error(GraphError),
}

impl Engine<'_> {
    /// Runs until the end, a stop, or an error; in every case saves what the run's durability requires.
    pub(super) async fn run_to_end(&mut self, input: Option<Value>) -> Result<(), GraphStop> {
        let ended = self.steps(input).await;
        let lost = matches!(&ended, Err(GraphStop::Error(error)) if error.retry && !error.is_cancelled());
        if self.run.execution.durability == Durability::Exit && !lost && (!self.nested || ended.is_err()) {
            self.save_at_exit().await?;
        }
        ended
    }

    async fn steps(&mut self, input: Option<Value>) -> Result<(), GraphStop> {
        self.begin(input).await?;
        while self.tick().await? {
            self.perform().await?;
            self.after_tick().await?;
            tokio::task::coop::consume_budget().await;
        }
        if self.beyond_limit {
            let limit = self.run.limit;
            return Err(GraphError::new(
                "GraphRecursionError",
                format!(
                    "Recursion limit of {limit} reached without hitting a stop condition. You can increase the limit by \
                     setting the `recursion_limit` config key.\nFor troubleshooting, visit: \
                     https://docs.langchain.com/oss/python/langgraph/errors/GRAPH_RECURSION_LIMIT"
                ),
            )
            .into());
        }
        Ok(())
    }

    /// Prepares the next superstep. Returns whether there is one.
    async fn tick(&mut self) -> Result<bool, GraphStop> {
        self.prepare();
        if self.step > self.stop {
            self.beyond_limit = true;
            return Ok(false);
        }
        if self.tasks.is_empty() {
            return Ok(false);
        }
        if !self.replaying && !self.pending.is_empty() {
            let mut statuses = superstep::statuses(&self.pending);
            for task in &mut self.tasks {
                if let Some(status) = statuses.remove(&task.id) {
                    task.writes.extend(status.output);
                }
            }
        }
        if superstep::stops(&self.state, self.stop_nodes(true), self.plan, &self.tasks) {
            return Err(GraphStop::Interrupt(Vec::new()));
        }
        if self.run.token.is_cancelled() {
            return Err(GraphError::cancelled().into());
        }
        for task in &self.tasks {
            self.show_task(task);
        }
        for task in self.tasks.iter().filter(|task| !task.writes.is_empty()) {
            self.show_writes(task, &task.writes, true);
        }
        Ok(true)
    }

    /// Where the run and, at the top, the graph itself stop.
    fn stop_nodes(&self, before: bool) -> &Nodes {
        let execution = self.run.execution;
        let (asked, own) = match before {
            true => (&execution.interrupt_before, &self.plan.interrupt_before),
            false => (&execution.interrupt_after, &self.plan.interrupt_after),
        };
        if self.nested || asked.is_empty() { own } else { asked }
    }

    fn prepare(&mut self) {
        let place = TaskSite {
            plan: self.plan,
            ns: &self.ns,
            checkpoint_id: &self.id,
            step: self.step,
        };
        self.tasks = superstep::next_tasks(&place, &self.state, self.updated.as_ref());
        self.show_checkpoint();
    }

    /// Runs the pending tasks concurrently, and saves the writes of each as soon as it ends.
    async fn perform(&mut self) -> Result<(), GraphStop> {
        self.run.sink.flush().await?;
        let mut tasks = std::mem::take(&mut self.tasks);
        let open: Vec<usize> = (0..tasks.len()).filter(|&at| tasks[at].writes.is_empty()).collect();
        let answers: Vec<InterruptAnswers> = open
            .iter()
            .map(|&at| InterruptAnswers::new(self.answers_for(&tasks[at])))
            .collect();
        let mut parents = self.parents.clone();
        parents.insert(self.ns.clone(), self.id.clone());
        let around = SuperstepContext {
            run: self.run,
            plan: self.plan,
            namespace: self.namespace.clone(),
            parents,
            resuming: self.resuming,
            step: self.step,
        };
        let mut waiting = Vec::new();
        let mut failed = None;
        let mut written: Vec<(usize, Writes)> = Vec::new();
        let token = self.run.token.clone();
        {
            let mut running: FuturesUnordered<_> = open
                .iter()
                .zip(&answers)
                .map(|(&at, answers)| {
                    let (around, task) = (&around, &tasks[at]);
                    async move { (at, answers, around.attempts(task, answers).await) }
                })
                .collect();
            loop {
                let next = tokio::select! {
                    biased;
                    next = running.next() => next,
                    () = token.cancelled() => {
                        failed = Some(GraphError::cancelled());
                        break;
                    }
                };
                let Some((at, answers, ended)) = next else { break };
                let task = &tasks[at];
                match self.ended(task, answers, ended).await {
                    Ok(writes) => written.push((at, writes)),
                    Err(GraphStop::Interrupt(more)) => waiting.push(more),
                    Err(GraphStop::Error(error)) => {
                        failed = Some(error);
                        break;
                    }
                }
                self.run.sink.flush().await?;
            }
        }
        for (at, writes) in written {
            tasks[at].writes = writes;
        }
        self.tasks = tasks;
        if let Some(error) = failed {
            return Err(error.into());
        }
        match waiting.is_empty() {
            true => Ok(()),
            false => Err(GraphStop::Interrupt(waiting.concat())),
        }
    }

    /// Keeps what a task that ended wrote.
    async fn ended(&mut self, task: &Task, answers: &InterruptAnswers, ended: TaskResult) -> Result<Writes, GraphStop> {
        let mut writes = Writes::new();
        if let Some(used) = answers.used() {
            writes.push((RESUME.to_owned(), Value::Array(used).into()));
        }
        match ended {
            TaskResult::Done(output) => {
                let made = superstep::node_writes(self.plan, &self.state, task.node, output.update, &output.goto);
                match made {
                    Ok(made) => writes.extend(made),
                    Err(error) => return self.task_failed(task, error).await,
                }
                if writes.iter().all(|(channel, _)| codec::is_mark(channel)) {
                    writes.push((NO_WRITES.to_owned(), Value::Null.into()));
                }
                self.put_writes(task, &writes).await?;
                Ok(writes)
            }
            TaskResult::Interrupt(waiting) => {
                if !waiting.is_empty() {
                    writes.insert(0, (INTERRUPT.to_owned(), Value::Array(waiting.clone()).into()));
                    self.put_writes(task, &writes).await?;
                }
                Err(GraphStop::Interrupt(waiting))
            }
            TaskResult::Error(error) => self.task_failed(task, error).await,
        }
    }

    async fn task_failed(&mut self, task: &Task, error: GraphError) -> Result<Writes, GraphStop> {
        if !error.retry {
            let text = codec::repr(&error.class, &error.message);
            self.show_failure(task, &error);
            self.keep_writes(task, &[(ERROR.to_owned(), Value::from(text).into())])
                .await?;
        }
        Err(error.into())
    }

    async fn put_writes(&mut self, task: &Task, writes: &[(String, Shared)]) -> Result<(), GraphError> {
        self.keep_writes(task, writes).await?;
        self.show_writes(task, writes, false);
        Ok(())
    }

    async fn keep_writes(&mut self, task: &Task, writes: &[(String, Shared)]) -> Result<(), GraphError> {
        self.written_tasks.insert(task.id.clone());
        self.pending.retain(|(id, ..)| *id != task.id);
        let of = |(channel, value): &(String, Shared)| (task.id.clone(), channel.clone(), value.clone());
        self.pending.extend(writes.iter().map(of));
        if self.run.execution.durability == Durability::Exit {
            return Ok(());
        }
        let put = self.writes_to_save(&task.id, task.sort_key(self.plan), writes);
        self.run.saver.push(Save::Writes(put)).await
    }

    fn writes_to_save(&self, task: &str, path: String, writes: &[(String, Shared)]) -> PutWrites {
        PutWrites {
            ns: self.ns.clone(),
            checkpoint_id: self.id.clone(),
            task: task.to_owned(),
            path,
            writes: writes
                .iter()
                .enumerate()
                .map(|(at, (channel, value))| {
                    let value = codec::saved_write(channel, value);
                    (codec::index(channel, at), channel.clone(), value)
                })
                .collect(),
        }
    }

    /// The answers for a task: those it read before, and the one the command addresses to it.
    fn answers_for(&self, task: &Task) -> Vec<Value> {
        let before = self
            .pending
            .iter()
            .find(|(id, channel, _)| *id == task.id && channel == RESUME);
        let mut given = match before.map(|(.., value)| value.value()) {
            Some(Value::Array(list)) => list.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        let named = &self.run.answers;
        if !named.is_empty()
            && let Some(answer) = named.get(&interrupt_id(&task.ns, given.len()))
        {
            given.push(answer.clone());
        }
        given
    }

    /// Applies the writes of the tasks, and saves the checkpoint after them.
    async fn after_tick(&mut self) -> Result<(), GraphStop> {
        let written = self.tasks.iter().map(|task| task.as_writes(self.plan)).collect();
        let updated = superstep::apply(self.plan, &mut self.state, written, true)?;
        if updated.iter().any(|channel| self.plan.output.contains(channel)) {
            self.show_values();
        }
        self.updated = Some(updated);
        self.pending.clear();
        self.replaying = false;
        self.put_checkpoint("loop").await?;
        if superstep::stops(&self.state, self.stop_nodes(false), self.plan, &self.tasks) {
            self.prepare();
            return Err(GraphStop::Interrupt(Vec::new()));
        }
        self.resuming = None;
        Ok(())
    }

    /// Creates the next checkpoint, and saves it unless that waits for the exit.
    async fn put_checkpoint(&mut self, source: &str) -> Result<(), GraphError> {
        self.metadata = Map::from_iter([
            ("source".to_owned(), Value::from(source)),
            ("step".to_owned(), Value::from(self.step)),
            ("parents".to_owned(), json!(self.parents)),
        ]);
        let above = Some(self.id.as_str()).filter(|id| !id.is_empty());
        self.id = ids::checkpoint(self.run.services.clock.now(), self.step, above);
        self.step += 1;
        if self.run.execution.durability == Durability::Exit {
            return Ok(());
        }
        self.save().await?;
        if self.run.execution.durability == Durability::Sync {
            self.run.sink.flush().await?;
            self.run.saver.wait_saved().await?;
        }
        Ok(())
    }

    async fn save(&mut self) -> Result<(), GraphError> {
        let checkpoint = Checkpoint {
            v: FORMAT,
            id: self.id.clone(),
            ts: rfc3339(self.run.services.clock.now()),
            channel_values: self.state.values(self.plan),
            channel_versions: self.state.versions.clone(),
            versions_seen: self.state.seen.clone(),
            updated_channels: self.updated.as_ref().map(|updated| updated.iter().cloned().collect()),
        };
        let changed = changed(&self.stored_versions, &checkpoint.channel_versions);
        self.stored_versions.clone_from(&checkpoint.channel_versions);
        let mut metadata = self.metadata.clone();
        super::run::add_scalars(&mut metadata, &self.run.metadata);
        self.previous_saved = self.saved.replace(self.id.clone());
        let put = Put {
            ns: self.ns.clone(),
            checkpoint,
            metadata,
            parent: self.previous_saved.clone(),
            changed,
        };
        self.run.saver.push(Save::Checkpoint(put)).await
    }

    async fn save_at_exit(&mut self) -> Result<(), GraphError> {
        if self.saved.as_deref() != Some(&self.id) && !self.state.versions.is_empty() {
            self.save().await?;
        }
        let wrote = std::mem::take(&mut self.written_tasks);
        for id in wrote {
            let of = self.pending.iter().filter(|(task, ..)| *task == id);
            let writes: Writes = of.map(|(_, channel, value)| (channel.clone(), value.clone())).collect();
            if writes.is_empty() {
                continue;
            }
            let task = self.tasks.iter().find(|task| task.id == id);
            let path = task.map(|task| task.sort_key(self.plan)).unwrap_or_default();
            let put = self.writes_to_save(&id, path, &writes);
            self.run.saver.push(Save::Writes(put)).await?;
        }
        Ok(())
    }

    /// The state a run gives.
    pub(super) fn output(&self) -> Value {
        self.state.read_value(self.plan, &self.plan.output)
    }

    /// The last output of a stopped graph: the state with the writes of finished tasks, and the interrupt itself if no
    /// task reported it.
    pub(super) fn stopped(&mut self, silent: bool) -> Result<(), GraphError> {
        if !self.pending.is_empty() && self.tasks.iter().any(|task| !task.writes.is_empty()) {
            let written = self.tasks.iter().map(|task| task.as_writes(self.plan)).collect();
            let updated = superstep::apply(self.plan, &mut self.state, written, true)?;
            if updated.iter().any(|channel| self.plan.output.contains(channel)) {
                self.show_values();
            }
        }
        if silent {
            let nothing = json!({"__interrupt__": []});
            self.run.sink.push(StreamMode::Updates, &self.namespace, &nothing);
        }
        Ok(())
    }
}

/// What the tasks of a superstep share.
struct SuperstepContext<'a> {
    run: &'a Run<'a>,
    plan: &'a Plan,
    namespace: Vec<String>,
    parents: BTreeMap<String, String>,
    resuming: Option<bool>,
    step: i64,
}

impl SuperstepContext<'_> {
    /// Runs a task as often as its node's policy says.
    async fn attempts(&self, task: &Task, answers: &InterruptAnswers) -> TaskResult {
        let node = &self.plan.nodes[task.node];
        let mut attempt = 1;
        loop {
            let job = TaskContext {
                run: self.run,
                plan: self.plan,
                node,
                task,
                input: &task.input,
                step: self.step,
                attempt,
                parents: &self.parents,
                resuming: self.resuming,
                namespace: &self.namespace,
                answers,
                metadata: OnceLock::new(),
            };
            match self.attempt(&job).await {
                Ok(output) => return TaskResult::Done(output),
                Err(NodeStop::Interrupt(waiting)) => return TaskResult::Interrupt(waiting),
                Err(NodeStop::Error(error)) if error.retry || attempt >= node.retry.max_attempts => {
                    return TaskResult::Error(error);
                }
                Err(NodeStop::Error(error)) => {
                    tracing::debug!(node = node.name, attempt, error = %error, "a node failed; retrying");
                }
            }
            tokio::time::sleep(node.retry.pause(attempt)).await;
            attempt += 1;
            answers.restart();
        }
    }

    async fn attempt(&self, job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
        let sink = &self.run.sink;
        let hidden = matches!(job.node.body, Body::Start);
        let (events, messages) = (
            !hidden && sink.wants(StreamMode::Events, &[]),
            !hidden && sink.wants_messages(&self.namespace),
        );
        let parents = [self.run.execution.run_id.to_string()];
        let event = |name: &str, data: &Value| {
            let metadata = job.message_metadata();
            self.run
                .event(name, &job.node.name, &job.task.id, metadata, &parents, data);
        };
        if messages {
            job.mark_input_seen();
        }
        if events {
            event("on_chain_start", &json!({"input": job.input}));
        }
        let mut output = job.perform().await?;
        if (messages || events)
            && let Value::Object(update) = &mut output.update
        {
            // Ids are assigned now, so that the streamed and the stored message are the same.
            for (key, value) in update.iter_mut() {
                if let Some(sort) = self.plan.sort(key) {
                    *value = sort.normalized(value.take())?;
                }
            }
            if messages {
                let told: Writes = update
                    .iter()
                    .map(|(key, value)| (key.clone(), value.clone().into()))
                    .collect();
                job.stream_messages(&told);
            }
        }
        if events {
            event("on_chain_stream", &json!({"chunk": output.update}));
            event("on_chain_end", &json!({"output": output.update, "input": job.input}));
        }
        Ok(output)
    }
}

/// Channels whose version the store does not have.
pub(super) fn changed(stored: &Versions, now: &Versions) -> Vec<String> {
    now.iter()
        .filter(|(channel, version)| stored.get(*channel) < Some(*version))
        .map(|(channel, _)| channel.clone())
        .collect()
}

/// What an input that is not an object is told.
pub(super) fn no_input() -> GraphError {
    GraphError::new("EmptyInputError", "Received no input for __start__")
}

/// Pending writes of no one.
pub(super) fn null_writes(pending: &[Pending]) -> Writes {
    pending
        .iter()
        .filter(|(task, ..)| task == NULL_TASK)
        .map(|(_, channel, value)| (channel.clone(), value.clone()))
        .collect()
}

/// A command that says nothing.
pub(super) fn empty_command() -> GraphError {
    let mut error = invalid("Received empty Command input".to_owned());
    "EmptyInputError".clone_into(&mut error.class);
    error
}
