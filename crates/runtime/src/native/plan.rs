//! A compiled graph: channels, nodes, and which channel triggers which node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::bench::Bench;
use super::channel::ChannelKind;
use super::http::Http;
use super::llm::Llm;
use super::names::{END, START, TASKS};
use super::script::Script;
use super::template::{Condition, Template};
use super::tools::Tools;
use crate::{Nodes, Shared};

/// A graph ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    /// The state's channels first, ordered by name, then the internal ones.
    pub(super) channels: Vec<(String, ChannelKind)>,
    /// How many of them are state.
    pub(super) state: usize,
    pub(super) index: HashMap<String, usize>,
    /// JSON schema of each state channel.
    pub(super) schemas: Vec<Value>,
    /// The first one is the start.
    pub(super) nodes: Vec<Node>,
    pub(super) by_name: HashMap<String, usize>,
    /// Channel to the nodes it wakes.
    pub(super) wakes: HashMap<String, Vec<usize>>,
    /// State a run takes.
    pub(super) input: Vec<String>,
    /// State a run gives.
    pub(super) output: Vec<String>,
    pub(super) interrupt_before: Nodes,
    pub(super) interrupt_after: Nodes,
    pub(super) recursion_limit: Option<i64>,
    pub(super) context_schema: Option<Value>,
    pub(super) config_schema: Option<Value>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    /// Channels that wake it, sorted.
    pub(super) triggers: Vec<String>,
    pub(super) body: Body,
    /// Written whenever it ends well.
    pub(super) signals: Vec<(String, Shared)>,
    /// Decided when it ends well.
    pub(super) branches: Vec<Branch>,
    pub(super) retry: Retry,
    /// Edges of the drawing: target, label, and whether it is conditional.
    pub(super) drawn: Vec<(String, Option<String>, bool)>,
}

/// What a node does.
#[derive(Debug)]
pub(super) enum Body {
    Start,
    Echo,
    Script(Script),
    Llm(Box<Llm>),
    Tools(Tools),
    Http(Box<Http>),
    Bench(Bench),
    Graph(Arc<Plan>),
}

/// A decision after a node.
#[derive(Debug)]
pub(super) enum Branch {
    /// The first case that holds.
    Switch {
        cases: Vec<(Condition, Vec<String>)>,
        otherwise: Vec<String>,
    },
    /// One task per entry of a list.
    Fanout(Fanout),
    /// One task per tool call of the last message; the end if there are none.
    ToolCalls,
}

/// One task per entry of a list.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fanout {
    /// The list.
    pub(super) over: Template,
    /// The node.
    pub(super) to: String,
    /// The key of the entry in the node's input; without it the entry is the input.
    #[serde(default, rename = "as")]
    pub(super) key: Option<String>,
}

/// How often a failing node is tried.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Retry {
    #[serde(default = "one")]
    pub(super) max_attempts: u32,
    #[serde(default = "half_a_second")]
    initial_interval_ms: u64,
    #[serde(default = "two")]
    backoff_factor: f64,
    #[serde(default = "two_minutes")]
    max_interval_ms: u64,
}

const fn one() -> u32 {
    1
}
const fn half_a_second() -> u64 {
    500
}
const fn two() -> f64 {
    2.0
}
const fn two_minutes() -> u64 {
    128_000
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: one(),
            initial_interval_ms: half_a_second(),
            backoff_factor: two(),
            max_interval_ms: two_minutes(),
        }
    }
}

impl Retry {
    /// How long to wait after this failed attempt, from 1.
    pub(super) fn pause(&self, attempt: u32) -> Duration {
        let first = Duration::from_millis(self.initial_interval_ms);
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let longest = Duration::from_millis(self.max_interval_ms);
        let factor = self.backoff_factor.powi(exponent);
        Duration::try_from_secs_f64(first.as_secs_f64() * factor).map_or(longest, |pause| pause.min(longest))
    }
}

/// A node before its edges are known.
pub(super) struct DraftNode {
    pub(super) name: String,
    pub(super) body: Body,
    pub(super) retry: Retry,
    /// Nodes its steps may go to.
    pub(super) gotos: Vec<String>,
}

