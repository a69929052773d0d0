//! Steps of a script: a node that does exactly what it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::job::{NodeOutput, NodeStop, TaskContext};
use super::plan::{Fanout, Plan};
use super::template::{Condition, Template};
use super::{bench, declare, messages};
use crate::{Goto, GraphError, ItemCall, Packet};

/// Steps, in order.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    /// Writes values to channels.
    Set(BTreeMap<String, Template>),
    /// Adds to lists.
    Append(BTreeMap<String, Template>),
    /// An AI message, streamed by words.
    Say(Say),
    Sleep(Duration),
    /// Burns CPU time, in microseconds.
    Spin(u64),
    /// A custom event.
    Emit(Template),
    Fail(Fail),
    /// Stops for an answer, which is written to a channel.
    Interrupt(Template, Option<String>),
    /// Ends the script and goes to nodes.
    Goto(Vec<Target>),
    If(Condition, Vec<Step>, Vec<Step>),
    /// Adds tasks for the next superstep.
    Fanout(Fanout),
    /// Runs a graph; its output is written to channels, or to one.
    Subgraph(Arc<Plan>, Option<Template>, Option<String>),
    /// A call to the item store; its result is written to a channel.
    Item(Item, Option<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Say {
    text: Template,
    #[serde(default)]
    id: Option<String>,
    /// Pause after each word.
    #[serde(default)]
    delay_ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fail {
    #[serde(default = "value_error", rename = "type")]
    class: String,
    #[serde(default)]
    message: Template,
    /// Only this many attempts fail, counting tries of the node and of the run.
    #[serde(default)]
    times: Option<u32>,
    /// As if the host were lost: the run is retried.
    #[serde(default)]
    retry: bool,
}

fn value_error() -> String {
    "ValueError".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Target {
    Node(String),
    Send {
        node: String,
        #[serde(default)]
        input: Template,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Item {
    Get {
        namespace: Template,
        key: Template,
    },
    Put {
        namespace: Template,
        key: Template,
        value: Template,
        #[serde(default)]
        ttl: Option<f64>,
        #[serde(default)]
        index: Option<Vec<String>>,
    },
    Delete {
        namespace: Template,
        key: Template,
    },
    Search {
        namespace: Template,
        #[serde(default)]
        filter: Map<String, Value>,
        #[serde(default)]
        query: Option<Template>,
        #[serde(default = "ten")]
        limit: u32,
        #[serde(default)]
        offset: u32,
    },
}

const fn ten() -> u32 {
    10
}

impl Script {
    /// Reads `{"steps": [...]}`.
    pub(super) fn read(mut fields: Map<String, Value>, depth: usize) -> Result<Self, String> {
        let Some(Value::Array(steps)) = fields.remove("steps") else {
            return Err("`steps` must be a list".to_owned());
        };
        if let Some(key) = fields.keys().next() {
            return Err(format!("unknown field `{key}`"));
        }
        Ok(Self {
            steps: read_steps(steps, depth)?,
        })
    }

    /// Channels it writes.
    pub(super) fn channels(&self) -> Vec<&str> {
        let mut found = Vec::new();
        each(&self.steps, &mut |step| match step {
            Step::Set(values) | Step::Append(values) => found.extend(values.keys().map(String::as_str)),
            Step::Interrupt(_, Some(key)) | Step::Subgraph(_, _, Some(key)) | Step::Item(_, Some(key)) => {
                found.push(key);
            }
            _ => {}
        });
        found
    }

    /// Nodes it goes to.
    pub(super) fn gotos(&self) -> Vec<String> {
        let mut found = Vec::new();
        each(&self.steps, &mut |step| match step {
            Step::Goto(targets) => found.extend(targets.iter().map(|target| match target {
                Target::Node(node) | Target::Send { node, .. } => node.clone(),
            })),
            Step::Fanout(fanout) => found.push(fanout.to.clone()),
            _ => {}
        });
        found
    }

    /// Whether it writes messages by itself.
    pub(super) fn speaks(&self) -> bool {
        let mut speaks = false;
        each(&self.steps, &mut |step| speaks |= matches!(step, Step::Say(_)));
        speaks
    }

    /// Graphs its steps run, in order of declaration.
    pub(super) fn subgraphs(&self) -> Vec<&Arc<Plan>> {
        let mut found = Vec::new();
        each(&self.steps, &mut |step| {
            if let Step::Subgraph(plan, ..) = step {
                found.push(plan);
            }
        });
        found
    }

    /// Performs the steps.
    pub(super) async fn run(&self, job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
        let mut here = StepContext {
            job,
            // Later steps see what earlier ones wrote.
            state: None,
            update: Map::new(),
            goto: Vec::new(),
        };
        // A stack of positions instead of recursion: branches are steps inside steps.
        let mut stack = vec![self.steps.iter()];
        while let Some(top) = stack.last_mut() {
            let Some(step) = top.next() else {
                stack.pop();
                continue;
            };
            match step {
                Step::If(condition, then, otherwise) => {
                    let branch = if condition.holds(here.state()) { then } else { otherwise };
                    stack.push(branch.iter());
                }
                Step::Goto(targets) => {
                    let targets = targets
                        .iter()
                        .map(|target| target.filled(here.state()))
                        .collect::<Vec<_>>();
                    here.goto.extend(targets);
                    break;
                }
                step => here.perform(step).await?,
            }
        }
        let update = if here.update.is_empty() {
            Value::Null
        } else {
            Value::Object(here.update)
        };
        Ok(NodeOutput {
            update,
            goto: here.goto,
        })
    }
}

struct StepContext<'a> {
    job: &'a TaskContext<'a>,
    state: Option<Value>,
    update: Map<String, Value>,
    goto: Vec<Goto>,
}

impl StepContext<'_> {
    fn state(&self) -> &Value {
        self.state.as_ref().unwrap_or(self.job.input)
    }

    async fn perform(&mut self, step: &Step) -> Result<(), NodeStop> {
        match step {
            Step::Set(values) => {
                for (key, value) in values {
                    let value = value.fill(self.state());
                    self.update.remove(key);
                    self.write(key, value)?;
                }
            }
            Step::Append(values) => {
                for (key, value) in values {
                    let value = match value.fill(self.state()) {
                        Value::Array(list) => list,
                        one => vec![one],
                    };
                    self.write(key, Value::Array(value))?;
                }
            }
            Step::Say(say) => self.say(say).await?,
            Step::Sleep(span) => {
                self.job.run.sink.flush().await?;
                tokio::time::sleep(*span).await;
            }
            Step::Spin(micros) => bench::spin(*micros),
            Step::Emit(value) => {
                self.job.custom(&value.fill(self.state()));
                self.job.run.sink.flush().await?;
            }
            Step::Fail(fail) => self.fail(fail)?,
            Step::Interrupt(value, into) => {
                let answer = self.job.interrupt(&value.fill(self.state()))?;
                self.write_into(into.as_deref(), answer)?;
            }
            Step::Fanout(fanout) => self
                .goto
                .extend(packets(fanout, self.state())?.into_iter().map(Goto::Send)),
            Step::Subgraph(plan, input, into) => {
                let input = input
                    .as_ref()
                    .map_or_else(|| self.state().clone(), |input| input.fill(self.state()));
                let output = self.job.subgraph(plan, input).await?;
                match (into, output) {
                    (Some(key), output) => self.write(key, output)?,
                    (None, Value::Object(output)) => {
                        for (key, value) in output {
                            if self.job.plan.sort(&key).is_some() {
                                self.write(&key, value)?;
                            }
                        }
                    }
                    (None, _) => {}
                }
            }
            Step::Item(item, into) => {
                let call = item.call(self.state())?;
                let answer = self.job.run.host.item(call).await.map_err(GraphError::from)?;
                self.write_into(into.as_deref(), answer)?;
            }
            // Taken where the steps are walked.
            Step::If(..) | Step::Goto(_) => {}
        }
        Ok(())
    }

    fn write_into(&mut self, into: Option<&str>, value: Value) -> Result<(), NodeStop> {
        match into {
            Some(key) => self.write(key, value),
            None => Ok(()),
        }
    }

    /// A write to a channel, visible to later steps. Several writes to a list become one.
    fn write(&mut self, key: &str, value: Value) -> Result<(), NodeStop> {
        let sort = self.job.plan.sort(key).cloned();
        let value = match &sort {
            Some(sort) => sort.normalized(value)?,
            None => value,
        };
        let job = self.job;
        let state = self.state.get_or_insert_with(|| job.input.value().clone());
        if let (Some(sort), Value::Object(state)) = (&sort, state) {
            let next = sort.preview(state.get(key), &value)?;
            state.insert(key.to_owned(), next);
        }
        match (self.update.get_mut(key), value) {
            (Some(Value::Array(held)), Value::Array(more)) => held.extend(more),
            (_, value) => {
                self.update.insert(key.to_owned(), value);
            }
        }
        Ok(())
    }

    async fn say(&mut self, say: &Say) -> Result<(), NodeStop> {
        let job = self.job;
        let text = say.text.fill_text(self.state());
        let mut model = job.speech();
        if let Some(id) = &say.id {
            model.message_id.clone_from(id);
        }
        if job.wants_tokens() {
            let mut told = String::new();
            let mut words = text.split_inclusive(' ').peekable();
            while let Some(word) = words.next() {
                told.push_str(word);
                let chunk = messages::ai_chunk(&model.message_id, word, words.peek().is_none());
                job.token(&model, &chunk, || messages::ai(&model.message_id, &told));
                if say.delay_ms > 0 {
                    job.run.sink.flush().await?;
                    tokio::time::sleep(Duration::from_millis(say.delay_ms)).await;
                }
            }
        } else if say.delay_ms > 0 {
            let words = u32::try_from(text.split(' ').count()).unwrap_or(u32::MAX);
            tokio::time::sleep(Duration::from_millis(say.delay_ms) * words).await;
        }
        self.write("messages", json!([messages::ai(&model.message_id, &text)]))
    }

    fn fail(&self, fail: &Fail) -> Result<(), NodeStop> {
        let attempt = self.job.attempt + self.job.run.execution.attempt.saturating_sub(1);
        if fail.times.is_some_and(|times| attempt > times) {
            return Ok(());
        }
        let mut error = GraphError::new(&fail.class, fail.message.fill_text(self.state()));
        error.retry = fail.retry;
        Err(error.into())
    }
}

/// A packet per entry of the list.
pub(super) fn packets(fanout: &Fanout, state: &Value) -> Result<Vec<Packet>, GraphError> {
    let list = match fanout.over.fill(state) {
        Value::Array(list) => list,
        Value::Null => Vec::new(),
        other => {
            let kind = messages::kind(&other);
            return Err(GraphError::new(
                "TypeError",
                format!("fanout expects a list, got {kind}"),
            ));
        }
    };
    let packet = |entry: Value| Packet {
        node: fanout.to.clone(),
        input: match &fanout.key {
            Some(key) => json!({key: entry}),
            None => entry,
        },
    };
    Ok(list.into_iter().map(packet).collect())
}

impl Target {
    fn filled(&self, state: &Value) -> Goto {
        match self {
            Self::Node(node) => Goto::Node(node.clone()),
            Self::Send { node, input } => Goto::Send(Packet {
                node: node.clone(),
                input: input.fill(state),
            }),
        }
    }
}

impl Item {
    fn call(&self, state: &Value) -> Result<ItemCall, GraphError> {
        let namespace = |template: &Template| -> Result<Vec<String>, GraphError> {
            let wrong = || GraphError::new("ValueError", "an item's namespace must be a list of strings");
            match template.fill(state) {
                Value::Array(labels) => labels
                    .iter()
                    .map(|label| label.as_str().map(str::to_owned).ok_or_else(wrong))
                    .collect(),
                Value::String(text) => Ok(text.split('.').map(str::to_owned).collect()),
                _ => Err(wrong()),
            }
        };
        Ok(match self {
            Self::Get { namespace: place, key } => ItemCall::Get {
                namespace: namespace(place)?,
                key: key.fill_text(state),
                refresh: None,
            },
            Self::Delete { namespace: place, key } => ItemCall::Delete {
                namespace: namespace(place)?,
                key: key.fill_text(state),
            },
            Self::Put {
                namespace: place,
                key,
                value,
                ttl,
                index,
            } => {
                let Value::Object(value) = value.fill(state) else {
                    return Err(GraphError::new("ValueError", "an item's value must be an object"));
                };
                ItemCall::Put {
                    namespace: namespace(place)?,
                    key: key.fill_text(state),
                    value,
                    ttl_minutes: *ttl,
                    index: index.clone(),
                }
            }
            Self::Search {
                namespace: place,
                filter,
                query,
                limit,
                offset,
            } => ItemCall::Search {
                prefix: namespace(place)?,
                filter: filter.clone(),
                query: query
                    .as_ref()
                    .map(|query| query.fill_text(state))
                    .filter(|query| !query.is_empty()),
                limit: *limit,
                offset: *offset,
                refresh: None,
            },
        })
    }
}

fn each<'a>(steps: &'a [Step], see: &mut impl FnMut(&'a Step)) {
    // A stack, because a closure passed by reference cannot recurse.
    let mut stack: Vec<&'a Step> = steps.iter().rev().collect();
    while let Some(step) = stack.pop() {
        see(step);
        if let Step::If(_, then, otherwise) = step {
            stack.extend(otherwise.iter().rev());
            stack.extend(then.iter().rev());
        }
    }
}

fn read_steps(steps: Vec<Value>, depth: usize) -> Result<Vec<Step>, String> {
    steps
        .into_iter()
        .enumerate()
        .map(|(at, step)| match step {
            Value::Object(fields) => read_step(fields, depth).map_err(|why| format!("step {at}: {why}")),
            _ => Err(format!("step {at}: expected an object such as {{\"set\": …}}")),
        })
        .collect()
}

const KINDS: [&str; 13] = [
    "set",
    "append",
    "say",
    "sleep_ms",
    "spin_us",
    "emit",
    "fail",
    "interrupt",
    "goto",
    "if",
    "fanout",
    "subgraph",
    "item",
];

fn read_step(mut fields: Map<String, Value>, depth: usize) -> Result<Step, String> {
    let mut named = KINDS.iter().filter(|kind| fields.contains_key(**kind));
    let (Some(kind), None) = (named.next(), named.next()) else {
        return Err(format!("expected exactly one of {}", KINDS.join(", ")));
    };
    let value = fields.remove(*kind).unwrap_or_default();
    let mut into = || match fields.remove("into") {
        None => Ok(None),
        Some(Value::String(key)) => Ok(Some(key)),
        Some(_) => Err("`into` must be the name of a channel".to_owned()),
    };
    let step = match *kind {
        "set" => Step::Set(read(value, kind)?),
        "append" => Step::Append(read(value, kind)?),
        "say" if value.is_string() => Step::Say(Say {
            text: Template::new(value),
            id: None,
            delay_ms: 0,
        }),
        "say" => Step::Say(read(value, kind)?),
        "sleep_ms" => Step::Sleep(Duration::from_millis(read(value, kind)?)),
        "spin_us" => Step::Spin(read(value, kind)?),
        "emit" => Step::Emit(Template::new(value)),
        "fail" => Step::Fail(read(value, kind)?),
        "interrupt" => Step::Interrupt(Template::new(value), into()?),
        "goto" if value.is_array() => Step::Goto(read(value, kind)?),
        "goto" => Step::Goto(vec![read(value, kind)?]),
        "if" => {
            let mut branch = |key: &str| match fields.remove(key) {
                None => Ok(Vec::new()),
                Some(Value::Array(steps)) => read_steps(steps, depth).map_err(|why| format!("{key}: {why}")),
                Some(_) => Err(format!("`{key}` must be a list of steps")),
            };
            let (then, otherwise) = (branch("then")?, branch("else")?);
            Step::If(read(value, kind)?, then, otherwise)
        }
        "fanout" => Step::Fanout(read(value, kind)?),
        "subgraph" => {
            let plan = declare::graph(&value, depth + 1)?;
            let into = into()?;
            Step::Subgraph(Arc::new(plan), fields.remove("input").map(Template::new), into)
        }
        _ => Step::Item(read(value, kind)?, into()?),
    };
    match fields.keys().next() {
        Some(key) => Err(format!("unknown field `{key}` beside `{kind}`")),
        None => Ok(step),
    }
}

fn read<T: DeserializeOwned>(value: Value, kind: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("`{kind}`: {error}"))
}
