//! Reading declarations.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::bench::Bench;
use super::channel::ChannelKind;
use super::http::Http;
use super::llm::Llm;
use super::names::START;
use super::plan::{Body, Branch, Builder, DraftNode, Edge, Fanout, Plan, Retry};
use super::script::Script;
use super::template::Condition;
use super::tools::{Tool, Tools};
use crate::Nodes;

/// How deep graphs may be in graphs.
const DEEPEST: usize = 16;

/// Reads `native` of a declaration: the name of a kind, or an object with `kind`.
pub(super) fn plan(native: &Value) -> Result<Plan, String> {
    graph(native, 0)
}

pub(super) fn graph(native: &Value, depth: usize) -> Result<Plan, String> {
    if depth > DEEPEST {
        return Err(format!("graphs are nested more than {DEEPEST} deep"));
    }
    let (kind, mut fields) = kind(native)?;
    let mut common = Common::take(&mut fields)?;
    if let Some(unused) = ["retry", "goto"].iter().find(|key| fields.contains_key(**key)) {
        return Err(format!("`{unused}` is only allowed on a node of a workflow"));
    }
    match kind.as_str() {
        "workflow" => workflow(fields, common, depth),
        "script" if fields.contains_key("nodes") => scripted(fields, common, depth),
        "bench" => {
            let bench: Bench = read(fields)?;
            common.default_channels(&[
                ("count", "last-value"),
                ("messages", "add-messages"),
                ("payload", "last-value"),
            ])?;
            let nodes = bench.nodes();
            let mut edges = Vec::new();
            let mut before = START.to_owned();
            for (name, _) in &nodes {
                edges.push(Edge::Plain {
                    from: vec![std::mem::replace(&mut before, name.clone())],
                    to: vec![name.clone()],
                });
            }
            let nodes = nodes
                .into_iter()
                .map(|(name, bench)| draft(name, Body::Bench(bench)))
                .collect();
            common.build(nodes, edges)
        }
        "react" => react(fields, common),
        _ => {
            if kind == "http" {
                common.default_channels(&[("messages", "add-messages"), ("reply", "last-value")])?;
            }
            common.default_channels(&[("messages", "add-messages")])?;
            let name = match kind.as_str() {
                "llm" => "model",
                "http" => "call",
                other => other,
            };
            let leaf = leaf(&kind, fields, &common, name, depth)?;
            let edge = Edge::Plain {
                from: vec![START.to_owned()],
                to: vec![name.to_owned()],
            };
            common.build(vec![leaf], vec![edge])
        }
    }
}

fn kind(native: &Value) -> Result<(String, Map<String, Value>), String> {
    let known = "echo, script, llm, react, http, workflow or bench";
    match native {
        Value::String(kind) => Ok((kind.clone(), Map::new())),
        Value::Object(fields) => {
            let mut fields = fields.clone();
            match fields.remove("kind") {
                Some(Value::String(kind)) => Ok((kind, fields)),
                _ => Err(format!("`kind` must be {known}")),
            }
        }
        _ => Err(format!("expected {known}, or an object with `kind`")),
    }
}

fn read<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

fn draft(name: String, body: Body) -> DraftNode {
    DraftNode {
        name,
        body,
        retry: Retry::default(),
        gotos: Vec::new(),
    }
}

/// A kind that is one node.
fn leaf(
    kind: &str,
    fields: Map<String, Value>,
    common: &Common,
    name: &str,
    depth: usize,
) -> Result<DraftNode, String> {
    let mut gotos = Vec::new();
    let needs_messages = |kind: &str| match common.sort("messages") {
        Some(ChannelKind::Messages) => Ok(()),
        _ => Err(format!("{kind} needs the channel `messages` with add-messages")),
    };
    let body = match kind {
        "echo" => {
            needs_messages("echo")?;
            if let Some(key) = fields.keys().next() {
                return Err(format!("unknown field `{key}`"));
            }
            Body::Echo
        }
        "llm" => {
            needs_messages("llm")?;
            Body::Llm(Box::new(read::<Llm>(fields)?.checked()?))
        }
        "http" => {
            let http: Http = read(fields)?;
            for key in http.channels() {
                common.expect(key)?;
            }
            if http.speaks() {
                needs_messages("http with `token` or `message`")?;
            }
            Body::Http(Box::new(http.checked()?))
        }
        "script" => {
            let script = Script::read(fields, depth)?;
            for key in script.channels() {
                common.expect(key)?;
            }
            if script.speaks() {
                needs_messages("`say`")?;
            }
            gotos = script.gotos();
            Body::Script(script)
        }
        other => {
            return Err(format!(
                "unknown kind {other:?}: expected echo, script, llm, react, http, workflow or bench"
            ));
        }
    };
    Ok(DraftNode {
        gotos,
        ..draft(name.to_owned(), body)
    })
}

/// The options every graph has.
struct Common {
    channels: BTreeMap<String, (ChannelKind, Value)>,
    input: Option<Vec<String>>,
    output: Option<Vec<String>>,
    interrupt_before: Nodes,
    interrupt_after: Nodes,
    recursion_limit: Option<i64>,
    context_schema: Option<Value>,
    config_schema: Option<Value>,
}