/// An edge before it is channels.
pub(super) enum Edge {
    /// To all of these, when all of those have ended.
    Plain { from: Vec<String>, to: Vec<String> },
    /// Decided.
    Branch { from: String, branch: Branch },
}

/// Builds a plan, or says what does not fit.
pub(super) struct Builder {
    pub(super) channels: BTreeMap<String, (ChannelKind, Value)>,
    pub(super) nodes: Vec<DraftNode>,
    pub(super) edges: Vec<Edge>,
    pub(super) input: Option<Vec<String>>,
    pub(super) output: Option<Vec<String>>,
    pub(super) interrupt_before: Nodes,
    pub(super) interrupt_after: Nodes,
    pub(super) recursion_limit: Option<i64>,
    pub(super) context_schema: Option<Value>,
    pub(super) config_schema: Option<Value>,
}

impl Builder {
    pub(super) fn build(self) -> Result<Plan, String> {
        let names: BTreeSet<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        self.check(&names)?;
        let keys: Vec<String> = self.channels.keys().cloned().collect();
        let state = self.channels.len();
        let (mut channels, mut schemas) = (Vec::new(), Vec::new());
        for (name, (sort, schema)) in self.channels {
            channels.push((name, sort));
            schemas.push(schema);
        }
        channels.push((START.to_owned(), ChannelKind::Input));
        channels.push((TASKS.to_owned(), ChannelKind::Packets));
        let start = DraftNode {
            name: START.to_owned(),
            body: Body::Start,
            retry: Retry::default(),
            gotos: Vec::new(),
        };
        let mut nodes: Vec<Node> = std::iter::once(start).chain(self.nodes).map(node).collect();
        let mut by_name = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            by_name.insert(node.name.clone(), at);
            if at > 0 {
                channels.push((format!("branch:to:{}", node.name), ChannelKind::Trigger));
            }
        }
        for edge in self.edges {
            connect(edge, &mut nodes, &by_name, &mut channels);
        }
        let mut wakes: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, node) in nodes.iter_mut().enumerate() {
            node.triggers.sort();
            for trigger in &node.triggers {
                wakes.entry(trigger.clone()).or_default().push(at);
            }
            if node.drawn.is_empty() {
                node.drawn.push((END.to_owned(), None, false));
            }
        }
        Ok(Plan {
            index: channels
                .iter()
                .enumerate()
                .map(|(at, (name, _))| (name.clone(), at))
                .collect(),
            channels,
            state,
            schemas,
            nodes,
            by_name,
            wakes,
            input: self.input.unwrap_or_else(|| keys.clone()),
            output: self.output.unwrap_or(keys),
            interrupt_before: self.interrupt_before,
            interrupt_after: self.interrupt_after,
            recursion_limit: self.recursion_limit,
            context_schema: self.context_schema,
            config_schema: self.config_schema,
        })
    }

    fn check(&self, names: &BTreeSet<String>) -> Result<(), String> {
        if names.len() != self.nodes.len() {
            return Err("two nodes have the same name".to_owned());
        }
        for name in names {
            if name.is_empty() || name.starts_with("__") || name.contains(['|', ':']) {
                return Err(format!(
                    "node name {name:?} is empty, reserved (__), or has | or : in it"
                ));
            }
            if self.channels.contains_key(name) {
                return Err(format!(
                    "{name:?} is a channel and a node; choose another name for one of them"
                ));
            }
        }
        for name in self.channels.keys() {
            if name.is_empty() || name.starts_with("__") || name.contains(':') {
                return Err(format!("channel name {name:?} is empty, reserved (__), or has : in it"));
            }
        }
        for key in self.input.iter().chain(&self.output).flatten() {
            if !self.channels.contains_key(key) {
                return Err(format!("`input` or `output` names {key:?}, which is not a channel"));
            }
        }
        let known = |name: &str, also: &str| names.contains(name) || name == also;
        let mut entered = false;
        for edge in &self.edges {
            let (from, to): (Vec<&String>, Vec<&String>) = match edge {
                Edge::Plain { from, to } => (from.iter().collect(), to.iter().collect()),
                Edge::Branch { from, branch } => (vec![from], branch.targets()),
            };
            for name in from {
                if !known(name, START) {
                    return Err(format!("an edge starts at {name:?}, which is not a node"));
                }
                entered |= name == START;
            }
            for name in to {
                if !known(name, END) {
                    return Err(format!("an edge leads to {name:?}, which is not a node"));
                }
            }
        }
        if !entered {
            return Err(format!("no edge starts at {START:?}"));
        }
        for node in &self.nodes {
            if let Some(name) = node.gotos.iter().find(|name| !known(name, END)) {
                return Err(format!("node {:?} goes to {name:?}, which is not a node", node.name));
            }
        }
        for stops in [&self.interrupt_before, &self.interrupt_after] {
            if let Nodes::Some(list) = stops
                && let Some(name) = list.iter().find(|name| !names.contains(*name))
            {
                return Err(format!("it interrupts at {name:?}, which is not a node"));
            }
        }
        Ok(())
    }
}