impl Common {
    fn take(fields: &mut Map<String, Value>) -> Result<Self, String> {
        let mut channels = BTreeMap::new();
        if let Some(declared) = fields.remove("channels") {
            let Value::Object(declared) = declared else {
                return Err("`channels` must be an object of name to reducer".to_owned());
            };
            for (name, declared) in declared {
                let channel = channel(&declared).map_err(|why| format!("channel {name:?}: {why}"))?;
                channels.insert(name, channel);
            }
        }
        let limit: Option<i64> = option(fields, "recursion_limit")?;
        if limit.is_some_and(|limit| limit < 1) {
            return Err("`recursion_limit` must be at least 1".to_owned());
        }
        Ok(Self {
            channels,
            input: option(fields, "input")?,
            output: option(fields, "output")?,
            interrupt_before: option(fields, "interrupt_before")?.unwrap_or_default(),
            interrupt_after: option(fields, "interrupt_after")?.unwrap_or_default(),
            recursion_limit: limit,
            context_schema: option(fields, "context_schema")?,
            config_schema: option(fields, "config_schema")?,
        })
    }

    fn default_channels(&mut self, defaults: &[(&str, &str)]) -> Result<(), String> {
        if self.channels.is_empty() {
            for (name, reducer) in defaults {
                self.channels.insert((*name).to_owned(), channel(&json!(reducer))?);
            }
        }
        Ok(())
    }

    fn sort(&self, key: &str) -> Option<&ChannelKind> {
        self.channels.get(key).map(|(sort, _)| sort)
    }

    fn expect(&self, key: &str) -> Result<(), String> {
        match self.channels.contains_key(key) {
            true => Ok(()),
            false => Err(format!("it writes {key:?}, which is not declared in `channels`")),
        }
    }

    fn build(self, nodes: Vec<DraftNode>, edges: Vec<Edge>) -> Result<Plan, String> {
        Builder {
            channels: self.channels,
            nodes,
            edges,
            input: self.input,
            output: self.output,
            interrupt_before: self.interrupt_before,
            interrupt_after: self.interrupt_after,
            recursion_limit: self.recursion_limit,
            context_schema: self.context_schema,
            config_schema: self.config_schema,
        }
        .build()
    }
}

fn option<T: DeserializeOwned>(fields: &mut Map<String, Value>, key: &str) -> Result<Option<T>, String> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => serde_json::from_value(value)
            .map(Some)
            .map_err(|error| format!("`{key}`: {error}")),
    }
}

fn channel(declared: &Value) -> Result<(ChannelKind, Value), String> {
    let (reducer, schema) = match declared {
        Value::String(reducer) => (reducer.as_str(), None),
        Value::Object(fields) => {
            if let Some(key) = fields.keys().find(|key| !matches!(key.as_str(), "reducer" | "schema")) {
                return Err(format!("unknown field `{key}`"));
            }
            let reducer = fields.get("reducer").and_then(Value::as_str).unwrap_or("last-value");
            (reducer, fields.get("schema").cloned())
        }
        _ => return Err("expected a reducer or {\"reducer\", \"schema\"}".to_owned()),
    };
    match reducer {
        "last-value" => Ok((ChannelKind::Last, schema.unwrap_or_else(|| json!({})))),
        "append" => Ok((
            ChannelKind::Append,
            schema.unwrap_or_else(|| json!({"type": "array", "items": {}})),
        )),
        "add-messages" => Ok((
            ChannelKind::Messages,
            schema.unwrap_or_else(|| json!({"$ref": "#/$defs/Messages"})),
        )),
        other => Err(format!(
            "unknown reducer {other:?}: expected last-value, append or add-messages"
        )),
    }
}

/// `{"nodes": {name: [steps]}}`: a workflow of scripts.
fn scripted(mut fields: Map<String, Value>, common: Common, depth: usize) -> Result<Plan, String> {
    if let Some(Value::Object(nodes)) = fields.get_mut("nodes") {
        for steps in nodes.values_mut() {
            if steps.is_array() {
                *steps = json!({"kind": "script", "steps": steps.take()});
            }
        }
    }
    workflow(fields, common, depth)
}

fn workflow(mut fields: Map<String, Value>, mut common: Common, depth: usize) -> Result<Plan, String> {
    common.default_channels(&[("messages", "add-messages")])?;
    let Some(Value::Object(declared)) = fields.remove("nodes") else {
        return Err("`nodes` must be an object of name to node".to_owned());
    };
    let edges: Option<Vec<Value>> = option(&mut fields, "edges")?;
    let start: Option<String> = option(&mut fields, "start")?;
    if let Some(key) = fields.keys().next() {
        return Err(format!("unknown field `{key}`"));
    }
    let only = match declared.len() {
        1 if edges.is_none() => declared.keys().next().cloned(),
        _ => None,
    };
    let mut nodes = Vec::new();
    for (name, declared) in &declared {
        nodes.push(workflow_node(name, declared, &common, depth).map_err(|why| format!("node {name:?}: {why}"))?);
    }
    let mut connected = Vec::new();
    for (at, declared) in edges.into_iter().flatten().enumerate() {
        connected.push(edge(declared).map_err(|why| format!("edge {at}: {why}"))?);
    }
    if let Some(first) = start.or(only) {
        connected.insert(
            0,
            Edge::Plain {
                from: vec![START.to_owned()],
                to: vec![first],
            },
        );
    }
    common.build(nodes, connected)
}

fn workflow_node(name: &str, declared: &Value, common: &Common, depth: usize) -> Result<DraftNode, String> {
    let (kind, mut fields) = kind(declared)?;
    let retry: Option<Retry> = option(&mut fields, "retry")?;
    let goto: Option<Vec<String>> = option(&mut fields, "goto")?;
    let graph_like = matches!(kind.as_str(), "workflow" | "react" | "bench") || fields.contains_key("nodes");
    let mut draft = if graph_like {
        fields.insert("kind".to_owned(), Value::from(kind));
        let plan = graph(&Value::Object(fields), depth + 1)?;
        if !plan.output.iter().any(|key| common.channels.contains_key(key)) {
            return Err("the graph writes no channel that the outer graph declares".to_owned());
        }
        draft(name.to_owned(), Body::Graph(Arc::new(plan)))
    } else {
        leaf(&kind, fields, common, name, depth)?
    };
    draft.retry = retry.unwrap_or_default();
    draft.gotos.extend(goto.unwrap_or_default());
    Ok(draft)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeDeclaration {
    from: OneOrMany,
    #[serde(default)]
    to: Option<OneOrMany>,
    #[serde(default, rename = "if")]
    condition: Option<Condition>,
    #[serde(default)]
    when: Option<Vec<Case>>,
    #[serde(default, rename = "else")]
    otherwise: Option<OneOrMany>,
    #[serde(default)]
    fanout: Option<Fanout>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(rename = "if")]
    condition: Condition,
    to: OneOrMany,
}

fn edge(declared: Value) -> Result<Edge, String> {
    if let Value::Array(pair) = &declared {
        return match pair.as_slice() {
            [Value::String(from), Value::String(to)] => Ok(Edge::Plain {
                from: vec![from.clone()],
                to: vec![to.clone()],
            }),
            _ => Err("expected [from, to]".to_owned()),
        };
    }
    let Value::Object(fields) = declared else {
        return Err("expected [from, to] or an object with `from`".to_owned());
    };
    let edge: EdgeDeclaration = read(fields)?;
    let from = edge.from.list();
    let branch = match (edge.to, edge.condition, edge.when, edge.fanout) {
        (Some(to), None, None, None) if edge.otherwise.is_none() => {
            return match from.is_empty() {
                true => Err("`from` is empty".to_owned()),
                false => Ok(Edge::Plain { from, to: to.list() }),
            };
        }
        (Some(to), Some(condition), None, None) => Branch::Switch {
            cases: vec![(condition, to.list())],
            otherwise: edge.otherwise.map(OneOrMany::list).unwrap_or_default(),
        },
        (None, None, Some(when), None) => Branch::Switch {
            cases: when.into_iter().map(|case| (case.condition, case.to.list())).collect(),
            otherwise: edge.otherwise.map(OneOrMany::list).unwrap_or_default(),
        },
        (None, None, None, Some(fanout)) if edge.otherwise.is_none() => Branch::Fanout(fanout),
        _ => return Err("expected `to`, or `if` with `to` and `else`, or `when` with `else`, or `fanout`".to_owned()),
    };
    match from.as_slice() {
        [from] => Ok(Edge::Branch {
            from: from.clone(),
            branch,
        }),
        _ => Err("a conditional edge must have exactly one source node".to_owned()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct React {
    model: Llm,
    #[serde(default)]
    tools: Vec<Tool>,
}

fn react(fields: Map<String, Value>, mut common: Common) -> Result<Plan, String> {
    common.default_channels(&[("messages", "add-messages")])?;
    if common.sort("messages") != Some(&ChannelKind::Messages) {
        return Err("react needs the channel `messages` with add-messages".to_owned());
    }
    let React { model, tools } = read(fields)?;
    let mut model = model.checked()?;
    let tools = Tools::new(tools)?;
    model.offer(tools.offered());
    let agent = draft("agent".to_owned(), Body::Llm(Box::new(model)));
    let calls = draft("tools".to_owned(), Body::Tools(tools));
    let edges = vec![
        Edge::Plain {
            from: vec![START.to_owned()],
            to: vec!["agent".to_owned()],
        },
        Edge::Branch {
            from: "agent".to_owned(),
            branch: Branch::ToolCalls,
        },
        Edge::Plain {
            from: vec!["tools".to_owned()],
            to: vec!["agent".to_owned()],
        },
    ];
    common.build(vec![agent, calls], edges)
}