impl Branch {
    fn targets(&self) -> Vec<&String> {
        match self {
            Self::Switch { cases, otherwise } => cases.iter().flat_map(|(_, to)| to).chain(otherwise).collect(),
            Self::Fanout(fanout) => vec![&fanout.to],
            Self::ToolCalls => Vec::new(),
        }
    }

    fn drawn(&self) -> Vec<String> {
        match self {
            Self::ToolCalls => vec!["tools".to_owned(), END.to_owned()],
            Self::Switch { otherwise, .. } => {
                let mut targets: Vec<String> = self.targets().into_iter().cloned().collect();
                if otherwise.is_empty() {
                    targets.push(END.to_owned());
                }
                targets
            }
            Self::Fanout(_) => self.targets().into_iter().cloned().collect(),
        }
    }
}

fn node(draft: DraftNode) -> Node {
    let trigger = match draft.body {
        Body::Start => START.to_owned(),
        _ => format!("branch:to:{}", draft.name),
    };
    let mut drawn = Vec::new();
    for target in draft.gotos {
        add_drawn(&mut drawn, target, true);
    }
    Node {
        name: draft.name,
        triggers: vec![trigger],
        body: draft.body,
        signals: Vec::new(),
        branches: Vec::new(),
        retry: draft.retry,
        drawn,
    }
}

fn add_drawn(drawn: &mut Vec<(String, Option<String>, bool)>, target: String, conditional: bool) {
    if !drawn.iter().any(|(known, ..)| *known == target) {
        drawn.push((target, None, conditional));
    }
}

fn connect(
    edge: Edge,
    nodes: &mut [Node],
    by_name: &HashMap<String, usize>,
    channels: &mut Vec<(String, ChannelKind)>,
) {
    match edge {
        Edge::Branch { from, branch } => {
            let node = &mut nodes[by_name[&from]];
            for target in branch.drawn() {
                add_drawn(&mut node.drawn, target, true);
            }
            node.branches.push(branch);
        }
        Edge::Plain { from, to } => {
            for target in to {
                for name in &from {
                    add_drawn(&mut nodes[by_name[name]].drawn, target.clone(), false);
                }
                let Some(&at) = by_name.get(&target) else { continue };
                if let [only] = from.as_slice() {
                    let channel = format!("branch:to:{target}");
                    nodes[by_name[only]].signals.push((channel, Shared::from(Value::Null)));
                    continue;
                }
                let channel = format!("join:{}:{target}", from.join("+"));
                channels.push((channel.clone(), ChannelKind::Join(from.iter().cloned().collect())));
                nodes[at].triggers.push(channel.clone());
                for name in &from {
                    nodes[by_name[name]]
                        .signals
                        .push((channel.clone(), Shared::from(json!(name))));
                }
            }
        }
    }
}

impl Plan {
    /// Names of the state's channels.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.channels[..self.state].iter().map(|(name, _)| name.as_str())
    }

    /// What a state channel does with writes.
    pub(super) fn sort(&self, key: &str) -> Option<&ChannelKind> {
        let at = *self.index.get(key)?;
        (at < self.state).then(|| &self.channels[at].1)
    }

    /// The graph a node is, or the one its script runs as its `nth`.
    pub(super) fn subgraph(&self, node: &str, nth: usize) -> Option<&Arc<Self>> {
        match &self.nodes[*self.by_name.get(node)?].body {
            Body::Graph(plan) => Some(plan),
            Body::Script(script) => script.subgraphs().into_iter().nth(nth),
            _ => None,
        }
    }
}
